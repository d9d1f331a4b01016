"""``harness notify``: tell people what is new in a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.cli.console import say, say_lines
from harness.cli.history import Db, answering


def notify(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN",
            help="A run directory that is in the history, a folder of such, an archive of harness package, or the id "
            "of a run.",
        ),
    ],
    rules: Annotated[
        Path, typer.Option("--rules", metavar="FILE", help="Channels, owners, routes and silences: a YAML file.")
    ] = Path("notify.yaml"),
    db: Db = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print each message and its channel. Nothing is sent.")
    ] = False,
) -> None:
    """Send messages about what is new in a run since the run before it on the same machine: groups of failures,
    and findings.

    A group that was red before is not reported again, except as a reminder. Nothing is sent if there is nothing to
    report. A channel that cannot be reached is reported on standard error.

    Exit status: 0, also if a channel could not be reached; 4 if the rules are not valid or the history has no such run.
    """
    from datetime import UTC, datetime

    from harness.core.text import format_count
    from harness.fleet import notify as notices

    loaded = notices.load_rules(rules).value
    today = datetime.now(UTC).date()
    with answering(db) as answers:
        every = [notices.bulletin(answers, answers.run_by_id(run_id), loaded, today) for run_id in _run_ids(run)]
    for note in notices.idle_silences(loaded, today):
        say(f"harness: {rules}: {note}", err=True)
    for whole in every:
        for topic in notices.without_route(whole, loaded):
            subject = topic.cases[0] if topic.cases else topic.title
            say(f"harness: {rules}: no route leads to a channel for {subject!r}, which is {topic.why}", err=True)
        sent = 0
        for name, routed in notices.by_channel(whole, loaded):
            channel = loaded.channels[name]
            if dry_run:
                missing = ", ".join(f"{variable} is not set" for variable in notices.missing_variables(channel))
                say(f"--- to {name} ({channel.kind}){f': {missing}' if missing else ''}")
                say_lines(notices.text(routed, loaded.site))
                continue
            try:
                notices.send(channel, routed, loaded.site)
            except notices.ChannelError as error:
                say(f"harness: {name}: {error}", err=True)
            else:
                sent += 1
        if not dry_run:
            say(f"{notices.title(whole)}: {format_count(sent, 'message')} sent", err=True)


def _run_ids(text: str) -> list[str]:
    """Return the ids of the runs in a run directory, a folder of them or an archive, or the text itself."""
    path = Path(text)
    if not path.exists():
        return [text]
    from harness.fleet.run import find_runs_and_archives, read_run_or_archive

    return [read_run_or_archive(folder).run.run_id for folder in find_runs_and_archives([path]).paths]
