"""The profiler's event tree: recorded events, their nesting and their order."""
