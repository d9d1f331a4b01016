"""Every tampering is refused with its own message. A forger may recompute all hashes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.core.caseid import digest_of_ids
from harness.core.errors import HarnessError
from harness.gating.mustpass import MustPass
from harness.tools.evidence.archive import ArchiveError
from harness.tools.evidence.verify import Demands, Verification, verify_archive
from tests.tools.evidence.forge import (
    ENVIRONMENT,
    JOURNAL,
    JUNIT,
    A,
    B,
    D,
    Forger,
    lines,
    report,
    run_files,
    sealed,
    zipped,
)
from tests.tools.evidence.tamperings import HOSTILE, TAMPERINGS, Tamper, everything, member


def verified(data: bytes, folder: Path, demands: Demands | None = None, most: int = 1 << 30) -> Verification:
    path = folder / "evidence.zip"
    path.write_bytes(data)
    with path.open("rb") as file:
        return verify_archive(file, path, demands or Demands(), most)


def test_the_honest_archive_is_verified(tmp_path: Path) -> None:
    found = verified(zipped(Forger.of().members), tmp_path)
    assert found.problems == ()
    assert found.manifest is not None
    assert found.manifest.results.model_dump() == {
        "verdict": "red",
        "exit_status": 1,
        "cases": 4,
        "totals": {"gated": 1, "waived": 1, "passed": 1, "failed": 1},
        "findings": (),
    }
    assert found.manifest.claim.model_dump() == {
        "device": "cuda",
        "gpu": True,
        "profile": "",
        "hardware": "",
        "must_pass": ("core.txt",),
    }


@pytest.mark.parametrize(("tamper", "sentence"), [pytest.param(*row[1:], id=row[0]) for row in TAMPERINGS])
def test_a_tampering_is_refused_with_its_own_sentence(tamper: Tamper, sentence: str, tmp_path: Path) -> None:
    forger = Forger.of()
    tamper(forger)
    problems = verified(zipped(forger.members), tmp_path).problems
    assert [text for text in problems if sentence in text], "\n".join(problems)
    assert all("\n" not in text for text in problems)


def test_no_two_tamperings_share_a_sentence() -> None:
    sentences = [sentence for _, _, sentence in TAMPERINGS]
    assert len({*sentences}) == len(sentences) >= 80


def test_all_problems_are_listed(tmp_path: Path) -> None:
    forger = Forger.of()
    forger.environment(driver="575.0", host="node2")
    forger.file("run/more.txt", b"")
    problems = verified(zipped(forger.members), tmp_path).problems
    assert len(problems) == 3


@pytest.mark.parametrize(("make", "sentence"), [pytest.param(*row[1:], id=row[0]) for row in HOSTILE])
def test_a_hostile_archive_is_refused(make: Callable[[], bytes], sentence: str, tmp_path: Path) -> None:
    problems = verified(make(), tmp_path).problems
    assert [text for text in problems if sentence in text], "\n".join(problems)
    assert all(text.isprintable() for text in problems)


@pytest.mark.filterwarnings("ignore:Duplicate name:UserWarning")
def test_a_member_twice_is_refused(tmp_path: Path) -> None:
    assert "'run/x' is in the archive 2 times" in verified(member("run/x", times=2)(), tmp_path).problems


def test_an_archive_that_is_too_large_is_refused_unread(tmp_path: Path) -> None:
    (problem,) = verified(zipped(Forger.of().members), tmp_path, most=1000).problems
    assert "more than 1000: use --max-size" in problem


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data[:-1],
        lambda data: data + b"\n",
        lambda _: b"",
        lambda _: b"hello" * 10,
        lambda d: d[:5000],
    ],
    ids=["cut off", "something behind it", "empty", "another file", "half"],
)
def test_what_is_no_archive_cannot_be_read(change: Callable[[bytes], bytes], tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match="does not end like an evidence archive"):
        verified(change(zipped(Forger.of().members)), tmp_path)


def test_something_before_the_archive_is_refused(tmp_path: Path) -> None:
    (problem,) = verified(b"#!/bin/sh\n" + zipped(Forger.of().members), tmp_path).problems
    assert problem.startswith("byte 0 of the archive belongs to none of its files")


LISTED = MustPass("core.txt", "", (A,), digest_of_ids([A]))
LONGER = MustPass("core.txt", "", (A, B), digest_of_ids([A, B]))
OTHER = MustPass("full.txt", "", (D,), digest_of_ids([D]))


@pytest.mark.parametrize(
    ("demands", "sentence"),
    [
        (Demands(green=True), "the run is not green, as --require-green demands: 1 failed (exit status 1)"),
        (Demands(gpu=True), ""),
        (Demands(lists=[LISTED]), ""),
        (Demands(lists=[LONGER]), "must-pass list core.txt differs: yours has 2 cases"),
        (Demands(lists=[OTHER]), "the run did not check must-pass list full.txt"),
    ],
)
def test_demands(demands: Demands, sentence: str, tmp_path: Path) -> None:
    problems = verified(zipped(Forger.of().members), tmp_path, demands).problems
    assert [sentence in text for text in problems] == [True] * bool(sentence)


def test_a_software_device_is_no_gpu(tmp_path: Path) -> None:
    forger = Forger.of()
    cpu = json.loads(forger.members[ENVIRONMENT])
    cpu["devices"] = [{"uuid": "cpu", "kind": "cpu", "name": "CPU"}]
    events = lines()
    everything("cpu")(events)
    files = {**run_files(events), ENVIRONMENT: json.dumps(cpu).encode(), JUNIT: report(events, cpu)}
    data = zipped(sealed(files))
    assert verified(data, tmp_path).problems == ()
    assert verified(data, tmp_path, Demands(gpu=True)).problems == (
        "the run is not on a GPU, as --require-gpu demands: it was on cpu",
    )


HONEST = zipped(Forger.of().members)


def is_refused(data: bytes, folder: Path) -> bool:
    try:
        return bool(verified(data, folder).problems)
    except HarnessError:
        return True


@given(st.integers(0, len(HONEST) - 1), st.integers(1, 255))
@settings(max_examples=150)
def test_no_byte_can_be_changed(tmp_path_factory: pytest.TempPathFactory, position: int, change: int) -> None:
    data = bytearray(HONEST)
    data[position] ^= change
    assert is_refused(bytes(data), tmp_path_factory.mktemp("archive"))


@given(st.integers(0, len(HONEST)), st.integers(0, 400), st.binary(max_size=50))
@settings(max_examples=100)
def test_nothing_can_be_cut_out_or_put_in(
    tmp_path_factory: pytest.TempPathFactory, position: int, length: int, new: bytes
) -> None:
    data = HONEST[:position] + new + HONEST[position + length :]
    assert data == HONEST or is_refused(data, tmp_path_factory.mktemp("archive"))


@given(st.sets(st.sampled_from(sorted(Forger.of().members)), min_size=1))
@settings(max_examples=30)
def test_no_member_can_be_removed(tmp_path_factory: pytest.TempPathFactory, names: set[str]) -> None:
    members = {name: data for name, data in Forger.of().members.items() if name not in names}
    assert is_refused(zipped(members), tmp_path_factory.mktemp("archive"))


@given(st.data())
@settings(max_examples=100)
def test_no_line_of_the_journal_can_be_removed_or_repeated(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """This holds even if the forger remakes the manifest, and leaves the report unchanged."""
    events = lines()
    position = data.draw(st.integers(0, len(events) - 1))
    twice = data.draw(st.booleans())
    changed = [*events[:position], *([events[position]] * 2 if twice else []), *events[position + 1 :]]
    harmless = twice and events[position]["event"] in ("collected", "executor")  # a duplicate of these has no effect
    try:
        members = sealed({**run_files(events), JOURNAL: run_files(changed)[JOURNAL]})
    except HarnessError:
        return  # the run cannot be read, so it cannot be packed
    assert harmless or is_refused(zipped(members), tmp_path_factory.mktemp("archive"))
