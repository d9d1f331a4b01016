"""The flavours of a JUnit report, according to its reader."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Flavour:
    """One flavour of a JUnit report.

    `interim`: earlier attempts are separate elements; otherwise they are in the text that the reader shows.
    `whole_ids`: the name of a case is its whole id, and the report has its file. `not_run`: the tag of a case that did
    not run before the run ended.
    """

    name: str
    interim: bool = True
    whole_ids: bool = False
    not_run: str = "error"


#: By name. ``default``: the format that pytest calls xunit2, which is also valid for Jenkins' strict schema
#: (junit-10.xsd); ``jenkins`` is the same. ``gitlab``: GitLab knows no earlier attempts, shows the text of a result
#: instead of its message, and shows names without classes. A case that did not run is red, so it is an error for a
#: reader that counts. GitLab lists each case that is newly red, and would hide the cause of an interrupted run among
#: them, so there it is skipped, and one error counts all of them if nothing else is red. In every flavour each finding
#: is a case with an error, because readers show only cases and judge a run by them.
FLAVOURS = {
    flavour.name: flavour
    for flavour in (
        Flavour("default"),
        Flavour("jenkins"),
        Flavour("gitlab", interim=False, whole_ids=True, not_run="skipped"),
    )
}
DEFAULT = FLAVOURS["default"]


def named(name: object) -> Flavour:
    """Return the flavour that a run recorded as its setting.

    Another version of the harness may have other flavours, or none.
    """
    return FLAVOURS.get(name, DEFAULT) if isinstance(name, str) else DEFAULT
