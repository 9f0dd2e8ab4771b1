"""One file a convention; formats do not know each other."""
