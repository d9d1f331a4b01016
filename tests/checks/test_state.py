"""Properties of the state guard other than its findings: side effects, unreadable state, messages."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.checks.state.guard import StateGuard
from harness.checks.state.interpreter import WarningFilters
from harness.checks.state.section import (
    ABSENT,
    StateChange,
    Unreadable,
    are_values_equal,
    describe_change,
    format_value,
)
from tests.preloaded import run_script

pytestmark = pytest.mark.acceptance

ROOT = Path(__file__).parents[2]


def run(code: str) -> Any:
    """Run the code in its own process; return its last line, parsed as JSON."""
    return last_line(
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    )


def last_line(done: subprocess.CompletedProcess[str]) -> Any:
    """Return the last line of a script's output, parsed as JSON."""
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_reading_imports_nothing_and_starts_no_thread() -> None:
    code = """if True:
        import json, sys
        from harness.checks.state.guard import StateGuard
        guard = StateGuard()
        guard.capture()
        before = set(sys.modules)
        guard.compare()
        alone = sorted(set(sys.modules) - before) + [name for name in ("torch", "numpy") if name in sys.modules]
        import torch, os
        before, tasks = set(sys.modules), len(os.listdir("/proc/self/task"))
        guard.compare(); guard.capture()
        print(json.dumps([alone, sorted(set(sys.modules) - before), len(os.listdir("/proc/self/task")) - tasks,
                          torch.cuda.is_initialized()]))
    """
    assert run(code) == [[], [], 0, False]


def test_torch_first_imported_by_the_case_is_compared_with_its_own_defaults() -> None:
    code = """if True:
        import json
        from harness.checks.state.guard import StateGuard
        guard = StateGuard()
        guard.capture()
        import torch
        print(json.dumps([problem.text for problem in guard.compare()]))
    """
    assert set(run(code)) <= NEW_IN_2_13
    changed_mode = code.replace("import torch\n", "import torch; torch.set_grad_enabled(False)\n")
    assert run(changed_mode) == ["did not restore grad mode (now False, was True)"]


#: Names that torch has since 2.13; older releases lack them.
NEW_IN_2_13 = (
    {"_C._get_cudnn_depthwise_kernel", "_C._set_cudnn_depthwise_kernel", "_C._is_grad_layout_enforcement_enabled"}
    if tuple(map(int, importlib.metadata.version("torch").split(".")[:2])) < (2, 13)
    else set[str]()
)


def test_every_name_of_torch_that_is_used_is_there() -> None:
    code = """if True:
        import json, torch, torch.nn, torch.optim
        from harness.checks.state import torch_settings as state_torch
        print(json.dumps(sorted(state_torch.missing_torch_names())))
    """
    assert last_line(run_script(code)) == []


def test_without_a_capture_there_is_nothing_to_compare_with() -> None:
    with pytest.raises(RuntimeError, match="call capture"):
        StateGuard().compare()


def test_what_cannot_be_restored_is_reported() -> None:
    code = """if True:
        import json, os, torch
        from harness.checks.state.guard import StateGuard
        guard = StateGuard()
        guard.capture()
        mode = torch.inference_mode(); mode.__enter__()
        os.environ["STATE"] = "new"
        found = len(guard.compare())
        print(json.dumps([found > 1, guard.restore(), "STATE" in os.environ, len(guard.compare())]))
    """
    found, left, there, again = last_line(run_script(code))
    assert (found, there, again) == (True, False, 0)
    assert "could not restore inference mode" in left


def test_a_state_that_cannot_be_read_is_a_finding_and_no_error() -> None:
    code = """if True:
        import json, os
        from harness.checks.state.guard import StateGuard
        guard = StateGuard()
        guard.capture()
        umask, os.umask = os.umask, None
        texts = [problem.text for problem in guard.compare()]
        os.umask = umask
        print(json.dumps(texts))
    """
    (first, *_) = run(code)
    assert first.startswith(("did not restore the umask (now unreadable (TypeError", "changed the process so that its"))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (StateChange("x", 1, 2), "did not restore x (now 2, was 1)"),
        (StateChange("x", ABSENT, 2), "did not restore x (now 2, was absent)"),
        (StateChange("x", 1, ABSENT), "did not restore x (now absent, was 1)"),
        (
            StateChange("x", ("a", "b"), ("b", "c")),
            "did not restore x (added 'c'; removed 'a'; now 2 entries, was 2: 'a', 'b')",
        ),
        (StateChange("x", ("a", "b"), ("b", "a")), "did not restore x (now in another order: 'b', 'a', was 'a', 'b')"),
        (StateChange("x", ("a",), ("a", "a")), "did not restore x (added 'a'; now 2 entries, was 1: 'a')"),
        (
            StateChange("x", (), tuple("abcdefg")),
            "did not restore x (added 'a', 'b', 'c', 'd', 'e', and 2 more; now 7 entries, was 0)",
        ),
        (StateChange("x", (True, True), (False, True)), "did not restore x (now (False, True), was (True, True))"),
        (StateChange("x", 1, Unreadable("why")), "did not restore x (now unreadable (why), was 1)"),
        (
            StateChange("x", object(), object()),
            "did not restore x (now another object with the same description: a builtins.object)",
        ),
    ],
)
def test_a_change_in_words(change: StateChange, text: str) -> None:
    assert describe_change(change) == text


class Hostile:
    def __repr__(self) -> str:
        raise RuntimeError("no")

    def __eq__(self, other: object) -> bool:
        raise ValueError("ambiguous")

    __hash__ = None  # type: ignore[assignment]


def test_code_of_values_of_a_case_is_not_called() -> None:
    assert format_value(Hostile()) == f"a {__name__}.Hostile"
    assert format_value([Hostile(), {"a": Hostile()}]) == f"[a {__name__}.Hostile, {{'a': a {__name__}.Hostile}}]"
    assert not are_values_equal(Hostile(), Hostile())
    assert len(format_value("x" * 1000)) <= 200
    assert format_value("a\nb\x00") == r"'a\nb\x00'"


NARROW, WIDE = ("ignore", None, UserWarning, None, 0), ("ignore", None, Warning, None, 0)


@pytest.mark.parametrize(
    ("added", "imported", "ignored"),
    [
        ((NARROW,), {"library"}, True),
        ((NARROW,), set(), False),
        ((WIDE,), {"library"}, False),
        ((NARROW, WIDE), {"library"}, False),
    ],
)
def test_only_narrow_filters_of_warnings_come_with_imports(
    added: tuple[object, ...], imported: set[str], ignored: bool
) -> None:
    kept = (("default", None, DeprecationWarning, "__main__", 0),)
    name, section = "the warnings filters", WarningFilters()

    def changes(now: tuple[object, ...]) -> list[StateChange]:
        return section.changes({name: kept}, {name: now}, frozenset(imported))

    assert (changes((*added, *kept)) == []) is ignored
    assert changes(added)


def test_a_weak_proxy_in_sys_modules_goes_with_its_module() -> None:
    """jinja2's loader of compiled templates creates such proxies: freeing the module is not a change."""
    code = """if True:
        import json, sys, types, weakref
        from harness.checks.state.guard import StateGuard
        module = types.ModuleType("made_up")
        sys.modules["made_up"] = weakref.proxy(module, lambda _: sys.modules.pop("made_up"))
        guard = StateGuard()
        guard.capture()
        del module
        problems = [problem.text for problem in guard.compare()]
        guard.restore()
        print(json.dumps([problems, "made_up" in sys.modules]))
        """
    assert run(code) == [[], False]
