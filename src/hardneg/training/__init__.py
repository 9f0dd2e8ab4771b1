"""Optimisers, the training loop, checkpoints."""
