"""Profiles: the cases that must run, and the settings.

The files are in ``configs/profiles/``; ``docs/profiles.md`` describes every key.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from harness.backends.table import parse_device
from harness.core.models import StrictModel
from harness.devices.capabilities import VOCABULARY
from harness.gating import configfile
from harness.gating.configfile import Conditions, ConfigError, Loaded, Where

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
