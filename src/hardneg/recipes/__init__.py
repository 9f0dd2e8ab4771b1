"""One recipe, one file: each reads like the algorithm of its paper."""
