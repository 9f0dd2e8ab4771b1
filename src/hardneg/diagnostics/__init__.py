"""Diagnostics of training: measures by state, forgetting, composition of negatives, pairwise errors, audits."""
