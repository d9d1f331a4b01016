"""The job summary and the annotations for GitHub: red cases first, below the limit, and no text has an effect."""

from __future__ import annotations

import html
import re
import tempfile
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import example, given
from markdown_it import MarkdownIt

from harness.core.outcome import Outcome
from harness.journal.stored_run import StoredRun
from harness.reporting import github
from harness.reporting.github import Location, failure_location
from tests.journal import journals
from tests.journal.journals import CRASHED, DETAIL, ENVIRONMENT, FAILED, FLAKY, GATED
from tests.reporting import build

COMMAND = re.compile(r"::error (?P<properties>[^:]*)::(?P<message>.*)")


def summary(run_dir: Path) -> str:
    with StoredRun.of(run_dir) as stored:
        data = b"".join(github.job_summary(stored, ENVIRONMENT))
    assert len(data) <= 1 << 20
    return data.decode("utf-8")


def commands(run_dir: Path) -> list[tuple[dict[str, str], str]]:
    """Return the properties and the message of each annotation, as GitHub reads them."""
    with StoredRun.of(run_dir) as stored:
        lines = list(github.workflow_commands(stored))
    assert len(lines) <= github.MOST_ANNOTATIONS
    found = []
    for line in lines:
        assert len(line.splitlines()) == 1
        match = COMMAND.fullmatch(line)
        assert match is not None, line
        properties = dict(each.split("=", 1) for each in match["properties"].split(","))
        found.append(({name: unescaped(value) for name, value in properties.items()}, unescaped(match["message"])))
    return found


def unescaped(text: str) -> str:
    for code, character in (("%0D", "\r"), ("%0A", "\n"), ("%3A", ":"), ("%2C", ","), ("%25", "%")):
        text = text.replace(code, character)
    return text


class _Page(HTMLParser):
    """The elements of a page, its text outside code, and its code."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.plain = ""
        self.code: list[str] = []
        self._depth = 0
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert not [name for name, _ in attrs if name != "style"], attrs
        self.tags.add(tag)
        if tag in ("code", "pre"):
            self._depth += 1
            self.code.append("")

    def handle_endtag(self, tag: str) -> None:
        self._depth -= tag in ("code", "pre")

    def handle_data(self, data: str) -> None:
        if self._depth:
            self.code[-1] += data
        else:
            self.plain += data


def page(text: str) -> _Page:
    """Return the summary as a renderer of GitHub's Markdown shows it."""
    return _Page(MarkdownIt("commonmark", {"html": True}).enable("table").render(text))


def test_red_cases_come_first_and_severe_ones_before_others(tmp_path: Path) -> None:
    text = summary(journals.write(tmp_path, journals.lines()))
    assert text.startswith(
        "\n## Red: 3 of 6 cases red, 2 findings; exit status 1\n\n| outcome | cases |\n| --- | --- |\n"
    )
    assert text.endswith("\n")
    shown = page(text)
    assert shown.tags == {
        "h2", "h3", "table", "thead", "tbody", "tr", "th", "td", "ul", "li", "p", "strong", "code", "pre", "b",
        "details", "summary",
    }  # fmt: skip
    places = [shown.code.index(case) for case in (CRASHED, FAILED, FLAKY)]
    assert places == sorted(places)
    assert "GPU-2 fell off" in shown.code
    assert any(DETAIL in code and "reproduce: pytest 'x'" in code for code in shown.code)
    assert "memory: wanted >=80GiB, found 12 GiB" in shown.code
    assert "node1: NVIDIA GPU-1" in shown.code


def test_a_green_run_says_so(tmp_path: Path) -> None:
    lines = [build.run(), build.collected(GATED, FAILED), build.finish(FAILED), build.finish(GATED), build.end()]
    assert "## Green: 2 cases, none of them red\n" in summary(journals.write(tmp_path, lines))


@pytest.mark.parametrize(
    ("end", "headline"),
    [
        ([], "Not finished: the run was cut off; 1 of 1 case red"),
        ([build.end(exit_status=2)], "Interrupted: 1 of 1 case red; exit status 2"),
        ([build.end(exit_status=3)], "Internal error: 1 of 1 case red; exit status 3"),
    ],
)
def test_headlines(end: list[build.Line], headline: str, tmp_path: Path) -> None:
    run_dir = journals.write(tmp_path, [build.run(), build.collected(FAILED), *end])
    assert f"## {headline}\n" in summary(run_dir)


def test_torn_doubled_and_foreign_lines_are_reported(tmp_path: Path) -> None:
    shown = page(summary(journals.write_bytes(tmp_path, b"".join(journals.odd()))))
    assert "the journal has 1 duplicate line, counted once" in shown.code
    assert any(code.startswith("the journal has 3 unreadable lines") for code in shown.code)


HOSTILE = [
    "a|b`c`<img src=x onerror=alert(1)>@someone #1 https://example.org ![x](y) **b** &amp; \\| ~~s~~",
    "</code></pre></details><script>alert(1)</script>",
    "\u202egnp.exe\u202c\x1b[31m",
    "```\n## heading\n- list\n<!-- comment",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_has_an_effect_in_a_summary(text: str, tmp_path: Path) -> None:
    case = f"suites/a/test_a.py::test_a[{text}]"
    lines = [build.run(), build.collected(case), build.finding(text, kind=text, reproduce=text)]
    lines.append(build.finish(case, Outcome.FAILED, message=text, detail=text, notes=[text], reproduce=text))
    shown = page(summary(journals.write(tmp_path, lines)))
    assert not shown.tags & {"img", "script", "a", "em", "del"}
    assert "@someone" not in shown.plain
    assert not re.search("[\u202a-\u202e\x1b]", shown.plain + "".join(shown.code))
    if text.isprintable():
        assert text in shown.code


@given(journals.hostile())
@example([build.run(), build.collected("\udc80\ud83d\x00::[", "a\nb::\t\r"), build.finding("::error::x\n::y")])
def test_no_text_breaks_out(lines: list[build.Line]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run_dir = journals.write(Path(folder), [build.run(), *lines])
        shown = page(summary(run_dir))
        assert shown.tags <= {
            "h2", "h3", "table", "thead", "tbody", "tr", "th", "td", "ul", "li", "p", "strong", "code", "pre", "b",
            "details", "summary",
        }  # fmt: skip
        for properties, _ in commands(run_dir):
            assert {*properties} <= {"file", "line", "title"}


def test_a_summary_of_many_red_cases_is_below_the_limit(tmp_path: Path) -> None:
    ids = [f"suites/a/test_a.py::test_{number}" for number in range(1500)]
    lines = [build.run(), build.collected(*ids)]
    lines += [build.finish(case, Outcome.FAILED, detail="<&>" * 3_000, message=case) for case in ids]
    lines.append(build.finish("suites/z/test_z.py::last", Outcome.CRASHED))
    text = summary(journals.write(tmp_path, lines))
    assert len(text.encode()) > github.MOST_BYTES / 2
    assert text.endswith("\n_More is left out: GitHub takes 1 MiB. The run directory has all of it._\n")
    assert page(text).code.index("suites/z/test_z.py::last") < 20, "the most severe case comes first"


def test_every_part_is_closed(tmp_path: Path) -> None:
    ids = [f"suites/a/test_a.py::test_{number}" for number in range(1500)]
    lines = [build.run(), *(build.finish(case, Outcome.FAILED, detail="x" * 9_000) for case in ids)]
    text = summary(journals.write(tmp_path, lines))
    assert text.count("<details>") == text.count("</details>")
    assert text.count("<pre>") == text.count("</pre>")


FAULT = """Fatal Python error: Segmentation fault

Current thread 0x00007f (most recent call first):
  File "/usr/lib/python3.11/ctypes/__init__.py", line 505 in string_at
  File "/here/suites/a/test_a.py", line 12 in helper
  File "/here/suites/a/test_a.py", line 40 in test_a
"""
TRACE = """Traceback (most recent call last):
  File "/here/suites/a/test_a.py", line 5, in test_a
  File "/here/suites/a/test_a.py", line 9, in helper
  File "/usr/lib/python3.11/json/decoder.py", line 3, in decode
"""
PYTEST = """    def test_a():
>       helper()

suites/a/test_a.py:31: @
_ _ _ _
suites/a/test_a.py:8: in helper
    other.check()
suites/a/other.py:3: AssertionError""".replace("@", "")  # pytest writes a space at the end of the line


@pytest.mark.parametrize(
    ("detail", "expected"),
    [
        ("", Location("suites/a/test_a.py")),
        (PYTEST, Location("suites/a/test_a.py", 8)),
        (TRACE, Location("suites/a/test_a.py", 9)),
        (FAULT, Location("suites/a/test_a.py", 12)),
        ("suites/b/test_b.py:3: AssertionError", Location("suites/a/test_a.py")),
        ("suites/a/test_a.py:3", Location("suites/a/test_a.py")),
    ],
)
def test_the_line_that_failed(detail: str, expected: Location) -> None:
    assert failure_location("suites/a/test_a.py::test_a[x::y]", detail, "/here") == expected


def test_annotations_name_file_line_and_case(tmp_path: Path) -> None:
    found = commands(journals.write(tmp_path, journals.lines()))
    assert [properties for properties, _ in found] == [
        {"file": "suites/streams/test_a.py", "title": f"CRASHED {CRASHED}"},
        {"file": "suites/streams/test_a.py", "line": "7", "title": f"FAILED {FAILED}"},
        {"file": "suites/amp/test_c.py", "title": "NOT_RUN suites/amp/test_c.py::test_not_run"},
        {"title": "finding device_lost"},
        {"title": "finding must_pass"},
    ]
    assert found[1][1] == "assert 1 == 2\npytest 'x'"


def test_more_than_ten_annotations_end_with_their_number(tmp_path: Path) -> None:
    ids = [f"suites/a/test_a.py::test_{number}" for number in range(30)]
    lines = [build.run(), build.collected(*ids), *(build.finish(case, Outcome.FAILED) for case in ids)]
    found = commands(journals.write(tmp_path, lines))
    assert len(found) == 10
    assert found[-1] == ({"title": "more"}, "21 more red cases and findings: see the job summary")


def test_many_red_cases_leave_room_for_findings(tmp_path: Path) -> None:
    ids = [f"suites/a/test_a.py::test_{number}" for number in range(30)]
    lines = [build.run(), build.collected(*ids), *(build.finish(case, Outcome.FAILED) for case in ids)]
    lines += [build.finding("gw1 died", kind="worker", cases=ids, reproduce="pytest x")]
    found = commands(journals.write(tmp_path, lines))
    assert len(found) == 10
    assert found[8] == ({"title": "finding worker"}, f"gw1 died\n30 cases: {', '.join(ids[:3])}, …\npytest x")
    assert found[9] == ({"title": "more"}, "22 more red cases and findings: see the job summary")


def test_an_annotation_cannot_be_ended_by_a_text(tmp_path: Path) -> None:
    case = "suites/a/test_a.py::test_a[a,b:c%0A::error::x]"
    lines = [
        build.run(),
        build.collected(case),
        build.finish(case, Outcome.FAILED, message="one\r\n::set-output::100%"),
    ]
    ((properties, message),) = commands(journals.write(tmp_path, lines))
    assert properties["title"] == f"FAILED {case}"
    assert message == "one\n::set-output::100%"


def test_code_of_a_blank_text_is_not_empty() -> None:
    assert html.unescape(github.markdown_code("\n")) == "<code> </code>"
