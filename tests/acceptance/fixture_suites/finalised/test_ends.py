"""Only the whole finalisation drops what was there before the fork. A case alone has it if it may break."""

import pytest

EXPECTED = {
    "test_own": "passed",
    "test_waived": "passed: passed this time; waived as crashed or passed",
    "test_shared": "passed",
}
OPTIONS = ["--waivers=suites/finalised/waivers.yaml"]

pytestmark = pytest.mark.usefixtures("witness")


@pytest.mark.own_process
def test_own() -> None:
    pass


@pytest.mark.own_process
def test_waived() -> None:
    pass


def test_shared() -> None:
    pass
