"""The help of every command: each text as it was written, and the commands in groups."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import typer

from harness.cli.console import with_verbatim_help
from harness.cli.main import app
from tests.breaks.__main__ import app as breaks

#: The command `run` has pytest's own help.
_NO_HELP = ("run",)


def _commands(command: Any, *names: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield names, command
    for name, below in getattr(command, "commands", {}).items():
        yield from _commands(below, *names, name)


def _texts(command: Any) -> list[str]:
    """Return the help texts of a command, its options and the commands below it, as they were written."""
    below = [(one.help or "").partition("\n\n")[0] for one in getattr(command, "commands", {}).values()]
    return [text for text in [command.help, *(getattr(one, "help", None) for one in command.params), *below] if text]


def _words(text: str) -> str:
    return " ".join(text.replace("│", " ").split())


@pytest.mark.parametrize("application", [app, breaks], ids=["harness", "tests.breaks"])
def test_every_help_text_is_printed_as_it_was_written(
    application: typer.Typer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written = dict(_commands(typer.main.get_command(application)))
    shown: Any = with_verbatim_help(typer.main.get_command(application))
    monkeypatch.setenv("COLUMNS", "2000")
    monkeypatch.setenv("NO_COLOR", "1")
    missing = []
    for names, command in written.items():
        if names in {(name,) for name in _NO_HELP}:
            continue
        shown([*names, "--help"], standalone_mode=False)
        printed = _words(capsys.readouterr().out)
        missing += [
            f"{' '.join(names)}: {text}"
            for text in _texts(command)
            if any(_words(part) not in printed for part in text.split("\n\n"))
        ]
    assert not missing, "\n".join(missing)


def test_every_command_is_in_one_group() -> None:
    command: Any = typer.main.get_command(app)
    listed = command.list_commands(None)
    assert sorted(listed) == sorted(command.commands)
    assert all(one.rich_help_panel for one in command.commands.values())


def test_the_groups_are_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    typer.main.get_command(app)(["--help"], standalone_mode=False)
    printed = capsys.readouterr().out
    titles = [line.strip("╭─╮ ") for line in printed.splitlines() if line.startswith("╭")]
    assert titles == ["Options", "Run", "Look", "Compare", "Operate", "Maintain"]
