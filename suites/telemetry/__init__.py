"""Driver interfaces apart from computation: NVML readings and NVTX ranges."""
