"""The names of torch, undocumented, that this suite depends on. Nothing else in the suite reaches for one.

torch compiles kernels with NVRTC for itself and documents how, under an underscored name. A release, or a build, that
lacks a name makes the case *skipped*, with the name in the reason, not failed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from suites.reaching import reach


def compiled(
    source: str,
    name: str,
    *,
    capability: str | None = None,
    include: Sequence[str] | None = None,
    options: Sequence[str] | None = None,
) -> Any:
    """A kernel of CUDA source, to be called with `grid`, `block` and `args`. `name` may be a template's instance."""
    found = reach("torch.cuda._compile_kernel")
    return found(source, name, capability, _listed(include), _listed(options))


def binary(
    source: str,
    name: str,
    *,
    capability: str = "90",
    include: Sequence[str] | None = None,
    options: Sequence[str] | None = None,
) -> tuple[bytes, str]:
    """What NVRTC makes of source for a compute capability, and the name that the kernel has in it. Needs no GPU."""
    code, mangled = reach("torch.cuda._utils._nvrtc_compile")(
        source, name, capability, _listed(include), _listed(options)
    )
    return bytes(code), str(mangled)


def _listed(values: Sequence[str] | None) -> list[str] | None:
    return None if values is None else list(values)
