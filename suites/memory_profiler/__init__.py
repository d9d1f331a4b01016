"""The memory profiler: which tensor is what, who made and freed it, and how much memory each kind holds when."""
