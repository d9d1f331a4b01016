"""The caching allocator of an accelerator: statistics, reuse, limits."""
