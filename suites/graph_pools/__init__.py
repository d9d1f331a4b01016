"""Memory pools of graphs: their contents, sharing, lifetime, and checkpoints."""
