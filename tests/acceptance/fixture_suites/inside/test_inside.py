"""The process as a case sees it."""

import io
import logging
import os
import signal
import stat
import sys
import tempfile
import warnings
from pathlib import Path

import pytest

EXPECTED = {
    "test_standard_streams": "passed",
    "test_session_of_its_own": "passed",
    "test_signals": "passed",
    "test_descriptors": "passed",
    "test_environment": "passed",
    "test_temporary_folder": "passed",
    "test_tmp_path[0]": "passed",
    "test_tmp_path[1]": "passed",
    "test_capturing": "passed",
    "test_capturing_descriptors": "passed",
    "test_logging": "passed",
    "test_warnings": "passed",
    "test_worker": "passed",
    "test_xdist_fixtures": "passed",
    "test_threads_of_python": "passed",
}


def test_standard_streams() -> None:
    with pytest.raises(OSError, match="must not read from standard input"):
        sys.stdin.read()
    assert os.read(0, 1) == b""
    assert isinstance(sys.stdout, io.TextIOWrapper)
    assert not sys.stdout.isatty()
    assert [sys.stdout.fileno(), sys.stderr.fileno()] == [1, 2]


def test_session_of_its_own() -> None:
    assert os.getsid(0) == os.getpgrp() == os.getpid()


def test_signals() -> None:
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert signal.getsignal(signal.SIGINT) == signal.default_int_handler
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == set()


def test_descriptors() -> None:
    """The process has one socket, to the supervisor; none to the journal, to other executors or to the zygote."""
    found = {}
    for number in map(int, os.listdir("/proc/self/fd")):
        try:
            found[number] = os.fstat(number)
        except OSError:
            continue
    assert sum(stat.S_ISSOCK(status.st_mode) for status in found.values()) == 1
    targets = [os.readlink(f"/proc/self/fd/{number}") for number in found]
    assert not [target for target in targets if "journal" in target or "pidfd" in target or "epoll" in target]
    assert len(found) < 12, targets


def test_environment() -> None:
    assert "test_environment" in os.environ["PYTEST_CURRENT_TEST"]
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""
    assert "OPENBLAS_NUM_THREADS" not in os.environ
    assert "PYTORCH_NVML_BASED_CUDA_CHECK" not in os.environ


def test_temporary_folder() -> None:
    """The folder belongs to the case and is removed after it. It contains a link to the run's inductor folder."""
    folder = Path(tempfile.gettempdir())
    assert folder == Path(os.environ["TMPDIR"])
    others = [path for path in folder.iterdir() if not path.name.startswith("pytest-of-")]
    assert [path.readlink() for path in others] == [folder.parent / "compiler-caches"]
    assert others[0].name.startswith("torchinductor_")
    (folder / "left behind").touch()


@pytest.mark.parametrize("number", range(2))
def test_tmp_path(tmp_path: Path, number: int) -> None:
    assert list(tmp_path.iterdir()) == []
    assert tmp_path.is_relative_to(Path(tempfile.gettempdir()).parent)
    (tmp_path / "file").write_text(str(number))


def test_capturing(capsys: pytest.CaptureFixture[str]) -> None:
    print("out")
    print("err", file=sys.stderr)
    assert capsys.readouterr() == ("out\n", "err\n")


def test_capturing_descriptors(capfd: pytest.CaptureFixture[str]) -> None:
    os.write(1, b"out\n")
    os.write(2, b"err\n")
    assert capfd.readouterr() == ("out\n", "err\n")


def test_logging(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("inside").warning("logged")
    assert caplog.messages == ["logged"]


def test_warnings(recwarn: pytest.WarningsRecorder) -> None:
    warnings.warn("noted", UserWarning, stacklevel=1)
    assert [str(warning.message) for warning in recwarn] == ["noted"]


def test_worker() -> None:
    """The variable names the worker for which the case runs, if there are several."""
    assert os.environ.get("PYTEST_XDIST_WORKER", "none") in ("none", "gw0", "gw1")
    assert ("PYTEST_XDIST_WORKER" in os.environ) == (os.environ["WORKERS"] == "2")


def test_xdist_fixtures(worker_id: str, testrun_uid: str) -> None:
    assert worker_id == os.environ.get("PYTEST_XDIST_WORKER", "master")
    assert testrun_uid == os.environ.get("PYTEST_XDIST_TESTRUNUID", testrun_uid)


def test_threads_of_python() -> None:
    assert len(os.listdir("/proc/self/task")) == 1
