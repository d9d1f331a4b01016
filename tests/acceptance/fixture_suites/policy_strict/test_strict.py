"""A profile that allows few gates, no skips and not too few cases, on hardware that promises and lacks something."""

import os

import pytest
import torch

EXPECTED = {
    "test_passes": "passed",
    "test_gated_for_size": "gated: memory: wanted >=5000TiB",
    "test_gated_for_another_reason": "failed: strict.yaml does not allow gating for device: device: wanted cuda",
    "test_gated_for_both": "gated: device",
    "test_skips": {
        "batch": "failed: strict.yaml forbids skips: Skipped: not today",
        "case": "failed: strict.yaml forbids skips: Skipped: not today",
        "none": "skipped: not today",
    },
    "test_promised": "failed: mine.yaml promises what the case requires: memory: wanted >=100TiB, found ",
    "test_parameter[float32]": "passed",
    "test_parameter[float64]": "gated: types: wanted float64, found a device without it, as hardware ",
    "test_dtype[torch.float64]": "gated: types: wanted float64, found a device without it, as hardware ",
    "test_marked": "gated: types: wanted float64, found a device without it, as hardware ",
    "test_goes_through_several": "passed",
}
OPTIONS = ["--profile=suites/policy_strict/strict.yaml", "--hardware=suites/policy_strict/mine.yaml"]
FINDINGS = [
    "broken_promise: mine.yaml promises what device cpu does not have: memory: wanted >=1000TiB, found ",
    "too_few_cases: 3 cases ran, but profile suites/policy_strict/strict.yaml requires at least 20",
]


def test_passes() -> None:
    pass


@pytest.mark.requires(memory=">=5000TiB")
def test_gated_for_size() -> None:
    pass


@pytest.mark.requires(device="cuda")
def test_gated_for_another_reason() -> None:
    pass


@pytest.mark.requires(device="cuda", memory=">=5000TiB")
def test_gated_for_both() -> None:
    pass


def test_skips() -> None:
    pytest.skip("not today")


@pytest.mark.requires(memory=">=100TiB")
def test_promised() -> None:
    pass


@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_parameter(kind: str) -> None:
    """A lacking type is no gate that the profile must allow: the hardware file is the operator's own declaration."""


@pytest.mark.parametrize("dtype", [torch.float64], ids=str)
def test_dtype(dtype: torch.dtype) -> None:
    pass


@pytest.mark.types("int8", "float64")
def test_marked() -> None:
    pass


def test_goes_through_several() -> None:
    assert os.environ["HARNESS_WITHOUT_TYPES"] == "float64,complex128"
