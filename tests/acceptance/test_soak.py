"""Memory over the repetitions of a case, in whole runs."""

from __future__ import annotations

import ast
from collections import Counter
from typing import Any

import pytest

from tests.acceptance.conftest import MakeProject
from tests.acceptance.expected import check_journal, compare_junit, expected
from tests.acceptance.project import SUITES, Result
from tests.acceptance.rules import report

TIMES = 30
PATH = "suites/growing/test_growing.py"
#: Cases of the suite ``growing`` that do not grow and use no arrays.
QUIET = ("-k", "test_flat")


def table(name: str) -> dict[str, str]:
    """Return a table of the fixture suite, by the ids of its cases."""
    for node in ast.parse((SUITES / "growing" / "test_growing.py").read_text()).body:
        match node:
            case ast.Assign(targets=[ast.Name(id=found)], value=value) if found == name:
                return {f"{PATH}::{case}": text for case, text in ast.literal_eval(value).items()}
    raise AssertionError(f"the suite has no table {name}")


def levels(result: Result) -> list[dict[str, Any]]:
    return [line for line in result.lines if line["event"] == "levels"]


def reports(result: Result, *options: str, **variables: str) -> list[str]:
    done = report(result.run_dir, *options, COLUMNS="80", NO_COLOR="1", **variables)
    assert done.returncode == result.status, done.stderr
    return done.stdout.splitlines()


def reported(lines: list[str]) -> dict[str, list[str]]:
    """Return the report's trends: by case, the word for it and the lines that follow."""
    found: dict[str, list[str]] = {}
    current: list[str] = []
    for line in lines:
        word, _, rest = line.partition(" ")
        if word.isupper() and rest.startswith(PATH):
            case, _, text = rest.partition(" - ")
            current = found[case] = [word, *([text] if text else [])]
        elif line.startswith("    "):
            current.append(line.strip())
        else:
            current = []
    return found


@pytest.mark.ways("spread", ["-n0", "-n2"])
def test_the_report_names_what_grows_over_repetitions_and_nothing_else(make_project: MakeProject, spread: str) -> None:
    project = make_project("growing")
    result = project.run(spread, f"--repeat={TIMES}", env={"PYTHONIOENCODING": "utf-8"})
    wanted = expected(project, "batch")
    assert result.status == 0, result.tail()
    assert result.verdicts == wanted.outcomes
    check_journal(result)
    compare_junit(result, wanted.cases)
    finishes = [(line["case"], line["attempt"]) for line in result.lines if line["event"] == "finish"]
    assert len(finishes) == TIMES * len(wanted.cases)
    assert sorted((line["case"], line["attempt"]) for line in levels(result)) == sorted(finishes)

    grows, shapes = table("GROWS"), table("SHAPES")
    for found in (reported(result.terminal.splitlines()), reported(reports(result))):
        assert {case: lines[0] for case, lines in found.items()} == dict.fromkeys(grows, "GROWS"), found
        for case, start in grows.items():
            _, text, top, middle, bottom = found[case]
            assert text.startswith(start), text
            assert [line.count("│") for line in (top, middle, bottom)] == [1, 1, 1]
            assert len(bottom.partition("│")[2]) == TIMES
    whole = reported(reports(result, "--growth"))
    assert {case: lines[0] for case, lines in whole.items()} == shapes, whole

    outputs = {
        f"{PATH}::{case.attrib['name']}": case.findtext("system-out") or "" for case in result.junit.iter("testcase")
    }
    assert {case for case, text in outputs.items() if "GROWS" in text} == set(grows)


def test_a_terminal_without_the_signs_gets_plain_ones(make_project: MakeProject) -> None:
    project = make_project("growing")
    result = project.run("-n0", f"--repeat={TIMES}", "-k", "test_heap", env={"PYTHONIOENCODING": "ascii"})
    for lines in (result.terminal.splitlines(), reports(result, PYTHONIOENCODING="ascii")):
        (found,) = reported(lines).values()
        assert "\n".join(found).isascii()
        assert found[-1].partition("|")[2].startswith(".")
        assert found[2].endswith("#")


def test_a_process_that_breaks_in_the_middle_gives_two_series(make_project: MakeProject) -> None:
    """The report has the growth in the longer series; the second one's fresh process begins at a low value again."""
    project = make_project()
    project.write("suites/growing/test_growing.py", BREAKS)
    result = project.run("-n0", f"--repeat={TIMES}")
    check_journal(result)
    counts = Counter(line["executor"] for line in levels(result))
    (longest, times), (_, others), (_, alone) = counts.most_common()
    # A suspicion after the first run causes one more run, which is not counted.
    assert (times in (16, 17), others, alone) == (True, TIMES - 1 - times, 1), counts
    ((case, found),) = reported(reports(result)).items()
    assert (case, found[0]) == (f"{PATH}::test_breaks", "GROWS")
    assert " grew by 4." in found[1]
    assert f" per repetition over {times} repetitions, from " in found[1]
    assert f", in executor {longest}" in found[1]


BREAKS = """
import os
from pathlib import Path
import numpy as np

KEPT = []

def test_breaks():
    with (Path(os.environ["PROBE_DIR"]) / "runs").open("a+") as file:
        file.write("x")
        file.flush()
        file.seek(0)
        number = len(file.read())
    KEPT.append(np.ones(4 << 10, dtype=np.uint8))
    if number == 18:
        os._exit(3)
"""


@pytest.mark.ways(
    "arguments", [(), ("--repeat=15", "--leak-check=off"), ("--repeat=15", "--isolation=case"), ("--verify=2",)]
)
def test_nothing_is_read_where_there_is_nothing_to_compare(
    make_project: MakeProject, arguments: tuple[str, ...]
) -> None:
    project = make_project("growing")
    result = project.run("-n0", *QUIET, *arguments)
    assert result.status == 0, result.tail()
    assert levels(result) == []
    assert "GROWS" not in result.terminal
    assert not [lines for lines in reported(reports(result)).values() if lines[0] != "VERIFIED"]
    assert any(line.startswith("the journal has no memory readings") for line in reports(result, "--growth"))


def test_too_few_repetitions_are_said_to_be(make_project: MakeProject) -> None:
    project = make_project("growing")
    result = project.run("-n0", "--repeat=5", "-k", "test_heap")
    assert reported(reports(result)) == {}
    assert reported(reports(result, "--growth"))[f"{PATH}::test_heap"][0] == "SHORT"


def test_until_fail_tells_of_what_ran_until_then(make_project: MakeProject) -> None:
    """The verdict is the case's own, and the memory until then is reported with it."""
    project = make_project()
    project.write(
        "suites/growing/test_growing.py",
        "import numpy as np\nKEPT = []\n"
        "def test_fails():\n    KEPT.append(np.ones(4 << 10, dtype=np.uint8))\n    assert len(KEPT) < 20\n",
    )
    result = project.run("-n0", f"--repeat={TIMES}", "--until-fail")
    assert result.status == 1
    assert result.verdicts == {f"{PATH}::test_fails": "failed"}
    times = len(levels(result))
    assert times == sum(line["event"] == "finish" for line in result.lines) < 21
    lines = reports(result)
    assert any(line.startswith(f"FAILED {PATH}::test_fails - ") for line in lines)
    assert any(" grew by 4." in line and f" per repetition over {times} repetitions, " in line for line in lines)
    assert "GROWS" in (next(result.junit.iter("testcase")).findtext("system-out") or "")
