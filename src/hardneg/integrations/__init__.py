"""Connections to other tools: evaluation by mteb, and trackers that follow an experiment's metrics."""
