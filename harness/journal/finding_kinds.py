"""The kinds of findings, and the equality of findings of different runs. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Collection

#: The meaning of each kind. A journal of another version may have other kinds.
KINDS = {
    "batch_leak": "several cases leak together; no single one grows enough to be reported",
    "broken_promise": "the machine lacks what its hardware file promises",
    "collection_error": "a file or folder could not be collected, or a file skipped itself where that is not allowed",
    "collection_missing": "the journal has no ids for a list that a worker collected",
    "collection_wrong": "a list of cases does not match its own count and hash",
    "collections_differ": "processes of the run collected different cases",
    "damaged_journal": "lines of the journal cannot be read",
    "device_sign": "a device shows a sign of a fault",
    "duplicate_ids": "several cases have the same id",
    "executor_exit": "the process of several cases ended badly, and no single one causes that alone",
    "from_missing": "a case that `--from` takes from an earlier run no longer exists",
    "harness_error": "the harness's own code failed; the text has the traceback",
    "imported_totals": "an imported file counts failures that none of its cases has",
    "must_pass": "a must-pass list is not satisfied",
    "node_lost": "a node of a cluster run is gone",
    "not_collected": "cases have events and are in no collected list",
    "profile_matches_nothing": "a pattern of the profile matches no case",
    "session": "a pytest session did not end in order",
    "sick_device": "a device gets no more cases",
    "teardown": "a fixture of a wider scope failed when it was torn down, or left state or a process behind",
    "too_few_cases": "fewer cases ran than the profile requires",
    "unexamined_device": "a device could not be examined",
    "unkillable": "a process could not be killed",
    "unlike_node": "a node of a cluster run differs from the others, and is excluded",
    "waiver_expired": "a waiver has expired",
    "waiver_matches_nothing": "a waiver matches no case",
    "waiver_no_link": "a waiver has no link",
    "worker": "a worker died",
    "zygote": "a zygote failed",
}
#: Kinds about processes of one session: unrelated sessions may have equal texts.
OF_SESSION = frozenset({"damaged_journal", "executor_exit", "session", "teardown", "unkillable", "worker", "zygote"})

_NUMBERS = re.compile(r"(?<![A-Za-z])0x[0-9a-fA-F]+|[0-9]+(?:[.,][0-9]+)*")


def is_same_finding(kind: str, message: str, cases: Collection[str], other: tuple[str, str, Collection[str]]) -> bool:
    """Return whether a finding equals the `other` one, of another run, given as kind, message and cases.

    Both have the same kind, and either a case in common or the same text apart from numbers: process ids, sizes and
    numbers of executors differ between runs.
    """
    other_kind, other_message, other_cases = other
    if kind != other_kind:
        return False
    return not {*other_cases}.isdisjoint(cases) or without_numbers(message) == without_numbers(other_message)


def without_numbers(message: str) -> str:
    """Return the text with ``#`` for each number."""
    return _NUMBERS.sub("#", message)
