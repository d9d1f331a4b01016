"""The snapshot suite's pure helpers: reading untrusted pickles, an allocator on paper, and the cases' queries."""

from __future__ import annotations

import collections
import io
import os
import pickle
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from suites.snapshot import builder, pages, plain, reading
from suites.snapshot.builder import MIB, Paper, Snapshot, stack

# Pickles of plain values

PLAIN: list[Any] = [
    None, True, 0, -1, 255, 70_000, -(1 << 40), 1 << 200, 1.5, float("inf"), "", "größe\x00\udc80", (), [], {},
    (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), [1, [2, [3]]], {"a": {"b": [(0, 1)]}, 7: None}, "x" * 70_000,
    list(range(3000)), {str(n): n for n in range(3000)},
]  # fmt: skip


@pytest.mark.parametrize("value", PLAIN, ids=lambda value: repr(value)[:20])
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_plain_values_are_loaded(value: object, protocol: int) -> None:
    assert plain.load(pickle.dumps(value, protocol)) == value


def test_values_that_are_shared_are_loaded() -> None:
    frames = stack("f", "g")

    found = plain.load(pickle.dumps([frames, frames, {"frames": frames}]))

    assert found == [frames, frames, {"frames": frames}]
    assert found[0] is found[1]


class Trap:
    """An object whose pickle creates a folder when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def test_nothing_in_a_pickle_is_run(tmp_path: Path) -> None:
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        data = pickle.dumps({"segments": [Trap(tmp_path / "sprung")]}, protocol)
        with pytest.raises(plain.RefusedError, match="instruction"):
            plain.load(data)
    assert list(tmp_path.iterdir()) == []


def within_itself() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def by_name(value: object) -> bytes:
    """Return a pickle that makes its reader look up a value (a persistent id)."""

    class Pickler(pickle.Pickler):
        def persistent_id(self, obj: object) -> object:
            return "a name" if obj is value else None

    file = io.BytesIO()
    Pickler(file).dump([value])
    return file.getvalue()


WHOLE = pickle.dumps({"segments": [1, 2]})

REFUSED: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "cannot be read"),
    "cut": (WHOLE[:-4], "cannot be read"),
    "no_pickle": (b"<!DOCTYPE html>", "instruction|cannot be read"),
    "followed": (WHOLE + b"\x00", "follow"),
    "followed_by_another": (WHOLE + WHOLE, "follow"),
    "a_class": (pickle.dumps(collections.OrderedDict(a=1)), "instruction"),
    "a_function": (pickle.dumps(os.getcwd), "instruction"),
    "a_set": (pickle.dumps({1, 2}, 4), "instruction"),
    "bytes": (pickle.dumps(b"abc"), "instruction"),
    "from_elsewhere": (by_name(object), "instruction"),
    "within_itself": (pickle.dumps(within_itself()), "within itself"),
    "deep": (pickle.dumps(nested(60)), "nested"),
    "large_number": (b"\x80\x02]r" + struct.pack("<I", 0x7FFF_FFFF) + b".", "memo index"),
    "key_that_is_no_key": (b"\x80\x02}]K\x01s.", "cannot be loaded"),
    "memory_that_is_not_there": (b"\x80\x02h\x07.", "cannot be (read|loaded)"),
    "stack_that_is_empty": (b"\x80\x02.", "cannot be (read|loaded)"),
    "length_that_lies": (b"\x80\x04\x8d" + struct.pack("<Q", 1 << 60) + b"abc.", "cannot be read"),
    "text_that_is_none": (b"\x80\x02X\x01\x00\x00\x00\xff.", "cannot be (read|loaded)"),
    "frame_that_lies": (b"\x80\x04\x95" + b"\xff" * 8 + b"N.", "cannot be (read|loaded)"),
    "protocol_of_the_future": (b"\x80\x63N.", "cannot be loaded"),
}


@pytest.mark.parametrize(("data", "why"), REFUSED.values(), ids=REFUSED.keys())
def test_anything_else_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(plain.RefusedError, match=why):
        plain.load(data)


def test_damage_is_refused_or_makes_plain_values() -> None:
    whole = pickle.dumps(builder.ordinary())
    draw = random.Random(1)
    for _ in range(2000):
        data = bytearray(whole)
        for _ in range(draw.randint(1, 3)):
            data[draw.randrange(len(data))] = draw.randrange(256)
        try:
            plain.check(plain.load(bytes(data)))
        except plain.RefusedError:
            continue


@pytest.mark.parametrize(("rest", "taken"), [(b"", True), (b"\x00" * 3, True), (b"\x00x", False), (b".", False)])
def test_padding_is_zeros(rest: bytes, taken: bool) -> None:
    if taken:
        assert plain.load(WHOLE + rest, padded=True) == {"segments": [1, 2]}
    else:
        with pytest.raises(plain.RefusedError, match="follow"):
            plain.load(WHOLE + rest, padded=True)


@pytest.mark.parametrize(
    "value", [b"", {1}, object(), [1, {"a": object()}], {(1, b""): 1}, within_itself(), nested(60)]
)
def test_values_that_are_not_plain_are_reported(value: object) -> None:
    with pytest.raises(plain.RefusedError):
        plain.check(value)


def test_what_is_shared_many_times_is_looked_at_once() -> None:
    value: list[Any] = []
    for _ in range(40):
        value = [value, value]

    plain.check(value)  # 2**40 values if each were checked wherever it occurs


# Pages

BODY = "<!DOCTYPE html><html><head></head><body>{}</body></html>"

STRUCTURES: dict[str, tuple[str, list[str] | str]] = {
    "whole": (BODY.format("<p>text</p>"), ["html", "head", "body", "p"]),
    "ends_left_out": ("<!DOCTYPE html>\n<html><head></head><body><p>text</p>\n", ["html", "head", "body", "p"]),
    "void": (BODY.format("<br><img src='x'>"), ["html", "head", "body", "br", "img"]),
    "no_doctype": ("<html><head></head><body></body></html>", "no <!DOCTYPE"),
    "another_doctype": ("<!DOCTYPE svg><html></html>", "declaration"),
    "doctype_twice": (BODY.format("<!DOCTYPE html>"), "declaration"),
    "no_body": ("<!DOCTYPE html><html><head></head></html>", "0 times <body>"),
    "two_bodies": (BODY.format("<body></body>"), "2 times <body>"),
    "not_ended": (BODY.format("<div>"), "has no open element"),
    "crossed": (BODY.format("<b><i></b></i>"), "has no open element"),
    "ended_twice": (BODY.format("</p>"), "has no open element"),
    "text_outside": ("<!DOCTYPE html>text<html><head></head><body></body></html>", "outside"),
    "cut": ("<!DOCTYPE html><html><head></head><body><script>let x", "not ended"),
    "nothing": ("", "no <!DOCTYPE"),
}


@pytest.mark.parametrize(("page", "found"), STRUCTURES.values(), ids=STRUCTURES.keys())
def test_the_structure_of_a_page(page: str, found: list[str] | str) -> None:
    if isinstance(found, list):
        assert pages.structure(page).elements == found
    else:
        with pytest.raises(pages.PageError, match=found):
            pages.structure(page)


def test_scripts_are_kept_with_what_their_elements_say() -> None:
    (script,) = pages.structure(BODY.format("<script type=module src=x>a < b && '<p>'</script>")).scripts

    assert script == pages.Script({"type": "module", "src": "x"}, "a < b && '<p>'")


def viewer(data: str = "[]", kind: str = "'k'", more: str = "") -> str:
    return BODY.format(
        '<script type="module">\nimport {add_local_files} from "https://a.example/b.js"\n'
        f"const local_files = {data}\nadd_local_files(local_files, {kind})\n{more}</script>"
    )


def entry(data: str, name: str = "snapshot.pickle") -> str:
    return f'[{{"name": "{name}", "base64": "{data}"}}]'


def test_a_plot_is_its_kind_and_its_data() -> None:
    assert pages.plot(viewer(entry("gAJLBy4A"))) == pages.Plot("k", {"snapshot.pickle": 7})
    assert pages.plot(viewer()) == pages.Plot("k", {})


@pytest.mark.parametrize(
    "page",
    [
        viewer(entry("gAJLBy4")),
        viewer(entry("gAJL By4A")),
        viewer(entry("Y29zCmdldGN3ZAou")),
        viewer('[{"name": "a"}]'),
        viewer("[7]"),
        viewer("{"),
        viewer('[{"name": "a", "base64": "gAJLBy4A"}, {"name": "a", "base64": "gAJLBy4A"}]'),
        viewer(more="alert(1)\n"),
        viewer(kind="k"),
        viewer().replace("https://", "javascript:"),
        viewer().replace(' type="module"', ""),
        viewer() .replace("</body>", "<script></script></body>"),
        BODY.format("<p></p>"),
    ],
)  # fmt: skip
def test_a_page_that_is_no_plot_is_refused(page: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        pages.plot(page)


# The allocator on paper, and queries of snapshots


@pytest.mark.parametrize("make", [builder.ordinary, builder.two_devices, lambda: Paper(3).snapshot()])
def test_snapshots_on_paper_are_sound(make: Callable[[], Snapshot]) -> None:
    snapshot = make()

    assert reading.faults(snapshot["segments"]) == []
    plain.check(snapshot)
    for number, trace in enumerate(snapshot["device_traces"]):
        live = {
            block.address: block.requested
            for block in reading.blocks(reading.of_device(snapshot["segments"], number))
            if block.state == reading.LIVE
        }
        assert reading.live_after(trace) == live


def test_what_is_free_side_by_side_is_merged() -> None:
    paper = Paper()
    paper.reserve(4096, MIB)
    places = [paper.take(4096, 512) for _ in range(5)]
    for place in (places[1], places[3], places[2]):
        paper.give_back(place)

    assert [(block.state, block.size) for block in reading.blocks(paper.snapshot()["segments"])] == [
        (reading.LIVE, 512),
        (reading.FREE, 1536),
        (reading.LIVE, 512),
        (reading.FREE, MIB - 2560),
    ]


def test_a_pending_block_is_active_until_it_is_completed() -> None:
    paper = Paper()
    paper.reserve(4096, MIB)
    place = paper.take(4096, 100)
    paper.give_back(place, pending=True)
    (pending, _) = reading.blocks(paper.snapshot()["segments"])
    paper.complete(place)

    assert (pending.state, pending.requested) == (reading.PENDING, 100)
    assert [block.state for block in reading.blocks(paper.snapshot()["segments"])] == [reading.FREE]


def segment(**changed: Any) -> dict[str, Any]:
    """Return a segment of 1024 bytes: 512 in use, 512 free."""
    blocks = [
        {"address": 4096, "size": 512, "requested_size": 500, "state": "active_allocated"},
        {"address": 4608, "size": 512, "requested_size": 0, "state": "inactive"},
    ]
    sound = {"device": 0, "address": 4096, "total_size": 1024, "allocated_size": 512, "active_size": 512}
    return sound | {"blocks": blocks, "segment_pool_id": (0, 0)} | changed


def block(**changed: Any) -> list[dict[str, Any]]:
    first, second = segment()["blocks"]
    return [first | changed, second]


def moved(address: int) -> dict[str, Any]:
    blocks = [dict(each, address=each["address"] + address - 4096) for each in block()]
    return segment(address=address, blocks=blocks)


@pytest.mark.parametrize(
    ("segments", "fault"),
    [
        ([segment()], None),
        ([segment(), moved(8192)], None),
        ([segment(), segment(device=1)], None),
        ([segment(total_size=2048)], "total_size"),
        ([segment(allocated_size=0)], "allocated_size"),
        ([segment(active_size=1024)], "active_size"),
        ([segment(blocks=block(address=4097))], "says 0x1001"),
        ([segment(blocks=block(requested_size=600))], "for 600"),
        ([segment(blocks=block(state="lost"), allocated_size=0)], "lost"),
        ([segment(blocks=block(state="inactive"), allocated_size=0, active_size=0)], "side by side"),
        ([segment(), segment()], "overlap"),
    ],
)  # fmt: skip
def test_faults(segments: list[dict[str, Any]], fault: str | None) -> None:
    found = reading.faults(segments)

    assert bool(found) == (fault is not None)
    assert fault is None or any(fault in each for each in found)


def test_an_expandable_segment_may_have_free_blocks_side_by_side() -> None:
    free = segment(blocks=block(state="inactive"), allocated_size=0, active_size=0, is_expandable=True)

    assert reading.faults([free]) == []


def test_blocks_are_found_by_address_device_and_pool() -> None:
    segments = builder.two_devices()["segments"]
    first, second = segments

    assert reading.block_at(segments, 0x1000_0000) == next(reading.blocks([first]))
    assert reading.block_at(segments, 0x1000_0001) is None
    assert reading.of_device(segments, 1) == [second] == reading.of_pool(segments, (0, 1))
    assert reading.of_pool([dict(second, segment_pool_id=[0, 1])], (0, 1))
    assert reading.of_pool(segments, (1, 0)) == []


def event(action: str, addr: int = 512, size: int = 8) -> dict[str, Any]:
    return {"action": action, "addr": addr, "size": size}


@pytest.mark.parametrize(
    ("trace", "live"),
    [
        ([], {}),
        ([event("alloc")], {512: 8}),
        ([event("segment_alloc"), event("alloc"), event("free_requested"), event("free_completed")], {}),
        ([event("alloc"), event("free_requested")], {}),
        ([event("free_requested"), event("free_completed"), event("alloc")], {512: 8}),
        ([event("alloc"), event("alloc")], "which is in use"),
        ([event("alloc"), event("free_requested"), event("alloc")], "which is in use"),
        ([event("alloc"), event("free_requested", size=4)], "another size"),
        ([event("alloc"), event("free_completed")], "not requested"),
    ],
)
def test_what_a_trace_leaves(trace: list[dict[str, Any]], live: dict[int, int] | str) -> None:
    if isinstance(live, str):
        with pytest.raises(ValueError, match=live):
            reading.live_after(trace)
    else:
        assert reading.live_after(trace) == live


def test_who_led_to_something() -> None:
    frames = [builder.frame("inner"), builder.frame("Model.forward"), builder.frame("<module>")]

    assert [reading.is_led_to_by(frames, name) for name in ("inner", "forward", "ner", "")] == [
        True,
        True,
        False,
        False,
    ]
    assert reading.actions([event("alloc"), event("oom")]) == ["alloc", "oom"]
    assert reading.at([event("alloc"), event("alloc", 0), {"action": "oom"}], 512) == [event("alloc")]
