"""Write the HTML report of a run directory."""

from __future__ import annotations

from pathlib import Path

from harness.core.atomic import write_atomically
from harness.journal import environment, journal, reader
from harness.journal.environment import EnvironmentFileError
from harness.journal.ledger import Ledger
from harness.journal.reader import JournalContents

FILE_NAME = "report.html"


def write_html_report(
    run_dir: Path, contents: JournalContents | None = None, out: Path | None = None, ledger: Ledger | None = None
) -> Path:
    """Write ``run_dir/report.html``, or `out`. The report depends only on the run directory; no clock is read.

    Only existing files are linked: a process may have removed its files before its end, and the files of shards and of
    the nodes of a cluster run are elsewhere.

    `contents`: the contents of the journal, if the caller has read it. `ledger`: the ledger of `contents`, if the
    caller has it. Raise JournalError if there is no readable journal of a run, WriteError if the file cannot be
    written.
    """
    # Imported here because only this function needs jinja2, and most processes import this module for its constants.
    from harness.reporting.page import document, model

    if contents is None:
        contents = reader.read_run_journal(run_dir / journal.FILE_NAME)
    problem = ""
    try:
        facts = environment.read_environment(run_dir)
    except EnvironmentFileError:
        facts, problem = None, f"{environment.FILE_NAME} is not the environment file of a run"  # the path is left out
    path = run_dir / FILE_NAME if out is None else out
    beside = path.parent.resolve() == run_dir.resolve()
    page = model.page_of(contents, facts, problem, ledger, has_files=lambda folder: (run_dir / folder).is_dir())
    return write_atomically(path, document.render_report(page, beside=beside))
