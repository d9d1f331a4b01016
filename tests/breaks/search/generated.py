"""Breaks of operators, C functions and attributes of torch that are made from a name, such as ``add.Tensor:last``.

A name is a place in torch and, after a colon, the way in which it is wrong:

- ``last``, ``every``: the last element of the results, or every element, is wrong;
- ``not_done``: the call does nothing. An operator that writes into its arguments leaves them as they are, another one
  returns zeros, and a function returns None;
- ``errors``: the call does not raise. It returns the first argument of an operator, and None for a function.

While a break computes its wrong value, it is not in effect.
"""

from __future__ import annotations

import functools
import gc
import sys
import threading
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tests.breaks.breaks import BreakError, replace_kernel
from tests.breaks.search.wrong import changed

#: The dispatch key of the kernels, by kind of device.
KEYS = {"cpu": "CPU", "soft": "PrivateUse1", "simcuda": "CUDA", "cuda": "CUDA"}
OPERATOR_WAYS = ("last", "every", "not_done", "errors")
FUNCTION_WAYS = ("last", "not_done", "errors", "every")
ATTRIBUTE_WAYS = ("last",)
#: Classes of torch that are written in C: calls of them count as calls of functions.
TYPES = ("device", "Stream", "Event", "Generator", "Size", "finfo", "iinfo")
_CLASSES = ("method_descriptor", "instancemethod", "builtin_function_or_method", "classmethod_descriptor")

Way = Callable[..., Any]


def operator_break(name: str, device: str) -> Callable[[], None]:
    """Return a function that breaks the kernels of an operator, such as ``add.Tensor:last``, for a kind of device."""
    operator, way = _parts(name, OPERATOR_WAYS)
    around = {"last": _wrong, "every": _wrong, "not_done": _operator_not_done, "errors": _errors_lost}[way]
    keys = ["CPU"] if device == "cpu" else [KEYS[device], "CPU"]

    def apply() -> None:
        made, first = 0, None
        for key in keys:
            try:
                kernel = functools.partial(around, every=way == "every", writes=_writes(operator), instead=_argument)
                replace_kernel(operator, _in_effect_once(kernel), (key,))
                made += 1
            except (AttributeError, RuntimeError) as error:
                first = first or error
        if not made:
            raise BreakError(f"{name}: {first}")

    return apply


def function_break(name: str, places: Mapping[str, list[tuple[Any, str]]]) -> Callable[[], None]:
    """Return a function that breaks a C function, such as ``torch._C._get_cpp_backtrace:last``.

    `places`: from `functions`.
    """
    function, way = _parts(name, FUNCTION_WAYS)
    around = {"last": _wrong, "every": _wrong, "not_done": _nothing, "errors": _errors_lost}[way]

    def apply() -> None:
        if function not in places:
            raise BreakError(f"{name}: there is no such function")
        for owner, attribute in places[function]:
            old = _dictionary(owner)[attribute]
            call = old.__get__(None, owner) if isinstance(old, staticmethod) else old
            kernel = functools.partial(around, every=way == "every", writes=False, instead=lambda *_: None)
            _replace(owner, attribute, _wrapped(_in_effect_once(kernel), call))

    return apply


def attribute_break(name: str, places: Mapping[str, Any]) -> Callable[[], None]:
    """Return a function that breaks an attribute of a C class, such as ``torch.Tensor.grad:last``.

    `places`: from `attributes`.
    """
    attribute, _ = _parts(name, ATTRIBUTE_WAYS)

    def apply() -> None:
        if attribute not in places:
            raise BreakError(f"{name}: there is no such attribute")
        owner, word = places[attribute], attribute.rpartition(".")[2]
        old = _dictionary(owner)[word]
        get = _in_effect_once(lambda kernel, self: changed(kernel(self), every=False))
        made = property(
            lambda self: get(lambda each: old.__get__(each, type(each)), self), getattr(old, "__set__", None)
        )
        _replace(owner, word, made)

    return apply


def functions() -> dict[str, list[tuple[Any, str]]]:
    """Return the C functions and methods of torch by name: the modules and classes that have it, with its name."""
    import torch

    named: dict[int, str] = {}
    found: dict[str, list[tuple[Any, str]]] = {}
    for owner, owned in _owners():
        for attribute, value in list(_dictionary(owner).items()):
            if owner is torch and attribute in TYPES:
                found[f"torch.{attribute}"] = [(torch, attribute)]
            if not _is_function(value) or (isinstance(owner, types.ModuleType) and not _is_of_torch(value)):
                continue
            key = id(value)
            name = named.setdefault(key, f"{owned}.{attribute}")
            found.setdefault(name, []).append((owner, attribute))
    return found


def names_of_functions(found: Mapping[str, list[tuple[Any, str]]]) -> dict[int, str]:
    """Return the name of each C function by the identity of the object that Python calls."""
    names: dict[int, str] = {}
    for name, places in found.items():
        owner, attribute = places[0]
        value = _dictionary(owner)[attribute]
        names[id(value)] = name
        inner = getattr(value, "__func__", None)  # of a method that pybind has made
        if inner is not None:
            names[id(inner)] = name
    return names


def attributes() -> dict[str, Any]:
    """Return the attributes of the C classes of torch by name, each with its class."""
    found: dict[str, Any] = {}
    for owner, owned in _owners():
        if isinstance(owner, type):
            for attribute, value in _dictionary(owner).items():
                if isinstance(value, types.GetSetDescriptorType | property) and not attribute.startswith("__"):
                    found.setdefault(f"{owned}.{attribute}", owner)
    return found


def _parts(name: str, ways: tuple[str, ...]) -> tuple[str, str]:
    place, _, way = name.rpartition(":")
    if way not in ways or not place:
        raise BreakError(f"{name!r}: expected a place in torch, a colon, and one of {', '.join(ways)}")
    return place, way


def _owners() -> Iterator[tuple[Any, str]]:
    """Yield the modules of torch that have C functions, and the C classes, each once, with names."""
    import torch

    seen: set[int] = set()
    modules = [
        (name, module)
        for name, module in sorted(sys.modules.items(), key=lambda item: (item[0] != "torch", item[0]))
        if name.partition(".")[0] == "torch" and isinstance(module, types.ModuleType)
    ]
    for name, module in modules:
        if id(module) not in seen:
            seen.add(id(module))
            yield module, name
    yield torch._C._VariableFunctions, "torch"
    for name, module in modules:
        if not name.startswith("torch._C") and name != "torch":
            continue
        for attribute, value in sorted(vars(module).items()):
            if isinstance(value, type) and value.__module__.startswith("torch") and id(value) not in seen:
                for base in value.__mro__:
                    is_c = not hasattr(base, "__dict__") or "__weakref__" not in vars(base) or _is_of_pybind(base)
                    if is_c and base.__module__.startswith("torch") and id(base) not in seen:
                        seen.add(id(base))
                        yield base, f"{name}.{attribute}"


def _is_of_pybind(owner: type) -> bool:
    return type(owner).__name__ == "pybind11_type"


def _is_of_torch(value: object) -> bool:
    return str(getattr(value, "__module__", "")).partition(".")[0] == "torch"


def _is_function(value: object) -> bool:
    return type(value).__name__ in _CLASSES


def _dictionary(owner: Any) -> dict[str, Any]:
    """Return the dictionary of a module or class itself, which can be changed, also of a class written in C."""
    if isinstance(owner, types.ModuleType):
        return vars(owner)
    if not isinstance(owner, type):
        return {name: getattr(owner, name) for name in dir(owner) if not name.startswith("__")}
    return next(each for each in gc.get_referents(vars(owner)) if type(each) is dict)


def _replace(owner: Any, attribute: str, value: Any) -> None:
    import ctypes

    try:
        setattr(owner, attribute, value)
    except (TypeError, AttributeError):  # a class written in C
        _dictionary(owner)[attribute] = value
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(owner))


def _wrapped(around: Way, call: Any) -> Any:
    if isinstance(call, type):
        return _type_in_front(around, call)

    def broken(*given: Any, **named: Any) -> Any:
        return around(call, *given, **named)

    return functools.update_wrapper(broken, call, assigned=("__name__", "__doc__"), updated=())


def _type_in_front(around: Way, made: type) -> type:
    """Return a class whose objects `around` makes. Otherwise it is like `made`."""

    class InFront(type):
        def __call__(cls, *given: Any, **named: Any) -> Any:
            return around(made, *given, **named)

        def __instancecheck__(cls, value: object) -> bool:
            return isinstance(value, made)

        def __getattr__(cls, name: str) -> Any:
            return getattr(made, name)

    return InFront(made.__name__, (), {})


_inside = threading.local()


def _in_effect_once(around: Way) -> Way:
    """Return the function, which calls what it breaks unbroken while it runs itself."""

    def call(kernel: Way, *given: Any, **named: Any) -> Any:
        if getattr(_inside, "entered", False):
            return kernel(*given, **named)
        _inside.entered = True
        try:
            return around(kernel, *given, **named)
        finally:
            _inside.entered = False

    return call


def _wrong(kernel: Way, *given: Any, every: bool, writes: bool, instead: Way, **named: Any) -> Any:  # noqa: ARG001
    _inside.entered = False  # what the call itself calls is broken
    result = kernel(*given, **named)
    _inside.entered = True
    return changed(result, every=every)


def _nothing(kernel: Way, *given: Any, every: bool, writes: bool, instead: Way, **named: Any) -> Any:  # noqa: ARG001
    return instead(*given)


def _operator_not_done(kernel: Way, *given: Any, every: bool, writes: bool, instead: Way, **named: Any) -> Any:  # noqa: ARG001
    import torch

    if writes:
        outs = [named[name] for name in named if name.startswith("out")]
        return (tuple(outs) if len(outs) > 1 else outs[0]) if outs else given[0]
    result = kernel(*given, **named)
    for each in result if isinstance(result, tuple | list) else [result]:
        if isinstance(each, torch.Tensor):
            each.data.zero_()
    return result if not isinstance(result, bool | int | float) else type(result)(0)


def _errors_lost(kernel: Way, *given: Any, every: bool, writes: bool, instead: Way, **named: Any) -> Any:  # noqa: ARG001
    _inside.entered = False
    try:
        return kernel(*given, **named)
    except Exception:  # noqa: BLE001 - whatever it should raise is lost
        return instead(*given, **named)


def _argument(*given: Any, **named: Any) -> Any:
    """Return what an operator returns instead of its result: the tensor for it, else the first tensor argument."""
    import torch

    values = [*(named[name] for name in named if name.startswith("out")), *given]
    return next((value for value in values if isinstance(value, torch.Tensor)), None)


def _writes(operator: str) -> bool:
    """Return whether an operator writes into one of its arguments."""
    import torch

    name, _, overload = operator.partition(".")
    schema: Any = getattr(getattr(torch.ops.aten, name), overload or "default")._schema
    return bool(schema.is_mutable)
