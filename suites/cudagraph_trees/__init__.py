"""CUDA graph trees of `torch.compile`: recording, replay, trees in one pool, and skips with a reason."""
