"""Generate two pages of the documentation from the code: the options and the commands.

``python -m harness.cli.reference`` prints ``docs/options.md``. The page of the commands is part of the site only, since
``--help`` prints the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import typer

from harness.cli.main import app
from harness.configuration.options import INI_VALUES, OPTIONS, Option
from harness.core.text import markdown_row

REGENERATE = "python -m harness.cli.reference > docs/options.md"

#: Pages with more about an option, with their link texts.
PAGES: Mapping[str, str] = {
    "device": "[any device](backends.md), [simulated CUDA](simcuda.md), [software device](softdevice.md)",
    "backend": "[devices from outside](backends.md)",
    "inject": "[faults](softdevice.md#faults), [faults of CUDA](simcuda.md#faults)",
    "isolation": "[verdicts](verdicts.md)",
    "start": "[cold executors](foreign-suites.md#cold-executors)",
    "under": "[wrappers](foreign-suites.md#under-a-wrapper)",
    "profile": "[profiles](profiles.md#a-profile)",
    "hardware": "[hardware files](profiles.md#a-hardware-file)",
    "waivers": "[waivers](waivers.md)",
    "must_pass": "[must-pass lists](waivers.md#must-pass-lists)",
    "grace": "[how to stop a run](running.md#stop-a-run)",
    "results_dir": "[run directory](running.md#the-run-directory)",
    "shard": "[shards](shards-and-resume.md#shards)",
    "resume": "[resume](shards-and-resume.md#resume)",
    "force_resume": "[resume](shards-and-resume.md#resume)",
    "from": "[red cases again](shards-and-resume.md#run-the-red-cases-again)",
    "only": "[red cases again](shards-and-resume.md#run-the-red-cases-again)",
    "history": "[order](shards-and-resume.md#order)",
    "leak_check": "[leaked](verdicts.md#leaked)",
    "race_check": "[raced](verdicts.md#raced)",
    "leak_search": "[growth over many cases](verdicts.md#growth-over-many-cases)",
    "fail_on_flaky": "[flaky](verdicts.md#flaky)",
    "junit_flavour": "[JUnit](reports.md#junit)",
    "report": "[reports](reports.md#own-formats)",
    "endurance": "[endurance](does-it-compute.md#endurance)",
    "health": "[health of GPUs](running.md#health-of-gpus)",
}


def options_page() -> str:
    """Return the page with the table of options."""
    lines = [
        "# Options",
        "",
        f"This page is generated from `harness/configuration/options.py`. Change the code, then run `{REGENERATE}`.",
        "",
        "Each option can be set in the command line, the environment, a profile or the ini file.",
        "The order of priority is: marker of the case, command line, environment, profile, ini file, default.",
        "[profiles.md](profiles.md#a-profile) lists the options that a profile can set.",
        "",
        "- On the command line: `--case-timeout=60`.",
        "  The long form `--harness-case-timeout=60` works even if another plugin has an option with the short name.",
        "- In the environment: `HARNESS_CASE_TIMEOUT=60`. A switch takes `1`, `true`, `yes`, `0`, `false` or `no`.",
        "- In the ini file: `harness_case_timeout = 60`.",
        "",
        "All options of pytest work as usual. [running.md](running.md#pytests-own-options) has the details.",
        "",
        "| option | default | meaning | see also |",
        "| --- | --- | --- | --- |",
        *(
            _row([_flags(option), _default(option.default), option.help, PAGES.get(name, "")])
            for name, option in sorted(OPTIONS.items())
        ),
        "",
        "## Environment and ini file",
        "",
        "| option | environment variable | ini value |",
        "| --- | --- | --- |",
        *(_row([f"`{o.flag}`", f"`{o.variable}`", f"`{o.dest}`"]) for _, o in sorted(OPTIONS.items())),
        "",
        "## Ini values without an option",
        "",
        "| ini value | type | default | meaning |",
        "| --- | --- | --- | --- |",
        *(_row([f"`{value.name}`", value.kind, _default(value.default), value.help]) for value in INI_VALUES),
    ]
    return "\n".join(lines) + "\n"


def _flags(option: Option) -> str:
    shown = f"{option.flag}={option.metavar}" if option.takes_value else option.flag
    return ", ".join(f"`{flag}`" for flag in (shown, *option.flags[1:]))


def _default(value: Any) -> str:
    if value is None or value in ((), [], ""):
        return "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list | tuple):
        return f"`{' '.join(map(str, value))}`"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def commands_page() -> str:
    """Return the page with each command of ``harness``: help, arguments and options."""
    commands = dict(_commands("harness", typer.main.get_command(app)))
    lines = [
        "# Commands",
        "",
        "`harness COMMAND --help` prints the same text. A usage error has exit status 4.",
        "",
        "| command | |",
        "| --- | --- |",
        *(_row([f"[`{name}`](#{name.replace(' ', '-')})", _first(command)]) for name, command in commands.items()),
    ]
    for name, command in commands.items():
        lines += ["", f"## {name}", "", *_section(name, command)]
    return "\n".join(lines) + "\n"


def _commands(name: str, group: Any) -> Iterator[tuple[str, Any]]:
    """Return the commands of a group and of its subgroups, by name. typer has no public name for their types."""
    for word, command in sorted(group.commands.items()):
        if hasattr(command, "commands"):
            yield from _commands(f"{name} {word}", command)
        else:
            yield f"{name} {word}", command


def _section(name: str, command: Any) -> list[str]:
    arguments = [param for param in command.params if param.param_type_name == "argument"]
    options = [param for param in command.params if param.param_type_name == "option" and not param.hidden]
    needed = [option for option in options if option.required]
    words = [
        name,
        *(f"{option.opts[-1]} {_metavar(option)}" for option in needed),
        *(["[OPTIONS]"] if options[len(needed) :] else []),
    ]
    words += [_argument(argument) for argument in arguments] or (
        ["[PYTEST_ARGUMENTS]"] if command.allow_extra_args else []
    )
    lines = [f"    {' '.join(words)}"]
    for paragraph in re.split(r"\n\s*\n", command.help or ""):
        lines += ["", *_sentences(paragraph)]
    rows = [_row([f"`{_argument(argument)}`", _meaning(argument)]) for argument in arguments]
    rows += [_row([_option(option), _meaning(option)]) for option in options]
    return [*lines, "", "| argument or option | meaning |", "| --- | --- |", *rows] if rows else lines


def _argument(argument: Any) -> str:
    name = argument.metavar or argument.name.upper() + ("..." if argument.nargs == -1 else "")
    return name if argument.required or name.startswith(("[", "--")) else f"[{name}]"


def _option(option: Any) -> str:
    *others, last = option.opts
    shown = [*others, last if option.is_flag else f"{last} {_metavar(option)}"]
    return ", ".join(f"`{word}`" for word in (*shown, *option.secondary_opts))


def _metavar(option: Any) -> str:
    if option.metavar is None and isinstance(option.default, Enum):
        return "|".join(str(_value(choice)) for choice in type(option.default))
    return str(option.metavar or "VALUE")


def _meaning(parameter: Any) -> str:
    text = " ".join((parameter.help or "").split())
    default = _value(parameter.default)
    plain = isinstance(default, str | int | float | Path) and not isinstance(default, bool)
    if not plain or str(default) in ("", ".") or parameter.required or "default" in text.lower():
        return text
    return f"{text} Default: {_default(default)}.".strip()


def _value(word: Any) -> Any:
    return word.value if isinstance(word, Enum) else word


def _first(command: Any) -> str:
    return next(iter(_sentences((command.help or "").partition("\n\n")[0])), "")


def _sentences(text: str) -> list[str]:
    """Return the sentences of a paragraph, one per line of the page."""
    return re.split(r"(?<=[\w)\]\"'][.?]) (?=[A-Z])", " ".join(text.split()))


def _row(cells: Iterable[str]) -> str:
    """Return a table row. Text in angle brackets is escaped, except in code: a reader would take it for HTML."""
    return markdown_row(cell if cell.startswith("`") else cell.replace("<", "\\<") for cell in cells)


if __name__ == "__main__":
    print(options_page(), end="")
