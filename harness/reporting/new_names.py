"""A run's journal with the names that its cases have now. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from harness.gating.renamed import Renamed
from harness.journal.events import Event
from harness.journal.journal import JournalContents

#: The fields of events that name one case, and those that name several.
_ONE, _SEVERAL = "case", ("cases", "ids", "deselected", "selected")


@dataclass(frozen=True, slots=True)
class NewlyNamed:
    """`contents` by new names. `was`: from each new name to the one in the journal; empty if nothing was renamed."""

    contents: JournalContents
    was: Mapping[str, str] = field(default_factory=dict)


def by_new_names(contents: JournalContents, renamed: Renamed) -> NewlyNamed:
    """The journal by new names. As it is, if two of its cases would have the same name."""
    if not renamed.tests:
        return NewlyNamed(contents)
    now = {name: renamed.now(name) for event in contents.events for name in _names(event)}
    was = {new: old for old, new in now.items() if old != new}
    if not was or len(set(now.values())) < len(now):
        return NewlyNamed(contents)
    return NewlyNamed(replace(contents, events=tuple(_with(event, now) for event in contents.events)), was)


def _names(event: Event) -> Iterator[str]:
    if isinstance(one := getattr(event, _ONE, None), str):
        yield one
    for _, names in _lists(event):
        yield from names


def _lists(event: Event) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The event's lists of cases, by field. The `cases` of an executor are a number."""
    for name in _SEVERAL:
        if isinstance(names := getattr(event, name, None), tuple):
            yield name, names


def _with(event: Event, now: Mapping[str, str]) -> Event:
    changes: dict[str, object] = {name: tuple(map(now.__getitem__, names)) for name, names in _lists(event)}
    if isinstance(one := getattr(event, _ONE, None), str):
        changes[_ONE] = now[one]
    return event.model_copy(update=changes) if changes else event
