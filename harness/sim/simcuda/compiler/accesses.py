"""The memory that a generated kernel uses, for the check for races (`csrc/runtime/races.h`).

Inductor knows the index of each load and store while it generates a kernel. `describe_accesses` keeps the affine ones
as offsets, sizes and strides, in elements; any other index may lead anywhere in its tensor. `declare` computes the
bytes when the kernel is launched.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import sympy
import torch

from harness.backends import simulation


class Layout(NamedTuple):
    """Elements of a tensor, relative to its first one."""

    offset: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]


#: By the place of an argument: each use of its tensor, as whether it is a write, and which elements (None: any).
Accesses = dict[int, list[tuple[bool, Layout | None]]]

#: As in `csrc/operators/front.cpp`: only the first runs of a layout with many gaps are listed.
_MOST_RUNS = 1024


def describe_accesses(args: Any, nodes: Iterable[Any], real_names: dict[str, str]) -> Accesses:
    """Return the accesses of a kernel, given Inductor's `KernelArgs`, the scheduler's nodes, and what it has renamed.

    A tensor without a known load or store counts as read, or as written if the kernel may write to it.
    """
    _, buffers, types = args.cpp_argdefs()
    places = {name: place for place, (name, kind) in enumerate(zip(buffers, types, strict=True)) if kind.endswith("*")}
    for name, inplaced in args.inplace_buffers.items():
        if (place := places.get(getattr(inplaced, "other_names", [""])[-1])) is not None:
            places[name] = place
    found: Accesses = {place: [] for place in places.values()}
    for node in nodes:
        for write, dependencies in ((False, node.read_writes.reads), (True, node.read_writes.writes)):
            for dependency in dependencies:
                place = places.get(real_names.get(dependency.name, dependency.name))
                if place is not None and (entry := (write, _layout(dependency))) not in found[place]:
                    found[place].append(entry)
    for place, entries in found.items():
        writable = not types[place].startswith("const ")
        if not any(write == writable for write, _ in entries):
            entries.append((writable, None))
    return found


def _layout(dependency: Any) -> Layout | None:
    """Return the elements of an affine index with known sizes; None for any other one."""
    from torch._inductor.dependencies import MemoryDep

    if not isinstance(dependency, MemoryDep):
        return None  # on a whole tensor
    index, variables, sizes = dependency.index, dependency.var_names, dependency.size
    at_zero = dict.fromkeys(variables, 0)
    offset = index.subs(at_zero)
    strides = [index.subs(at_zero | {variable: 1}) - offset for variable in variables]
    affine = offset + sum(stride * variable for stride, variable in zip(strides, variables, strict=True))
    if not all(sympy.sympify(number).is_Integer for number in (offset, *strides, *sizes)):
        return None
    if (index - affine).expand() != 0 or any(stride < 0 for stride in strides):
        return None
    return Layout(int(offset), tuple(map(int, sizes)), tuple(map(int, strides)))


def runs(layout: Layout, item: int) -> Iterator[tuple[int, int]]:
    """Yield the runs of bytes of a layout, as offset and length. `item`: the bytes of an element."""
    if 0 in layout.sizes:
        return
    steps = sorted(
        (stride * item, size) for size, stride in zip(layout.sizes, layout.strides, strict=True) if size > 1 and stride
    )
    run, dense = item, 0
    while dense < len(steps) and steps[dense][0] <= run:
        run += steps[dense][0] * (steps[dense][1] - 1)
        dense += 1
    for begin in _places(layout.offset * item, steps[dense:]):
        yield begin, run


def _places(begin: int, steps: Sequence[tuple[int, int]]) -> Iterator[int]:
    """Yield the places that steps of several sizes lead to, the smallest step first."""
    if not steps:
        yield begin
        return
    *inner, (step, size) = steps
    for number in range(size):
        yield from _places(begin + number * step, inner)


class _Access(ctypes.Structure):
    """SimcudaAccess of `csrc/include/simcuda_races.h`."""

    _fields_ = (
        ("address", ctypes.c_void_p),
        ("bytes", ctypes.c_size_t),
        ("write", ctypes.c_bool),
        ("item", ctypes.c_uint32),
        ("generation", ctypes.c_uint64),
    )


def is_checked() -> bool:
    """Return whether the runtime of this process checks the memory that work uses, or its order."""
    runtime = simulation.simulated_runtime()
    return runtime is not None and bool(runtime.simcudaChecksWork())


def declare(arguments: Sequence[Any], accesses: Accesses) -> None:
    """Tell the runtime what the next launch of this thread uses. Arguments that are no CUDA tensors are left out."""
    made = []
    for place, entries in accesses.items():
        tensor = arguments[place]
        if not isinstance(tensor, torch.Tensor) or not tensor.is_cuda:
            continue
        address, item = tensor.data_ptr(), tensor.element_size()
        for write, known in entries:
            layout = Layout(*known) if known else Layout(0, tuple(tensor.size()), tuple(tensor.stride()))
            all_runs = runs(layout, item)
            made += [_Access(address + begin, length, write, item) for begin, length in islice(all_runs, _MOST_RUNS)]
            if write and next(all_runs, None):
                made.append(_Access(None, 0, True, 1))
    runtime = simulation.simulated_runtime()
    if runtime is not None:
        runtime.simcudaDeclare((_Access * len(made))(*made), ctypes.c_size_t(len(made)))
