"""The judge of the quick tests: what came back from the processes gives checks and problems."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.core.disposable import DisposableRun
from harness.core.figures import parse_floor
from harness.devices.device import CPU
from harness.ready import quick_tests
from harness.ready.active import judge_lines, judge_speeds, measured_figures, run_active
from harness.ready.model import CheckRun, Problem, Verdict
from harness.ready.quick_tests import Line, Plan
from harness.ready.rules import Findings
from tests.ready.test_judge_node import judged as found_by

A, B, C = "GPU-a", "GPU-b", "GPU-c"
LABELS = {A: "GPU 0", B: "GPU 1", C: "GPU 2"}
FINE = DisposableRun(0, True, 9.0)
SOLO = Plan(("context", "copies"), {})
GROUP = Plan(("context", "collectives"), {})


def imported() -> Line:
    return Line(what="imported", seconds=2.0)


def done(gpu: str, name: str, state: str = "ok", text: str = "", phase: quick_tests.Phase = "solo") -> list[Line]:
    return [
        Line(what="test", gpu=gpu, name=name, phase=phase),
        Line(what="done", gpu=gpu, name=name, state=state, text=text, seconds=0.5, phase=phase),
    ]


def begun(gpu: str, name: str, place: str = "", phase: quick_tests.Phase = "solo") -> list[Line]:
    places = [Line(what="place", gpu=gpu, name=name, text=place, phase=phase)] if place else []
    return [Line(what="test", gpu=gpu, name=name, phase=phase), *places]


def end(
    gpu: str,
    status: int | None = 0,
    state: str = "",
    name: str = "process exit",
    phase: quick_tests.Phase = "solo",
    **rest: float,
) -> list[Line]:
    complete = [Line(what="complete", gpu=gpu, phase=phase)] if status == 0 and not state else []
    seconds = rest.get("seconds", 15.0)
    starved = rest.get("starved", 0.0)
    last = Line(
        what="end",
        gpu=gpu,
        status=status,
        state=state,
        name=name,
        seconds=seconds,
        starved=starved,
        text="the end",
        phase=phase,
    )
    return [*complete, last]


def judged(
    lines: Sequence[Line], chosen: Plan = SOLO, gpus: Sequence[str] = (A,), run: DisposableRun = FINE
) -> tuple[list[CheckRun], list[Problem]]:
    found = Findings()
    judge_lines([imported(), *lines], run, chosen, {gpu: LABELS[gpu] for gpu in gpus}, found, 60.0)
    return found.checks, found.problems


def states(checks: Sequence[CheckRun]) -> dict[str, str]:
    return {check.name: check.state for check in checks}


OK = done(A, "context")


@pytest.mark.parametrize(
    ("lines", "state", "text", "problems"),
    [
        pytest.param([*OK, *done(A, "copies"), *end(A)], "ok", "", [], id="ok"),
        pytest.param(
            [*OK, *done(A, "copies", "wrong", "bytes"), *end(A)],
            "problem",
            "bytes",
            [("wrong_result", "copies", A, "bytes")],
            id="a wrong result",
        ),
        pytest.param(
            [*OK, *done(A, "copies", "error", "RuntimeError: x"), *end(A)],
            "problem",
            "RuntimeError: x",
            [("device_error", "copies", A, "RuntimeError: x")],
            id="an error of the device",
        ),
        pytest.param(
            [*OK, *done(A, "copies", "slow", "2 ms"), *end(A)],
            "problem",
            "2 ms",
            [("far_too_slow", "copies", A, "2 ms")],
            id="far too slow",
        ),
        pytest.param([*OK, *done(A, "copies", "lacks", "no type"), *end(A)], "skipped", "no type", [], id="lacks"),
        pytest.param(
            [*OK, *done(A, "copies", "cannot", "busy"), *end(A)],
            "unknown",
            "busy",
            [("cannot_run", "copies", A, "busy")],
            id="what could not run is not green",
        ),
        pytest.param(
            [*OK, *begun(A, "copies"), *end(A, -9, "hang")],
            "problem",
            "no end within 15 s",
            [("hang", "copies", A, "no end within 15 s")],
            id="a hang",
        ),
        pytest.param(
            [*OK, *begun(A, "copies"), *end(A, -9, "hang", starved=12.0)],
            "unknown",
            "no end within 15 s, but for 12 s no processor was free",
            [("cannot_run", "copies", A, "no end within 15 s, but for 12 s no processor was free")],
            id="a host without a free processor",
        ),
        pytest.param(
            [*OK, *begun(A, "copies"), *end(A, None, "hang", name="copies")],
            "problem",
            "hangs, and cannot be killed",
            [
                (
                    "unkillable",
                    "copies",
                    A,
                    "the process hangs in copies, and SIGKILL does not end it: it waits in the kernel",
                )
            ],
            id="a process that cannot be killed",
        ),
        pytest.param(
            [*OK, *begun(A, "copies"), *end(A, -11, name="copies")],
            "problem",
            "the process ended with SIGSEGV; last output: the end",
            [("crash", "copies", A, "the process ended with SIGSEGV; last output: the end")],
            id="a crash",
        ),
        pytest.param(
            [*OK, *begun(A, "copies"), *end(A, -9, "budget")],
            "skipped",
            "the budget of 60 s ended while it ran",
            [],
            id="the end of the budget",
        ),
        pytest.param(
            [*OK, Line(what="left", gpu=A, names=("copies",)), *end(A)],
            "skipped",
            "not reached within the budget of 60 s",
            [],
            id="not reached",
        ),
        pytest.param(
            [*OK, *done(A, "copies"), *end(A, -11)],
            "ok",
            "",
            [("crash", "process_exit", A, "process exit: SIGSEGV; last output: the end")],
            id="a crash at the end of the process",
        ),
        pytest.param(
            [*OK, *done(A, "copies"), *end(A, -9, "hang")],
            "ok",
            "",
            [("hang", "process_exit", A, "process exit: did not end within 15 s")],
            id="a hang at the end of the process",
        ),
        pytest.param(
            OK,
            "unknown",
            "nothing is known of it: the process with the tests has ended",
            [("cannot_run", "active", A, "nothing is known of it")],
            id="no end is known",
        ),
        pytest.param(
            [*OK, *begun(A, "copies")],
            "unknown",
            "nothing is known of its end",
            [("cannot_run", "copies", A, "nothing is known of its end")],
            id="no end of a test is known",
        ),
    ],
)
def test_a_test_of_one_gpu(
    lines: list[Line], state: str, text: str, problems: list[tuple[str, str, str | None, str]]
) -> None:
    checks, found = judged(lines)

    assert (states(checks)["copies"], next(c.text for c in checks if c.name == "copies")) == (state, text)
    assert [(each.kind, each.check, each.gpu, each.found) for each in found] == problems


def test_tests_after_a_failure_say_why_they_did_not_run() -> None:
    lines = [*done(A, "context", "error", "x"), Line(what="left", gpu=A, names=("copies",), state="error"), *end(A)]
    checks, problems = judged(lines)

    assert checks[-1].text == "not tried after the failure of an error of the device"
    assert [problem.kind for problem in problems] == ["device_error"]


@pytest.mark.parametrize("lines", [[], begun(A, "context")], ids=["before the first test", "within the first test"])
def test_a_gpu_whose_first_test_the_budget_cut_off_is_unknown(lines: list[Line]) -> None:
    """Killing its process at the end of the budget is no crash, and a first test without an end proves nothing."""
    checks, problems = judged([*lines, *end(A, -9, "budget", name="process start")])

    assert {*states(checks).values()} == {"ok", "skipped"}  # the import of torch is ok
    assert [(each.kind, each.gpu, each.verdict) for each in problems] == [("cannot_run", A, Verdict.UNKNOWN)]


def test_an_exit_that_the_budget_cut_off_is_no_crash() -> None:
    checks, problems = judged([*OK, *done(A, "copies"), *end(A, -9, "budget")])

    assert (problems, states(checks)["copies"]) == ([], "ok")


def test_a_budget_in_which_nothing_ran_is_not_green() -> None:
    checks, problems = judged([Line(what="left", gpu=A, names=("context", "copies")), *end(A)])

    assert {check.state for check in checks if check.gpu == A} == {"skipped"}
    assert [(each.kind, each.gpu, each.verdict, each.found) for each in problems] == [
        ("cannot_run", A, Verdict.UNKNOWN, "none was reached within 60 s; give more with --budget")
    ]


def test_a_budget_for_no_test_starts_none_and_is_not_green() -> None:
    checks, problems = found_by(run_active, [CPU], 5.0)

    assert {check.state for check in checks} == {"skipped"}
    assert [(each.kind, each.verdict) for each in problems] == [("cannot_run", Verdict.UNKNOWN)]


def test_what_the_plan_leaves_out_is_said() -> None:
    checks, _ = judged([*OK, *end(A)], Plan(("context",), {"fourier": "it takes 9 s"}))

    assert (checks[0].name, checks[0].state, checks[0].text) == ("fourier", "skipped", "it takes 9 s")


@pytest.mark.parametrize(
    ("lines", "run", "kind", "text"),
    [
        (
            [Line(what="failed", text="the import of torch raises x")],
            FINE,
            "cannot_run",
            "the import of torch raises x",
        ),
        ([], DisposableRun(-9, False, 60.0), "cannot_run", "no end of the import within 60 s"),
        ([], DisposableRun(None, False, 60.0), "unkillable", "the process that imports it cannot be killed"),
        (
            [],
            DisposableRun(1, True, 1.0, errors=b"No module named torch\n"),
            "cannot_run",
            "the process that imports it ended with exit status 1: No module named torch",
        ),
    ],
    ids=["raises", "hangs", "cannot be killed", "ends"],
)
def test_without_torch_nothing_is_green(lines: list[Line], run: DisposableRun, kind: str, text: str) -> None:
    found = Findings()
    judge_lines(lines, run, SOLO, {A: "GPU 0"}, found, 60.0)

    assert [(problem.kind, problem.found) for problem in found.problems] == [(kind, text)]
    assert {check.state for check in found.checks} == {"unknown"}


ALL_OK = [line for gpu in (A, B, C) for line in [*done(gpu, "context"), *end(gpu)]]


def ranks(*of_ranks: list[Line]) -> tuple[list[CheckRun], list[Problem]]:
    return judged([*ALL_OK, *(line for lines in of_ranks for line in lines)], GROUP, (A, B, C))


def rank(gpu: str, state: str = "ok", text: str = "") -> list[Line]:
    return [*done(gpu, "collectives", state, text, "group"), *end(gpu, phase="group")]


def hangs(gpu: str, *places: str, state: str = "hang") -> list[Line]:
    lines = [Line(what="test", gpu=gpu, name="collectives", phase="group")]
    lines += [Line(what="place", gpu=gpu, name="collectives", text=place, phase="group") for place in places]
    return [*lines, *end(gpu, -9, state, "collectives", "group")]


@pytest.mark.parametrize(
    ("lines", "state", "problems"),
    [
        pytest.param([rank(A), rank(B), rank(C)], "ok", [], id="all right"),
        pytest.param(
            [rank(A), rank(B, "wrong", "sum"), rank(C)],
            "problem",
            [("wrong_collective", B, "sum", "seen by GPU 1, of 3 GPUs")],
            id="one GPU sees a wrong value",
        ),
        pytest.param(
            [rank(A, "wrong", "sum"), rank(B, "wrong", "sum"), rank(C)],
            "problem",
            [("wrong_collective", None, "sum", "seen by GPU 0, GPU 1, of 3 GPUs")],
            id="several GPUs see wrong values",
        ),
        pytest.param(
            [hangs(A, "x", state="others"), rank(B, "error", "RuntimeError"), hangs(C, "x", state="others")],
            "problem",
            [("device_error", B, "RuntimeError", "seen by GPU 1, of 3 GPUs")],
            id="those that wait for the failed one are no cause",
        ),
        pytest.param(
            [hangs(A, "x", "y"), hangs(B, "x"), hangs(C, "x", "y")],
            "problem",
            [("hang", B, "no end within 15 s at x", "seen by GPU 1, of 3 GPUs")],
            id="the GPU that is behind is the cause of a hang",
        ),
        pytest.param(
            [hangs(A, "x"), hangs(B, "x"), hangs(C, "x")],
            "problem",
            [("group_hang", None, "no end within 15 s at x", "seen by GPU 0, GPU 1, GPU 2, of 3 GPUs")],
            id="a hang of all",
        ),
        pytest.param(
            [rank(A, "slow", "1 s"), rank(B, "slow", "1 s"), rank(C, "slow", "1 s")],
            "problem",
            [("wrong_collective", None, "1 s", "seen by GPU 0, GPU 1, GPU 2, of 3 GPUs")],
            id="slow",
        ),
        pytest.param([rank(A, "lacks", "no nccl")] * 3, "skipped", [], id="lacks"),
        pytest.param([], "skipped", [], id="not reached"),
    ],
)
def test_a_test_of_all_gpus(
    lines: list[list[Line]], state: str, problems: list[tuple[str, str | None, str, str]]
) -> None:
    checks, found = ranks(*lines)

    assert states(checks)["collectives"] == state
    assert [(each.kind, each.gpu, each.found, each.detail) for each in found] == problems


def test_a_sick_gpu_is_not_in_the_group() -> None:
    lines = [*done(A, "context", "wrong", "x"), *end(A), *done(B, "context"), *end(B)]
    checks, _ = judged(lines, GROUP, (A, B))

    assert checks[-1].text == "it needs two GPUs without a problem, and there is 1"


def test_a_process_with_the_tests_that_dies_is_said() -> None:
    _, problems = judged([*OK, *done(A, "copies"), *end(A)], run=DisposableRun(-9, True, 9.0))

    assert [(each.kind, each.gpu) for each in problems] == [("cannot_run", None)]


_names = st.sampled_from(["context", "copies", "collectives", "process exit", "x"])
_lines = st.builds(
    Line,
    what=st.sampled_from(["imported", "test", "place", "done", "left", "complete", "end", "failed"]),
    phase=st.sampled_from(["solo", "group"]),
    gpu=st.sampled_from(["", A, B, C]),
    name=_names,
    names=st.lists(_names, max_size=2).map(tuple),
    state=st.sampled_from(["", "ok", "wrong", "error", "slow", "lacks", "cannot", "hang", "budget", "others", "x"]),
    status=st.sampled_from([None, 0, 1, -9]),
)


@given(st.lists(_lines, max_size=30))
def test_any_lines_give_each_test_a_state_and_nothing_bad_is_ready(lines: list[Line]) -> None:
    lines = [line for line in lines if line.what != "done" or line.name in quick_tests.ENTRIES]
    found = Findings()
    judge_lines(lines, FINE, GROUP, {A: "GPU 0", B: "GPU 1"}, found, 60.0)

    assert {"context", "collectives"} <= {check.name for check in found.checks}
    if any(check.state in ("problem", "unknown") for check in found.checks):
        assert found.problems or {check.state for check in found.checks} <= {"ok", "skipped", "unknown"}
    assert all(problem.verdict is not Verdict.READY for problem in found.problems)


@given(st.binary(max_size=500))
def test_any_bytes_are_read_as_lines_or_left_out(data: bytes) -> None:
    assert all(isinstance(line, Line) for line in quick_tests.decode(data))


def test_lines_are_read_as_written() -> None:
    lines = [imported(), *done(A, "copies", "wrong", "ü\n"), *end(A, None)]

    assert [*quick_tests.decode(b"noise\n" + b"".join(map(quick_tests.encode, lines)) + b'{"what":"te')] == lines


def test_speeds_become_checks_and_problems() -> None:
    line = Line(what="done", gpu=A, name="copies", state="ok", figures={"d2d_bandwidth": 1e12, "memory_bytes": 5.0})
    found = Findings()
    floors = {"d2d_bandwidth": parse_floor("d2d_bandwidth", ">=2.4TB/s")}
    judge_speeds(measured_figures([line]), floors, {A: "H100"}, found)

    (check,), (problem,) = found.checks, found.problems
    assert (check.name, check.state, check.value, check.floor, check.unit) == (
        "d2d_bandwidth",
        "problem",
        1e12,
        2.4e12,
        "B/s",
    )
    assert (problem.kind, problem.verdict, problem.found) == ("slow", Verdict.DEGRADED, "d2d_bandwidth is 1 TB/s")
