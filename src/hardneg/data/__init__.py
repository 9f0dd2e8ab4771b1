"""Collections, formats and token stores: text in, rows and token ids out."""
