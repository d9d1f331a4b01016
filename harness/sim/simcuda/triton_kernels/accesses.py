"""Finds out which memory a kernel of Triton will use, for the check for races: before it runs, without its data.

The interpreter runs the kernel once more when it is launched. Loads then give values that are unknown, and so is all
that is computed from them; stores store nothing; the addresses of both are noted. Almost all kernels compute their
addresses from arguments alone, and then what is noted is exact, to the element.

What is not known is decided so that no report is false. An address with an unknown offset (a gather) stands for the
tensor that it began in. A program ends at its first branch on unknown data, and what it would have used after that is
not seen; neither is memory whose address was itself loaded. An atomic operation counts as a read, since two of them are
no race.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from triton.runtime import interpreter as triton_interpreter

from harness.sim.simcuda.triton_kernels.interpreter import KernelCall, execute

#: The most separate runs of bytes per launch. Later ones are not seen.
_MOST_RUNS = 4096

Access = tuple[int, int, bool]  # address, bytes, whether it is written


class _DataDependentError(Exception):
    """The program branches on data that only the device will have."""


class _Unknown(np.ndarray[Any, Any]):
    """Values that are not known before the kernel runs. `origins`: the addresses in which pointers among them began."""

    origins: frozenset[int] = frozenset()

    def __array_finalize__(self, source: Any) -> None:
        self.origins = getattr(source, "origins", frozenset())

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = None, **kwargs: Any) -> Any:
        plain = [one.view(np.ndarray) if isinstance(one, _Unknown) else one for one in inputs]
        return _unknown(getattr(ufunc, method)(*plain, **kwargs), _origins(inputs))

    def _refuse(self, *_: Any) -> Any:
        raise _DataDependentError

    __bool__ = __int__ = __index__ = __float__ = item = _refuse


def _unknown(value: Any, origins: frozenset[int]) -> Any:
    if isinstance(value, tuple):
        return tuple(_unknown(one, origins) for one in value)
    result = np.asarray(value).view(_Unknown)
    result.origins = origins
    return result


def _origins(values: Iterable[Any]) -> frozenset[int]:
    return frozenset().union(*(value.origins for value in values if isinstance(value, _Unknown)))


class _Builder:
    """The interpreter's builder: what is made of unknown values is unknown."""

    def __init__(self, builder: Any) -> None:
        self._builder = builder

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._builder, name)
        if not name.startswith("create_"):
            return method
        if name in {"create_print", "create_assert", "create_assume"}:
            return lambda *_: None

        def create(*arguments: Any) -> Any:
            data = [handle.data for handle in _handles(arguments)]
            result = method(*arguments)
            if any(isinstance(one, _Unknown) for one in data):
                origins = _origins(data)
                if name == "create_addptr" and not isinstance(data[0], _Unknown):
                    origins |= frozenset({int(data[0].flat[0])})
                for handle in _handles((result,)):
                    handle.data = _unknown(handle.data, origins)
            return result

        return create


def _handles(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, triton_interpreter.TensorHandle):
            yield value
        elif isinstance(value, list | tuple):
            yield from _handles(value)


class _Memory:
    """In the place of the interpreter's access to memory."""

    def __init__(self, real: Any, extents: Sequence[tuple[int, int]]) -> None:
        self._real = real
        self._extents = extents
        self._noted: dict[bool, list[np.ndarray[Any, Any]]] = {False: [], True: []}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)  # constants

    def load(self, pointers: Any, mask: Any, other: Any, dtype: Any) -> Any:  # noqa: ARG002
        return self._note(pointers, mask, np.dtype(dtype), write=False)

    def store(self, pointers: Any, value: Any, mask: Any) -> None:
        self._note(pointers, mask, value.dtype, write=True)

    def atomic_rmw(self, operation: Any, pointers: Any, value: Any, mask: Any, order: Any) -> Any:  # noqa: ARG002
        return self._note(pointers, mask, value.dtype, write=False)

    def atomic_cas(self, pointers: Any, expected: Any, value: Any, order: Any) -> Any:  # noqa: ARG002
        return self._note(pointers, np.ones_like(pointers, dtype=bool), value.dtype, write=False)

    def _note(self, pointers: Any, mask: Any, dtype: np.dtype[Any], *, write: bool) -> Any:
        if isinstance(pointers, _Unknown):
            begins = [self._extent(origin) for origin in pointers.origins]
        elif isinstance(mask, _Unknown):
            first, last = int(pointers.min()), int(pointers.max()) + dtype.itemsize
            begin, end = self._extent(int(pointers.flat[0]))
            begins = [(max(first, begin), min(last, end))]
        else:
            places = np.unique(np.broadcast_to(pointers, np.shape(pointers))[np.broadcast_to(mask, np.shape(pointers))])
            breaks = np.flatnonzero(np.diff(places) > dtype.itemsize) + 1
            groups = np.split(places, breaks) if places.size else []
            begins = [(int(group[0]), int(group[-1]) + dtype.itemsize) for group in groups]
        known = [run for run in begins if run[0] < run[1]]
        if known:
            self._noted[write].append(np.array(known, dtype=np.uint64))
        return _unknown(np.zeros(np.shape(pointers), dtype=dtype), frozenset())

    def _extent(self, address: int) -> tuple[int, int]:
        """Return the bytes of the argument that has the address; none if no argument has it."""
        return next(((begin, end) for begin, end in self._extents if begin <= address < end), (0, 0))

    def accesses(self) -> list[Access]:
        return [
            (begin, end - begin, write)
            for write, noted in self._noted.items()
            for begin, end in _merged(np.concatenate(noted) if noted else np.empty((0, 2), np.uint64))
        ][:_MOST_RUNS]


def _merged(runs: np.ndarray[Any, Any]) -> Iterator[tuple[int, int]]:
    """Yield the runs of bytes that are left when those that touch are one."""
    begin = end = 0
    for one, other in sorted({(int(run[0]), int(run[1])) for run in runs}):
        if one > end:
            if end:
                yield begin, end
            begin, end = one, other
        end = max(end, other)
    if end:
        yield begin, end


def find_accesses(call: KernelCall) -> list[Access]:
    """Return the memory that the call will read and write, as far as it is known before it runs."""
    with _noting(call) as memory:
        execute(call, ends=(_DataDependentError,))
    return memory.accesses()


@contextmanager
def _noting(call: KernelCall) -> Iterator[_Memory]:
    with call.language():
        semantic, memory = triton_interpreter.interpreter_semantic, triton_interpreter._interpreter
        noting = _Memory(memory, call.extents)
        builder, convert = semantic.builder, triton_interpreter._convert_float
        apply = triton_interpreter.ReduceScanOpInterface.apply

        def converted(value: Any, *arguments: Any) -> Any:
            result = convert(value, *arguments)
            return _unknown(result, frozenset()) if isinstance(value, _Unknown) else result

        def applied(self: Any, value: Any) -> Any:
            parts = [part.handle for part in (value if isinstance(value, tuple) else (value,))]
            before = [part.data for part in parts]
            for part in parts:
                part.data = part.data.view(np.ndarray)  # a function of two elements branches on neither
            result = apply(self, value)
            for part, data in zip(parts, before, strict=True):
                part.data = data
            if any(isinstance(data, _Unknown) for data in before):
                for one in result if isinstance(result, tuple) else (result,):
                    one.handle.data = _unknown(one.handle.data, frozenset())
            return result

        triton_interpreter._interpreter = noting
        triton_interpreter._convert_float = converted
        triton_interpreter.ReduceScanOpInterface.apply = applied
        semantic.builder = _Builder(builder)
        try:
            yield noting
        finally:
            semantic.builder = builder
            triton_interpreter.ReduceScanOpInterface.apply = apply
            triton_interpreter._convert_float = convert
            triton_interpreter._interpreter = memory
