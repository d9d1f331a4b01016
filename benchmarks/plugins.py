"""Well-known pytest plugins, one at a time in an environment of its own: the same suite with the harness and without.

``python -m benchmarks.plugins [NAME ...]`` installs each plugin beside the packages of this environment, into a folder
that is removed afterwards, runs a suite that uses it in plain pytest and with ``-p harness.plugin``, and compares the
exit statuses, the outcome of each test and the files that are left. It prints a line for each plugin, and exits with 1
if one differs in another way than written here. It needs a package index.
"""

from __future__ import annotations

import argparse
import os
import site
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
_PLAIN = "def test_plain(): pass\n"
_OURS = ("-p", "harness.plugin", "-oharness_preload=", "--harness-results-dir=run", "--harness-device=cpu")
_IGNORED = ("run", "probe", "__pycache__", ".pytest_cache", "report.xml")


@dataclass(frozen=True, slots=True)
class Plugin:
    """A plugin: what to install, a suite that uses it, arguments, and a difference that is known and documented."""

    needs: tuple[str, ...]
    suite: str = _PLAIN
    arguments: tuple[str, ...] = ()
    difference: str = ""


PLUGINS = {
    "pytest-cov": Plugin(
        ("pytest-cov", "coverage"),
        "import lib\ndef test_a(): assert lib.a() == 1\n",
        ("--cov=lib", "--cov-fail-under=75"),
    ),
    "pytest-asyncio": Plugin(
        ("pytest-asyncio",), "import pytest\n@pytest.mark.asyncio\nasync def test_a(): pass\n", ("-Wignore",)
    ),
    "pytest-mock": Plugin(("pytest-mock",), "def test_a(mocker): assert mocker.Mock(return_value=1)() == 1\n"),
    "pytest-timeout": Plugin(
        ("pytest-timeout",), "import pytest\n@pytest.mark.timeout(60, method='thread')\ndef test_a(): pass\n"
    ),
    "pytest-rerunfailures": Plugin(("pytest-rerunfailures",), _PLAIN, ("--reruns=1", "--fail-on-flaky")),
    "pytest-retry": Plugin(("pytest-retry",), _PLAIN, ("--retries", "1")),
    "pytest-playwright": Plugin(
        (
            *("pytest-playwright", "pytest-base-url", "python-slugify", "text-unidecode", "requests", "urllib3"),
            *("charset-normalizer", "idna", "certifi"),
        ),
        "def test_a(device): assert device == 'iPhone'\n",
        ("--device", "iPhone"),
    ),
    "pytest-profiling": Plugin(
        ("pytest-profiling", "gprof2dot", "six"),
        _PLAIN,
        ("--profile",),
        "its table and its files have no test in them: tests run in executors",
    ),
    "pytest-benchmark": Plugin(
        ("pytest-benchmark", "py-cpuinfo"),
        "def test_a(benchmark): benchmark(lambda: 1)\n",
        ("--benchmark-json=times.json",),
    ),
    "syrupy": Plugin(("syrupy",), "def test_a(snapshot): assert 'a' == snapshot\n", ("--snapshot-update",)),
    "inline-snapshot": Plugin(
        ("inline-snapshot", "asttokens", "executing"),
        "from inline_snapshot import snapshot\ndef test_a(): assert 1 == snapshot(1)\n",
        ("--inline-snapshot=create",),
    ),
    "pytest-randomly": Plugin(("pytest-randomly",), _PLAIN, ("-p", "randomly")),
    "pytest-order": Plugin(("pytest-order",), "import pytest\n@pytest.mark.order(1)\ndef test_a(): pass\n"),
    "pytest-dependency": Plugin(
        ("pytest-dependency",),
        "import pytest\n@pytest.mark.dependency\ndef test_a(): pass\n"
        "@pytest.mark.dependency(depends=['test_a'])\ndef test_b(): pass\n",
    ),
    "pytest-repeat": Plugin(("pytest-repeat",), _PLAIN, ("--count=3",)),
    "pytest-env": Plugin(("pytest-env", "python-dotenv")),
    "pytest-socket": Plugin(("pytest-socket",), _PLAIN, ("--disable-socket", "--allow-unix-socket")),
    "pytest-datadir": Plugin(("pytest-datadir",), "def test_a(tmp_path): assert tmp_path.exists()\n"),
    "pytest-json-report": Plugin(
        ("pytest-json-report", "pytest-metadata"), _PLAIN, ("--json-report", "--json-report-file=report.json")
    ),
    "pytest-html": Plugin(("pytest-html", "pytest-metadata"), _PLAIN, ("--html=report.html",)),
    "pytest-sugar": Plugin(("pytest-sugar", "termcolor")),
    "pytest-instafail": Plugin(("pytest-instafail",), _PLAIN, ("--instafail",)),
    "pytest-check": Plugin(("pytest-check",), "def test_a(check): check.equal(1, 1)\n"),
    "pytest-split": Plugin(("pytest-split",), _PLAIN, ("--splits=1", "--group=1")),
}


@dataclass(frozen=True, slots=True)
class Seen:
    """What a run left: exit status, outcome by test, names of files."""

    status: int
    outcomes: dict[str, str]
    files: tuple[str, ...]


def main(names: Sequence[str]) -> int:
    """Try the plugins. Returns 1 if one differs in a way that is not documented here."""
    wrong = False
    for name in names or PLUGINS:
        plugin = PLUGINS[name]
        with tempfile.TemporaryDirectory(prefix="harness-plugins-") as folder:
            told = _compare(plugin, Path(folder))
        wrong = wrong or bool(told and not plugin.difference)
        print(
            f"{name}: {told or 'the same'}{f' (documented: {plugin.difference})' if plugin.difference else ''}",
            flush=True,
        )
    return int(wrong)


def _compare(plugin: Plugin, folder: Path) -> str:
    python = make_environment(plugin.needs, folder / "env")
    if python is None:
        return "cannot be installed"
    plain, ours = (
        _run(python, plugin, folder / name, more) for name, more in (("plain", ("-p", "no:harness")), ("ours", _OURS))
    )
    return "; ".join(
        f"{what} {mine!r}, in plain pytest {theirs!r}"
        for what, theirs, mine in (
            ("exit status", plain.status, ours.status),
            ("outcomes", plain.outcomes, ours.outcomes),
            ("files", plain.files, ours.files),
        )
        if theirs != mine
    )


def make_environment(needs: Sequence[str], folder: Path) -> Path | None:
    """Make an environment with the packages of this one, this tree, and what the plugin `needs`."""
    venv.create(folder, with_pip=False, symlinks=True)
    here = next(folder.glob("lib/python*/site-packages"))
    (here / "base.pth").write_text("\n".join([*site.getsitepackages(), str(ROOT)]) + "\n")
    pip = [sys.executable, "-m", "pip", "-qq", "--disable-pip-version-check"]
    command = [*pip, "install", "--no-deps", "--target", str(here), *needs]
    if needs and subprocess.run(command, check=False).returncode:
        return None
    return folder / "bin" / "python"


def _run(python: Path, plugin: Plugin, folder: Path, more: Sequence[str]) -> Seen:
    folder.mkdir()
    (folder / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
    (folder / "lib.py").write_text("def a():\n    x = 1\n    return x\ndef b():\n    return 2\n")
    (folder / "test_it.py").write_text(plugin.suite)
    command = [str(python), "-m", "pytest", *more, *plugin.arguments, "--junitxml=report.xml", "-p", "no:cacheprovider"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HARNESS_", "PYTEST_"))}
    done = subprocess.run(command, cwd=folder, env=environment, check=False, capture_output=True, text=True)
    cases = ElementTree.parse(folder / "report.xml").iter("testcase") if (folder / "report.xml").exists() else ()
    outcomes = {f"{case.get('classname')}::{case.get('name')}": ",".join(child.tag for child in case) for case in cases}
    files = sorted(
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and not set(path.relative_to(folder).parts) & set(_IGNORED)
    )
    return Seen(done.returncode, outcomes, tuple(files))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(PLUGINS)}")
    sys.exit(main(parser.parse_args().names))
