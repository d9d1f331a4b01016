"""Tensors that processes share through `torch.multiprocessing`: queues, events, and the lifetime of the memory."""
