"""The profiler's event tree: what was recorded, under what, and in which order."""
