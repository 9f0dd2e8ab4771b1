"""What the package does for its users, a module for each verb; the command line calls the same functions."""
