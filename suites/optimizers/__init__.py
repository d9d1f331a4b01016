"""Optimizers: every implementation compared with formulas, and the state between steps."""
