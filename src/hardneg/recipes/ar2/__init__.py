"""AR2 (Zhang et al., 2022): a retriever and a ranker that train each other, turn by turn."""
