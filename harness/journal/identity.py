"""What is equal in several runs: the facts that must be, if their results are combined, and their findings."""

from __future__ import annotations

import hashlib
import json
import platform
import re
import secrets
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness import __version__
from harness.core.text import escape_invalid_xml, single_line
from harness.devices import software
from harness.devices.device import Inventory
from harness.journal.events import RunStarted

#: Settings without influence on verdicts: they may differ.
FREE = frozenset(
    {"grace", "progress", "results_dir", "health", "junit_flavour", "report", "shard", "slots", "collect_on_failure"}
)
_SHOWN = 80
_COMMIT = re.compile("[0-9a-f]{40}")
#: The name of the hash of the suites' files.
SUITE_FILES = "suite files"
#: The names of the hash of the waivers and of the must-pass lists with their hashes.
WAIVERS = "waivers"
MUST_PASS = "must-pass lists"


@dataclass(frozen=True, slots=True)
class FactDifference:
    """One fact in which two runs differ. An unknown or missing value is an empty text."""

    name: str
    first: str
    second: str

    @property
    def text(self) -> str:
        """The difference as text, for example ``torch was '2.12.0' and is '2.13.0'``."""
        return f"{self.name} was {_quoted(self.first)} and is {_quoted(self.second)}"

    def against(self, others: str) -> str:
        """Return the difference as text, for example ``torch is '2.13.0' here and '2.12.0' in most others``."""
        return f"{self.name} is {_quoted(self.second)} here and {_quoted(self.first)} {others}"


def run_identity(inventory: Inventory, files: Mapping[str, str]) -> dict[str, str]:
    """Return the identity of a run: one text per name. `files`: see `files_identity`."""
    return {
        **files,
        "torch": version_of("torch"),
        "driver": escape_invalid_xml(inventory.driver or "none"),
        "device": ", ".join(sorted({escape_invalid_xml(device.name) for device in inventory.usable})),
        "python": platform.python_version(),
    }


def files_identity(
    *, suites: str, waivers: Sequence[Mapping[str, Any]], lists: Sequence[tuple[str, str]]
) -> dict[str, str]:
    """Return the part of the identity that does not depend on the machine. `suites`: the hash of the suites' files.

    `lists`: name and hash of each must-pass list.
    """
    return {
        SUITE_FILES: suites,
        WAIVERS: waivers_digest(waivers),
        MUST_PASS: ", ".join(f"{name} {digest[:19]}" for name, digest in lists) or "none",
        "harness": __version__,
    }


def make_run_id(moment: time.struct_time | None = None) -> str:
    """Return a new id of a run: a time, by default now, and a random end."""
    return f"{time.strftime('%Y%m%d-%H%M%S', moment or time.localtime())}-{secrets.token_hex(3)}"


def waivers_digest(waivers: Sequence[Mapping[str, Any]]) -> str:
    """Return ``sha256:`` and the hex digest of these waivers, as JSON values; ``none`` without waivers."""
    listed = json.dumps(list(waivers), sort_keys=True, default=repr).encode()
    return f"sha256:{hashlib.sha256(listed).hexdigest()}" if waivers else "none"


def identity_facts(run: RunStarted) -> dict[str, str]:
    """Return the facts that must be equal in two runs whose results are combined, by name."""
    settings = {f"--{name.replace('_', '-')}": _text(value) for name, value in run.settings.items() if name not in FREE}
    return {
        **run.identity,
        "--seed": str(run.seed),
        "--isolation": run.isolation,
        "--fail-on-flaky": _text(run.fail_on_flaky),
        "--profile": run.profile,
        "--hardware": run.hardware,
        "the least number of cases": str(run.minimum_cases),
        **settings,
    }


def differences(first: Mapping[str, str], second: Mapping[str, str]) -> tuple[FactDifference, ...]:
    """Return the facts in which the second run differs from the first, in the order of the first. Missing values are
    empty.
    """
    names = dict.fromkeys((*first, *second))
    pairs = ((name, first.get(name, ""), second.get(name, "")) for name in names)
    return tuple(FactDifference(name, before, after) for name, before, after in pairs if before != after)


def _text(value: object) -> str:
    return "" if value is None or value is False else str(value)


def _quoted(value: str) -> str:
    if value.startswith("sha256:"):
        return value[:19]
    if _COMMIT.fullmatch(value):
        return value[:12]
    return repr(single_line(value, _SHOWN)) if value else "not set"


def version_of(distribution: str) -> str:
    """Return the version of an installed distribution; ``none`` without it."""
    return software.installed_version(distribution) or "none"


#: The meaning of each kind. A journal of another version may have other kinds.
FINDING_KINDS = {
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
