"""The request to stop a run: existing and later listeners receive it."""

from __future__ import annotations

import os
import select
from pathlib import Path

import pytest

from harness.scheduling.stop_request import StopListener, StoppedError, StopRequest, send_stop

FIRST = StopRequest("stopped by SIGTERM", 10.0, 1000.0)
SECOND = StopRequest("stopped by SIGTERM", 0.0, 990.0)


def is_readable(listener: StopListener) -> bool:
    return bool(select.select([listener], [], [], 0)[0])


def test_every_listener_is_woken_and_hears_the_latest_request(tmp_path: Path) -> None:
    listeners = [StopListener(tmp_path, name) for name in ("gw0", "gw1")]
    assert [listener.receive() for listener in listeners] == [None, None]
    assert not any(map(is_readable, listeners))
    for listener in listeners:
        listener.refuse()
    send_stop(tmp_path, FIRST)
    assert all(map(is_readable, listeners))
    assert [listener.receive() for listener in listeners] == [FIRST, FIRST]
    assert not any(map(is_readable, listeners))
    send_stop(tmp_path, FIRST)
    send_stop(tmp_path, SECOND)
    for listener in listeners:
        assert listener.receive() == SECOND
        with pytest.raises(StoppedError, match="stopped by SIGTERM"):
            listener.refuse()
        listener.close()


def test_who_comes_later_hears_it_as_well(tmp_path: Path) -> None:
    send_stop(tmp_path, FIRST)
    with_file = StopListener(tmp_path, "gw2")
    assert with_file.receive() == FIRST
    send_stop(tmp_path, SECOND)
    assert with_file.receive() == SECOND
    with_file.close()


def test_a_dead_listener_and_one_that_does_not_read_block_no_sender(tmp_path: Path) -> None:
    StopListener(tmp_path, "dead").close()
    deaf, good = StopListener(tmp_path, "deaf"), StopListener(tmp_path, "good")
    for _ in range(2000):
        send_stop(tmp_path, FIRST)
        assert good.receive() == FIRST
    deaf.close()
    good.close()


def test_a_request_that_cannot_be_stored_reaches_existing_listeners(tmp_path: Path) -> None:
    listener = StopListener(tmp_path, "gw0")
    (tmp_path / ".request.json").mkdir()
    with pytest.raises(OSError, match="directory"):
        send_stop(tmp_path, FIRST)
    assert listener.receive() == FIRST
    listener.close()


def test_descriptors_are_not_inherited(tmp_path: Path) -> None:
    listener = StopListener(tmp_path, "gw0")
    assert not os.get_inheritable(listener.fileno())
    listener.close()


@pytest.mark.parametrize(
    ("stop", "text"),
    [
        (FIRST, "stopped by SIGTERM after 10 s of grace"),
        (StopRequest("stopped by SIGINT", 0.5, 0.0), "stopped by SIGINT after 0.5 s of grace"),
        (SECOND, "stopped by SIGTERM, without grace"),
    ],
)
def test_text(stop: StopRequest, text: str) -> None:
    assert stop.text == text
