"""What the package does for its users, by noun; ``hardneg.api`` and the command line are made of these."""
