"""Devices as such: names, properties, choosing one, errors, first use."""
