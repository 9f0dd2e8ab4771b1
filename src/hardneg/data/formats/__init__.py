"""Readers of the formats in which collections come: one file for each, and none imports another."""
