"""When the plugin takes part in a session, its messages, and its refusals. Each test has its own process."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness import plugin
from tests.warm import client

pytestmark = pytest.mark.acceptance

pytest_plugins = ["pytester"]

_INI = "[pytest]\nharness_suites = suites\nharness_preload =\n"


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """Return a project with one case in a suite, and one test outside it."""
    for name in [name for name in os.environ if name.startswith(("HARNESS_", "PYTEST_ADDOPTS"))]:
        monkeypatch.delenv(name)
    (pytester.path / "pytest.ini").write_text(_INI)
    _write(pytester, "suites/a/test_case.py", "def test_case(): pass\n")
    _write(pytester, "plain/test_plain.py", "def test_plain(): pass\n")
    return pytester


def _write(pytester: pytest.Pytester, name: str, text: str) -> None:
    path = pytester.path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _run(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    """Run `runpytest_subprocess` in a warm process."""
    done = client.run(["-m", "pytest", *arguments], pytester.path)
    return pytest.RunResult(done.returncode, done.stdout.splitlines(), done.stderr.splitlines(), 0.0)


def _runs(pytester: pytest.Pytester) -> list[Path]:
    return sorted((pytester.path / "results").glob("*/journal.ndjson"))


@pytest.mark.ways(
    ("arguments", "cases"),
    [
        (["suites"], 1),
        (["suites/a/test_case.py::test_case"], 1),
        (["."], 1),  # plain tests outside the suites belong to pytest
        (["plain"], None),
        (["plain", "--seed=3"], 1),
        (["plain", "-p", "harness.plugin"], 1),
        (["suites", "-p", "no:harness"], None),
        (["suites", "--collect-only"], None),
        (["suites", "--fixtures"], None),
        (["suites", "--markers"], None),
        (["suites", "--isolation=none"], 1),
    ],
)
def test_the_plugin_takes_part_when_asked_or_when_there_are_cases(
    project: pytest.Pytester, arguments: list[str], cases: int | None
) -> None:
    result = _run(project, *arguments, "-p", "no:cacheprovider")
    assert result.ret == 0
    runs = _runs(project)
    assert len(runs) == (cases is not None)
    if cases is not None:
        lines = [json.loads(line) for line in runs[0].read_text().splitlines()]
        assert [line["count"] for line in lines if line["event"] == "collected"] == [cases]


def test_torch_is_not_imported_by_having_the_plugin(project: pytest.Pytester) -> None:
    _write(project, "plain/test_plain.py", "import sys\ndef test_plain(): assert 'torch' not in sys.modules\n")
    _run(project, "plain").assert_outcomes(passed=1)


def test_the_header_and_the_summary_say_what_an_operator_needs(project: pytest.Pytester) -> None:
    result = _run(project, "suites", "--seed=77", "--results-dir=here")
    result.stdout.fnmatch_lines(
        [
            "harness: devices *; driver *; torch *",
            f"harness: isolation batch; seed 77; results in {project.path}/here",
            "1 case: 1 passed",
            "isolation: 1 executor started in * s, 0 restarts, 0 retries",
        ]
    )
    assert sorted(path.name for path in (project.path / "here").iterdir()) == [
        ".lock",
        "environment.json",
        "journal.ndjson",
        "junit.xml",
        "report.html",
        "zygote.log",
    ]


def test_a_run_directory_is_not_used_twice(project: pytest.Pytester) -> None:
    assert _run(project, "suites", "--results-dir=here").ret == 0
    before = (project.path / "here" / "journal.ndjson").read_bytes()
    result = _run(project, "suites", "--results-dir=here")
    assert result.ret == 4
    result.stderr.fnmatch_lines(["*--results-dir='here' already contains a run*"])
    assert (project.path / "here" / "journal.ndjson").read_bytes() == before


@pytest.mark.ways(
    ("arguments", "message"),
    [
        (["--isolation=prozess"], "*--isolation='prozess': expected one of batch, case, none*"),
        (["--case-timeout=0"], "*--case-timeout='0': expected a number above 0*"),
        (["--seed=x"], "*--seed='x': expected a whole number*"),
        (["--results-dir=pytest.ini/x"], "*cannot be made*"),
    ],
)
def test_a_bad_option_is_a_usage_error(project: pytest.Pytester, arguments: list[str], message: str) -> None:
    result = _run(project, "suites", *arguments)
    assert result.ret == 4
    result.stderr.fnmatch_lines([message])


@pytest.mark.ways(
    ("workers", "mark", "message"),
    [
        ("-n0", "requires(compute_capabilty='>=8')", "*test_bad: *'compute_capabilty'*compute_capability*"),
        ("-n2", "requires(memory='lots')", "*test_bad.py::test_bad: *memory*lots*"),
        ("-n0", "require(device='cuda')", "*test_bad: unknown mark 'require'; did you mean 'requires'?"),
        ("-n0", "timeout('1')", "*test_bad.py::test_bad: timeout*expected one number*"),
    ],
)
def test_a_mark_that_cannot_be_read_is_a_collection_error(
    project: pytest.Pytester, mark: str, message: str, workers: str
) -> None:
    _write(project, "suites/a/test_bad.py", f"import pytest\n@pytest.mark.{mark}\ndef test_bad(): pass\n")
    result = _run(project, "suites", workers)
    assert result.ret in (1, 2)  # xdist ends a session with collection errors as failed, pytest as interrupted
    result.stdout.fnmatch_lines([message])


@pytest.mark.ways(
    ("conftest", "reason"),
    [
        (
            "import threading\nthreading.Thread(target=threading.Event().wait, name='mine', daemon=True).start()\n",
            "*must not be forked*'mine'*",
        ),
        (
            "import sys, types\n"
            "fake = types.ModuleType('torch')\n"  # a fake, since CUDA cannot be initialised without a GPU
            "fake.cuda = types.SimpleNamespace(is_initialized=lambda: True)\n"
            "sys.modules['torch'] = fake\n",
            "*must not be forked*cuda is initialised*",
        ),
    ],
    ids=["thread", "cuda"],
)
def test_a_collection_that_must_not_be_forked_runs_nothing_and_says_why(
    project: pytest.Pytester, conftest: str, reason: str
) -> None:
    _write(project, "suites/a/conftest.py", conftest)
    result = _run(project, "suites")
    assert result.ret == 2
    result.stdout.fnmatch_lines([reason])
    result.stdout.fnmatch_lines(["1 case: 1 not_run"])


def test_n_auto_is_left_to_xdist_in_a_session_without_cases(project: pytest.Pytester) -> None:
    assert plugin.pytest_xdist_auto_num_workers(project.parseconfig("plain")) is None
    assert (plugin.pytest_xdist_auto_num_workers(project.parseconfig("suites")) or 0) >= 1


def test_warnings_as_errors_do_not_stop_the_zygote(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """If pytest finds that the plugin's files belong to a distribution, it warns about already imported modules."""
    (project.path / "pytest.ini").write_text(f"{_INI}filterwarnings = error\n")
    _write(project, "seen-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: seen\nVersion: 1.0\n")
    _write(project, "seen-1.0.dist-info/entry_points.txt", "[pytest11]\nharness = harness.entry\n")
    _write(project, "seen-1.0.dist-info/RECORD", "harness/__init__.py,,\nharness/entry.py,,\n")
    monkeypatch.setenv("PYTHONPATH", str(project.path))
    result = _run(project, "suites")
    result.assert_outcomes(passed=1)


def test_fixtures_give_device_and_seed(project: pytest.Pytester) -> None:
    _write(
        project,
        "suites/a/test_fixtures.py",
        """
import random
from harness.core.caseid import case_seed as expected
def test_device(device): assert device.type == "cpu" and device.index is None
def test_seed(case_seed, request):
    assert case_seed == expected(5, request.node.nodeid)
    first = random.random()
    random.seed(case_seed)
    assert random.random() == first
""",
    )
    result = _run(project, "suites/a/test_fixtures.py", "--seed=5", "-n0")
    result.assert_outcomes(passed=2)
    result = _run(project, "suites/a/test_fixtures.py", "--seed=5", "-n0", "--isolation=none")
    result.assert_outcomes(passed=2)


def test_the_line_that_reproduces_a_failure_does(project: pytest.Pytester) -> None:
    _write(
        project,
        "suites/a/test_seeded.py",
        "import random, pytest\n"
        "@pytest.mark.parametrize('word', ['a b', \"it's\"])\n"
        "def test_draw(word): assert random.random() < 0, f'drew {random.getstate()[1][0]}'\n",
    )
    result = _run(project, "suites/a/test_seeded.py", "-n0")
    assert result.ret == 1
    lines = [line.removeprefix("reproduce: ") for line in result.outlines if line.startswith("reproduce: ")]
    drew = [line for line in result.outlines if line.startswith("E ") and "drew" in line]
    assert len(lines) == len(drew) == 2
    again = project.run("bash", "-c", lines[1])
    assert again.ret == 1
    assert [line for line in again.outlines if line.startswith("E ") and "drew" in line] == [drew[1]]


_MARKED = """\
import pytest

@pytest.mark.requires(device="cuda")
def test_one(): pass

@pytest.mark.requires(device="cuda")
@pytest.mark.timeout(5)
def test_two(): pass

@pytest.mark.leaks("for good", link="https://example.org/1")
@pytest.mark.keeps("for good")
@pytest.mark.covers("a row")
def test_three(): pass

def test_four(): pass
"""
_THEIRS = """\
def pytest_configure(config):
    config.addinivalue_line("markers", "timeout(timeout, func_only=False): of pytest-timeout")
"""
_IGNORED = "harness: not active for {} tests with its marks, so the marks had no effect: "


def _said(result: pytest.RunResult) -> list[str]:
    return [line for line in result.outlines if line.startswith("harness: not active")]


@pytest.mark.ways("workers", ["-n0", "-n2"])
@pytest.mark.ways("strict", [(), ("--strict-markers",)])
def test_marks_without_the_harness_are_reported_once(
    project: pytest.Pytester, workers: str, strict: tuple[str, ...]
) -> None:
    _write(project, "plain/test_marked.py", _MARKED)
    result = _run(project, "plain", workers, *strict, "-p", "no:cacheprovider")
    result.assert_outcomes(passed=5)
    (line,) = _said(result)
    assert line.startswith(_IGNORED.format(3) + "requires on 2, covers on 1, leaks on 1, keeps on 1, timeout on 1; ")
    assert "-p harness.plugin" in line
    assert "harness_suites" in line


@pytest.mark.ways(
    ("name", "text", "arguments", "reported"),
    [
        ("plain", _MARKED, ["plain", "-p", "harness.plugin"], None),
        ("plain", _MARKED, ["plain", "--seed=1"], None),
        ("plain", _MARKED, ["plain", "-p", "no:harness"], None),
        ("plain", _MARKED, ["plain", "--collect-only"], None),
        ("plain", "def test_x(): pass\n", ["plain"], None),
        ("suites", _MARKED, ["suites"], None),
        ("plain", _MARKED, ["plain", "-k", "three"], _IGNORED.format(1) + "covers on 1, leaks on 1, keeps on 1; "),
        ("plain", _MARKED, ["."], _IGNORED.format(3)),  # tests in the suites are cases, these are not
        # Other meanings of the marks: no condition of the harness is positional.
        ("plain", "import pytest\n@pytest.mark.requires('redis')\ndef test_x(): pass\n", ["plain"], None),
    ],
)
def test_marks_with_the_harness_or_of_others_are_not(
    project: pytest.Pytester, name: str, text: str, arguments: list[str], reported: str | None
) -> None:
    _write(project, f"{name}/test_marked.py", text)
    said = _said(_run(project, *arguments, "-p", "no:cacheprovider"))
    assert len(said) == (reported is not None)
    assert all(line.startswith(str(reported)) for line in said)


def test_each_parametrized_case_with_an_invalid_mark_is_an_error(project: pytest.Pytester) -> None:
    wrong = "pytest.mark.requires(memroy='1GiB')"
    _write(
        project,
        "suites/a/test_some.py",
        "import pytest\n"
        f"@pytest.mark.parametrize('n', [1, pytest.param(2, marks={wrong}), 3, pytest.param(4, marks={wrong})])\n"
        "def test_some(n): pass\n"
        f"@{wrong}\n"
        "@pytest.mark.parametrize('n', [5, 6])\n"
        "def test_all(n): pass\n",
    )
    result = _run(project, "suites/a/test_some.py", "-n0")
    found = {line.partition(": ")[0].rpartition("::")[2] for line in result.outlines if "memroy" in line}
    assert found >= {"test_some[2]", "test_some[4]", "test_all[5]", "test_all[6]"}
    assert not any(f"[{number}]" in name for name in found for number in (1, 3))


def test_a_mark_that_another_plugin_has_as_well_is_its_own(project: pytest.Pytester) -> None:
    _write(project, "plain/conftest.py", _THEIRS)
    _write(project, "plain/test_marked.py", _MARKED)
    (line,) = _said(_run(project, "plain", "-p", "no:cacheprovider"))
    assert "requires on 2" in line
    assert "timeout" not in line


def test_every_hook_has_pytests_prefix() -> None:
    """pytest ignores other names, so a hook without the prefix is never called."""
    unheard = []
    for path in sorted((Path(__file__).parent.parent / "harness").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("pytest_"):
                marked = [mark for mark in node.decorator_list if ast.unparse(mark).startswith("pytest.hookimpl")]
                unheard += [f"{path}: {node.name}" for _ in marked]
    assert not unheard


@pytest.mark.nightly
def test_warning_of_another_plugin_does_not_stop_a_run_of_the_suites(tmp_path: Path) -> None:
    """For example, pytest-benchmark emits one under xdist while pytest configures itself."""
    tmp_path.joinpath("warner.py").write_text(
        "import pytest, warnings\n\n\nclass OwnWarning(pytest.PytestWarning):\n    pass\n\n\n"
        "def pytest_configure(config):\n    warnings.warn(OwnWarning('disabled under xdist'))\n"
    )
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "warner", "suites/devices/test_names.py", "--collect-only", "-q", "-n0"],
        cwd=Path(__file__).parent.parent,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
