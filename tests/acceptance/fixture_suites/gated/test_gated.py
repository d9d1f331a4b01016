"""Cases whose requirements no machine meets."""

import pytest

EXPECTED = {
    "test_memory": "gated: memory: wanted >=1000TiB, found",
    "TestDevices::test_many": "gated: devices: wanted 4096, found",
    "test_skipped": "skipped: not today",
}


@pytest.mark.requires(memory=">=1000TiB")
def test_memory() -> None:
    raise AssertionError("it must not run")


@pytest.mark.requires(devices=4096)
class TestDevices:
    def test_many(self) -> None:
        raise AssertionError("it must not run")


@pytest.mark.skip(reason="not today")
def test_skipped() -> None:
    raise AssertionError("it must not run")
