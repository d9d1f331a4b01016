"""The CUDA runtime API, called as torch calls it: order, memory, errors, graphs, other processes."""
