"""Snapshots of memory: what was recorded of allocations, and what is made of it for people to look at."""
