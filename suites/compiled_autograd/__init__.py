"""Captured and compiled backward passes."""
