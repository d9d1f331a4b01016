"""Locate the conformance suites, in the checkout or in the bundle of an installed wheel, and ``harness run``."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import typer

from harness.core.errors import HarnessError

_PACKAGE = Path(__file__).parent.parent
#: The folder of the suites, and the file with their pytest settings.
SUITES, SETTINGS = "suites", "pyproject.toml"


class NoSuitesError(HarnessError):
    """This installation has no suites."""


@dataclass(frozen=True, slots=True)
class Home:
    """The root folder of the suites.

    `is_bundle`: the folder belongs to the installed package and must not be written to.
    """

    folder: Path
    is_bundle: bool

    @classmethod
    def find(cls, package: Path = _PACKAGE) -> Home:
        """Return the home of the suites of this installation. Raise NoSuitesError if it has none."""
        for folder, is_bundle in ((package / "bundle", True), (package.parent, False)):
            if (folder / SUITES).is_dir() and (folder / SETTINGS).is_file():
                return cls(folder, is_bundle)
        raise NoSuitesError(
            f"no suites in {str(package / 'bundle')!r} or beside {str(package)!r}: this wheel was built without them; "
            "run pytest in a checkout, or build the wheel there"
        )

    def arguments(self, given: Sequence[str], here: Path | None) -> list[str]:
        """Return pytest's arguments: `given`, with the named suites located here. Without a suite, all suites.

        `here` is the working directory of the command, where pytest keeps its cache; None for pytest without one.
        """
        words, named = [], False
        for word in given:
            path, separator, rest = word.partition("::")
            is_suite = path.split("/")[0] == SUITES
            words.append(f"{self.folder / path}{separator}{rest}" if is_suite else word)
            named = named or is_suite
        head = ["-c", str(self.folder / SETTINGS), f"--rootdir={self.folder}"]
        head += [f"-ocache_dir={here / '.pytest_cache'}"] if self.is_bundle and here else []
        return [*head, *words, *([] if named else [str(self.folder / SUITES)])]


def configs_with(folder: str) -> Path:
    """Return the folder of configurations that has this folder: here, or that of this installation."""
    here = Path("configs")
    return here if (here / folder).is_dir() else Home.find().folder / "configs"


def run(context: typer.Context) -> None:
    """Run the conformance suites of this installation with pytest; no checkout is needed.

    All arguments go to pytest: harness run -n auto --profile smoke. Name suites as in a checkout, for example harness
    run suites/streams; without a name, all suites run. The exit status is that of pytest. Exit status 4: this
    installation has no suites.
    """

    here = Path.cwd()
    words = [sys.executable, "-m", "pytest", *Home.find().arguments(context.args, here)]
    sys.stdout.flush()
    os.execv(sys.executable, words)
