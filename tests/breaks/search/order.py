"""The breaks to try for a test function, in order. Pure: takes what functions reach, returns names of breaks."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.breaks.mutants.mutant import Mutant
from tests.breaks.search.generated import ATTRIBUTE_WAYS, FUNCTION_WAYS, OPERATOR_WAYS

#: Operators and functions with which cases compare and read values. A break of one shows nothing, unless the case is
#: about it.
INSTRUMENTS = frozenset(
    (
        "equal",
        "allclose",
        "isclose",
        "local_scalar_dense",
        "item",
        "tolist",
        "numpy",
        "all",
        "any",
        "is_nonzero",
        "eq",
        "ne",
        "lt",
        "le",
        "gt",
        "ge",
        "isnan",
        "isinf",
        "isfinite",
        "sum",
        "mean",
        "max",
        "min",
        "shape",
        "size",
        "dtype",
        "device",
    )
)


#: What the recorder calls itself, and attributes of enumerations.
_OF_THE_RECORDER = (
    "torch._C._dynamo.",
    "torch._C._pop_torch_dispatch_stack",
    "torch._C._push_on_torch_dispatch_stack",
    "torch._C._get_schema",
    "torch._C._get_operation_overload",
    "torch._inductor.",
    "torch._dynamo.",
)
_OF_ENUMS = (".value", ".name")
_FILLERS = frozenset(("test", "a", "of", "the", "is", "and", "in", "on", "to", "with", "by", "an", "its", "no", "not"))
#: Words in names of test functions about errors.
_REFUSING = frozenset(
    ("refuses", "refused", "refuse", "error", "errors", "raises", "must", "typeerror", "valueerror", "invalid")
)


def _word(name: str) -> str:
    """Return the bare name of an operator such as ``_foreach_add_.List``, or of ``torch.Generator.seed``."""
    word = name.rpartition(".")[2] if name.startswith("torch.") else name.partition(".")[0]
    return word.strip("_").lower()


def _is_usable(name: str) -> bool:
    """Return whether a break of an operator or function may show something."""
    return _word(name) not in INSTRUMENTS and not name.startswith(_OF_THE_RECORDER) and not name.endswith(_OF_ENUMS)


def is_named(name: str, function: str) -> bool:
    """Return whether the name of a test function has that of an operator or function of torch."""
    words = function.rpartition("::")[2].lower()
    return f"_{_word(name)}_" in f"_{words.replace('[', '_').replace(']', '_')}_"


@dataclass(frozen=True, slots=True)
class Reach:
    """What a case reaches: lines by file of torch, operators, C functions, and attributes of C classes."""

    lines: Mapping[str, Sequence[int]]
    operators: Sequence[str]
    functions: Sequence[str]
    attributes: Sequence[str]

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Reach:
        return cls(values["lines"], values["operators"], values["functions"], values["attributes"])


class Rarity:
    """How many test functions reach each place. A break of a rare place shows what the function itself checks."""

    def __init__(self, reaches: Iterable[Reach]) -> None:
        self._counts: Counter[object] = Counter()
        for reach in reaches:
            self._counts.update((path, line) for path, lines in reach.lines.items() for line in lines)
            self._counts.update(("operator", name) for name in reach.operators)
            self._counts.update(("function", name) for name in reach.functions)
            self._counts.update(("attribute", name) for name in reach.attributes)

    def ranked(self, kind: str, names: Iterable[str], function: str) -> list[str]:
        """Return the names, first those that the name of the test function has, then public ones and rare ones."""
        usable = [name for name in names if is_named(name, function) or _is_usable(name)]
        return sorted(
            usable,
            key=lambda name: (not is_named(name, function), "._C" in name, self._counts[kind, name], name),
        )

    def of_line(self, path: str, line: int) -> int:
        return self._counts[path, line]


def breaks_to_try(
    case: str, reach: Reach, rarity: Rarity, mutants: Callable[[str], Sequence[Mutant]], most: int
) -> list[str | Mutant]:
    """Return up to `most` breaks for a case: mutants, and names such as ``operator add.Tensor:last``.

    The kinds alternate. Of each kind, those of places that the case names come first, and then those of the rarest.
    `mutants`: those of a file.
    """
    kinds: list[Sequence[str | Mutant]] = [
        _statements(case, reach, rarity, mutants, most),
        _ways("operator", rarity.ranked("operator", reach.operators, case), _first_ways(case, OPERATOR_WAYS)),
        _ways("function", rarity.ranked("function", reach.functions, case), _first_ways(case, FUNCTION_WAYS)),
        _ways("attribute", rarity.ranked("attribute", reach.attributes, case), ATTRIBUTE_WAYS),
    ]
    rounds = itertools.zip_longest(*kinds)
    return [each for group in rounds for each in group if each is not None][:most]


def _first_ways(case: str, ways: Sequence[str]) -> list[str]:
    """Return the ways, with lost errors first for a case that is about an error."""
    return sorted(ways, key=lambda way: way != "errors") if _is_refusing(case) else list(ways)


def _is_refusing(case: str) -> bool:
    return not _REFUSING.isdisjoint(case.rpartition("::")[2].partition("[")[0].split("_"))


def shared_words(name: str, case: str) -> int:
    """Return how many words the name of a break shares with the name of a test function."""
    return len(set(name.split("_")) & set(case.rpartition("::")[2].partition("[")[0].split("_")) - _FILLERS)


def _ways(kind: str, names: Sequence[str], ways: Sequence[str], at_once: int = 4) -> list[str]:
    """Return the breaks of places: all ways of the first places, then of the next."""
    groups = [names[place : place + at_once] for place in range(0, len(names), at_once)]
    return [f"{kind} {name}:{way}" for group in groups for way in ways for name in group]


def _statements(
    case: str, reach: Reach, rarity: Rarity, mutants: Callable[[str], Sequence[Mutant]], most: int
) -> list[str | Mutant]:
    """Return mutants: one of each statement, then a second one of each, and so on."""
    rare = sorted((rarity.of_line(path, line), path, line) for path, lines in reach.lines.items() for line in lines)
    found: dict[tuple[str, int], list[Mutant]] = {}
    for _, path, line in rare:
        if len(found) >= 4 * most:
            break
        if starting := [mutant for mutant in mutants(path) if mutant.first == line]:
            found[path, line] = starting
    named = sorted(
        found.values(),
        key=lambda group: (
            not (_is_refusing(case) and group[0].old.startswith("raise")),
            not is_named(f"torch.{group[0].function}", case),
        ),
    )
    rounds = itertools.zip_longest(*named[:most])
    return [each for group in rounds for each in group if each is not None]
