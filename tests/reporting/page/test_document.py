"""The bytes of a page: deterministic, without external content, and no text of a case is active in a browser."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from harness.core.errors import WriteError
from harness.core.outcome import Outcome
from harness.journal.journal import JournalError
from harness.reporting.page import document, inert, model, report
from tests.reporting import build
from tests.reporting.page import runs
from tests.reporting.page.reading import Read, check_package_data, check_policy

#: Texts that would be harmful if they were copied into a page unchanged.
HOSTILE = (
    "</script><script>alert(1)</script>",
    "<!--<script>",
    "<img src=x onerror=alert(1)>",
    "\"><svg onload='alert(1)'>",
    "' autofocus onfocus=alert(1) x='",
    "javascript:alert(1)",
    "{{ 7 * 7 }}{% raw %}",
    "\u202egnp.exe\u2066",
    "a\u2028b\u2029c\u200bd\ufeffe",
    "\x1b[31mred\x1b[0m \x1b]0;title\x07 \x1b[2J \x9b31m",
    "\ud800 \udfff \x00 \x07 \x7f \uffff",
    "]]> &lt; &#60; &amp;",
)


def rendered(*lines: build.Line, environment: Any = runs.ENVIRONMENT) -> str:
    return document.render_report(model.page_of(build.contents(*lines), environment)).decode("utf-8")


PLAIN = Read(rendered(*runs.every_outcome()))


def hostile_run(text: str) -> list[build.Line]:
    """Return a run in which each text of its cases is `text`, as a reader of its journal gets it."""
    text = re.sub("[\ud800-\udfff]", lambda match: f"\\u{ord(match[0]):04x}", text) or "x"
    case = f"suites/a/test_a.py::{text}"
    words = {"message": text, "detail": text, "stdout": text, "stderr": text, "log": text, "reproduce": text}
    gate = {"capability": text, "wanted": text, "found": text}
    names: dict[str, Any] = {"worker": text, "executor": text, "devices": [text]}
    return [
        build.run(run_id=text, devices=[text], profile=text, host=text, settings={text: text}, identity={text: text}),
        build.must_pass(case, name=text),
        build.waiver(text, reason=text, link=text, owner=text, source=text),
        build.collected(case, f"{case}2", f"{case}3"),
        build.executor(text, worker=text, devices=[text]),
        build.executor(text, state="ended", worker=text, devices=[text], reason=text, exit_status=-11),
        build.start(case, **names),
        build.finish(case, Outcome.FAILED, notes=[text], phases={text: 1.0}, struck={text: 1}, **names, **words),
        build.finish(f"{case}2", Outcome.GATED, gate=gate, **names),
        build.finish(
            f"{case}3",
            stdout=text,
            keeps=text,
            properties=[(f"performance.{text}", "1 us"), (f"performance.{text}.floor", text), (text, text)],
            **names,
        ),
        *(build.levels(case, number, executor=text, heap_bytes=number << 20) for number in range(1, 15)),
        build.device("sick", device=text, message=text),
        build.finding(text, kind=text, cases=[case], reproduce=text),
        build.bisected(case, [text], reproduce=text),
        build.end(),
    ]


def test_figures_of_speed_are_a_table_with_a_bar_for_each_floor() -> None:
    case = "suites/performance/test_copies.py::a"
    properties = [
        ("performance.d2d_bandwidth.floor", ">=2TB/s"),
        ("performance.d2d_bandwidth", "1 TB/s"),
        ("performance.d2d_bandwidth.again", "1.5 TB/s"),
        ("performance.d2d_bandwidth.again.quartiles", "1.4 TB/s to 1.6 TB/s in 7 repetitions"),
        ("performance.allocation", "6.5 us"),
    ]
    page = rendered(build.run(), build.collected(case), build.start(case), build.finish(case, properties=properties))
    (table,) = re.findall(r'<section id="speed".*?</section>', page, re.DOTALL)
    rows = [re.sub(r"<[^>]*>", " ", row).split() for row in re.findall(r"<tr>(.*?)</tr>", table, re.DOTALL)[1:]]
    assert [row[:3] for row in rows] == [
        ["d2d_bandwidth", "1", "TB/s"],
        ["d2d_bandwidth.again", "1.5", "TB/s"],
        ["allocation", "6.5", "us"],
    ]
    assert re.findall(r'value="([0-9.]+)">(\d+%)', table) == [("0.5", "50%"), ("0.75", "75%")]
    assert "1.4 TB/s to 1.6 TB/s in 7 repetitions" in table
    assert "speed" not in {attributes.get("id") for tag, attributes in PLAIN.tags if tag == "section"}


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_texts_are_inert(text: str) -> None:
    check_inert(text)


@given(st.text(st.characters(), max_size=60))
@example("\ud83d")
@settings(max_examples=30)
def test_any_text_is_inert(text: str) -> None:
    check_inert(text)


def check_inert(text: str) -> None:
    page = rendered(*hostile_run(text), environment={text: text, "devices": [{"uuid": text, "name": text}]})
    hidden = re.compile(inert._HIDDEN.pattern)
    for name in ("uplot.min.js", "shared.js", "page.js", "uplot.min.css", "page.css"):
        page = page.replace(document.asset("harness.reporting.page", name), "")
    assert not hidden.search(page)
    read = Read(page)
    assert {tag for tag, _ in read.tags} <= {tag for tag, _ in PLAIN.tags}
    for tag, attributes in read.tags:
        assert set(attributes) <= {name for other, known in PLAIN.tags if other == tag for name in known} | {"open"}
        assert not [name for name in attributes if name.startswith("on")]
        for name in ("href", "src"):
            assert re.match(r"#|https?://|data:,|journal\.ndjson$|junit\.xml$|files/\w|$", attributes.get(name, "")), (
                tag
            )
    assert len(read.scripts) == len(PLAIN.scripts)
    assert read.data["cases"][0][1] == inert.inert_text(hostile_run(text)[6]["case"]).partition("::")[2]
    commands = {read.data["reproduce"][name] for name in ("0", "f0", "b0")}
    assert commands == {hostile_run(text)[7]["reproduce"]}, "a command is copied as it is"


def test_the_policy_allows_exactly_what_is_there() -> None:
    check_policy(PLAIN)


def test_the_same_run_directory_gives_the_same_bytes(tmp_path: Path) -> None:
    path = runs.write(tmp_path, *runs.every_outcome())
    first = path.read_bytes()
    assert report.write_html_report(tmp_path).read_bytes() == first
    other = tmp_path / "elsewhere" / "page.html"
    other.parent.mkdir()
    text = report.write_html_report(tmp_path, out=other).read_text()
    assert 'href="journal.ndjson"' in first.decode()
    assert 'href="journal.ndjson"' not in text
    assert 'href="files/' not in text


def test_without_a_journal_or_a_place_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="there is no journal"):
        report.write_html_report(tmp_path)
    runs.write(tmp_path, *runs.green())
    (tmp_path / "taken").mkdir()
    with pytest.raises(WriteError, match="cannot write"):
        report.write_html_report(tmp_path, out=tmp_path / "taken")


def test_red_cases_beyond_the_first_are_in_the_page_without_scripts() -> None:
    cases = [f"suites/a/test_a.py::test_{number}" for number in range(model.IN_FULL + 5)]
    failed = [build.finish(case, Outcome.FAILED, message=f"broke {case}", detail="stack") for case in cases]
    text = rendered(build.run(), build.collected(*cases), *failed, build.end(exit_status=1))
    read = Read(text)
    assert sum(tag == "article" for tag, _ in read.tags) == model.IN_FULL
    assert f"broke {cases[-1]}" in text.partition("<noscript>")[2]
    assert sorted(map(int, read.data["more"])) == [*range(model.IN_FULL, model.IN_FULL + 5)]


def test_the_files_of_the_page_are_in_the_package() -> None:
    check_package_data("harness.reporting.page", "report.html")


def test_who_writes_no_page_imports_nothing_of_it() -> None:
    imports = "import sys, harness.controller.run, harness.supervisor.worker"
    script = f"{imports}; print([n for n in ('jinja2', 'markupsafe') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
