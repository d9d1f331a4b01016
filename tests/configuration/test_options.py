"""Settings: one order of sources, and errors that name the source."""

from __future__ import annotations

from typing import Any

import pytest

from harness.configuration.options import OPTIONS, resolve_option
from harness.configuration.values import OptionError, case_time_limit


@pytest.mark.parametrize(
    ("line", "environ", "ini", "expected"),
    [
        (None, {}, None, "batch"),
        (None, {}, "case", "case"),
        (None, {"HARNESS_ISOLATION": "none"}, "case", "none"),
        ("batch", {"HARNESS_ISOLATION": "none"}, "case", "batch"),
        (None, {"HARNESS_ISOLATION": ""}, "", "batch"),
    ],
)
def test_the_nearer_source_wins(line: str | None, environ: dict[str, str], ini: str | None, expected: str) -> None:
    assert resolve_option("isolation", line, environ, ini) == expected


@pytest.mark.parametrize(
    ("line", "environ", "profile", "ini", "expected"),
    [
        ("batch", {"HARNESS_ISOLATION": "none"}, "case", "none", "batch"),
        (None, {"HARNESS_ISOLATION": "none"}, "case", "batch", "none"),
        (None, {}, "case", "none", "case"),
        (None, {}, None, "none", "none"),
    ],
)
def test_a_profile_stands_between_environment_and_ini(
    line: str | None, environ: dict[str, str], profile: str | None, ini: str, expected: str
) -> None:
    assert resolve_option("isolation", line, environ, ini, profile) == expected


@pytest.mark.parametrize(
    ("line", "environ", "expected"),
    [
        (["a", "b,c"], {}, ("a", "b", "c")),
        (None, {"HARNESS_WAIVERS": "a, b"}, ("a", "b")),
        (None, {}, ()),
    ],
)
def test_several_names(line: list[str] | None, environ: dict[str, str], expected: tuple[str, ...]) -> None:
    assert resolve_option("waivers", line, environ, None) == expected


@pytest.mark.parametrize(
    ("line", "environ", "ini", "expected"),
    [
        (["slow", "event_early:0.5,seed=3"], {}, None, ("slow", "event_early:0.5,seed=3")),
        (["slow; device_lost:1,seed=0"], {}, None, ("slow", "device_lost")),
        (None, {"HARNESS_INJECT": "slow:0.25;device_lost"}, None, ("slow:0.25", "device_lost")),
        (None, {}, "slow", ("slow",)),
        (None, {}, None, ()),
    ],
)
def test_faults_have_commas_of_their_own(
    line: list[str] | None, environ: dict[str, str], ini: str | None, expected: tuple[str, ...]
) -> None:
    assert resolve_option("inject", line, environ, ini) == expected


@pytest.mark.parametrize(
    ("name", "line", "environ", "ini", "message"),
    [
        ("isolation", "process", {}, None, "--isolation='process': expected one of batch, case, none"),
        (
            "case_timeout",
            None,
            {"HARNESS_CASE_TIMEOUT": "-1"},
            None,
            "HARNESS_CASE_TIMEOUT='-1': expected a number above",
        ),
        ("progress", "-1", {}, None, "--progress='-1': expected auto, live, plain, off, or a number of seconds from 0"),
        (
            "progress",
            None,
            {"HARNESS_PROGRESS": "inf"},
            None,
            "HARNESS_PROGRESS='inf': expected auto, live, plain, off, or a number of seconds from 0",
        ),
        ("case_timeout", None, {}, "inf", "harness_case_timeout='inf': expected a number above 0"),
        ("case_timeout", "nan", {}, None, "--case-timeout='nan'"),
        ("grace", "-1", {}, None, "--grace='-1': expected a number of seconds from 0"),
        ("grace", None, {"HARNESS_GRACE": "soon"}, None, "HARNESS_GRACE='soon': expected a number of seconds from 0"),
        ("timeout_multiplier", "x", {}, None, "--timeout-multiplier='x': expected a number above 0"),
        ("seed", "1.5", {}, None, "--seed='1.5': expected a whole number from 0"),
        ("seed", str(2**64), {}, None, "expected a whole number"),
        (
            "fail_on_flaky",
            None,
            {"HARNESS_FAIL_ON_FLAKY": "maybe"},
            None,
            "HARNESS_FAIL_ON_FLAKY='maybe': expected 1, 0",
        ),
        ("results_dir", "", {}, None, "--results-dir='': expected a folder"),
        ("waivers", "a,,b", {}, None, "--waivers='a,,b': expected a name or a file"),
        ("profile", " ", {}, None, "--profile=' ': expected a name or a file"),
        ("repeat", "0", {}, None, "--repeat='0': expected a whole number from 1 to 999999"),
        ("retries", "-1", {}, None, "--retries='-1': expected a whole number from 0 to 999999"),
        ("verify", None, {"HARNESS_VERIFY": "ten"}, None, "HARNESS_VERIFY='ten': expected a whole number from 1"),
        ("device", "gpu", {}, None, "--device='gpu': expected one of auto, cuda, simcuda, rocm, soft, xpu, cpu"),
        ("start", "warm", {}, None, "--start='warm': expected one of auto, fork, cold"),
        ("under", "grad", {}, None, "--under='grad': expected one of compiled_autograd"),
        ("under", None, {}, "x", "harness_under='x': expected one of compiled_autograd"),
        ("inject", "slwo", {}, None, "--inject='slwo': expected the name of a fault, not 'slwo'; did you mean"),
        ("inject", None, {"HARNESS_INJECT": "slow:2"}, None, "HARNESS_INJECT='slow:2': expected a probability above 0"),
        ("endurance", "-1", {}, None, "--endurance='-1': expected a number of seconds from 0"),
        ("endurance", None, {"HARNESS_ENDURANCE": "1h"}, None, "HARNESS_ENDURANCE='1h': expected a number of seconds"),
        ("verify", "9999999", {}, None, "expected a whole number from 1 to 999999"),
    ],
)
def test_a_bad_value_is_refused_by_the_name_of_its_source(
    name: str, line: str | None, environ: dict[str, str], ini: str | None, message: str
) -> None:
    with pytest.raises(OptionError, match=message.replace("(", r"\(").replace(".", r"\.")):
        resolve_option(name, line, environ, ini)


@pytest.mark.parametrize(("text", "grace"), [("0", 0.0), ("2.5", 2.5), ("30", 30.0)])
def test_running_cases_may_be_given_no_grace(text: str, grace: float) -> None:
    assert resolve_option("grace", text, {}, None) == grace


def test_every_option_has_a_default_that_needs_no_source() -> None:
    assert {name: resolve_option(name, None, {}, None) for name in OPTIONS} == {
        name: option.default for name, option in OPTIONS.items()
    }


def _timeout(*args: Any, **kwargs: Any) -> list[pytest.Mark]:
    return [pytest.mark.timeout(*args, **kwargs).mark]


@pytest.mark.parametrize(
    ("marks", "expected"),
    [
        ([], 600.0),
        (_timeout(3), 6.0),
        (_timeout(0.5), 1.0),
        (_timeout(seconds=4), 8.0),
        (_timeout(1) + _timeout(9), 2.0),
        (_timeout(4, method="thread"), 8.0),  # the rest belongs to pytest-timeout
        (_timeout(4, "signal", False), 8.0),
        (_timeout(timeout=4), 8.0),
        (_timeout(0), 600.0),
        (_timeout(timeout=None, method="thread"), 600.0),
        (_timeout(method="thread"), 600.0),
        (_timeout(4, func_only=True), 608.0),
        (_timeout(4, "thread", True), 608.0),
    ],
)
def test_the_nearest_mark_gives_the_limit(marks: list[pytest.Mark], expected: float) -> None:
    assert case_time_limit(marks, 300.0, 2.0) == expected


@pytest.mark.parametrize(
    "marks",
    [
        _timeout(),
        _timeout("3"),
        _timeout(True),
        _timeout(None),
        _timeout(-1),
        _timeout(float("nan")),
        _timeout(limit=3),
        _timeout(1, timeout=2),
        _timeout(timeout=1, seconds=1),
        _timeout(1, "thread", True, 4),
    ],
)
def test_a_malformed_timeout_is_refused(marks: list[pytest.Mark]) -> None:
    with pytest.raises(OptionError, match=r"timeout.*expected"):
        case_time_limit(marks, 300.0, 1.0)
