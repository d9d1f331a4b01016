"""Well-known pytest plugins, each in its own environment: the same suite with the harness and without.

``python -m benchmarks.plugins [NAME ...]`` installs each plugin in addition to the packages of this environment, into a
folder that is removed afterwards. It runs a suite that uses the plugin in plain pytest and with ``-p harness.plugin``,
and compares the exit statuses, the outcome of each test, the remaining files and the plugin's output. It prints a line
per plugin, and exits with 1 for a difference that is not documented in `benchmarks.plugin_table`. It needs a package
index.
"""

from __future__ import annotations

import argparse
import os
import re
import site
import subprocess
import sys
import tempfile
import venv
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from benchmarks.plugin_table import PLUGINS, Plugin

ROOT = Path(__file__).resolve().parents[1]
_OURS = ("-p", "harness.plugin", "-oharness_preload=", "--harness-results-dir=run", "--harness-device=cpu")
_IGNORED = ("run", "probe", "__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis", "report.xml")
#: The random parts of a file name: a UUID, digits.
_RANDOM = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|\d+")
#: The harness's message about a plugin in its header.
_NAMED = re.compile("^harness: (.* (?:may keep|since cases run|--harness-retries).*)$", re.MULTILINE)
#: The number of bytes of a file that are searched for a plugin's output.
_MOST = 1 << 20


@dataclass(frozen=True, slots=True)
class Seen:
    """The results of a run: exit status, outcome by test, files by name with their number, and the plugin's output."""

    status: int
    outcomes: dict[str, str]
    files: dict[str, int]
    shown: tuple[str, ...]
    output: str


def main(names: Sequence[str], *, verbose: bool = False) -> int:
    """Try the plugins. Return 1 if one differs in a way that is not documented here."""
    wrong = same = 0
    for name in names or PLUGINS:
        plugin = PLUGINS[name]
        with tempfile.TemporaryDirectory(prefix="harness-plugins-") as folder:
            told, output = _compare(plugin, Path(folder))
        wrong += bool(told and not plugin.difference)
        same += not told
        documented = f" (documented: {plugin.difference})" if plugin.difference else ""
        print(f"{name}: {told or 'the same'}{documented}", flush=True)
        for line in sorted(set(_NAMED.findall(output))):
            print(f"    {line}", flush=True)
        if verbose or (told and not plugin.difference):
            print(output, flush=True)
    print(f"{len(names or PLUGINS)} tried, {same} the same, {wrong} that differ in a way that is not documented")
    return int(bool(wrong))


def _compare(plugin: Plugin, folder: Path) -> tuple[str, str]:
    """Return how the runs differ, and their output."""
    python = make_environment(plugin.needs, folder / "env")
    if python is None:
        return "cannot be installed", ""
    plain, ours = (
        _run(python, plugin, folder / name, more) for name, more in (("plain", ("-p", "no:harness")), ("ours", _OURS))
    )
    told = [
        f"{what} {mine!r}, in plain pytest {theirs!r}"
        for what, theirs, mine in (
            ("exit status", plain.status, ours.status),
            ("outcomes", plain.outcomes, ours.outcomes),
            ("files", plain.files, ours.files),
            ("shown", plain.shown, ours.shown),
        )
        if theirs != mine
    ]
    if missing := [text for text in plugin.shows if text not in plain.shown]:
        told.append(f"plain pytest does not show {missing!r}")
    if not plain.outcomes:
        told.append("plain pytest runs no test")
    return "; ".join(told), f"--- plain pytest\n{plain.output}\n--- with the harness\n{ours.output}"


def make_environment(needs: Sequence[str], folder: Path) -> Path | None:
    """Create an environment with the packages of this one, this tree, and the plugin's `needs`."""
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    here = next(folder.glob("lib/python*/site-packages"))
    (here / "base.pth").write_text("\n".join([*site.getsitepackages(), str(ROOT)]) + "\n")
    # pip does not replace packages outside this environment: it installs another version before them.
    pip = [sys.executable, "-m", "pip", "--python", str(python), "-qq", "--disable-pip-version-check"]
    if needs and subprocess.run([*pip, "install", *needs], check=False).returncode:
        return None
    return python


def _run(python: Path, plugin: Plugin, folder: Path, more: Sequence[str]) -> Seen:
    folder.mkdir()
    files = {"lib.py": "def a():\n    x = 1\n    return x\ndef b():\n    return 2\n", "test_it.py": plugin.suite}
    files |= {"pytest.ini": f"[pytest]\npythonpath = .\n{plugin.ini}", **plugin.files}
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    command = [str(python), "-m", "pytest", *more, *plugin.arguments, "--junitxml=report.xml"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HARNESS_", "PYTEST_"))}
    environment |= {"PATH": f"{python.parent}:{environment['PATH']}", **plugin.env}
    done = subprocess.run(command, cwd=folder, env=environment, check=False, capture_output=True, text=True)
    cases = ElementTree.parse(folder / "report.xml").iter("testcase") if (folder / "report.xml").exists() else ()
    outcomes = {f"{case.get('classname')}::{case.get('name')}": ",".join(child.tag for child in case) for case in cases}
    left = [
        path for path in folder.rglob("*") if path.is_file() and not set(path.relative_to(folder).parts) & set(_IGNORED)
    ]
    output = done.stdout + done.stderr
    made = [path for path in left if str(path.relative_to(folder)) not in files and path.stat().st_size < _MOST]
    texts = [_of_plugin(output), *(path.read_text(errors="replace") for path in made)]
    return Seen(
        done.returncode,
        outcomes,
        dict(sorted(Counter(_RANDOM.sub("*", str(path.relative_to(folder))) for path in left).items())),
        tuple(shown for shown in plugin.shows if any(shown in text for text in texts)),
        output,
    )


def _of_plugin(output: str) -> str:
    """Return the output without the harness's own lines."""
    return "\n".join(line for line in output.splitlines() if not line.startswith("harness:"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(PLUGINS)}")
    parser.add_argument("--verbose", action="store_true", help="print the output of both runs")
    given = parser.parse_args()
    sys.exit(main(given.names, verbose=given.verbose))
