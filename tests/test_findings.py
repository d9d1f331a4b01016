"""Every consumer of a run shows its findings: one journal with each kind of finding and each verdict, all consumers.

A command that is not listed here fails the test, and so does a kind of finding that occurs in the source but not in the
table of kinds.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

import harness
from harness.cli.main import app
from harness.core.caseid import digest_of_ids
from harness.core.outcome import EXIT_OK, EXIT_RED, Outcome
from harness.journal import identity, journal, reader
from harness.journal.events import Finding, RunStarted
from harness.journal.identity import FINDING_KINDS
from harness.journal.ledger import Ledger
from harness.reporting import terminal
from harness.tools.cluster import run as cluster_run
from harness.tools.cluster.record import ClusterRecord
from harness.tools.cluster.sessions import SessionLines
from harness.tools.evidence import manifest, record, verify
from tests.journal import journals
from tests.reporting import build
from tests.tools.cluster.fake_rules import fake_rules

HARNESS = Path(harness.__file__).parent
GPU = "GPU-11111111-0000-0000-0000-000000000000"
#: A case for each verdict.
CASES = {outcome: f"suites/a/test_a.py::{outcome.value}_case" for outcome in Outcome}
ENVIRONMENT = {
    "schema": 1,
    "driver": "580.1",
    "versions": {"torch": "2.13.0"},
    "devices": [{"uuid": GPU, "kind": "cuda", "name": "NVIDIA H100"}],
}


def message(kind: str) -> str:
    return f"what is wrong in {kind}"


def lines(shard: str = "", *, green: bool = False) -> list[build.Line]:
    """Return a run with each verdict and each kind of finding; if `green`, one in which all cases have passed."""
    on: dict[str, Any] = {"devices": [GPU]}
    ids = list(CASES.values())
    selection: dict[str, Any] = {"selection": digest_of_ids(sorted(ids)), "selected": ids} if shard else {}
    head = [
        build.run(devices=[GPU], shard=shard, run_id="green" if green else "red"),
        build.collected(*ids, **selection),
        build.executor(**on),
    ]
    if green:
        ran = [line for case in ids for line in (build.start(case, **on), build.finish(case, **on))]
        return [*head, *ran, build.executor(state="ended", exit_status=0), build.end()]
    found = [
        build.finding(message(kind), kind=kind, cases=[CASES[Outcome.PASSED]], reproduce=f"pytest the-{kind}")
        for kind in FINDING_KINDS
    ]
    ran = [line for outcome in Outcome for line in case_lines(outcome, on)]
    return [*head, *ran, *found, build.executor(state="ended", exit_status=0), build.end(exit_status=1)]


def case_lines(outcome: Outcome, on: dict[str, Any]) -> list[build.Line]:
    case = CASES[outcome]
    if outcome is Outcome.FLAKY:
        return [{**line, **on} for line in build.broke_and(case, Outcome.FAILED, Outcome.PASSED)]
    more: dict[str, Any] = {"message": f"why it is {outcome}"} if outcome is not Outcome.PASSED else {}
    if outcome is Outcome.GATED:
        more["gate"] = {"capability": "memory", "wanted": ">=80GiB", "found": "12GiB"}
    if outcome is Outcome.WAIVED:
        more["ruling"] = build.ruling(Outcome.WAIVED, "waived: a known problem")
    ended = Outcome.FAILED if outcome is Outcome.WAIVED else outcome
    return [build.start(case, **on), build.finish(case, ended, **more, **on)]


@pytest.fixture(scope="module")
def red(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("runs") / "red", lines())


@pytest.fixture(scope="module")
def green(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("runs") / "green", lines(green=True))


def written(folder: Path, made: list[build.Line]) -> Path:
    return journals.write_bytes(folder, b"".join(journals.encoded(made)), ENVIRONMENT)


def harness_(*words: object, status: int = EXIT_OK) -> str:
    """Return the output of the command."""
    done = CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "400"})
    assert done.exit_code == status, (done.output, done.exception)
    return done.output


# ---- the consumers: each returns what a person or a program sees of the run `red`, beside the run `green` ----


def diff(form: str) -> Callable[[Path, Path, Path], str]:
    def shown(red: Path, green: Path, _: Path) -> str:
        strict = harness_("diff", green, red, f"--format={form}", "--strict", status=EXIT_RED)
        assert strict == harness_("diff", green, red, f"--format={form}", status=EXIT_RED)
        return strict.replace("\\", "")

    return shown


def matrix(file: str) -> Callable[[Path, Path, Path], str]:
    def shown(red: Path, green: Path, out: Path) -> str:
        page, values = out / "matrix.html", out / "matrix.json"
        text = harness_("matrix", red, green, "-o", page, "--json", values, status=EXIT_RED)
        return {"text": text, "page": page.read_text(), "json": values.read_text()}[file]

    return shown


def history(*words: str) -> Callable[[Path, Path, Path], str]:
    return lambda red, _, __: harness_("devices", "--history", red, *words)


def merged(_: Path, __: Path, out: Path) -> str:
    shard = written(out / "shard", lines("1/1"))
    harness_("report", "merge", shard, "-o", out / "merged", status=EXIT_RED)
    return (out / "merged" / journal.FILE_NAME).read_text()


def report(*words: str, status: int = EXIT_OK) -> Callable[[Path, Path, Path], str]:
    return lambda red, _, __: harness_("report", words[0], red, *words[1:], status=status)


def page(red: Path, _: Path, out: Path) -> str:
    harness_("report", "html", red, "-o", out / "page.html")
    return (out / "page.html").read_text()


def summary_and_annotations(red: Path, _: Path, out: Path) -> str:
    """GitHub shows ten annotations: three of them are findings, however many cases are red."""
    found = harness_("report", "markdown", red, "--annotations", "-o", out / "summary.md").splitlines()
    assert sum(line.startswith("::error title=finding ") for line in found) == 3
    return (out / "summary.md").read_text()


def evidence(red: Path, _: Path, __: Path) -> str:
    """Return the manifest of an archive, and the output of its verification."""
    files = {name: (red / name).read_bytes() for name in (journal.FILE_NAME, "environment.json")}
    known = record.read_evidence_record(files, red)
    made = manifest.make_manifest(manifest.summary_of(known, complete=True), {}, {})
    verified = "\n".join(verify.verification_lines(known, made))
    assert f"{len(FINDING_KINDS)} findings" in verified
    return manifest.manifest_bytes(made).decode() + verified


def cluster(red: Path, _: Path, out: Path) -> str:
    """Return the head's records of a node's lines, and its output at the end."""
    contents = reader.read_run_journal(red / journal.FILE_NAME)
    made = ClusterRecord(out)
    session = SessionLines("n1", 1, next(e for e in contents.events if isinstance(e, RunStarted)))
    made.begin(session, fake_rules(), run_id="c", argv=[], devices=[GPU])
    for event in contents.events:
        if event.event not in ("run", "collected", "end"):
            made.copy("n1", 1, event)
    assert made.findings == len(FINDING_KINDS)
    made.close()
    said: list[str] = []
    assert cluster_run.write_reports(out, interrupted=False, seconds=1.0, log=said.append) == EXIT_RED
    kept = [event for event in reader.read_run_journal(out / journal.FILE_NAME).events if isinstance(event, Finding)]
    assert [each.reproduce for each in kept][: len(FINDING_KINDS)] == [f"pytest the-{kind}" for kind in FINDING_KINDS]
    return "\n".join(said)


def remembered(red: Path, green: Path, out: Path) -> str:
    """Return the news of a run compared with the previous one. Red cases have messages; flaky ones are not news."""
    db = out / "history.duckdb"
    harness_("history", "add", green, red, "--db", db)
    return harness_("history", "report", "--run", "red", "--db", db)


def reported(red: Path, green: Path, out: Path) -> str:
    """Return the notification about a run after a green one."""
    db, rules = out / "history.duckdb", out / "notify.yaml"
    harness_("history", "add", green, red, "--db", db)
    rules.write_text("channels: {out: {kind: json, url_env: HOOK}}\nroutes: [{to: [out]}]\n")
    return harness_("notify", "red", "--db", db, "--rules", rules, "--dry-run")


def summary(red: Path, _: Path, __: Path) -> str:
    """Return the output of a run at its end."""
    found = terminal.terminal_summary(
        Ledger.from_journal(reader.read_run_journal(red / journal.FILE_NAME)), red, blocks=False
    )
    assert found[0].endswith(f"; {len(FINDING_KINDS)} findings")
    return "\n".join(found)


EVERY = frozenset(Outcome)
#: Verdicts that are news beside a run in which all cases have passed: a waiver is not a failure.
CHANGED = EVERY - {Outcome.PASSED, Outcome.WAIVED}
BAD = frozenset(outcome for outcome in Outcome if outcome.is_red or outcome is Outcome.FLAKY)
RED = frozenset(outcome for outcome in Outcome if outcome.is_red)
NONE: frozenset[Outcome] = frozenset()

#: By the command's words, or by a name: the output, the verdicts in it, and whether it has messages.
CONSUMERS: dict[str, tuple[Callable[[Path, Path, Path], str], frozenset[Outcome], bool]] = {
    "diff": (diff("text"), CHANGED, True),
    "diff markdown": (diff("markdown"), CHANGED, True),
    "diff json": (diff("json"), CHANGED, True),
    "history report": (remembered, RED, True),
    "notify": (reported, RED, True),
    "matrix page": (matrix("text"), NONE, True),
    "matrix page, the page": (matrix("page"), EVERY, True),
    "matrix page, the JSON": (matrix("json"), EVERY, True),
    "devices": (history(), NONE, False),
    "devices --json": (history("--json"), NONE, False),
    "report merge": (merged, NONE, True),
    "report show": (report("show", status=EXIT_RED), EVERY, True),
    "report junit": (report("junit", "-o", "-"), EVERY - {Outcome.PASSED, Outcome.FLAKY}, True),
    "report junit gitlab": (report("junit", "-o", "-", "--junit-flavour=gitlab"), CHANGED - {Outcome.FLAKY}, True),
    "report html": (page, EVERY, True),
    "report json": (report("json"), EVERY, True),
    "report markdown": (summary_and_annotations, EVERY, True),
    "report prometheus": (report("prometheus"), EVERY, False),
    "package": (evidence, EVERY, True),
    "cluster run": (cluster, EVERY, True),
    "the end of a run": (summary, EVERY, True),
}
#: Commands that read no run, or only the parts named here.
OTHERS = {
    "backend check": "no run",
    "backend list": "no run",
    "bisect": "the cases before one case",
    "catalog": "no run",
    "conformance": "the verdicts of levels: a finding makes no case of a level red",
    "cluster manifest": "no run",
    "durations": "durations of cases",
    "faults list": "no run",
    "history add": "see history report --run: it prints the number of runs",
    "history bisect": "red cases of one group",
    "history export": "the pages of runs, with what history report --run prints",
    "history prune": "no run",
    "history sql": "what the query asks for",
    "import": "results of other tools",
    "matrix plan": "no run",
    "report as": "see the command of each format",
    "ready": "no run but its own",
    "run": "it is pytest",
    "sim doctor": "no run",
    "sim env": "no run",
    "sim export": "no run",
    "sim import": "no run",
    "sim run": "no run but the program",
    "sim shell": "no run",
    "verify": "see package: what it prints is made of the manifest",
    "waivers lint": "no run",
    "waivers update": "findings about waivers, as proposals",
}


@pytest.mark.parametrize("name", CONSUMERS)
def test_a_consumer_shows_every_kind_of_finding_and_every_verdict(
    name: str, red: Path, green: Path, tmp_path: Path
) -> None:
    consumer, outcomes, messages = CONSUMERS[name]
    shown = consumer(red, green, tmp_path)
    # Markdown for GitHub escapes punctuation by number, so nothing in it is markup.
    plain = shown.replace("&#95;", "_").replace("&#45;", "-")
    assert not [kind for kind in FINDING_KINDS if kind not in plain]
    assert not [kind for kind in FINDING_KINDS if messages and message(kind) not in plain]
    assert not [outcome for outcome in outcomes if outcome.value not in plain.lower()]


@pytest.mark.parametrize("name", ["bisect", *OTHERS, *(name for name in CONSUMERS if name in ("diff", "package"))])
def test_each_name_is_one_of_a_command(name: str) -> None:
    assert name in {*commands()}


def test_every_command_is_a_consumer_or_says_why_not() -> None:
    assert not {*commands()} - {*CONSUMERS} - {*OTHERS}


def commands(group: Any = None, words: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield the words of each command."""
    group = typer.main.get_command(app) if group is None else group
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*words, name))
        else:
            yield " ".join((*words, name))


# ---- the kinds ----

_MAKERS = {"add_finding", "_add_finding", "_finding", "finding", "ConfigProblem", "WaiverFault"}


def kinds_in(path: Path) -> Iterator[str]:
    """Yield the kinds of findings that a source file creates."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=[ast.Constant(value=str(kind)), *_]):
                if name in _MAKERS:
                    yield kind
            case ast.Call(func=ast.Name(id="Finding"), keywords=keywords):
                for keyword in keywords:
                    if keyword.arg == "kind" and isinstance(keyword.value, ast.Constant):
                        assert isinstance(keyword.value.value, str)
                        yield keyword.value.value


def test_the_table_has_every_kind_that_the_source_makes() -> None:
    made = {kind for path in HARNESS.rglob("*.py") for kind in kinds_in(path)}
    assert made == {*FINDING_KINDS}
    assert made >= identity.OF_SESSION


def test_the_page_about_verdicts_explains_every_kind() -> None:
    text = (HARNESS.parent / "docs" / "verdicts.md").read_text()
    assert [kind for kind, what in FINDING_KINDS.items() if f"| `{kind}` | {what} |" not in text] == []
