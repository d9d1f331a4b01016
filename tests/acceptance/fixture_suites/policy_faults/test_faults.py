"""Cases that differ from their waivers in waivers.yaml, or whose waivers are invalid."""

import os
import signal

import pytest

EXPECTED = {
    "test_passes": "unexpected_pass: passed, but waived as failed in suites/policy_faults/waivers.yaml:2: remove",
    "test_fails_otherwise": "failed: failed, but waived as crashed in suites/policy_faults/waivers.yaml:3: Assert",
    "test_crashes_instead": "crashed: crashed, but waived as failed in suites/policy_faults/waivers.yaml:4: SIGKILL",
    "test_expired": "failed: AssertionError: way 3",
    "test_without_link": "waived: waived: known (no link; suites/policy_faults/waivers.yaml:6): failed: Assert",
    "test_waived_twice": "failed: 2 waivers apply ('*::test_waived_tw*' in suites/policy_faults/waivers.yaml:8,",
    "test_waived_twice_and_passes": "failed: 2 waivers apply (",
    "test_marked_too": "failed: marked xfail and waived in suites/policy_faults/waivers.yaml:10: keep one",
    "test_marked_too_and_passes": "unexpected_pass: marked xfail and waived in suites/policy_faults/waivers.yaml:11",
    "test_fails_here": "failed: AssertionError: way 5",
    "test_comes_and_goes_otherwise": "crashed: crashed, but waived as failed or passed in suites/policy_faults/waiv",
}
OPTIONS = ["--waivers=suites/policy_faults/waivers.yaml"]
FINDINGS = [
    "waiver_expired: '*::test_expired' in suites/policy_faults/waivers.yaml:5 expired on 2001-01-01: see https://",
    "waiver_matches_nothing: test_gone*' in suites/policy_faults/waivers.yaml:7 matches no case of this run",
    "waiver_no_link: '*::test_without_link' in suites/policy_faults/waivers.yaml:6 has no link",
]


def test_passes() -> None:
    pass


def test_fails_otherwise() -> None:
    raise AssertionError("way 2")


def test_crashes_instead() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_expired() -> None:
    raise AssertionError("way 3")


def test_without_link() -> None:
    raise AssertionError("way 4")


def test_waived_twice() -> None:
    raise AssertionError


def test_waived_twice_and_passes() -> None:
    pass


@pytest.mark.xfail(reason="known to the code")
def test_marked_too() -> None:
    raise AssertionError


@pytest.mark.xfail(strict=True, reason="known to the code")
def test_marked_too_and_passes() -> None:
    pass


def test_fails_here() -> None:
    raise AssertionError("way 5")


def test_comes_and_goes_otherwise() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
