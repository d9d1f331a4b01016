"""References in NumPy for the operators of torch: an interpreter of aten, and the functions that it calls."""
