"""Runs the kernels of Triton by its own interpreter, in memory of simulated devices.

Triton's interpreter is made for a process in which every kernel is interpreted (``TRITON_INTERPRET=1``): a decorated
function is then no `JITFunction`, and a launch copies its tensors to the host and back. Here the function stays what it
is on a GPU, so that Triton compiles it, and torch recognises it; the interpreter gets its source only to run it, and
works at the addresses that the launch has had.

The interpreter replaces functions of `triton.language` while it runs, for all threads. Therefore only one kernel runs
at a time, and none while Triton's compiler reads a kernel.
"""

from __future__ import annotations

import ast
import copy
import dataclasses
import functools
import inspect
import itertools
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.compiler import ASTSource
from triton.language.extra import cuda as cuda_language
from triton.language.extra import libdevice as any_libdevice
from triton.language.extra.cuda import libdevice
from triton.runtime import interpreter as triton_interpreter
from triton.runtime.cache import get_cache_manager
from triton.runtime.jit import JITFunction
from triton.tools.tensor_descriptor import TensorDescriptor

from harness.sim.simcuda.triton_kernels import builder

#: Held while `triton.language` is that of the interpreter, and while a kernel is compiled.
_language = threading.RLock()


class KernelError(RuntimeError):
    """A kernel of Triton failed, or cannot run without a GPU."""


@dataclasses.dataclass(frozen=True)
class _Options(triton_interpreter.InterpreterOptions):  # type: ignore[misc]
    """What a kernel can ask about its compilation."""

    num_warps: int = 4


class InterpretedKernel:
    """A compiled kernel, ready to run. Raise KernelError if the interpreter cannot run it."""

    def __init__(self, src: Any, metadata: Any) -> None:
        if not isinstance(src, ASTSource) or not isinstance(src.fn, JITFunction):
            raise KernelError(
                f"the simulated CUDA cannot run the kernel {src.name!r} of Triton: it comes from a file of its "
                "compiler, not from Python; run it on a GPU"
            )
        _check_supported(src.fn, metadata.hash)
        self._fn: JITFunction[Any] = src.fn
        self.name: str = src.fn.__name__
        self._kinds = list(src.signature.values())
        self._options = _Options(
            debug=metadata.debug,
            sanitize_overflow=metadata.debug and metadata.sanitize_overflow,
            num_warps=metadata.num_warps,
            allowed_dot_input_precisions=tuple(metadata.allowed_dot_input_precisions),
        )

    def bind(self, grid: tuple[int, int, int], arguments: Sequence[Any]) -> KernelCall:
        """Return a call with the values and addresses that the arguments have now."""
        extents: list[tuple[int, int]] = []
        bound = [
            _bound(value, kind, place, extents)
            for place, (value, kind) in enumerate(zip(arguments, self._kinds, strict=True))
        ]
        return KernelCall(self._fn, self._options, grid, tuple(bound), tuple(extents))


@dataclasses.dataclass(frozen=True, slots=True)
class KernelCall:
    """A launch of a kernel. It refers to no tensor: a graph keeps it. `extents`: the bytes of its tensors."""

    fn: JITFunction[Any]
    options: Any
    grid: tuple[int, int, int]
    arguments: tuple[Any, ...]
    extents: tuple[tuple[int, int], ...]

    def __call__(self) -> None:
        """Run the kernel. Raise KernelError if it fails."""
        with self.language():
            execute(self)

    @contextmanager
    def language(self) -> Iterator[None]:
        """Return a context in which `triton.language` is that of the interpreter."""
        with _interpreted_language(self.options):
            yield


def _bound(value: Any, kind: Any, place: int, extents: list[tuple[int, int]]) -> Any:
    """Return an argument as the interpreter takes it, without a reference to a tensor."""
    if isinstance(kind, tuple):
        parts = [_bound(part, one, place, extents) for part, one in zip(value, kind, strict=True)]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    if isinstance(value, TensorDescriptor):
        descriptor = copy.copy(value)
        descriptor.base = _scalar(
            _address(value.base, place, extents), tl.pointer_type(tl.str_to_ty(_element(value.base), None))
        )
        return descriptor
    if value is None or kind == "constexpr":
        return value
    if kind.startswith("*"):
        return _scalar(_address(value, place, extents), tl.str_to_ty(kind, None))
    return _scalar(value, tl.str_to_ty(kind, None))


def _element(tensor: Any) -> str:
    from triton.runtime.jit import mangle_type

    return str(mangle_type(tensor)).removeprefix("*")


def _address(value: Any, place: int, extents: list[tuple[int, int]]) -> int:
    if not hasattr(value, "data_ptr"):
        return int(value)
    tensor = getattr(value, "base", value)  # of a wrapper that has another type of elements
    if getattr(getattr(tensor, "device", None), "type", "cuda") == "cpu" and not tensor.is_pinned():
        words_of_triton = f"Pointer argument (at {place}) cannot be accessed from Triton (cpu tensor?)"
        raise ValueError(words_of_triton)
    address = int(value.data_ptr())
    if isinstance(tensor, torch.Tensor) and tensor.numel():
        last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        extents.append((address, address + (last + 1) * tensor.element_size()))
    return address


def _scalar(value: Any, dtype: Any) -> Any:
    numpy_type = triton_interpreter._get_np_dtype(dtype)
    return tl.tensor(triton_interpreter.TensorHandle(np.array([value]).astype(numpy_type), dtype), dtype)


# How the interpreter gets a function


def _code(fn: JITFunction[Any]) -> CodeType:
    """Return the code of the function's module, with the changes that the interpreter needs."""
    known = _codes.get(fn.src)
    return known if known is not None else _codes.setdefault(fn.src, _compiled(fn))


#: By source. A hash of a function is that of all that it calls, and computing it needs the compiler's language.
_codes: dict[str, CodeType] = {}


def _compiled(fn: JITFunction[Any]) -> CodeType:
    tree = triton_interpreter.ASTTransformer().visit(ast.parse(fn.src))
    ast.fix_missing_locations(tree)
    file, line = fn.fn.__code__.co_filename, fn.starting_line_number
    skipped = next((i for i, text in enumerate(fn.raw_src) if text.strip().startswith("def ")), 0)
    ast.increment_lineno(tree, line + skipped - 1)
    return compile(tree, file, "exec", dont_inherit=True)


class _Run(threading.local):
    """The functions of the kernel that this thread runs; None if it runs none."""

    functions: dict[int, FunctionType] | None = None  # by the identity of the program's own one


_current = _Run()


def _function(fn: JITFunction[Any]) -> FunctionType:
    """Return the function for the interpreter, in a copy of its module: the program's own one stays what it is."""
    assert _current.functions is not None
    known = _current.functions.get(id(fn))
    if known is None:
        names = {name: _replaced().get(id(value), value) for name, value in _scope(fn).items()}
        names["interpreter_semantic"] = triton_interpreter.interpreter_semantic
        exec(_code(fn), names)
        known = _current.functions[id(fn)] = names[fn.fn.__name__]
    return known


def _scope(fn: JITFunction[Any]) -> dict[str, Any]:
    return {**fn.fn.__globals__, **inspect.getclosurevars(fn.fn).nonlocals}


@dataclasses.dataclass(frozen=True, slots=True)
class _Change:
    """A function of `triton.language` that the interpreter replaces."""

    owner: Any
    name: str
    compiled: Any
    interpreted: Any


@functools.cache
def _changes() -> list[_Change]:
    """Return what the interpreter changes in `triton.language`, which takes it milliseconds to find out."""
    modules = FunctionType((lambda: None).__code__, {"tl": tl, "core": tl.core})
    scope = triton_interpreter._patch_lang(modules)
    triton_interpreter._patch_builtin(libdevice, triton_interpreter.interpreter_builder, scope)
    triton_interpreter._patch_builtin(cuda_language, triton_interpreter.interpreter_builder, scope)
    for name, stub in inspect.getmembers(any_libdevice, inspect.isfunction):  # the same for any GPU
        if stub.__module__ == any_libdevice.__name__:
            scope.set_attr(any_libdevice, name, getattr(libdevice, name, stub))
    # The compiler prints these while it compiles.
    scope.set_attr(tl, "static_print", _print_nothing)
    scope.set_attr(tl.core, "static_print", _print_nothing)
    for name, member in list(vars(tl.tensor).items()):
        if isinstance(member, JITFunction):
            scope.set_attr(tl.tensor, name, _method(member))
    places = [(owner, name, compiled) for owner, name, compiled in scope._changes]
    interpreted = [
        getattr(owner, name, None) if inspect.ismodule(owner) else vars(owner)[name] for owner, name, _ in places
    ]
    scope.restore()
    return [_Change(*place, one) for place, one in zip(places, interpreted, strict=True)]


def _print_nothing(*_: Any) -> None:
    pass


def _method(fn: JITFunction[Any]) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return fn(self, *args, **kwargs)

    return method


@functools.cache
def _replaced() -> dict[int, Any]:
    """Return the functions that a program may have imported by name, by their identity."""
    return {id(change.compiled): change.interpreted for change in _changes() if inspect.ismodule(change.owner)}


@contextmanager
def _interpreted_language(options: Any) -> Iterator[None]:
    with _language:
        triton_interpreter.interpreter_builder.options = options
        before = []
        _current.functions = {}
        for change in _changes():
            before.append(vars(change.owner).get(change.name, _MISSING))
            setattr(change.owner, change.name, change.interpreted)
        try:
            yield
        finally:
            _current.functions = None
            for change, value in zip(reversed(_changes()), reversed(before), strict=True):
                if value is _MISSING:
                    delattr(change.owner, change.name)
                else:
                    setattr(change.owner, change.name, value)


_MISSING = object()


def execute(call: KernelCall, ends: tuple[type[Exception], ...] = ()) -> None:
    """Run all programs of the grid, one after the other, in the context of the call.

    `ends`: exceptions that end one program only. Raise KernelError if a program fails otherwise.
    """
    grid = triton_interpreter.interpreter_builder
    place = None
    try:
        grid.set_grid_dim(*call.grid)
        function = _function(call.fn)
        named = {
            param.name: value if param.is_constexpr else triton_interpreter._implicit_cvt(value)
            for param, value in zip(call.fn.params, call.arguments, strict=True)
        }
        for place in itertools.product(*map(range, call.grid)):
            grid.set_grid_idx(*place)
            with suppress(*ends):
                function(**named)
    except Exception as error:
        where = "" if place is None else f"program {place}: "
        words_of_the_kernel = f"{where}{type(error).__name__}: {error}"
        raise KernelError(words_of_the_kernel) from error


# What the interpreter needs of the rest of Triton


#: Operations of Triton's compiler that the interpreter does not have, and their names in the language.
_MISSING_OPERATIONS = {
    r"tt\.elementwise_inline_asm": "inline_asm_elementwise",
    r"tt\.dot_scaled": "dot_scaled",
    r"tt\.map_elementwise": "map_elementwise",
    r"tt\.descriptor_reduce": "an atomic operation of a tensor descriptor",
    r"tt\.atomic_rmw .*bf16": "an atomic operation in bfloat16",
}


def _check_supported(fn: JITFunction[Any], key: str) -> None:
    """Raise KernelError if the kernel uses what the interpreter does not have.

    `key`: that of the kernel in Triton's cache, which has what the compiler has made of it and of all that it calls.
    """
    if fn.is_gluon():
        used = ["Gluon"]
    else:
        path = get_cache_manager(key).get_file(f"{fn.__name__[:150]}.ttir")
        operations = Path(path).read_text(encoding="utf-8") if path is not None else ""
        used = [name for pattern, name in _MISSING_OPERATIONS.items() if re.search(pattern, operations)]
    if used:
        raise KernelError(
            f"the simulated CUDA cannot run the kernel {fn.__name__!r} of Triton: it uses {', '.join(used)}, which "
            "Triton's interpreter does not have; run it on a GPU"
        )


def install() -> None:
    """Let functions of kernels call each other in the interpreter, and keep the compiler from reading meanwhile."""
    outside = JITFunction.__call__

    @functools.wraps(outside)
    def call(self: JITFunction[Any], *args: Any, **kwargs: Any) -> Any:
        if _current.functions is None:
            return outside(self, *args, **kwargs)
        return _function(self)(*args, **kwargs)

    make_ir = ASTSource.make_ir

    @functools.wraps(make_ir)
    def make_alone(self: ASTSource, *args: Any, **kwargs: Any) -> Any:
        with _language:
            return make_ir(self, *args, **kwargs)

    cache_key = JITFunction.cache_key.fget

    def cache_key_alone(self: JITFunction[Any]) -> Any:
        if self.hash is not None and not self.hash.startswith("recursion:"):  # that is one which is being computed
            return self.hash
        with _language:
            return cache_key(self)

    JITFunction.__call__ = call
    JITFunction.cache_key = property(cache_key_alone)
    ASTSource.make_ir = make_alone
    builder.install()
