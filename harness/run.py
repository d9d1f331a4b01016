"""A run from the controller's side: set up once, told to every worker, reported at the end."""

from __future__ import annotations

import dataclasses
import gc
import os
import platform
import random
import secrets
import shutil
import sys
import tempfile
import time
from pathlib import Path

import pytest

from harness import options
from harness.context import RunContext
from harness.devices.device import CPU, Inventory
from harness.isolation.nursery import Zygote
from harness.isolation.spec import ZygoteSpec, overriding_arguments
from harness.outcome import EXIT_NOTHING_RAN, EXIT_OK
from harness.reporting import environment, junit
from harness.reporting import journal as journals
from harness.reporting.events import End
from harness.reporting.journal import Journal
from harness.reporting.ledger import Ledger
from harness.scheduling.leases import LeaseBook


class Run:
    """One run, in the process that controls it."""

    def __init__(self, config: pytest.Config, inventory: Inventory, *, plugin_argument: bool) -> None:
        """Make the run directory and all that the workers need. Raises pytest.UsageError for options that cannot be."""
        self.begun = time.monotonic()
        self.inventory = inventory
        self.devices = inventory.gpus or (CPU,)
        self.leases = LeaseBook([device.uuid for device in self.devices])
        self.ledger: Ledger | None = None
        isolation = options.get(config, "isolation")
        self.aside = options.steps_aside(config) if isolation != "none" else None
        if self.aside:
            isolation = "none"
        seed = options.get(config, "seed")
        run_id = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
        invocation = config.invocation_params
        run_dir = self._make_run_dir(invocation.dir, options.get(config, "results_dir"), run_id)
        basetemp = config.getoption("basetemp", None)
        temp = invocation.dir / basetemp / run_id if basetemp else Path(tempfile.mkdtemp(prefix="harness-"))
        settings = {name: options.get(config, name) for name in ("case_timeout", "timeout_multiplier", "fail_on_flaky")}
        self.zygote: Zygote | None = None
        context = RunContext(
            run_id=run_id,
            run_dir=str(run_dir),
            temp_dir=str(temp),
            rootdir=str(config.rootpath),
            invocation_dir=str(invocation.dir),
            args=tuple(str(argument) for argument in invocation.args),
            overrides=overriding_arguments(
                xdist=config.pluginmanager.has_plugin("xdist"),
                logging=config.pluginmanager.has_plugin("logging"),
            ),
            sys_path=tuple(sys.path),
            preload=tuple(config.getini("harness_preload")),
            seed=random.SystemRandom().getrandbits(32) if seed is None else seed,
            isolation=isolation,
            plugin_argument=plugin_argument,
            controller=os.getpid(),
            zygote=None,
            **settings,
        )
        argv = ["pytest", *context.args]
        self.journal = Journal(run_dir / journals.FILE_NAME)
        self.journal.append(
            {
                "event": "run",
                "schema": journals.SCHEMA,
                "run_id": run_id,
                "argv": argv,
                "seed": context.seed,
                "isolation": isolation,
                "host": platform.node(),
                "pid": os.getpid(),
                "devices": [device.uuid for device in self.devices],
                "fail_on_flaky": context.fail_on_flaky,
                "rootdir": context.rootdir,
            }
        )
        facts = environment.collect(
            inventory, argv=argv, seed=context.seed, isolation=isolation, rootdir=config.rootpath
        )
        environment.write(run_dir, facts)
        if isolation != "none":
            spec = ZygoteSpec.of(context, skip_early_exit_handlers=not inventory.gpus)
            self.zygote = Zygote(spec, folder=invocation.dir, log=run_dir / "zygote.log")
        self.context = context.with_zygote(self.zygote.address if self.zygote else None)

    @property
    def run_dir(self) -> Path:
        return Path(self.context.run_dir)

    def worker_down(self, worker: str, error: object | None) -> None:
        """A worker has ended: its device is free. One that died is a finding, since it never runs a case itself."""
        self.leases.give_back(worker)
        if error:
            message = f"worker {worker} died ({error}); what it had not finished is lost or went to others"
            self.journal.append({"event": "finding", "kind": "worker", "message": message, "cases": []})

    def report(self, status: int) -> int:
        """Write the end of the journal and junit.xml; returns the run's exit status, given pytest's own.

        What pytest found is never made milder, but its "all passed" is not believed: the ledger decides.
        """
        # Everything alive now outlives the report: without this the collector walks through xdist's reports again and
        # again while the ledger is built, which doubles the time that takes for 10,000 cases.
        gc.freeze()
        ledger = Ledger.from_journal(journals.read(self.context.journal))
        gc.unfreeze()
        if status in (EXIT_OK, EXIT_NOTHING_RAN) and (ledger.verdicts or ledger.findings):
            status = ledger.exit_status()
        elif status == EXIT_OK:
            status = EXIT_NOTHING_RAN
        duration = round(time.monotonic() - self.begun, 3)
        self.journal.append({"event": "end", "exit_status": status, "duration": duration})
        end = End(event="end", t=time.time(), exit_status=status, duration=duration)
        self.ledger = dataclasses.replace(ledger, end=end)
        junit.write(self.run_dir, self.ledger)
        return status

    def close(self) -> None:
        """End the zygote; remove what is empty of the temporary folder."""
        if self.zygote is not None:
            self.zygote.close()
            self.zygote = None
        temp = Path(self.context.temp_dir)
        if temp.is_dir() and not any(temp.iterdir()):
            shutil.rmtree(temp, ignore_errors=True)

    @staticmethod
    def _make_run_dir(base: Path, wanted: Path | None, run_id: str) -> Path:
        run_dir = (base / wanted if wanted is not None else base / "results" / run_id).resolve()
        if (run_dir / journals.FILE_NAME).exists():
            raise pytest.UsageError(f"--results-dir={str(wanted)!r} holds a run already: name another folder")
        try:
            run_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise pytest.UsageError(f"--results-dir={str(run_dir)!r} cannot be made: {error.strerror}") from None
        return run_dir
