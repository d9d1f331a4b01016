"""Values of ``record_property`` are in the journal and in the reports; a doctest's report has its failure."""

from __future__ import annotations

import json

import pytest

from tests.acceptance.conftest import MakeProject
from tests.acceptance.rules import report

SUITE = """
import pytest

def test_green(record_property):
    record_property("speed", 12.5)
    record_property("speed", [1, "a"])

def test_red(record_property):
    record_property("place\\0", "<here>\\nand there")
    assert 0

def test_many(record_property):
    for number in range(150):
        record_property(f"n{number}", "x" * 5000)

class Odd:
    def __str__(self):
        raise RuntimeError("no text")

def test_in_process(record_property, request):
    if "--isolation=none" in request.config.invocation_params.args:
        record_property("odd", Odd())

def test_none():
    pass
"""
MODULE = '''
def broken():
    """Broken example.

    >>> broken()
    1
    """
    return 2
'''


@pytest.mark.ways("mode", [["-n0"], ["-n2"], ["-n0", "--isolation=none"]])
def test_recorded_properties_are_in_every_report(make_project: MakeProject, mode: list[str]) -> None:
    project = make_project()
    project.write("suites/test_it.py", SUITE)
    result = project.run(*mode)
    found = {
        verdict.case.partition("::test_")[2]: verdict.decided.properties
        for verdict in result.ledger.verdicts
        if verdict.decided is not None
    }
    assert found["green"] == (("speed", "12.5"), ("speed", "[1, 'a']"))
    assert found["red"] == (("place\\x00", "<here>\nand there"),)
    assert len(found["many"]) == 101
    assert found["many"][-1] == ("more properties", "50")
    assert max(len(value) for _, value in found["many"]) < 2100
    odd = (("odd", "<Odd, whose text cannot be had: RuntimeError>"),)
    assert found["in_process"] == (odd if "--isolation=none" in mode else ())
    assert found["none"] == ()
    assert "PROPERTY speed = 12.5\n" in "".join(result.junit.itertext())
    assert "property speed = 12.5" in (result.run_dir / "report.html").read_text()
    assert "property place\\x00 = &lt;here&gt;" in report(result.run_dir, "markdown").stdout
    cases = {case["id"]: case for case in json.loads(report(result.run_dir, "json").stdout)["cases"]}
    assert cases["suites/test_it.py::test_green"]["attempts"][0]["properties"] == [
        ["speed", "12.5"],
        ["speed", "[1, 'a']"],
    ]


def test_the_most_memory_of_a_case_is_in_the_journal(make_project: MakeProject) -> None:
    project = make_project()
    text = "def test_{}(): x = bytearray(64 << 20); x[::4096] = b'1' * len(x[::4096]); assert {}\n"
    text = text.format("large", True) + text.format("red", False)
    project.write("suites/test_it.py", f"def test_small(): pass\n{text}")
    result = project.run("-n0", "--isolation=case")
    memory = {each.case.partition("::test_")[2]: each.finishes[0].memory for each in result.ledger.verdicts}
    for name in ("large", "red"):
        assert 60 << 20 < memory[name]["host"] < 80 << 20
    assert memory["small"].get("host", 0) < 16 << 20


def test_a_doctest_says_why_it_failed(make_project: MakeProject) -> None:
    project = make_project()
    project.write("suites/module.py", MODULE)
    result = project.run("-n0", "--doctest-modules")
    (verdict,) = result.ledger.verdicts
    assert (verdict.outcome.value, verdict.message) == ("failed", "line 5: expected 1, got 2")


def test_no_secret_of_the_command_line_is_in_the_run_directory(make_project: MakeProject) -> None:
    project = make_project()
    project.write("suites/a/test_a.py", "def test_fails():\n    assert False\n")
    run = project.run("-n0", "-o", "junit_suite_name=redis://user:sesame@cache/0")
    assert run.contents.events
    files = [path for path in run.run_dir.rglob("*") if path.is_file()]
    assert [path.name for path in files if b"(secret)@cache" in path.read_bytes()]
    assert [path.name for path in files if b"sesame" in path.read_bytes()] == []
