"""Waivers proposed from a run: entries, remarks, and texts that YAML preserves."""

from __future__ import annotations

import json
import time
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.core.errors import HarnessError
from harness.core.outcome import Outcome
from harness.gating.patterns import matches_pattern
from harness.gating.waiverfile import load_waivers
from harness.gating.waivers import Waiver
from harness.journal import environment, journal, reader
from harness.journal.environment import EnvironmentFileError
from harness.tools.proposals import Proposals, RunMachine, proposals_yaml, propose_waivers, read_machine
from tests.journal import journals
from tests.reporting import build

TODAY = date(2026, 11, 21)
FILE = "suites/streams/test_a.py"
A, B = f"{FILE}::test_a", f"{FILE}::TestB::test_b"
X, Y, Z = (f"{FILE}::test_p[{name}]" for name in "xyz")
GPUS = {
    "driver": "570.133.20",
    "devices": [
        {"uuid": "GPU-1", "kind": "cuda", "compute_capability": [9, 0]},
        {"uuid": "GPU-2", "kind": "cuda", "compute_capability": [10, 0]},
        {"uuid": "GPU-3", "kind": "cuda", "compute_capability": None},
    ],
    "more": "than anybody asked for",
}


def found(*lines: build.Line, machine: dict[str, Any] | None = None) -> Proposals:
    contents = build.contents(build.run(), *lines)
    facts = None if machine is None else RunMachine.model_validate_json(json.dumps(machine))
    return propose_waivers(contents, facts, TODAY)


def cases(proposals: Proposals) -> list[str]:
    return [entry.case for entry in proposals.entries]


def red(case: str, outcome: Outcome = Outcome.FAILED, **changes: Any) -> build.Line:
    return build.finish(case, outcome, **{"message": "assert 1 == 2", **changes})


def ruled(case: str, outcome: Outcome, by: Outcome, text: str, source: str) -> build.Line:
    return build.finish(case, outcome, ruling={"outcome": by.value, "text": text, "source": source})


def loaded(proposals: Proposals, folder: Path) -> tuple[Waiver, ...]:
    """Return the waivers that a person gets after filling in the gaps."""
    path = folder / "proposed.yaml"
    path.write_text(proposals_yaml(proposals, "a run").replace("owner: ''", "owner: somebody"), encoding="utf-8")
    return load_waivers([path], folder)


def test_a_red_case_becomes_an_entry() -> None:
    proposals = found(build.collected(A, B), red(A), build.finish(B))
    assert proposals.remarks == ()
    (entry,) = proposals.entries
    assert (entry.case, entry.expect, entry.reason, entry.cases) == (A, (Outcome.FAILED,), "assert 1 == 2", (A,))
    assert entry.when == {"not": {"device": "cuda"}}
    assert entry.expires == date(2026, 12, 21)


def test_a_case_without_a_message_has_its_outcome_for_a_reason() -> None:
    (entry,) = found(build.collected(A), red(A, Outcome.TIMEOUT, message="")).entries
    assert (entry.expect, entry.reason) == ((Outcome.TIMEOUT,), "timeout")


def test_the_file_is_one_that_people_finish(tmp_path: Path) -> None:
    proposals = found(build.collected(X, Y, A), red(X), red(Y), red(A, Outcome.CRASHED, message="SIGSEGV in call"))
    text = proposals_yaml(proposals, "proposed by: harness waivers update results/r1")
    assert text == (
        "# proposed by: harness waivers update results/r1\n"
        "# Each entry accepts a known failure under the conditions in 'when'. Check each entry: is the failure\n"
        "# acceptable? Remove conditions that do not matter. Fill in link (the issue) and owner.\n"
        "waivers:\n"
        "  # 2 cases\n"
        '  - case: "suites/streams/test_a.py::test_p[*]"\n'
        "    when: {not: {device: cuda}}\n"
        "    expect: failed\n"
        '    reason: "assert 1 == 2"\n'
        "    link: ''  # the issue that must be solved\n"
        "    owner: ''  # the person or team responsible\n"
        "    expires: 2026-12-21\n"
        '  - case: "suites/streams/test_a.py::test_a"\n'
        "    when: {not: {device: cuda}}\n"
        "    expect: crashed\n"
        '    reason: "SIGSEGV in call"\n'
        "    link: ''  # the issue that must be solved\n"
        "    owner: ''  # the person or team responsible\n"
        "    expires: 2026-12-21\n"
    )
    waivers = loaded(proposals, tmp_path)
    assert [(each.case, each.expect, each.link, each.expires) for each in waivers] == [
        (f"{FILE}::test_p[*]", (Outcome.FAILED,), "", date(2026, 12, 21)),
        (A, (Outcome.CRASHED,), "", date(2026, 12, 21)),
    ]


def test_a_run_without_red_cases_has_nothing_to_propose(tmp_path: Path) -> None:
    proposals = found(build.collected(A), build.finish(A))
    assert (proposals.entries, proposals.remarks) == ((), ())
    assert proposals_yaml(proposals, "a run").endswith("waivers: []\n")
    assert loaded(proposals, tmp_path) == ()


def test_siblings_with_one_outcome_and_message_become_one_pattern() -> None:
    proposals = found(build.collected(X, Y, Z, A), red(X), red(Y), red(Z), red(A))
    assert cases(proposals) == [f"{FILE}::test_p[*]", A]
    assert proposals.entries[0].cases == (X, Y, Z)


@pytest.mark.parametrize(
    "third",
    [
        pytest.param(build.finish(Z), id="passed"),
        pytest.param(build.finish(Z, Outcome.GATED), id="was gated"),
        pytest.param(red(Z, Outcome.CRASHED), id="had another outcome"),
        pytest.param(red(Z, message="assert 3 == 4"), id="had another message"),
        pytest.param(build.start(Z), id="was lost"),
    ],
)
def test_a_sibling_that_fared_otherwise_keeps_them_apart(third: build.Line) -> None:
    assert cases(found(build.collected(X, Y, Z), red(X), red(Y), third))[:2] == [X, Y]


def test_a_sibling_that_was_left_out_keeps_them_apart() -> None:
    assert cases(found(build.collected(X, Y, deselected=[Z]), red(X), red(Y))) == [X, Y]


def test_a_function_whose_name_begins_alike_is_no_sibling() -> None:
    other = f"{FILE}::test_p2[x]"
    assert cases(found(build.collected(X, Y, other), red(X), red(Y), build.finish(other))) == [f"{FILE}::test_p[*]"]


def test_wildcards_in_ids_stand_for_themselves_alone_or_are_not_proposed() -> None:
    star, letter = f"{FILE}::test_p[a*b]", f"{FILE}::test_p[aXb]"
    alone = found(build.collected(star, X), red(star), build.finish(X))
    assert cases(alone) == [f"{FILE}::test_p[a?b]"]
    both = found(build.collected(star, letter), red(star), build.finish(letter))
    assert (cases(both), both.remarks) == (
        [],
        (f"not proposed, because its pattern also matches other cases: {star}",),
    )
    odd, other = "suites/a?/test.py::test_a", "suites/ab/test.py::test_a"
    assert cases(found(build.collected(odd, other), red(odd), build.finish(other))) == []


def test_spaces_around_an_id_are_no_pattern_of_a_file(tmp_path: Path) -> None:
    odd = " suites/a.py::test_a "
    (waiver,) = loaded(found(build.collected(odd, A), red(odd), build.finish(A)), tmp_path)
    assert waiver.case == "?suites/a.py::test_a?"


def test_many_red_cases_are_not_compared_with_each_other() -> None:
    ids = [f"{FILE}::test_p[{number}]" for number in range(5000)]
    lines = [red(case, message=f"assert {number}") for number, case in enumerate(ids)]
    contents = build.contents(build.collected(*ids), *lines)
    begin = time.process_time()
    assert cases(propose_waivers(contents, None, TODAY)) == ids
    assert time.process_time() - begin < 4  # comparing all of them takes more than 10 s


@pytest.mark.parametrize(
    ("devices", "machine", "when"),
    [
        (["GPU-1"], GPUS, {"device": "cuda", "compute_capability": "==9.0", "driver": ">=570.133.20,<571"}),
        (
            ["GPU-1", "GPU-2"],
            GPUS,
            {"device": "cuda", "compute_capability": ">=9.0,<=10.0", "driver": ">=570.133.20,<571"},
        ),
        (["GPU-1", "GPU-3"], GPUS, {"device": "cuda", "driver": ">=570.133.20,<571"}),
        (["GPU-9"], GPUS, {"device": "cuda", "driver": ">=570.133.20,<571"}),
        (["GPU-1"], {**GPUS, "driver": None}, {"device": "cuda", "compute_capability": "==9.0"}),
        (["MIG-1"], {"driver": "unknown"}, {"device": "cuda"}),
        (["GPU-1"], None, {"device": "cuda"}),
        (["cpu"], GPUS, {"not": {"device": "cuda"}}),
        (["SOFT-1"], GPUS, {"device": "soft"}),
        (["SOFT-1", "GPU-1"], None, {}),
        ([], GPUS, {}),
        (["cpu", "GPU-1"], GPUS, {}),
    ],
)
def test_the_conditions_are_those_of_what_the_case_ran_on(
    devices: list[str], machine: dict[str, Any] | None, when: dict[str, Any], tmp_path: Path
) -> None:
    proposals = found(build.collected(A), red(A, devices=devices), machine=machine)
    assert proposals.entries[0].when == when
    assert loaded(proposals, tmp_path)[0].when == when


def test_siblings_that_ran_on_several_devices_have_the_conditions_of_all() -> None:
    proposals = found(
        build.collected(X, Y), red(X, devices=["GPU-1"]), red(Y, devices=["GPU-2"]), machine={**GPUS, "driver": None}
    )
    assert [entry.when for entry in proposals.entries] == [
        {"device": "cuda", "compute_capability": ">=9.0,<=10.0"},
    ]


def test_a_flaky_case_is_expected_to_pass_as_well_where_it_is_red() -> None:
    lines = [build.collected(A), *build.broke_and(A, Outcome.CRASHED, Outcome.PASSED)]
    assert found(*lines).entries == ()
    (entry,) = found(build.run(fail_on_flaky=True), *lines).entries
    assert entry.expect == (Outcome.FLAKY, Outcome.PASSED)


def test_what_repetitions_came_to_is_expected_together() -> None:
    text = "failed in 1 of 2 repetitions: assert 1"
    ruling = {"outcome": "failed", "text": text, "source": "repeat 2"}
    (entry,) = found(build.collected(A), build.finish(A), red(A, attempt=2, ruling=ruling)).entries
    assert (entry.expect, entry.reason) == ((Outcome.FAILED, Outcome.PASSED), text)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (build.start(A), f"not for a waiver: {A}: lost: started on"),
        (build.finish(B), f"not for a waiver: {A}: not_run: the run ended"),
        (build.finish(A, Outcome.UNEXPECTED_PASS, message="XPASS"), f"not for a waiver: {A}: unexpected_pass: XPASS"),
        (
            ruled(A, Outcome.GATED, Outcome.FAILED, "gated, but hardware h200 promises it", "hardware h200"),
            f"not for a waiver: {A}: failed: gated, but hardware h200 promises it",
        ),
        (
            ruled(A, Outcome.PASSED, Outcome.FAILED, "not verified", "--verify"),
            f"not for a waiver: {A}: failed: not verified",
        ),
    ],
)
def test_what_no_waiver_can_expect_is_a_remark(line: build.Line, words: str) -> None:
    proposals = found(build.collected(A, B), build.finish(B), line)
    assert proposals.entries == ()
    (remark,) = proposals.remarks
    assert remark.startswith(words)


def test_a_mark_that_was_wrong_in_one_of_two_repetitions_is_a_remark() -> None:
    twice = [build.finish(A, Outcome.UNEXPECTED_PASS, message="XPASS"), build.finish(A, attempt=2)]
    assert found(build.collected(A), *twice).entries == ()


def test_what_a_waiver_said_of_another_attempt_does_not_count() -> None:
    first = ruled(A, Outcome.FAILED, Outcome.WAIVED, "waived", "known.yaml:2")
    (entry,) = found(build.collected(A), first, red(A, Outcome.CRASHED, message="SIGSEGV", worker="gw1")).entries
    assert (entry.expect, entry.reason) == ((Outcome.FAILED, Outcome.CRASHED), "SIGSEGV")


def test_many_such_cases_are_counted() -> None:
    proposals = found(build.collected(*(f"{FILE}::t{number}" for number in range(25))))
    assert len(proposals.remarks) == 21
    assert proposals.remarks[-1] == "not for a waiver: 5 more cases"


@pytest.mark.parametrize(
    ("raw", "by"),
    [(Outcome.PASSED, Outcome.UNEXPECTED_PASS), (Outcome.CRASHED, Outcome.CRASHED), (Outcome.FAILED, Outcome.FAILED)],
)
def test_a_case_that_a_waiver_was_wrong_about_is_not_proposed_but_tells_where_it_stands(
    raw: Outcome, by: Outcome
) -> None:
    proposals = found(build.collected(A), ruled(A, raw, by, "so it was", "configs/waivers/known.yaml:12"))
    assert proposals.entries == ()
    assert proposals.remarks == (f"configs/waivers/known.yaml:12: {A}: so it was",)


def test_a_waiver_that_some_cases_still_need_says_so() -> None:
    source = "known.yaml:2"
    proposals = found(
        build.collected(X, Y, Z),
        ruled(X, Outcome.PASSED, Outcome.UNEXPECTED_PASS, "passed, but waived", source),
        ruled(Y, Outcome.PASSED, Outcome.UNEXPECTED_PASS, "passed, but waived", source),
        ruled(Z, Outcome.FAILED, Outcome.WAIVED, "waived", source),
    )
    assert proposals.remarks == (f"{source}: {X} and 1 more: passed, but waived; 1 other cases still need it",)


def test_a_waived_case_is_left_alone() -> None:
    proposals = found(build.collected(A), ruled(A, Outcome.FAILED, Outcome.WAIVED, "waived", "known.yaml:2"))
    assert (proposals.entries, proposals.remarks) == ((), ())


def test_what_the_run_found_wrong_with_its_waivers_is_reported_again() -> None:
    proposals = found(
        build.collected(A),
        build.finish(A),
        build.finding("the waiver in known.yaml:2 expired", kind="waiver_expired"),
        build.finding("a device fell off the bus"),
    )
    assert proposals.remarks == ("the waiver in known.yaml:2 expired",)
    assert proposals_yaml(proposals, "a run").endswith("waivers: []\n# the waiver in known.yaml:2 expired\n")


def test_a_damaged_journal_is_no_obstacle(tmp_path: Path) -> None:
    path = journals.write(tmp_path, [build.run(), build.collected(A), red(A)]) / journal.FILE_NAME
    with path.open("ab") as file:
        file.write(b'{"event":"fin')
    assert cases(propose_waivers(reader.read_journal(path), None, TODAY)) == [A]


HOSTILE = [
    "no", "1e3", "0x10", "~", "1:30", "- a: b", "a: b # c", "'\"\\", "{x: y}", "&a *a", "!!python/object:os.system",
    "\x00\x1b[31m", "\x85\u2028\u2029", "\ufeff\ufffe", "%YAML 1.1", "---", "...", " edge ", "ü \U0001f600", "a" * 5000,
]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_texts_come_through(text: str, tmp_path: Path) -> None:
    case = f"{FILE}::test_p[{text}]"
    proposals = found(build.collected(case, A), red(case, message=text), build.finish(A))
    (waiver,) = loaded(proposals, tmp_path)
    assert matches_pattern(waiver.case, case)
    assert not matches_pattern(waiver.case, A)
    assert waiver.reason
    with_remark = found(build.collected(case), build.finding(text, kind="waiver_expired"), red(A))
    assert len(loaded(with_remark, tmp_path)) == 1


TEXTS = st.text(st.characters(codec="utf-8"), min_size=1)  # a journal has surrogates as visible escapes


@given(TEXTS, TEXTS)
def test_any_text_comes_through(tmp_path_factory: pytest.TempPathFactory, name: str, message: str) -> None:
    case = f"a.py::t[{name}]"
    proposals = found(build.collected(case), red(case, message=message))
    (waiver,) = loaded(proposals, tmp_path_factory.getbasetemp())
    assert matches_pattern(waiver.case, case)
    assert waiver.reason == " ".join(waiver.reason.split()) != ""


def test_the_machine_is_read_from_the_run(tmp_path: Path) -> None:
    assert read_machine(tmp_path) is None
    environment.write_environment(tmp_path, GPUS)
    machine = read_machine(tmp_path)
    assert machine is not None
    assert machine.driver == "570.133.20"
    assert [device.compute_capability for device in machine.devices] == [(9, 0), (10, 0), None]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"<xml/>", "is no environment.json of a run"),
        (b"[]", "is no environment.json of a run"),
        (b'{"driver": 570}', "is no environment.json of a run: driver"),
        (b'{"devices": [{"uuid": "a", "compute_capability": [9]}]}', "devices.0.compute_capability"),
        (b'{"devices": [{"uuid": "a", "compute_capability": [9, -1]}]}', "devices.0.compute_capability.1"),
        (b" " * ((16 << 20) + 1), "has 16777217 bytes, and the limit is 16777216"),
    ],
    ids=["xml", "list", "driver", "half a version", "negative", "large"],
)
def test_another_file_is_no_machine(tmp_path: Path, data: bytes, words: str) -> None:
    (tmp_path / environment.FILE_NAME).write_bytes(data)
    with pytest.raises(HarnessError) as caught:
        read_machine(tmp_path)
    assert words in str(caught.value)


def test_a_folder_is_no_machine(tmp_path: Path) -> None:
    (tmp_path / environment.FILE_NAME).mkdir()
    with pytest.raises(EnvironmentFileError, match="is not a regular file"):
        read_machine(tmp_path)
