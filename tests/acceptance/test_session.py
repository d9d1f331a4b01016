"""Changes that cases, fixtures and conftests make to their session have the effect that they have in plain pytest."""

from __future__ import annotations

import pytest

from tests.acceptance.conftest import MakeProject

PLAIN = "import pytest\n@pytest.mark.parametrize('n', range(3))\ndef test_last(n): pass\n"
BY_A_TEST = "def test_first(request): request.session.{} = 'as told'\n" + PLAIN
BY_A_FIXTURE = """\
import pytest

@pytest.fixture(scope="session")
def told(request):
    yield
    request.session.shouldfail = "as told"

@pytest.mark.parametrize("n", range(3))
def test_last(n, told): pass
"""
BY_A_HOOK = "def pytest_runtest_makereport(item, call):\n    item.session.shouldstop = 'as told'\n"
AT_THE_END = "def pytest_sessionfinish(session):\n    session.exitstatus = {}\n"
#: By name: the test file, the conftest, and plain pytest's exit status.
WAYS = {
    "a test says fail": (BY_A_TEST.format("shouldfail"), "", 1),
    "a test says stop": (BY_A_TEST.format("shouldstop"), "", 2),
    "a fixture says fail at the end": (BY_A_FIXTURE, "", 1),
    "a hook says stop": (PLAIN, BY_A_HOOK, 2),
    "a conftest decides at the end": (PLAIN, AT_THE_END.format(9), 9),
}


@pytest.mark.ways("options", [("-n0",), ("-n0", "--isolation=case"), ("-n2",)])
@pytest.mark.ways("way", WAYS)
def test_a_session_hears_what_it_is_reported(make_project: MakeProject, way: str, options: tuple[str, ...]) -> None:
    project = make_project()
    tests, conftest, status = WAYS[way]
    project.write("suites/test_it.py", tests)
    project.write("suites/conftest.py", conftest)
    plain = project.run("-p", "no:harness", suites="suites", results_dir=False)
    assert plain.status == status, plain.tail()
    result = project.run(*options)
    # xdist's controller stops for either reason.
    wanted = 2 if "-n2" in options and status == 1 else status
    assert result.status == wanted, result.tail()
    assert ("as told" in result.terminal) == (status != 9)


def test_a_conftest_cannot_make_a_red_run_green(make_project: MakeProject) -> None:
    project = make_project()
    project.write("suites/test_it.py", "def test_it(): assert 0\n")
    project.write("suites/conftest.py", AT_THE_END.format(0))
    assert project.run("-n0").status == 1


@pytest.mark.ways("spread", ["-n0", "-n2"])
@pytest.mark.ways("returncode", [0, None, 7])
def test_an_exit_at_the_end_takes_no_report(make_project: MakeProject, returncode: int | None, spread: str) -> None:
    """``pytest.exit`` in a conftest's ``pytest_sessionfinish``: the run is reported, and its status is not improved."""
    project = make_project()
    project.write("suites/test_it.py", "def test_it(): assert 0\n")
    exits = f"import pytest\ndef pytest_sessionfinish(): pytest.exit('as told', returncode={returncode})\n"
    project.write("suites/conftest.py", exits)
    result = project.run(spread)
    assert result.status == (returncode or 1), result.tail()
    assert "Exit: as told" in result.terminal
    assert "1 case: 1 failed" in result.terminal
    assert len(result.junit.findall(".//testcase")) == 1
    assert (result.run_dir / "report.html").exists()
