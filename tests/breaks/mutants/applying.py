"""Make a mutant in this process: existing functions of torch get the code of the changed source.

Functions keep their identity, so all references to them, decorated or not, run the changed code.
"""

from __future__ import annotations

import gc
import inspect
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import CodeType, FunctionType

from harness.core.errors import HarnessError
from tests.breaks.mutants.mutant import Mutant

#: By file and qualified name.
Functions = Mapping[tuple[str, str], list[FunctionType]]
_KIND = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


class UnfitError(HarnessError):
    """A mutant cannot be made from the functions that exist in this process."""


def living_functions(files: Iterable[Path]) -> Functions:
    """Return the existing functions of these files. Functions that `gc.freeze` has frozen are not found."""
    wanted = {str(file) for file in files}
    functions: dict[tuple[str, str], list[FunctionType]] = {}
    for living in gc.get_objects():
        if type(living) is FunctionType and living.__code__.co_filename in wanted:
            functions.setdefault((living.__code__.co_filename, living.__code__.co_qualname), []).append(living)
    return functions


def apply(mutant: Mutant, file: Path, functions: Functions) -> None:
    """Change the functions. `file`: the source. Raise UnfitError."""
    if mutant.parameter:
        _change_default(mutant, functions.get((str(file), mutant.function), []))
        return
    source = file.read_bytes()
    try:
        _replace(mutant, file, source, functions, names_kept=False)
    except (UnfitError, ValueError, SyntaxError):
        try:
            _replace(mutant, file, source, functions, names_kept=True)
        except (ValueError, SyntaxError) as error:
            raise UnfitError(f"{type(error).__name__}: {error}") from None


def _replace(mutant: Mutant, file: Path, source: bytes, functions: Functions, *, names_kept: bool) -> None:
    changed = compile(mutant.applied(source, names_kept=names_kept), str(file), "exec", dont_inherit=True)
    count = 0
    for code in _codes(changed):
        name = code.co_qualname
        if mutant.function != name and not mutant.function.startswith(f"{name}.<locals>."):
            continue
        for function in functions.get((str(file), name), ()):
            old = function.__code__
            if old.co_firstlineno != code.co_firstlineno:
                continue  # another function of the same name
            if (old.co_flags ^ code.co_flags) & _KIND:
                raise UnfitError("a generator became a function")
            function.__code__ = code  # ValueError: it has other variables of the enclosing functions
            count += 1
    if not count:
        raise UnfitError("no living function has this code")


def _codes(code: CodeType) -> Iterator[CodeType]:
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield const
            yield from _codes(const)


def _change_default(mutant: Mutant, functions: Iterable[FunctionType]) -> None:
    value = eval(mutant.new, {})  # a number or a truth value
    count = 0
    for function in functions:
        positional = function.__code__.co_varnames[: function.__code__.co_argcount]
        defaults = function.__defaults__ or ()
        if function.__kwdefaults__ and mutant.parameter in function.__kwdefaults__:
            function.__kwdefaults__[mutant.parameter] = value
            count += 1
        elif mutant.parameter in positional:
            place = positional.index(mutant.parameter) - len(positional) + len(defaults)
            if place >= 0:
                function.__defaults__ = (*defaults[:place], value, *defaults[place + 1 :])
                count += 1
    if not count:
        raise UnfitError("no living function has this parameter")
