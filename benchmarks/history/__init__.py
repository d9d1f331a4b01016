"""Measurements of ``harness history`` on generated nights; see ../README.md."""
