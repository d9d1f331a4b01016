"""Collectives of several ranks, and the features built on them: values, order, failures, parallel and sharded
training.
"""
