"""Cases with output, ids and exceptions that break naive reports."""

import ctypes
import logging
import os
import sys
from collections.abc import Callable

import pytest

EXPECTED = {
    "test_before": "passed",
    "test_prints": "passed",
    "test_writes_bytes": "passed",
    "test_prints_from_c": "passed",
    "test_logs": "passed",
    "test_100_megabytes": "passed",
    "test_100_megabytes_and_fails": "failed: AssertionError: after the noise",
    "test_long_exception": "failed: AssertionError: xxxx",
    "test_raises[\\udc80]": "failed: AssertionError: \\udc80",
    "test_raises[\\x00]": "failed: AssertionError: \\x00",
    "test_raises[\\x1b[31m]": "failed: AssertionError: \\x1b[31m",
    "test_raises[\\r]": "failed: AssertionError:",
    "test_raises[\\uffff]": "failed: AssertionError: \\uffff",
    "test_raises[]]>]": "failed: AssertionError: ]]>",
    "test_raises[]": "failed: AssertionError",
    "test_ids[::]": "passed",
    "test_ids[a/b]": "passed",
    "test_ids[[]]": "passed",
    "test_ids[@group]": "passed",
    "test_ids[ ]": "passed",
    "test_ids[\\u2028]": "passed",
    "test_exception_without_text": "failed",
    "test_skips": "skipped: \\udc80\\x00",
    "test_properties": "passed",
    "test_after": "passed",
}

UGLY = "\udc80 \x00 \x1b[31m \x07 \ufffe \U0001f9ea </failure>]]>&"


def test_before() -> None:
    pass


def test_prints() -> None:
    print(UGLY)
    print(UGLY, file=sys.stderr)


def test_writes_bytes() -> None:
    os.write(1, bytes(range(256)))
    os.write(2, b"\xed\xb2\x80\xff\n")


def test_prints_from_c() -> None:
    ctypes.CDLL(None).puts(b"from C \xff\x01")


def test_logs() -> None:
    logging.getLogger("noise").error("%s", UGLY)


def test_100_megabytes() -> None:
    shout()


def test_100_megabytes_and_fails() -> None:
    shout()
    raise AssertionError("after the noise")


def shout() -> None:
    chunk = b"x" * 99 + b"\n"
    for _ in range(100):
        os.write(1, chunk * 10_000)


def test_long_exception() -> None:
    raise AssertionError("x" * 3_000_000)


@pytest.mark.parametrize("text", ["\udc80", "\x00", "\x1b[31m", "\r", "\uffff", "]]>", ""])
def test_raises(text: str) -> None:
    raise AssertionError(text)


@pytest.mark.parametrize("text", ["::", "a/b", "[]", "@group", " ", "\u2028"])
def test_ids(text: str) -> None:
    assert text


def test_exception_without_text() -> None:
    class SpeechlessError(Exception):
        def __str__(self) -> str:
            raise ValueError("nothing to say")

        __repr__ = __str__

    raise SpeechlessError


def test_skips() -> None:
    pytest.skip("\udc80\x00")


def test_properties(record_property: Callable[[str, object], None]) -> None:
    record_property("name \x00\udc80", UGLY)
    record_property("value", object())


def test_after() -> None:
    pass
