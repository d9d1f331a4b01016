"""Collectives of several ranks: values, order, failures, and parallel and sharded training."""
