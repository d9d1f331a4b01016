"""The flavours of a JUnit report: what its reader takes and shows."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Flavour:
    """One flavour of a JUnit report.

    `interim`: earlier attempts are elements of their own; otherwise they are in the text that the reader shows.
    `whole_ids`: the name of a case is its whole id, and its file is named.
    """

    name: str
    interim: bool = True
    whole_ids: bool = False


#: By name. ``default``: what pytest calls xunit2, which is also valid for Jenkins' strict schema (junit-10.xsd), so
#: ``jenkins`` is the same. ``gitlab``: GitLab knows no earlier attempts, shows the text of a result and not its
#: message, and shows names without classes. In all of them each finding is a case with an error: readers show only
#: cases, and judge a run by them.
FLAVOURS = {
    each.name: each
    for each in (
        Flavour("default"),
        Flavour("jenkins"),
        Flavour("gitlab", interim=False, whole_ids=True),
    )
}
DEFAULT = FLAVOURS["default"]


def named(name: object) -> Flavour:
    """The flavour that a run recorded as its setting. A run of another version may know more, or none."""
    return FLAVOURS.get(name, DEFAULT) if isinstance(name, str) else DEFAULT
