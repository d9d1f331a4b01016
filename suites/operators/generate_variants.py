"""Write `variants.txt` for the installed torch: `python -m suites.operators.generate_variants`."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch

from . import _torch_private, case, comparison, known, samples, types
from .catalogue import Entry, entries
from .variants import FILE, Called, Variant, overload, run, written

_HEADER = """\
# Overload that writes into an argument, functional sibling, operator whose samples call the sibling; then overloads of
# gradients, twice, with the operator whose samples call them.
# Written by `python -m suites.operators.generate_variants` with torch {}.
"""
_HOST = torch.device("cpu")


def _samples(entry: Entry, info: Any, count: int, *, gradient: bool) -> Iterator[Any]:
    try:
        group = types.first_group(types.declared(info, "cpu"), entry.name)
        kinds = case.types_to_try(entry.name, group, _HOST)[1]
    except pytest.xfail.Exception:
        return
    for dtype in kinds:
        smooth = dtype.is_floating_point or dtype.is_complex
        yield from samples.samples(info, dtype, count, gradient=gradient and smooth)


def _called() -> tuple[dict[str, str], set[str]]:
    """Return the overloads that the samples call, each with its first operator, and those that other cases call."""
    first: dict[str, str] = {}
    elsewhere: set[str] = set()
    for entry in entries():
        if not {"gradients", "out", "inplace"}.intersection(entry.aspects):
            continue
        info, seen, by_python = _torch_private.operator(entry.name), Called(), Called()
        for each in _samples(entry, info, 12, gradient=info.supports_autograd):
            with samples.seeded(7), seen:
                run(info, samples.move(samples.arguments(each), _HOST))
        for each in _samples(entry, info, 4, gradient=False):
            _out_and_inplace(entry, info, each, by_python)
        for name in sorted(seen.names):
            first.setdefault(name, entry.name)
        elsewhere |= seen.names | by_python.names
    bare = {name.removeprefix("aten::"): operator for name, operator in first.items()}
    return bare, {name.removeprefix("aten::") for name in elsewhere}


def _out_and_inplace(entry: Entry, info: Any, sample: Any, seen: Called) -> None:
    """Make the calls of `test_out` and `test_inplace`."""
    given = samples.arguments(sample)
    x, args, named = samples.move(given, _HOST)
    result = comparison.tensors(info.op(x, *args, **named))
    if "out" in entry.aspects and entry.name not in known.OUT:
        outs = tuple(torch.empty_like(each) for each in result)
        with seen:
            info.op(x, *args, **named, out=outs[0] if len(outs) == 1 else outs)
    fits = isinstance(x, torch.Tensor) and result and result[0].shape == x.shape and result[0].dtype == x.dtype
    if "inplace" in entry.aspects and fits:
        x, args, named = samples.move(given, _HOST)
        with seen:
            info.inplace_variant(x, *args, **named)


def _signature(target: Any, without: Sequence[str] = ()) -> list[tuple[str, str]]:
    return [(each.name, str(each.type)) for each in target._schema.arguments if each.name not in without]


def _with_kernels() -> Iterator[str]:
    for name in torch._C._dispatch_get_all_op_names():
        if name.startswith("aten::") and torch._C._dispatch_has_kernel_for_dispatch_key(name, "CPU"):
            yield name.removeprefix("aten::")


def table() -> str:
    """Return the text of the table for the installed torch."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        first, elsewhere = _called()
    functional = {name: _signature(overload(name)) for name in sorted(first) if not written(overload(name))}
    found = []
    for name in sorted({*_with_kernels()} - elsewhere):
        target = overload(name)
        outs = written(target)
        if not outs:
            continue
        in_place = not any(each.is_out for each in target._schema.arguments)
        wanted = _signature(target) if in_place else _signature(target, outs)
        base = name.partition(".")[0]
        base = base.removesuffix("_") if in_place else base
        siblings = [each for each in functional if each.partition(".")[0] == base and functional[each] == wanted]
        found += [Variant(name, each, first[each]) for each in siblings[:1]]
    found += [
        Variant(name, name, first[name]) for name in functional if "backward" in name and name in {*_with_kernels()}
    ]
    release = ".".join(torch.__version__.split(".")[:2])
    return _HEADER.format(release) + "".join(f"{each}\n" for each in found)


def main() -> int:
    FILE.write_text(table(), encoding="ascii")
    return 0


if __name__ == "__main__":
    sys.exit(main())
