"""Implication: what is certain, possible and impossible on a machine that is only known by conditions."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.devices.capabilities import Capabilities
from harness.devices.device import Detected, Value
from harness.gating.implication import Implication, implication
from harness.gating.requirements import first_unmet, parse_requirements

CERTAIN, POSSIBLE, IMPOSSIBLE = Implication(True, False), Implication(True, True), Implication(False, True)


@pytest.mark.parametrize(
    ("wanted", "declared", "expected"),
    [
        ({"memory": ">=12GiB"}, {"memory": ">=138GiB,<144GiB"}, CERTAIN),
        ({"memory": ">=140GiB"}, {"memory": ">=138GiB,<144GiB"}, POSSIBLE),
        ({"memory": ">=144GiB"}, {"memory": ">=138GiB,<144GiB"}, IMPOSSIBLE),
        ({"memory": "<=144GiB"}, {"memory": ">=138GiB,<144GiB"}, CERTAIN),
        ({"compute_capability": ">=8.0"}, {"compute_capability": "9.0"}, CERTAIN),
        ({"compute_capability": "9"}, {"compute_capability": "9.0"}, CERTAIN),
        ({"compute_capability": "9.0"}, {"compute_capability": "9"}, POSSIBLE),
        ({"compute_capability": "<9.0"}, {"compute_capability": "9.0"}, IMPOSSIBLE),
        ({"driver": ">=535"}, {"driver": ">=550.54"}, CERTAIN),
        ({"driver": ">=570"}, {"driver": ">=550"}, POSSIBLE),
        ({"driver": ">550"}, {"driver": ">550"}, CERTAIN),
        ({"driver": "<550"}, {"driver": ">=550"}, IMPOSSIBLE),
        ({"driver": "<550.0"}, {"driver": ">=550"}, IMPOSSIBLE),
        ({"triton": True}, {"triton": ">=3"}, CERTAIN),
        ({"triton": ">=3"}, {"triton": True}, POSSIBLE),
        ({"triton": False}, {"triton": True}, IMPOSSIBLE),
        ({"triton": True}, {"triton": False}, IMPOSSIBLE),
        ({"ecc": True}, {"ecc": True}, CERTAIN),
        ({"ecc": False}, {"ecc": True}, IMPOSSIBLE),
        ({"ecc": True}, {}, POSSIBLE),
        ({"device": "cuda"}, {"device": "cuda"}, CERTAIN),
        ({"device": "cuda"}, {"device": "cpu"}, IMPOSSIBLE),
        ({"device": "cpu"}, {"device": "cuda"}, CERTAIN),
        ({"devices": 2}, {"devices": 8}, CERTAIN),
        ({"devices": 9}, {"devices": "8"}, POSSIBLE),
        ({"device_count": 9}, {"device_count": "==8"}, IMPOSSIBLE),
        ({"model": "*H200*"}, {"model": "NVIDIA H200|NVIDIA H200 NVL"}, CERTAIN),
        ({"model": "NVIDIA H200"}, {"model": "NVIDIA H200|NVIDIA H200 NVL"}, POSSIBLE),
        ({"model": "*B200*"}, {"model": "NVIDIA H200|NVIDIA H200 NVL"}, IMPOSSIBLE),
        ({"model": "!=*B200*"}, {"model": "NVIDIA H200"}, CERTAIN),
        ({"any": [{"ecc": True}, {"mig": True}]}, {"ecc": True}, CERTAIN),
        ({"any": [{"ecc": True}, {"mig": True}]}, {"ecc": False}, POSSIBLE),
        ({"any": [{"ecc": True}, {"mig": True}]}, {"ecc": False, "mig": False}, IMPOSSIBLE),
        ({"not": {"ecc": True}}, {"ecc": True}, IMPOSSIBLE),
        ({"not": {"ecc": True, "mig": True}}, {"ecc": True}, POSSIBLE),
        ({"ecc": True, "memory": ">=12GiB"}, {"ecc": True, "memory": ">=8GiB"}, POSSIBLE),
        ({"ecc": True, "memory": ">=12GiB"}, {"ecc": False, "memory": ">=80GiB"}, IMPOSSIBLE),
        ({"ecc": True}, {"any": [{"ecc": True}]}, POSSIBLE),
    ],
)
def test_a_requirement_against_declared_conditions(
    wanted: Mapping[str, object], declared: Mapping[str, object], expected: Implication
) -> None:
    found = implication(parse_requirements(wanted), parse_requirements(declared))
    assert found == expected
    assert found.certain is (expected is CERTAIN)


@pytest.mark.parametrize(
    ("wanted", "can_hold"),
    [
        ({"memory": ">=8GiB,<4GiB"}, False),
        ({"memory": ">=8GiB,<=8GiB"}, True),
        ({"torch": ">2.13,<2.14"}, False),
        ({"torch": ">2.13.0,<2.14"}, True),
        ({"torch": "==2.11,==2.12"}, False),
        ({"triton": False, "all": [{"triton": ">=3"}]}, False),
        ({"platform": "a,b"}, False),
        ({"platform": "a|b,!=a"}, True),
        ({"platform": "a*,!=a*"}, False),
        ({"ecc": True}, True),
        ({}, True),
    ],
)
def test_a_condition_that_can_never_hold_is_known_without_a_machine(
    wanted: Mapping[str, object], can_hold: bool
) -> None:
    assert implication(parse_requirements(wanted), ()).can_hold is can_hold


_SIGNS = st.sampled_from([">=", "<=", "==", "!=", ">", "<"])
_VERSION = st.lists(st.integers(0, 3), min_size=1, max_size=3).map(lambda parts: ".".join(map(str, parts)))
_RANGE = st.lists(st.tuples(_SIGNS, _VERSION).map("".join), min_size=1, max_size=2).map(",".join)
_FOUND = st.lists(st.integers(0, 4), min_size=1, max_size=4).map(tuple)


def _holds(condition: str, value: Value) -> bool:
    return (
        first_unmet(parse_requirements({"torch": condition}), Capabilities({"torch": partial(Detected, value)})) is None
    )


@settings(derandomize=True, database=None, max_examples=500)
@given(wanted=_RANGE, declared=_RANGE, found=_FOUND)
def test_no_machine_contradicts_the_implication(wanted: str, declared: str, found: tuple[int, ...]) -> None:
    if not _holds(declared, found):
        return
    result = implication(parse_requirements({"torch": wanted}), parse_requirements({"torch": declared}))
    assert result.can_hold or not _holds(wanted, found)
    assert result.can_fail or _holds(wanted, found)
