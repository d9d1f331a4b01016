"""Cases that are waived as crashed or flaky: the first attempt at each is after other cases."""

import os

EXPECTED = {
    "test_first": "passed",
    "test_bad_in_company": {
        "batch": "waived: waived: known (https://example.org/1; suites/policy_company/waivers.yaml:2): flaky",
        "case": "unexpected_pass: passed, but waived as crashed or flaky in suites/policy_company/waivers.yaml:2",
    },
    "test_between": "passed",
    "test_bad": "waived: waived: known (https://example.org/1; suites/policy_company/waivers.yaml:2): crashed: exit",
}
OPTIONS = ["--waivers=suites/policy_company/waivers.yaml", "--fail-on-flaky", "--dist=loadfile"]

RAN: list[int] = []


def test_first() -> None:
    RAN.append(1)


def test_bad_in_company() -> None:
    if RAN:
        os._exit(3)


def test_between() -> None:
    pass


def test_bad() -> None:
    os._exit(4)
