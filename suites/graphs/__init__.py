"""Graphs of an accelerator: capture, replay, memory."""
