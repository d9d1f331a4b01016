"""A fleet of which any node may be dead, slow, or lie."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.core.disposable import DisposableRun
from harness.ready import fleet
from harness.ready.fleet import (
    Drift,
    FleetError,
    FleetReport,
    FleetRequest,
    NodeAnswer,
    SlowGpu,
    ask_fleet,
    compare,
    drifts,
    engine_of,
    read_answer,
    slow_gpus,
    summary,
    table,
    write_lists,
)
from harness.ready.model import CheckRun, GpuReport, NodeReport, Problem, Verdict
from harness.tools.cluster import engine as engines
from harness.tools.cluster.engine import EngineError, Host
from tests import slurm_cluster, ssh_daemon
from tests.ready.problems import make_problem

UUID = "GPU-1"


def report(verdict: Verdict = Verdict.READY, *problems: Problem, **fields: Any) -> NodeReport:
    gpu = GpuReport(uuid=UUID, index=3, name="H100", verdict=verdict)
    values = {"gpus": (gpu,), "problems": problems, "stack": {"driver": "580"}, **fields}
    return NodeReport(host="a", time=1000.0, mode="active", budget=60, seconds=9, verdict=verdict, **values)


def bad(kind: str = "hang", gpu: str | None = UUID) -> Problem:
    return make_problem(kind, check="copies", gpu=gpu, wanted="bytes arrive", found="they do not")


def sent(data: bytes | NodeReport, status: int | None = 0, errors: bytes = b"", *, in_time: bool = True) -> NodeAnswer:
    output = data if isinstance(data, bytes) else msgspec.json.encode(data)
    return read_answer("n1", DisposableRun(status, in_time, 3.0, output, errors), "ssh", 90.0)


GOOD = msgspec.json.encode(report())


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(GOOD, id="the report"),
        pytest.param(msgspec.json.format(GOOD), id="on many lines"),
        pytest.param(
            b"Welcome to {this} machine\n{}\n"[:26] + b"\n" + GOOD + b"\nbye\n", id="between lines of a login"
        ),
    ],
)
def test_a_report_is_read(data: bytes) -> None:
    assert sent(data).report == report()


def changed(**fields: object) -> bytes:
    return json.dumps(json.loads(GOOD) | fields).encode()


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        pytest.param(sent(b""), "no report: no output", id="nothing"),
        pytest.param(
            sent(b"", 255, b"ssh: connect to host n1 port 22: No route to host\n"),
            "ssh ended with exit status 255; it said: ssh: connect to host n1 port 22: No route to host",
            id="no route",
        ),
        pytest.param(sent(b"", -signal.SIGKILL, in_time=False), "no answer within 90 s", id="hangs"),
        pytest.param(
            sent(GOOD, None, in_time=False),
            "no answer within 90 s and its process could not be killed",
            id="unkillable",
        ),
        pytest.param(sent(b"Traceback\nNameError: x\n", 1), "no report: its output has no JSON object", id="text"),
        pytest.param(sent(b"{}"), "no valid report: Object missing required field `format`", id="another object"),
        pytest.param(
            sent(changed(format=99)), "a report of format 99, and this harness reads 2: update the harness here"
        ),
        pytest.param(sent(changed(verdict="fine")), "no valid report: Invalid enum value 'fine' - at `$.verdict`"),
        pytest.param(sent(changed(surprise=1)), "no valid report: Object contains unknown field `surprise`"),
        pytest.param(sent(changed(seconds=-1)), "no valid report: Expected `float` >= 0.0 - at `$.seconds`"),
        pytest.param(sent(changed(host="x" * 999)), "no valid report: Expected `str` of length <= 200 - at `$.host`"),
        pytest.param(sent(b"[" * 100_000 + b"\n{" + b'"a":[' * 100_000 + b"}"), "no valid report", id="deep"),
        pytest.param(sent(b"x" * (fleet.MOST_ANSWER + 1)), "no report: it sent more than 8 MiB", id="long"),
        pytest.param(sent(GOOD[:-30] + b"}"), "no valid report: Input data was truncated", id="cut off"),
    ],
)
def test_a_node_without_a_report_is_unknown_with_the_reason(answer: NodeAnswer, why: str) -> None:
    assert (answer.report, answer.verdict) == (None, Verdict.UNKNOWN)
    assert answer.why.startswith(why)


@pytest.mark.parametrize(
    ("lie", "why"),
    [
        pytest.param(
            report(Verdict.READY, bad()),
            "a report with the verdict 'ready', and a part of it says 'not ready'",
            id="ready with a problem",
        ),
        pytest.param(
            report(Verdict.NOT_READY, bad(), gpus=(GpuReport(uuid=UUID, verdict=Verdict.READY),)),
            "a report that calls a GPU 'ready', with a problem that says 'not ready'",
            id="a ready GPU with a problem",
        ),
        pytest.param(report(gpus=()), "a report that says 'ready' and lists no GPU", id="no GPU"),
        pytest.param(
            report(gpus=(GpuReport(uuid=UUID, verdict=Verdict.READY),) * 2),
            "a report that lists a GPU twice",
            id="twice",
        ),
        pytest.param(
            report(Verdict.READY, gpus=(GpuReport(uuid=UUID, verdict=Verdict.NOT_READY),)),
            "a report with the verdict 'ready', and a part of it says 'not ready'",
            id="ready with a bad GPU",
        ),
    ],
)
def test_a_report_that_contradicts_itself_is_none(lie: NodeReport, why: str) -> None:
    assert (sent(lie).report, sent(lie).why) == (None, why)


@given(st.binary(max_size=3000))
def test_any_output_gives_an_answer(data: bytes) -> None:
    assert sent(data).verdict is Verdict.UNKNOWN


@given(st.integers(0, len(GOOD) - 1), st.integers(0, 255))
def test_a_report_with_one_damaged_byte_gives_an_answer(place: int, byte: int) -> None:
    answer = sent(GOOD[:place] + bytes([byte]) + GOOD[place + 1 :])

    assert answer.report is not None or answer.why


def answer(node: str, given: NodeReport | None, why: str = "", clock: float = 0.0) -> NodeAnswer:
    return NodeAnswer(node, given, why, clock=clock)


def test_the_table_has_every_node_the_worst_first() -> None:
    answers = [
        *(
            answer(f"n{number}", report(gpus=(GpuReport(uuid=f"GPU-{number}", verdict=Verdict.READY),)))
            for number in range(1, 9)
        ),
        answer(
            "n9",
            report(
                Verdict.NOT_READY, bad(), bad("slow"), gpus=(GpuReport(uuid=UUID, index=3, verdict=Verdict.NOT_READY),)
            ),
        ),
        answer("x1", None, "no answer within 90 s"),
    ]
    made = compare(answers)

    assert [line for line, _ in table(made)] == [
        "n9  not ready  GPU 3: they do not (and 1 more); next step: reset the GPU",
        "x1  unknown    no answer within 90 s; next step: look by hand",
        "ready: 8 nodes: n[1-8]",
        "without a report: 1 node: x1",
        "note: n[1,9] report the same GPUs: one machine under several names, or simulated GPUs",
    ]
    assert summary(made) == "10 nodes: 1 not ready, 1 unknown, 8 ready"
    assert made.nodes(ready=True) == tuple(f"n{number}" for number in range(1, 9))
    assert made.nodes(ready=False) == ("n9", "x1")


def test_a_degraded_node_may_get_work_unless_strict() -> None:
    made = compare([answer("a", report(Verdict.DEGRADED, bad("slow")))])

    assert (made.nodes(ready=True), made.nodes(ready=True, strict=True)) == (("a",), ())


def test_drift_and_clocks_are_said() -> None:
    stacks = {f"n{number}": {"driver": "580"} for number in range(1, 5)} | {"n5": {"driver": "570"}}
    made = compare(
        [
            answer(
                node,
                report(stack=stack, gpus=(GpuReport(uuid=node, verdict=Verdict.READY),)),
                clock=90.0 if node == "n2" else 0.0,
            )
            for node, stack in stacks.items()
        ]
    )

    assert [line for line, _ in table(made)][1:] == [
        "drift: driver is '570' on n5, '580' on 4 nodes",
        "note: the clock of n2 is 90 s ahead",
    ]


def test_a_hostile_text_of_a_node_stays_one_line() -> None:
    problem = make_problem("hang", check="c", gpu=None, wanted="w", found="a\n\x1b[31mready: n1\r\n")
    (line, _), *_ = table(compare([answer("a", report(Verdict.NOT_READY, problem))]))

    assert "\n" not in line
    assert "\x1b" not in line


def script(text: str) -> tuple[str, ...]:
    return sys.executable, "-c", text


def test_nodes_are_asked_at_the_same_time_and_a_dead_one_delays_no_other() -> None:
    speaks = f"import sys; sys.stdout.buffer.write({GOOD!r})"
    hosts = [
        Host("good", script(speaks)),
        Host("dead", script("import sys; print('no route', file=sys.stderr); sys.exit(255)")),
        Host("hangs", script("import signal; signal.pause()")),
        Host("floods", script("import sys\nwhile True: sys.stdout.write('x' * 99999)")),
        Host("missing", ("/no/such/program",)),
        Host("leaves", script(f"import subprocess, sys; subprocess.Popen(['sleep', '60']); {speaks}")),
    ]
    told: list[tuple[str, int]] = []
    made = ask_fleet(hosts, 3.0, tell=lambda each, left: told.append((each.node, left)))

    assert [each.node for each in made.answers] == [host.name for host in hosts]
    assert {each.node: each.why for each in made.answers} == {
        "good": "",
        "dead": f"{sys.executable} ended with exit status 255; it said: no route",
        "hangs": "no answer within 3 s",
        "floods": "no report: it sent more than 8 MiB",
        "missing": "'/no/such/program' does not start here: No such file or directory",
        "leaves": "",
    }
    assert sorted(left for _, left in told) == list(range(6))


def test_a_large_fleet_is_compared_in_no_time() -> None:
    answers = [
        answer(
            f"n{number}",
            report(gpus=tuple(GpuReport(uuid=f"{number}-{gpu}", verdict=Verdict.READY) for gpu in range(8))),
        )
        for number in range(4096)
    ]
    made = compare(answers)

    assert [line for line, _ in table(made)] == ["ready: 4096 nodes: n[0-4095]"]


def test_a_fleet_of_no_nodes() -> None:
    assert (compare([]), summary(compare([]))) == (FleetReport(()), "0 nodes: ")
    assert ask_fleet([], 1.0) == FleetReport(())


def test_an_interruption_waits_for_no_node() -> None:
    """As Ctrl-C, which reaches the thread that waits for the answers."""

    def interrupted(_: NodeAnswer, __: int) -> None:
        raise KeyboardInterrupt

    began = time.monotonic()
    hosts = [
        Host("quick", script("")),
        *(Host(f"n{number}", script("import signal; signal.pause()")) for number in range(3)),
    ]
    with pytest.raises(KeyboardInterrupt):
        ask_fleet(hosts, 600.0, parallel=2, tell=interrupted)

    assert time.monotonic() - began < 300


def test_equal_nodes_have_no_drift() -> None:
    assert drifts({f"n{number}": {"driver": "580.1", "hardware": str(number)} for number in range(9)}) == []


def test_a_fact_that_one_node_has_otherwise() -> None:
    stacks = {f"n{number}": {"driver": "580.1"} for number in range(9)} | {"n9": {"driver": "570.2"}}

    assert drifts(stacks) == [Drift("driver", "580.1", 9, True, {"570.2": ("n9",)})]


def test_a_fact_that_a_node_lacks() -> None:
    stacks = {"a": {"nccl": "2.29"}, "b": {"nccl": "2.29"}, "c": dict[str, str]()}

    assert drifts(stacks) == [Drift("nccl", "2.29", 2, True, {"none": ("c",)})]


def test_without_a_majority_no_value_is_the_right_one() -> None:
    (found,) = drifts({"a": {"kernel": "6.1"}, "b": {"kernel": "6.5"}})

    assert (found.usual, found.count, found.majority) == ("6.1", 1, False)


def test_facts_in_which_few_nodes_differ_come_first() -> None:
    stacks = {
        f"n{number}": {
            "kernel": "6.1" if number < 6 else "6.5",
            "driver": "580" if number < 9 else "570",
            "torch": str(number),
        }
        for number in range(10)
    }

    assert [each.name for each in drifts(stacks)] == ["driver", "kernel", "torch"]


def checks(*values: float) -> list[CheckRun]:
    return [
        CheckRun(name="product_bf16", gpu=f"GPU-{number}", state="ok", value=value, unit="FLOP/s")
        for number, value in enumerate(values)
    ]


def test_a_gpu_slower_than_those_of_its_model_in_the_fleet() -> None:
    """The GPUs of one node may all be slow, which only the fleet shows."""
    runs = {"a": checks(8e14, 8.1e14), "b": checks(8e14, 7.9e14), "c": checks(5e14, 5.1e14)}
    models = {(node, f"GPU-{number}"): "H100" for node in runs for number in range(2)}
    found = slow_gpus(runs, models)

    assert [(slow.node, slow.gpu, slow.count) for slow in found] == [("c", "GPU-0", 6), ("c", "GPU-1", 6)]
    assert found[0].text == "product_bf16 is 500 TFLOP/s, and the median of 6 GPUs is 795 TFLOP/s"


def test_other_models_and_checks_without_a_value_are_left_out() -> None:
    runs = {"a": checks(8e14, 8e14), "b": [*checks(1e14), CheckRun(name="copies", gpu="GPU-0", state="ok")]}
    models = {("a", "GPU-0"): "H100", ("a", "GPU-1"): "H100", ("b", "GPU-0"): "L4"}

    assert slow_gpus(runs, models) == list[SlowGpu]()


ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        (FleetRequest(), "no nodes: expected exactly one of --hosts, --hostfile, --slurm, --local"),
        (FleetRequest(hosts="a", local=2), "--hosts and --local: expected exactly one of"),
    ],
    ids=["none", "two"],
)
def test_one_option_names_the_nodes(request_: FleetRequest, why: str) -> None:
    with pytest.raises(FleetError) as raised:
        engine_of(request_)

    assert str(raised.value).startswith(why)


def test_each_engine_runs_the_command_on_its_nodes(tmp_path: Path) -> None:
    program = ("-m", "harness", "ready", "--json", "--budget=20s")
    (tmp_path / "hosts").write_text("u@b1  # a comment\nb2\n")
    made = [
        engine_of(FleetRequest(hosts="a[1-2]", options=("--budget=20s",))),
        engine_of(FleetRequest(hostfile=tmp_path / "hosts", options=("--budget=20s",), python="/p y/python")),
        engine_of(FleetRequest(slurm=True, options=("--budget=20s",))),
        engine_of(FleetRequest(local=2, options=("--budget=20s",))),
    ]

    assert [type(engine) for engine in made] == [engines.Ssh, engines.Ssh, engines.Slurm, engines.Local]
    assert all(engine.program == program for engine in made)  # type: ignore[attr-defined]
    assert [host.name for host in made[0].hosts()] == ["a1", "a2"]
    assert [host.command[-1] for host in made[1].hosts()] == ["'/p y/python' " + " ".join(program)] * 2
    assert made[3].hosts()[1].command == ("env", "CONFORMANCE_LOCAL_NODE=local1", sys.executable, *program)


def test_a_wrong_hostfile_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("a b\n")
    with pytest.raises(EngineError, match=r"'a b' is not a host: write one ssh destination per line"):
        engine_of(FleetRequest(hostfile=tmp_path / "hosts"))


def test_the_lists_have_every_node_once(tmp_path: Path) -> None:
    made = compare([answer(f"n{number}", report() if number % 2 else None) for number in range(1, 6)])
    good, bad = write_lists(made, tmp_path / "new" / "folder")

    assert (good.name, good.read_text()) == ("ready.txt", "n[1,3,5]\n")
    assert (bad.name, bad.read_text()) == ("not_ready.txt", "n[2,4]\n")


def test_a_list_of_no_nodes_is_an_empty_file(tmp_path: Path) -> None:
    _, bad = write_lists(compare([answer("a", report())]), tmp_path)

    assert bad.read_text() == ""


def command(*options: str) -> list[str]:
    return [sys.executable, "-m", "harness", "ready", *options]


def test_nodes_without_a_gpu_are_not_ready_and_have_their_reason(tmp_path: Path) -> None:
    """The real command on this machine, twice; without a driver it says so of each node."""
    done = subprocess.run(
        command("--local=2", "--passive", f"--lists={tmp_path}", "--json"),
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    said = json.loads(done.stdout)

    assert [node["node"] for node in said["nodes"]] == ["local0", "local1"]
    assert all(node["report"] is not None for node in said["nodes"]), said
    ready = {node["node"] for node in said["nodes"] if node["verdict"] in ("ready", "degraded")}
    assert done.returncode == (0 if len(ready) == 2 else 1)
    assert bool((tmp_path / "ready.txt").read_text()) == bool(ready)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--hosts=a[1-"], "no verdict: 'a[1-' has a bracket that is not closed"),
        (["--hosts=a", "--local=2"], "no verdict: --hosts and --local: expected exactly one of"),
        (["--hostfile=/no/such/file"], "no verdict: cannot read the hosts file '/no/such/file'"),
        (["--local=1", "--nagios"], "are about one node: leave them out"),
        (["--fabric"], "--fabric tests nodes together: expected --hosts"),
        (["--local=1", "--answer-limit=soon"], "'soon': expected 5s to 24h"),
    ],
    ids=lambda value: value[0].partition("=")[0] if isinstance(value, list) else "",
)
def test_a_wrong_option_is_one_sentence(options: list[str], words: str, tmp_path: Path) -> None:
    done = subprocess.run(command(*options), capture_output=True, text=True, cwd=tmp_path, check=False)

    assert done.returncode != 0
    assert words in " ".join(done.stderr.replace("│", " ").split())
    assert "Traceback" not in done.stderr
    assert [*tmp_path.iterdir()] == []


_MISSING = slurm_cluster.missing()


@pytest.mark.acceptance
@pytest.mark.skipif(_MISSING != "", reason=_MISSING)
def test_the_nodes_of_a_slurm_allocation(tmp_path: Path) -> None:
    """An allocation of three nodes; one step per node asks it."""
    words = ["salloc", "--nodes=3", "--quiet", *command("--slurm", "--passive", "--json", f"--lists={tmp_path}")]
    done = subprocess.run(slurm_cluster.command(*words), cwd=ROOT, capture_output=True, text=True, check=False)
    said = json.loads(done.stdout)

    assert len(said["nodes"]) == 3, done.stderr
    assert all(node["report"] is not None for node in said["nodes"]), said


@pytest.mark.acceptance
@pytest.mark.skipif(bool(ssh_daemon.missing()), reason=ssh_daemon.missing())
def test_the_nodes_behind_ssh(tmp_path: Path) -> None:
    """Two nodes answer beside the banner of their login; a third refuses the connection and is in the table too."""
    with ssh_daemon.ssh_daemon(tmp_path / "ssh") as config:
        words = command("--hosts=n[0-1],nowhere", "--passive", f"--ssh-config={config}", f"--lists={tmp_path}")
        done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, check=False)

    assert done.returncode == 1
    assert "nowhere  unknown    ssh ended with exit status 255; it said: " in done.stderr
    assert "Connection refused; next step: look by hand" in done.stderr
    assert "without a report: 1 node: nowhere" in done.stderr
    assert done.stdout.startswith("3 nodes: ")
    assert "nowhere" in (tmp_path / "not_ready.txt").read_text()
