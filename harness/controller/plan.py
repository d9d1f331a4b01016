"""The plan of a run, made from options, environment and configuration files before the run starts."""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from harness.configuration import options, values
from harness.controller import machine
from harness.core.errors import HarnessError
from harness.core.text import format_count
from harness.devices.capabilities import Capabilities
from harness.devices.device import Inventory
from harness.gating import mustpass, policy, requirements, waivers
from harness.gating.mustpass import MustPass
from harness.gating.policy import Policy
from harness.sim.native import faults

if TYPE_CHECKING:
    from harness.gating.configfile import Loaded
    from harness.gating.profiles import Hardware, Profile


#: The capabilities of each device of a run, by UUID.
Machine = Mapping[str, Capabilities]


class ConfigProblem(NamedTuple):
    """A problem of the configuration that makes the run red. No case need run to find it."""

    kind: str
    message: str


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of a run: the settings by option name, and the contents of the configuration files.

    `policy` is sent to the workers. `minimum_cases` is 0 without a profile.
    """

    settings: dict[str, Any]
    policy: Policy
    lists: tuple[MustPass, ...]
    minimum_cases: int
    profile: Loaded[Profile] | None
    hardware: Hardware | None

    def refuse_mismatches(self, machine: Machine) -> None:
        """Raise pytest.UsageError if a device does not match the hardware file or the profile."""
        problems = []
        for uuid, capabilities in machine.items():
            if self.hardware is not None:
                from harness.gating import profiles

                unmet = profiles.hardware_mismatches(self.hardware, capabilities)
                problems += [
                    f"device {uuid} does not match hardware {self.policy.hardware}: {mismatch.text}"
                    for mismatch in unmet
                ]
            if self.profile is not None:
                wanted = requirements.parse_requirements(self.profile.value.requires)
                results = [requirements.first_unmet([condition], capabilities) for condition in wanted]
                results.append(requirements.disguised_device(wanted, capabilities))
                problems += [
                    f"device {uuid} does not meet the requirements of profile {self.policy.profile}: {unmet.text}"
                    for unmet in results
                    if unmet
                ]
        if problems:
            raise pytest.UsageError("\n".join(problems))

    def problems_before_collection(self, machine: Machine, today: date) -> list[ConfigProblem]:
        """Return the problems known before collection: broken promises of the machine, and faulty waivers."""
        problems: list[ConfigProblem] = []
        if self.hardware is not None:
            from harness.gating import profiles

            problems += [
                ConfigProblem(
                    "broken_promise",
                    f"hardware {self.policy.hardware} promises what device {uuid} does not have: {unmet.text}",
                )
                for uuid, capabilities in machine.items()
                for unmet in profiles.broken_hardware(self.hardware, capabilities)
            ]
        problems += [ConfigProblem(*fault) for fault in waivers.waiver_faults(self.policy.waivers, today)]
        return problems

    def problems_after_collection(
        self,
        cases: Sequence[tuple[str, str]],
        arguments: Sequence[str],
        unread: Collection[str] = (),
        skipped: Mapping[str, str] | None = None,
    ) -> list[ConfigProblem]:
        """Return the problems known after collection. `cases` are pairs of id and suite, `arguments` those of pytest.

        `unread`: the beginnings of ids that were not collected, because the run selects none of them. `skipped`: the
        reasons of files that skipped themselves, by the beginnings of the ids of their cases.
        """
        skipped = skipped or {}
        unread = [*unread, *skipped]
        ids = [case_id for case_id, _ in cases]
        problems = [
            ConfigProblem(*fault) for fault in waivers.idle_waivers(self.policy.waivers, ids, arguments, unread)
        ]
        for start, reason in skipped.items():
            wrong = [f"profile {self.policy.profile} forbids skips"] if not self.policy.skips else []
            wrong += [
                f"must-pass list {listed.name} has {format_count(missing, 'case')} of it"
                for listed in self.lists
                if (missing := sum(case.startswith(start) for case in listed.ids))
            ]
            if wrong:
                text = f"{start.removesuffix('::')} skipped itself, but {' and '.join(wrong)}: {reason}"
                problems.append(ConfigProblem("collection_error", text))
        if self.profile is not None:
            idle = policy.idle_rules(self.policy, cases, arguments, unread)
            problems += [
                ConfigProblem(
                    "profile_matches_nothing", self.profile.problem(f"{text} matches no case of this run", *where)
                )
                for where, text in idle
            ]
            if not idle and not any(self.policy.selects(case_id, suite) for case_id, suite in cases):
                cases_text = (
                    f"{format_count(len(cases), 'case')} of this run, such as {ids[0]!r}"
                    if ids
                    else "cases of this run"
                )
                text = f"the profile selects none of the {cases_text}; look at its suites, cases and exclude"
                problems.append(ConfigProblem("profile_matches_nothing", f"{self.profile.path}: {text}"))
        return problems


@contextmanager
def _usage_errors() -> Generator[None]:
    """Raise pytest.UsageError for a HarnessError in this context: options or files are invalid."""
    try:
        yield
    except HarnessError as error:
        raise pytest.UsageError(str(error)) from None


@_usage_errors()
def inventory(config: pytest.Config) -> Inventory:
    """Return the devices of the run, selected by options and profile. Raises pytest.UsageError if there are none."""
    profile = _chosen_profile(config)
    return machine.inventory(options.get_option(config, "device", profile.value.device if profile else None))


@_usage_errors()
def slots(config: pytest.Config) -> int:
    """Return how many cases may use one GPU at the same time, by options and profile. Raises pytest.UsageError."""
    profile = _chosen_profile(config)
    return int(options.get_option(config, "slots", profile.value.slots if profile else None))


def _chosen_profile(config: pytest.Config) -> Loaded[Profile] | None:
    name = options.get_option(config, "profile")
    return _load_profile(name, configs(config), config.invocation_params.dir) if name else None


def configs(config: pytest.Config) -> Path:
    """Return the folder of profiles, hardware files, waivers, must-pass lists and durations."""
    return config.rootpath / str(config.getini("harness_configs"))


@_usage_errors()
def make(config: pytest.Config) -> Plan:
    """Make the plan. Raises pytest.UsageError for invalid options and files."""
    folder, base = configs(config), config.invocation_params.dir
    profile = _chosen_profile(config)
    preset = _preset(profile.value) if profile else {}
    settings = {option: options.get_option(config, option, preset.get(option)) for option in options.OPTIONS}
    for option in ("waivers", "must_pass", "report"):  # an option adds to the profile's and does not replace them
        settings[option] = tuple(dict.fromkeys((*(preset.get(option) or ()), *settings[option])))
    _expect_faults(settings["inject"], settings["device"])
    _expect_formats(settings["report"])
    kind = _load_hardware(settings["hardware"], folder, base) if settings["hardware"] else None
    return Plan(
        settings=settings,
        policy=_policy(settings, profile, kind, folder, base),
        lists=tuple(
            mustpass.read_must_pass(_find(name, folder / "must-pass", "must-pass list", base, ".txt"))
            for name in settings["must_pass"]
        ),
        minimum_cases=profile.value.minimum_cases if profile else 0,
        profile=profile,
        hardware=kind.value if kind else None,
    )


def _expect_faults(injections: Sequence[str], kind: str) -> None:
    """Raise OptionError unless the kind of device has these faults."""
    if not injections:
        return
    if kind not in faults.injectable_kinds():
        devices = ", ".join(f"--device={other}" for other in faults.injectable_kinds())
        raise values.OptionError(
            f"--inject={'; '.join(injections)!r}: --device={kind} has no faults; name a device that has: {devices}"
        )
    for text in injections:
        try:
            faults.parse_injection(text, kind)
        except faults.InjectionError as error:
            raise values.OptionError(f"--inject={text!r}: expected {error}") from None


def _expect_formats(reports: Sequence[str]) -> None:
    """Raise OptionError for a report in a format that does not exist."""
    if reports:
        from harness.reporting.formats import ReportFormatError, WantedReport

        for text in reports:
            try:
                WantedReport.parse(text)
            except ReportFormatError as error:
                raise values.OptionError(f"--report={text!r}: {error}") from None


#: The options that a profile may set, by the same name.
_SAME_NAME = (
    *("device", "isolation", "case_timeout", "endurance", "timeout_multiplier", "fail_on_flaky", "shuffle"),
    *("extended", "retries", "slots", "hardware"),
)


def _preset(profile: Profile) -> dict[str, Any]:
    """Return the profile's values for options, by option name."""
    return {
        **{name: getattr(profile, name) for name in _SAME_NAME},
        "repeat": profile.repeats,
        "leak_search": None if profile.leak_search is None else values.parse_leak_search(str(profile.leak_search)),
        "collect_on_failure": values.parse_diagnostics(profile.collect_on_failure)
        if profile.collect_on_failure
        else None,
        "waivers": profile.waivers or None,
        "must_pass": profile.must_pass or None,
        "report": profile.report or None,
    }


def _policy(
    settings: dict[str, Any],
    profile: Loaded[Profile] | None,
    kind: Loaded[Hardware] | None,
    configs: Path,
    base: Path,
) -> Policy:
    chosen: dict[str, Any] = {}
    if profile is not None:
        wanted = profile.value
        chosen = {
            "profile": settings["profile"],
            "gates": None if wanted.gates == "all" else wanted.gates,
            "skips": wanted.skips == "allowed",
            "suites": wanted.suites,
            "cases": wanted.cases,
            "exclude": wanted.exclude,
        }
    if kind is not None:
        chosen |= {
            "hardware": settings["hardware"],
            "promised": {**kind.value.device, **kind.value.offers},
            "floors": kind.value.floors,
            "without_types": kind.value.without_types,
        }
    if settings["waivers"]:
        from harness.gating.waiverfile import load_waivers

        files = [_find(name, configs / "waivers", "waiver file", base, ".yaml") for name in settings["waivers"]]
        chosen["waivers"] = load_waivers(files, base)
    return Policy(
        extended=settings["extended"],
        operators=settings["operators"] or None,
        shuffle=settings["shuffle"],
        repeat=settings["repeat"],
        until_fail=settings["until_fail"],
        retries=settings["retries"],
        verify=settings["verify"] or 0,
        **chosen,
    )


# The functions below import late, because YAML and pydantic are slow to import, and a run without configuration needs
# neither.


def _load_profile(name: str, configs: Path, base: Path) -> Loaded[Profile]:
    from harness.gating.profiles import load_profile

    return load_profile(name, configs, base)


def _load_hardware(name: str, configs: Path, base: Path) -> Loaded[Hardware]:
    from harness.gating.profiles import load_hardware

    return load_hardware(name, configs, base)


def _find(name: str, folder: Path, noun: str, base: Path, suffix: str) -> Path:
    from harness.gating import configfile

    return configfile.find_config(name, folder, noun, base, suffix)
