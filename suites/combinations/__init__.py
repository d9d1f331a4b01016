"""Features of PyTorch that change no value, in pairs, around random programs."""
