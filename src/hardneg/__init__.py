"""hardneg: train dense retrievers with hard negatives, and see what training does to them."""

__version__ = "0.1.0"
