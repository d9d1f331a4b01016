"""Checks this machine and makes the folders of a run before it begins."""

from __future__ import annotations

import difflib
import importlib.util
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from harness.configuration import options
from harness.core import linux, temp_folder
from harness.core.errors import HarnessError, WriteError
from harness.core.outcome import EXIT_INTERNAL
from harness.devices.device import Device
from harness.gating import patterns
from harness.scheduling import device_leases
from harness.sim.interposer import front
from harness.sim.native import provider
from harness.sim.native.provider import ProvidedDevice


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
