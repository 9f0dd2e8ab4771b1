"""Negative sources, pools and the teleportation mix."""
