"""State that fixtures change for several cases, with real pytest runs."""

from __future__ import annotations

import json

import pytest

pytestmark = pytest.mark.acceptance

pytest_plugins = ["pytester"]

#: Does what an executor does around each case, and at its end.
CONFTEST = """
import json, pathlib, tempfile
import pytest
from harness.checks.state.guard import StateGuard
from harness.checks.state.guard import FixtureWatch

guard = StateGuard()
found = {}

def pytest_configure(config):
    config.pluginmanager.register(FixtureWatch(guard))

@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtestloop():
    tempfile.tempdir = None
    guard.capture()
    return (yield)

@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item):
    result = yield
    ended = [entry.problem for entry in guard.take_fixture_problems()]
    found[item.name] = [problem.text for problem in ended + guard.compare()]
    if found[item.name]:
        guard.restore()
    return result

def pytest_unconfigure():
    found["end"] = [problem.text for problem in guard.compare()]
    pathlib.Path("found.json").write_text(json.dumps(found))
"""


def found(pytester: pytest.Pytester, source: str, *arguments: str, passed: int) -> dict[str, list[str]]:
    """Return the messages of each case that has any, and those at the end."""
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(source)
    result = pytester.runpytest_subprocess("-p", "no:harness", "-p", "no:cacheprovider", *arguments)
    result.assert_outcomes(passed=passed)
    texts: dict[str, list[str]] = json.loads((pytester.path / "found.json").read_text())
    return {name: problems for name, problems in texts.items() if problems}


def test_what_pytest_itself_changes_is_not_reported(pytester: pytest.Pytester) -> None:
    source = """
        import logging, os, sys, warnings
        def test_monkeypatch(monkeypatch):
            monkeypatch.setenv("STATE", "1"); monkeypatch.setattr(os, "getcwd", lambda: "/")
            monkeypatch.syspath_prepend("/nowhere"); monkeypatch.delitem(sys.modules, "json")
        def test_warnings(recwarn):
            warnings.simplefilter("ignore"); warnings.warn("a")
        def test_logging(caplog):
            caplog.set_level(1); logging.warning("b")
        def test_capture(capsys):
            print("c")
        def test_fails():
            try: raise ValueError
            except ValueError: assert os.environ["PYTEST_CURRENT_TEST"]
    """
    assert found(pytester, source, passed=5) == {}


@pytest.mark.parametrize("scope", ["class", "module", "package", "session"])
def test_state_that_a_wider_fixture_changes_and_restores_is_not_reported(pytester: pytest.Pytester, scope: str) -> None:
    source = f"""
        import os, signal, pytest
        @pytest.fixture(scope="{scope}")
        def shared():
            os.environ["STATE"] = "held"
            old = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
            yield
            del os.environ["STATE"]
            signal.signal(signal.SIGUSR1, old)
        class TestIt:
            def test_a(self): pass
            def test_b(self, shared): assert os.environ["STATE"] == "held"
            def test_c(self, shared): assert os.environ["STATE"] == "held"
            def test_d(self): pass
        def test_e(): pass
    """
    assert found(pytester, source, passed=5) == {}


def test_set_up_functions_of_modules_classes_and_unittest_count_as_fixtures(pytester: pytest.Pytester) -> None:
    source = """
        import os, unittest
        def setup_module(): os.environ["OF_MODULE"] = "1"
        def teardown_module(): del os.environ["OF_MODULE"]
        class TestPlain:
            def setup_class(cls): os.environ["OF_CLASS"] = "1"
            def teardown_class(cls): del os.environ["OF_CLASS"]
            def test_a(self): pass
            def test_b(self): pass
        class TestUnit(unittest.TestCase):
            @classmethod
            def setUpClass(cls): os.environ["OF_UNIT"] = "1"
            @classmethod
            def tearDownClass(cls): del os.environ["OF_UNIT"]
            def test_c(self): pass
            def test_d(self): pass
    """
    assert found(pytester, source, passed=4) == {}


def test_a_wider_fixture_that_does_not_restore_is_named_when_it_is_torn_down(pytester: pytest.Pytester) -> None:
    source = """
        import os, pytest
        @pytest.fixture(scope="module")
        def shared():
            os.environ["STATE"] = "held"
        def test_a(shared): pass
        def test_b(shared): assert "STATE" in os.environ
    """
    text = "the module fixture 'shared' did not restore the environment variable STATE (now 'held', was absent)"
    assert found(pytester, source, passed=2) == {"test_b": [text]}


def test_a_case_that_changes_the_state_of_a_fixture_is_reported(pytester: pytest.Pytester) -> None:
    source = """
        import os, pytest
        @pytest.fixture(scope="module", autouse=True)
        def shared():
            os.environ["STATE"] = "held"
            yield
            del os.environ["STATE"]
        def test_a(): pass
        def test_b(): os.environ["STATE"] = "mine"
        def test_c(): assert os.environ["STATE"] == "held"  # restored
    """
    text = "did not restore the environment variable STATE (now 'mine', was 'held')"
    assert found(pytester, source, passed=3) == {"test_b": [text]}


def test_other_changes_of_a_case_are_reported_beside_those_of_a_fixture(pytester: pytest.Pytester) -> None:
    source = """
        import os, sys, pytest
        @pytest.fixture(scope="module", autouse=True)
        def shared(): os.environ["STATE"] = "held"; yield; del os.environ["STATE"]
        def test_a(): os.environ["OTHER"] = "mine"
        def test_b(): pass
    """
    assert found(pytester, source, passed=2) == {
        "test_a": ["did not restore the environment variable OTHER (now 'mine', was absent)"]
    }


ASKED_FOR = """
    import os, pytest
    @pytest.fixture(scope="session")
    def outer(request):  # torn down first
        os.environ["STATE"] = "outer"; os.environ["OUTER"] = "1"
        request.getfixturevalue("inner")
        os.environ["LATER"] = "1"
        yield
        del os.environ["OUTER"], os.environ["LATER"]
    @pytest.fixture(scope="session")
    def inner():
        os.environ["STATE"] = "inner"
        yield
        del os.environ["STATE"]
    def test_a(outer): assert os.environ["STATE"] == "inner"
    def test_b(outer): assert os.environ["STATE"] == "inner"
"""
STACKED = """
    import os, pytest
    @pytest.fixture(scope="session")
    def below(): os.environ["STATE"] = "below"; yield; del os.environ["STATE"]
    @pytest.fixture(scope="module")
    def above(below): os.environ["STATE"] = "above"; yield; os.environ["STATE"] = "below"
    def test_a(below): assert os.environ["STATE"] == "below"
    def test_b(above): assert os.environ["STATE"] == "above"
"""


@pytest.mark.parametrize("source", [ASKED_FOR, STACKED])
def test_fixtures_may_change_the_same_name(pytester: pytest.Pytester, source: str) -> None:
    assert found(pytester, source, passed=2) == {}


def test_a_parametrised_fixture_changes_state_for_each_parameter(pytester: pytest.Pytester) -> None:
    source = """
        import os, pytest
        @pytest.fixture(scope="module", params=["1", "2"])
        def shared(request):
            os.environ["STATE"] = request.param
            yield
            del os.environ["STATE"]
        def test_a(shared): pass
        def test_b(shared): pass
    """
    assert found(pytester, source, passed=4) == {}


def test_fixtures_may_change_state_of_torch_and_names(pytester: pytest.Pytester) -> None:
    source = """
        import sys, types, pytest, torch
        @pytest.fixture(scope="module")
        def shared():
            patch = pytest.MonkeyPatch()
            patch.setattr(torch.nn.functional, "relu", abs)
            patch.setitem(sys.modules, "colorsys", types.ModuleType("colorsys"))
            import torch._functorch.config as config
            old = config.debug_assert
            config.debug_assert = True
            torch.set_default_dtype(torch.float64)
            yield
            torch.set_default_dtype(torch.float32)
            config.debug_assert = old
            patch.undo()
        def test_a(shared): assert torch.ones(1).dtype is torch.float64
        def test_b(shared): assert torch.ones(1).dtype is torch.float64
    """
    assert found(pytester, source, "-p", "colorsys", passed=2) == {}


def test_a_value_is_restored_although_its_change_was_ignored(pytester: pytest.Pytester) -> None:
    """A new value of a variable without one, and the folder that `tempfile` chooses, are no changes; nor is the end."""
    source = """
        import tempfile, threading, pytest
        @pytest.fixture(scope="module")
        def shared():
            threading.settrace(lambda *a: None)
            tempfile.tempdir = "/tmp"
            yield
            threading.settrace(None)
            tempfile.tempdir = None
        def test_a(shared): pass
        def test_b(): pass
        def test_tempfile(): tempfile.tempdir = None
    """
    assert found(pytester, source, passed=3) == {}


def test_a_case_must_not_end_what_a_fixture_holds(pytester: pytest.Pytester) -> None:
    source = """
        import tempfile, pytest
        @pytest.fixture(scope="module", autouse=True)
        def shared():
            old, tempfile.tempdir = tempfile.tempdir, "/other"
            yield
            tempfile.tempdir = old
        def test_a(): pass
        def test_b(): tempfile.tempdir = None
        def test_c(): pass
    """
    assert found(pytester, source, passed=3) == {
        "test_b": ["did not restore tempfile.tempdir (now None, was '/other')"]
    }


def test_pytest_restores_warnings_filters_of_fixtures(pytester: pytest.Pytester) -> None:
    source = """
        import warnings, pytest
        @pytest.fixture(scope="module", autouse=True)
        def shared(): warnings.simplefilter("ignore"); yield
        def test_a(): pass
        def test_b(): pass
    """
    assert found(pytester, source, passed=2) == {}
