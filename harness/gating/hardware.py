"""Kinds of hardware: the properties of a device of a kind, and the promises of its machine. Pure functions.

The files are ``configs/hardware/<name>.yaml``; ``docs/profiles.md`` describes every key. If a device does not match the
file, the run refuses to start. A broken promise is a finding. A case that is gated although the promises meet all its
requirements is a failure.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, ValidationError, model_validator

from harness.core import figures
from harness.core.models import StrictModel
from harness.devices.capabilities import VOCABULARY, Capabilities
from harness.gating import configfile, requirements, types
from harness.gating.configfile import Conditions, Loaded
from harness.gating.implication import implication
from harness.gating.requirements import Unmet


def _flat_conditions(written: dict[str, Any]) -> dict[str, Any]:
    nested = [name for name in written if name not in VOCABULARY]
    if nested:
        raise ValueError(f"{nested[0]!r} is not allowed here: write one condition for each capability")
    for condition in requirements.parse_requirements(written):
        if not implication([condition], []).can_hold:
            raise ValueError(f"{condition} cannot hold on any machine")
    return written


def _names_the_device(written: dict[str, Any]) -> dict[str, Any]:
    if "device" not in written:
        raise ValueError("the key 'device' is missing: write device: cuda or device: cpu")
    return written


def _floors(written: dict[str, Any]) -> dict[str, str]:
    problems = []
    for name, text in written.items():
        try:
            figures.parse_floor(name, text)
        except ValueError as error:
            problems.append(configfile.value_problem((name,), text, str(error)))
    if problems:
        raise ValidationError.from_exception_data("floors", problems)
    return written


def _known_type(name: str) -> str:
    if name not in types.KNOWN:
        raise ValueError(f"{name!r} is no type of torch: expected one of {', '.join(types.KNOWN)}")
    return name


TypeName = Annotated[str, AfterValidator(_known_type)]
Facts = Annotated[Conditions, AfterValidator(_flat_conditions)]
FloorTexts = Annotated[dict[str, Any], AfterValidator(_floors)]


class Hardware(StrictModel):
    """A kind of hardware. `device` identifies it; `offers`: further conditions that hold on its machine.

    `floors`: the least speed of a healthy device, by figure, as written. `without_types`: the types that tensors on the
    device cannot have.
    """

    description: Annotated[str, Field(min_length=1)]
    device: Annotated[Facts, AfterValidator(_names_the_device)]
    offers: Facts = Field(default_factory=dict)
    floors: FloorTexts = Field(default_factory=dict)
    without_types: tuple[TypeName, ...] = ()

    @model_validator(mode="after")
    def _check_each_capability_once(self) -> Self:
        twice = [name for name in self.offers if name in self.device]
        if twice:
            raise ValueError(f"{twice[0]!r} is in both 'device' and 'offers': keep one")
        return self


def load_hardware(name: str, configs: Path, base: Path) -> Loaded[Hardware]:
    """Load the hardware file `name`: a name in ``<configs>/hardware``, or a path from `base`. Raise ConfigError."""
    return configfile.load_config(configfile.find_config(name, configs / "hardware", "hardware", base), Hardware)


def hardware_mismatches(hardware: Hardware, capabilities: Capabilities) -> list[Unmet]:
    """Return every condition on the device that does not hold. Empty if the device is of this kind.

    Here ``device: cpu`` holds only for the CPU. As a requirement of a case it holds on every machine.
    """
    unmet = _unmet(hardware.device, capabilities)
    wanted = str(hardware.device["device"])
    if capabilities["device"] != wanted and not any(mismatch.capability == "device" for mismatch in unmet):
        unmet.insert(0, Unmet("device", wanted, capabilities.describe("device"), ("device",)))
    return unmet


def broken_hardware(hardware: Hardware, capabilities: Capabilities) -> list[Unmet]:
    """Return every promise of this kind of hardware that does not hold on the machine."""
    return _unmet(hardware.offers, capabilities)


def _unmet(conditions: Mapping[str, Any], capabilities: Capabilities) -> list[Unmet]:
    # One at a time, because `first_unmet` returns only the first unmet condition.
    results = (
        requirements.first_unmet([condition], capabilities) for condition in requirements.parse_requirements(conditions)
    )
    return [unmet for unmet in results if unmet is not None]
