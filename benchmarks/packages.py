"""Test suites of well-known packages, or some files of them, compared test by test: plain pytest and the harness.

``python -m benchmarks.packages [NAME ...]`` downloads the source archive of each package, runs its tests there with
``-p no:harness`` and with ``-p harness.plugin``, and compares the outcome of each test. It prints a line per package
and per difference, and exits with 1 for an unintended difference. The intended difference is that a test that leaves
state or a resource behind passes in plain pytest. It needs a package index.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import platform
import re
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

from benchmarks.plugins import make_environment

_OURS = ("-p", "harness.plugin", "-oharness_preload=", "--harness-device=cpu", "--harness-progress=off", "-n2")
#: Verdicts that plain pytest does not have: the test has leaked, or has changed state.
MEANT = ("contaminated", "leaked")
#: The maximum number of differences that are printed.
_SHOWN = 20
#: Verdicts of the harness in the words of pytest's junit.xml.
_WORDS = {"passed": "", "skipped": "skipped", "waived": "skipped", "failed": "failure", "unexpected_pass": "failure"}


@dataclass(frozen=True, slots=True)
class Package:
    """A release of a package: its tests, files or folders of the source archive; requirements; arguments of pytest.

    `sources`: the folder in the archive from which the package is imported. None: the package is installed, since it
    has compiled parts. `archived`: the tests are in the archive, and not in the installed package or in Python.
    """

    release: str
    tests: tuple[str, ...] = ("tests",)
    sources: str | None = "src"
    needs: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    archived: bool = True
    environment: Mapping[str, str] = field(default_factory=dict)


def _files(pattern: str, names: str) -> tuple[str, ...]:
    """Return the pattern with each name in the place of ``*``."""
    return tuple(pattern.replace("*", name) for name in names.split())


PACKAGES = {
    "accelerate": Package(
        "1.15.0",
        _files("tests/test_*.py", "data_loader hooks optimizer scheduler utils"),
        needs=("huggingface_hub", "safetensors", "parameterized"),
    ),
    "attrs": Package("25.4.0"),
    "click": Package("8.3.1", arguments=("-Wignore::pytest.PytestRemovedIn10Warning",)),
    # The tests are a part of Python, if it was built from its sources.
    "cpython": Package(
        platform.python_version(),
        _files(
            "test.test_*", "bisect contextlib copy descr fractions heapq os shelve signal tempfile textwrap threading"
        ),
        None,
        arguments=("--pyargs",),
        archived=False,
    ),
    "einops": Package(
        "0.8.2",
        _files("einops/tests/test_*.py", "packing parsing other"),
        ".",
        needs=("parameterized",),
        environment={"EINOPS_TEST_BACKENDS": "numpy,torch"},  # the collection of the tests asks for it
    ),
    "h11": Package("0.16.0", ("h11/tests",), "."),
    "idna": Package("3.11", sources="."),
    "iniconfig": Package("2.3.0", ("testing",)),
    "itsdangerous": Package("2.2.0", needs=("freezegun", "python-dateutil", "six")),
    "jinja2": Package("3.1.6", needs=("trio", "outcome", "sniffio")),
    "joblib": Package(
        "1.6.0",
        _files("joblib/test/test_*.py", "disk func_inspect hashing memory"),
        ".",
        needs=("cloudpickle", "loky"),
    ),
    # The archive in the index has no tests: ``--source`` with the commit of the release.
    "kornia": Package(
        "0.9.0rc1",
        (*_files("tests/color/test_*.py", "gray hsv lab rgb"), "tests/geometry/test_conversions.py"),
        ".",
        needs=("kornia_rs", "onnx"),
    ),
    "markupsafe": Package("3.0.3"),
    "more-itertools": Package("10.8.0", sources="."),
    "numpy": Package(
        "2.4.6",
        _files("numpy._core.tests.test_*", "einsum errstate print records shape_base"),
        None,
        needs=("hypothesis",),
        arguments=("--pyargs",),
        archived=False,
    ),
    "packaging": Package("25.0", needs=("pretend",)),
    "pluggy": Package("1.6.0", ("testing",)),
    "pytest": Package("9.2.0", _files("testing/test_*.py", "monkeypatch skipping tmpdir")),
    "requests": Package(
        "2.34.2",
        _files("tests/test_*.py", "hooks lowlevel structures utils"),
        needs=("pytest-httpbin", "pytest-mock", "PySocks", "trustme"),
    ),
    "safetensors": Package("0.8.0", ("bindings/python/tests/test_simple.py",), None),
    # The index has wheels of it only: ``--source`` with the commit of the release.
    "tensordict": Package(
        "0.14.0", ("test/nn/test_nn.py", "test/utils/test_utils.py", "test/tensordict/test_repr.py"), None
    ),
    "toolz": Package("1.1.0", ("toolz",), "."),
    "trio": Package(
        "0.35.0",
        _files("src/trio/_tests/test_*.py", "abc channel socket sync timeouts util"),
        needs=("sortedcontainers", "outcome", "sniffio", "astor"),
    ),
    "watchdog": Package("6.0.0", needs=("flaky", "pytest-timeout", "eventlet"), arguments=("-oaddopts=",)),
}


def main(names: Sequence[str], keep: Path | None, source: Path | None) -> int:
    """Compare the packages. Return 1 if a test differs in an unintended way."""
    wrong = 0
    for name in names or PACKAGES:
        with tempfile.TemporaryDirectory(prefix="harness-packages-") as folder:
            wrong += _compare(name, PACKAGES[name], Path(folder) if keep is None else keep / name, source)
    return int(bool(wrong))


def _compare(name: str, package: Package, folder: Path, source: Path | None) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    if source is None:
        source = _unpacked(name, package.release, folder) if package.archived else folder
    installed = (f"{name}=={package.release}",) if package.sources is None and name != "cpython" else ()
    python = make_environment((*installed, *package.needs), folder / "env")
    if python is None:
        raise SystemExit(f"{name}: {', '.join((*installed, *package.needs))} cannot be installed")
    began = time.monotonic()
    theirs = _plain(python, package, source, folder)
    middle = time.monotonic()
    ours = _with_harness(python, package, source, folder / "run")
    times = f"{middle - began:.0f} s, with the harness {time.monotonic() - middle:.0f} s"
    different = {case: (theirs.get(case), ours.get(case)) for case in sorted({*theirs, *ours})}
    different = {case: pair for case, pair in different.items() if pair[0] != _WORDS.get(str(pair[1]), pair[1])}
    wrong = {case: pair for case, pair in different.items() if pair[1] not in MEANT}
    counts = ", ".join(f"{count} {verdict}" for verdict, count in Counter(ours.values()).most_common())
    print(f"{name} {package.release}: {len(theirs)} tests, {times}: {counts}; {len(wrong)} differ", flush=True)
    for case, (plain, harness) in [*different.items()][:_SHOWN]:
        mark = "" if case in wrong else " (meant)"
        print(f"    {case}: {harness}, in plain pytest {plain or 'passed'}{mark}", flush=True)
    return len(wrong) + (not theirs)


def _unpacked(name: str, release: str, folder: Path) -> Path:
    """Return the folder of the source archive. It need not be built: its tests and Python files are sufficient."""
    with urllib.request.urlopen(f"https://pypi.org/simple/{name}/", timeout=60) as answer:
        page = answer.read().decode()
    file = rf"{name.replace('-', '[-_.]')}-{re.escape(release)}\.tar\.gz"
    link = re.search(rf'href="(?P<url>[^"#]+/{file})#sha256=(?P<hash>[0-9a-f]{{64}})"', page, re.IGNORECASE)
    if link is None:
        raise SystemExit(f"{name} {release}: the index has no source archive of it")
    with urllib.request.urlopen(urllib.parse.urljoin(answer.url, link["url"]), timeout=300) as answer:
        data = answer.read()
    if hashlib.sha256(data).hexdigest() != link["hash"]:
        raise SystemExit(f"{name} {release}: the archive has not the hash that the index names")
    with tarfile.open(fileobj=io.BytesIO(data)) as packed:
        packed.extractall(folder, filter="data")
        return folder / packed.getnames()[0].partition("/")[0]


def _plain(python: Path, package: Package, source: Path, folder: Path) -> Mapping[str, str]:
    """Return, by test, the element of its outcome in pytest's junit.xml; empty for passed."""
    report = folder / "plain.xml"
    _pytest(python, package, source, ("-p", "no:harness", f"--junitxml={report}", "-ojunit_family=xunit1"))
    if not report.exists():
        return {}
    outcomes = {}
    for case in ElementTree.parse(report).iter("testcase"):
        if not case.get("classname"):
            continue  # a file that skipped itself is not a case
        outcomes[f"{case.get('classname')}::{case.get('name')}"] = ",".join(
            child.tag for child in case if child.tag in ("failure", "error", "skipped")
        )
    return outcomes


def _with_harness(python: Path, package: Package, source: Path, results: Path) -> Mapping[str, str]:
    """Return, by test, the harness's verdict in the same words."""
    _pytest(python, package, source, (*_OURS, f"--harness-results-dir={results}"))
    told = subprocess.run(
        [str(python), "-m", "harness", "report", "json", str(results)],
        capture_output=True,
        text=True,
        check=False,
    )
    if told.returncode:
        print(told.stderr, file=sys.stderr)
        return {}
    return {_named(case["id"]): case["outcome"] for case in json.loads(told.stdout)["cases"]}


def _named(case: str) -> str:
    """Return the name of a case in pytest's junit.xml."""
    ids, bracket, values = case.partition("[")
    path, *names = ids.split("::")
    *classes, name = names
    return f"{'.'.join([path.removesuffix('.py').replace('/', '.'), *classes])}::{name}{bracket}{values}"


def _pytest(python: Path, package: Package, source: Path, more: Sequence[str]) -> None:
    command = [str(python), "-m", "pytest", *package.tests, "-q", "-p", "no:cacheprovider", *package.arguments, *more]
    if not package.archived:  # the names of tests then have the file, for plain pytest as well
        script = "import importlib.util, sys; print(importlib.util.find_spec(sys.argv[1]).origin)"
        name = package.tests[0].partition(".")[0]
        place = subprocess.run([str(python), "-c", script, name], capture_output=True, text=True, check=True)
        command.append(f"--rootdir={Path(place.stdout.strip()).parents[1]}")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HARNESS_", "PYTEST_"))}
    environment.pop("PYTHONPATH", None)
    if package.sources is not None:
        environment["PYTHONPATH"] = str(source / package.sources)
    else:
        environment["PYTHONSAFEPATH"] = "1"  # the folder of the sources may have the package without its compiled parts
    environment |= package.environment
    log = source.parent / f"{source.name}-{'harness' if _OURS[1] in more else 'plain'}.log"
    with log.open("w") as output:
        subprocess.run(
            command, cwd=source, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, check=False
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", choices=[[], *PACKAGES], help=f"of {', '.join(PACKAGES)}")
    parser.add_argument("--keep", type=Path, help="a folder for what is downloaded and for the run directories")
    parser.add_argument("--source", type=Path, help="the unpacked sources of one package that the index has not")
    arguments = parser.parse_args()
    if arguments.source is not None and len(arguments.names) != 1:
        parser.error("--source: expected one NAME")
    if arguments.source is not None and not arguments.source.is_dir():
        parser.error(f"--source={str(arguments.source)!r}: expected a folder")
    sys.exit(main(arguments.names, arguments.keep, arguments.source and arguments.source.resolve()))
