"""Backward passes captured and compiled."""
