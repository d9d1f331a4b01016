"""Write `catalogue.txt` from the catalogue of the installed torch: `python -m suites.operators.generate`."""

from __future__ import annotations

import sys
from typing import Any

from . import _torch_private, oracles, sizes, types
from .catalogue import FILE, Entry

_HEADER = """\
# Operator, groups of types (with the kind of device, if only the CPU or only CUDA has them), aspects.
# Written by `python -m suites.operators.generate` with torch {}.
"""
#: Operators that are not functions of their inputs alone.
_NO_VALUES = frozenset({oracles.STATISTICS, oracles.SHAPES, oracles.NONE})


#: Operators whose derivatives are of random numbers, or depend on strides.
_NO_DERIVATIVE = frozenset({"svd_lowrank", "pca_lowrank", "as_strided.partial_views"})


#: Operators whose gradient has no derivative, although the catalogue claims one.
_ONCE = frozenset(
    {
        "nn.functional.linear_cross_entropy.chunked",
        "nn.functional.linear_cross_entropy.chunked_none",
        "nn.functional.ctc_loss",
    }
)
#: Operators whose results depend on strides, or that require one memory format.
_BY_STRIDES = frozenset(
    {
        "as_strided",
        "as_strided.partial_views",
        "as_strided_copy",
        "as_strided_scatter",
        "view",
        "view_as",
        "view_as_complex",
        "resize_",
        "resize_as_",
        "native_group_norm",
    }
)
#: Operators that take `out=` according to the catalogue, but whose Python functions do not, or take another list
#: length.
_WITHOUT_OUT = frozenset(
    {"equal", "histogramdd", "_batch_norm_with_update", "split_with_sizes_copy", "unbind_copy", "torch._scaled_mm_v2"}
)


def entry(name: str, info: Any) -> Entry:
    """Return the line of the table for an operator."""
    by_kind = {kind: _groups(info, kind) for kind in ("cpu", "cuda")}
    groups = [group for group in types.GROUPS if group in by_kind["cpu"] or group in by_kind["cuda"]]
    kinds = {group: [kind for kind, found in by_kind.items() if group in found] for group in groups}
    only = {group: found[0] for group, found in kinds.items() if len(found) == 1}
    return Entry(name, tuple(groups), tuple(_aspects(name, info)), only)


def _groups(info: Any, kind: str) -> set[str]:
    declared = {str(each).removeprefix("torch.") for each in types.declared(info, kind)}
    return {group for group, names in types.GROUPS.items() if declared.intersection(names)}


def _aspects(name: str, info: Any) -> list[str]:
    kind = oracles.kind(name)
    found = ["values"]
    plain = kind not in _NO_VALUES
    dense = kind not in (oracles.DENSE, oracles.NONE)
    if plain and dense and info.supports_autograd and name not in _NO_DERIVATIVE:
        found.append("gradients")
        if info.supports_forward_ad:
            found.append("forward")
        if info.supports_gradgrad and name not in _ONCE:
            found.append("second")
    if plain and dense and info.supports_out and name not in _WITHOUT_OUT:
        found.append("out")
    if plain and dense and info.inplace_variant is not None:
        found.append("inplace")
    if plain and dense:
        found += ["repeated", "empty"] if name in _BY_STRIDES else ["layouts", "repeated", "empty"]
    if type(info).__name__ in ("UnaryUfuncInfo", "BinaryUfuncInfo") and plain:
        found += ["extremes", "lengths"]
    if type(info).__name__ == "BinaryUfuncInfo" and plain:
        found.append("broadcast")
    if type(info).__name__ == "ReductionOpInfo" and plain:
        found.append("reductions")
    if name in sizes.SIZES:
        found.append("sizes")
    if info.error_inputs_func is not None:
        found.append("errors")
    return found


def table() -> str:
    """Return the text of the table for the installed torch."""
    import torch

    lines = [str(entry(name, info)) for name, info in _torch_private.operators().items()]
    return _HEADER.format(".".join(torch.__version__.split(".")[:2])) + "".join(f"{line}\n" for line in lines)


def main() -> int:
    FILE.write_text(table(), encoding="ascii")
    return 0


if __name__ == "__main__":
    sys.exit(main())
