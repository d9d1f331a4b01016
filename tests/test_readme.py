"""The front page: the commands that CI runs, counts of cases, the example and its output, and working links."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from importlib.metadata import distributions, version
from pathlib import Path
from typing import Any

import pytest
from packaging.specifiers import SpecifierSet

from harness.devices.capabilities import detect_capabilities
from harness.devices.device import CPU, Inventory
from harness.gating import requirements

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = sorted(
    path for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / ".ci/README.md", ROOT / "ci/README.md")
)
#: The front page may be off by as many cases, so that not every new case changes it.
TOLERANCE = 100
#: The same for cases that run on the CPU: some need a compiler or other software.
TOLERANCE_CPU = 300
#: The maximum size of a picture on the front page, in bytes.
LARGEST = 150_000


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) < 100


def test_the_commands_of_the_readme_are_those_that_run_in_ci() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    for installed, tested in re.findall(r"^    pip install (.*) && (pytest .*)$", README, re.MULTILINE):
        assert f"pip install -q {installed}" in script
        assert tested in script
    assert "    pip install -c constraints.txt -e '.[test]' && pytest tests/ -n auto --dist worksteal\n" in README


def test_the_cpu_build_of_torch_is_the_pinned_release() -> None:
    (named,) = re.findall(r"pip install (torch==\S+) --index-url https://download.pytorch.org/whl/cpu\n", README)
    assert named in (ROOT / "constraints.txt").read_text(encoding="utf-8").split()


def test_the_pinned_releases_install_on_the_oldest_python() -> None:
    """Debian 12 has Python 3.11.2: no release in `constraints.txt` may need a later one."""
    pinned = dict(
        re.findall(r"^([\w.-]+)==([^\s;]+)", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    )
    needs = {
        each.name: each.metadata["Requires-Python"] or ""
        for each in distributions()
        if pinned.get(each.name) == each.version
    }
    assert len(needs) > len(pinned) / 2
    assert {name: python for name, python in needs.items() if "3.11.0" not in SpecifierSet(python)} == {}


def test_the_pictures_of_the_readme_are_small() -> None:
    pictures = [ROOT / name for name in re.findall(r"!\[[^\]]+\]\(([^)]+)\)", README)]
    assert {path.suffix for path in pictures} == {".png"}
    assert all(0 < path.stat().st_size < LARGEST for path in pictures)


def _number(text: str) -> int:
    return int(text.replace(",", ""))


def test_the_counts_of_cases_are_those_of_the_collection(cases: list[dict[str, Any]]) -> None:
    if f"torch=={version('torch').partition('+')[0]}" not in (ROOT / "constraints.txt").read_text().split():
        pytest.skip("other releases of torch have other cases")
    host = detect_capabilities(Inventory(devices=(CPU,)), CPU)
    default, on_cpu = Counter[str](), Counter[str]()
    for case in cases:
        if not case["extended"]:
            wanted = [each for mark in case["requires"] for each in requirements.parse_requirements(mark)]
            fits = requirements.first_unmet(wanted, host) is None
            for name in (f"`--profile {case['group']}`", "all"):
                default[name] += 1
                on_cpu[name] += fits
    said = {
        row: (_number(whole), _number(part))
        for row, whole, part in re.findall(r"^\| (.+?) \| .* \| ([\d,]+) \| ([\d,]+) \|$", README, re.MULTILINE)
    }
    counted = {row: (default[row], on_cpu[row]) for row in default}
    assert said.keys() == counted.keys()
    for row, (whole, part) in counted.items():
        assert said[row][0] == pytest.approx(whole, abs=TOLERANCE), f"write {round(whole, -2):,} for {row}"
        assert said[row][1] == pytest.approx(part, abs=TOLERANCE_CPU), f"write {round(part, -2):,} for {row} on a CPU"
    (total,) = re.findall(r"and ([\d,]+) cases for it", README)
    (more,) = re.findall(r"^`--extended` adds ([\d,]+) cases", README, re.MULTILINE)
    assert _number(total) == pytest.approx(len(cases), abs=TOLERANCE), f"write {round(len(cases), -2):,}"
    rest = len(cases) - default["all"]
    assert _number(more) == pytest.approx(rest, abs=TOLERANCE), f"write {round(rest, -2):,}"


@pytest.mark.acceptance
def test_the_example_ends_with_the_output_that_the_readme_shows(tmp_path: Path) -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    (shown,) = re.findall(r"^```text\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    (command,) = re.findall(r"^`pytest (test_broken\.py .*?)`", README, re.MULTILINE)
    (tmp_path / "test_broken.py").write_text(code, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *command.split()],
        cwd=tmp_path,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": "", "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"\n{shown}isolation: " in done.stdout, done.stdout


def _anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and GitLab generate them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_files_and_headings_that_exist(page: Path) -> None:
    text = re.sub(r"^(```.*?^```|    .*?$)", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    broken = []
    for target in re.findall(r"\]\((?!https?://)([^)\s]+)\)", text):
        name, _, anchor = target.partition("#")
        path = (page.parent / name) if name else page
        if not path.exists() or (anchor and path.suffix == ".md" and anchor not in _anchors(path)):
            broken.append(target)
    assert not broken, f"{page}: {', '.join(broken)}"
