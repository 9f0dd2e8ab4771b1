"""The recipes, each in a file or folder of its own that reads like the algorithm of its paper."""
