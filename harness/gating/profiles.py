"""Profiles, the cases that must run and the settings; and kinds of hardware, what their machines promise.

The files are in ``configs/profiles/``; ``docs/profiles.md`` describes every key.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, model_validator

from harness.backends.table import parse_device
from harness.core import figures
from harness.core.models import StrictModel
from harness.devices.capabilities import VOCABULARY, Capabilities
from harness.gating import configfile, requirements
from harness.gating.configfile import Conditions, ConfigError, Loaded, Where
from harness.gating.implication import implication
from harness.gating.requirements import Unmet

# Kinds of hardware: the properties of a device of a kind, and the promises of its machine. Pure functions.
#
# The files are ``configs/hardware/<name>.yaml``; ``docs/profiles.md`` describes every key. If a device does not match
# the file, the run refuses to start. A broken promise is a finding. A case that is gated although the promises meet all
# its requirements is a failure.


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
    if name not in requirements.KNOWN:
        raise ValueError(f"{name!r} is no type of torch: expected one of {', '.join(requirements.KNOWN)}")
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


_MOST_SLOTS = 64
_MOST = 1000  # repeats or retries: a larger number is a typing error


def _capability(name: Any) -> Any:
    if isinstance(name, str) and name not in VOCABULARY:
        raise ValueError(f"{name!r} is not a capability; {configfile.name_advice(name, list(VOCABULARY))}")
    return name


def _pattern(text: str) -> str:
    if text != text.strip() or text.startswith("/"):
        raise ValueError(
            f"{text!r} matches no case: an id starts with a folder, such as suites/, and has no spaces around it"
        )
    return text


def _device_kind(text: str) -> str:
    try:
        return parse_device(text)
    except ValueError as error:
        raise ValueError(f"{text!r}: expected {error}") from None


def _narrowing(requires: dict[str, Any]) -> dict[str, Any]:
    if requires.get("device") == "cpu":
        raise ValueError("device: cpu holds on every machine; for machines without a GPU write hardware: cpu")
    return requires


Text = Annotated[str, Field(min_length=1)]
Pattern = Annotated[Text, AfterValidator(_pattern)]
Capability = Annotated[str, BeforeValidator(_capability)]
Positive = Annotated[float, Field(gt=0)]
Seconds = Annotated[float, Field(ge=0, le=1e9)]
DeviceKind = Annotated[str, AfterValidator(_device_kind)]


class Profile(StrictModel):
    """The selection of cases and the settings of a run.

    For None, the setting comes from the ini file or its default. `group`: the profile names a group of suites, which
    `harness catalog` shows.
    """

    description: Text
    group: bool = False
    device: DeviceKind | None = None
    suites: Annotated[tuple[Text, ...], Field(min_length=1)] | None = None
    cases: Annotated[tuple[Pattern, ...], Field(min_length=1)] | None = None
    exclude: tuple[Pattern, ...] = ()
    extended: bool | None = None
    isolation: Literal["batch", "case"] | None = None
    case_timeout: Positive | None = None
    endurance: Seconds | None = None
    timeout_multiplier: Positive | None = None
    repeats: Annotated[int, Field(ge=1, le=_MOST)] | None = None
    retries: Annotated[int, Field(ge=0, le=_MOST)] | None = None
    shuffle: bool | None = None
    slots: Annotated[int, Field(ge=1, le=_MOST_SLOTS)] | None = None
    fail_on_flaky: bool | None = None
    leak_search: Literal["auto", "off"] | Seconds | None = None
    collect_on_failure: Literal["off", "auto", "all"] | None = None
    requires: Annotated[Conditions, AfterValidator(_narrowing)] = Field(default_factory=dict)
    gates: Literal["all"] | tuple[Capability, ...] = "all"
    skips: Literal["allowed", "forbidden"] = "allowed"
    waivers: tuple[Text, ...] = ()
    must_pass: tuple[Text, ...] = ()
    minimum_cases: Annotated[int, Field(ge=1)] = 1
    hardware: Text | None = None
    report: tuple[Text, ...] = ()


def load_profile(name: str, configs: Path, base: Path) -> Loaded[Profile]:
    """Load the profile `name`: a name in ``<configs>/profiles``, or a path from `base`.

    Check that the files it names exist, below `configs` or at a path from `base`, without reading them. Raise
    ConfigError with one line per problem.
    """
    loaded = configfile.load_config(configfile.find_config(name, configs / "profiles", "profile", base), Profile)
    problems = []
    if loaded.value.group and loaded.value.suites is None:
        problems.append(loaded.problem("a group needs the key 'suites', with the suites that it consists of", "group"))
    for where, file in _files(loaded.value):
        folder, noun, suffix = _FOLDERS[where[0]]
        try:
            configfile.find_config(file, configs / folder, noun, base, suffix)
        except ConfigError as error:
            problems.append(loaded.problem(str(error), *where))
    if problems:
        raise ConfigError("\n".join(problems))
    return loaded


def suite_groups(configs: Path) -> dict[str, str]:
    """Return the group of each suite: the name of the profile in ``<configs>/profiles`` that has it and is a group.

    Raise ConfigError for a profile with an error, and for a suite in two groups.
    """
    found: dict[str, str] = {}
    for path in sorted((configs / "profiles").glob("*.yaml")):
        loaded = load_profile(path.stem, configs, Path())
        for index, suite in enumerate(loaded.value.suites or () if loaded.value.group else ()):
            if (other := found.setdefault(suite, path.stem)) != path.stem:
                text = f"{suite!r} is in the group {other!r} too; remove it from one of the two"
                raise ConfigError(loaded.problem(text, "suites", index))
    return found


# For each key that names files: their folder below the configuration, the noun for errors, and their suffix.
_FOLDERS: dict[str | int, tuple[str, str, str]] = {
    "waivers": ("waivers", "waiver file", ".yaml"),
    "must_pass": ("must-pass", "must-pass list", ".txt"),
    "hardware": ("hardware", "hardware", ".yaml"),
}


def _files(profile: Profile) -> Iterator[tuple[Where, str]]:
    for index, name in enumerate(profile.waivers):
        yield ("waivers", index), name
    for index, name in enumerate(profile.must_pass):
        yield ("must_pass", index), name
    if profile.hardware is not None:
        yield ("hardware",), profile.hardware
