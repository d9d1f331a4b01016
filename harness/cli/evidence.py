"""Statements about a run: ``harness conformance``, and ``harness package`` and ``harness verify`` for evidence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

from harness.cli.console import say
from harness.cli.installed import configs_with
from harness.core.atomic import write_atomically
from harness.core.errors import HarnessError, convert_to_write_error
from harness.core.outcome import EXIT_RED
from harness.core.text import format_count

#: The most reasons that are printed. A hostile archive could otherwise fill a terminal or a log.
_MOST = 1000


def package(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN", help="The run directory: the folder of journal.ndjson.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The archive to write.")],
    sign: Annotated[
        Path | None,
        typer.Option(
            metavar="KEY",
            help="Sign with this OpenSSH key, into FILE.sig. For a public key, the agent must hold the private key.",
        ),
    ] = None,
    unfinished: Annotated[
        bool, typer.Option("--unfinished", help="Also pack an incomplete run. harness verify refuses it.")
    ] = False,
) -> None:
    """Pack a run directory into one file that others can verify with harness verify FILE.

    The archive contains the run directory, the must-pass lists and waivers of the run, and manifest.json with the
    claim, the results, and the SHA-256 of every file. The same run always gives the same bytes.

    Exit status: 0 packed, even if the run is red; 1 harness verify would refuse the archive; 4 RUN is not a run
    directory or FILE cannot be written.
    """
    from harness.tools.evidence import archive
    from harness.tools.evidence.package import Package

    if sign is not None and not sign.is_file():
        raise archive.SignatureError(f"--sign={str(sign)!r}: there is no such key")
    run = Package.of(run_dir)
    refused = [problem for problem in run.problems if not (problem.unfinished and unfinished)]
    if refused:
        say(f"not packed: harness verify would refuse {run_dir}:", err=True)
        _list([problem.text for problem in refused])
        if all(problem.unfinished for problem in refused):
            say("use --unfinished to pack it as an unfinished run", err=True)
        raise typer.Exit(EXIT_RED)
    manifest = run.write(out)
    results = manifest.results
    say(
        f"packed {format_count(len(manifest.files) + 1, 'file')} into {out} "
        f"({out.stat().st_size} bytes): "
        f"{results.verdict}, {format_count(results.cases, 'case')}, device {manifest.claim.device}"
    )
    if manifest.left_out:
        say(f"left out {format_count(len(manifest.left_out), 'link')} below files/; manifest.json names them")
    if not manifest.complete:
        say("the run is not complete: harness verify refuses the archive")
    if sign is not None:
        say(f"signed: {archive.sign_archive(out, sign)}")


def _must_pass_list(name: str) -> Path:
    from harness.gating import configfile

    return configfile.find_config(name, Path("configs/must-pass"), "must-pass list", Path.cwd(), ".txt")


def verify(
    evidence: Annotated[Path, typer.Argument(metavar="FILE", help="An archive that harness package made.")],
    require_green: Annotated[bool, typer.Option("--require-green", help="Refuse a run that is not green.")] = False,
    require_gpu: Annotated[bool, typer.Option("--require-gpu", help="Refuse a run that was not on GPUs.")] = False,
    must_pass: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LIST",
            help="Refuse a run that did not satisfy this must-pass list (configs/must-pass; name or path). Repeatable.",
        ),
    ] = None,
    signers: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Refuse an archive without a signature by one of these (ssh-keygen: ALLOWED SIGNERS)."
        ),
    ] = None,
    identity: Annotated[str, typer.Option(metavar="WHO", help="With --signers: only this signer.")] = "",
    signature_file: Annotated[
        Path | None, typer.Option("--signature", metavar="FILE", help="The signature. Default: the archive's name.sig.")
    ] = None,
    max_size: Annotated[
        int, typer.Option(metavar="MIB", min=1, help="Refuse an archive that is larger than this.")
    ] = 2048,
    extract: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="If the archive is verified, write the run directory to this new folder."),
    ] = None,
) -> None:
    """Verify an archive: derive verdicts, totals and exit status from its journal again, and compare everything.

    Each reason for a refusal is one line. A red run is verified like a green one, unless --require-green is given.
    Without --signers, the origin of the archive is not verified.

    Exit status: 0 verified; 1 refused; 4 FILE cannot be read as an archive, or a signature cannot be examined.
    """
    from harness.gating import mustpass
    from harness.tools.evidence import archive
    from harness.tools.evidence import verify as verification
    from harness.tools.evidence.archive import ArchiveError

    if (identity or signature_file) and signers is None:
        raise typer.BadParameter("--identity and --signature need --signers: the file of allowed signers")
    demands = verification.Demands(
        require_green, require_gpu, [mustpass.read_must_pass(_must_pass_list(name)) for name in must_pass or ()]
    )
    if extract is not None and extract.exists():
        raise ArchiveError(f"--extract={str(extract)!r} exists already: name a new folder")
    with _open_archive(evidence) as file:
        verified = verification.verify_archive(file, evidence, demands, max_size << 20)
        problems, who = list(verified.problems), ""
        if signers is not None:
            who, problem = archive.signature_problem(
                file, signature_file or archive.signature_path(evidence), signers, identity
            )
            problems += [problem] if problem else []
        if problems or verified.record is None or verified.manifest is None:
            say(f"refused: {evidence}", err=True)
            _list(problems)
            raise typer.Exit(EXIT_RED)
        for line in verification.verification_lines(verified.record, verified.manifest):
            say(line)
        say("  shown: its files are unchanged since they were packed, and the results follow from its journal")
        say(f"  signed by {who}" if who else _unsigned(archive.signature_path(evidence)))
        if extract is not None:
            verification.extract_archive(file, extract)
            say(f"  extracted into {extract}")


def _list(problems: list[str]) -> None:
    for problem in problems[:_MOST]:
        say(f"  - {problem}", err=True)
    if len(problems) > _MOST:
        say(f"  … and {len(problems) - _MOST} more reasons", err=True)


def _open_archive(path: Path) -> BinaryIO:
    from harness.tools.evidence.archive import ArchiveError

    if path.exists() and not path.is_file():
        raise ArchiveError(f"{str(path)!r} is not a regular file: give an archive of harness package")
    try:
        return path.open("rb")
    except OSError as error:
        raise ArchiveError(f"cannot read {str(path)!r}: {error.strerror}") from None


def _unsigned(signature: Path) -> str:
    """Return the line about an archive whose signature was not examined."""
    there = f"; {signature} was not examined" if signature.exists() else ""
    return f"  not verified: who made it, and whether all of it was forged; --signers verifies this{there}"


class ConformanceError(HarnessError):
    """The run has no result to state."""


def conformance(
    run_dir: Annotated[
        Path | None, typer.Argument(metavar="RUN", help="The run directory.", show_default=False)
    ] = None,
    level: Annotated[
        list[str] | None, typer.Option("--level", metavar="NAME", help="Only this level; may be repeated.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="Write the statement as JSON to this file.")
    ] = None,
    keep: Annotated[
        bool,
        typer.Option(
            "--keep", help="Write conformance.json into RUN, which harness package packs and harness verify proves."
        ),
    ] = False,
    update_lists: Annotated[
        bool,
        typer.Option("--update-lists", help="Write the lists of all levels from the cases in suites, instead."),
    ] = False,
) -> None:
    """State which levels of conformance the device of a run passed or failed, and which do not apply.

    The levels are those of configs/conformance, here or of this installation. Exit status 1: a level is failed or
    incomplete.
    """
    from harness.gating import levels

    configs = configs_with("conformance")
    if update_lists:
        from harness.catalog.catalog import collect_catalog

        collected = collect_catalog(levels.folders(configs))
        # The cases of a run without options.
        entries = {entry.id: entry.requires for entry in collected if not entry.extended}
        for listed in levels.update_lists(configs, entries):
            say(f"{listed.name}: {format_count(len(listed.ids), 'case')}, {listed.hash}")
        return
    if run_dir is None:
        raise ConformanceError("no run is named: give its directory, such as results/20261126-120000-abcdef")
    from harness.journal import environment
    from harness.journal.ledger import Ledger
    from harness.tools import conformance as tool

    ledger = Ledger.of(run_dir)
    try:
        facts = json.loads((run_dir / environment.FILE_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConformanceError(f"cannot read {environment.FILE_NAME} of {str(run_dir)!r}") from error
    chosen = levels.load_levels(configs, level or ())
    statement = tool.make_statement(ledger, tool.software_of(facts), chosen)
    for line in tool.statement_lines(statement):
        say(line)
    if output is not None:
        output.write_text(json.dumps(statement.as_json(), indent=2) + "\n", encoding="utf-8")
    if keep:
        with convert_to_write_error(f"{str(run_dir)!r}"):
            write_atomically(run_dir / tool.FILE_NAME, tool.kept_bytes(statement, chosen))
    if any(result.state in (tool.FAILED, tool.INCOMPLETE) for result in statement.levels):
        raise typer.Exit(EXIT_RED)
