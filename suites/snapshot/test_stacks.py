"""Stacks in the form of snapshots: gathered cheaply, and symbolized on demand."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
import torch

from .. import children
from . import _torch_private as private
from . import scripts

HERE = __file__


def names(stack: list[dict[str, Any]]) -> list[str]:
    return [each["name"] for each in stack]


def gathering_innermost() -> Any:
    return private.gathered()


def gathering_outermost() -> Any:
    return gathering_innermost()


@pytest.mark.covers("test_cuda::TestCudaMallocAsync::test_direct_traceback")
def test_gather_traceback_is_innermost_first() -> None:
    """A stack has name, file and current line of each call, innermost first."""
    first = gathering_outermost.__code__.co_firstlineno
    gathered = gathering_outermost()

    (stack,) = private.symbolised([gathered])

    assert all(set(each) == {"name", "filename", "line"} for each in stack)
    assert names(stack)[1:4] == [
        "gathering_innermost",
        "gathering_outermost",
        "test_gather_traceback_is_innermost_first",
    ]
    assert [each["filename"] for each in stack[1:4]] == [HERE] * 3
    assert stack[2]["line"] == first + 1


def test_gather_traceback_is_not_affected_by_later_changes() -> None:
    """Later symbolization gives the stack at the time of gathering, including functions that were deleted since."""

    def forgotten() -> Any:
        return private.gathered()

    gathered = forgotten()
    forgotten = None  # type: ignore[assignment]

    (stack,) = private.symbolised([gathered])

    assert "forgotten" in names(stack)


def test_symbolize_tracebacks_keeps_stacks_separate_and_in_order() -> None:
    """Several stacks are symbolized together, in order, duplicates included."""

    def one() -> Any:
        return private.gathered()

    def two() -> Any:
        return private.gathered()

    first, second = one(), two()

    found = private.symbolised([second, first, second])

    assert [names(stack)[1] for stack in found] == ["two", "one", "two"]
    assert private.symbolised([]) == []


def test_gather_traceback_is_of_the_thread_that_gathers() -> None:
    """A stack is that of the gathering thread, starting with the thread's first call."""
    gathered: list[Any] = []

    def work() -> None:
        gathered.append(gathering_innermost())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    (stack,) = private.symbolised(gathered)

    assert names(stack)[1:3] == ["gathering_innermost", "work"]
    assert "test_gather_traceback_is_of_the_thread_that_gathers" not in names(stack)
    assert {"_bootstrap", "run"} <= set(names(stack))


def test_gather_traceback_without_python_has_no_call_of_python() -> None:
    """A stack has no Python frames unless they are requested."""
    assert private.stack_here(python=False, script=False, cpp=False) == []
    assert "test_gather_traceback_without_python_has_no_call_of_python" in names(
        private.stack_here(python=True, script=False)
    )


@pytest.mark.covers("test_cuda::TestCudaMallocAsync::test_memory_snapshot_script")
@pytest.mark.filterwarnings("ignore:.*torch.jit.*")
def test_gather_traceback_script_has_calls_of_torchscript() -> None:
    """On request, a running TorchScript function is in the stack with name, file and line, before its Python caller.

    Its position among the Python calls that it makes is unspecified: without C++ frames in between, torch cannot know
    it.
    """
    compiled = torch.jit.script(scripts.the_script)
    scripts.GATHERED.clear()

    assert compiled(torch.ones(3)) == 5
    with_script, without = private.symbolised(scripts.GATHERED)
    scripts.GATHERED.clear()

    reported = names(with_script)
    assert reported.index("the_script") < reported.index("test_gather_traceback_script_has_calls_of_torchscript")
    assert [each for each in with_script if each["name"] != "the_script"] == without
    (script,) = [each for each in with_script if each["name"] == "the_script"]
    assert script["filename"] == scripts.__file__
    assert script["line"] == scripts.the_script.__code__.co_firstlineno + 2


# On Python 3.14 (Debian's, torch 2.13), Python frames follow the C++ frames instead of being interleaved.
@pytest.mark.requires(platform="linux-x86_64", python="<3.14")
@pytest.mark.covers(
    "test_cuda::TestCudaMallocAsync::test_direct_traceback",
    "test_cuda::TestCudaMallocAsync::test_memory_snapshot_with_cpp",
)
@pytest.mark.timeout(300)
def test_gather_traceback_cpp_has_calls_of_cpp_and_python() -> None:
    """With C++ frames, the stack leads from torch's unwinder through its bindings into the interpreter.

    Python frames are interleaved in their positions. Without them, the stack has no C++ frames. The case runs in a
    separate process, because the symbolizer caches library symbols.
    """
    ended = children.run(
        """
import json
from torch._C._profiler import gather_traceback, symbolize_tracebacks
def inner(cpp):
    return gather_traceback(True, True, cpp)
def outer(cpp):
    return inner(cpp)
for stack in symbolize_tracebacks([outer(True), outer(False)]):
    print(json.dumps([each["name"] for each in stack]))
""",
        limit=240,
    )
    both, python = (json.loads(line) for line in ended.lines())

    where = [both.index(name) for name in ("inner", "outer", "<module>")]
    assert where == sorted(where)
    unwinder, gather = (
        next(number for number, name in enumerate(both) if word in name) for word in ("unwind", "Traceback::gather")
    )
    assert unwinder < gather < where[0] - 1, f"no frames of bindings in {both}"  # frames that may be unnamed
    assert set(both[where[0] :]) - set(python), f"no frame of the interpreter in {both}"
    assert python == ["inner", "outer", "<module>"]
