"""No text of a run can forge a line of a command, or act on a terminal: one hostile journal, all commands."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import harness
from harness.cli import main
from harness.cli.main import app
from harness.core.caseid import digest_of_ids
from harness.core.outcome import EXIT_RED, Outcome
from harness.journal import journal, reader
from harness.tools.evidence import manifest, record, verify
from tests import test_findings
from tests.journal import journals
from tests.reporting import build

FORGED = "  signed by the vendor"
#: Ends a line in each way, colours, moves and hides text.
HOSTILE = "".join(f"{end}{FORGED}" for end in ("\n", "\r", "\r\n", "\x0b", "\x0c", "\x1c", "\x85", "\u2028")) + (
    "\x1b[31m\x1b]8;;http://x\x07\x9b2J\x7f\x08\x00\u202e\u2066"
)
#: What may not reach a terminal: controls, other ends of lines, marks that turn text round.
ACTIVE = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
#: Fields whose values are words of the harness, numbers, or the keys by which the commands below name what they want.
FIXED = {"event", "outcome", "state", "hash", "isolation", "run_id", "shard", "uuid", "kind", "expires", "expect"}
GPU = test_findings.GPU


def hostile(value: Any, key: str = "") -> Any:
    """Return the value with every text spoiled, except the values of `FIXED`."""
    if isinstance(value, dict):
        return {name: hostile(item, name) for name, item in value.items()}
    if isinstance(value, list):
        return [hostile(item, key) for item in value]
    return value if not isinstance(value, str) or key in FIXED or value in ("", GPU) else value + HOSTILE


def lines(shard: str = "", **facts: Any) -> list[build.Line]:
    made = [
        *test_findings.lines(shard),
        build.finding("what is wrong", kind=f"unknown{HOSTILE}"),
        build.waiver(test_findings.CASES[Outcome.WAIVED]),
        build.must_pass(*test_findings.CASES.values(), name=f"core{HOSTILE}"),
    ]
    made[0] |= {"profile": "nightly", "hardware": "h100", "label": "a label", "run_id": f"red{shard}", **facts}
    made = [hostile(line) for line in made]
    for line in made:
        if line["event"] == "collected":
            line["hash"] = digest_of_ids(line["ids"])
            line |= {"selection": digest_of_ids(sorted(line["ids"]))} if shard else {}
        if line["event"] == "must_pass":
            line["hash"] = digest_of_ids(line["ids"])
    return made


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("runs") / "red", lines())


@pytest.fixture(scope="module")
def green(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return test_findings.written(tmp_path_factory.mktemp("runs") / "green", test_findings.lines(green=True))


def written(folder: Path, made: list[build.Line]) -> Path:
    data = b"".join(journals.encoded(made)) + b'{"event": "\\u001b[31m\\nforged", "t": 1}\n{"\x1b\n'
    journals.write_bytes(folder, data, hostile(test_findings.ENVIRONMENT))
    contents = reader.read_run_journal(folder / journal.FILE_NAME)
    assert (len(contents.damaged), len(contents.unknown)) == (1, 1), contents.damaged
    return folder


def run(*words: object, status: int = 0) -> str:
    done = CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "4000"})
    # Errors of the harness become a line in `main`, which the runner does not call.
    assert done.exit_code == status, (done.output, done.exception)
    return done.output


def merged(_: Path, __: Path, out: Path) -> str:
    shard = written(out / "shard", lines("1/1"))
    (shard / journal.FILE_NAME).write_bytes(b"".join(journals.encoded(lines("1/1"))))
    return run("report", "merge", shard, "-o", out / "merged", status=EXIT_RED)


def refused_merge(_: Path, __: Path, out: Path) -> str:
    parts = [written(out / name, lines(name.replace("-", "/"), rootdir=name)) for name in ("1-2", "2-2")]
    return run("report", "merge", *parts, "-o", out / "merged", status=EXIT_RED)


def matrix(red: Path, green: Path, out: Path) -> str:
    return run("matrix", "page", red, green, "-o", out / "m.html", status=EXIT_RED)


def evidence(red: Path, _: Path, __: Path) -> str:
    files = {name: (red / name).read_bytes() for name in (journal.FILE_NAME, "environment.json")}
    known = record.read_evidence_record(files, red)
    made = manifest.make_manifest(manifest.summary_of(known, complete=True), {}, {})
    foreign = made.model_copy(update={"claim": made.claim.model_copy(update=hostile(made.claim.model_dump()))})
    printed = [*verify.verification_lines(known, made), *verify.verification_lines(known, foreign)]
    return "".join(f"{line}\n" for line in printed)


def of_history(*words: str) -> Callable[[Path, Path, Path], str]:
    def shown(red: Path, green: Path, out: Path) -> str:
        db = ("--db", out / "history.duckdb")
        added = run("history", "add", green, red, *db)
        failure = json.loads(run("history", "sql", "FROM failures LIMIT 1", "--json", *db))
        wanted = [failure[word.lower()] if word in ("CASE", "GROUP") else word for word in words]
        return added + run("history", *wanted, *db)

    return shown


def notify(red: Path, green: Path, out: Path) -> str:
    db, rules = out / "history.duckdb", out / "notify.yaml"
    run("history", "add", green, red, "--db", db)
    rules.write_text("channels: {out: {kind: json, url_env: HOOK}}\nroutes: [{to: [out]}]\n")
    return run("notify", "red", "--db", db, "--rules", rules, "--dry-run")


def imported(_: Path, __: Path, out: Path) -> str:
    name = f"a{FORGED}&#10;{FORGED}&#x85;{FORGED}&#x9b;"
    (out / "j.xml").write_text(f'<testsuite name="{name}"><testcase name="{name}" classname="{name}"/></testsuite>')
    printed = run("import", out / "j.xml", "-o", out / "imported", "--name", "other")
    return printed + run("report", "show", out / "imported")


CONSUMERS: dict[str, Callable[[Path, Path, Path], str]] = {
    "report show": lambda red, _, __: run("report", "show", red, "--growth", status=EXIT_RED),
    "report markdown": lambda red, _, __: run("report", "markdown", red),
    "report markdown --annotations": lambda red, _, out: run(
        "report", "markdown", red, "--annotations", "-o", out / "summary.md"
    ),
    "report prometheus": lambda red, _, __: run("report", "prometheus", red),
    "report json": lambda red, _, __: run("report", "json", red),
    "report merge": merged,
    "report merge, refused": refused_merge,
    "diff": lambda red, green, _: run("diff", green, red, status=EXIT_RED),
    "diff markdown": lambda red, green, _: run("diff", green, red, "--format=markdown", status=EXIT_RED),
    "matrix page": matrix,
    "devices --history": lambda red, _, __: run("devices", "--history", red),
    "package": lambda red, _, out: run("package", red, "-o", out / "e.zip", status=EXIT_RED),
    "verify": evidence,
    "history report": of_history("report"),
    "history report --run": of_history("report", "--run", "red"),
    "history report --case": of_history("report", "--case", "CASE"),
    "history bisect": of_history("bisect", "GROUP"),
    "history sql": of_history("sql", "FROM failures"),
    "notify": notify,
    "durations": lambda red, _, __: run("durations", red),
    "waivers update": lambda red, _, __: run("waivers", "update", red),
    "import": imported,
}


#: Documents whose blocks of code show tracebacks line by line.
BLOCKS = {"report markdown"}


@pytest.mark.parametrize("name", CONSUMERS)
def test_no_text_of_a_run_forges_a_line_or_acts_on_a_terminal(
    name: str, run_dir: Path, green: Path, tmp_path: Path
) -> None:
    shown = CONSUMERS[name](run_dir, green, tmp_path)
    assert shown
    forged = [line for line in shown.split("\n") if line.startswith((FORGED, FORGED.strip()))]
    assert not forged or name in BLOCKS
    assert [ascii(line) for line in shown.split("\n") if ACTIVE.search(line)] == []


def test_an_error_that_quotes_a_run_is_one_line(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["harness", "bisect", str(run_dir), f"no such case{HOSTILE}"])
    with pytest.raises(SystemExit):
        main.main()
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    assert printed.startswith("harness: ")
    assert ACTIVE.search(printed) is None


@pytest.mark.parametrize(
    "path", sorted((Path(harness.__file__).parent / "cli").glob("*.py")), ids=lambda path: path.name
)
def test_commands_print_with_the_functions_that_make_lines_inert(path: Path) -> None:
    """Other output is a report in a format of its own (bytes), a table of inert cells, or no text of a run."""
    if path.name in ("console.py", "reference.py"):
        return
    calls = [ast.unparse(node.func) for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    assert {*calls}.isdisjoint({"print", "typer.echo", "click.echo", "sys.stdout.write", "sys.stderr.write"})
