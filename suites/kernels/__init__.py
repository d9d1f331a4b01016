"""Kernels that a program brings as text: compiled when it runs, launched like any other work."""
