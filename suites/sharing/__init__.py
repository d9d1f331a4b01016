"""Tensors that processes share by `torch.multiprocessing`: queues, events, and how long the memory lives."""
