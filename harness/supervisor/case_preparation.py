"""The decisions about a case before it runs: seed, time limit, devices, gate, waivers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path

import pytest

from harness.collection.cases import CASE_ID
from harness.configuration.context import RunContext
from harness.configuration.values import case_time_limit
from harness.core.caseid import case_seed
from harness.core.errors import HarnessError
from harness.devices import capabilities
from harness.devices.capabilities import Capabilities
from harness.devices.device import Device, Inventory
from harness.fixtures import kept
from harness.gating import policy as rules
from harness.gating import requirements, waivers
from harness.gating.policy import Policy
from harness.gating.requirements import Unmet
from harness.gating.waivers import Waiver
from harness.marks import all_marks, marks_of, nearest_mark
from harness.scheduling import leases
from harness.scheduling.resumption import Resumption
from harness.supervisor.case import Case
from harness.supervisor.device_pool import DevicePool

_PREPARED = pytest.StashKey[tuple[str, Case]]()


class CasePreparation:
    """Makes the decisions about the cases of one worker. They depend on the device that it uses."""

    def __init__(
        self,
        context: RunContext,
        policy: Policy,
        inventory: Inventory,
        pool: DevicePool,
        resumption: Resumption,
        *,
        slots: int,
    ) -> None:
        """`slots`: the number of cases that may use one device at once."""
        self._context = context
        self._policy = policy
        self._inventory = inventory
        self._pool = pool
        self._resumption = resumption
        self._slots = slots
        self._today = datetime.now(UTC).date()
        self._capabilities: dict[str, Capabilities] = {}

    def prepare(self, item: pytest.Item) -> Case:
        """Return the decisions about a case. They are made once per device."""
        device = self._pool.device
        decided = item.stash.get(_PREPARED, None)
        if decided is None or decided[0] != device.uuid:
            item.stash[_PREPARED] = decided = device.uuid, self._decide(item, device)
        return decided[1]

    def _decide(self, item: pytest.Item, device: Device) -> Case:
        offered = self._offered(device)
        marks = all_marks(item)  # once, since each call walks all nodes above the item
        wanted = requirements.requirements_from_marks(_named(marks, "requires"))
        case_id = item.stash[CASE_ID]
        unmet = requirements.first_unmet(wanted, offered)
        lacking = self._lacking_type(item, marks)
        memory = requirements.memory_wanted(wanted)
        alone = bool(_named(marks, "serial"))
        return Case(
            item=item,
            id=case_id,
            seed=case_seed(self._context.seed, case_id),
            limit=case_time_limit(
                _named(marks, "timeout"), self._context.case_timeout, self._context.timeout_multiplier
            )
            + (self._context.endurance if _named(marks, "endurance") else 0.0),
            devices=requirements.devices_wanted(wanted, per_rank=device.backend.accelerator),
            unmet=lacking or unmet,
            objection=rules.rule_on_gate(self._policy, wanted, offered) if unmet and not lacking else None,
            waivers=self._waivers(item, case_id, _named(marks, "leaks"), offered),
            share=self._share(device, memory, alone=alone),
            memory=memory,
            # Ranks are forks of the process, which must not have used a device.
            own_process=bool(_named(marks, "own_process")) or requirements.wants_ranks(wanted),
            keeps=keeps.text if _named(marks, "keeps") and (keeps := kept(item)) is not None else "",
            before=self._resumption.attempts.get(case_id, 0),
            finished=case_id in self._resumption.finished,
        )

    def _waivers(
        self, item: pytest.Item, case_id: str, leaks: Sequence[pytest.Mark], offered: Capabilities
    ) -> tuple[Waiver, ...]:
        found = (
            *_own_waivers(item, case_id, leaks),
            *waivers.applying_waivers(self._policy.waivers, case_id, offered, self._today),
        )
        return waivers.waivers_without_checks(found) if self._context.leak_check == "off" else found

    def _lacking_type(self, item: pytest.Item, marks: Iterable[pytest.Mark]) -> Unmet | None:
        """Return why the case is gated by a type that the hardware file says its device lacks; None otherwise."""
        without = self._policy.without_types
        if not without:
            return None
        needed = requirements.types_needed(requirements.parameter_types(item), _named(marks, "types"))
        return requirements.first_lacking(needed, without, self._policy.hardware)

    def whole_devices(self, item: pytest.Item) -> int:
        """Return how many whole devices a case takes; 0 if its slot on one device is enough.

        The number is 1 for a case alone on a device that others share.
        """
        try:
            wanted = requirements.requirements_from_marks(marks_of(item, "requires"))
            count = requirements.devices_wanted(wanted, per_rank=self._pool.device.backend.accelerator)
        except HarnessError:  # an invalid mark is reported elsewhere
            return 0
        if count > 1:
            return count
        memory, alone = requirements.memory_wanted(wanted), nearest_mark(item, "serial") is not None
        share = self._share(self._pool.device, memory, alone=alone)
        return 1 if self._slots > 1 and share == leases.ALONE else 0

    def _share(self, device: Device, memory: int, *, alone: bool) -> Fraction:
        """Return the share of a device for a case that declares `memory`, or that has the mark ``serial``.

        For devices that are not hardware, the share is the same for all cases. Otherwise a claim to another share would
        end an executor needlessly.
        """
        hardware = device.backend.hardware
        return leases.share_of(self._slots, memory if hardware else 0, device.memory, alone=alone and hardware)

    def _offered(self, device: Device) -> Capabilities:
        """Return the capabilities of a device."""
        if device.uuid not in self._capabilities:
            cache = Path(self._context.temp_dir) / "capabilities"
            self._capabilities[device.uuid] = capabilities.detect_capabilities(self._inventory, device, cache)
        return self._capabilities[device.uuid]


def slots_per_device(wanted: int, workers: int, inventory: Inventory) -> int:
    """Return the number of places on each device: `wanted`, or more if the run has more workers than places."""
    return max(wanted, -(-workers // len(inventory.usable)))


def _named(marks: Iterable[pytest.Mark], name: str) -> list[pytest.Mark]:
    return [mark for mark in marks if mark.name == name]


def _own_waivers(item: pytest.Item, case_id: str, marks: Sequence[pytest.Mark]) -> tuple[Waiver, ...]:
    """Return the waivers in the case's own marks."""
    if not marks:
        return ()  # reading the location is expensive
    path, line, _ = item.location
    source = f"{path}:{(line or 0) + 1}"
    return tuple(waivers.waiver_from_mark(mark, case_id, source) for mark in marks)
