"""Deliberate leaks, each found with its origin; and the texts that describe origins."""

from __future__ import annotations

import functools
import gc
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from harness.checks.origins import (
    MAX_FRAMES,
    caller_frames,
    describe_allocations,
    describe_holders,
    describe_mappings,
    new_cuda_blocks,
)
from harness.checks.origins import _Mapping as Mapped
from tests.checks.examined import Examined, examine

pytestmark = pytest.mark.acceptance

_LEAKING = """
import ctypes, functools, gc, mmap, os, tempfile, threading
from multiprocessing import shared_memory
import numpy as np
import pytest
import torch

KEPT = []
NEVER = threading.Event()


class Model:
    kept = []


def test_list():
    KEPT.append(torch.zeros(1024))


def test_class_attribute():
    Model.kept.append(torch.zeros(1024))


def test_closure():
    values = torch.zeros(1024)
    KEPT.append(lambda: values)


def test_garbage():
    node = Model()
    node.itself, node.values = node, torch.zeros(1024)
    gc.garbage.append(node)


def test_view():
    KEPT.append(torch.zeros(1 << 18)[:1])


def test_storage():
    KEPT.append(torch.zeros(1024).untyped_storage())


def test_graph():
    KEPT.append(torch.nn.Linear(30, 30)(torch.zeros(1, 30)).sum())


def test_grown_in_place():
    KEPT[:] = [torch.zeros(1024 * (1 + len(KEPT[0]) // 1024 if KEPT else 1))]


@functools.lru_cache(maxsize=None)
def memoised(key):
    return torch.zeros(1024)


def test_memo_that_never_hits():
    memoised(object())


def test_failing_case_that_leaks():
    KEPT.append(torch.zeros(1024))
    assert not KEPT


def test_held_by_cpp():
    # A graph that only a scripted module's constants refer to.
    frozen = torch.jit.freeze(torch.jit.script(torch.nn.Linear(300, 300)).eval())
    KEPT.append(frozen._c)


def test_numpy():
    KEPT.append(np.zeros(50_000))


def test_malloc():
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    libc.malloc(ctypes.c_size_t(8 << 20))


def test_mmap():
    KEPT.append(mmap.mmap(-1, 8 << 20))


def test_shared_memory():
    KEPT.append(shared_memory.SharedMemory(create=True, size=4096))


def test_shared_memory_without_its_end():
    shared_memory.SharedMemory(create=True, size=4096).close()


def test_temporary_file():
    descriptor, _ = tempfile.mkstemp(prefix="mine")
    os.write(descriptor, b"x" * 10)
    os.close(descriptor)


def test_descriptor():
    os.open(os.devnull, os.O_RDONLY)


def test_thread():
    threading.Thread(target=NEVER.wait, name="waits for ever", daemon=True).start()
"""


@pytest.fixture(scope="module")
def leaking(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Examined]:
    return examine(tmp_path_factory.mktemp("leaking"), _LEAKING)


_LIST = "global 'KEPT' of module test_cases"


@pytest.mark.parametrize(
    ("case", "meter", "much", "where"),
    [
        (
            "test_list",
            "tensors",
            "1 more",
            [f"float32 tensor of shape 1024 on cpu, 4.0 KiB, held by: item of list of 12, {_LIST}"],
        ),
        ("test_list", "tensor_bytes", "4.0 KiB more", []),
        ("test_class_attribute", "tensors", "1 more", ["class attribute 'kept' of test_cases.Model"]),
        ("test_closure", "tensors", "1 more", ["in the closure of function test_cases.test_closure", _LIST]),
        ("test_garbage", "tensors", "1 more", ["attribute 'values' of a test_cases.Model, item of gc.garbage"]),
        ("test_garbage", "uncollectable", "1 more", []),
        ("test_view", "tensor_bytes", "1.0 MiB more", []),
        ("test_storage", "tensor_bytes", "4.0 KiB more", ["storage on cpu, 4.0 KiB, held by: item of list of 12"]),
        ("test_graph", "tensors", "4 more", ["with autograd graph (SumBackward0), held by: item of list of 12"]),
        ("test_grown_in_place", "tensor_bytes", "4.0 KiB more", [_LIST]),
        ("test_memo_that_never_hits", "tensors", "1 more", ["cache of test_cases.memoised"]),
        ("test_failing_case_that_leaks", "tensors", "1 more", [_LIST]),
        ("test_held_by_cpp", "heap_bytes", "KiB", []),
        ("test_numpy", "heap_bytes", "KiB", ["1.5 MiB in ", " blocks allocated at ", "test_cases.py:"]),
        ("test_malloc", "heap_bytes", "8.0 MiB", []),
        ("test_mmap", "mapped_bytes", "8.0 MiB", ["32.0 MiB of /dev/zero (deleted)"]),
        ("test_shared_memory", "shm_files", "1 more", ["psm_"]),
        ("test_shared_memory_without_its_end", "shm_bytes", "4.0 KiB more", []),
        ("test_temporary_file", "temp_files", "1 more", ["/mine"]),
        ("test_temporary_file", "temp_bytes", "10 bytes more", []),
        ("test_descriptor", "descriptors", "1 more", ["/dev/null"]),
        ("test_thread", "threads", "1 more", ["daemon thread 'waits for ever' at "]),
    ],
)
def test_a_leak_is_found_with_its_origin(
    leaking: Mapping[str, Examined], case: str, meter: str, much: str, where: list[str]
) -> None:
    found = leaking[case]
    assert much in found.leaks[meter]
    for words in where:
        assert words in "\n".join(found.origins[meter]), found.origins


@pytest.mark.parametrize(
    "case",
    [
        "test_list",
        "test_class_attribute",
        "test_closure",
        "test_garbage",
        "test_view",
        "test_storage",
        "test_graph",
        "test_failing_case_that_leaks",
        "test_malloc",
        "test_shared_memory",
        "test_shared_memory_without_its_end",
        "test_temporary_file",
        "test_descriptor",
        "test_thread",
    ],
)
def test_the_fast_tier_alone_suspects_it(leaking: Mapping[str, Examined], case: str) -> None:
    assert leaking[case].first


# Texts


class _Box:
    __slots__ = ("inside",)

    def __init__(self, inside: object) -> None:
        self.inside = inside


class _Bag:
    shelf: list[object] = []  # noqa: RUF012 - a growing class attribute is under test

    def __init__(self) -> None:
        self.values: dict[object, object] = {}


_TABLE: dict[str, object] = {}


def _waiting(thing: object) -> Any:
    yield
    yield thing


def _through_dict(thing: object) -> str:
    _TABLE["key"] = [thing]
    return f"item of list of 1, value of 'key' in dict of 1, global '_TABLE' of module {__name__}"


def _through_slot(thing: object) -> str:
    _TABLE["key"] = _Box(thing)
    return f"attribute 'inside' of a {__name__}._Box, value of 'key' in dict of 1, global '_TABLE' of module {__name__}"


def _through_class(thing: object) -> str:
    _Bag.shelf.append(thing)
    return f"item of list of 1, class attribute 'shelf' of {__name__}._Bag"


def _through_generator(thing: object) -> str:
    waiting = _waiting(thing)
    next(waiting)
    _TABLE["key"] = waiting
    return f"a suspended _waiting, value of 'key' in dict of 1, global '_TABLE' of module {__name__}"


def _through_partial(thing: object) -> str:
    _TABLE["key"] = functools.partial(print, thing)
    words = "item of tuple of 1, attribute 'args' of a functools.partial, value of 'key' in dict of 1"
    return f"{words}, global '_TABLE' of module {__name__}"


@pytest.fixture
def _visible() -> Iterator[None]:
    """Let the garbage collector see the modules of the tests, which are frozen after the collection."""
    gc.unfreeze()
    yield
    gc.freeze()


@pytest.mark.usefixtures("_visible")
@pytest.mark.parametrize("hold", [_through_dict, _through_slot, _through_class, _through_generator, _through_partial])
def test_holders_in_words(hold: Any) -> None:
    thing: list[object] = []
    try:
        words = hold(thing)
        assert describe_holders(thing) == words
    finally:
        _TABLE.clear()
        _Bag.shelf.clear()


def test_what_only_a_running_function_holds() -> None:
    assert describe_holders([]) == "C, C++ or a running function (no object that the garbage collector tracks)"


def test_containers_of_the_caller_are_left_out() -> None:
    mine: list[object] = [[]]
    assert describe_holders(mine[0], (mine,)).startswith("C, C++ or a running function")


def _raise_with(kept: object) -> None:
    raise ValueError(id(kept))


def test_a_traceback_that_is_kept_holds_the_variables_of_its_frames() -> None:
    thing: list[list[object]] = [[]]
    try:
        _raise_with(thing[0])
    except ValueError as error:
        _TABLE["key"] = error
    try:
        assert describe_holders(thing[0], (thing,)).startswith(f"local 'kept' of _raise_with ({__file__}:")
    finally:
        _TABLE.clear()


def test_a_chain_without_a_name_has_an_end() -> None:
    thing: object = []
    nest = thing
    for _ in range(100):
        nest = [nest]
    assert describe_holders(thing).count("item of list of 1") < 20
    del nest
    gc.collect()


def _frame(filename: str, line: int, name: str = "f") -> dict[str, Any]:
    return {"filename": filename, "line": line, "name": name}


def _segment(*blocks: dict[str, Any], device: int = 0, address: int = 0x1000) -> dict[str, Any]:
    return {"device": device, "address": address, "stream": 0, "segment_pool_id": (0, 0), "blocks": list(blocks)}


def _block(address: int, size: int, state: str = "active_allocated", *frames: dict[str, Any]) -> dict[str, Any]:
    return {"address": address, "size": size, "requested_size": size - 12, "state": state, "frames": list(frames)}


_CASE = (_frame("/lib/torch/nn.py", 9), _frame("/suites/test_x.py", 12, "test_y"), _frame("/lib/torch/z.py", 1))


def test_surviving_cuda_blocks_are_summed_by_their_stack() -> None:
    before = {"segments": [_segment(_block(0x1000, 512), _block(0x1200, 512))]}
    after = {
        "segments": [
            _segment(
                _block(0x1000, 512),  # existed before
                _block(0x1200, 1024, "active_allocated", *_CASE),  # a different block at the address of an earlier one
                _block(0x1600, 1024, "active_awaiting_free", *_CASE),
                _block(0x1A00, 4096, "inactive"),
            ),
            _segment(_block(0x1000, 512), device=1),
        ]
    }
    assert new_cuda_blocks(before, after, ("/lib/torch/",)) == [
        "2.0 KiB in 2 blocks allocated at /suites/test_x.py:12 test_y",
        "500 bytes in 1 block allocated at an unknown place (device 1, stream 0, pool (0, 0))",
    ]
    assert new_cuda_blocks(after, after) == []
    assert new_cuda_blocks({}, {}) == []


def test_blocks_without_an_address_lie_one_after_the_other() -> None:
    blocks = [{"size": 512, "state": "inactive"}, {"size": 512, "state": "active_allocated"}]
    whole = {"segments": [_segment(_block(0x1200, 512))]}
    assert new_cuda_blocks(whole, {"segments": [_segment(*blocks)]}) == []


def test_frames_of_libraries_are_left_out_unless_there_are_no_others() -> None:
    library, own = ("/lib/a.py", 1, "a"), ("/case.py", 2, "b")
    assert caller_frames([library, own], ("/lib/",)) == ("/case.py:2 b",)
    assert caller_frames([library], ("/lib/",)) == ("/lib/a.py:1 a",)
    assert caller_frames([own] * 100) == ("/case.py:2 b",) * MAX_FRAMES
    assert caller_frames([]) == ()


def test_stacks_are_ranked_by_bytes_and_empty_ones_left_out() -> None:
    assert describe_allocations([(10, 1, ("a:1",)), (30, 2, ("b:2", "c:3")), (15, 1, ("a:1",)), (99, 9, ())]) == [
        "30 bytes in 2 blocks allocated at b:2 < c:3",
        "25 bytes in 2 blocks allocated at a:1",
    ]


def test_mapped_memory_that_grew_is_listed_by_name() -> None:
    before = [Mapped(0, 4096, ""), Mapped(8192, 12288, "/lib/x.so")]
    after = [Mapped(0, 3 * 4096, ""), Mapped(4 * 4096, 5 * 4096, "/new"), Mapped(8192, 12288, "/lib/x.so")]
    assert describe_mappings(before, after) == ["8.0 KiB of anonymous memory", "4.0 KiB of /new"]
    assert describe_mappings(after, before) == []
