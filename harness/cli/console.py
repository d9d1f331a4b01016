"""The console that commands print to, and their help texts."""

from __future__ import annotations

import os
import re
import shlex
import sys
from typing import TYPE_CHECKING, Any

from typer.core import TyperGroup

from harness.core.errors import HarnessError
from harness.core.text import inert_line

if TYPE_CHECKING:
    from rich.console import Console

_UNLIMITED = 100_000  # columns
#: What rich takes for markup, as in `rich.markup.escape`, whose import would take longer than most commands.
_MARKUP = re.compile(r"(\\*)(\[[a-z#/@][^[]*?])")


def say(line: str, *, err: bool = False) -> None:
    """Print one line, whatever the texts in it contain. Commands print all texts of runs with this or `say_styled`."""
    print(inert_line(line), file=sys.stderr if err else sys.stdout, flush=True)


def say_lines(text: str) -> None:
    """Print a text of several lines, whose writer has made the texts of runs inert, see `inert_line`."""
    print("".join(f"{inert_line(line)}\n" for line in text.removesuffix("\n").split("\n")), end="")


def say_styled(console: Console, line: str, style: str | None = None) -> None:
    """Print one line as `say` does. A terminal does not wrap it, so that a command stays on one line for copying."""
    console.print(inert_line(line), style=style, soft_wrap=True)


def make_console(*, err: bool = False) -> Console:
    """Return a console that prints text unchanged, to standard output or, with `err`, to standard error.

    In a file or a pipe, each table row is one line of any length. ``$COLUMNS`` sets another width, in columns.
    """
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False, stderr=err)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _UNLIMITED
    return console


def shell_words(option: str, text: str) -> tuple[str, ...]:
    """Return the words of an option's value, split as a shell does. Raise HarnessError."""
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise HarnessError(f"{option}={text!r}: expected words as in a shell ({error})") from None


def group_with_default(name: str) -> type[TyperGroup]:
    """Return the class of a group of commands in which the command `name` may be left out."""

    class Group(TyperGroup):
        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            own = {*self.commands, "--help"}
            return super().parse_args(ctx, args if not args or args[0] in own else [name, *args])

    return Group


def with_verbatim_help(command: Any) -> Any:
    """Escape the help texts of a command and of those below it, since rich leaves out words in brackets as markup.

    Return the command, as `typer.main.get_command` makes it.
    """
    for each in (command, *command.params):
        for name in ("help", "short_help", "epilog"):
            if text := getattr(each, name, None):
                setattr(each, name, _MARKUP.sub(r"\1\1\\\2", text))
    for below in getattr(command, "commands", {}).values():
        with_verbatim_help(below)
    return command
