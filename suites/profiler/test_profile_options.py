"""The records of a profile by default and on request, and when it starts and stops an observer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ExecutionTraceObserver, profile, tensorboard_trace_handler

from . import _torch_private as private
from .trees import HOST, profiler

#: Options of a profile that an exported trace lists by name.
LISTED = ("profile_memory", "with_stack", "record_shapes", "with_modules", "with_flops")


def facts(prof: profile, folder: Path) -> dict[str, Any]:
    """Return the exported file as a whole."""
    file = folder / "trace.json"
    prof.export_chrome_trace(str(file))
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("option", LISTED)
def test_exported_trace_lists_the_options_of_its_profile(option: str, tmp_path: Path) -> None:
    """An exported trace has the option with which it was recorded, and no other."""
    with profiler(**{option: True}) as prof:
        torch.ones(2).sum()
    found = facts(prof, tmp_path)
    assert {name: found[name] for name in LISTED if name in found} == {option: 1}


def test_profile_records_nothing_extra_by_default(tmp_path: Path) -> None:
    """Without options, a profile has no shapes, stacks, modules, operations or memory."""
    module = torch.nn.Linear(3, 2)
    with profile(activities=HOST, acc_events=True) as prof:
        module(torch.ones(4, 3))
    found = facts(prof, tmp_path)
    assert not [name for name in LISTED if name in found]
    events = prof.events()
    assert {str(event.input_shapes) for event in events} == {"[]"}
    assert not any(event.stack or event.flops or event.cpu_memory_usage for event in events)
    assert not [event.name for event in events if event.name.startswith("nn.Module")]


def test_tensorboard_trace_handler_makes_its_folder(tmp_path: Path) -> None:
    """The handler creates the folder and its parents, and names a folder that it cannot create."""
    folder = tmp_path / "above" / "traces"
    for _ in range(2):  # the second one finds the folder
        with profiler(on_trace_ready=tensorboard_trace_handler(str(folder), worker_name="worker")):
            torch.ones(2).sum()
    assert len(list(folder.glob("worker.*.pt.trace.json"))) == 2

    (tmp_path / "file").write_text("not a folder")
    handler = tensorboard_trace_handler(str(tmp_path / "file" / "traces"), worker_name="worker")
    with profiler() as prof:
        torch.ones(2).sum()
    with pytest.raises(RuntimeError, match=r"create directory: .*file/traces"):
        handler(prof)


def nodes(file: Path) -> list[str]:
    return [node["name"] for node in json.loads(file.read_text(encoding="utf-8"))["nodes"]]


def test_executiontraceobserver_records_between_start_and_stop(tmp_path: Path) -> None:
    """An observer records from each `start` to its `stop`; `is_running` reports whether it does."""
    file = tmp_path / "execution.json"
    observer = ExecutionTraceObserver().register_callback(str(file))
    assert observer.get_output_file_path() == str(file)
    x = torch.ones(3)
    x.sin()
    assert not observer.is_running()
    observer.start()
    assert observer.is_running()
    x.cos()
    observer.stop()
    assert not observer.is_running()
    x.tan()
    observer.start()
    observer.start()
    x.exp()
    observer.stop()
    observer.stop()
    x.log()
    observer.unregister_callback()
    found = nodes(file)
    assert {"aten::cos", "aten::exp"} <= {*found}
    assert not {"aten::sin", "aten::tan", "aten::log"} & {*found}


def test_profile_stops_its_observer(tmp_path: Path) -> None:
    """An observer passed to a profile records while the profile does, and ends with it."""
    file = tmp_path / "execution.json"
    observer = ExecutionTraceObserver().register_callback(str(file))
    x = torch.ones(3)
    prof = profiler(execution_trace_observer=observer)
    prof.start()
    assert observer.is_running()
    x.cos()
    prof.stop()
    assert not observer.is_running()
    x.sin()
    observer.unregister_callback()
    assert "aten::cos" in nodes(file)
    assert "aten::sin" not in nodes(file)


def test_executiontraceobserver_copies_compiled_files_to_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `set_extra_resource_collection`, the folder has the files that the compiler generated.

    A missing file gives a warning, and the trace is written.
    """
    (tmp_path / "kernel.py").write_text("compiled = 1")
    for name in ("kernel.py", "gone.py"):
        file = tmp_path / f"{name}.json"
        private.add_compiled_file(monkeypatch, str(tmp_path / name))
        observer = ExecutionTraceObserver().register_callback(str(file))
        observer.set_extra_resource_collection(True)
        observer.start()
        torch.ones(2).sin()
        if name == "gone.py":
            with pytest.warns(UserWarning, match="failed to save kernels"):
                observer.unregister_callback()
        else:
            observer.unregister_callback()
        assert "aten::sin" in nodes(file)
        assert not observer.is_registered
    folder = tmp_path / "kernel.py_resources"
    assert [(each.name, each.read_text()) for each in folder.iterdir()] == [("kernel.py", "compiled = 1")]


def test_executiontraceobserver_warns_of_folders_that_cannot_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the folder, or the file of `ENABLE_PYTORCH_EXECUTION_TRACE`, cannot be created, there is a warning."""
    with pytest.warns(UserWarning, match="exception when creating"):
        assert ExecutionTraceObserver.get_resources_dir_for_et_path(str(tmp_path / "a" / "b.json"), True) is None

    class Raises(ExecutionTraceObserver):
        def get_resources_dir(self, can_create: bool = False) -> str | None:  # noqa: ARG002
            raise OSError("no folder")

    observer = Raises().register_callback(str(tmp_path / "trace.json"))
    with pytest.warns(UserWarning, match="exception when generating resource directory: no folder"):
        observer.unregister_callback()
    monkeypatch.setenv("ENABLE_PYTORCH_EXECUTION_TRACE", "1")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    with pytest.warns(UserWarning, match="Execution trace will not be recorded"):
        assert profiler().execution_trace_observer is None
