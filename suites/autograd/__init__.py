"""Autograd, by the eager engine and by compiled autograd: the same contracts for both."""
