"""NVML queries for capabilities, through the real pynvml with a fake NVML in a separate process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from tests import fake_nvml
from tests.devices.compiled import compile_library

LINKS = Path(__file__).with_name("fake_links") / "fake_links.c"

# The variables on the command line change between the discovery and the queries.
_ASK = """
import json, os, sys
from harness.devices.inventory import discover_devices
from harness.devices.capabilities import detect_capabilities
if "LIMIT" in os.environ:
    from harness.devices import call_thread
    call_thread.NVML_LIMIT = float(os.environ["LIMIT"])
inventory = discover_devices()
os.environ.update(json.loads(sys.argv[1]))
answers = {}
for device in inventory.usable:
    capabilities = detect_capabilities(inventory, device)
    asked = ("free_memory", "nvlink", "fabric", "peer_access", "peer_links")
    found = {name: capabilities.finding(name) for name in asked}
    answers[device.uuid] = {name: [finding.value, finding.detail] for name, finding in found.items()}
print(json.dumps(answers))
"""


def gpu(index: int) -> str:
    return f"GPU-{f'{index:x}' * 4}0000-0000-4000-8000-000000000000"


@pytest.fixture(scope="module")
def linked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a fake NVML that has links."""
    folder = tmp_path_factory.mktemp("fake_links")
    compile_library(fake_nvml.SOURCE, folder / "libfake-nvml.so")
    needed = ("-Wl,--no-as-needed", f"-L{folder}", "-l:libfake-nvml.so", f"-Wl,-rpath,{folder}")
    compile_library(LINKS, folder / "libnvidia-ml.so.1", *needed)
    return folder


Answers = dict[str, dict[str, list[Any]]]


def ask(folder: Path, changes: Mapping[str, str] = MappingProxyType({}), **environ: Any) -> Answers:
    """For each usable device of the fake machine, value and detail of each capability from NVML."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", _ASK, json.dumps(dict(changes))],
        env=fake_nvml.environment(folder, **environ),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answers: Answers = json.loads(done.stdout)
    return answers


def test_free_memory_is_of_the_device_itself(linked: Path) -> None:
    found = ask(linked, gpus=2, mig=[0], other=[1])
    assert [answers["free_memory"] for answers in found.values()] == [
        [9 * 2**30, ""],
        [9 * 2**30, ""],
        [23 * 2**30, ""],
    ]


@pytest.mark.parametrize(
    ("links", "answer"),
    [
        ({}, [True, "18 links active"]),
        ({"FAKE_LINKS": "4"}, [True, "4 links active"]),
        ({"FAKE_LINKS": "4", "FAKE_LINKS_ACTIVE": "1"}, [True, "1 links active"]),
        ({"FAKE_LINKS": "4", "FAKE_LINKS_ACTIVE": "0"}, [False, "0 links active"]),
        ({"FAKE_LINKS": "0"}, [False, "the device has no nvlink"]),
    ],
)
def test_nvlink_is_present_if_a_link_is_active(linked: Path, links: dict[str, Any], answer: list[Any]) -> None:
    assert ask(linked, gpus=1, **links)[gpu(0)]["nvlink"] == answer


@pytest.mark.parametrize(
    ("statuses", "answer"),
    [
        ({}, [True, "among 3 gpus"]),
        ({"FAKE_P2P_READ": "1 2 1"}, [False, f"{gpu(1)} cannot read {gpu(2)}: the chipset does not support it"]),
        ({"FAKE_P2P_WRITE": "2 0 5"}, [False, f"{gpu(2)} cannot write {gpu(0)}: it is not supported"]),
        ({"FAKE_P2P_WRITE": "2 1 77"}, [False, f"{gpu(2)} cannot write {gpu(1)}: nvml status 77"]),
    ],
)
def test_peer_access_is_that_of_every_pair_both_ways(linked: Path, statuses: dict[str, Any], answer: list[Any]) -> None:
    found = ask(linked, gpus=3, **statuses)
    assert [answers["peer_access"] for answers in found.values()] == [answer] * 3


def test_peer_access_is_among_the_devices_a_case_can_be_given(linked: Path) -> None:
    """Pair 0 and 1 cannot reach each other, and 1 is at fault."""
    found = ask(linked, gpus=3, gone=[1], FAKE_P2P_READ="0 1 5")
    assert found[gpu(0)]["peer_access"] == [True, "among 2 gpus"]


@pytest.mark.parametrize(
    ("statuses", "answer"),
    [
        ({}, ["nvlink", "pairs: 3 nvlink"]),
        ({"FAKE_P2P_NVLINK": "0 2 5"}, ["nvlink, pcie", "pairs: 2 nvlink, 1 pcie (0-2)"]),
        ({"FAKE_P2P_WRITE": "2 1 4"}, ["nvlink, refused", "pairs: 2 nvlink, 1 refused (1-2)"]),
        (
            {"FAKE_P2P_READ": "0 1 1", "FAKE_P2P_NVLINK": "1 2 5"},
            ["nvlink, pcie, refused", "pairs: 1 nvlink, 1 pcie (1-2), 1 refused (0-1)"],
        ),
    ],
)
def test_peer_links_has_the_kinds_of_links_of_all_pairs(
    linked: Path, statuses: dict[str, Any], answer: list[Any]
) -> None:
    found = ask(linked, gpus=3, **statuses)
    assert [answers["peer_links"] for answers in found.values()] == [answer] * 3


@pytest.mark.parametrize(
    ("states", "answer"),
    [
        ({}, [True, "it has joined its fabric"]),
        ({"FAKE_FABRIC": "0"}, [False, "the device has no fabric"]),
        ({"FAKE_FABRIC": "2"}, [False, "it is joining its fabric"]),
        ({"FAKE_FABRIC_STATUS": "999"}, [False, "its fabric reports nvml status 999"]),
    ],
)
def test_fabric_is_what_the_device_has_joined(linked: Path, states: dict[str, Any], answer: list[Any]) -> None:
    (answers,) = ask(linked, gpus=1, **states).values()
    assert answers["fabric"] == answer


def test_instances_and_single_gpus_have_no_peers(linked: Path) -> None:
    found = ask(linked, gpus=2, mig=[0])
    (first, _, whole) = found.values()
    assert first["peer_access"] == [False, "a process sees only one mig instance"]
    assert first["fabric"] == [False, "the device is a mig instance, and these do not use nvlink"]
    assert first["nvlink"] == [False, "the device is a mig instance, and these do not use nvlink"]
    assert whole["peer_access"] == [False, "there is only one gpu"]
    assert whole["peer_links"] == [None, "there is only one gpu"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"FAKE_NVML_LOST": "0"}, "nvml does not report it: GPU is lost"),
        ({"FAKE_NVML_GPUS": "0"}, "nvml does not report it: Not Found"),
        ({"FAKE_NVML_INIT": "9"}, "nvml does not report it: Driver Not Loaded"),
        ({"FAKE_NVML_INIT": "998"}, "nvml does not report it: Fake\\x1b[31m error"),
    ],
)
def test_a_capability_that_nvml_no_longer_reports_is_absent(
    linked: Path, tmp_path: Path, changes: dict[str, str], reason: str
) -> None:
    log = tmp_path / "calls"
    found = ask(linked, changes, gpus=2, FAKE_NVML_LOG=str(log))
    assert found[gpu(0)]["free_memory"] == [None, reason]
    calls = log.read_text().split()
    refused = calls.count("nvmlInitWithFlags") - calls.count("nvmlShutdown")
    assert refused == ("FAKE_NVML_INIT" in changes) * 10


def test_a_query_that_hangs_has_an_end(linked: Path) -> None:
    found = ask(linked, {"FAKE_NVML_HANG": "nvmlDeviceGetMemoryInfo"}, gpus=1, LIMIT="0.2")
    (answers,) = found.values()
    assert answers["free_memory"] == [None, "nvml does not report it: no answer within 0.2 s"]
    assert answers["nvlink"][0] is True
