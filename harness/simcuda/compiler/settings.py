"""Settings of Inductor that hold for simulated devices."""

from __future__ import annotations

SETTINGS = {
    # Where Inductor chooses between Triton and other generators by this name, it chooses as for the CPU.
    "cuda_backend": "cpp",
    # Both are for generators that know a group of nodes by its numbers of elements. That for the CPU knows sizes.
    "loop_ordering_after_fusion": False,
    "loop_reindexing_after_fusion": False,
    # Inductor starts processes to compile Triton's kernels, before there is one. Kernels here are compiled where they
    # are loaded.
    "compile_threads": 1,
}


def apply() -> None:
    """Set those that this release of torch has."""
    import torch._inductor.config as config

    for name, value in SETTINGS.items():
        if hasattr(config, name):
            setattr(config, name, value)
