"""What the driver tells beside the computation: NVML readings and NVTX ranges."""
