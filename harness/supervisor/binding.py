"""What an executor is bound to: devices, environment and settings."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness.backends.backend import DeviceKind
from harness.backends.table import device_variables
from harness.configuration.context import RunContext
from harness.devices.device import Device, masks_for
from harness.fixtures import CaseSettings
from harness.gating import requirements
from harness.gating.policy import Policy
from harness.sim.native import faults
from harness.supervisor import compiler_caches
from harness.zygote.spec import executor_environment

_XDIST_VARIABLES = ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "PYTEST_XDIST_TESTRUNUID")


@dataclass(frozen=True, slots=True)
class Binding:
    """What an executor is bound to: devices (by UUID), environment, and the `workerinput` of its xdist worker.

    `kind` is that of the devices. `library`: for software devices, the backend to load. `leak_check` is
    ``--leak-check``: off, fast or full. `race_check`: the devices check the order of work. `snapshots`: the
    executor writes the allocator's snapshot when a case fails. `settings`: the settings of the run that cases may read.
    `unused`: the executor does not use a software device before the case, which has its own process and may fork.
    `echo`: its output is shown at once.
    """

    devices: tuple[str, ...]
    kind: DeviceKind
    environment: Mapping[str, str | None]
    workerinput: Mapping[str, object] | None
    leak_check: str
    race_check: bool = False
    library: str | None = None
    snapshots: bool = False
    settings: CaseSettings = field(default_factory=CaseSettings)
    unused: bool = False
    echo: bool = False

    @property
    def device_variables(self) -> dict[str, str | None]:
        """The variables of the environment that select the devices."""
        return variables_of_devices(self.environment)


def variables_of_devices(environment: Mapping[str, str | None]) -> dict[str, str | None]:
    """Return the variables of an executor's environment that select its devices."""
    names = device_variables()
    return {name: value for name, value in environment.items() if name in names and value}


class Bindings:
    """Makes the bindings of one worker's executors."""

    def __init__(self, context: RunContext, policy: Policy, workerinput: Mapping[str, object] | None) -> None:
        """`workerinput`: what an executor gets of the input of its xdist worker; None without xdist."""
        self._context = context
        self._policy = policy
        self._workerinput = workerinput

    def bind(self, devices: Sequence[Device]) -> Binding:
        """Return the binding of an executor to these devices, of which there is at least one."""
        context = self._context
        backend = devices[0].backend
        visible: dict[str, str | None] = {**masks_for(devices)}
        # Use the values of this process: a conftest may have changed them in the zygote after the devices were counted.
        visible |= {name: os.environ.get(name) for name in backend.variables}
        visible |= context.variables | backend.stated
        if backend.injectable:
            visible[backend.faults_variable] = faults.join_injections(context.inject) or None
        visible |= compiler_caches.variables(Path(context.run_dir), os.environ)
        return Binding(
            devices=tuple(device.uuid for device in devices),
            kind=devices[0].kind,
            environment=executor_environment(os.environ, {**visible, **self.types}, _XDIST_VARIABLES),
            workerinput=self._workerinput,
            leak_check=context.leak_check,
            race_check=context.race_check,
            library=context.library,
            snapshots="allocator" in context.collect_on_failure,
            settings=self.settings,
            echo=context.echo,
        )

    @property
    def types(self) -> dict[str, str | None]:
        """The environment variable with the types that the device lacks."""
        return {requirements.VARIABLE: ",".join(self._policy.without_types) or None}

    @property
    def settings(self) -> CaseSettings:
        """The settings of the run that cases may read."""
        return CaseSettings(self._context.endurance, self._policy.floors, self._policy.hardware)
