"""The probe and the prober: real processes that answer, crash, hang or give invalid answers, with a fake driver."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.core.disposable import DisposableRun
from harness.devices.device import CPU, Detected, Device, Version
from harness.devices.probe import Question, cudnn_release
from harness.devices.prober import Prober, parse_answer, parse_probe_run
from tests.devices.compiled import compile_library

pytestmark = pytest.mark.acceptance

SOURCES = Path(__file__).with_name("fake_cuda")
GPU = Device(uuid="GPU-a", kind="cuda", name="A", index=0)
OTHER = Device(uuid="GPU-b", kind="cuda", name="A", index=1)
SLICE = Device(uuid="MIG-c", kind="cuda", name="A MIG", index=2, mig_parent="GPU-c")
LOST = Device(uuid="nvml:3", kind="cuda", name="unknown GPU", index=3, fault="handle: GPU is lost")

YES = {"value": True, "detail": ""}
NO = {"value": False, "detail": "the device has no memory pools"}
ANSWER = {"cuda_malloc_async": NO, "expandable_segments": YES}
SAID = {
    "cuda_malloc_async": Detected(False, "the device has no memory pools"),
    "expandable_segments": Detected(True),
}


def prober(program: str | None = None, **more: Any) -> Prober:
    """A prober that runs the Python text `program` instead of the probe, or the probe itself."""
    arguments = {"device": GPU, "driver": "570.86.15", "limit": 60.0, **more}
    if program is not None:
        arguments["program"] = (sys.executable, "-c", textwrap.dedent(program))
    return Prober(**arguments)


def reasons(asked: Prober, question: Question = Question.DRIVER) -> set[str]:
    """The reasons why all capabilities of the question are absent."""
    found = asked.ask(question)
    assert set(found) == set(question.capabilities)
    assert [finding.value for finding in found.values()] == [None] * len(found)
    return {finding.detail for finding in found.values()}


def has_ended(pid: int) -> bool:
    """Whether the process ends within a minute, which is longer than any kill takes."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    ended = bool(poll.poll(60_000))
    os.close(descriptor)
    return ended


@pytest.fixture(scope="module")
def fakes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the fake libcuda and libcublas, compiled once."""
    folder = tmp_path_factory.mktemp("fake_cuda")
    compile_library(SOURCES / "fake_cuda.c", folder / "libcuda.so.1")
    compile_library(SOURCES / "fake_cublas.c", folder / "libcublas.so.13")
    return folder


@pytest.fixture
def driver(fakes: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes new processes load the fake driver, and configures it."""

    def install(**variables: object) -> None:
        monkeypatch.setenv("LD_LIBRARY_PATH", str(fakes))
        for name, value in variables.items():
            monkeypatch.setenv(f"FAKE_CUDA_{name}", str(value))

    return install


@pytest.mark.parametrize(
    ("run", "found"),
    [
        (DisposableRun(0, True, 0.1, json.dumps(ANSWER).encode()), SAID),
        (DisposableRun(-9, False, 3.0), "the probe did not end within 3 s"),
        (DisposableRun(None, False, 3.0), "the probe did not end within 3 s and could not be killed"),
        (DisposableRun(-11, True, 0.1, json.dumps(ANSWER).encode()), "the probe ended with SIGSEGV"),
        (
            DisposableRun(1, True, 0.1, b"", b"Traceback\nValueError: what\n"),
            "the probe ended with exit status 1: ValueError: what",
        ),
        (DisposableRun(0, True, 0.1, b""), "the probe's answer cannot be read: b''"),
        (DisposableRun(0, True, 0.1, b"\xff{}"), "the probe's answer cannot be read: b'\\xff{}'"),
        (DisposableRun(0, True, 0.1, json.dumps(ANSWER).encode()[:-5]), "cannot be read"),
        (DisposableRun(0, True, 0.1, b"[" * 60000), "cannot be read"),
        (DisposableRun(0, True, 0.1, b"1" * 60000), "cannot be read"),
        (DisposableRun(0, True, 0.1, b"{}"), "the probe's answer cannot be read: b'{}'"),
    ],
    ids=["answer", "hang", "deaf", "crash", "traceback", "nothing", "no text", "torn", "deep", "digits", "empty"],
)
def test_how_a_probe_ended_decides(run: DisposableRun, found: dict[str, Detected] | str) -> None:
    judged = parse_probe_run(Question.DRIVER, run, 3.0)
    if isinstance(found, dict):
        assert judged == found
        return
    assert set(judged) == set(Question.DRIVER.capabilities)
    for finding in judged.values():
        assert finding.value is None
        assert found in finding.detail


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (ANSWER, SAID),
        (
            {**ANSWER, "cuda_malloc_async": {"value": [9, 13], "detail": ""}},
            {**SAID, "cuda_malloc_async": Detected((9, 13))},
        ),
        (
            {**ANSWER, "cuda_malloc_async": {"value": None, "detail": "a\x00b\nc"}},
            {**SAID, "cuda_malloc_async": Detected(None, "a\\x00b")},
        ),
        (None, None),
        ([], None),
        ({"cuda_malloc_async": YES}, None),
        ({**ANSWER, "more": YES}, None),
        ({**ANSWER, "cuda_malloc_async": True}, None),
        ({**ANSWER, "cuda_malloc_async": {"value": True}}, None),
        ({**ANSWER, "cuda_malloc_async": {"value": True, "detail": 1}}, None),
        ({**ANSWER, "cuda_malloc_async": {"value": 1, "detail": ""}}, None),
        ({**ANSWER, "cuda_malloc_async": {"value": "9.1", "detail": ""}}, None),
        ({**ANSWER, "cuda_malloc_async": {"value": [], "detail": ""}}, None),
        ({**ANSWER, "cuda_malloc_async": {"value": [9, True], "detail": ""}}, None),
        ({**ANSWER, "cuda_malloc_async": {"value": [9, "1"], "detail": ""}}, None),
    ],
)
def test_only_a_whole_answer_to_the_question_is_read(answer: object, found: dict[str, Detected] | None) -> None:
    assert parse_answer(answer, Question.DRIVER) == found


def test_the_probe_answers_for_the_device_it_is_bound_to(driver: Callable[..., None]) -> None:
    driver(**{"102": 1})
    assert prober().ask(Question.DRIVER) == SAID


@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        ({"INIT": 100}, "cuInit: CUDA_ERROR_NO_DEVICE"),
        ({"INIT": 77}, "cuInit: error 77"),
        ({"COUNT": 2}, "the driver shows 2 devices, expected 1"),
        ({"ATTRIBUTE": 100}, "cuDeviceGetAttribute: CUDA_ERROR_NO_DEVICE"),
        ({"CRASH": 1}, "the probe ended with SIGSEGV: a driver that talks"),
    ],
)
def test_a_capability_that_the_driver_does_not_report_is_absent(
    driver: Callable[..., None], variables: dict[str, int], reason: str
) -> None:
    driver(**variables)
    assert reasons(prober()) == {reason}


def test_an_attribute_that_the_driver_does_not_know_is_false(driver: Callable[..., None]) -> None:
    driver(ATTRIBUTE=1)
    found = prober().ask(Question.DRIVER)
    assert found["cuda_malloc_async"] == Detected(False, "the driver is too old for memory pools")


def test_the_probe_on_this_machine() -> None:
    """No device has the UUID that the probe is bound to, with or without a driver."""
    (reason,) = reasons(prober())
    assert reason.startswith(("libcuda.so.1: ", "cuInit: ", "the driver shows 0 devices"))


def test_the_libraries_of_this_machine() -> None:
    """The probe does not crash, whatever torch is built for."""
    found = prober().ask(Question.LIBRARIES)
    for name, finding in found.items():
        assert isinstance(finding.value, tuple) or finding.detail, name
    assert not any("the probe" in finding.detail for finding in found.values()), found


def test_the_processor_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """AVX2 excludes the instructions that some virtual machines announce but do not have."""
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    assert prober().ask(Question.PROCESSOR) == {"cpu_bf16": Detected(True)}


def test_a_processor_on_which_the_probe_crashes() -> None:
    judged = parse_probe_run(Question.PROCESSOR, DisposableRun(-signal.SIGILL, True, 0.1), 3.0)
    assert judged == {"cpu_bf16": Detected(None, "the probe ended with SIGILL")}


FAKE_TORCH = """
import ctypes, types
ctypes.CDLL({cublas!r})
_C = types.SimpleNamespace(_nccl_version=None)
backends = types.SimpleNamespace(cudnn=types.SimpleNamespace(version=lambda: 91301))
cuda = types.SimpleNamespace(nccl=types.SimpleNamespace(version=lambda: (2, 28, 9, "+git")))
"""


def test_the_libraries_that_torch_loads(fakes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch.py").write_text(FAKE_TORCH.format(cublas=str(fakes / "libcublas.so.13")))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    assert prober().ask(Question.LIBRARIES) == {
        "cudnn": Detected((9, 13, 1)),
        "cublas": Detected((13, 1, 2)),
        "nccl": Detected((2, 28, 9)),
    }
    monkeypatch.setenv("FAKE_CUBLAS_STATUS", "7")
    assert prober().ask(Question.LIBRARIES)["cublas"] == Detected(None, "cublasGetProperty: status 7")


def test_one_library_that_cannot_be_asked_leaves_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = "import types\nbackends = types.SimpleNamespace(cudnn=types.SimpleNamespace(version=lambda: 91301))\n"
    (tmp_path / "torch.py").write_text(source)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    assert prober().ask(Question.LIBRARIES) == {
        "cudnn": Detected((9, 13, 1)),
        "cublas": Detected(None, "torch loads no libcublas.so"),
        "nccl": Detected(None, "module 'torch' has no attribute '_C'"),
    }


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("raise ImportError('libtorch_cuda.so is broken')", "libtorch_cuda.so is broken"),
        ("raise OSError", "OSError"),
        ("raise ValueError('what')", "the probe ended with exit status 1: ValueError: what"),
    ],
)
def test_a_torch_that_cannot_be_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, reason: str
) -> None:
    (tmp_path / "torch.py").write_text(source)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    assert reasons(prober(), Question.LIBRARIES) == {reason}


@pytest.mark.parametrize(
    ("number", "version"),
    [(91301, [9, 13, 1]), (90000, [9, 0, 0]), (8907, [8, 9, 7]), (101500, [10, 15, 0])],
)
def test_the_number_of_a_cudnn(number: int, version: list[int]) -> None:
    assert cudnn_release(number) == version


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("import os; os.abort()", "the probe ended with SIGABRT"),
        ("import os; os._exit(3)", "the probe ended with exit status 3"),
        ("raise SystemExit('no')", "the probe ended with exit status 1: no"),
        ("print('hello')", "the probe's answer cannot be read: b'hello\\n'"),
        ("print('[' * 10**6)", "the probe's answer cannot be read"),
        ("", "the probe's answer cannot be read: b''"),
    ],
)
def test_a_probe_with_an_invalid_answer(program: str, reason: str) -> None:
    (found,) = reasons(prober(program))
    assert found.startswith(reason)


def test_a_probe_that_does_not_start() -> None:
    assert reasons(Prober(GPU, driver=None, program=["/does/not/exist"])) == {
        "the probe does not start (No such file or directory)"
    }


def _with_grandchild(pipe: Path, then: str) -> str:
    return f"""
        import os, signal
        started = os.pipe()
        if os.fork() == 0:
            with open({str(pipe)!r}, "w") as file:
                file.write(str(os.getpid()))
            os.write(started[1], b"x")
            signal.pause()
        os.read(started[0], 1)
        {then}
    """


@pytest.mark.parametrize(
    ("then", "limit", "found"),
    [
        ("signal.pause()", 2.0, "the probe did not end within 2 s"),
        (f"print({json.dumps(json.dumps(ANSWER))})", 60.0, None),
    ],
    ids=["a hang", "an answer"],
)
def test_nothing_of_a_probe_is_left(tmp_path: Path, then: str, limit: float, found: str | None) -> None:
    """Neither after a hang nor after an answer. The pipe gives the pid of the process that the probe started."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    asked = prober(_with_grandchild(pipe, then), limit=limit)
    said = asked.ask(Question.DRIVER)
    pid = os.read(reader, 100)
    os.close(reader)
    if pid:  # on a very slow machine the time limit passes before the grandchild writes its pid
        assert has_ended(int(pid))
    if found is None:
        assert said == SAID
    else:
        assert {finding.detail for finding in said.values()} == {found}


def test_a_probe_does_not_outlive_the_process_that_asks(fakes: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    script = """
        from harness.devices.device import Device
        from harness.devices.probe import Question
        from harness.devices.prober import Prober
        Prober(Device(uuid="GPU-a", kind="cuda", name="A"), driver=None).ask(Question.DRIVER)
    """
    environ = {**os.environ, "LD_LIBRARY_PATH": str(fakes), "FAKE_CUDA_HANG": str(pipe)}
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], env=environ) as asker:
        probe = int(pipe.read_text())
        asker.send_signal(signal.SIGKILL)
    assert has_ended(probe)


def test_a_probe_without_its_asker_prints_nothing(fakes: Path) -> None:
    environ = {**os.environ, "LD_LIBRARY_PATH": str(fakes)}
    command = [sys.executable, "-m", "harness.devices.probe", "driver", str(os.getppid())]
    done = subprocess.run(command, env=environ, capture_output=True, timeout=60, check=True)
    assert done.stdout == b""


@pytest.mark.parametrize(
    ("device", "mask"), [(GPU, "GPU-a"), (SLICE, "MIG-c"), (CPU, "")], ids=lambda each: getattr(each, "uuid", None)
)
def test_the_probe_sees_the_one_device_only(device: Device, mask: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,6")
    program = """
        import os, sys
        sys.exit(f"{os.environ['CUDA_VISIBLE_DEVICES']!r} {sys.argv[1:]} {os.getpid() == os.getsid(0)}")
    """
    expected = f"the probe ended with exit status 1: {mask!r} {['driver', str(os.getpid())]} True"
    assert reasons(prober(program, device=device)) == {expected}


def test_a_device_at_fault_is_not_probed() -> None:
    (reason,) = reasons(prober("raise SystemExit", device=LOST))
    assert reason == "device nvml:3 cannot be used because it has a fault: handle: GPU is lost"


def _counting(log: Path) -> str:
    """A probe that answers, and writes a line to `log` each time it runs."""
    return f"open({str(log)!r}, 'a').write('asked\\n'); print({json.dumps(json.dumps(ANSWER))})"


def _runs(log: Path) -> int:
    return log.read_text().count("asked") if log.exists() else 0


def test_a_question_is_put_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    asked = prober(_counting(log))
    assert _runs(log) == 0
    assert asked.ask(Question.DRIVER) == asked.ask(Question.DRIVER) == SAID
    assert _runs(log) == 1


@pytest.mark.parametrize(
    ("change", "runs"),
    [
        ({}, 1),
        ({"driver": "570.86.16"}, 2),
        ({"driver": None}, 2),
        ({"torch": lambda: "2.13.0+cu130"}, 2),
        ({"torch": lambda: None}, 2),
        ({"device": OTHER}, 2),
    ],
    ids=["the same", "driver", "no driver", "torch", "no torch", "device"],
)
def test_what_was_said_holds_for_a_driver_a_torch_and_a_device(
    tmp_path: Path, change: dict[str, Any], runs: int
) -> None:
    log, cache = tmp_path / "log", tmp_path / "new" / "cache"
    for more in ({}, change):
        given = {"torch": lambda: "2.13.0", "cache": cache, **more}
        assert prober(_counting(log), **given).ask(Question.DRIVER) == SAID
    assert _runs(log) == runs


def test_without_a_cache_each_prober_asks(tmp_path: Path) -> None:
    log = tmp_path / "log"
    for _ in range(2):
        assert prober(_counting(log)).ask(Question.DRIVER) == SAID
    assert _runs(log) == 2


def test_harm_is_kept_too(tmp_path: Path) -> None:
    """Else every worker of a run would wait for the same hang."""
    log = tmp_path / "log"
    program = f"open({str(log)!r}, 'a').write('asked\\n'); import os; os.abort()"
    for _ in range(2):
        assert reasons(prober(program, cache=tmp_path / "cache")) == {"the probe ended with SIGABRT"}
    assert _runs(log) == 1


def _torn(text: str) -> str:
    return text[: len(text) // 2]


def _foreign(text: str) -> str:
    stored = json.loads(text)
    stored["key"]["device"] = "GPU-b"
    return json.dumps(stored)


def _incomplete(text: str) -> str:
    stored = json.loads(text)
    del stored["answer"]["cuda_malloc_async"]
    return json.dumps(stored)


@pytest.mark.parametrize(
    "damage", [_torn, _foreign, _incomplete, lambda _: "", lambda _: "\x00", lambda _: "[]", lambda _: "[" * 60000]
)
def test_a_damaged_cache_is_written_again(tmp_path: Path, damage: Callable[[str], str]) -> None:
    log, cache = tmp_path / "log", tmp_path / "cache"
    prober(_counting(log), cache=cache).ask(Question.DRIVER)
    (kept,) = cache.glob("*.json")
    whole = kept.read_text()
    kept.write_text(damage(whole))
    for _ in range(2):
        assert prober(_counting(log), cache=cache).ask(Question.DRIVER) == SAID
    assert _runs(log) == 2
    assert kept.read_text() == whole
    assert [file.suffix for file in cache.iterdir() if file != kept] == [".lock"]


def test_a_cache_that_cannot_be_written_is_not_used(tmp_path: Path) -> None:
    log, cache = tmp_path / "log", tmp_path / "cache"
    cache.write_text("a file where the folder would be")
    assert prober(_counting(log), cache=cache).ask(Question.DRIVER) == SAID
    assert _runs(log) == 1


def test_an_answer_that_cannot_be_cached_is_returned(tmp_path: Path) -> None:
    """While the probe runs, a folder is created at the path of the cache file."""
    log, cache = tmp_path / "log", tmp_path / "cache"
    prober(_counting(log), cache=cache).ask(Question.DRIVER)
    (kept,) = cache.glob("*.json")
    kept.unlink()
    program = f"import os; os.makedirs({str(kept / 'full')!r}); {_counting(log)}"
    assert prober(program, cache=cache).ask(Question.DRIVER) == SAID
    assert _runs(log) == 2
    assert sorted(file.suffix for file in cache.iterdir()) == [".json", ".lock"]


def test_a_cache_that_cannot_be_read_is_not_used(tmp_path: Path) -> None:
    log, cache = tmp_path / "log", tmp_path / "cache"
    prober(_counting(log), cache=cache).ask(Question.DRIVER)
    (kept,) = cache.glob("*.json")
    kept.unlink()
    kept.mkdir()
    assert prober(_counting(log), cache=cache).ask(Question.DRIVER) == SAID
    assert _runs(log) == 2


def test_only_one_of_two_processes_starts_a_probe(tmp_path: Path) -> None:
    """The probe waits until both processes ask."""
    log, cache, pipe = tmp_path / "log", tmp_path / "cache", tmp_path / "pipe"
    os.mkfifo(pipe)
    program = f"open({str(pipe)!r}).read(); {_counting(log)}"
    script = f"""
        import sys
        from pathlib import Path
        from harness.devices.device import Device
        from harness.devices.probe import Question
        from harness.devices.prober import Prober
        program = (sys.executable, "-c", {program!r})
        device, cache = Device(uuid="GPU-a", kind="cuda", name="A"), Path(sys.argv[1])
        print("asking", flush=True)
        asked = Prober(device, driver="1", cache=cache, program=program)
        print(asked.ask(Question.DRIVER)["expandable_segments"].value)
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(cache)]
    askers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    for asker in askers:
        assert asker.stdout is not None
        assert asker.stdout.readline() == "asking\n"
    pipe.write_text("go")
    for asker in askers:
        said, _ = asker.communicate(timeout=60)
        assert (asker.returncode, said) == (0, "True\n")
    assert _runs(log) == 1


def test_versions_of_a_probe_have_the_type_of_versions() -> None:
    """They have the same type as versions from metadata."""
    answer = {name: {"value": [9, 1], "detail": ""} for name in Question.LIBRARIES.capabilities}
    expected: dict[str, Version] = dict.fromkeys(answer, (9, 1))
    assert {name: found.value for name, found in (parse_answer(answer, Question.LIBRARIES) or {}).items()} == expected


def test_first_reading_is_that_of_all_processes_with_the_same_cache(tmp_path: Path) -> None:
    readings = iter([Detected(5, "free"), Detected(3, "free")])
    first, second = prober(cache=tmp_path / "cache"), prober(cache=tmp_path / "cache")
    assert first.first_reading("memory", lambda: next(readings)) == Detected(5, "free")
    assert second.first_reading("memory", lambda: next(readings)) == Detected(5, "free")
    assert prober().first_reading("memory", lambda: next(readings)) == Detected(3, "free"), "without a cache"


def test_first_reading_that_failed_is_repeated(tmp_path: Path) -> None:
    readings = iter([Detected(None, "nvml does not report it"), Detected(3)])
    asked = prober(cache=tmp_path)
    assert asked.first_reading("memory", lambda: next(readings)).value is None
    assert asked.first_reading("memory", lambda: next(readings)) == Detected(3)


def test_first_reading_without_a_place_for_the_cache_is_returned(tmp_path: Path) -> None:
    tmp_path.joinpath("file").touch()
    assert prober(cache=tmp_path / "file").first_reading("memory", lambda: Detected(3)) == Detected(3)
