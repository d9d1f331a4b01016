"""Saving and loading, on a device and across devices."""
