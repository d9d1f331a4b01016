"""An agent may send anything, so everything is checked."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.tools.cluster import link
from harness.tools.cluster.link import (
    VERSION,
    Beat,
    Done,
    Hello,
    LineBuffer,
    Link,
    LinkProtocolError,
    ToHead,
    Want,
    last_words,
)

BAD = [
    b"",
    b"null",
    b"[]",
    b"login banner",
    b'{"say":"open"}',  # only the head sends this
    b'{"say":"done"}',
    b'{"say":"done","case":-1}',
    b'{"say":"done","case":"1"}',
    b'{"say":"done","case":1,"more":1}',
    b'{"say":"want","cases":1e400}',
    b'{"say":"lines","lines":[1]}',
    b'{"say":"beat"',
    b"\xff\xfe",
]


@pytest.mark.parametrize("line", BAD)
def test_what_is_not_of_the_protocol_is_refused(line: bytes) -> None:
    with pytest.raises(LinkProtocolError, match="it sent"):
        link.to_head(line)


@given(st.binary(max_size=300))
def test_any_bytes_are_a_message_or_refused(line: bytes) -> None:
    with contextlib.suppress(LinkProtocolError):
        link.to_head(line)


@pytest.mark.parametrize("message", [Beat(), Want(cases=3), Done(case=0)])
def test_there_and_back(message: Beat | Want | Done) -> None:
    line = link.encode_message(message)
    assert line.count(b"\n") == 1
    assert link.to_head(line) == message


@given(st.lists(st.binary(max_size=20).filter(lambda data: b"\n" not in data)), st.integers(1, 7))
def test_lines_are_cut_anywhere(lines: list[bytes], step: int) -> None:
    data = b"".join(line + b"\n" for line in lines)
    buffer = LineBuffer()
    found = [line for at in range(0, len(data), step) for line in buffer.feed(data[at : at + step])]
    assert found == lines


def test_a_line_without_end_is_refused() -> None:
    buffer = LineBuffer(longest=100)
    for _ in range(10):
        buffer.feed(b"x" * 10)
    with pytest.raises(LinkProtocolError, match="a line of over"):
        buffer.feed(b"x")


def linked(code: str, folder: Path) -> Link:
    return Link("n", [sys.executable, "-c", code], folder / "n.log")


def received(link: Link) -> list[ToHead]:
    import select

    found: list[ToHead] = []
    while True:
        select.select([link.source], [], [], 60)
        some = link.receive()
        if some is None:
            return found
        found += some


HELLO = "import json,sys; t=sys.stdin.readline().strip(); "
SAY = f'print(json.dumps({{"say":"hello","version":{VERSION},"token":t,"host":"h","pid":1,"harness":"0","clock":0}})); '


def test_banners_before_the_first_word_are_no_words(tmp_path: Path) -> None:
    """The same holds for a hello with another token: only the agent knows the run's token."""
    noise = 'print("Welcome!"); print("{}"); print(json.dumps({"say":"beat"})); '
    foreign = SAY.replace('"token":t', '"token":"x"')
    link = linked(HELLO + noise + foreign + SAY + 'print(json.dumps({"say":"beat"}))', tmp_path)
    link.process.stdin.write(link.token.encode() + b"\n")  # type: ignore[union-attr]
    assert [type(each) for each in received(link)] == [Hello, Beat]
    link.close()


def test_noise_after_the_first_word_is_a_fault(tmp_path: Path) -> None:
    link = linked(HELLO + SAY + 'print("oops")', tmp_path)
    link.process.stdin.write(link.token.encode() + b"\n")  # type: ignore[union-attr]
    with pytest.raises(LinkProtocolError, match="it sent b'oops'"):
        received(link)
    link.close()


def test_how_a_connection_ended(tmp_path: Path) -> None:
    link = linked("import sys; sys.exit('no route to host')", tmp_path)
    assert received(link) == []
    assert link.end() == f"{sys.executable} ended with exit status 1: no route to host"
    link.close()


SRUN = "srun: error: h0: task 0: Exited with exit code 1\n"


@pytest.mark.parametrize(
    ("output", "words"),
    [
        ("", ""),
        ("harness agent: the head uses version 1\n", "harness agent: the head uses version 1"),
        (f"ModuleNotFoundError: no x\n{SRUN}", f"ModuleNotFoundError: no x; {SRUN.strip()}"),
        (f"OSError: no space\nsrun: Terminating\n{SRUN}\n", f"OSError: no space; {SRUN.strip()}"),
        (
            f"slurmstepd: error: *** STEP 1.0 CANCELLED ***\n{SRUN}",
            f"slurmstepd: error: *** STEP 1.0 CANCELLED ***; {SRUN.strip()}",
        ),
        (SRUN, SRUN.strip()),
    ],
)
def test_the_reason_for_which_an_agent_ended(output: str, words: str) -> None:
    assert last_words(output) == words
