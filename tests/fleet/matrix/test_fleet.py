"""From run directories to a matrix: machines, cells, holes, doubts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from harness.core.outcome import EXIT_NOTHING_RAN, EXIT_OK, EXIT_RED, Outcome
from harness.fleet import matrix_model as model
from harness.fleet import matrix_page as text
from harness.fleet import run as folders
from harness.fleet.classing import CauseClass, Sure
from harness.fleet.matrix import exit_status, make_matrix
from harness.fleet.matrix_model import HoleKind, Matrix
from harness.fleet.reading import NothingReadError, reading
from harness.fleet.record import read_history_record
from harness.fleet.run import NoRunError
from harness.journal import journal, reader
from harness.journal.ledger import Ledger
from tests.fleet.matrix import runs
from tests.fleet.matrix.runs import CASES, Machine
from tests.reporting import build
from tests.schemas import shipped_schema

ONE, TWO, THREE = CASES


def matrix(*given_: Path, processes: int = 1) -> Matrix:
    found = folders.find_runs(given_)
    with reading(found.paths, found.notes, processes) as read:
        return make_matrix(read)


def cell(made: Matrix, case: str, host: str) -> model.Cell:
    (row,) = (each for each in made.cases if each.case == case)
    (column,) = (place for place, each in enumerate(made.machines) if each.host == host)
    return made.cells[row.cells[column]]


def hole(made: Matrix, case: str, host: str) -> model.Hole:
    place = cell(made, case, host).hole
    assert place is not None
    return made.holes[place]


# ---- machines and cells ----


def test_runs_of_one_machine_fold_into_one_column(tmp_path: Path) -> None:
    for number in range(5):
        bad = {ONE: Outcome.FAILED} if number < 3 else {}
        runs.run(tmp_path / f"r{number}", Machine("n1"), bad, t=1_760_000_000.0 + number)
    runs.run(tmp_path / "other", Machine("n1", torch="2.12.0"))
    made = matrix(tmp_path)
    assert [(each.host, each.torch, each.runs, each.red) for each in made.machines] == [
        ("n1", "2.12.0", 1, 0),
        ("n1", "2.13.0", 5, 1),
    ]
    assert made.cells[made.cases[0].cells[1]].outcomes == {Outcome.PASSED: 2, Outcome.FAILED: 3}


def test_machines_that_differ_in_one_fact_are_next_to_each_other(tmp_path: Path) -> None:
    park = [
        Machine("n10"),
        Machine("n9"),
        Machine("n1", driver="1000.1"),
        Machine("n2", "A10"),
        Machine("n3", torch="2.9"),
    ]
    for place, machine in enumerate(park):
        runs.run(tmp_path / str(place), machine)
    assert [each.host for each in matrix(tmp_path).machines] == ["n2", "n3", "n9", "n10", "n1"]


def test_the_class_of_a_failure(tmp_path: Path) -> None:
    made = matrix(runs.fleet(tmp_path, 6, n4=ONE, n5=ONE, n6=ONE, n2=TWO))
    one, two, three = made.cases
    assert one.failure is not None
    assert two.failure is not None
    assert three.failure is None
    assert (one.failure.kind, [each.value for each in one.failure.causes]) == (CauseClass.ONE_DRIVER, ["580.1"])
    assert one.failure.text == "Red in all 3 runs with driver 580.1, and in none of the 3 other runs."
    assert [(each.text, each.runs) for each in one.failure.messages] == [("failed happened", 3)]
    assert one.failure.reproduce == f"pytest {ONE} --seed=7"
    assert two.failure.kind is CauseClass.ONE_UUID
    assert two.failure.next == "Run it again on device GPU-n2: it was bad only once."
    assert [(each.kind, each.cases) for each in made.groups] == [
        (CauseClass.ONE_DRIVER, (0,)),
        (CauseClass.ONE_UUID, (1,)),
    ]


def test_outcomes_of_attempts_are_those_of_the_ledger(tmp_path: Path) -> None:
    """Retries, rulings, reopened and repeated cases: the verdict equals that of every other report."""
    cases = [f"suites/a/test_a.py::case_{number}" for number in range(8)]
    written = [
        build.run(),
        build.collected(*cases),
        *build.broke_and(cases[0], Outcome.CRASHED, Outcome.PASSED),
        *build.broke_and(cases[1], Outcome.CRASHED, None),
        build.start(cases[2]), build.finish(cases[2], Outcome.FAILED, ruling=build.ruling(Outcome.WAIVED)),
        build.start(cases[3]), build.finish(cases[3]), build.finish(cases[3], Outcome.FAILED, attempt=2),
        build.start(cases[4]), build.finish(cases[4], Outcome.LOST, final=True), build.reopened(cases[4]),
        build.start(cases[4], attempt=2), build.finish(cases[4], attempt=2),
        build.finish(cases[5], Outcome.NOT_RUN), build.reopened(cases[5]),
        build.start(cases[6]),
        *build.broke_and(cases[7], Outcome.TIMEOUT, Outcome.NOT_RUN),
        build.end(exit_status=1),
    ]  # fmt: skip
    found = read_history_record(runs.write(tmp_path / "r", written))
    ledger = build.ledger(*written)
    said = {row["case"]: row["outcome"] for row in found.rows["verdict"]}
    assert said == {verdict.case: verdict.outcome for verdict in ledger.verdicts}
    assert set(said.values()) > {Outcome.FLAKY, Outcome.LOST, Outcome.WAIVED, Outcome.NOT_RUN, Outcome.TIMEOUT}


ATTEMPTS = st.builds(
    build.finish,
    st.sampled_from(CASES),
    st.sampled_from(list(Outcome)),
    final=st.booleans(),
    ruling=st.sampled_from([None, None, build.ruling(Outcome.WAIVED), build.ruling(Outcome.UNEXPECTED_PASS)]),
    attempt=st.integers(1, 9),
)


@given(
    st.lists(
        st.one_of(
            ATTEMPTS, st.builds(build.start, st.sampled_from(CASES)), st.builds(build.reopened, st.sampled_from(CASES))
        )
    )
)
@example(
    [
        build.finish(CASES[0], Outcome.NOT_RUN, final=False),
        build.finish(CASES[0], Outcome.NOT_RUN),
        build.finish(CASES[0], Outcome.NOT_RUN, final=False),
        build.finish(CASES[0], Outcome.GATED),
    ]
)
@example(
    [
        build.finish(CASES[0], Outcome.FAILED),
        build.reopened(CASES[0]),
        build.finish(CASES[0], Outcome.FAILED),
        build.finish(CASES[0], Outcome.PASSED, t=1_760_000_009.0),
    ]
)
@settings(max_examples=60)
def test_any_journal_has_the_verdicts_of_the_ledger(some: list[build.Line]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        found = read_history_record(runs.write(Path(folder) / "r", [build.run(), build.collected(*CASES), *some]))
    said = {row["case"]: row["outcome"] for row in found.rows["verdict"]}
    ledger = build.ledger(build.run(), build.collected(*CASES), *some)
    assert said == {verdict.case: verdict.outcome for verdict in ledger.verdicts}


# ---- holes ----


def test_every_hole_has_its_reason(tmp_path: Path) -> None:
    park = {
        "n1": {ONE: Outcome.GATED, TWO: Outcome.SKIPPED, THREE: Outcome.WAIVED},
        "n2": {ONE: Outcome.LOST, TWO: Outcome.NOT_RUN},
    }
    for host, outcomes in park.items():
        runs.run(tmp_path / host, Machine(host), outcomes)
    runs.write(tmp_path / "n3", runs.lines(Machine("n3"), {TWO: Outcome.PASSED}), Machine("n3"))
    left_out = [*runs.lines(Machine("n4"), {ONE: Outcome.PASSED})]
    left_out[1] = build.collected(ONE, deselected=[TWO], selection=f"sha256:{'0' * 64}", selected=[ONE, THREE])
    runs.write(tmp_path / "n4", left_out, Machine("n4"))
    unread = [*runs.lines(Machine("n5"), {ONE: Outcome.PASSED})]
    unread[1] = build.collected(ONE, unread=["suites/b/"])
    runs.write(tmp_path / "n5", unread, Machine("n5"))
    made = matrix(tmp_path)
    seen = {
        (host, case): (found.kind, found.reason)
        for host in ("n1", "n2", "n3", "n4", "n5")
        for case in CASES
        if cell(made, case, host).hole is not None and (found := hole(made, case, host))
    }
    assert seen == {
        ("n1", ONE): (HoleKind.GATED, "memory: wanted >=40GiB"),
        ("n1", TWO): (HoleKind.SKIPPED, ""),
        ("n1", THREE): (HoleKind.WAIVED, "waived: a known problem"),
        ("n2", ONE): (HoleKind.LOST, "it started and never finished"),
        ("n2", TWO): (HoleKind.NOT_RUN, "the run ended, and the journal has no start of this case"),
        ("n3", ONE): (HoleKind.NOT_COLLECTED, "the runs of these machines have no such case"),
        ("n3", THREE): (HoleKind.NOT_COLLECTED, "the runs of these machines have no such case"),
        ("n4", TWO): (HoleKind.DESELECTED, "excluded by the options of the run"),
        ("n4", THREE): (HoleKind.OTHER_SHARD, "it is in another shard of the run, which is missing here"),
        ("n5", TWO): (HoleKind.NOT_COLLECTED, "the runs of these machines have no such case"),
        ("n5", THREE): (HoleKind.DESELECTED, "excluded by the options of the run"),
    }
    assert hole(made, ONE, "n1").found == ("24.0GiB",)
    assert sum(each.cells for each in made.holes) == sum(each.holes for each in made.machines) == 11
    assert made.holes[0].kind is HoleKind.NOT_COLLECTED, "the most cells first"
    assert not made.groups, "what did not run is no observation"


def test_holes_fold_by_reason(tmp_path: Path) -> None:
    for number in range(4):
        runs.run(tmp_path / f"n{number}", Machine(f"n{number}"), {ONE: Outcome.GATED, TWO: Outcome.GATED})
    (found,) = matrix(tmp_path).holes
    assert (found.cells, found.cases, found.machines) == (8, (0, 1), (0, 1, 2, 3))


def test_a_result_of_one_run_fills_the_hole_of_another(tmp_path: Path) -> None:
    runs.run(tmp_path / "r1", Machine(), {ONE: Outcome.NOT_RUN}, t=1_760_000_000.0)
    runs.run(tmp_path / "r2", Machine(), {}, t=1_760_000_009.0)
    made = matrix(tmp_path)
    assert cell(made, ONE, "n1") == model.Cell(outcomes={Outcome.NOT_RUN: 1, Outcome.PASSED: 1})
    assert not made.holes


# ---- doubts ----


def test_trees_that_differ_are_said(tmp_path: Path) -> None:
    for number in range(3):
        runs.run(tmp_path / f"n{number}", Machine(f"n{number}"))
    other = {"suite files": f"sha256:{'0' * 64}", "harness": "0.2.0"}
    runs.run(tmp_path / "n9", Machine("n9"), identity=other, settings={"retries": 2}, seed=99)
    found = {
        each.name: [(value.value, value.runs, value.machines) for value in each.values]
        for each in matrix(tmp_path).differences
    }
    assert found == {
        "suite files": [(f"sha256:{'5' * 64}", 3, (0, 1, 2)), (f"sha256:{'0' * 64}", 1, (3,))],
        "harness": [("", 3, (0, 1, 2)), ("0.2.0", 1, (3,))],
        "--retries": [("", 3, (0, 1, 2)), ("2", 1, (3,))],
    }


def test_a_machine_without_a_driver_has_none_that_explains_anything(tmp_path: Path) -> None:
    runs.run(tmp_path / "r", Machine(driver="", torch="2.13.0", uuid="cpu"), {ONE: Outcome.FAILED})
    failure = matrix(tmp_path).cases[0].failure
    assert failure is not None
    assert [(each.factor.value, each.value) for (each,) in failure.also] == [
        ("host", "n1"),
        ("device", "H100"),
        ("torch", "2.13.0"),
    ]
    assert failure.next == "Run it elsewhere, too: no other host, kind of device or torch has run it."


def test_torn_doubled_and_foreign_lines_are_reported(tmp_path: Path) -> None:
    written = runs.lines(Machine(), runs.PASSED)
    runs.write(
        tmp_path / "r",
        [*written, *written[3:5], {"event": "quark", "t": 1}],
        Machine(),
        tail=b'{"event":"finish","t":17',
    )
    made = matrix(tmp_path)
    (run,) = made.runs
    assert run.notes == (
        "lines of its journal that cannot be read: 1 (line 15: Input data was truncated)",
        "the journal has 1 line of an unknown kind, which a newer harness may read: line 14 'quark'",
        "the journal has 2 duplicate lines, counted once",
    )
    assert (run.red, exit_status(made), made.groups) == (True, EXIT_RED, ())


def test_a_run_without_its_environment_is_placed_by_its_identity(tmp_path: Path) -> None:
    identity = {"torch": "2.12.1", "driver": "560.2", "device": "NVIDIA L4"}
    runs.write(tmp_path / "r", runs.lines(Machine(), runs.PASSED, identity=identity))
    (tmp_path / "s").mkdir()
    runs.write(tmp_path / "s" / "r", runs.lines(Machine("n2"), runs.PASSED), environment={"devices": 7, "versions": []})
    first, second = matrix(tmp_path).machines
    assert (first.device, first.driver, first.torch) == ("NVIDIA L4", "560.2", "2.12.1")
    assert (second.device, second.driver, second.torch) == ("unknown", "none", "none")
    (tmp_path / "r" / "environment.json").write_text("[]")
    assert "is not the environment file of a run" in matrix(tmp_path / "r").runs[0].notes[0]


def test_copies_and_shards_of_merged_runs_count_once(tmp_path: Path) -> None:
    runs.run(tmp_path / "first", Machine(), run_id="one")
    runs.run(tmp_path / "copy", Machine(), run_id="one")
    runs.write(tmp_path / "older", runs.lines(Machine(), runs.PASSED, run_id="one")[:-1], Machine())
    whole = [*runs.lines(Machine("n2"), runs.PASSED, run_id="whole")]
    whole.insert(1, build.shard(run_id="part"))
    runs.write(tmp_path / "merged", whole, Machine("n2"))
    runs.run(tmp_path / "part", Machine("n2"), run_id="part")
    made = matrix(tmp_path)
    names = [Path(run.name).name for run in made.runs]
    assert sorted(names) == ["copy", "merged"]
    assert [note.replace(str(tmp_path), "") for note in made.notes] == [
        "/first was left out: it is a copy of /copy",
        "/older was left out: it is an earlier state of /copy",
        "/part was left out: it is a shard of the merged run /merged",
    ]


def test_the_longest_journal_of_a_run_counts(tmp_path: Path) -> None:
    written = runs.lines(Machine(), runs.PASSED, run_id="one")
    for name, lines in (("a", written[:-3]), ("b", written), ("c", written[:-1])):
        runs.write(tmp_path / name, lines, Machine())
    made = matrix(tmp_path)
    assert [run.name for run in made.runs] == [str(tmp_path / "b")]
    assert made.notes == tuple(
        f"{tmp_path / name} was left out: it is an earlier state of {tmp_path / 'b'}" for name in ("a", "c")
    )


def test_a_run_that_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    runs.run(tmp_path / "good", Machine())
    runs.write(tmp_path / "newer", [build.run(schema=99)])
    runs.write(tmp_path / "empty", [])
    (tmp_path / "binary").mkdir()
    (tmp_path / "binary" / journal.FILE_NAME).write_bytes(b"\x00\xff" * 100)
    (tmp_path / "folder" / journal.FILE_NAME).mkdir(parents=True)
    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe" / journal.FILE_NAME)
    made = matrix(tmp_path)
    assert len(made.runs) == 1
    said = "\n".join(made.notes)
    assert len(made.notes) == 5
    assert "schema 99" in said
    assert "is not a journal" in said
    assert "no run started there" in said
    assert said.count("symbolic link or no regular file") == 2
    with pytest.raises(NothingReadError, match="no run can be read"):
        matrix(tmp_path / "binary")


# ---- folders ----


def test_run_directories_are_found_up_to_four_levels_below(tmp_path: Path) -> None:
    for where in ("a", "b/one", "b/two", "c/d/e/f/too_deep"):
        runs.run(tmp_path / "all" / where, Machine())
    runs.run(tmp_path / "all" / "a" / "inside_a_run", Machine())
    found = folders.find_runs([tmp_path / "all", tmp_path / "all" / "a"])
    assert [str(path.relative_to(tmp_path / "all")) for path in found.paths] == ["a", "b/one", "b/two"]
    assert found.notes == ("run directories that were given twice and count once: 1",)


@pytest.mark.parametrize("given_", [".", "matrix-results", "matrix-results/20261126-010203"])
def test_what_the_slurm_night_leaves_is_found(tmp_path: Path, given_: str) -> None:
    night = tmp_path / "matrix-results" / "20261126-010203"
    for where in ("h200-580-torch2.13-py3.12-nightly/whole", "cpu-torch2.13-py3.12-nightly/1of2"):
        runs.run(night / where, Machine())
    found = folders.find_runs([tmp_path / given_])
    assert [path.name for path in found.paths] == ["1of2", "whole"]


def test_symbolic_links_are_not_followed(tmp_path: Path) -> None:
    outside = runs.run(tmp_path / "outside", Machine("secret"))
    runs.run(tmp_path / "all" / "r", Machine())
    (tmp_path / "all" / "link").symlink_to(outside)
    linked = tmp_path / "all" / "linked_journal"
    linked.mkdir()
    (linked / journal.FILE_NAME).symlink_to(outside / journal.FILE_NAME)
    (tmp_path / "all" / "r" / "environment.json").unlink()
    (tmp_path / "all" / "r" / "environment.json").symlink_to(outside / "environment.json")
    made = matrix(tmp_path / "all")
    assert [each.host for each in made.machines] == ["n1"]
    assert made.machines[0].driver == "none"
    assert made.notes[0] == "1 symbolic link was not followed: link"
    assert "linked_journal was left out" in made.notes[1]
    assert [each.host for each in matrix(tmp_path / "all" / "link").machines] == ["secret"], "a link that is given is"


def test_a_path_without_a_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    for name, reason in (("none", "there is no folder"), ("file", "is not a folder"), ("empty", "there is no run in")):
        with pytest.raises(NoRunError, match=reason):
            folders.find_runs([tmp_path / name])


# ---- the JSON ----


def test_the_json_fits_the_schema_and_is_the_same_for_the_same_runs(tmp_path: Path) -> None:
    made = runs.fleet(tmp_path, 6, n4=ONE, n5=ONE, n6=ONE, n2=TWO)
    runs.run(tmp_path / "n7", Machine("n7"), {ONE: Outcome.GATED, TWO: Outcome.FLAKY, THREE: Outcome.LOST})
    first = model.matrix_json(matrix(made))
    jsonschema.Draft202012Validator(shipped_schema("fleet/matrix")).validate(json.loads(first))
    assert first == model.matrix_json(matrix(*sorted(tmp_path.iterdir(), reverse=True)))
    assert Matrix.model_validate_json(first, strict=False) == matrix(made)


@pytest.mark.parametrize(
    ("outcomes", "changes", "status"),
    [
        ({}, {}, EXIT_OK),
        ({ONE: Outcome.FAILED}, {}, EXIT_RED),
        ({ONE: Outcome.LOST}, {}, EXIT_RED),
        ({ONE: Outcome.FLAKY}, {}, EXIT_OK),
        ({ONE: Outcome.FLAKY}, {"fail_on_flaky": True}, EXIT_RED),
        (dict.fromkeys(CASES, Outcome.GATED), {}, EXIT_NOTHING_RAN),
    ],
)
def test_the_exit_status(tmp_path: Path, outcomes: dict[str, Outcome], changes: dict[str, Any], status: int) -> None:
    runs.run(tmp_path / "r", Machine(), outcomes, **changes)
    assert exit_status(matrix(tmp_path)) == status


def test_an_unfinished_run_is_red(tmp_path: Path) -> None:
    runs.write(tmp_path / "r", runs.lines(Machine(), runs.PASSED)[:-1], Machine())
    made = matrix(tmp_path)
    assert (exit_status(made), made.runs[0].notes) == (EXIT_RED, ("it did not finish",))


# ---- changes on one machine ----

FAULT = "record_stream_ignored; launch_kills_process:0.0005,seed=4"


def chronicle(folder: Path, *nights: dict[str, Any], machine: Machine | None = None) -> Matrix:
    """Return the matrix of runs on one machine, one per day. `nights`: red cases and fields of ``run`` per night."""
    for number, night in enumerate(nights):
        facts = dict(night)
        red = dict.fromkeys(facts.pop("red", ()), Outcome.FAILED)
        runs.run(folder / f"r{number}", machine or Machine(), red, t=1_760_000_000.0 + 86_400 * number, **facts)
    return matrix(folder)


def test_an_option_that_only_red_runs_have_is_the_cause(tmp_path: Path) -> None:
    injected = {"red": (ONE, TWO), "settings": {"inject": FAULT}}
    made = chronicle(tmp_path, {}, {}, injected, injected, injected)
    (group,) = made.groups
    assert (group.kind, group.sure, group.cases) == (CauseClass.ONE_OPTION, Sure.WEAK, (0, 1))
    since = f"since {tmp_path / 'r2'} (2025-10-11 08:53 UTC)"
    assert text.title_of(group) == f"option --inject=launch_kills_process:0.0005,seed=4, {since}"
    failure = made.cases[0].failure
    assert failure is not None
    assert failure.text == (
        "Red in all 3 runs with option --inject=launch_kills_process:0.0005,seed=4, and in none of the 2 other runs."
    )
    assert text.apart_of(group) == f"option --inject=record_stream_ignored; {since}"
    assert group.next == (
        "Run it again now, without --inject=launch_kills_process:0.0005,seed=4: this shows whether it is the cause."
    )


def test_two_faults_are_two_groups(tmp_path: Path) -> None:
    first = {"red": (ONE,), "settings": {"inject": "first"}}
    second = {"red": (TWO,), "settings": {"inject": "second"}}
    both = {"red": (ONE, TWO), "settings": {"inject": "first; second"}}
    made = chronicle(tmp_path / "options", {}, first, {}, second, both, {})
    assert [(group.kind, text.title_of(group), group.cases) for group in made.groups] == [
        (CauseClass.ONE_OPTION, "option --inject=first", (0,)),
        (CauseClass.ONE_OPTION, "option --inject=second", (1,)),
    ]
    made = chronicle(
        tmp_path / "flakes", {}, {"red": (ONE, THREE)}, {"red": (TWO,)}, {}, {"red": (ONE, TWO, THREE)}, {}
    )
    assert [(group.kind, group.cases) for group in made.groups] == [
        (CauseClass.FLAKE, (0, 2)),
        (CauseClass.FLAKE, (1,)),
    ]


@pytest.mark.parametrize(
    ("nights", "kind", "title"),
    [
        (6 * [{}] + 6 * [{"red": (ONE,)}], CauseClass.SINCE, "since {folder}/r6 (2025-10-15 08:53 UTC)"),
        (6 * [{"red": (ONE,)}] + 6 * [{}], CauseClass.UNTIL, "until {folder}/r5 (2025-10-14 08:53 UTC)"),
        (
            6 * [{"identity": {"harness": "1"}}] + 6 * [{"red": (ONE,), "identity": {"harness": "2"}}],
            CauseClass.ONE_SETTING,
            "environment harness 2, since {folder}/r6 (2025-10-15 08:53 UTC)",
        ),
        (
            3 * [{"settings": {"retries": 1}}, {"red": (ONE,)}],
            CauseClass.ONE_OPTION,
            "without --retries",
        ),
        (3 * [{}, {"red": (ONE,)}], CauseClass.FLAKE, "now and then"),
    ],
)
def test_time_and_settings_are_causes(
    tmp_path: Path, nights: list[dict[str, Any]], kind: CauseClass, title: str
) -> None:
    (group,) = chronicle(tmp_path, *nights).groups
    assert (group.kind, text.title_of(group)) == (kind, title.format(folder=tmp_path))


@pytest.mark.parametrize(
    ("environments", "title"),
    [
        ([{"git": {"commit": "1" * 40}}, {"git": {"commit": "2" * 40}}], f"commit {'2' * 40}"),
        ([{}, {"environment": {"CUDA_LAUNCH_BLOCKING": "1"}}], "environment $CUDA_LAUNCH_BLOCKING=1"),
        ([{"environment": {"CUDA_LAUNCH_BLOCKING": "1"}}, {}], "without $CUDA_LAUNCH_BLOCKING"),
        ([{"versions": {"numpy": "1.26"}}, {"versions": {"numpy": "2.1"}}], "environment numpy 2.1"),
    ],
)
def test_facts_of_the_environment_file_are_causes(
    tmp_path: Path, environments: list[dict[str, Any]], title: str
) -> None:
    machine = Machine()
    devices = [{"uuid": machine.chip, "name": machine.device, "kind": "cuda"}]
    for number in range(6):
        more = environments[number % 2]
        versions = {"torch": machine.torch, **more.get("versions", {})}
        known = {"schema": 1, "driver": machine.driver, "devices": devices, **more, "versions": versions}
        red = {ONE: Outcome.FAILED} if number % 2 else {}
        lines = runs.lines(machine, {**runs.PASSED, **red}, t=1_760_000_000.0 + number, run_id=str(number))
        runs.write(tmp_path / f"r{number}", lines, environment=known)
    (group,) = matrix(tmp_path).groups
    assert text.title_of(group) == title


def test_what_differs_between_machines_is_no_cause_beside_the_machine(tmp_path: Path) -> None:
    """Each kind of machine has its own hardware file and variables: only changes on one machine are further causes."""
    for number in range(6):
        red = {ONE: Outcome.FAILED} if number < 3 else {}
        machine = Machine(f"n{number}", "H100" if number < 3 else "A10")
        runs.run(tmp_path / machine.host, machine, red, hardware=machine.device, t=1_760_000_000.0 + number)
    failure = matrix(tmp_path).cases[0].failure
    assert failure is not None
    assert (failure.kind, failure.also) == (CauseClass.ONE_DEVICE, ())


# ---- findings ----


def with_findings(folder: Path, host: str, *findings: build.Line, status: int = 1) -> Path:
    written = runs.lines(Machine(host), runs.PASSED)
    return runs.write(folder / host, [*written[:-1], *findings, build.end(exit_status=status)], Machine(host))


def test_a_finding_of_several_runs_is_listed_once(tmp_path: Path) -> None:
    with_findings(tmp_path, "n1", build.finding("gw0-1 grew by 17 bytes", kind="batch_leak", cases=[ONE, TWO]))
    leak = build.finding("gw0-9 grew by 2,048 bytes", kind="batch_leak", cases=[TWO], reproduce="pytest x")
    with_findings(tmp_path, "n2", leak, build.finding("gw1 died", kind="worker"))
    with_findings(tmp_path, "n3", status=0)
    made = matrix(tmp_path)
    assert [(each.kind, each.message, each.runs, each.machines) for each in made.findings] == [
        ("batch_leak", "gw0-1 grew by 17 bytes", (0, 1), (0, 1)),
        ("worker", "gw1 died", (1,), (1,)),
    ]
    first = made.findings[0]
    assert (first.cases, first.concerned, first.reproduce) == ((ONE, TWO), 2, "pytest x")
    assert [(run.red, run.exit_status, run.findings) for run in made.runs] == [
        (True, 1, (0,)),
        (True, 1, (0, 1)),
        (False, 0, ()),
    ]
    assert exit_status(made) == EXIT_RED
    written = text.matrix_text(made)
    assert written.startswith("3 runs on 3 machines: none of 3 cases is red; 2 findings make 2 runs red\n")
    assert "FINDING batch_leak: in 2 runs on 2 machines - gw0-1 grew by 17 bytes\n" in written
    assert f"  2 cases: {ONE}, {TWO}\n  reproduce: pytest x\n" in written


def test_findings_that_follow_from_the_whole_journal_are_listed(tmp_path: Path) -> None:
    """Unsatisfied lists, too few cases and cases missing from a list have no line of their own."""
    written = runs.lines(Machine(), runs.PASSED, minimum_cases=9, profile="nightly")
    written[1:1] = [build.must_pass(ONE, "suites/a/test_a.py::other")]
    written.insert(-1, build.finish("suites/a/test_a.py::unknown"))
    path = runs.write(tmp_path / "r", written, Machine(), tail=b"{torn\n")
    found = matrix(path).findings
    expected = Ledger.from_journal(reader.read_run_journal(path / journal.FILE_NAME)).findings
    assert sorted((each.kind, each.message) for each in found) == sorted((e.kind, e.message) for e in expected)
    assert {each.kind for each in found} == {"damaged_journal", "not_collected", "must_pass", "too_few_cases"}


def test_a_run_that_is_red_for_no_case_and_no_finding_says_so(tmp_path: Path) -> None:
    with_findings(tmp_path, "n1", status=2)
    (run,) = matrix(tmp_path).runs
    assert run.notes == ("it ended with exit status 2, and no case or finding explains it: read the output of pytest",)


# ---- large journals ----


def test_several_processes_read_the_same(tmp_path: Path) -> None:
    runs.fleet(tmp_path, 5, n2=ONE)
    assert matrix(tmp_path, processes=2) == matrix(tmp_path)


def test_texts_of_a_large_journal_are_not_kept(tmp_path: Path) -> None:
    """The journal has 120 MB of output, and the process may use 60 MB more than it has."""
    written = [build.run(), build.collected(ONE)]
    path = runs.write(tmp_path / "r", written)
    line = json.dumps(build.finish(ONE, Outcome.FAILED, stdout="x" * 1_000_000), separators=(",", ":")).encode() + b"\n"
    with (path / journal.FILE_NAME).open("ab") as file:
        for _ in range(120):
            file.write(line)
    script = (
        "import sys, resource; from pathlib import Path; from harness.fleet.record import read_history_record\n"
        "have = int(Path('/proc/self/statm').read_text().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (have + 60_000_000, have + 60_000_000))\n"
        "print(len(read_history_record(Path(sys.argv[1])).rows['verdict']))"
    )
    done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("1\n", "")


def test_a_case_with_a_name_of_a_megabyte(tmp_path: Path) -> None:
    long = "suites/a/test_a.py::" + "x" * 1_000_000
    runs.write(tmp_path / "r", runs.lines(Machine(), {long: Outcome.FAILED}), Machine())
    assert matrix(tmp_path).cases[0].case == long
