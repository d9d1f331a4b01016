"""Several threads on one device: current streams, library handles, the allocator, synchronization."""
