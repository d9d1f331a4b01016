"""Exported timeline files: for a plot, raw, and as pages."""

from __future__ import annotations

import base64
import gzip
import importlib.machinery
import itertools
import json
import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch

from suites.host_kernels import MSE_LOSS_WARNS
from suites.reaching import below

from . import _torch_private as private
from . import scenes
from .recordings import Recording, record
from .values import Action, Category, Sizes, State

pytestmark = MSE_LOSS_WARNS


def export(found: Recording, path: Path, device: torch.device | str) -> None:
    """Write a timeline file, whose format depends on the suffix. torch warns that the function is deprecated."""
    write = below(found.prof, "export_memory_timeline")
    with pytest.warns(FutureWarning, match="export_memory_timeline"):
        write(str(path), device=str(device))


def read(path: Path) -> Any:
    """Return the JSON in a file, compressed or not."""
    data = path.read_bytes()
    return json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)


def columns(sizes: Sizes) -> list[int]:
    """Return the sizes by category as a row of a plot: a leading zero, and one number per category in torch's order."""
    return [0, *(sizes.get(category, 0) for category in private.category_columns())]


@pytest.mark.parametrize("ending", [".json", ".json.gz"])
def test_export_memory_timeline_plot_points_sum_up_the_timeline(
    device: torch.device, tmp_path: Path, ending: str
) -> None:
    """The file is two lists of one length: times in microseconds, in order, and the bytes of each category.

    They start with preexisting memory and end with live memory.
    """
    found = record(scenes.training(device).work, device)
    path = tmp_path / f"timeline{ending}"

    export(found, path, device)

    times, rows = read(path)
    moments = found.sizes(device)
    expected = [columns(sizes) for _, sizes in moments]
    assert len(times) == len(rows) > 10
    assert times == sorted(times)
    assert (rows[0], rows[-1]) == (expected[0], expected[-1])
    # the file keeps only the last of several times within one microsecond
    rest = iter(zip(moments, expected, strict=True))
    for time, row in zip(times[1:], rows[1:], strict=True):
        assert any(sizes == row and abs(time - moment / 1000) <= 1 for (moment, _), sizes in rest), f"{time}: {row}"
    assert abs(times[0] - moments[1][0] / 1000) <= 1  # preexisting memory has the first time of the run
    assert abs(times[-1] - moments[-1][0] / 1000) <= 1
    assert sum(rows[0]) > 0


def test_export_memory_timeline_raw_points_are_the_entries(device: torch.device, tmp_path: Path) -> None:
    """The raw file has each entry's time in nanoseconds, action, bytes and category, in order.

    Freed bytes are negative, and a write is two entries: one for the old version and one for the new.
    """
    found = record(scenes.training(device).work, device)
    path = tmp_path / "timeline.raw.json.gz"

    export(found, path, device)

    reported = raw(path)
    assert reported == entries(found, device)
    assert {action for _, action, _, _ in reported} == set(Action)


def raw(path: Path) -> list[tuple[int, Action, int, Category | None]]:
    """Return the entries of a raw file."""
    actions, categories = private.action_numbers(), private.category_columns()
    return [(time, actions[action], size, categories[category]) for time, action, size, category in read(path)]


def entries(found: Recording, device: torch.device) -> list[tuple[int, Action, int, Category | None]]:
    """Return the entries that a raw file has of a run on a device."""
    expected: list[tuple[int, Action, int, Category | None]] = []
    for event in found.timeline:
        if event.key.device == str(device):
            now, after = (found.categories.get(State(event.key, event.version + step)) for step in (0, 1))
            if event.action in (Action.DESTROY, Action.INCREMENT_VERSION):
                expected.append((event.time_ns, event.action, -event.size, now))
            if event.action is Action.INCREMENT_VERSION:
                expected.append((event.time_ns, event.action, event.size, after))
            if event.action in (Action.CREATE, Action.PREEXISTING):
                expected.append((event.time_ns, event.action, event.size, now))
    return expected


def test_export_memory_timeline_of_a_tensor_that_changes_its_category(device: torch.device, tmp_path: Path) -> None:
    """A write after the backward pass removes an activation from its category, in the raw file and in the plot."""
    layer = torch.nn.Linear(4, 4, device=device)
    given = torch.ones(2, 4, device=device)

    def work() -> torch.Tensor:
        result: torch.Tensor = layer(given)
        result.mul_(2)
        result.sum().backward()
        result.detach().mul_(3)
        return result

    found = record(work, device)
    path, plot = tmp_path / "timeline.raw.json.gz", tmp_path / "timeline.json"
    export(found, path, device)
    export(found, plot, device)

    reported = raw(path)
    assert reported == entries(found, device)
    written = [category for _, action, _, category in reported if action is Action.INCREMENT_VERSION]
    assert [pair for pair in zip(written[::2], written[1::2], strict=True) if pair[0] is not pair[1]] == [
        (Category.ACTIVATION, None)
    ]
    assert read(plot)[1][-1] == columns(found.sizes(device)[-1][1])


def test_export_memory_timeline_of_another_device_is_empty(tmp_path: Path) -> None:
    """The file for a device that the run did not use is empty."""
    found = record(scenes.chain(torch.device("cpu")).work)
    plot, raw = tmp_path / "timeline.json", tmp_path / "timeline.raw.json.gz"

    for path in (plot, raw):
        export(found, path, "meta")

    assert read(plot) == [[], []]
    assert read(raw) == []


@pytest.mark.requires(accelerator=True)
def test_export_memory_timeline_distinguishes_cpu_and_device(device: torch.device, tmp_path: Path) -> None:
    """For a run on both devices, each device's file has only its own memory."""

    def work() -> torch.Tensor:
        return torch.ones(512).neg_().to(device).neg_()

    found = record(work, device)

    totals = {}
    for where in ("cpu", str(device)):
        path = tmp_path / f"{where.replace(':', '_')}.json"
        export(found, path, where)
        totals[where] = [sum(row) for row in read(path)[1]]
    assert (max(totals["cpu"]), totals["cpu"][-1]) == (2048, 0)
    assert (max(totals[str(device)]), totals[str(device)][-1]) == (2048, 2048)


def test_export_memory_timeline_html_without_matplotlib_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The page with a plot needs matplotlib; without it torch prints a message and writes no file."""
    found = record(scenes.chain(torch.device("cpu")).work)
    path = tmp_path / "timeline.html"
    monkeypatch.setitem(sys.modules, "matplotlib", None)

    export(found, path, "cpu")

    assert "matplotlib" in capsys.readouterr().out
    assert not path.exists()


class Drawing:
    """A record of torch's drawing with matplotlib, in place of a figure and its axes."""

    def __init__(self) -> None:
        self.bands: list[tuple[list[float], list[float], list[float]]] = []
        self.texts: dict[str, Any] = {}

    def module(self) -> tuple[types.ModuleType, types.ModuleType]:
        """Return the modules `matplotlib` and `matplotlib.pyplot`."""
        whole, plots = types.ModuleType("matplotlib"), types.ModuleType("matplotlib.pyplot")
        whole.__spec__ = importlib.machinery.ModuleSpec("matplotlib", None)
        plots.figure = whole.figure = lambda **_: self  # type: ignore[attr-defined]
        whole.pyplot = plots  # type: ignore[attr-defined]
        return whole, plots

    def gca(self) -> Drawing:
        return self

    def fill_between(self, times: Any, low: Any, high: Any, **_: Any) -> None:
        self.bands.append((list(times), list(low), list(high)))

    def legend(self, names: list[str]) -> None:
        self.texts["legend"] = names

    def set_xlabel(self, text: str) -> None:
        self.texts["x"] = text

    def set_ylabel(self, text: str) -> None:
        self.texts["y"] = text

    def set_title(self, text: str) -> None:
        self.texts["title"] = text

    def savefig(self, file: Any, **_: Any) -> None:
        file.write(b"the picture")


@pytest.mark.requires(device="cuda")
def test_export_memory_timeline_html_stacks_the_categories(
    device: torch.device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plot has one band per category, above the sum of those before it, over the milliseconds since the first time.

    Title and labels have the units, and the page has the picture that matplotlib made (`export_memory_timeline`).
    """
    found = record(scenes.training(device).work, device)
    numbers, page, drawing = tmp_path / "timeline.json", tmp_path / "timeline.html", Drawing()
    for module in drawing.module():
        monkeypatch.setitem(sys.modules, module.__name__, module)

    export(found, numbers, device)
    export(found, page, device)

    times, rows = read(numbers)
    sums = [[total / 1024**3 for total in itertools.accumulate(row)] for row in rows]
    assert len(drawing.bands) == len(rows[0]) - 1
    for index, (moments, low, high) in enumerate(drawing.bands):
        assert moments == pytest.approx([(time - min(times)) / 1000 for time in times])
        assert low == pytest.approx([row[index] for row in sums])
        assert high == pytest.approx([row[index + 1] for row in sums])
    assert max(drawing.bands[-1][2]) > 0
    assert len(drawing.texts["legend"]) == len(drawing.bands)
    assert drawing.texts["legend"][-1] == "Unknown"
    assert (drawing.texts["x"], drawing.texts["y"]) == ("Time (ms)", "Memory (GB)")
    peak = torch.cuda.max_memory_allocated(device) / 1024**3
    assert f"Max memory allocated: {peak:.2f} GiB" in drawing.texts["title"]
    assert base64.b64encode(b"the picture").decode() in page.read_text(encoding="utf-8")


@pytest.mark.covers("test_cuda::TestCudaMallocAsync::test_memory_profiler_viz")
def test_profile_plot_page_has_stacks_and_categories(device: torch.device) -> None:
    """The page for memory over time has the category and the stack of each allocation, including the case's frame."""
    training = scenes.training(device)
    x = scenes.values(device)

    def work() -> Any:
        torch.nn.functional.cosine_similarity(x, x, dim=0)  # allocates temporaries on any device
        return training.work()

    found = record(work, device)

    page = private.plot(found.prof)

    carried = re.search(r'"base64": "([A-Za-z0-9+/=]+)"', page)
    assert "<html>" in page or "<!DOCTYPE html>" in page
    assert carried is not None
    data = base64.b64decode(carried[1])
    for word in (b"scenes.py", b"models.py", b": train", b"parameter", b"gradient", b"activation", b"temporary"):
        assert word in data, f"the page does not contain {word!r}"
