"""The part of a message that is constant over runs, and the part that distinguishes two defects."""

from __future__ import annotations

import pytest

from harness.core.outcome import Outcome
from harness.fleet.record import Fingerprint, fingerprint, innermost_frame, normalised


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("wrong sum: 3.5 instead of -4e-07", "wrong sum: # instead of #"),
        ("at 0x7f00deadbeef in stream 7", "at <address> in stream #"),
        ("GPU-11111111-0000-0000-0000-000000000000 is lost", "<uuid> is lost"),
        ("MIG-41b3359c-e721-56e5-8009-12e5797ed514: gone", "<uuid>: gone"),
        ("cannot open /tmp/pytest-of-root/pytest-3/x0/file.so: no", "cannot open <path>: no"),
        ("in suites/a/test_b.py:12", "in <path>"),
        ("after suites/a/test_b.py::test_x[float32-2] failed", "after <case> failed"),
        ("session 3fa94be7c1 ended", "session <id> ended"),
        ("tensor([1., nan, 3.]) vs tensor([4, 5], device='soft:0')", "tensor(#) vs tensor(#)"),
        ("AssertionError: assert tensor(False, device='soft:0')", "a comparison failed"),
        ("assert not (3 == 4)", "a comparison failed"),
        ("AssertionError: the peak is wrong", "the peak is wrong"),
        ("12 KiB more after 3 repetitions", "# bytes more after # repetitions"),
        ("3 GiB more after 3 repetitions", "# bytes more after # repetitions"),
        ("shape 2 x 3 x 4", "shape #"),
        ("seed=12345, seed=7", "seed=#, seed=#"),
        ("see https://pytorch.org/x?y=1 for more", "see <url> for more"),
        ("gw0-1 leaks", "gw#-# leaks"),
        ("\x1b[31mred\x1b[0m   text\n next", "red text next"),
        ("failed on a defaced face", "failed on a defaced face"),
        ("", ""),
    ],
)
def test_what_differs_between_runs_is_left_out(text: str, expected: str) -> None:
    assert normalised(text) == expected


def of(message: str, stack: str = "", suite: str = "a", outcome: Outcome = Outcome.FAILED) -> Fingerprint:
    return fingerprint(outcome, message, stack, suite)


def test_one_cause_in_many_cases_is_one_group() -> None:
    first = of("RuntimeError: CUDA error: an illegal memory access was encountered at 0x10", suite="streams")
    second = of("RuntimeError: CUDA error: an illegal memory access was encountered at 0x2f", suite="graphs")
    assert first == second
    assert first.title.endswith("RuntimeError: CUDA error: an illegal memory access was encountered at <address>")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (of("RuntimeError: a"), of("RuntimeError: b")),
        (of("assert 1 == 2", suite="streams"), of("assert 3 == 4", suite="graphs")),
        (of("x", outcome=Outcome.FAILED), of("x", outcome=Outcome.CRASHED)),
    ],
)
def test_different_causes_are_apart(first: Fingerprint, second: Fingerprint) -> None:
    assert first.key != second.key


def test_a_flaky_case_is_in_the_group_of_its_failure() -> None:
    assert of("x", outcome=Outcome.FLAKY) == of("x", outcome=Outcome.FAILED)


STACK = """
suites/a/test_a.py:12: in test_x
    torch.add(1)
  File "/env/lib/python3.11/site-packages/torch/cuda/streams.py", line 99 in synchronize
  File "/repo/suites/a/test_a.py", line 13 in test_x
  File "/env/lib/python3.11/site-packages/_pytest/python.py", line 166 in pytest_pyfunc_call
"""


def test_the_frame_is_outside_the_tests_and_without_a_line() -> None:
    assert innermost_frame(STACK) == "cuda/streams.py synchronize"
    assert of("Fatal Python error", STACK).title == "failure: Fatal Python error (in cuda/streams.py synchronize)"


def test_no_frame_of_the_tests_or_the_harness_is_named() -> None:
    assert innermost_frame("suites/a/test_a.py:12: AssertionError\n") == ""
    assert innermost_frame("") == ""


def test_a_long_hostile_message_is_cut_fast() -> None:
    found = of("a/" * 100_000 + "0x" * 100_000)
    assert len(found.title) <= 300
