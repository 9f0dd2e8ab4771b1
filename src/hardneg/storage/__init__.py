"""Files on the disk: published whole or not at all, verified before use, and written by one process at a time."""
