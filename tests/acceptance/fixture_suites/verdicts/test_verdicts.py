"""One case per outcome that pytest itself has, with gated cases between them."""

from collections.abc import Iterator

import pytest

EXPECTED = {
    "test_passes": "passed",
    "test_fails": "failed: assert 1 == 2",
    "test_setup_fails": "error: RuntimeError: no ground to stand on",
    "test_teardown_fails": "error: RuntimeError: cannot clean up",
    "test_fails_twice": "failed: AssertionError: in the case",
    "test_skip_mark": "skipped: not today",
    "test_skip_call": "skipped: not now",
    "test_skip_in_fixture": "skipped: nothing to work on",
    "test_expected_failure": "waived: known",
    "test_expected_error_in_setup": "waived: known",
    "test_expected_failure_does_not_run": "waived: would burn the house down",
    "test_expected_failure_passes": "passed",
    "test_strictly_expected_failure": "waived: known",
    "test_strictly_expected_failure_passes": "unexpected_pass",
    "test_wrong_failure_for_the_mark": "failed: TypeError: another one",
    "test_gated": "gated: memory: wanted >=1000TiB",
    "test_gated_and_expected_to_fail": "gated: memory: wanted >=1000TiB",
    "test_requirement_that_is_met": "passed",
    "test_parametrised[1]": "passed",
    "test_parametrised[2]": "failed: assert 2 == 1",
    "test_parametrised[skipped]": "skipped",
    "test_parametrised[gated]": "gated: memory",
    "TestClass::test_method": "passed",
    "TestClass::TestInner::test_method": "failed: assert bool(0), where False = bool(0)",
    "test_warns": "passed",
}
COUNTS = {
    "error": 1,  # from test_fails_twice, which is both failed and an error
    "xpassed": 1,  # from test_expected_failure_passes, which therefore does not count as passed
    "passed": 0,  # test_teardown_fails counts as passed and as an error
    "warnings": 1,  # from test_warns
}
SAYS = ["mind the gap"]


@pytest.fixture
def no_ground() -> None:
    raise RuntimeError("no ground to stand on")


@pytest.fixture
def unclean() -> Iterator[None]:
    yield
    raise RuntimeError("cannot clean up")


@pytest.fixture
def nothing() -> None:
    pytest.skip("nothing to work on")


def test_passes() -> None:
    pass


def test_fails() -> None:
    assert int("1") == 2


@pytest.mark.usefixtures("no_ground")
def test_setup_fails() -> None:
    pass


@pytest.mark.usefixtures("unclean")
def test_teardown_fails() -> None:
    pass


@pytest.mark.usefixtures("unclean")
def test_fails_twice() -> None:
    raise AssertionError("in the case")


@pytest.mark.skip(reason="not today")
def test_skip_mark() -> None:
    raise AssertionError("it must not run")


def test_skip_call() -> None:
    pytest.skip("not now")


@pytest.mark.usefixtures("nothing")
def test_skip_in_fixture() -> None:
    raise AssertionError("it must not run")


@pytest.mark.xfail(reason="known")
def test_expected_failure() -> None:
    raise AssertionError("as known")


@pytest.mark.xfail(reason="known")
@pytest.mark.usefixtures("no_ground")
def test_expected_error_in_setup() -> None:
    pass


@pytest.mark.xfail(run=False, reason="would burn the house down")
def test_expected_failure_does_not_run() -> None:
    raise AssertionError("it must not run")


@pytest.mark.xfail(reason="was known")
def test_expected_failure_passes() -> None:
    pass


@pytest.mark.xfail(reason="known", strict=True)
def test_strictly_expected_failure() -> None:
    raise AssertionError("as known")


@pytest.mark.xfail(reason="was known", strict=True)
def test_strictly_expected_failure_passes() -> None:
    pass


@pytest.mark.xfail(reason="known", raises=ValueError)
def test_wrong_failure_for_the_mark() -> None:
    raise TypeError("another one")


@pytest.mark.requires(memory=">=1000TiB")
def test_gated() -> None:
    raise AssertionError("it must not run")


@pytest.mark.xfail(reason="known")
@pytest.mark.requires(memory=">=1000TiB")
def test_gated_and_expected_to_fail() -> None:
    raise AssertionError("it must not run")


@pytest.mark.requires(device="cpu", torch=">=2.0")
def test_requirement_that_is_met() -> None:
    pass


@pytest.mark.parametrize(
    "number",
    [
        1,
        2,
        pytest.param(3, id="skipped", marks=pytest.mark.skip(reason="unlucky")),
        pytest.param(4, id="gated", marks=pytest.mark.requires(memory=">=1000TiB")),
    ],
)
def test_parametrised(number: int) -> None:
    assert number == 1


class TestClass:
    def test_method(self) -> None:
        pass

    class TestInner:
        def test_method(self) -> None:
            assert bool(0)


def test_warns() -> None:
    import warnings

    warnings.warn("mind the gap", UserWarning, stacklevel=1)
