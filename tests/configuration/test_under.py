"""Wrappers around each test's call."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager

import pytest

from harness.configuration import under
from harness.configuration.under import CALL_WRAPPERS, CallWrapper, CallWrapperPlugin, WrapperError

pytest_plugins = ["pytester"]


def test_the_names_are_known_without_torch() -> None:
    code = (
        "import sys; from harness.configuration import options, under; "
        "print('torch' in sys.modules, *under.CALL_WRAPPERS)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "compiled_autograd"]


@pytest.mark.parametrize("name", CALL_WRAPPERS)
def test_each_can_be_made_with_the_torch_that_is_here(name: str) -> None:
    assert CALL_WRAPPERS[name].lacks() == ""


def test_one_that_cannot_be_made_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        under.CALL_WRAPPERS, "odd", CallWrapper(make=_nothing, preload=(), lacks=lambda: "gone", keeps="")
    )
    with pytest.raises(WrapperError, match="--under=odd: gone"):
        CallWrapperPlugin("odd")


@contextmanager
def _nothing() -> Generator[None]:
    yield


def test_it_is_round_the_call_of_a_test_and_not_round_its_fixtures(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is also around unittest's set-up, which is part of the call; and it is exited if the test fails."""
    reported: list[str] = []

    @contextmanager
    def make() -> Generator[None]:
        reported.append("enter")
        try:
            yield
        finally:
            reported.append("leave")

    monkeypatch.setitem(under.CALL_WRAPPERS, "odd", CallWrapper(make=make, preload=(), lacks=str, keeps=""))
    monkeypatch.setattr(pytest, "reported", reported, raising=False)
    pytester.makepyfile(
        """
        import pytest, unittest
        @pytest.fixture
        def thing():
            pytest.reported.append("fixture")
            yield
            pytest.reported.append("end of fixture")
        def test_fails(thing):
            pytest.reported.append("test")
            assert False
        class TestOld(unittest.TestCase):
            def setUp(self): pytest.reported.append("setUp")
            def test_passes(self): pytest.reported.append("test")
        """
    )
    pytester.inline_run("-p", "no:harness", plugins=[CallWrapperPlugin("odd")]).assertoutcome(passed=1, failed=1)
    assert reported == ["fixture", "enter", "test", "leave", "end of fixture", "enter", "setUp", "test", "leave"]


@pytest.mark.filterwarnings("error")
def test_what_torch_warns_of_while_it_captures_is_no_error() -> None:
    """torch reads the gradient of a tensor that has none, and cannot trace a function for retained gradients."""
    import torch

    x = torch.ones(3, requires_grad=True)
    with CALL_WRAPPERS["compiled_autograd"].make():
        y = x * 2
        y.register_hook(lambda grad: grad * y.detach().sum())  # type: ignore[no-untyped-call]
        torch.autograd.backward(y.sin().sum())
        z = x * 2
        z.retain_grad()
        torch.autograd.backward(z.sin().sum())
    assert torch.equal(z.grad if z.grad is not None else x, z.detach().cos())


@pytest.mark.parametrize("reason", ["", "it does"])
def test_one_that_keeps_memory_marks_the_tests(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    monkeypatch.setitem(under.CALL_WRAPPERS, "odd", CallWrapper(make=_nothing, preload=(), lacks=str, keeps=reason))
    pytester.makepyfile("def test_a(): pass")
    around = CallWrapperPlugin("odd")
    seen: list[pytest.Item] = []

    class See:
        def pytest_collection_finish(self, session: pytest.Session) -> None:
            seen.extend(session.items)

    pytester.inline_run("--collect-only", plugins=[around, See()])
    assert [[mark.args for mark in item.iter_markers("keeps")] for item in seen] == [[(reason,)] if reason else []]
