"""ANCE (Xiong et al., 2021): the recipe, its versions of the negatives, and the processes that make them."""
