"""Streams and events: identity, order, timing, and their effects on copies and memory."""
