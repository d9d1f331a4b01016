"""Lint: remarks on waivers before a run."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest

from harness.devices.capabilities import detect_capabilities
from harness.devices.device import CPU, Device, Inventory
from harness.gating.lint import OF_GPUS, Marks, Remark, declared_conditions, lint_waivers
from harness.gating.requirements import Condition
from harness.gating.waivers import Waiver
from harness.sim.softdevice import registration as soft_backend
from tests.gating import examples
from tests.gating.examples import TODAY

A, B, C = "suites/a/test_a.py::test_a", "suites/a/test_a.py::test_b[1]", "suites/a/test_a.py::test_b[2]"
GPU = {"device": "cuda", "compute_capability": ">=8.0"}
NO_GPU = {"not": {"device": "cuda"}}

H200 = declared_conditions({"device": "cuda", "compute_capability": "9.0", "memory": ">=130GiB", "driver": ">=570"})
HOST = declared_conditions({"device": "cpu"})


def waiver(case: str = A, line: int = 2, **changes: Any) -> Waiver:
    """Return a waiver that does not expire soon."""
    return examples.waiver(case, **{"expires": TODAY + timedelta(days=60), "source": f"known.yaml:{line}", **changes})


def kinds_of(
    *waivers: Waiver,
    catalog: Mapping[str, Marks] | None = None,
    hardware: Mapping[str, tuple[Condition, ...]] | None = None,
) -> list[tuple[str, str]]:
    remarks = lint_waivers(waivers, today=TODAY, catalog=catalog, hardware=hardware)
    return [(remark.source, remark.kind) for remark in remarks]


def test_a_valid_waiver_has_no_remarks() -> None:
    catalog = {A: [GPU], B: []}
    assert lint_waivers([waiver(when=GPU)], today=TODAY, catalog=catalog, hardware={"h200": H200}) == []


@pytest.mark.parametrize(
    ("changes", "kind", "error", "words"),
    [
        ({"expires": TODAY - timedelta(days=1)}, "expired", True, "expired on 2026-11-20: renew or remove it"),
        ({"expires": TODAY}, "expires_soon", False, "expires in 0 days, on 2026-11-21 (owner: somebody)"),
        ({"expires": TODAY + timedelta(days=14)}, "expires_soon", False, "expires in 14 days"),
        ({"link": ""}, "no_link", True, "has no link"),
        ({"link": "ask Ann"}, "no_link", True, "link 'ask Ann' is not an http or https URL"),
        ({"when": {"driver": ">=580,<570"}}, "never_holds", True, "no machine meets its conditions"),
        ({"when": {"device": "cuda", **NO_GPU}}, "never_holds", True, "no machine meets its conditions"),
        ({"when": {"all": [{"ecc": True}, {"ecc": False}]}}, "never_holds", True, "no machine meets its conditions"),
    ],
)
def test_an_entry_by_itself(changes: dict[str, Any], kind: str, error: bool, words: str) -> None:
    (remark,) = lint_waivers([waiver(**changes)], today=TODAY)
    assert (remark.source, remark.kind, remark.error) == ("known.yaml:2", kind, error)
    assert remark.text.startswith(words)


def test_a_date_beyond_the_warning_has_no_remark() -> None:
    assert kinds_of(waiver(expires=TODAY + timedelta(days=15))) == []


@pytest.mark.parametrize(
    ("first", "second", "both"),
    [
        pytest.param({}, {}, True, id="both hold everywhere"),
        pytest.param({}, GPU, True, id="one holds everywhere"),
        pytest.param({"driver": ">=570"}, {"driver": "<580"}, True, id="ranges that overlap"),
        pytest.param({"driver": ">=570"}, {"driver": "<570"}, False, id="ranges that touch"),
        pytest.param({"device": "cuda"}, NO_GPU, False, id="with a GPU and without"),
        pytest.param(NO_GPU, {"device": "cuda"}, False, id="without a GPU and with"),
        pytest.param({"ecc": True}, {"ecc": False}, False, id="there and not there"),
        pytest.param({"ecc": True}, {"triton": True}, True, id="about different things"),
        pytest.param({"devices": "==1"}, {"devices": 2}, False, id="numbers of devices that no case is given at once"),
        pytest.param({"any": [{"driver": "<560"}, {"driver": ">=580"}]}, {"driver": "570"}, False, id="a gap"),
        pytest.param({"any": [{"driver": "<560"}, {"driver": ">=580"}]}, {"driver": "580"}, True, id="no gap"),
    ],
)
def test_a_pattern_that_is_there_twice(first: dict[str, Any], second: dict[str, Any], both: bool) -> None:
    waivers = waiver(when=first), waiver(when=second, line=9)
    assert kinds_of(*waivers) == ([("known.yaml:9", "two_waivers")] if both else [])
    assert kinds_of(*waivers, catalog={A: ()}) == kinds_of(*waivers)


def test_the_second_of_two_names_the_first() -> None:
    (remark,) = lint_waivers([waiver(), waiver(line=9)], today=TODAY)
    assert remark == Remark(
        "known.yaml:9", "two_waivers", f"applies to '{A}'; the waiver in known.yaml:2 does too: keep one"
    )


def test_an_expired_waiver_does_not_conflict_with_another() -> None:
    gone = waiver(expires=TODAY - timedelta(days=1))
    assert kinds_of(gone, waiver(line=9)) == [("known.yaml:2", "expired")]


def test_two_entries_on_one_line_are_reported_separately() -> None:
    assert kinds_of(waiver(link=""), waiver(B, link=""), catalog={A: (), B: ()}) == [("known.yaml:2", "no_link")] * 2


def test_different_patterns_are_compared_by_the_cases_that_they_match() -> None:
    broad, narrow = waiver("suites/a/*"), waiver("*::test_b[?]", line=9)
    assert kinds_of(broad, narrow) == []
    (remark,) = lint_waivers([broad, narrow], today=TODAY, catalog={A: (), B: (), C: ()})
    assert remark.kind == "two_waivers"
    assert remark.text == f"applies to '{B}' and 1 more; the waiver in known.yaml:2 does too: keep one"
    assert kinds_of(broad, narrow, catalog={A: (), "x::test_b[1]": ()}) == []


def test_what_cases_require_keeps_two_waivers_apart() -> None:
    old, new = waiver(when={"driver": "<570"}), waiver("*", line=9, when={"compute_capability": "8.0"})
    assert kinds_of(old, new, catalog={A: [{"compute_capability": ">=8.0"}]}) == [("known.yaml:9", "two_waivers")]
    assert kinds_of(old, new, catalog={A: [{"compute_capability": ">=9.0"}], "x": ()}) == []
    assert kinds_of(old, new, catalog={A: [{"device": "cuda"}, {"driver": ">=570"}], "x": ()}) == [
        ("known.yaml:2", "never_applies")
    ]


def test_a_pattern_that_matches_no_case() -> None:
    (remark,) = lint_waivers([waiver("suites/a/test_a.py::test_c*")], today=TODAY, catalog={A: (), B: ()})
    assert remark.kind == "matches_nothing"
    assert remark.text.startswith("'suites/a/test_a.py::test_c*' matches no case")
    assert kinds_of(waiver(), catalog={}) == [("known.yaml:2", "matches_nothing")]


@pytest.mark.parametrize(
    ("when", "marks", "kinds"),
    [
        pytest.param(NO_GPU, [[{"device": "cuda"}]], ["never_applies"], id="for the CPU, of a case for GPUs"),
        pytest.param(NO_GPU, [[{"device": "cuda"}], []], [], id="one of its cases runs there"),
        pytest.param(NO_GPU, [[{"device": "cpu"}]], [], id="a case that runs everywhere"),
        pytest.param({"device": "cuda"}, [[{"device": "cpu"}]], [], id="a case that runs everywhere, on a GPU"),
        pytest.param({"device": "cuda"}, [[{"any": [{"device": "cpu"}]}]], [], id="the same, said in a nested way"),
        pytest.param({}, [[{"device": "cuda"}]], [], id="no conditions"),
    ],
)
def test_conditions_against_what_the_cases_require(
    when: dict[str, Any], marks: list[list[dict[str, Any]]], kinds: list[str]
) -> None:
    catalog = {f"suites/a/test_a.py::test_a[{number}]": each for number, each in enumerate(marks)}
    assert [kind for _, kind in kinds_of(waiver("suites/a/*", when=when), catalog=catalog)] == kinds


@pytest.mark.parametrize(
    ("when", "hardware", "kinds"),
    [
        pytest.param({"compute_capability": ">=9.0"}, {"h200": H200}, [], id="it is declared"),
        pytest.param({"compute_capability": ">=10.0"}, {"h200": H200}, ["no_hardware"], id="it is not"),
        pytest.param({"compute_capability": ">=10.0"}, {"host": HOST, "h200": H200}, ["no_hardware"], id="nor by two"),
        pytest.param({"memory": ">=200GiB"}, {"h200": H200}, [], id="more than is promised is possible"),
        pytest.param({"triton": False}, {"h200": H200}, [], id="nothing is known of it"),
        pytest.param({"device": "cuda"}, {"host": HOST}, ["no_hardware"], id="a GPU where only the CPU is declared"),
        pytest.param(NO_GPU, {"h200": H200}, ["no_hardware"], id="no GPU where only a GPU is declared"),
        pytest.param(NO_GPU, {"h200": H200, "host": HOST}, [], id="no GPU where the CPU is declared"),
        pytest.param({}, {"host": HOST}, [], id="no conditions"),
        pytest.param({"compute_capability": ">=10.0"}, {}, [], id="nothing is declared"),
    ],
)
def test_conditions_against_declared_hardware(
    when: dict[str, Any], hardware: dict[str, tuple[Condition, ...]], kinds: list[str]
) -> None:
    assert [kind for _, kind in kinds_of(waiver(when=when), hardware=hardware)] == kinds


def test_a_cpu_has_no_gpu_capabilities() -> None:
    found = detect_capabilities(Inventory((CPU,)), CPU)
    of_any_accelerator = {"caching_allocator", "device_properties", "refuses_forks"}
    absent = {name for name in found if found.finding(name).detail == "the device is the cpu"}
    assert absent <= {*OF_GPUS, *of_any_accelerator}
    assert not any(found.finding(name).present for name in OF_GPUS)


def test_a_software_device_is_an_accelerator_and_no_gpu() -> None:
    soft = Device(uuid="SOFT-0", kind="soft", name="soft")
    found = detect_capabilities(Inventory((soft,)), soft)
    graphs = set() if found.finding("accelerator_graphs").present else {"accelerator_graphs"}  # torch before 2.13
    assert {name for name in OF_GPUS if found.finding(name).present} == set(soft_backend.BACKEND.implied) - graphs
    declared = {"soft": declared_conditions({"device": "soft"})}
    assert kinds_of(waiver(when={"accelerator": True}), hardware=declared) == []
    assert kinds_of(waiver(when={"bf16": True}), hardware=declared) == [("known.yaml:2", "no_hardware")]


def test_hardware_on_which_the_case_does_not_run_does_not_count() -> None:
    one = waiver(when={"python": ">=3.11"})
    assert kinds_of(one, catalog={A: [{"device": "cuda"}]}, hardware={"host": HOST}) == [
        ("known.yaml:2", "no_hardware")
    ]
    assert kinds_of(one, catalog={A: [{"device": "cpu"}]}, hardware={"host": HOST}) == []


def test_all_remarks_come_in_the_order_of_the_waivers() -> None:
    first = waiver("gone", line=2, link="", expires=TODAY)
    second = waiver(line=9, link="")
    third = waiver(line=16)
    assert kinds_of(first, second, third, catalog={A: ()}) == [
        ("known.yaml:2", "expires_soon"),
        ("known.yaml:2", "no_link"),
        ("known.yaml:2", "matches_nothing"),
        ("known.yaml:9", "no_link"),
        ("known.yaml:16", "two_waivers"),
    ]
