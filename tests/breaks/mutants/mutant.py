"""A mutant: one small change of the source of a module."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

#: For operators that leave something out, the same text with the part that is left out.
_NAMES_KEPT = {
    "statement dropped": "if False: {old}",
    "assignment dropped": "if False: {old}",
    "condition always true": "(True or ({old}))",
    "condition never true": "(False and ({old}))",
    "nothing returned": "return None; {old}",
    "argument dropped": "({new} if True else {old})",
}


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one module of torch.

    - `path`: the file, relative to the folder that contains torch.
    - `function`: the qualified name of the innermost function, as in its code object.
    - `first`, `last`: the lines of the changed statement. A case that runs one of them reaches the mutant.
    - `operator`: the kind of change, a name of `operators.OPERATORS`.
    - `start`, `end`: the bytes of the source that `new` replaces. `old`: their text.
    - `parameter`: the parameter whose default changes. The source is then unchanged.
    """

    path: str
    function: str
    first: int
    last: int
    operator: str
    start: int
    end: int
    old: str
    new: str
    number: int = 0
    parameter: str = ""

    @property
    def name(self) -> str:
        """The name of the mutant. It does not change if other functions of the file change."""
        words = "\0".join((self.path, self.function, self.operator, self.old, self.new, str(self.number)))
        return hashlib.sha256(words.encode()).hexdigest()[:10]

    @property
    def module(self) -> str:
        return self.path.removesuffix("/__init__.py").removesuffix(".py").replace("/", ".")

    @property
    def sentence(self) -> str:
        """The change as one line."""
        return f"{self.path}:{self.first} {self.function}: {self.change}"

    @property
    def change(self) -> str:
        """The operator with the old and the new text, as in ``constant changed: 1 -> 2``."""
        old, new = " ".join(self.old.split()), " ".join(self.new.split())
        return f"{self.operator}: {_short(old)} -> {_short(new)}"

    def applied(self, source: bytes, *, names_kept: bool = False) -> bytes:
        """Return the source of the module with the change.

        With `names_kept`, omitted code stays under a condition that never holds, so that the function still uses the
        same variables of enclosing functions. Otherwise its code cannot replace the code of an existing function.
        """
        new = _NAMES_KEPT.get(self.operator, "{new}").format(old=self.old, new=self.new) if names_kept else self.new
        return source[: self.start] + new.encode() + source[self.end :]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Mutant:
        return cls(**values)


def _short(text: str) -> str:
    return text if len(text) <= 90 else f"{text[:87]}..."
