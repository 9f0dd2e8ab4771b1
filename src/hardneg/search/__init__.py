"""Embeddings, exact search, BM25, runs."""
