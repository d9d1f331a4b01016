"""Streams and events: identity, order, time, and what copies and memory owe to them."""
