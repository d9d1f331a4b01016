"""The rules of a run: what its options and files decide, apart from the machine. Hosts with the same files agree.

The head of a cluster run reads them with a pytest of its own, so that no node can change them: in a session with
``--collect-only`` and the variable below, pytest writes them to a file and ends.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from harness.configuration import options
from harness.controller import plan, preparation, suite_files
from harness.controller.plan import Plan
from harness.core import clock
from harness.core.outcome import EXIT_OK
from harness.journal import identity
from harness.journal.events import MustPass, Waiver

#: The file to write.
VARIABLE = "HARNESS_RULES_FILE"
#: Settings that the journal has under other names, or that do not describe what was run.
_TOLD_ELSEWHERE = (
    "seed",
    "isolation",
    "fail_on_flaky",
    "profile",
    "hardware",
    "results_dir",
    "progress",
    "shard",
    "resume",
    "force_resume",
    "history",
)


def write_if_wanted(config: pytest.Config) -> None:
    """Write the rules and end the session, if another process asks for them. Raise pytest.UsageError."""
    path = os.environ.get(VARIABLE)
    if not path:
        return
    preparation.expect_arguments(config)
    made = plan.make(config)
    isolation, _ = preparation.isolation_of(config, made.settings)
    run = run_fields(made, seed=made.settings["seed"], isolation=isolation)
    lists = [msgspec.to_builtins(line) for line in list_lines(made)]
    written = {"run": run, "files": files_identity(config, made), "lists": lists}
    Path(path).write_text(json.dumps(written), encoding="ascii")
    pytest.exit("the rules are written", returncode=EXIT_OK)


def run_fields(made: Plan, *, seed: int, isolation: str) -> dict[str, Any]:
    """Return the fields of the `run` line that the rules decide, without those of `identity`."""
    return {
        "seed": seed,
        "isolation": isolation,
        "fail_on_flaky": made.settings["fail_on_flaky"],
        "profile": made.policy.profile,
        "hardware": made.policy.hardware,
        "minimum_cases": made.minimum_cases,
        "settings": {name: _plain(name, v) for name, v in made.settings.items() if name not in _TOLD_ELSEWHERE},
    }


def files_identity(config: pytest.Config, made: Plan) -> dict[str, str]:
    """Return the facts about files that must be equal if results are combined."""
    folders, files = suite_files.roots(
        [config.invocation_params.dir / argument.partition("::")[0] for argument in config.args],
        config.getini("harness_suites"),
    )
    return identity.files_identity(
        suites=suite_files.digest(config.rootpath, folders, files, config.getini("norecursedirs")),
        waivers=[waiver.to_json() for waiver in made.policy.waivers],
        lists=[(must_pass.name, must_pass.hash) for must_pass in made.lists],
    )


def list_lines(made: Plan) -> list[MustPass | Waiver]:
    """Return the journal lines of the must-pass lists and the waivers."""
    now = clock.now()
    lists = [MustPass(t=now, name=listed.name, hash=listed.hash, ids=listed.ids) for listed in made.lists]
    # A condition may hold a value of YAML that JSON lacks, such as a date.
    waivers = [json.loads(json.dumps(waiver.to_json(), default=repr)) for waiver in made.policy.waivers]
    return [*lists, *(msgspec.convert({"t": now, **waiver}, Waiver) for waiver in waivers)]


def _plain(name: str, value: Any) -> str | int | float | bool | None:
    """Return a setting as a JSON value."""
    if isinstance(value, Path):
        return str(value)
    return f"{options.OPTIONS[name].separator} ".join(value) if isinstance(value, tuple) else value
