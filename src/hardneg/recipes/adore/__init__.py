"""ADORE (Zhan et al., 2021): the recipe, its fixed index and negatives, and the lists that it trains on."""
