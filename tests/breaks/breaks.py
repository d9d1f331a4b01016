"""Breaks of torch, and the ways to make them. The import of this file does not import torch.

A break is made in a process that has no other use, and is never undone.
"""

from __future__ import annotations

import importlib
import inspect
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.core.errors import HarnessError

_NAME = re.compile(r"[a-z][a-z0-9_]*")


class BreakError(HarnessError):
    """A break has an error, or its name is unknown."""


@dataclass(frozen=True, slots=True)
class Break:
    """One way in which torch may be wrong.

    - `breaks`: what is wrong, in one sentence.
    - `suites`: the folders, files or case ids that should notice. Only these run.
    - `apply`: breaks torch in this process. None for a fault.
    - `shows`: the demonstration, a function without arguments. It returns a plain value that is always the same, and
      that the break changes.
    - `device`: the kind of device that the cases run on.
    - `fault`: the fault of the software device that is injected, for a break without `apply`.
    - `options`: further options for pytest.
    """

    name: str
    breaks: str
    suites: tuple[str, ...]
    apply: Callable[[], object] | None = None
    shows: Callable[[], object] | None = None
    device: str = "cpu"
    fault: str = ""
    options: tuple[str, ...] = ()


@dataclass
class Theme:
    """The breaks of one file of the catalogue, in order. A theme is a decorator for the functions that break torch."""

    breaks: list[Break] = field(default_factory=list)

    def __call__(
        self, breaks: str, *suites: str, shows: Callable[[], object], device: str = "cpu"
    ) -> Callable[[Callable[[], object]], Callable[[], object]]:
        """Add a break under the name of the decorated function."""

        def add(apply: Callable[[], object]) -> Callable[[], object]:
            self.add(Break(apply.__name__, breaks, suites, apply, shows, device))
            return apply

        return add

    def edit(
        self, name: str, breaks: str, where: str, old: str, new: str, *suites: str, shows: Callable[[], object]
    ) -> None:
        """Add a break that replaces a part of the source of a function of torch. See `edit`."""
        self.add(Break(name, breaks, suites, lambda: edit(where, old, new), shows))

    def add(self, entry: Break) -> None:
        """Add a break. Raise BreakError if it is incomplete."""
        if not _NAME.fullmatch(entry.name):
            raise BreakError(f"the break {entry.name!r}: expected a name of small letters, digits and underscores")
        if not entry.breaks.strip() or not entry.suites:
            raise BreakError(f"the break {entry.name!r}: expected a sentence on what it breaks, and suites")
        if (entry.apply is None) != (entry.shows is None):
            raise BreakError(f"the break {entry.name!r}: expected a demonstration that shows its effect")
        if (entry.apply is None) != bool(entry.fault):
            raise BreakError(f"the break {entry.name!r}: expected a function that breaks torch or the name of a fault")
        self.breaks.append(entry)


def replace(owner: Any, name: str, around: Callable[[Any], Any]) -> None:
    """Replace an attribute of a module or class by the result of `around`, for functions of any kind."""
    attribute = vars(owner).get(name, getattr(owner, name))
    if isinstance(attribute, staticmethod | classmethod):
        setattr(owner, name, type(attribute)(around(attribute.__func__)))
    elif isinstance(attribute, property):
        setattr(owner, name, property(around(attribute.fget), attribute.fset, attribute.fdel))
    else:
        setattr(owner, name, around(attribute))


def edit(where: str, old: str, new: str) -> None:
    """Replace each `old` in the source of a function by `new`, and recompile the function.

    `where`: ``module:function`` or ``module:Class.method``. Raise BreakError if the source in this release of torch
    does not have `old`.
    """
    module, _, path = where.partition(":")
    owner: Any = importlib.import_module(module)
    *classes, name = path.split(".")
    for step in classes:
        owner = getattr(owner, step)
    function = inspect.unwrap(getattr(inspect.getattr_static(owner, name), "__func__", getattr(owner, name)))
    source = textwrap.dedent(inspect.getsource(function))
    if old not in source:
        raise BreakError(f"the source of {where} does not have {old!r}")
    made: dict[str, Any] = {}
    # The code is nested in a function that has the class as a variable, for `super()` without arguments.
    outer = (
        f"def outer(__class__):\n{textwrap.indent(source.replace(old, new), '    ')}\n    return {function.__name__}\n"
    )
    exec(compile(f"from __future__ import annotations\n{outer}", f"<{where}>", "exec"), function.__globals__, made)
    setattr(owner, name, made["outer"](owner))


def replace_kernel(operator: str, around: Callable[..., Any], keys: Sequence[str] = ("CPU",)) -> None:
    """Replace the kernels of an operator for these dispatch keys.

    `around` is called with the kernel as a function, then the arguments of the operator. Every caller of the operator,
    in Python or C++, gets the broken one. In the place of a tensor, `around` may get a number, as in ``x * 2.0``. The
    kernel gets it as a tensor without dimensions, of a type that gives the same type of result as the number.
    """
    import warnings

    import torch

    make: Any = torch.library.Library  # it has no type annotations
    library = make("aten", "IMPL")
    _LIBRARIES.append(library)
    tensors = _places_of_tensors(operator)
    for key in keys:
        kernel = torch.library.get_kernel(f"aten::{operator}", key)

        def broken(keyset: Any, *arguments: Any, _kernel: Any = kernel, **named: Any) -> Any:
            def original(*given: Any, **more: Any) -> Any:
                return _kernel.call_boxed(keyset, *_with_tensors(given, tensors), **more)

            return around(original, *arguments, **named)

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns once that a kernel is overridden
            library.impl(operator, broken, key, with_keyset=True)


def _places_of_tensors(operator: str) -> frozenset[int]:
    """Return the positions of the tensor arguments."""
    import torch

    name, _, overload = operator.partition(".")
    schema: Any = getattr(getattr(torch.ops.aten, name), overload or "default")._schema
    return frozenset(place for place, argument in enumerate(schema.arguments) if str(argument.type) == "Tensor")


def _with_tensors(arguments: Sequence[Any], tensors: frozenset[int]) -> Sequence[Any]:
    """Return the arguments, with tensors for numbers in these positions.

    torch passes a number to a kernel as a tensor that does not affect the type of the result. A kernel in Python gets
    the number itself, which a kernel in C++ does not accept.
    """
    numbers = [place for place in tensors if place < len(arguments) and type(arguments[place]) in _NUMBERS]
    if not numbers:
        return arguments
    import torch

    others = [argument for argument in arguments if isinstance(argument, torch.Tensor)]
    made = list(arguments)
    for place in numbers:
        number = arguments[place]
        # Not torch.tensor, which copies: the copy kernel may be the broken one.
        exact = torch.scalar_tensor(number, dtype=getattr(torch, _NUMBERS[type(number)]))
        wanted = [torch.result_type(other, number) for other in others]
        fits = [torch.result_type(other, exact) for other in others] == wanted
        made[place] = exact if fits or not wanted else torch.scalar_tensor(number, dtype=wanted[0])
    return made


#: The type of the tensor that torch makes from a number.
_NUMBERS: Mapping[type, str] = {bool: "bool", int: "int64", float: "float64", complex: "complex128"}
#: Kernels stay registered while their library lives.
_LIBRARIES: list[Any] = []


def is_mistake(text: str) -> bool:
    """Return whether a text is an exception that comes from a mistake in a break, rather than from a wrong value.

    Wrong computations in torch do not raise these exceptions, and code with wrong values raises others.
    """
    if "RanksError: rank" in text.partition(" raised ")[0]:
        text = text.partition(" raised ")[2]  # the exception of a rank of the case
    kind, colon, _ = text.partition(":")
    return bool(colon) and kind.rpartition(".")[2] in _MISTAKES


#: Names of exceptions.
_MISTAKES = frozenset(
    {"AttributeError", "ImportError", "NameError", "RecursionError", "TypeError", "UnboundLocalError"}
)


def by_name(breaks: Sequence[Break]) -> Mapping[str, Break]:
    """Return the breaks by name. Raise BreakError if two have the same name."""
    named: dict[str, Break] = {}
    for entry in breaks:
        if entry.name in named:
            raise BreakError(f"two breaks are named {entry.name!r}: rename one")
        named[entry.name] = entry
    return named
