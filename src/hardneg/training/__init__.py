"""Batches, objectives, optimisers, the training loop, checkpoints, and the stage that joins them."""
