"""Settings of Inductor for simulated devices."""

from __future__ import annotations

from typing import Any

SETTINGS = {
    # With this name, Inductor chooses as for the CPU wherever it chooses between Triton and other generators.
    "cuda_backend": "cpp",
    # Both are for generators that identify a group of nodes by its numbers of elements. The generator for the CPU uses
    # sizes.
    "loop_ordering_after_fusion": False,
    "loop_reindexing_after_fusion": False,
    # Inductor starts processes that compile Triton's kernels before there is any. Kernels here are compiled by the
    # process that loads them.
    "compile_threads": 1,
}


def apply_settings() -> None:
    """Make the settings the defaults, as far as this release of torch has them.

    A value that is set, instead of a default, holds for one thread, and a backward pass compiles in its own thread.
    """
    import torch._inductor.config as config

    entries: dict[str, Any] = config._config  # type: ignore[attr-defined]
    for name, value in SETTINGS.items():
        if name in entries:
            entries[name].default = value
