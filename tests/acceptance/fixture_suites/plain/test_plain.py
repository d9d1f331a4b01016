"""Cases that use nothing of the harness, so that they run without it, too."""

import pytest

EXPECTED = {
    "test_passes": "passed",
    "test_prints": "passed",
    "test_fails": "failed: AssertionError: on purpose",
    "test_skips": "skipped: not now",
    "test_expected": "waived",
}


def test_passes() -> None:
    pass


def test_prints() -> None:
    print("to standard output, by a plain case")


def test_fails() -> None:
    raise AssertionError("on purpose")


def test_skips() -> None:
    pytest.skip("not now")


@pytest.mark.xfail(reason="known")
def test_expected() -> None:
    raise AssertionError("as known")
