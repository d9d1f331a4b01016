"""Levels of conformance: ``configs/conformance/NAME.yaml``, and the must-pass list ``NAME.txt`` beside it.

A level states in prose what a device proves by passing it, which cases prove it, and what a device may lack without
failing the level. Its list names each case, so that a citation of name and hash means the same cases everywhere.
``harness conformance --update-lists`` writes the lists.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.core.models import StrictModel
from harness.gating import configfile, mustpass, patterns
from harness.gating.configfile import ConfigError, Loaded
from harness.gating.lint import OF_GPUS
from harness.gating.mustpass import MustPass
from harness.gating.profiles import Capability, Pattern, Text

FOLDER = "conformance"

#: Capabilities of some kinds of device only. A case that mentions one of these proves nothing about accelerators in
#: general.
_OF_ONE_KIND = frozenset(
    {*OF_GPUS, "device", "cuda", "cudnn", "cublas", "nccl", "driver", "cuda_driver", "nvml", "rocm", "cuda_toolkit"}
) - {"accelerator", "accelerator_graphs"}


class Level(StrictModel):
    """The definition of a level.

    `description`: what a device proves by passing the level, in prose. `cases` and `exclude`: patterns of case ids.
    `marked`: only cases that require an accelerator; otherwise also those that run on any device. `needs`: the
    capabilities without which the level does not apply to a device. `may_lack`: capabilities that single cases may
    need.
    """

    description: Text
    cases: tuple[Pattern, ...]
    exclude: tuple[Pattern, ...] = ()
    marked: bool = True
    needs: tuple[Capability, ...] = ("accelerator",)
    may_lack: tuple[Capability, ...] = ()

    @property
    def hash(self) -> str:
        """The hash of the definition: of all values, in a fixed form."""
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True)
        return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"

    def has(self, case_id: str, requires: Sequence[Mapping[str, Any]]) -> bool:
        """Return whether a case with these marks belongs to the level."""
        if not any(patterns.matches_pattern(case, case_id) for case in self.cases):
            return False
        if any(patterns.matches_pattern(pattern, case_id) for pattern in self.exclude):
            return False
        mentioned = {name for mark in requires for name in _mentioned(mark)}
        if mentioned & _OF_ONE_KIND:
            return False
        return not self.marked or bool(mentioned & {"accelerator", "accelerator_graphs", "asynchronous"})


@dataclass(frozen=True, slots=True)
class ListedLevel:
    """A level with its name and its list."""

    name: str
    level: Level
    listed: MustPass


def load_levels(configs: Path, names: Iterable[str] = ()) -> list[ListedLevel]:
    """Return the levels of `configs` with these names, all by default, in the order of their names.

    Raise ConfigError, and MustPassError for a list that is missing or damaged.
    """
    files = {path.stem: path for path in sorted((configs / FOLDER).glob("*.yaml"))}
    wanted = sorted(set(names)) or list(files)  # statements are made in this order
    for name in wanted:
        if name not in files:
            raise ConfigError(f"there is no level {name!r}: expected one of {', '.join(files) or 'none'}")
    return [
        ListedLevel(name, _load(files[name]).value, mustpass.read_must_pass(files[name].with_suffix(".txt")))
        for name in wanted
    ]


def update_lists(configs: Path, cases: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[MustPass]:
    """Write the list of each level from all cases and their marks. Return the lists. Raise ConfigError."""
    written = []
    for path in sorted((configs / FOLDER).glob("*.yaml")):
        level = _load(path).value
        ids = [case_id for case_id, requires in cases.items() if level.has(case_id, requires)]
        written.append(mustpass.write_must_pass(path.with_suffix(".txt"), ids, f"level {path.stem}"))
    return written


def folders(configs: Path) -> list[str]:
    """Return the folders and files with the cases of all levels. Raise ConfigError."""
    levels = (_load(path).value for path in sorted((configs / FOLDER).glob("*.yaml")))
    paths = (case.partition("::")[0] for level in levels for case in level.cases)
    return list(dict.fromkeys(patterns.literal_prefix(path).rstrip("/") for path in paths))


def _load(path: Path) -> Loaded[Level]:
    return configfile.load_config(path, Level)


def _mentioned(conditions: object) -> Iterator[str]:
    """Yield all names in the arguments of a mark, including those inside ``any``, ``all`` and ``not``."""
    if isinstance(conditions, Mapping):
        for name, value in conditions.items():
            yield str(name)
            yield from _mentioned(value)
    elif isinstance(conditions, list | tuple):
        for condition in conditions:
            yield from _mentioned(condition)
