"""Describes what refers to an object: the chain of referrers up to a name that a reader can search for.

The garbage collector knows only the objects that it tracks. Unfreeze frozen objects (`gc.freeze`) first: otherwise the
chain ends at the first holder from before the fork.
"""

from __future__ import annotations

import gc
import sys
import types
from collections import deque
from collections.abc import Sequence
from typing import TypeGuard, TypeVar, cast

T = TypeVar("T")

#: Steps up from the object, and holders examined in each step. A name is usually three or four steps away.
_MAX_STEPS = 8
_MAX_HOLDERS = 200

_CONTAINERS = (list, tuple, set, frozenset, deque)
_ENDS = (types.FrameType, types.ModuleType, type)


def describe_holders(target: object, ignore: Sequence[object] = ()) -> str:
    """Return what holds `target`, nearest first: ``item of list of 3, global 'CACHE' of module suites.x``.

    `ignore`: containers of the caller that also hold it. The garbage collector does not see the variables of a running
    function. If no other holder is found, the text names C, C++ or a running function.
    """
    modules = {id(vars(m)): name for name, m in list(sys.modules.items()) if _is(m, types.ModuleType)}
    path = _path(target, modules, {id(container) for container in ignore})
    if len(path) == 1:
        return "C, C++ or a running function (no object that the garbage collector tracks)"
    return ", ".join(_words(path, modules))


def _path(target: object, modules: dict[int, str], skip: set[int]) -> list[object]:
    """Return the objects from `target` to the nearest one with a name, or to the farthest one if none has a name."""
    chain_objects: list[object] = [target]
    seen = {id(target): 0}  # by object id, the position in `chain_objects` of the object that it holds
    skip |= {id(chain_objects), id(seen), id(modules), id(skip)}
    level = [0]
    reached = 0
    for _ in range(_MAX_STEPS):
        batch = [chain_objects[position] for position in level]
        skip.add(id(batch))
        referrers = gc.get_referrers(*batch)
        skip.add(id(referrers))
        positions = {id(chain_objects[position]): position for position in level}
        level = []
        for holder in referrers:
            if id(holder) in skip or id(holder) in seen or len(level) >= _MAX_HOLDERS:
                continue
            child = next((positions[id(item)] for item in gc.get_referents(holder) if id(item) in positions), None)
            if child is None:
                continue  # it no longer holds the object
            seen[id(holder)] = child
            chain_objects.append(holder)
            level.append(len(chain_objects) - 1)
            if id(holder) in modules or _is(holder, _ENDS) or holder is gc.garbage:
                return _trace(chain_objects, seen, len(chain_objects) - 1)
        del referrers, batch
        if not level:
            break
        reached = level[0]
    return _trace(chain_objects, seen, reached)


def _trace(objects: list[object], seen: dict[int, int], position: int) -> list[object]:
    path = [objects[position]]
    while position:
        position = seen[id(objects[position])]
        path.append(objects[position])
    path.reverse()
    return path


def _is(value: object, kinds: type[T] | tuple[type[T], ...]) -> TypeGuard[T]:
    """Return isinstance, without access to ``__class__``, which may be code of the case."""
    return issubclass(type(value), kinds)


def _words(path: Sequence[object], modules: dict[int, str]) -> list[str]:
    """Return a phrase for each step along `path`: an object, then the holder of each object before it."""
    words = []
    position = 1
    while position < len(path):
        child, holder = path[position - 1], path[position]
        above = path[position + 1] if position + 1 < len(path) else None
        if _is(holder, dict) and id(holder) in modules:
            words.append(f"global {_key(holder, child)} of module {modules[id(holder)]}")
        elif _is(holder, dict) and _is(above, type):
            words.append(f"class attribute {_key(holder, child)} of {_name(above)}")
            position += 1
        elif _is(holder, dict) and _own_values(above) is holder:
            words.append(f"attribute {_key(holder, child)} of a {_name(type(above))}")
            position += 1
        elif _is(holder, dict):
            words.append(f"value of {_key(holder, child)} in dict of {len(holder)}")
        elif holder is gc.garbage:
            words.append("item of gc.garbage")
        elif _is(holder, types.CellType):
            words.append("closure cell")
        elif _is(holder, _CONTAINERS):
            words.append(f"item of {type(holder).__name__} of {len(holder)}")
        else:
            words.append(_described(holder, child))
        position += 1
    return words


def _described(holder: object, child: object) -> str:
    if _is(holder, types.FunctionType):
        return f"{_within(holder, child)} function {_name(holder)}"
    if _is(holder, types.FrameType):
        names = [name for name, value in holder.f_locals.items() if value is child]
        where = f"{holder.f_code.co_qualname} ({holder.f_code.co_filename}:{holder.f_lineno})"
        return f"local {names[0]!r} of {where}" if names else f"a running {where}"
    if _is(holder, (types.GeneratorType, types.CoroutineType)):
        return f"a suspended {_name(holder)}"
    if _is(holder, type):
        return f"class {_name(holder)}"
    for name in _attributes(holder):
        try:
            if object.__getattribute__(holder, name) is child:
                return f"attribute {name!r} of a {_name(type(holder))}"
        except AttributeError:
            continue
    wrapped = getattr(holder, "__wrapped__", None) if type(holder).__module__ == "functools" else None
    return f"cache of {_name(wrapped)}" if wrapped is not None else f"a {_name(type(holder))}"


def _attributes(holder: object) -> list[str]:
    """Return the names of an object's attributes, including slots. Run no code of its class."""
    slots = [
        name
        for kind in type(holder).__mro__
        for name, member in vars(kind).items()
        if _is(member, types.MemberDescriptorType)
    ]
    return [*_own_values(holder), *slots]


def _own_values(holder: object) -> dict[str, object]:
    """Return the object's ``__dict__``, or an empty one. Run no code of its class."""
    try:
        return cast("dict[str, object]", object.__getattribute__(holder, "__dict__"))
    except (AttributeError, TypeError):
        return {}


def _within(function: types.FunctionType, child: object) -> str:
    cells = function.__closure__ or ()
    if child is cells:
        return "in the closure of"
    return "default of" if child in (function.__defaults__, function.__kwdefaults__) else "held by"


def _key(mapping: dict[object, object], value: object) -> str:
    for key, member in mapping.items():
        if member is value:
            return f"{key!r:.80}" if type(key) in (str, int) else f"a {_name(type(key))}"
    return "a key"


def _name(value: object) -> str:
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", type(value).__name__)
    return f"{module}.{name}" if module and module != "builtins" else str(name)
