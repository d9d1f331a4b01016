"""The interface for suites: the fixtures of `provide`; `harness.marks` has the marks."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from harness import marks
from harness.backends.backend import Backend, DeviceKind
from harness.backends.table import BACKENDS
from harness.checks import process
from harness.checks.keeping import Keeps, parse_keeps_mark
from harness.core.figures import Floors
from harness.core.outcome import Outcome
from harness.devices.guard import cuda_in_use
from harness.protocol.endings import StateProblem
from harness.ranks.ranks import Ranks, RankSettings

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class CaseSettings:
    """The settings of a run that its cases read: seconds of endurance, and the floors of its hardware file."""

    endurance: float = 0.0
    floors: Mapping[str, str] = field(default_factory=dict)
    hardware: str = ""


@dataclass(frozen=True, slots=True)
class Current:
    """The kind of device of this process, the seed of the running case, and the settings of the run that it may read.

    `limit`: the seconds that the case has, until `deadline` on the monotonic clock; None without a limit. `problems`:
    problems that the fixtures of the case add beside its reports; None if nothing reads them.
    """

    kind: DeviceKind
    seed: int
    settings: CaseSettings = CaseSettings()
    limit: float = 0.0
    deadline: float | None = None
    problems: list[StateProblem] | None = None


CURRENT = pytest.StashKey[Current]()
#: Properties that ``record_testsuite_property`` recorded in this process and that have not been passed on.
SUITE_PROPERTIES = pytest.StashKey[list[tuple[str, str]]]()
#: Attributes that the current case recorded by ``record_xml_attribute``.
XML_ATTRIBUTES = pytest.StashKey[dict[str, str]]()
_NO_RUN = Current(kind="cpu", seed=0)


def kept(item: pytest.Item) -> Keeps | None:
    """Return the memory that the case keeps by its nearest ``keeps`` mark; None without one.

    Raises HarnessError for an invalid mark.
    """
    mark = marks.nearest_mark(item, "keeps")
    if mark is None:
        return None
    file, line, _ = item.location
    return parse_keeps_mark(mark.args, mark.kwargs, f"{file}:{0 if line is None else line + 1}")


@pytest.fixture
def device(pytestconfig: pytest.Config) -> torch.device:
    """The device of the case, a `torch.device`: ``cuda:0``, ``cpu`` or, with ``--device=soft``, ``soft:0``.

    The index is always 0, because an executor sees only its own device.
    """
    import torch

    backend = BACKENDS[pytestconfig.stash.get(CURRENT, _NO_RUN).kind]
    first: torch.device = backend.first_device(torch)
    return first


@pytest.fixture
def case_seed(pytestconfig: pytest.Config) -> int:
    """The seed of this case, in [0, 2**32). The global generators of Python, NumPy and torch are seeded with it."""
    return pytestconfig.stash.get(CURRENT, _NO_RUN).seed


@pytest.fixture
def endurance(pytestconfig: pytest.Config) -> float:
    """The seconds that the case works beyond its first round: ``--endurance``. Use this with the mark `endurance`.

    The value is 0 if the harness repeats a case to measure its memory.
    """
    return pytestconfig.stash.get(CURRENT, _NO_RUN).settings.endurance


@pytest.fixture
def floors(pytestconfig: pytest.Config) -> Floors:
    """The floors of speed in the run's hardware file; there are none without ``--hardware``.

    ``floors.missed(name, value)`` returns why a figure is not good enough, ``floors.shown(name, value)`` the figure
    with its unit.
    """
    settings = pytestconfig.stash.get(CURRENT, _NO_RUN).settings
    return Floors(settings.floors, settings.hardware)


@pytest.fixture
def ranks(pytestconfig: pytest.Config, tmp_path: Path) -> Ranks:
    """Runs a function in several processes at the same time, each with its own device: ``ranks.run(body, world=4)``.

    On the CPU any number of processes can run. On an accelerator the number is limited by the devices of the case, so
    the case needs ``requires(ranks=4)``. See `harness.ranks.ranks.Ranks.run`.
    """
    current = pytestconfig.stash.get(CURRENT, _NO_RUN)
    backend = BACKENDS[current.kind]

    def note(outcome: str, line: str) -> bool:
        if current.problems is not None:
            current.problems.append(StateProblem(Outcome(outcome), line))
        return current.problems is not None

    settings = RankSettings(
        device=lambda number: f"{backend.torch_type}:{number}" if backend.accelerator else backend.torch_type,
        devices=backend.device_count(_torch()) if backend.accelerator else None,
        seed=current.seed,
        deadline=current.deadline,
        limit=current.limit,
        unsafe=_unsafe_to_fork,
        loading=lambda: _loading_code(backend),
        leftovers=_leftover,
        note=note,
    )
    return Ranks(settings, tmp_path)


@pytest.fixture(scope="session", name="record_testsuite_property")
def record_property_of_run(
    pytestconfig: pytest.Config, record_testsuite_property: Callable[[str, object], None]
) -> Callable[[str, object], None]:
    """Record a property of the run. pytest's fixture of this name reaches only the report of its own process."""

    def record(name: str, value: object) -> None:
        record_testsuite_property(name, value)
        pytestconfig.stash.setdefault(SUITE_PROPERTIES, []).append((name, str(value)))

    return record


@pytest.fixture(name="record_xml_attribute")
def record_attribute_of_case(
    pytestconfig: pytest.Config, record_xml_attribute: Callable[[str, object], None]
) -> Callable[[str, object], None]:
    """Record an attribute of the case in the run's report.

    pytest's fixture of this name reaches only the report of its own process.
    """

    def record(name: str, value: object) -> None:
        record_xml_attribute(name, value)
        pytestconfig.stash.setdefault(XML_ATTRIBUTES, {})[str(name)] = str(value)

    return record


def _torch() -> ModuleType:
    import torch

    return torch


def _unsafe_to_fork() -> str:
    """Return why ranks cannot be forks of this process, or an empty string."""
    torch_module = sys.modules.get("torch")
    used = (
        []
        if torch_module is None
        else [backend for backend in BACKENDS.values() if backend.is_initialized(torch_module)]
    )
    threads = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
    if used or threads:
        return f"this process uses {', '.join((*(backend.kind for backend in used), *threads))}"
    return cuda_in_use() or ""


def _loading_code(backend: Backend) -> str:
    """Return the code with which an interpreter can use the devices."""
    if backend.torch_type in ("cpu", "cuda"):
        return ""
    of_module = getattr(getattr(_torch(), backend.torch_type), "loading_code", None)
    if of_module is not None:  # a software device, which each process must load
        return str(of_module())
    return "".join(f"import {name}\n" for name in ("torch", *backend.modules))


def _leftover(pid: int) -> str | None:
    """Return text about a process that a rank has left; None for a zombie, and for a helper that a library keeps."""
    pause = process.Patience(process.TRANSITION_PATIENCE)
    return process.describe_leftover(process.describe_settled(pid, pause), pid, "")


def provide(config: pytest.Config, *, foreign: bool) -> None:
    """Give a session the fixtures and the marks.

    In a `foreign` suite, a fixture of the same name of another plugin stays.
    """
    marks.declare(config, foreign=foreign)
    own = {"device": device, "case_seed": case_seed, "endurance": endurance, "floors": floors, "ranks": ranks}
    others = [plugin for plugin in config.pluginmanager.get_plugins() if _is_plugin_module(plugin)]
    kept = {
        name: fixture
        for name, fixture in own.items()
        if not (foreign and any(type(vars(other).get(name)) is type(fixture) for other in others))
    }
    if config.pluginmanager.has_plugin("junitxml"):  # it declares the fixtures that these extend
        kept["record_testsuite_property"] = record_property_of_run
        kept["record_xml_attribute"] = record_attribute_of_case
    provided = ModuleType("harness-fixtures")
    vars(provided).update(kept)
    config.pluginmanager.register(provided, provided.__name__)


def _is_plugin_module(plugin: object) -> bool:
    """Return whether a plugin's fixtures apply to all tests. Those of a conftest have priority in its folder anyway."""
    return isinstance(plugin, ModuleType) and not (plugin.__file__ or "").endswith("conftest.py")
