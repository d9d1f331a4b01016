"""The commands that start agents, and the hosts that a file names."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.tools.cluster.engine import (
    EngineError,
    HostlistError,
    Request,
    Resource,
    SlurmNode,
    Ssh,
    expand,
    fold,
    parse_resources,
    read_hosts,
    request_objection,
    scontrol_fields,
)
from tests import slurm_cluster


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


H0 = SlurmNode("h0", ("all", "big"), (Resource("gpu", "h200", 8),), ("hopper", "nvlink"))
H1 = SlurmNode("h1", ("all",), (Resource("gpu", "h200", 8),), ("hopper",))
A0 = SlurmNode("a0", ("all",), (Resource("gpu", "a100", 4),))
NODES = (H0, H1, A0)


@pytest.mark.parametrize(
    ("nodes", "options"),
    [
        (3, []),
        (3, ["--gres=gpu:4"]),
        (3, ["--gres=none"]),
        (2, ["--gres=gpu:h200:8"]),
        (2, ["--constraint=hopper"]),
        (1, ["--constraint=hopper&nvlink", "--partition=big"]),
        (1, ["-pbig"]),
        (9, ["--time=3"]),
        (9, ["--gres=gpu:nonsense:4k"]),
        (9, ["--constraint=[a|b]"]),
    ],
)
def test_what_may_be_had(nodes: int, options: list[str]) -> None:
    assert request_objection(Request.of(nodes, options), NODES, "all") == ""


@pytest.mark.parametrize(
    ("nodes", "options", "text"),
    [
        (
            1,
            ["--gres=gpu:b200:1"],
            "--gres=gpu:b200:1: no node of partition 'all' can meet that, and 1 node is wanted: "
            "h0 (gpu:h200:8, hopper, nvlink); h1 (gpu:h200:8, hopper); a0 (gpu:a100:4)",
        ),
        (
            3,
            ["--gres=gpu:8"],
            "--gres=gpu:8: only h0, h1 of partition 'all' can meet that, and 3 nodes are wanted: "
            "h0 (gpu:h200:8, hopper, nvlink); h1 (gpu:h200:8, hopper); a0 (gpu:a100:4)",
        ),
        (
            2,
            ["--constraint=nvlink"],
            "--constraint=nvlink: only h0 of partition 'all' can meet that, and 2 nodes are wanted: "
            "h0 (gpu:h200:8, hopper, nvlink); h1 (gpu:h200:8, hopper); a0 (gpu:a100:4)",
        ),
        (1, ["--partition=night"], "no node is in partition 'night'; there are all, big"),
    ],
)
def test_what_cannot(nodes: int, options: list[str], text: str) -> None:
    assert request_objection(Request.of(nodes, options), NODES, "all") == text


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", ()),
        ("(null)", ()),
        ("none", ()),
        ("gpu:8", (Resource("gpu", "", 8),)),
        ("gpu", (Resource("gpu"),)),
        ("gpu:h200:8(S:0-1),shard:4", (Resource("gpu", "h200", 8), Resource("shard", "", 4))),
        ("gpu:H100_pcie.80:2(IDX:0,3)", (Resource("gpu", "H100_pcie.80", 2),)),
        ("gpu:4k", None),
    ],
)
def test_resources(text: str, found: tuple[Resource, ...] | None) -> None:
    assert parse_resources(text) == found


def test_a_node_of_scontrol() -> None:
    line = "NodeName=h0 Arch=x86_64 AvailableFeatures=hopper,nvlink Gres=gpu:h200:8 Partitions=all,big  State=IDLE"
    assert SlurmNode.of(scontrol_fields(line)) == H0


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("a", ["a"]),
        ("a1,b2", ["a1", "b2"]),
        ("a[1-3]", ["a1", "a2", "a3"]),
        ("a[08-11]", ["a08", "a09", "a10", "a11"]),
        ("a[1,3,5-6].x", ["a1.x", "a3.x", "a5.x", "a6.x"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("user@a[1-2]", ["user@a1", "user@a2"]),
    ],
)
def test_expand(text: str, hosts: list[str]) -> None:
    assert list(expand(text)) == hosts


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "has no host"),
        ("a[1-2", "has a bracket that is not closed"),
        ("a]1[", "has brackets that do not match"),
        ("a[[1]]", "has brackets that do not match"),
        ("a[3-1]", "'3-1' is no range"),
        ("a[x]", "'x' is no range"),
        ("a[1-999999999999]", "is no range"),
        ("a[1-60000],b[1-60000]", "has more than 65536 hosts"),
        ("a[1-2],a2", "has 'a2' twice"),
        ("a b", "'a b' is no host"),
        ("-oProxyCommand=x", "is no host"),
        ("a;reboot", "is no host"),
    ],
)
def test_a_wrong_list_is_one_sentence(text: str, why: str) -> None:
    with pytest.raises(HostlistError, match=r"expected|write") as raised:
        expand(text)

    assert why in str(raised.value)


@pytest.mark.parametrize(
    ("hosts", "text"),
    [
        ([], ""),
        (["b", "a"], "a,b"),
        (["a3", "a1", "a2"], "a[1-3]"),
        (["a1", "a3"], "a[1,3]"),
        (["a08", "a09", "a10"], "a[08-10]"),
        (["a9", "a10", "a11"], "a[9-11]"),
        (["r1n1", "r1n2", "r2n1"], "r1n[1-2],r2n1"),
        (["a1.x", "a2.x"], "a[1-2].x"),
        (["u@a1:22"], "u@a1:22"),
    ],
)
def test_fold(hosts: list[str], text: str) -> None:
    assert fold(hosts) == text
    assert not hosts or sorted(expand(text)) == sorted(hosts)


@given(st.sets(st.from_regex(r"[a-c]{1,2}(0{0,2}[0-9]{1,3})?(-[a-b][0-9]{1,2})?(\.x)?", fullmatch=True), min_size=1))
def test_a_folded_list_has_the_same_hosts(hosts: set[str]) -> None:
    assert {*expand(fold(hosts))} == hosts


@pytest.mark.skipif(bool(slurm_cluster.missing()), reason=slurm_cluster.missing() or "there is a Slurm")
@pytest.mark.parametrize("text", ["a[1-3,7],b", "n[08-11]", "r[1-2]n[1-2]"])
def test_slurm_reads_a_list_as_we_do(text: str, tmp_path: object) -> None:
    conf = f"{tmp_path}/slurm.conf"
    with open(conf, "w") as file:
        file.write("ClusterName=x\nSlurmctldHost=x\nAuthType=auth/none\n")
    done = subprocess.run(
        ["scontrol", "show", "hostnames", text], capture_output=True, text=True, env={"SLURM_CONF": conf}, check=False
    )
    folded = subprocess.run(
        ["scontrol", "show", "hostnames", fold(expand(text))],
        capture_output=True,
        text=True,
        env={"SLURM_CONF": conf},
        check=False,
    )

    assert tuple(done.stdout.split()) == expand(text)
    assert sorted(folded.stdout.split()) == sorted(expand(text))
