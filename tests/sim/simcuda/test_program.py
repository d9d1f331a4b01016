"""`harness sim run` and its sisters: the parent of a program, its environment, and what is refused."""

from __future__ import annotations

import json
import os
import pty
import signal
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from harness.core.errors import HarnessError
from harness.devices import software
from harness.devices.device import Detected
from harness.sim.native.toolchain import BuildError
from harness.sim.simcuda import build, machine, program, toolchain
from harness.sim.simcuda.program import Usage
from tests.cli.commands import harness, refused
from tests.sim.simcuda.cuda_builds import needs_cuda_build, pretend_build

pytestmark = pytest.mark.acceptance

_PARENT = "import sys\nfrom harness.sim.simcuda.program import run_program\nsys.exit(run_program(sys.argv[1:], {}))"


def _parent(*command: str) -> list[str]:
    """Return the command line of the thin parent of a program, without its environment."""
    return [sys.executable, "-c", _PARENT.replace("{}", "__import__('os').environ"), *command]


@pytest.mark.parametrize(
    ("script", "status"),
    [("exit 0", 0), ("exit 7", 7), ("kill -TERM $$", 143), ("kill -KILL $$", 137), ("kill -SEGV $$", 139)],
)
def test_the_exit_status_is_the_programs(script: str, status: int) -> None:
    assert subprocess.run(_parent("/bin/sh", "-c", script), check=False).returncode == status


def test_arguments_and_output_are_untouched() -> None:
    words = ["--", "--quiet", "-n", "a b", "", "$HOME", "*"]
    done = subprocess.run(_parent("printf", r"%s\n", *words), capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == words
    assert done.stderr == ""


@pytest.mark.parametrize(("command", "status"), [("/does/not/exist", 127), ("/", 126)])
def test_a_program_that_cannot_be_executed(command: str, status: int) -> None:
    done = subprocess.run(_parent(command), capture_output=True, text=True, check=False)
    assert done.returncode == status
    assert done.stderr.startswith(f"harness: {command!r} cannot be run: ")


_COUNTS = """
import os, signal, sys
counts = {}
def count(number, frame):
    counts[number] = counts.get(number, 0) + 1
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP):
    signal.signal(number, count)
def end(number, frame):
    # Not print: the signal may have come while the main code prints.
    os.write(1, f"{sorted((int(n), times) for n, times in counts.items())}\\n".encode())
    os._exit(3)
signal.signal(signal.SIGWINCH, end)
print("ready", flush=True)
while True:
    signal.pause()
"""


def test_a_signal_to_the_parent_reaches_the_program() -> None:
    with subprocess.Popen(_parent(sys.executable, "-c", _COUNTS), stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "ready\n"
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP, signal.SIGWINCH):
            parent.send_signal(number)
        assert parent.stdout.readline() == f"{[(int(s), 1) for s in (1, 2, 15, 20)]}\n"
        assert parent.wait() == 3


def test_a_key_of_the_terminal_reaches_the_program_once() -> None:
    """The terminal interrupts both processes. SIGWINCH, with its high number, comes after what the parent passes on."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, _parent(sys.executable, "-c", _COUNTS))
    with open(terminal, "r+b", buffering=0) as screen:
        assert b"ready" in screen.read(100)
        screen.write(b"\x03")
        seen = b""
        while b"^C" not in seen:  # the terminal shows the key after it has sent the signals
            seen += screen.read(100)
        os.kill(pid, signal.SIGWINCH)
        while b"]" not in seen:
            seen += screen.read(100)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
    assert b"[(2, 1)]" in seen


def test_the_parent_stops_and_continues_with_the_program() -> None:
    script = "kill -STOP $$; echo continued; exit 5"
    with subprocess.Popen(_parent("/bin/sh", "-c", script), stdout=subprocess.PIPE, text=True) as parent:
        _, how = os.waitpid(parent.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(how)
        parent.send_signal(signal.SIGCONT)
        assert parent.stdout is not None
        assert parent.stdout.read() == "continued\n"
        assert parent.wait() == 5


def test_the_program_does_not_outlive_a_killed_parent() -> None:
    read, write = os.pipe()
    with subprocess.Popen(_parent("/bin/sh", "-c", "echo ready; exec sleep 600"), stdout=write) as parent:
        os.close(write)
        assert os.read(read, 100) == b"ready\n"
        parent.kill()
        assert os.read(read, 100) == b""  # the program has closed it too
    os.close(read)


@pytest.mark.parametrize(
    ("system", "machine", "glibc", "text"),
    [
        ("darwin", "arm64", False, "the simulated CUDA needs Linux, and this is 'darwin'"),
        ("linux", "aarch64", True, "the simulated CUDA needs an x86-64 processor, and this machine is 'aarch64'"),
        ("linux", "x86_64", False, "the simulated CUDA needs glibc, and this Python uses another C library"),
    ],
)
def test_a_platform_without_the_simulation_is_refused(system: str, machine: str, glibc: bool, text: str) -> None:
    with pytest.raises(BuildError, match=text):
        toolchain.require_platform(system, machine, glibc)


_CPU_BUILD = Detected(None, "torch 2.13.0+cpu is built without cuda")
_NO_TORCH = Detected(None, "torch is not installed")


@pytest.mark.parametrize("built", [_CPU_BUILD, _NO_TORCH])
def test_without_a_cuda_build_of_torch_there_is_one_sentence(monkeypatch: pytest.MonkeyPatch, built: Detected) -> None:
    pretend_build(monkeypatch, built)
    with pytest.raises(BuildError, match=f"needs a CUDA build of torch, and {built.detail}".replace("+", r"\+")):
        program.program_environment(2, None, (), os.environ)


def test_without_a_compiler_or_cudas_headers_there_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_build(monkeypatch, Detected((13, 0)))
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(BuildError, match=r"needs the header 'cuda_runtime_api\.h' of CUDA 13, and no package has it"):
        toolchain.find_simcuda_toolchains()
    monkeypatch.setattr(toolchain, "header_folders", lambda *_: ())
    with pytest.raises(BuildError, match=r"the simulated CUDA needs a C\+\+ compiler: "):
        toolchain.find_simcuda_toolchains({"PATH": "/nowhere"})


@pytest.mark.parametrize(
    ("devices", "memory", "inject", "text"),
    [
        (0, None, (), "--devices='0': expected a number from 1 to 64"),
        (2, "80", (), "--memory='80': expected a number of bytes"),
        (2, None, ("nothing",), "--inject: the simulated CUDA expects the name of a fault of simcuda, not 'nothing'"),
        (2, None, ("event_early", "event_early"), "--inject: the simulated CUDA expects each fault once"),
    ],
)
def test_wrong_options_name_themselves(devices: int, memory: str | None, inject: tuple[str, ...], text: str) -> None:
    with pytest.raises(HarnessError, match=text):
        program.program_environment(devices, memory, inject, os.environ)


def _page(*, objects: tuple[int, ...] = (0, 0, 0, 0), **devices: tuple[int, int]) -> bytes:
    """Return a page of the ledger. Devices have a peak and a number of kernels, by ``d`` and their index."""
    rows = [devices.get(f"d{index}", (0, 0)) for index in range(64)]
    body = b"".join(struct.pack("<QQQQqII", 0, peak, kernels, 0, 0, 0, 0) for peak, kernels in rows)
    return struct.pack("<Q4q", 0x3230756463206D69, *objects) + body


def test_usage_is_the_sum_of_the_pages(tmp_path: Path) -> None:
    (tmp_path / "1-1").write_bytes(_page(objects=(2, 0, 0, 1), d0=(100, 5), d3=(7, 0)))
    (tmp_path / "2-1").write_bytes(_page(objects=(1, 3, 0, 0), d0=(300, 1)))
    (tmp_path / "3-1").write_bytes(_page())
    (tmp_path / "4-1").write_bytes(_page(d1=(1, 1))[:-1])
    (tmp_path / "owner.json").write_text("{}")
    left = {"stream": 3, "event": 3, "graph": 0, "executable graph": 1}
    assert program.read_usage(tmp_path) == Usage(2, 6, {0: 300, 3: 7}, left)


def test_the_line_at_the_end() -> None:
    used = Usage(2, 1, {0: 3 << 20, 5: 512}, {"stream": 1, "event": 0, "graph": 2})
    line = "simulated CUDA (no GPU): 1 kernel in 2 processes; peak memory of a process: device 0 3.0MiB, device 5 512B"
    assert program.summary_line(used, leaks=False) == line
    assert program.summary_line(used, leaks=True) == f"{line}; not destroyed: 1 stream, 2 graphs"
    nothing = program.summary_line(Usage(0, 0, {}, {}), leaks=True)
    assert nothing.startswith("simulated CUDA (no GPU): no process used a device")
    assert sys.executable in nothing


def test_results_of_probes() -> None:
    lines = [
        {"begin": "a"},
        {"probe": "a", "error": None, "limit": ""},
        {"begin": "b"},
        {"probe": "b", "error": "RuntimeError: no", "limit": "it is code for a GPU"},
        {"begin": "c"},
        {"probe": "c", "error": "RuntimeError: no", "limit": ""},
        {"begin": "d"},
    ]
    results = list(machine.read_results("\n".join(["torch prints", *map(json.dumps, lines)])))
    assert [result.line() for result in results] == [
        "runs          a",
        "needs a GPU   b: it is code for a GPU",
        "DOES NOT RUN  c: RuntimeError: no",
        "DOES NOT RUN  d: unfinished",
    ]
    assert [result.is_broken for result in results] == [False, False, True, True]


def test_the_commands_refuse_in_one_line_without_a_cuda_build() -> None:
    if software.torch_cuda_version().value is not None:
        pytest.skip("this environment has a CUDA build of torch")
    for words in (("run", "--", "true"), ("shell",), ("env",), ("doctor",)):
        assert "needs a CUDA build of torch" in refused(harness("sim", *words))


_TRAIN = """
import os, sys, torch
x = torch.ones(1 << 20, device=f"cuda:{torch.cuda.device_count() - 1}", requires_grad=True)
(x * 2).sum().backward()
memory = torch.cuda.get_device_properties(0).total_memory >> 20
print(torch.cuda.device_count(), memory, x.grad.sum().item(), sys.argv[1:])
sys.exit(5)
"""


@needs_cuda_build
def test_a_program_runs_on_the_devices_it_was_given() -> None:
    options = ("--devices", "3", "--memory", "512MiB", "--check", "leaks")
    done = harness("sim", "run", *options, "--", sys.executable, "-c", _TRAIN, "--devices", "9")
    assert done.returncode == 5
    assert done.stdout == "3 512 2097152.0 ['--devices', '9']\n"
    last = done.stderr.splitlines()[-1]
    assert last.startswith("simulated CUDA (no GPU): ")
    assert " kernels in 1 process; peak memory of a process: device 2 " in last
    assert last.endswith("; not destroyed: nothing")


_KILLED = "import os, signal, torch; torch.ones(4, device='cuda'); os.kill(os.getpid(), signal.SIGKILL)"


@needs_cuda_build
def test_children_and_killed_processes_count() -> None:
    script = f'"{sys.executable}" -c "{_KILLED}" & "{sys.executable}" -c "{_KILLED}"; wait; exit 1'
    done = harness("sim", "run", "--", "/bin/sh", "-c", script)
    assert done.returncode == 1
    assert "2 kernels in 2 processes; peak memory of a process: device 0 " in done.stderr.splitlines()[-1]


@needs_cuda_build
def test_quiet_replaces_the_process() -> None:
    done = harness("sim", "run", "--quiet", "--", "/bin/sh", "-c", "exit 9")
    assert (done.returncode, done.stdout, done.stderr) == (9, "", "")


_QUERY = """
import torch
torch.cuda._sleep(1_000_000_000)
event = torch.cuda.Event()
event.record()
print(event.query())
"""


@needs_cuda_build
def test_a_fault_is_injected() -> None:
    shown = {
        name: harness("sim", "run", *options, "--", sys.executable, "-c", _QUERY).stdout
        for name, options in {"without": (), "with": ("--inject", "event_early")}.items()
    }
    assert shown == {"without": "False\n", "with": "True\n"}


@pytest.fixture(scope="module")
def variables() -> dict[str, str]:
    done = harness("sim", "env", "--format", "json", "--devices", "5")
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    return found


@needs_cuda_build
def test_env_prints_the_same_in_each_form(variables: dict[str, str]) -> None:
    dotenv = harness("sim", "env", "--format", "dotenv", "--devices", "5").stdout
    assert dict(line.split("=", 1) for line in dotenv.splitlines()) == variables
    exported = harness("sim", "env", "--devices", "5").stdout
    shown = subprocess.run(["/bin/sh", "-c", f"{exported}\nenv"], capture_output=True, text=True, check=True, env={})
    assert variables.items() <= dict(line.split("=", 1) for line in shown.stdout.splitlines()).items()
    assert variables["SIMCUDA_DEVICE_COUNT"] == "5"


@needs_cuda_build
def test_a_shell_has_the_devices(variables: dict[str, str]) -> None:
    script = "import torch; print(torch.cuda.device_count())"
    shell = [sys.executable, "-m", "harness", "sim", "shell", "--devices", "5"]
    environ = {**os.environ, "SHELL": "/bin/sh"}
    done = subprocess.run(
        shell,
        input=f'"{sys.executable}" -c "{script}"; exit 6',
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (6, "5\n"), done.stderr
    assert variables[build.PRELOAD]


@needs_cuda_build
def test_the_harness_in_it_does_not_take_the_devices_for_gpus() -> None:
    done = harness("sim", "run", "--", sys.executable, "-m", "harness", "devices", "--json")
    assert done.returncode == 0, done.stderr
    assert {device["kind"] for device in json.loads(done.stdout)["devices"]} == {"simcuda"}
    done = harness("sim", "run", "--", sys.executable, "-m", "harness", "devices", "--device", "cuda")
    assert done.returncode == 4
    assert "the CUDA of this process is simulated: use --device=simcuda" in done.stderr
    done = harness("sim", "run", "--", sys.executable, "-m", "harness", "ready")
    assert done.returncode == 2
    assert "the CUDA of this process is simulated (harness sim): use --device=simcuda" in done.stderr


@needs_cuda_build
@pytest.mark.nightly
def test_the_doctor_finds_nothing_broken() -> None:
    done = harness("sim", "doctor")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "runs          torch.compile" in done.stdout
    assert "needs a GPU   kernels compiled at run time (NVRTC)" in done.stdout
