"""Lists, tuples and dicts of arguments: `torch.utils._pytree` knows more containers, and takes five times as long."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any


def mapped(function: Callable[..., Any], value: Any, *options: Any) -> Any:
    """Return a value with `function(each, *options)` for each value in its lists, tuples and dicts."""
    kind = type(value)
    if kind is tuple:
        return tuple([mapped(function, each, *options) for each in value])
    if kind is list:
        return [mapped(function, each, *options) for each in value]
    if kind is dict:
        return {name: mapped(function, each, *options) for name, each in value.items()}
    return function(value, *options)


def leaves(value: Any) -> Iterator[Any]:
    """Yield what is no list, tuple or dict."""
    kind = type(value)
    if kind is tuple or kind is list:
        for each in value:
            yield from leaves(each)
    elif kind is dict:
        for each in value.values():
            yield from leaves(each)
    else:
        yield value
