"""Tells which files and folders may have cases that a run selects, so that others need not be imported.

Pure functions over paths.

Paths are those in case ids: with ``/``, relative to the root folder.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from harness.core.caseid import suite_of
from harness.gating.patterns import literal_prefix, may_begin
from harness.gating.policy import Policy


@dataclass(frozen=True, slots=True)
class Reach:
    """The files and folders that a profile and ``--only`` may select. In doubt, a file belongs to them.

    `beginnings`: how the ids of the cases begin that the profile's patterns match, or None for any case. `suites`: the
    profile's suites. `files`: the files of the cases of ``--only``, or None for any file.
    """

    beginnings: tuple[str, ...] | None = None
    suites: tuple[str, ...] = ()
    files: tuple[str, ...] | None = None

    @classmethod
    def of(cls, policy: Policy, only: Collection[str] | None) -> Reach:
        """Return the reach of a policy. `only`: the ids that may be selected; None for all."""
        everything = policy.suites is None and policy.cases is None
        return cls(
            None if everything else tuple(dict.fromkeys(map(literal_prefix, policy.cases or ()))),
            tuple(policy.suites or ()),
            None if only is None else tuple(sorted({case.partition("::")[0] for case in only})),
        )

    @property
    def is_everything(self) -> bool:
        return self.beginnings is None and self.files is None

    def has_file(self, path: str) -> bool:
        """Return whether a case of this file may be selected."""
        if self.files is not None and path not in self.files:
            return False
        return self.beginnings is None or suite_of(path) in self.suites or may_begin(f"{path}::", self.beginnings)

    def has_folder(self, path: str) -> bool:
        """Return whether a case below this folder may be selected."""
        folder = f"{path}/"
        if self.files is not None and not any(file.startswith(folder) for file in self.files):
            return False
        return self.beginnings is None or bool(self.suites) or may_begin(folder, self.beginnings)
