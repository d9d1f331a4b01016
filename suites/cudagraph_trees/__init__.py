"""What `torch.compile` makes of CUDA graphs: recorded, replayed, kept in trees of one pool, skipped with a reason."""
