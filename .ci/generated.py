"""The files that the code decides: JSON schemas, and pages of the documentation.

``.ci/regenerate`` writes them; ``python .ci/generated.py --check`` names those that differ. The page of the commands is
part of the site only (`.ci/pages.py`), since ``--help`` prints the same.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec
import typer

from harness.backends import table
from harness.cli.main import app
from harness.configuration.options import INI_VALUES, OPTIONS, Option
from harness.core.structs import DocumentedStruct
from harness.core.text import markdown_row
from harness.devices.capabilities import VOCABULARY, Capability, ValueKind
from harness.fleet.matrix_model import Matrix
from harness.journal import events
from harness.ready.model import NodeReport, Step, Verdict
from harness.ready.rules import OWN, RULES
from harness.reporting.report_json import Report
from harness.tools.plan import PlanFile

ROOT = Path(__file__).resolve().parent.parent
REGENERATE = ".ci/regenerate"

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


# ---- capabilities ----

_TYPES: Mapping[ValueKind, str] = {
    ValueKind.TEXT: "text",
    ValueKind.BOOL: "true or false",
    ValueKind.COUNT: "a whole number, 1 or more",
    ValueKind.BYTES: "a size in bytes; a condition needs a unit",
    ValueKind.VERSION: "numbers separated by dots; a condition can also be `True` (present) or `False` (absent)",
}


def capabilities_page() -> str:
    """Return the vocabulary as a page for authors of cases."""
    lines = [
        "# Capabilities",
        "",
        "What a case can require of device, driver and software. This page is generated from",
        f"`harness/devices/capabilities.py`: change the code, then run `{REGENERATE}`.",
        "",
        "`harness devices --capabilities` prints the values on this machine, and [writing-cases.md](writing-cases.md)",
        "describes how to write conditions.",
        "",
        "A capability is detected when a case first requires it, and then keeps its value. An absent capability has a",
        "reason, and meets no condition except `False`.",
        "",
        "| type | values |",
        "| --- | --- |",
        *(markdown_row([kind.value, _TYPES[kind]]) for kind in ValueKind),
        "",
        "| capability | type | what it is | how it is detected |",
        "| --- | --- | --- | --- |",
        *(
            markdown_row([f"`{name}`", _type(entry), _choices(entry), entry.source])
            for name, entry in VOCABULARY.items()
        ),
        "",
        "The probe is a separate process. It sees only the one device and has a time limit. It is killed with all its",
        "children. If it crashes, hangs or gives an invalid answer, the capability is absent, with that reason. The",
        "run keeps its answers by driver, torch and device, so that only one of several workers starts a probe.",
    ]
    return "\n".join(lines) + "\n"


def _type(entry: Capability) -> str:
    return entry.kind.value if entry.unit in ("", entry.kind.value) else f"{entry.kind.value}, {entry.unit}"


def _choices(entry: Capability) -> str:
    """Return the text with the possible values for the kinds of this project.

    Those of other kinds depend on the machine.
    """
    choices = [choice for choice in entry.choices() if choice in table.own_kinds()]
    return f"{entry.text}; {' or '.join(f'`{choice}`' for choice in choices)}" if choices else entry.text


# ---- next steps ----

_STEPS_HEAD = f"""\
# Problems and next steps

This page is generated from `harness/ready/rules.py`. Change the code, then run `{REGENERATE}`.

Each problem that [`harness ready`](ready.md) reports has a kind, and the kind decides the verdict and the one next step.
The source is the document that the row follows; *own* is a rule of this project, which [ready.md](ready.md) explains.
A file replaces fields of rows, by kind:

    # steps.yaml, for harness ready --steps steps.yaml
    processes: {{verdict: not_ready}}
    log_unreadable: {{verdict: degraded, step: nothing}}

| field | values |
| --- | --- |
"""  # noqa: E501
_VERDICTS = ", ".join(f"`{verdict}`" for verdict in Verdict)
_STEPS = ", ".join(f"`{step}` ({step.text})" if step.text != step.value else f"`{step}`" for step in Step)


def steps_page() -> str:
    """Return the page of problems and next steps."""
    lines = [
        markdown_row(("`verdict`", _VERDICTS)),
        markdown_row(("`step`", _STEPS)),
        markdown_row(("`source`", "a text for the report")),
        "",
        markdown_row(("kind", "problem", "verdict", "next step", "source")),
        markdown_row(["---"] * 5),
    ]
    for kind, rule in RULES.items():
        source = "own" if rule.source == OWN else f"[{rule.source.split('/')[2]}]({rule.source})"
        lines.append(markdown_row((f"`{kind}`", rule.text, rule.verdict.text, rule.step.text, source)))
    return _STEPS_HEAD + "\n".join(lines) + "\n"


# ---- schemas ----


def schema_text(schema: Mapping[str, Any], **head: str) -> str:
    """Return the contents of a schema file. `head`: its title and description."""
    dialect = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return json.dumps({**dialect, **head, **schema}, indent=2) + "\n"


def struct_schema(kind: Any) -> dict[str, Any]:
    """Return the JSON schema of a type of documented structs."""
    schema: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(msgspec.json.schema(kind)))
    for struct in _structs(DocumentedStruct):
        properties = schema.get("$defs", {}).get(struct.__name__, {}).get("properties", {})
        for parent in struct.__mro__:
            for name, text in _field_texts(parent).items():
                if name in properties:
                    properties[name].setdefault("description", text)
    return schema


def _structs(parent: type[msgspec.Struct]) -> list[type[msgspec.Struct]]:
    return [parent, *(struct for child in parent.__subclasses__() for struct in _structs(child))]


def _field_texts(struct: type) -> dict[str, str]:
    """Return the string below each field in the source of a class."""
    if not issubclass(struct, msgspec.Struct) or struct is msgspec.Struct:
        return {}
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(struct))).body
    assert isinstance(node, ast.ClassDef)
    encoded = dict(zip(struct.__struct_fields__, struct.__struct_encode_fields__, strict=True))
    return {
        encoded[field.target.id]: inspect.cleandoc(below.value.value)
        for field, below in zip(node.body, node.body[1:], strict=False)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) and isinstance(below.value.value, str)
    }


# ---- all files ----

FILES: Mapping[str, Callable[[], str]] = {
    "docs/capabilities.md": capabilities_page,
    "docs/options.md": options_page,
    "docs/ready-steps.md": steps_page,
    "harness/fleet/matrix.schema.json": lambda: schema_text(Matrix.model_json_schema(mode="serialization")),
    "harness/journal/journal.schema.json": lambda: schema_text(
        struct_schema(events.Event),
        title="A line of journal.ndjson",
        description=f"Schema {events.SCHEMA}. Each line of a journal is one JSON object of one of these kinds.",
    ),
    "harness/ready/ready.schema.json": lambda: schema_text(
        struct_schema(NodeReport), title="The report of harness ready"
    ),
    "harness/reporting/report.schema.json": lambda: schema_text(struct_schema(Report)),
    "harness/tools/plan.schema.json": lambda: schema_text(PlanFile.model_json_schema()),
}


def main(*, check: bool) -> int:
    """Write the files that differ, or only name them. Return 1 if a check finds one."""
    made = {ROOT / name: text() for name, text in FILES.items()}
    stale = [path for path, text in made.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    for path in stale:
        print(f"{path.relative_to(ROOT)} is not what the code makes of it: run {REGENERATE}")
        if not check:
            path.write_text(made[path], encoding="utf-8")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main(check="--check" in sys.argv[1:]))
