"""Use beside other tools: evaluation by mteb, boards and trackers of experiments."""
