"""The memory profiler: the category of each tensor, the data flow, and the memory per category over time."""
