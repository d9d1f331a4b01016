"""The CUDA runtime's own interface, called as torch calls it: order, memory, errors, graphs, other processes."""
