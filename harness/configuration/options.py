"""All settings, and their priority: marker > command line > environment > profile > ini file > default."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import pytest

from harness.backends.table import parse_device
from harness.configuration.under import CALL_WRAPPERS
from harness.configuration.values import (
    AUTO,
    ISOLATIONS,
    JUNIT_FLAVOURS,
    LEAK_CHECKS,
    MANY_CASES,
    RACE_CHECKS,
    STARTS,
    OptionError,
    count_from,
    one_of,
    parse_diagnostics,
    parse_duration,
    parse_flag,
    parse_injections,
    parse_leak_search,
    parse_name,
    parse_names,
    parse_outcomes,
    parse_path,
    parse_paths,
    parse_positive,
    parse_progress,
    parse_seed,
    parse_shard,
)
from harness.sim.native import faults


@dataclass(frozen=True, slots=True)
class Option:
    """One setting: ``--case-timeout``, ``HARNESS_CASE_TIMEOUT``, and ``harness_case_timeout`` in an ini file.

    `flag` is the short form. pytest knows the long one, ``--harness-case-timeout``: `harness.configuration.arguments`.
    `off`: a second flag that switches the setting off. `separator`: the separator of the values of a setting that may
    have several. On the command line, such an option may also be repeated.
    """

    flag: str
    parse: Callable[[str], Any]
    default: Any
    help: str
    metavar: str | None = None
    off: str | None = None
    separator: str | None = None

    @property
    def name(self) -> str:
        return self.flag.removeprefix("--").replace("-", "_")

    @property
    def dest(self) -> str:
        return f"harness_{self.name}"

    @property
    def variable(self) -> str:
        return f"HARNESS_{self.name.upper()}"

    @property
    def flags(self) -> tuple[str, ...]:
        """The short forms on the command line."""
        return (self.flag, self.off) if self.off else (self.flag,)

    @property
    def takes_value(self) -> bool:
        return self.parse is not parse_flag


def long_flag(flag: str) -> str:
    """Return the form of a flag that no other plugin has: ``--harness-device`` for ``--device``."""
    return f"--harness-{flag.removeprefix('--')}"


OPTIONS = {
    option.name: option
    for option in (
        Option(
            "--device",
            parse_device,
            "auto",
            "device for the cases: auto (default: GPUs, or the CPU if there are none), cuda, cpu (hides GPUs), simcuda "
            "(a CUDA build of torch on a simulated CUDA, no GPU), soft (software device), or the kind of a device that "
            "is registered or that torch knows",
            "KIND",
        ),
        Option(
            "--backend",
            parse_names,
            (),
            "register a device: a Python file with a Backend named BACKEND; --device then selects its kind; may be "
            "repeated",
            "FILE",
            separator=",",
        ),
        Option(
            "--inject",
            parse_injections,
            (),
            "with --device=soft, simcuda or cuda: inject a fault into the device, NAME[:probability][,seed=N]; may be "
            "repeated",
            "FAULT",
            separator=faults.SEPARATOR,
        ),
        Option(
            "--isolation",
            one_of(ISOLATIONS),
            "batch",
            "batch (default): a process runs many cases until one breaks it, and a case that broke a shared process "
            "runs again alone before it gets its verdict; case: one process per case; none: pytest's own process, for "
            "debugging, also chosen by --pdb, --trace and --setup-show: each case runs once, without waivers",
            "MODE",
        ),
        Option(
            "--start",
            one_of(STARTS),
            "auto",
            "how executors start: fork (from a process that has collected the cases), cold (each imports and collects "
            "on its own), auto (default: fork; with -p harness.plugin cold if that process must not be forked)",
            "HOW",
        ),
        Option(
            "--under",
            one_of(tuple(CALL_WRAPPERS)),
            None,
            f"call each test in a wrapper: {', '.join(CALL_WRAPPERS)}",
            "NAME",
        ),
        Option(
            "--case-timeout",
            parse_positive,
            300.0,
            "time limit in seconds for a case without a timeout marker (default: 300)",
            "SECONDS",
        ),
        Option(
            "--endurance",
            parse_duration,
            0.2,
            "seconds that each case with the mark endurance works, beyond its first round (default: 0.2); they are "
            "added to its time limit",
            "SECONDS",
        ),
        Option("--timeout-multiplier", parse_positive, 1.0, "multiply every time limit, for slow machines", "FACTOR"),
        Option(
            "--grace",
            parse_duration,
            10.0,
            "seconds that running cases get to end after SIGTERM, SIGHUP or Ctrl-C (default: 10)",
            "SECONDS",
        ),
        Option("--seed", parse_seed, None, "seed of the run (default: random; printed and recorded)", "N"),
        Option("--results-dir", parse_path, None, "run directory (default: results/<time>-<id>)", "DIR"),
        Option("--fail-on-flaky", parse_flag, False, "a flaky case makes the run red", off="--no-fail-on-flaky"),
        Option(
            "--profile", parse_name, None, "profile: which cases run, and how (configs/profiles; name or path)", "NAME"
        ),
        Option(
            "--hardware",
            parse_name,
            None,
            "hardware file that the machine must match (configs/hardware; name or path)",
            "NAME",
        ),
        Option(
            "--waivers",
            parse_names,
            (),
            "waiver files, in addition to those of the profile (configs/waivers; name or path); may be repeated",
            "NAME",
            separator=",",
        ),
        Option(
            "--must-pass",
            parse_names,
            (),
            "must-pass lists, in addition to those of the profile (configs/must-pass; name or path); may be repeated",
            "NAME",
            separator=",",
        ),
        Option(
            "--shuffle",
            parse_flag,
            False,
            "random order, given by the seed: the same seed gives the same order, also of fewer cases",
            off="--no-shuffle",
        ),
        Option(
            "--extended",
            parse_flag,
            False,
            "also run the cases with the mark extended, which the default run leaves out",
            off="--no-extended",
        ),
        Option(
            "--operators",
            parse_names,
            (),
            "run only the cases about these operators of torch, such as nn.functional.conv2d, also the extended ones; "
            "may be repeated",
            "NAME",
            separator=",",
        ),
        Option(
            "--shard",
            parse_shard,
            "",
            "run part I of N of the selected cases, for several hosts, by a hash of the case id; "
            "'harness report merge' makes one run of all parts",
            "I/N",
        ),
        Option(
            "--resume",
            parse_path,
            None,
            "continue the interrupted run in this run directory, or start it if no case of it has started: keep its "
            "verdicts and run the rest; refused if driver, torch, suites or options have changed",
            "DIR",
        ),
        Option(
            "--force-resume",
            parse_flag,
            False,
            "with --resume: continue although driver, torch, suites or options have changed; the journal records it",
        ),
        Option("--from", parse_path, None, "run only cases of the run in this run directory; see --only", "DIR"),
        Option(
            "--only",
            parse_outcomes,
            (),
            "with --from: run the cases that had these verdicts, for example failed,crashed,not_run (default: red)",
            "VERDICTS",
            separator=",",
        ),
        Option(
            "--history",
            parse_paths,
            (),
            "with xdist: run directories of earlier runs; the longest case by their durations begins first; may be "
            "repeated (default: results/history.json, which runs in results/ keep, and configs/durations.yaml for "
            "other cases); --dist and --shuffle have priority",
            "DIR",
            separator=",",
        ),
        Option("--retries", count_from(0), 0, "run a red case again, up to N times, each time in a fresh process", "N"),
        Option(
            "--repeat",
            count_from(1),
            1,
            "run each case N times; every repetition counts; with N of 12 or more the summary names the cases whose "
            "process grew (information, no verdict)",
            "N",
        ),
        Option(
            "--until-fail",
            parse_flag,
            False,
            "with --repeat: stop repeating a case when it is red",
            off="--no-until-fail",
        ),
        Option(
            "--slots",
            count_from(1),
            1,
            "how many cases may use one GPU at once (default: 1), unless they are marked serial or require half of its "
            "memory; -n auto starts as many workers per GPU",
            "N",
        ),
        Option(
            "--verify",
            count_from(1),
            None,
            "for new cases: run each N times in one process and N times in fresh processes; a case that is flaky or "
            "close to its time limit fails",
            "N",
        ),
        Option(
            "--leak-check",
            one_of(LEAK_CHECKS),
            "fast",
            "check for leaks and changed state after each case: fast (default: cheap checks, and a suspected leak is "
            "confirmed by repetition), full (all checks) or off",
            "LEVEL",
        ),
        Option(
            "--leak-search",
            parse_leak_search,
            AUTO,
            "seconds that each worker may search for what made a process grow: auto (default: a tenth of the run's "
            "time, at least 10), off, or SECONDS; growth without a proof within this time is reported and not red",
            "SECONDS",
        ),
        Option(
            "--race-check",
            one_of(RACE_CHECKS),
            "off",
            "with --device=simcuda: on makes a case raced whose streams use the same memory without an order between "
            "them, whatever the timing was (default: off; on for the suites of this project)",
            "HOW",
        ),
        Option(
            "--collect-on-failure",
            parse_diagnostics,
            (),
            "collect files that explain a red case into the run directory: off (default), auto (the output of "
            "nvidia-smi -q, lines of the kernel's log about GPUs such as Xids, the snapshot of torch's allocator, the "
            "place of the core file), all (also nvidia-bug-report.sh, once per run, up to 5 minutes), or some of "
            "nvidia-smi, kernel-log, allocator, core, bug-report; each has a time limit, the notes of the case name "
            "the files, and a worker collects for 10 cases that broke their process and 10 others",
            "WHAT",
            separator=",",
        ),
        Option(
            "--progress",
            parse_progress,
            "auto",
            "live: a table below the output, with the case, device and time of each worker, the last red case, the "
            "totals and the remaining time; plain: one line after 30 seconds without output; SECONDS: the same after "
            "that many seconds; off; auto (default): live if standard output is a terminal, otherwise plain, and off "
            "if cases run in the process that prints",
            "HOW",
        ),
        Option(
            "--report",
            parse_names,
            (),
            "also write a report at the end of the run: json, markdown, prometheus, or a format that a package "
            "registers; without FILE, report.json and so on in the run directory; may be repeated",
            "FORMAT[:FILE]",
            separator=",",
        ),
        Option(
            "--junit-flavour",
            one_of(JUNIT_FLAVOURS),
            "default",
            "the reader of junit.xml: default (most readers), jenkins, gitlab",
            "NAME",
        ),
        Option(
            "--health",
            parse_flag,
            True,
            "examine each GPU before its first case, and after a crash, timeout or poisoned context (default: on)",
            off="--no-health",
        ),
    )
}


class IniValue(NamedTuple):
    """A value of the ini file that is not an option."""

    name: str
    kind: Literal["string", "paths", "args"]
    default: str | list[str]
    help: str


INI_VALUES = (
    IniValue(
        "harness_configs",
        "string",
        "configs",
        "folder of profiles, hardware files, waivers, must-pass lists and durations",
    ),
    IniValue("harness_suites", "paths", [], "folders whose tests are conformance cases"),
    IniValue("harness_preload", "args", ["torch", "numpy.random"], "modules to import before executors are forked"),
    IniValue(
        "harness_preload_many",
        "args",
        [],
        f"more modules to import before executors are forked, in runs of {MANY_CASES} cases or more; FOLDER:MODULE "
        "only in runs with as many cases of the folder",
    ),
)


def add_options(parser: pytest.Parser) -> None:
    """Declare the options, in their long form, and the ini values to pytest."""
    group = parser.getgroup("harness", "conformance harness (short form: without harness-)")
    for option in OPTIONS.values():
        text = f"{option.help} [short: {option.flag}, env: {option.variable}, ini: {option.dest}]"
        flag = long_flag(option.flag)
        if not option.takes_value:
            group.addoption(flag, dest=option.dest, action="store_const", const="1", default=None, help=text)
            if option.off:
                switched = f"switch {option.flag} off [short: {option.off}]"
                group.addoption(long_flag(option.off), dest=option.dest, action="store_const", const="0", help=switched)
        elif option.separator:
            group.addoption(flag, dest=option.dest, metavar=option.metavar, action="append", help=text)
        else:
            group.addoption(flag, dest=option.dest, metavar=option.metavar, default=None, help=text)
        parser.addini(option.dest, f"see {option.flag}", type="string", default=None)
    for value in INI_VALUES:
        parser.addini(value.name, value.help, type=value.kind, default=value.default)


def resolve_option(
    name: str,
    command_line: str | Sequence[str] | None,
    environ: Mapping[str, str],
    ini: str | None,
    profile: Any = None,
) -> Any:
    """Return the value of an option from its sources. Raise OptionError, which names the source of an invalid value.

    `profile`: the value in the run's profile, already of the option's type; None if the profile does not set it.
    """
    option = OPTIONS[name]
    given = command_line
    if given is not None and not isinstance(given, str):
        given = (option.separator or ",").join(given)
    for source, text in (
        (option.flag, given),
        (option.variable, environ.get(option.variable)),
        ("profile", profile),
        (option.dest, ini),
    ):
        if text is None or (text == "" and source != option.flag):
            continue
        if source == "profile":
            return text
        try:
            return option.parse(text)
        except ValueError as error:
            raise OptionError(f"{source}={text!r}: expected {error}") from None
    return option.default


class EarlyConfig:
    """The options of a session whose conftests are not loaded yet.

    `get_option` and `isolation_off_flag` accept it in place of a Config.
    """

    def __init__(self, config: pytest.Config) -> None:
        self.option = config.known_args_namespace
        self.getini = config.getini

    def getoption(self, name: str, default: Any = None) -> Any:
        """Return the value given on the command line."""
        return getattr(self.option, name, default)


def get_option(config: pytest.Config | EarlyConfig, name: str, profile: Any = None) -> Any:
    """Return the value of an option for a session; see `resolve_option`. Raise pytest.UsageError for an invalid
    value.
    """
    option = OPTIONS[name]
    try:
        return resolve_option(name, config.getoption(option.dest), os.environ, config.getini(option.dest), profile)
    except OptionError as error:
        raise pytest.UsageError(str(error)) from None


def is_any_option_set(config: pytest.Config) -> bool:
    """Return whether the user set any option of the harness on the command line or in the environment."""
    return any(is_option_set(config, name) for name in OPTIONS)


def is_option_set(config: pytest.Config, name: str) -> bool:
    """Return whether the user set this option on the command line or in the environment."""
    option = OPTIONS[name]
    return config.getoption(option.dest) is not None or bool(os.environ.get(option.variable))


def isolation_off_flag(config: pytest.Config | EarlyConfig) -> str | None:
    """Return the pytest option that switches isolation off, because it needs tests in pytest's own process.

    None if no such option is set.
    """
    option = config.option
    for flag, wanted in (
        ("--pdb", getattr(option, "usepdb", False)),
        ("--trace", getattr(option, "trace", False)),
        ("--setup-show", getattr(option, "setupshow", False)),
        ("--setup-only", getattr(option, "setuponly", False)),
        ("--setup-plan", getattr(option, "setupplan", False)),
        *((flag, getattr(option, name, None)) for flag, name in IN_PROCESS_OPTIONS),
    ):
        if wanted:
            return flag
    return None


#: Options of other plugins that change or compare what tests have left in the process of the session, and their names
#: there: syrupy, snapshottest, inline-snapshot, pytest-benchmark, pytest-testmon (which would select tests by the code
#: that the process of the session has run, which is none), pytest-memray, pytest-bdd.
IN_PROCESS_OPTIONS = (
    ("--snapshot-update", "update_snapshots"),
    ("--snapshot-update-new-only", "update_new_snapshots_only"),
    ("--snapshot-update", "snapshot_update"),
    ("--inline-snapshot", "inline_snapshot"),
    ("--benchmark-only", "benchmark_only"),
    ("--benchmark-json", "benchmark_json"),
    ("--benchmark-save", "benchmark_save"),
    ("--benchmark-autosave", "benchmark_autosave"),
    ("--benchmark-compare", "benchmark_compare"),
    ("--benchmark-compare-fail", "benchmark_compare_fail"),
    ("--benchmark-histogram", "benchmark_histogram"),
    ("--testmon", "testmon"),
    ("--testmon-forceselect", "testmon_forceselect"),
    ("--memray", "memray"),
    ("--cucumberjson", "cucumber_json_path"),
    ("--gherkin-terminal-reporter", "gherkin_terminal_reporter"),
)

#: Options that switch off a search for unused items, with the plugin, and the items that are no longer searched.
_SWITCHED_OFF = {
    "disable_unused_snapshots": ("syrupy", "unused snapshots"),
    "warn_unused_snapshots": ("syrupy before 5.1", "unused snapshots"),
}


def disable_unused_snapshot_checks(config: pytest.Config) -> list[str]:
    """Stop plugins from drawing conclusions about cases that ran in other processes. Return lines for the user."""
    for name, (plugin, target) in _SWITCHED_OFF.items():
        if getattr(config.option, name, None) is False:
            setattr(config.option, name, True)
            return [f"{plugin} does not look for {target}, since cases run in other processes; --isolation=none would"]
    return []


def leave_out_idle_hypothesis(config: pytest.Config) -> None:
    """Unregister hypothesis's plugin before the summary, if it has nothing to print there.

    It imports all of hypothesis to find out, also in a worker of xdist, whose summary nobody sees. This takes a fifth
    of a second of processor time per process.
    """
    plugin = config.pluginmanager.get_plugin("hypothesispytest")
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if plugin is None or reporter is None or "hypothesis" in sys.modules:
        return
    reports = (report for group in reporter.stats.values() for report in group)
    noted = any(name.startswith("_hypothesis") for report in reports for name in getattr(report, "__dict__", ()))
    if not noted and not config.getoption("hypothesis_show_statistics", False):
        config.pluginmanager.unregister(plugin)
