"""Settings of Inductor that hold for simulated devices."""

from __future__ import annotations

from typing import Any

SETTINGS = {
    # Where Inductor chooses between Triton and other generators by this name, it chooses as for the CPU.
    "cuda_backend": "cpp",
    # Both are for generators that know a group of nodes by its numbers of elements. The generator for the CPU knows
    # sizes.
    "loop_ordering_after_fusion": False,
    "loop_reindexing_after_fusion": False,
    # Inductor starts processes to compile Triton's kernels, before there is one. Kernels here are compiled where they
    # are loaded.
    "compile_threads": 1,
}


def apply_settings() -> None:
    """Make the settings the defaults, as far as this release of torch has them.

    A value that is set holds for one thread, and a backward pass compiles in a thread of its own.
    """
    import torch._inductor.config as config

    entries: dict[str, Any] = config._config  # type: ignore[attr-defined]
    for name, value in SETTINGS.items():
        if name in entries:
            entries[name].default = value
