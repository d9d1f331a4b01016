"""Autograd under the eager engine and under compiled autograd: both must satisfy the same contracts."""
