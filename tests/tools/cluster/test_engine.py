"""The commands that start agents, and the hosts that a file names."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.tools.cluster.engine import EngineError, Ssh, read_hosts


@pytest.mark.parametrize(
    ("destination", "name"),
    [
        ("n0", "n0"),
        ("user@n0.example.org", "user@n0.example.org"),
        ("ssh://n0", "n0"),
        ("ssh://user@n0:2222", "user@n0:2222"),
        ("ssh://user@n0:2222/", "user@n0:2222"),
        ("fe80::1%eth0", "fe80::1%eth0"),
        ("user@fe80::1%eth0", "user@fe80::1%eth0"),
        ("::1", "::1"),
        ("ssh://[fe80::1%eth0]:22", "[fe80::1%eth0]:22"),
    ],
)
def test_destinations_of_ssh(destination: str, name: str, tmp_path: Path) -> None:
    """ssh gets them as they are; the name of a node is also that of its log."""
    path = tmp_path / "hosts"
    path.write_text(f"{destination}  # the first one\n")
    (host,) = Ssh(read_hosts(path)).hosts()
    assert host.name == name
    assert host.command[-2] == destination
    assert host.command[-3] == "--"


@pytest.mark.parametrize("line", ["-oProxyCommand=x", "a b", "a;b", "ssh://a/b", "../n0", "rsh://n0", "a/b", "$(x)"])
def test_other_words_are_no_hosts(line: str, tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text(f"n0\n{line}\n")
    with pytest.raises(EngineError, match="is not a host: write one ssh destination per line"):
        read_hosts(path)


def test_two_destinations_with_one_name(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text("n0\nssh://n0\n")
    with pytest.raises(EngineError, match="names 'n0' twice"):
        read_hosts(path)
