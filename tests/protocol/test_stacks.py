"""Folding of stacks: the test's own frames stay, the frames of pytest and the harness are dropped."""

from __future__ import annotations

from harness.supervisor.case_reports import fold_stacks

_USER = '  File "/home/me/suites/a/test_a.py", line 6 in test_segv'
_HELPER = '  File "/home/me/suites/a/helper.py", line 2 in deep'
_PYTEST = '  File "/venv/site-packages/_pytest/python.py", line 187 in pytest_pyfunc_call'
_PLUGGY = '  File "/venv/site-packages/pluggy/_callers.py", line 1 in _multicall'
_OURS = '  File "/src/harness/executor/executor.py", line 146 in _run'
_RUNPY = '  File "<frozen runpy>", line 198 in _run_module_as_main'
_THREAD = "Thread 0x1 (most recent call first):"


def test_the_machinery_below_the_test_is_folded() -> None:
    text = "\n".join([_THREAD, _HELPER, _USER, _PYTEST, _PLUGGY, _OURS, _RUNPY])
    assert fold_stacks(text) == "\n".join([_THREAD, _HELPER, _USER, "  [… 4 frames of pytest and the harness …]", ""])


def test_machinery_between_frames_of_the_test_stays() -> None:
    text = "\n".join([_THREAD, _HELPER, _PYTEST, _USER, _PYTEST, _OURS])
    assert fold_stacks(text).splitlines()[1:4] == [_HELPER, _PYTEST, _USER]


def test_a_stack_of_machinery_alone_is_left_whole() -> None:
    text = "\n".join([_THREAD, _PYTEST, _PLUGGY, _OURS])
    assert fold_stacks(text).splitlines() == [_THREAD, _PYTEST, _PLUGGY, _OURS]


def test_each_thread_is_folded_and_the_list_of_modules_dropped() -> None:
    block = [_THREAD, _USER, _PYTEST, _OURS]
    text = "\n".join(
        ["Fatal Python error: Aborted", "", *block, "", *block, "", "Extension modules: numpy.a (total: 1)"]
    )
    folded = fold_stacks(text)
    assert folded.count("2 frames of pytest") == 2
    assert "Extension modules" not in folded
    assert folded.startswith("Fatal Python error: Aborted")


def test_no_stack_is_no_text() -> None:
    assert fold_stacks("") == ""
