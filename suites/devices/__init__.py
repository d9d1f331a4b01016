"""Devices: names, properties, selection, errors, first use."""
