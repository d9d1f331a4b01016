"""The undocumented torch names that this suite uses. No other module of the suite looks one up.

torch compiles kernels with NVRTC and documents this under an underscored name. A case that needs a name that the torch
release or build lacks is skipped, with the name in the reason.
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
    """Compile CUDA source, and return the kernel, which is called with `grid`, `block` and `args`.

    `name` may be a template instance.
    """
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
    """Return the code that NVRTC generates for a compute capability, and the kernel's mangled name.

    No GPU is needed.
    """
    code, mangled = reach("torch.cuda._utils._nvrtc_compile")(
        source, name, capability, _listed(include), _listed(options)
    )
    return bytes(code), str(mangled)


def _listed(values: Sequence[str] | None) -> list[str] | None:
    return None if values is None else list(values)
