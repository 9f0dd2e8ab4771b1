"""Processes that die, disks that refuse, bits that flip, and what must be true afterwards."""
