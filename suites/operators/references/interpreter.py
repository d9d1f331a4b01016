"""An interpreter of aten in NumPy: torch's Python code runs unchanged, and no kernel of torch computes a value.

Inside `Interpreter`, each operator that reaches torch's dispatcher is computed with NumPy: by a function of `TABLE`, or
by torch's decomposition into other operators, which are then interpreted. Tensors are `Host` objects. They have the
type and shape of the tensor that they represent, and their values are as wide as NumPy's, so floats of every type are
computed in 64 bits and never rounded. Autograd works as with tensors of any other device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

from ..nested import leaves, mapped
from . import formats
from .formats import Array


class NotInterpretedError(NotImplementedError):
    """Raised for an operator that has neither a function here nor a decomposition."""


class Host(torch.Tensor):
    """A tensor whose values are a NumPy array. Its strides are those of the array."""

    array: Array

    @staticmethod
    def __new__(cls, array: Array, dtype: torch.dtype) -> Host:
        strides = [stride // array.itemsize for stride in array.strides]
        made: Host = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, array.shape, strides=strides, storage_offset=0, dtype=dtype, device="cpu"
        )
        made.array = array
        return made

    def __init__(self, array: Array, dtype: torch.dtype) -> None:
        pass

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Host({self.array!r}, {self.dtype})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{func} of a reference outside the interpreter")


#: Functions by the name of their operator, `sin` or `add.Scalar`.
TABLE: dict[str, Callable[..., Any]] = {}
#: The form in which a function gets arrays: "result" (as the type of the result), "raw" (unchanged) or "host" (as
#: `Host`).
_ARGUMENTS: dict[str, str] = {}


def interprets(*names: str, arguments: str = "raw") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function for operators. It returns an array, a tuple of arrays, or `Host` objects."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            TABLE[name] = function
            _ARGUMENTS[name] = arguments
        return function

    return register


#: The dispatch keys that torch includes and excludes outside of every interpreter.
_OUTSIDE: list[tuple[Any, Any]] = []


@contextmanager
def differentiable() -> Iterator[None]:
    """Make autograd record inside of a function of `TABLE`, where torch has disabled it."""
    with torch._C._ForceDispatchKeyGuard(*_OUTSIDE[-1]), torch.enable_grad():
        yield


class Interpreter(TorchDispatchMode):
    """Computes operators by NumPy while entered.

    `called` has the names of the operators of `TABLE` that were called.
    """

    def __init__(self) -> None:
        super().__init__()
        self.called: set[str] = set()

    def __enter__(self) -> Interpreter:
        if not _OUTSIDE:
            _OUTSIDE.append((torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()))
        super().__enter__()
        return self

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        return self.compute(func, mapped(_as_host, args), mapped(_as_host, kwargs))

    def compute(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Return what the operator returns for these arguments."""
        namespace, _, name = func.name().partition("::")
        packet, overload = name.partition(".")[0], name
        for each in (
            (overload, packet) if namespace == "aten" else (f"{namespace}::{overload}", f"{namespace}::{packet}")
        ):
            if each in TABLE:
                self.called.add(each)
                with np.errstate(all="ignore"):
                    return self._by_function(each, func, args, kwargs)
        schema = func._schema
        if torch.Tag.inplace_view in func.tags and func.name() not in _RESIZING:
            return self._change_view(func, args, kwargs)
        if schema.is_mutable:
            return self._mutate(func, args, kwargs)
        if func.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd):
            with self:
                return func.decompose(*args, **kwargs)
        found = _decompositions().get(func)
        if found is not None:
            with self:
                return found(*args, **kwargs)
        raise NotInterpretedError(str(func))

    def _by_function(self, name: str, func: Any, args: Any, kwargs: Any) -> Any:
        way = _ARGUMENTS[name]
        if way == "host":
            with self:
                return TABLE[name](*args, **kwargs)
        like = _declared(func, args, kwargs)
        if way == "result":
            wide = formats.wide(_result_type(like, args, kwargs))
            given, named = mapped(_array, (args, kwargs), wide)
        else:
            given, named = mapped(_array, (args, kwargs))
        found = TABLE[name](*given, **named)
        single = not isinstance(found, tuple | list)
        results = [found] if single else list(found)
        declared = [None] * len(results) if like is None else like if isinstance(like, list) else [like]
        made = [_tensor(each, meta, args) for each, meta in zip(results, declared, strict=True)]
        return made[0] if single else type(found)(made)

    def _change_view(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Change size and strides of the first argument, like `squeeze_`."""
        target = args[0]
        target.array = self.compute(_functional(func), args, kwargs).array
        with no_dispatch():
            func(*args, **kwargs)
        return target

    def _mutate(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Compute the functional operator of the same name, and write its results into the arguments."""
        written = [
            args[place] if place < len(args) else kwargs.get(each.name)
            for place, each in enumerate(func._schema.arguments)
            if each.alias_info is not None and each.alias_info.is_write
        ]
        outs = {each.name for each in func._schema.arguments if each.is_out}
        pure = _functional(func)
        results = self.compute(pure, args, {name: each for name, each in kwargs.items() if name not in outs})
        results = [results] if isinstance(results, torch.Tensor) else list(results)
        targets = [each for each in leaves(written) if isinstance(each, Host)]
        for target, result in zip(targets, results[-len(targets) :], strict=True):
            if target.array.shape == result.array.shape:
                with np.errstate(all="ignore"):
                    target.array[...] = _to(result.array, target.array.dtype)
            else:
                raise NotInterpretedError(f"{func}: a result is resized")
        if len(func._schema.returns) == 0:
            return None
        if len(func._schema.returns) == len(targets):
            return targets[0] if len(targets) == 1 else tuple(targets)
        return tuple(results[: len(func._schema.returns)])


#: Operators with the tag of an in-place view that change the storage.
_RESIZING = frozenset({"aten::resize_", "aten::resize_as_", "aten::set_"})


def _functional(func: Any) -> Any:
    name = func.name().partition("::")[2]
    packet, overload = name.partition(".")[::2]
    pure = getattr(torch.ops.aten, packet.removesuffix("_") if not packet.startswith("__") else packet, None)
    wanted = [str(each.type) for each in func._schema.arguments if not each.is_out]
    for each in (overload or "default", *(pure.overloads() if pure is not None else ())):
        found = getattr(pure, each, None) if pure is not None else None
        if found is None or found._schema.is_mutable:
            continue
        if [str(argument.type) for argument in found._schema.arguments] == wanted:
            return found
    raise NotInterpretedError(str(func))


def _decompositions() -> Any:
    from torch._decomp import decomposition_table

    return decomposition_table


def _as_host(each: Any) -> Any:
    if isinstance(each, torch.Tensor) and not isinstance(each, Host):
        return host(each)
    return each


def host(tensor: torch.Tensor) -> Host:
    """Return the reference's copy of a tensor in the host's memory, with the rest of its storage."""
    tensor = tensor.detach()
    if tensor._is_zerotensor():
        return Host(formats.read(tensor), tensor.dtype)
    size = tensor.untyped_storage().nbytes() // tensor.element_size()
    if size == tensor.numel() or tensor.is_conj() or tensor.is_neg() or size > 1 << 20:
        return Host(formats.read(tensor), tensor.dtype)
    whole = tensor.new_empty(0).set_(tensor.untyped_storage(), 0, (size,), (1,))
    flat = formats.read(whole)
    strides = [each * flat.itemsize for each in tensor.stride()]
    view = np.lib.stride_tricks.as_strided(flat[tensor.storage_offset() :], tuple(tensor.shape), strides)
    return Host(view, tensor.dtype)


def _to(array: Any, dtype: np.dtype[Any]) -> Array:
    array = np.asarray(array)
    if array.dtype == dtype:
        return array
    if dtype.kind != "c" and array.dtype.kind == "c":
        array = array.real
    with np.errstate(all="ignore"):
        return array.astype(dtype)


def _array(each: Any, dtype: np.dtype[Any] | None = None) -> Any:
    if isinstance(each, Host):
        return each.array if dtype is None else _to(each.array, dtype)
    return each


def _result_type(like: Any, args: Any, kwargs: Any) -> torch.dtype:
    first = next(iter(like), None) if isinstance(like, list) else like
    if isinstance(first, _Declared):
        return first.dtype
    return next(each.dtype for each in leaves((args, kwargs)) if isinstance(each, Host))


_NAMES = {np.dtype(np.bool_): torch.bool, **{np.dtype(f"{kind}{bits}"): getattr(torch, f"{name}{bits}")
          for kind, name in (("int", "int"), ("uint", "uint")) for bits in (8, 16, 32, 64)}}  # fmt: skip


def _tensor(value: Any, meta: Any, args: Any) -> Any:
    if isinstance(value, torch.Tensor) or value is None:
        return value
    value = np.asarray(value)
    if isinstance(meta, _Declared):
        if meta.shape != value.shape:
            raise AssertionError(f"the reference has shape {value.shape}, torch declares {meta.shape}")
        return Host(_to(value, formats.wide(meta.dtype)), meta.dtype)
    dtype = _NAMES.get(value.dtype)
    if dtype is None:
        given = [each.dtype for each in leaves(args) if isinstance(each, Host)]
        dtype = next((each for each in given if each.is_floating_point or each.is_complex), torch.float64)
    return Host(_to(value, formats.wide(dtype)), dtype)


class _Declared(NamedTuple):
    """What torch says of a result."""

    shape: tuple[int, ...]
    dtype: torch.dtype


#: Types of arguments by whose value results are declared.
_PLAIN = frozenset(
    {bool, int, float, complex, str, type(None), torch.dtype, torch.layout, torch.device, torch.memory_format}
)
#: What torch declared, by operator and arguments: most calls of a reference have been made before, and the functions
#: that declare, which are Python, take longer than NumPy does for small arrays.
_KNOWN: dict[Any, Any] = {}


def _signature(value: Any) -> Any:
    """Return all that a declaration can depend on. Raise TypeError for an argument of another type."""
    kind = type(value)
    if kind is Host:
        return value.shape, value.stride(), value.dtype
    if kind is tuple or kind is list:
        return kind, *map(_signature, value)
    if kind is dict:
        return tuple((name, _signature(each)) for name, each in value.items())
    if kind not in _PLAIN:
        raise TypeError(kind)
    return kind, value


def _declared(func: Any, args: Any, kwargs: Any) -> Any:
    """Return shapes and types of the results according to torch; None if unknown."""
    try:
        key = func, _signature(args), _signature(kwargs)
    except TypeError:
        return _declare(func, args, kwargs)
    if key not in _KNOWN:
        _KNOWN[key] = _declare(func, args, kwargs)
    return _KNOWN[key]


def _declare(func: Any, args: Any, kwargs: Any) -> Any:
    def bare(each: Any) -> Any:
        if isinstance(each, Host):
            return torch.empty_strided(each.shape, each.stride(), dtype=each.dtype, device="meta")
        return torch.device("meta") if isinstance(each, torch.device) else each

    hosts = any(isinstance(each, Host) for each in leaves((args, kwargs)))
    given, named = mapped(bare, (args, kwargs))
    if not hosts and any(argument.name == "device" for argument in func._schema.arguments):
        named["device"] = torch.device("meta")
    try:
        found = func(*given, **named)
    except (NotImplementedError, RuntimeError) as error:
        if isinstance(error, NotImplementedError) or "meta" in str(error).lower():
            return None
        raise
    if isinstance(found, torch.Tensor):
        return _Declared(tuple(found.shape), found.dtype)
    if not isinstance(found, Iterable):
        return found
    return [_Declared(tuple(each.shape), each.dtype) if isinstance(each, torch.Tensor) else each for each in found]
