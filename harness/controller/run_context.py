"""Makes what all processes of a run share: the run directory, the seed, and the facts in `RunContext`."""

from __future__ import annotations

import os
import random
import secrets
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.configuration import arguments, command_line, options, values
from harness.configuration.context import RunContext
from harness.configuration.rootdir import RootFolder
from harness.controller.plan import Plan
from harness.core.errors import HarnessError
from harness.devices.device import Device
from harness.journal import journal as journals
from harness.scheduling.resume import EarlierRun, InterruptedRun, RunLock, nothing_to_continue, set_aside
from harness.sim.native.provider import ProvidedDevice
from harness.zygote.spec import collection_overrides


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The run directory, its lock (None: the run that is continued has it), and lines about it for people."""

    path: Path
    run_id: str
    lock: RunLock | None = None
    notes: tuple[str, ...] = ()


def claim_run_folder(plan: Plan, interrupted: InterruptedRun | None, base: Path) -> RunFolder:
    """Make and lock the run directory of a run, which is relative to `base`. Raises pytest.UsageError."""
    run_id = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
    if interrupted is not None:
        return RunFolder(interrupted.run_dir, run_id)
    resume, wanted = plan.settings["resume"], plan.settings["results_dir"]
    run_dir = (base / (resume or wanted or Path("results") / run_id)).resolve()
    option = f"{'--resume' if resume else '--results-dir'}={str(resume or wanted or run_dir)!r}"
    if resume is None and (run_dir / journals.FILE_NAME).exists():
        raise pytest.UsageError(
            f"{option} already contains a run: name another folder, or continue that run with --resume={wanted}"
        )
    notes: tuple[str, ...] = ()
    try:
        why = nothing_to_continue(run_dir) if resume is not None else ""
        run_dir.mkdir(parents=True, exist_ok=True)
        lock = RunLock(run_dir)
        if resume is not None:
            if not nothing_to_continue(run_dir):
                raise pytest.UsageError(f"{option}: another run has begun there: type the command again")
            notes = (f"{option}: {why}, so this run starts from the beginning",)
            set_aside(run_dir)
    except HarnessError as error:
        raise pytest.UsageError(f"{option}: {error}") from None
    except OSError as error:
        raise pytest.UsageError(f"{option} cannot be made: {error.strerror}") from None
    return RunFolder(run_dir, run_id, lock, notes)


def make_context(
    config: pytest.Config,
    plan: Plan,
    folder: RunFolder,
    *,
    temp: Path,
    devices: Sequence[Device],
    isolation: str,
    software: ProvidedDevice | None,
    races: bool,
    seed: int,
    earlier: EarlierRun | None,
    interrupted: InterruptedRun | None,
    node: str,
    plugin_argument: bool,
) -> RunContext:
    """Return the facts that all processes of the run share. `temp`: the run's temporary folder.

    `races`: the devices check the order of work. `earlier`: the run whose cases this one selects. `interrupted`: the
    run that it continues. `node`: the name of the node in a cluster run, otherwise empty. `plugin_argument`: the user
    named the plugin on the command line.
    """
    settings, invocation, root = plan.settings, config.invocation_params, RootFolder.of(config)
    return RunContext(
        run_id=folder.run_id,
        run_dir=str(folder.path),
        only="" if earlier is None else str(earlier.write(temp)),
        resumption="" if interrupted is None else str(interrupted.resumption.write(temp)),
        temp_dir=str(temp),
        rootdir=root.folder,
        inifile=root.inifile,
        root_given=bool(config.getoption("inifilename") or config.getoption("rootdir")),
        confcutdir=config.getoption("confcutdir"),
        ini_values=tuple(config.getoption("override_ini") or ()),
        invocation_dir=str(invocation.dir),
        args=tuple(str(argument) for argument in invocation.args),
        root_args=command_line.arguments_with_root(config),
        taken=tuple(sorted(command_line.foreign_short_flags(config))),
        carried=_carried(config, plan),
        overrides=collection_overrides(config.pluginmanager.has_plugin),
        sys_path=tuple(sys.path),
        preload=(*config.getini("harness_preload"), *devices[0].backend.modules),
        seed=seed,
        isolation=isolation,
        plugin_argument=plugin_argument,
        controller=os.getpid(),
        zygote=None,
        case_timeout=settings["case_timeout"],
        timeout_multiplier=settings["timeout_multiplier"],
        endurance=settings["endurance"],
        fail_on_flaky=settings["fail_on_flaky"],
        health=settings["health"],
        leak_check=settings["leak_check"],
        leak_search=None if settings["leak_search"] == values.AUTO else settings["leak_search"],
        policy=plan.policy.to_json(),
        device=settings["device"],
        backend=settings["backend"],
        inject=settings["inject"],
        library=software.library if software else None,
        variables={**(software.variables if software else {}), **(devices[0].backend.race_check if races else {})},
        race_check=races,
        # A suite of this project that starts a thread at import is an error. Other suites cannot be changed here.
        start="fork" if settings["start"] == "auto" and not plugin_argument else settings["start"],
        under=settings["under"],
        slots=settings["slots"],
        shard=settings["shard"],
        collect_on_failure=settings["collect_on_failure"],
        node=node,
        echo=config.getoption("capture", None) == "no",
    )


def seed_of(plan: Plan, interrupted: InterruptedRun | None, suite_files: str) -> int:
    """Return the seed of a run: the given one, that of the run it continues, or a random one.

    The seed of a shard follows from the suites (`suite_files`: their hash), since all shards must have the same seed
    without communication.
    """
    if (given := plan.settings["seed"]) is not None:
        return int(given)
    if interrupted is not None:
        return interrupted.seed
    if plan.settings["shard"]:
        return int(suite_files.removeprefix("sha256:")[:8], 16)
    return random.SystemRandom().getrandbits(32)


def _carried(config: pytest.Config, plan: Plan) -> tuple[str, ...]:
    """Return the arguments that a reproduce line must have, and limits that are not from the ini file."""
    words = command_line.user_arguments(config)
    taken, positional = command_line.foreign_short_flags(config), config.option.file_or_dir
    kept = arguments.reproduce_arguments(words, positional, config.getini("addopts"), taken)
    for name in ("case_timeout", "timeout_multiplier", "leak_check", "race_check", "endurance"):
        option, value = options.OPTIONS[name], plan.settings[name]
        if value != options.resolve_option(name, None, {}, config.getini(option.dest)):
            flag = options.long_flag(option.flag) if option.flag in taken else option.flag
            kept.append(f"{flag}={value}".removesuffix(".0"))
    if plan.policy.floors:  # figures are compared with its floors
        option = options.OPTIONS["hardware"]
        flag = options.long_flag(option.flag) if option.flag in taken else option.flag
        kept.append(f"{flag}={plan.policy.hardware}")
    return tuple(kept)
