"""Copies between host and device, and pinned memory."""
