"""A forger's and an attacker's changes to an archive, and the error message for each of them."""

# ruff: noqa: E501 - a row of a table is one line

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from typing import Any

from harness.core.caseid import digest_of_ids
from tests.reporting import build
from tests.reporting.build import Line
from tests.tools.evidence.forge import (
    ENVIRONMENT,
    GPUS,
    JOURNAL,
    JUNIT,
    A,
    B,
    C,
    D,
    Forger,
    environment,
    lines,
    report,
    sealed,
    seeds,
    zipped,
)

Tamper = Callable[[Forger], object]
SIMULATED = "GPU-51ed0000-0000-4000-8000-000000000000"


def line(events: list[Line], kind: str, case: str = "", number: int = 0) -> Line:
    return [each for each in events if each["event"] == kind and case in (each.get("case"), "")][number]


def edit(kind: str, case: str = "", **changes: Any) -> Callable[[list[Line]], object]:
    return lambda events: line(events, kind, case).update(changes)


def drop(kind: str, case: str = "") -> Callable[[list[Line]], object]:
    return lambda events: events.remove(line(events, kind, case))


def insert(position: int, *new: Line) -> Callable[[list[Line]], object]:
    def change(events: list[Line]) -> None:
        events[position:position] = new

    return change


def both(*changes: Callable[[Any], object]) -> Callable[[Any], None]:
    """Return a function that makes all of these changes in turn."""

    def change(it: Any) -> None:
        for each in changes:
            each(it)

    return change


def listed_anew(events: list[Line]) -> None:
    """Change the list in the run's identity to A and B."""
    events[0]["identity"]["must-pass lists"] = f"core.txt {digest_of_ids([A, B])[:19]}"


def journal(change: Callable[[list[Line]], object], *, junit: bool = True) -> Tamper:
    return lambda forger: forger.journal(change, junit=junit)


def passed_instead(events: list[Line]) -> None:
    line(events, "finish", B).update(outcome="passed", message="", detail="")


def passed_and_green(events: list[Line]) -> None:
    passed_instead(events)
    line(events, "end").update(exit_status=0)


def everything(uuid: str, **run: Any) -> Callable[[list[Line]], object]:
    """Return a function that changes the device in each line of the journal."""

    def change(events: list[Line]) -> None:
        for each in events:
            if each.get("devices"):
                each["devices"] = [uuid]
        events[0].update(run)

    return change


def resumed(**second: Any) -> Callable[[list[Line]], object]:
    def change(events: list[Line]) -> None:
        end = {**events[-1], "exit_status": 2}
        again = {**events[0], "run_id": "r2", "t": events[0]["t"] + 0.001, "part": 2, **second}
        first, rest = events[:6], events[6:]
        events[:] = [*first, end, again, *rest]

    return change


def merged(*shards: str) -> Callable[[list[Line]], object]:
    return insert(1, *(build.shard(shard=each, run_id=f"r{each}") for each in shards))


def manifest(**changes: Any) -> Tamper:
    def change(value: dict[str, Any]) -> None:
        for path, new in changes.items():
            *folders, name = path.split("__")
            place = value
            for folder in folders:
                place = place[folder]
            place[name] = new

    return lambda forger: forger.manifest(change)


def device_row(**changes: Any) -> list[dict[str, Any]]:
    first, second = environment()["devices"]
    return [first, {**second, **changes}]


JUST_AN_END = b'{"event":"end","t":1.0,"exit_status":0,"duration":1.0}\n'

LOST_NODE: Line = {"event": "node", "t": 1_760_000_000.5, "host": "n1", "state": "lost", "message": "it was silent"}


def second_device(executor: str = "gw0-1") -> tuple[Line, Line]:
    """Return the lines about B on a second device."""
    facts = {"t": 1_760_000_000.5, "case": B, "host": "n1"}
    start = {**facts, **seeds(B), "event": "second_start", "attempt": 1, "executor": executor, "devices": [GPUS[1]]}
    end = {**facts, "event": "second_device", "first": GPUS[0], "second": GPUS[1], "outcome": "passed"}
    return start, {**end, "finding": "red on this device only"}


TAMPERINGS: list[tuple[str, Tamper, str]] = [
    # Files
    ("a file was edited", lambda f: f.file("run/files/gw0-1/out.txt", b"OUT\n"), "run/files/gw0-1/out.txt was edited: it has"),
    ("a file was removed", lambda f: f.file("run/files/gw0-1/out.txt", None), "run/files/gw0-1/out.txt is missing: manifest.json lists it"),
    ("a file was added", lambda f: f.file("run/more.txt", b""), "run/more.txt was added: manifest.json does not list it"),
    ("a foreign file, listed", lambda f: f.file("more.txt", b"", seal=True), "more.txt is no file of an evidence archive"),
    ("a page, listed", lambda f: f.file("run/report.html", b"<h1>Green</h1>", seal=True), "run/report.html is not verified: harness package leaves it out"),
    ("a page in capitals, listed", lambda f: f.file("run/REPORT.HTML", b"<h1>Green</h1>", seal=True), "run/REPORT.HTML is not verified: harness package leaves it out"),
    ("no manifest", lambda f: f.file("manifest.json", None), "manifest.json is missing: the archive is not evidence"),
    ("a manifest that is none", lambda f: f.file("manifest.json", b"{"), "manifest.json is not JSON"),
    ("a manifest of another schema", manifest(schema=2), "manifest.json has schema 2; this harness reads schema 1"),
    ("a manifest with more", manifest(signed=True), "manifest.json is not valid: signed: Extra inputs"),
    ("a manifest in other bytes", lambda f: f.file("manifest.json", f.members["manifest.json"] + b"\n"), "manifest.json is not written as harness package writes it"),
    ("no journal", lambda f: f.file(JOURNAL, None, seal=True), "run/journal.ndjson is missing, so nothing can be verified"),
    ("a journal that is none", lambda f: f.file(JOURNAL, b"hello", seal=True), "is not a journal: it begins with"),
    ("a journal without a run", lambda f: f.file(JOURNAL, JUST_AN_END, seal=True), "has no line of kind 'run'"),
    ("a link elsewhere", manifest(left_out={"run/journal.ndjson": "/etc/passwd"}), "was left out as a link, which is allowed only below run/files/"),
    # The manifest against the run
    ("totals", manifest(results__totals={"passed": 4}), "wrong about the results: results.totals.passed is '4', but '1' follows"),
    ("verdict", manifest(results__verdict="green"), "wrong about the results: results.verdict is 'green', but 'red' follows"),
    ("number of cases", manifest(results__cases=400), "results.cases is '400', but '4' follows from the run"),
    ("complete", manifest(complete=False), "wrong about whether the run is complete"),
    ("the commit", manifest(run__commit="d" * 40), "wrong about the run: run.commit is"),
    ("the machine", manifest(machine__driver="999"), "wrong about the machine: machine.driver is '999', but '570.1'"),
    ("the devices", manifest(devices=[]), "wrong about the devices: "),
    ("the waivers", manifest(waivers__used=[]), "wrong about the waivers: waivers.used"),
    ("a list that the run had not", manifest(claim__must_pass=["other.txt"]), "must-pass list other.txt is claimed, but the run had no such list"),
    ("the size of a list", manifest(must_pass=[]), "wrong about the must-pass lists: "),
    ("the profile", manifest(claim__profile="nightly"), "wrong about the claim: claim.profile is 'nightly', but ''"),
    ("a list in its own file", lambda f: f.file("must-pass/core.txt", b"# nothing\n", seal=True), "must-pass/core.txt is not the must-pass list that the journal has"),
    ("no file of a list", lambda f: f.file("must-pass/core.txt", None, seal=True), "must-pass/core.txt is missing: the journal has its contents"),
    ("waivers in their own file", lambda f: f.file("waivers.json", b"[]\n", seal=True), "waivers.json is not the waivers that the journal has"),
    # The journal's form
    ("a torn journal", lambda f: f.file(JOURNAL, f.members[JOURNAL][:-1], seal=True), "the last line of the journal was cut off"),
    ("a torn line", lambda f: f.file(JOURNAL, f.members[JOURNAL].replace(b'{"event":"end"', b'{"event":"end', 1), seal=True), "journal line 14 cannot be read as an event"),
    ("a foreign line", journal(insert(5, {"event": "party", "t": 1.0}), junit=False), "journal line 6 has the kind 'party', which this harness does not know"),
    ("an empty line", lambda f: f.file(JOURNAL, f.members[JOURNAL].replace(b"\n", b"\n\n", 1), seal=True), "the journal has an empty line after line 1"),
    ("another first line", journal(lambda e: e.insert(0, e.pop(1))), "the journal begins with a line of kind 'must_pass', expected 'run'"),
    # The end
    ("no end", journal(drop("end")), "the run did not finish: its journal has no line of kind 'end'"),
    ("an interrupted run", journal(edit("end", exit_status=2)), "the run was interrupted: it ended with exit status 2"),
    ("an internal error", journal(edit("end", exit_status=3)), "the run ended with exit status 3: the harness or pytest failed"),
    ("another exit status", journal(edit("end", exit_status=0)), "the run ended with exit status 0, but 1 follows from its journal"),
    ("a finding removed, not its status", journal(passed_instead), "the run ended with exit status 1, but 0 follows from its journal"),
    ("a line after the end", journal(lambda e: e.append(build.finish(B))), "journal line 15 (finish) comes after the end of the run"),
    ("an end in between", journal(lambda e: e.insert(4, e[-1])), "journal line 5 ends the run, and the run goes on after it"),
    # Cases
    ("an outcome, and nothing else", journal(edit("finish", B, outcome="passed")), f"journal line 9: {B} passed, but has a traceback: Traceback: assert 1 == 2"),
    ("an outcome, its texts and its status", journal(passed_and_green, junit=False), "junit.xml says that suites.a.test_a::test_b is failed; by the journal it is passed"),
    ("a crash that passed", journal(edit("finish", A, exit_status=-11)), f"journal line 7: {A} passed, but its process ended with SIGSEGV"),
    ("a case removed", journal(both(drop("start", B), drop("finish", B))), "1 case did not run before the run ended: "),
    ("a case removed everywhere", journal(both(drop("start", B), drop("finish", B), edit("collected", **build.collected(A, C, D)), edit("end", exit_status=0))), "executor gw0-1 ran 3 attempts, but the journal has 2"),
    ("a lost case", journal(edit("finish", B, outcome="lost")), "the harness lost 1 case, which has no verdict"),
    ("no end of a case", journal(drop("finish", B)), f"journal line 8: attempt 1 at {B} started, but never ended"),
    ("no start of a case", journal(drop("start", B)), f"journal line 8: attempt 1 at {B} ended, but never started"),
    ("two verdicts", journal(insert(9, build.finish(B, seed=0, devices=[GPUS[0]]))), f"journal lines 9 and 10 are two verdicts on attempt 1 at {B}"),
    ("two starts", journal(lambda e: e.insert(8, line(e, "start", B))), f"journal lines 8 and 9 start attempt 1 at {B} twice"),
    ("a renamed case", journal(lambda e: [each.update(case="suites/a/test_a.py::test_x") for each in e if each.get("case") == B]), "is not that of suites/a/test_a.py::test_x in a run with seed 7"),
    ("no end of an executor", journal(lambda e: e.pop(-2)), "executor gw0-1 started, but its end is not in the journal"),
    ("a node that was lost, without the finding", journal(insert(9, {**LOST_NODE}), junit=False), "journal line 10: node n1 was lost, but the journal has no finding about that"),
    ("a device of a node that nobody described", journal(insert(9, {**LOST_NODE, "state": "ready", "devices": ["GPU-9"]}), junit=False), "no environment file has device GPU-9, which a node of the run names"),
    ("a second device without an attempt", journal(insert(9, *second_device()[1:])), f"journal line 10: {B} is passed on device {GPUS[1]} of n1, but never started there"),
    ("a second device in no executor", journal(insert(9, *second_device("gw9-1"))), f"journal line 10: {B} ran in executor gw9-1, which never started"),
    ("no executor", journal(drop("executor")), f"journal line 6: {A} ran in executor gw0-1, which never started"),
    ("a list of cases that was edited", journal(edit("collected", ids=[A, B, C])), "the lists of cases contradict each other: the list that gw0 collected does not match"),
    ("a verdict by no waiver", journal(edit("finish", B, ruling={"outcome": "waived", "text": "so", "source": "mine.yaml:1"})), f"journal line 9: {B} is waived by 'mine.yaml:1', which is no waiver of the run"),
    ("a verdict by an option that was not used", journal(edit("finish", B, ruling={"outcome": "waived", "text": "so", "source": "--verify"})), f"journal line 9: {B} is waived by '--verify', which is no waiver of the run"),
    ("an edited waiver", journal(edit("waiver", D, owner="nobody")), "the run was started with waivers of the hash"),
    # Times
    ("an end before the start", journal(edit("end", t=1_759_999_000.0)), "the run ended 1000 s before it started"),
    ("a line before the start", journal(edit("start", B, t=1_759_999_000.25)), "journal line 8 (start) is 1000 s older than the run"),
    ("a line after the end, by its time", journal(edit("finish", A, t=1_760_001_005.0)), "journal line 7 (finish) is 1000 s younger than its end"),
    ("a case that ended before it started", journal(both(edit("start", B, t=1_760_000_020.0), edit("end", t=1_760_000_030.0))), f"journal line 9: {B} ended 17 s before it started"),
    # Parts
    ("a forced resume", journal(resumed(forced=["torch was '2.12.0' and is '2.13.0'"])), "the run was resumed by force though something had changed: torch was '2.12.0'"),
    ("a forced resume, hidden", journal(resumed(identity={"torch": "2.12.0"})), "part 2 of the run is not like part 1: torch was '2.13.0' and is '2.12.0'"),
    ("another harness in a part", journal(resumed(identity={"harness": "0.0.1"})), "part 2 of the run is not like part 1: harness was"),
    ("a part without its environment", journal(resumed()), "environment-1.json is missing: it says on which machine part 1 of the run was"),
    ("a part too many", journal(edit("run", part=2)), "the journal has the parts 2 of the run, expected 1 to 1"),
    ("an environment too many", lambda f: setattr(f, "members", sealed({**f.run, "run/environment-1.json": f.members[ENVIRONMENT]})), "environment-1.json is the environment of a part that the run does not have"),
    ("a shard alone", journal(edit("run", shard="1/3")), "the run is only shard 1/3: merge all shards"),
    ("a merged run without a shard", journal(merged("1/3", "3/3")), "shard 2/3 is missing in the merged run"),
    ("a shard twice", journal(merged("1/2", "2/2", "2/2")), "shard 2/2 is in the merged run 2 times"),
    ("a shard of another run", journal(merged("1/2", "2/2", "2/3")), "shard 2/3 is not one of the 2 shards"),
    ("a shard that did not finish", journal(insert(1, build.shard(shard="1/1", exit_status=None))), "shard 1/1 did not finish"),
    ("a shard without environment", journal(merged("1/1")), "environment.json has no facts of shard 1/1"),
    # Devices
    ("two kinds of devices", journal(edit("run", devices=[*GPUS, "cpu"])), "the run mixes kinds of devices: cuda: GPU-11111111"),
    ("two models", lambda f: f.environment(devices=device_row(name="NVIDIA H200")), "the run mixes models of devices, so it is evidence for none of them: NVIDIA H100 [9, 0]"),
    ("a device that nobody knows", journal(edit("run", devices=["TPU-1"])), "the kind of device TPU-1 is unknown"),
    ("a case on a foreign device", journal(edit("finish", B, devices=["GPU-3"])), "journal line 9: something ran on device GPU-3, which is not a device of the run"),
    ("a device that the machine has not", lambda f: f.environment(devices=environment()["devices"][:1]), f"environment.json does not have device {GPUS[1]}, which the journal names"),
    ("a simulated GPU, claimed as a GPU", both(journal(everything(SIMULATED, label="simulated CUDA (no GPU)")), manifest(claim__gpu=True)), f"the archive claims a GPU, but the run was on {SIMULATED}, which is simulated CUDA (no GPU)"),
    ("a simulated GPU without its label", journal(everything(SIMULATED)), f"the journal labels the devices '', expected 'simulated CUDA (no GPU)' for {SIMULATED}"),
    ("a simulated GPU under the UUID of a GPU", journal(edit("run", settings={"device": "simcuda"})), "the run claims a GPU, but was started with --device=simcuda, which is simulated CUDA (no GPU)"),
    ("a GPU with injected faults", journal(edit("run", settings={"device": "cuda", "inject": "slow"})), "the run claims a GPU, but faults were injected into it: slow"),
    ("a simulated GPU by its kind", lambda f: f.environment(devices=device_row(kind="simcuda")), f"environment.json says that device {GPUS[1]} is of the kind 'simcuda', but its UUID is that of a cuda device"),
    ("a soft device by its library", lambda f: f.environment(software_device={"key": "1"}), "environment.json describes the library of a software device"),
    ("a soft device by its name", lambda f: f.environment(devices=device_row(name="soft (software device)")), f"the run claims a GPU, but environment.json calls {GPUS[1]} 'soft (software device)'"),
    ("a GPU without a driver", lambda f: f.environment(driver=None), "the run claims a GPU, but environment.json has no driver"),
    # Lists
    ("a list with another hash", journal(edit("must_pass", ids=[B])), "the 1 case of must-pass list core.txt do not have the hash"),
    ("another list", journal(edit("must_pass", ids=[A, B], hash=digest_of_ids([A, B]))), "the run was started with the must-pass lists 'core.txt sha256:"),
    ("a list that was not met, claimed", both(journal(both(edit("must_pass", ids=[A, B], hash=digest_of_ids([A, B])), listed_anew)), manifest(claim__must_pass=["core.txt"])), f"must-pass list core.txt is claimed, but 1 case did not pass: {B}"),
    # Environment and report
    ("another driver", lambda f: f.environment(driver="575.0"), "environment.json says that the driver is '575.0', but the journal says '570.1'"),
    ("another torch", lambda f: f.environment(versions={"torch": "9"}), "environment.json says that the version of torch is '9', but the journal says '2.13.0'"),
    ("another host", lambda f: f.environment(host="node2"), "environment.json says that the host is 'node2', but the journal says 'node1'"),
    ("another seed", lambda f: f.environment(seed=8), "environment.json says that the seed is '8', but the journal says '7'"),
    ("another command", lambda f: f.environment(command=["pytest"]), "environment.json says that the command is"),
    ("no environment", lambda f: f.file(ENVIRONMENT, None, seal=True), "environment.json is missing: it says on which machine part 1"),
    ("an environment that is none", lambda f: f.file(ENVIRONMENT, b"[]", seal=True), "environment.json is not the environment file of a run"),
    ("no report", lambda f: f.file(JUNIT, None, seal=True), "junit.xml is missing: write it with harness report"),
    ("a report that is none", lambda f: f.file(JUNIT, f.members[JUNIT][:-20], seal=True), "junit.xml is not XML"),
    ("a report with entities", lambda f: f.file(JUNIT, f.members[JUNIT].replace(b"<testsuites", b"<!DOCTYPE x []><testsuites", 1), seal=True), "junit.xml does not begin like a report of the harness, or declares a document type"),
    ("a case less in the report", lambda f: f.file(JUNIT, report([e for e in lines() if e.get("case") != C and e["event"] != "collected"]), seal=True), "junit.xml lacks the case suites.a.test_a::test_c, which the journal has"),
    ("a case more in the report", lambda f: f.file(JUNIT, f.members[JUNIT].replace(b"</testsuite>", b'<testcase classname="x" name="y"/></testsuite>', 1), seal=True), "junit.xml has the case x::y, which the journal lacks"),
    ("a total of the report", lambda f: f.file(JUNIT, f.members[JUNIT].replace(b'failures="1"', b'failures="0"', 1), seal=True), "junit.xml says failures=0; by the journal it is 1"),
    ("a text of the report", lambda f: f.file(JUNIT, f.members[JUNIT].replace(b"Traceback", b"Nothing"), seal=True), "junit.xml has other texts than the journal"),
]  # fmt: skip


def _zip(change: Callable[[zipfile.ZipFile, dict[str, bytes]], object]) -> bytes:
    buffer = io.BytesIO()
    members = Forger.of().members
    with zipfile.ZipFile(buffer, "w") as archive:
        change(archive, members)
    return buffer.getvalue()


def member(name: str, data: bytes = b"x", *, times: int = 1, **facts: Any) -> Callable[[], bytes]:
    def change(archive: zipfile.ZipFile, members: dict[str, bytes]) -> None:
        for _ in range(times):
            info = zipfile.ZipInfo("placeholder")
            info.filename = info.orig_filename = name
            info.create_system, info.external_attr = 3, 0o100644 << 16
            for key, value in facts.items():
                setattr(info, key, value)
            archive.writestr(info, data, compress_type=facts.get("compress_type"))
        for each, content in members.items():
            info = zipfile.ZipInfo(each)
            info.create_system, info.external_attr = 3, 0o100644 << 16
            archive.writestr(info, content)

    return lambda: _zip(change)


def _encrypted() -> bytes:
    data = bytearray(zipped(Forger.of().members))
    data[data.index(b"PK\1\2") + 8] |= 1
    return bytes(data)


def _overlapping() -> bytes:
    """Return an archive in which each member's data is the whole archive up to there."""
    data = bytearray(zipped({f"run/{number}": b"x" * 1000 for number in range(3)}))
    start = -1
    for _ in range(3):
        start = data.index(b"PK\1\2", start + 1)
        data[start + 20 : start + 28] = (3000).to_bytes(4, "little") * 2
    return bytes(data)


HOSTILE: list[tuple[str, Callable[[], bytes], str]] = [
    ("leads out", member("run/../../etc/passwd"), "'run/../../etc/passwd' is not allowed in an archive: its name leads out of the folder"),
    ("absolute", member("/etc/passwd"), "'/etc/passwd' is not allowed in an archive: its name is an absolute path"),
    ("drive", member("C:passwd"), "'C:passwd' is not allowed in an archive: its name is an absolute path"),
    ("backslash", member("run\\x"), "its name has a backslash"),
    ("control", member("run/\x1b[2J"), "its name has control characters"),
    ("hidden direction", member("run/\u202egpj.exe"), "its name has control characters, or characters that are not shown"),
    ("folder", member("run/x/", b""), "'run/x/' is not allowed in an archive: it is a folder"),
    ("empty part", member("run//x"), "'run//x' is not allowed in an archive: its name has empty parts"),
    ("long", member("x" * 2000), "its name has 2000 characters, expected 1 to 1024"),
    ("link", member("run/x", external_attr=0o120777 << 16), "'run/x' is a symbolic link"),
    ("device", member("run/x", external_attr=0o060644 << 16), "'run/x' is not a regular file"),
    ("case", member("RUN/JUNIT.XML"), "differ only in upper and lower case"),
    ("file and folder", member("run"), "'run' is a file, and 'run/environment.json' needs it to be a folder"),
    ("bomb", member("run/x", b"\0" * 10_000_000, compress_type=zipfile.ZIP_DEFLATED), "'run/x' is compressed, from 10000000 bytes to"),
    ("encrypted", _encrypted, "is encrypted"),
    ("overlapping", _overlapping, "they overlap"),
    ("another tool", member("run/x"), "of the archive belongs to none of its files and is not what harness package writes"),
]  # fmt: skip
