"""Collectives of several ranks, and what stands on them: values, order, failures, parallel and sharded training."""
