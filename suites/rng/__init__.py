"""Random numbers: seeds, generators, their state."""
