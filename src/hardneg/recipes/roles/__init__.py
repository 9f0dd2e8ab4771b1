"""Processes that work on one experiment beside each other: what each is told, and who watches them."""
