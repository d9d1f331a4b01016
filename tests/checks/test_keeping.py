"""The mark ``keeps``: its arguments, and the growth that counts in spite of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from harness.checks.keeping import KEEPS_GROUPS, Keeps, parse_keeps_mark
from harness.checks.meters import METERS
from harness.core.errors import HarnessError

KIB, MIB = 1 << 10, 1 << 20


@pytest.mark.parametrize(
    ("args", "kwargs", "expected"),
    [
        ((), {}, "needs one reason"),
        ((" ",), {}, "needs one reason"),
        ((3,), {}, "needs one reason"),
        (("a", "b"), {}, "needs one reason"),
        (("a",), {"reason": "b"}, "needs one reason"),
        (("a",), {"why": "b"}, "keeps(why='b'): expected one of tensors=…, host=…, pinned=…, device=…, streams=…"),
        (("a",), {"tensors": 0}, "keeps(tensors=0): expected a number of tensors, at least 1"),
        (("a",), {"tensors": True}, "keeps(tensors=True): expected a number of tensors, at least 1"),
        (("a",), {"tensors": "4"}, "keeps(tensors='4'): expected a number of tensors, at least 1"),
        (("a",), {"streams": "1KiB"}, "keeps(streams='1KiB'): expected a number of streams, at least 1"),
        (("a",), {"host": 65536}, "keeps(host=65536): expected a size with a unit, such as '64KiB'"),
        (("a",), {"host": "64"}, "keeps(host='64'): expected a size with a unit"),
        (("a",), {"pinned": "0KiB"}, "keeps(pinned='0KiB'): expected a size with a unit"),
    ],
)
def test_wrong_arguments_are_refused(args: tuple[Any, ...], kwargs: Mapping[str, Any], expected: str) -> None:
    with pytest.raises(HarnessError) as caught:
        parse_keeps_mark(args, kwargs, "suites/a/test_a.py:12")
    assert str(caught.value).startswith("suites/a/test_a.py:12: ")
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("most", "grown", "counted"),
    [
        # Without limits, tensors and host memory are not checked; everything else is.
        (
            {},
            {"tensors": 9, "tensor_bytes": MIB, "heap_bytes": 9 * MIB, "mapped_bytes": MIB, "python_blocks": 9999},
            {},
        ),
        (
            {},
            {
                "threads": 1,
                "descriptors": 2,
                "cuda_allocated[1]": 512,
                "shm_files": 1,
                "temp_files": 1,
                "pinned_bytes": 4,
            },
            {
                "threads": 1,
                "descriptors": 2,
                "cuda_allocated[1]": 512,
                "shm_files": 1,
                "temp_files": 1,
                "pinned_bytes": 4,
            },
        ),
        # With limits, growth beyond them and of unnamed meters is checked.
        ({"tensors": 4}, {"tensors": 4, "heap_bytes": 9}, {"heap_bytes": 9}),
        ({"tensors": 4}, {"tensors": 5}, {"tensors": 1}),
        ({"streams": 1}, {"cuda_streams": 1}, {}),
        ({"tensors": 4, "streams": 1}, {"cuda_streams": 3}, {"cuda_streams": 2}),
        ({"host": 64 * KIB}, {"heap_bytes": 64 * KIB, "python_blocks": KIB}, {}),
        (
            {"host": 64 * KIB},
            {"heap_bytes": 65 * KIB, "python_blocks": KIB + 1},
            {"heap_bytes": KIB, "python_blocks": 1},
        ),
        ({"pinned": KIB}, {"pinned_bytes": KIB, "pinned_reserved": KIB}, {}),
        ({"pinned": KIB}, {"pinned_bytes": 2 * KIB, "tensors": 1}, {"pinned_bytes": KIB, "tensors": 1}),
        ({"device": 2 * KIB}, {"cuda_allocated[1]": 2 * KIB, "cuda_active_blocks[1]": 4}, {}),
        (
            {"device": 2 * KIB},
            {"device_allocated[0]": 2 * KIB + 512, "device_active_blocks[0]": 5, "cuda_events": 1, "pinned_bytes": 4},
            {"device_allocated[0]": 512, "device_active_blocks[0]": 1, "cuda_events": 1, "pinned_bytes": 4},
        ),
        # A decrease is unaffected.
        ({"tensors": 4}, {"tensors": -9, "threads": -1}, {"tensors": -9, "threads": -1}),
    ],
)
def test_what_counts_beyond_what_is_kept(
    most: Mapping[str, int], grown: Mapping[str, int], counted: Mapping[str, int]
) -> None:
    assert Keeps("torch does", most).beyond(grown) == counted


def test_what_can_be_named_are_meters() -> None:
    assert {meter.keeps for meter in METERS} == {"", *KEEPS_GROUPS}


@pytest.mark.parametrize(
    ("most", "text"),
    [
        ({}, "torch does"),
        ({"tensors": 4}, "torch does (at most tensors 4 per repetition)"),
        ({"tensors": 4, "host": 1536 * KIB}, "torch does (at most tensors 4, host 1536 KiB per repetition)"),
        ({"pinned": 2 * MIB}, "torch does (at most pinned 2 MiB per repetition)"),
    ],
)
def test_the_text_has_the_limits(most: Mapping[str, int], text: str) -> None:
    assert Keeps("torch does", most).text == text
