"""Autograd under the eager engine and under compiled autograd: both must meet the same contracts."""
