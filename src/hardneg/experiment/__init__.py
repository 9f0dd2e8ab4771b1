"""An experiment: its folder, the stages between a collection and results, and what they need to know."""
