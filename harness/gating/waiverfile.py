"""Reads waiver files. Their format:

waivers:
  - case: suites/streams/test_x.py::test_copy[cuda-*]
    when: {device: cuda, driver: ">=570,<580"}
    expect: failed
    reason: copies between streams are not ordered before driver 580
    link: https://example.org/issues/1
    owner: somebody
    expires: 2027-03-31
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import date
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from harness.core.models import StrictModel
from harness.core.outcome import Outcome
from harness.gating import requirements
from harness.gating.configfile import Conditions, load_config, name_advice
from harness.gating.requirements import AnyOf, Condition, Not
from harness.gating.waivers import EXPECTABLE, Waiver


def load_waivers(paths: Sequence[Path], base: Path) -> tuple[Waiver, ...]:
    """Return the waivers of these files, in order. A duplicate file counts once.

    The `source` of each waiver is relative to `base` if the file is below it. Raise ConfigError, with file and line.
    """
    distinct = {path.resolve(): path for path in reversed(paths)}
    return tuple(waiver for path in reversed(distinct.values()) for waiver in _waivers(path, base))


def _waivers(path: Path, base: Path) -> Iterable[Waiver]:
    loaded = load_config(path, _File)
    absolute, around = path.resolve(), base.resolve()
    name = str(absolute.relative_to(around) if absolute.is_relative_to(around) else path)
    for position, entry in enumerate(loaded.value.waivers):
        yield Waiver(
            case=entry.case,
            when=entry.when,
            expect=tuple(Outcome(word) for word in _words(entry.expect)),
            reason=entry.reason,
            link=(entry.link or "").strip(),
            owner=entry.owner,
            expires=entry.expires,
            source=f"{name}:{loaded.line_of('waivers', position)}",
        )


def _not_empty(text: str) -> str:
    """Return the text on one line. Raise ValueError if it is empty."""
    words = " ".join(text.split())
    if not words:
        raise ValueError("it is empty: write a few words")
    return words


def _pattern(text: str) -> str:
    if not text or text != text.strip():
        raise ValueError(f"{text!r} is not a pattern for case ids: write one without spaces around it")
    return text


def _words(expect: str | tuple[str, ...]) -> tuple[str, ...]:
    return (expect,) if isinstance(expect, str) else expect


def _expectable(expect: str | tuple[str, ...]) -> str | tuple[str, ...]:
    words = _words(expect)
    expectable = [outcome.value for outcome in EXPECTABLE]
    for word in words:
        if word in expectable:
            continue
        if word in list(Outcome):
            raise ValueError(f"a waiver cannot expect {word!r}; use one of: {', '.join(expectable)}")
        raise ValueError(f"there is no outcome {word!r}; {name_advice(word, expectable)}")
    if len(set(words)) < len(words):
        raise ValueError(f"an outcome appears twice in {', '.join(words)}: remove one")
    if set(words) <= {Outcome.PASSED}:
        raise ValueError("'expect' has no failure: add the outcome that the case has")
    return expect


def _narrowing(when: dict[str, object]) -> dict[str, object]:
    if any(_asks_for_cpu(condition) for condition in requirements.parse_requirements(when)):
        # In `requires`, ``device: cpu`` means that the case needs no GPU. Here it would silently waive the case on GPUs
        # too.
        raise ValueError("device: cpu holds on every machine; for machines without a GPU write not: {device: cuda}")
    return when


def _asks_for_cpu(condition: Condition) -> bool:
    match condition:
        case AnyOf(options):
            return any(_asks_for_cpu(part) for option in options for part in option)
        case Not(conditions):
            return any(_asks_for_cpu(part) for part in conditions)
        case _:
            return condition.capability == "device" and any(clause.value == "cpu" for clause in condition.clauses)


_NotEmpty = Annotated[str, AfterValidator(_not_empty)]


class _Entry(StrictModel):
    case: Annotated[str, AfterValidator(_pattern)]
    when: Annotated[Conditions, AfterValidator(_narrowing)] = Field(default={})
    expect: Annotated[str | tuple[str, ...], AfterValidator(_expectable)]
    reason: _NotEmpty
    owner: _NotEmpty
    link: str | None = None
    expires: date

    @field_validator("link")
    @classmethod
    def _with_owner(cls, link: str | None, info: ValidationInfo) -> str | None:
        """Name an empty link together with an empty owner, so that both of a proposed waiver are asked for at once.

        A missing link alone is left to the run, which has a finding for it, and to lint.
        """
        if "owner" not in info.data and not (link or "").strip():
            raise ValueError("it is empty: give the URL of the issue that it waits for")
        return link


class _File(StrictModel):
    waivers: tuple[_Entry, ...]
