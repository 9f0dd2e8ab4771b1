"""Encoders over flat token batches."""
