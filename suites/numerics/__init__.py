"""Numerical results that must be bitwise correct, or within a stated bound."""
