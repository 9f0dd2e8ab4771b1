"""What stands on the disk: published whole or not at all, verified before use, and who writes where."""
