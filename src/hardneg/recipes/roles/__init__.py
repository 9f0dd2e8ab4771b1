"""Roles: processes that work on one experiment at the same time, with their jobs and their supervision."""
