"""Lists of hosts in Slurm's notation."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.tools.cluster.hostlist import HostlistError, expand, fold
from tests import slurm_cluster


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
