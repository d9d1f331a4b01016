"""Kernels given as source text, compiled at run time and launched like other work."""
