"""Cases that leave what looks like a dead CUDA context, in a fake torch: there is no GPU here."""

import sys
import types

import pytest

EXPECTED = {
    "test_before": "passed",
    "test_poisons": "poisoned: left its device unusable: CUDA error: device-side assert triggered",
    "test_after": "passed",
    "test_fails_and_poisons": "poisoned: left its device unusable",
    "test_sound_context": "passed",
    "test_poisons_in_company": {
        "batch": "flaky: poisoned after other cases, passed alone: left its device unusable",
        "case": "passed",
    },
    "test_last": "passed",
}
OPTIONS = ["--dist=loadfile", "--leak-check=off"]  # which would find the fake torch

RAN: list[str] = []


@pytest.fixture(autouse=True)
def note_the_case(request: pytest.FixtureRequest) -> None:
    RAN.append(request.node.name)


def leave_fake_torch(*, poisoned: bool) -> None:
    """Replace torch by a fake whose CUDA context is in use and, if `poisoned`, dead."""

    def synchronize(_: int) -> None:
        if poisoned:
            raise RuntimeError("CUDA error: device-side assert triggered\nCUDA kernel errors might be reported later")

    fake = types.ModuleType("torch")
    generator = types.SimpleNamespace(manual_seed=lambda _: None)
    cuda = types.SimpleNamespace(is_initialized=lambda: True, device_count=lambda: 1, synchronize=synchronize)
    vars(fake).update(default_generator=generator, cuda=cuda)
    sys.modules["torch"] = fake


def test_before() -> None:
    pass


def test_poisons() -> None:
    leave_fake_torch(poisoned=True)


def test_after() -> None:
    pass


def test_fails_and_poisons() -> None:
    leave_fake_torch(poisoned=True)
    raise AssertionError("a kernel has failed")


def test_sound_context() -> None:
    leave_fake_torch(poisoned=False)


def test_poisons_in_company() -> None:
    leave_fake_torch(poisoned=len(RAN) > 1)


def test_last() -> None:
    pass
