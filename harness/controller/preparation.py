"""Prepares a run: checks this machine, and makes the folders, the seed, and the `RunContext` that processes share."""

from __future__ import annotations

import difflib
import importlib.util
import os
import random
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from harness.configuration import arguments as words_of
from harness.configuration import command_line, options, values
from harness.configuration.context import RunContext
from harness.configuration.rootdir import RootFolder
from harness.controller.plan import Plan
from harness.core import linux, temp_folder
from harness.core.errors import HarnessError, WriteError
from harness.core.outcome import EXIT_INTERNAL
from harness.devices.device import Device
from harness.gating import patterns
from harness.journal import journal as journals
from harness.journal.identity import make_run_id
from harness.scheduling import device_leases
from harness.scheduling.resume import EarlierRun, InterruptedRun, RunLock, nothing_to_continue, set_aside
from harness.sim.interposer import front
from harness.sim.native import provider
from harness.sim.native.provider import ProvidedDevice
from harness.zygote.spec import collection_overrides


def expect_proc() -> None:
    """Raise pytest.UsageError without /proc. It is needed to identify processes, and to check them after their case."""
    if not linux.is_proc_mounted():
        raise pytest.UsageError("harness: there is no /proc, which runs need; mount it: mount -t proc proc /proc")


def expect_assertions() -> None:
    """Raise pytest.UsageError if Python leaves out assert statements: pytest restores only those of test files."""
    if sys.flags.optimize:
        raise pytest.UsageError(
            "harness: Python leaves out the assert statements of modules that test files import, so the cases would "
            "check less: unset PYTHONOPTIMIZE, or do not use python -O"
        )


def expect_arguments(config: pytest.Config) -> None:
    """Raise pytest.UsageError if a file or folder to collect does not exist, before the run directory is made."""
    if config.getoption("pyargs"):
        return
    here = config.invocation_params.dir
    for argument in config.args:
        path = here / argument.partition("[")[0].partition("::")[0]
        if not os.path.exists(path):
            names = os.listdir(path.parent) if path.parent.is_dir() else []
            near = difflib.get_close_matches(path.name, names, n=1)
            hint = f"; did you mean {os.path.relpath(path.with_name(near[0]), here)}?" if near else ""
            raise pytest.UsageError(f"file or directory not found: {argument}{hint}")


def expect_modules(names: Sequence[str]) -> None:
    """Raise pytest.UsageError if a module of ``harness_preload`` is not installed in this environment."""
    for name in names:
        package = name.partition(".")[0]
        if importlib.util.find_spec(package) is None:
            cpu = " --index-url https://download.pytorch.org/whl/cpu on a machine without a GPU"
            raise pytest.UsageError(
                f"harness_preload needs {name}, and {package} is not installed for {sys.executable}: activate the "
                f"environment that has it, or: pip install {package}{cpu if package == 'torch' else ''}"
            )


def prepare_leases() -> None:
    """Raise pytest.UsageError if runs of this host cannot lease GPUs."""
    try:
        device_leases.prepare_board(device_leases.default_folder())
    except HarnessError as error:
        raise pytest.UsageError(str(error)) from None


def isolation_of(config: pytest.Config, settings: Mapping[str, Any]) -> tuple[str, str | None]:
    """Return the isolation of the run, and the option that made it ``none``, if any. Raises pytest.UsageError."""
    isolation = settings["isolation"]
    aside = options.isolation_off_flag(config) if isolation != "none" else None
    if aside:
        isolation = "none"
    why = f", which {aside} switches off" if aside else ""
    if isolation == "none" and settings["resume"] is not None:
        raise pytest.UsageError(f"--resume continues cases in their own processes, so it needs isolation{why}")
    if isolation == "none" and settings["verify"]:
        raise pytest.UsageError(f"--verify runs cases in fresh processes: it needs isolation{why}")
    return isolation, aside


def make_run_temp_folder(config: pytest.Config) -> Path:
    """Return the folder for temporary files of this run. Remove those of dead runs."""
    basetemp = config.getoption("basetemp", None)  # pytest itself removes everything in it
    beside = (config.invocation_params.dir / basetemp).parent if basetemp else None
    parent = beside if beside is not None and beside.is_dir() else Path(tempfile.gettempdir())
    temp_folder.remove_abandoned_temp_folders(parent)
    try:
        return temp_folder.make_temp_folder(parent)
    except WriteError as error:
        pytest.exit(f"harness: {error}; no case was run: make room, or set TMPDIR", returncode=EXIT_INTERNAL)


def provide(devices: Sequence[Device], inject: Sequence[str], *, inline: bool) -> ProvidedDevice | None:
    """Build the software device of the run and its fault injector, unless they are cached.

    None if the run needs neither. Raises pytest.UsageError.
    """
    backend = next((device.backend for device in devices if device.backend.accelerator), None)
    if backend is None:
        return None
    try:
        device = provider.provider_of(backend).provide() if backend.provider else None
        return front.add_interposer(device, backend, inject, inline=inline)
    except HarnessError as error:
        raise pytest.UsageError(f"--device={backend.kind}: {error}") from None


def checks_races(config: pytest.Config, settings: Mapping[str, Any], devices: Sequence[Device], isolation: str) -> bool:
    """Return whether the devices of the run check the order of work.

    A setting of the ini file holds for the devices that can. Raises pytest.UsageError if the user asks others for it.
    """
    if settings["race_check"] == "off":
        return False
    able = isolation != "none" and any(device.backend.race_check for device in devices)
    if not able and options.is_option_set(config, "race_check"):
        why = "no device of this run can check the order of work" if isolation != "none" else "isolation is none"
        raise pytest.UsageError(f"--race-check=on: {why}; it needs --device=simcuda, and cases in their own processes")
    return able


def arguments(config: pytest.Config) -> tuple[str, ...]:
    """Return the arguments to collect, relative to the root folder; empty if an option further restricts the selection.

    If empty, no rule is blamed for matching no case. ``.`` stands for the whole root folder.
    """
    if any(config.getoption(name, None) for name in ("lf", "ignore", "ignore_glob", "pyargs")):
        return ()
    root, here = config.rootpath, config.invocation_params.dir
    paths = [argument.partition("::") for argument in config.args]
    relative = [
        os.path.relpath(here / path, root).replace(os.sep, "/") + separator + rest for path, separator, rest in paths
    ]
    suites = [os.path.relpath(folder, root).replace(os.sep, "/") for folder in config.getini("harness_suites")]
    everything = bool(suites) and all(patterns.pattern_reaches(f"{suite}/*", relative) for suite in suites)
    return (".",) if everything else tuple(relative)


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The run directory, its lock (None: the run that is continued has it), and lines about it for people."""

    path: Path
    run_id: str
    lock: RunLock | None = None
    notes: tuple[str, ...] = ()


def claim_run_folder(plan: Plan, interrupted: InterruptedRun | None, base: Path) -> RunFolder:
    """Make and lock the run directory of a run, which is relative to `base`. Raises pytest.UsageError."""
    run_id = make_run_id()
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
        policy=plan.policy,
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
    kept = words_of.reproduce_arguments(words, positional, config.getini("addopts"), taken)
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
