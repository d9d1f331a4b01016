"""Whether a process may be forked: processes in which CUDA was used, or with threads, in each way possible here."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from harness.devices.guard import ProcessThread, cuda_in_use, other_threads, threads_lost_in_fork

pytestmark = pytest.mark.acceptance


def run_python(script: str) -> str:
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("targets", "touched"),
    [
        ([], None),
        (["/dev/null", "pipe:[1]", "/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia-uvm-tools"], None),
        (["/dev/null", "/dev/nvidia-uvm"], "cuda is initialised: descriptor 1 is /dev/nvidia-uvm"),
        (["/dev/nvidia-uvm (deleted)"], "cuda is initialised: descriptor 0 is /dev/nvidia-uvm"),
    ],
)
def test_an_open_uvm_device_is_reported(tmp_path: Path, targets: list[str], touched: str | None) -> None:
    for number, target in enumerate(targets):
        (tmp_path / str(number)).symlink_to(target)
    assert cuda_in_use(tmp_path) == touched


def test_descriptors_that_cannot_be_listed_are_no_clean_bill(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        cuda_in_use(tmp_path / "none")


def test_the_question_imports_no_torch() -> None:
    script = "import sys; from harness.devices import guard; print(guard.cuda_in_use(), 'torch' in sys.modules)"
    assert run_python(script).split() == ["None", "False"]


def test_a_process_that_imported_torch_alone_may_be_forked() -> None:
    script = "import torch; from harness.devices import guard; print(guard.cuda_in_use(), guard.threads_lost_in_fork())"
    assert run_python(script).split() == ["None", "[]"]


@pytest.mark.parametrize(
    ("answers", "touched"),
    [
        ("is_initialized=lambda: True, _is_in_bad_fork=lambda: False", "torch reports that cuda is initialised"),
        (
            "is_initialized=lambda: False, _is_in_bad_fork=lambda: True",
            "torch reports that cuda was initialised before this process was forked",
        ),
        ("is_initialized=lambda: False", "None"),
        ("", "None"),
    ],
)
def test_what_torch_says_counts(answers: str, touched: str) -> None:
    # A fake torch: the real one cannot initialise CUDA on a machine without a GPU.
    script = f"""
import sys, types
from harness.devices import guard
fake = types.ModuleType("torch")
fake.cuda = types.SimpleNamespace({answers})
sys.modules["torch"] = fake
print(guard.cuda_in_use())
"""
    assert run_python(script).strip() == touched


def test_threads_of_python_are_named() -> None:
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, name="watcher")
    thread.start()
    try:
        assert thread.native_id is not None
        assert ProcessThread(thread.native_id, "watcher", python=True) in other_threads()
        assert "python thread 'watcher'" in threads_lost_in_fork()
    finally:
        stop.set()
        thread.join()
    assert "python thread 'watcher'" not in threads_lost_in_fork()


def test_threads_of_a_library_are_recognised_by_the_library(tmp_path: Path) -> None:
    source = tmp_path / "pool.c"
    source.write_text("""
#include <pthread.h>
#include <semaphore.h>
static sem_t never;
static void *wait_for_it(void *unused) { sem_wait(&never); return unused; }
int start(void) { pthread_t thread; sem_init(&never, 0, 0); return pthread_create(&thread, 0, wait_for_it, 0); }
static volatile int spinning = 1;
static void *spin(void *unused) { while (spinning) { } return unused; }
int start_busy(void) { pthread_t thread; return pthread_create(&thread, 0, spin, 0); }
""")
    library = tmp_path / "libpool.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O0", "-o", str(library), str(source), "-lpthread"], check=True)
    script = """
import ctypes
from harness.devices import guard
pool = ctypes.CDLL({library!r})
assert pool.{start}() == 0
print(guard.threads_lost_in_fork())
"""
    idle = run_python(script.format(library=str(library), start="start"))
    assert idle.strip().endswith('of libpool.so"]')
    busy = run_python(script.format(library=str(library), start="start_busy"))
    assert busy.strip().endswith('of an unknown library"]')


@pytest.mark.parametrize(
    ("thread", "survives"),
    [
        (ProcessThread(2, "python", python=False, library="libscipy_openblas64_-32a4b2a6.so"), True),
        (ProcessThread(2, "python", python=False, library="libopenblas.so.0"), True),
        (ProcessThread(2, "python", python=False, library="libgomp.so.1"), False),
        (ProcessThread(2, "python", python=False), False),
        (ProcessThread(2, "openblas", python=True), False),
    ],
)
def test_which_threads_survive_a_fork(thread: ProcessThread, survives: bool) -> None:
    assert thread.survives_fork is survives


def test_a_used_pool_of_openmp_does_not_survive_a_fork() -> None:
    script = """
import torch
from harness.devices import guard
torch.set_num_threads(2)
matrix = torch.ones(1000, 1000)
(matrix @ matrix).sum()
print(guard.threads_lost_in_fork())
"""
    assert run_python(script).strip() != "[]"
