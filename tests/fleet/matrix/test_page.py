"""The page of a matrix: complete, inert, and identical for the same runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.core.outcome import Outcome
from harness.fleet import matrix_page as page
from harness.fleet import run as folders
from harness.fleet.matrix import make_matrix
from harness.fleet.reading import reading
from harness.reporting.page import document, inert
from tests.fleet.matrix import runs
from tests.fleet.matrix.runs import CASES, Machine
from tests.reporting import build
from tests.reporting.page.reading import Read, check_package_data, check_policy
from tests.reporting.page.test_document import HOSTILE

ONE, TWO, THREE = CASES


def render(*given_: Path) -> str:
    found = folders.find_runs(given_)
    with reading(found.paths, found.notes, processes=1) as read:
        return page.render_matrix(make_matrix(read)).decode("utf-8")


def test_without_scripts_the_page_has_classes_holes_machines_and_doubts(tmp_path: Path) -> None:
    runs.fleet(tmp_path, 6, n4=ONE, n5=ONE, n6=ONE, n2=TWO)
    runs.run(tmp_path / "n7", Machine("n7"), {ONE: Outcome.GATED}, identity={"suite files": "sha256:00"})
    runs.write(tmp_path / "n8", runs.lines(Machine("n8"), runs.PASSED)[:-1], Machine("n8"))
    shown = Read(render(tmp_path)).shown
    for text in (
        "2 cases red somewhere",
        "8 runs on 8 machines: 2 of 3 cases are red or flaky somewhere. 1 one driver 1 one device",
        "driver 580.1 Red in all 3 runs with driver 580.1, and in none of the 4 other runs.",
        "Cannot be distinguished from: host n2; a flake.",
        "Next: Run it again on device GPU-n2: it was bad only once.",
        "suite files sha256:555555555555 7 n2, n4, n6, n1, n3, n8, n5 sha256:00 1 n7",
        "n8: it did not finish",
        "gated memory: wanted >=40GiB found 24.0GiB 1 1 case " + ONE,
        "n4 A10 580.1 2.13.0 1 1 0 1 device GPU-n4",
    ):
        assert text in shown


def test_a_green_matrix_says_so(tmp_path: Path) -> None:
    runs.run(tmp_path / "r", Machine())
    text = render(tmp_path)
    shown = Read(text).shown
    assert "Green 1 run on 1 machine: none of 3 cases is red." in shown
    assert 'class="top green"' in text
    assert "What the failures have in common" not in shown


def test_the_page_lists_findings(tmp_path: Path) -> None:
    written = runs.lines(Machine(), runs.PASSED)
    leak = build.finding("gw0-1 grew", kind="batch_leak", cases=[ONE, TWO], reproduce="pytest x")
    runs.write(tmp_path / "r", [*written[:-1], leak, build.end(exit_status=1)], Machine())
    text = render(tmp_path)
    shown = Read(text).shown
    assert "1 finding 1 run on 1 machine: none of 3 cases is red; 1 finding makes 1 run red." in shown
    for text_ in ("batch_leak gw0-1 grew", f"2 cases {ONE} {TWO}", "pytest x", f"1 run {tmp_path / 'r'}"):
        assert text_ in shown
    assert 'class="top red"' in text
    assert 'href="#findings"' in text


def hostile(folder: Path, text: str) -> str:
    """Return the page of a matrix in which every text is `text`."""
    cases = {f"suites/{text}/test_a.py::{text}": Outcome.FAILED, f"{text}::gated": Outcome.GATED}
    machine = Machine(text or "n", text, text, text, text or "GPU-1")
    written = runs.lines(machine, cases, identity={text: text, "suite files": text})
    for line in written:
        for name in ("message", "reproduce", "stdout"):
            if name in line:
                line[name] = text
        if "gate" in line:
            line["gate"] = {"capability": text, "wanted": text, "found": text}
    runs.write(folder / "r1", [*written, build.finding(text)], machine)
    runs.run(folder / "r2", Machine("n2", text, text))
    return render(folder)


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_texts_are_inert(tmp_path: Path, text: str) -> None:
    check_inert(hostile(tmp_path, text))


@given(st.text(st.characters(), max_size=40))
@settings(max_examples=25)
def test_any_text_is_inert(text: str) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        check_inert(hostile(Path(folder), text))


def check_inert(text: str) -> None:
    for package, name in (
        ("harness.reporting.page", "page.css"),
        ("harness.reporting.page", "shared.js"),
        ("harness.fleet", "matrix.css"),
        ("harness.fleet", "matrix.js"),
    ):
        text = text.replace(document.asset(package, name), "")
    assert not re.search(inert._HIDDEN.pattern, text)
    read = Read(text)
    allowed = "html head meta title link style body a header p span h1 ul li strong dl div dt dd nav main section h2 h3"
    more = "table thead tbody tr th td article details summary noscript form label kbd input select option fieldset"
    assert {tag for tag, _ in read.tags} <= {*allowed.split(), *more.split(), "legend", "button", "script", "br"}
    for _, attributes in read.tags:
        assert not [name for name in attributes if name.startswith("on") or name == "style"]
        assert re.match(r"#|data:,|$", attributes.get("href", ""))
        assert "src" not in attributes
    assert len(read.scripts) == 3


def test_the_policy_allows_exactly_what_is_there(tmp_path: Path) -> None:
    runs.run(tmp_path / "r", Machine())
    check_policy(Read(render(tmp_path)))


def test_the_same_runs_give_the_same_bytes(tmp_path: Path) -> None:
    runs.fleet(tmp_path, 6, n4=ONE, n2=TWO)
    assert render(tmp_path) == render(*sorted(tmp_path.iterdir(), reverse=True))


def test_long_names_and_many_rows_are_cut(tmp_path: Path) -> None:
    cases: dict[str, Any] = {f"suites/a/test_a.py::{'x' * 100_000}": Outcome.FAILED}
    cases |= {f"suites/a/test_a.py::c{number}": Outcome.FAILED for number in range(100)}
    runs.write(tmp_path / "r", runs.lines(Machine(), cases), Machine())
    text = render(tmp_path)
    assert len(text) < 200_000
    assert f"and {101 - page.LISTED} more" in text


def test_the_files_of_the_page_are_in_the_package() -> None:
    check_package_data("harness.fleet", "matrix.html")
