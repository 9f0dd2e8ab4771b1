"""Measures and significance tests on runs and qrels."""
