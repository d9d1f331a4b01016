"""The files under ``configs/`` that come with the project, and their documentation."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from harness.catalog import catalog
from harness.catalog.catalog import CatalogEntry
from harness.devices.capabilities import VOCABULARY, Capabilities, detect_capabilities
from harness.devices.device import CPU, Detected, Device, Inventory, Value
from harness.gating import configfile, mustpass, requirements
from harness.gating.implication import implication
from harness.gating.policy import Policy, idle_rules, rule_on_gate
from harness.gating.profiles import Hardware, Profile, hardware_mismatches, load_hardware, load_profile, suite_groups
from harness.sim.simcuda import machine as simulated
from harness.sim.softdevice import registration as soft
from tests.breaks.calls import overloads

pytestmark = pytest.mark.acceptance

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "configs"
DOCS = ROOT / "docs" / "profiles.md"
PROFILES = sorted(path.stem for path in (CONFIGS / "profiles").iterdir())
HARDWARE = sorted(path.stem for path in (CONFIGS / "hardware").iterdir())

SOFTWARE = {"cudnn", "cublas", "nccl", "triton", "cpp_compiler", "numpy", "python", "driver", "nvml"}


def profile(name: str) -> Profile:
    return load_profile(name, CONFIGS, ROOT).value


def hardware(name: str) -> Hardware:
    return load_hardware(name, CONFIGS, ROOT).value


def gpu(name: str, mebibytes: int, compute_capability: tuple[int, int], **more: Any) -> Device:
    """A GPU as NVML reports it."""
    memory = mebibytes * 2**20
    return Device(
        uuid="GPU-a", kind="cuda", name=name, memory=memory, compute_capability=compute_capability, ecc=True, **more
    )


MACHINES = {
    "h200": [gpu("NVIDIA H200", 143771, (9, 0))],
    "h200-nvl": [gpu("NVIDIA H200 NVL", 143771, (9, 0))],
    "h100": [gpu("NVIDIA H100 80GB HBM3", 81559, (9, 0))],
    "h100-pcie": [gpu("NVIDIA H100 PCIe", 81559, (9, 0))],
    "a100": [gpu("NVIDIA A100-SXM4-80GB", 81920, (8, 0)), gpu("NVIDIA A100 80GB PCIe", 81920, (8, 0))],
    "a100-40gb": [gpu("NVIDIA A100-SXM4-40GB", 40960, (8, 0)), gpu("NVIDIA A100-PCIE-40GB", 40960, (8, 0))],
    "l4": [gpu("NVIDIA L4", 23034, (8, 9))],
    "cpu": [CPU],
    "simcuda": list(simulated.simulated_devices({})),
    "soft": [Device(uuid="SOFT-1", kind="soft", name=soft.BACKEND.label, index=1, memory=1 << 30)],
    "none of them": [
        gpu("NVIDIA H100 NVL", 95830, (9, 0)),
        gpu("NVIDIA H200 MIG 1g.18gb", 16384, (9, 0), mig_parent="GPU-b"),
        gpu("NVIDIA A100-SXM4-80GB MIG 7g.80gb", 81100, (8, 0), mig_parent="GPU-b"),
        gpu("NVIDIA L40S", 46068, (8, 9)),
    ],
}


@pytest.mark.parametrize("name", PROFILES)
def test_a_profile_is_valid_and_documented(name: str) -> None:
    assert profile(name).description
    assert re.search(rf"^\|.*`{name}`", DOCS.read_text(encoding="utf-8"), re.MULTILINE)


@pytest.mark.parametrize("name", HARDWARE)
def test_a_hardware_file_is_valid_and_documented(name: str) -> None:
    assert hardware(name).description
    assert re.search(rf"^\|.*`{name}`", DOCS.read_text(encoding="utf-8"), re.MULTILINE)


def test_every_hardware_file_has_a_machine_here() -> None:
    assert set(HARDWARE) == set(MACHINES) - {"none of them"}


@pytest.mark.parametrize(("kind", "device"), [(kind, device) for kind, all_ in MACHINES.items() for device in all_])
def test_a_device_is_of_one_kind_only(kind: str, device: Device) -> None:
    capabilities = detect_capabilities(Inventory(devices=(device,)), device)
    fitting = [name for name in HARDWARE if not hardware_mismatches(hardware(name), capabilities)]
    assert fitting == [name for name in HARDWARE if name == kind]


@pytest.mark.parametrize("name", HARDWARE)
def test_hardware_names_models_in_full(name: str) -> None:
    assert "*" not in hardware(name).device.get("model", "")


@pytest.mark.parametrize(
    ("name", "requires", "certain"),
    [
        ("h200", {"device": "cuda", "memory": ">=80GiB", "compute_capability": ">=9.0"}, True),
        ("h200", {"memory": ">=140GiB"}, False),
        ("h100", {"device": "cuda", "silicon": True, "memory": ">=70GiB", "fp8": True}, True),
        ("h200", {"triton": True, "cudnn": True, "fp8": True, "expandable_segments": True, "cuda": ">=12"}, True),
        ("h200", {"devices": 2}, False),
        ("h200", {"mig": True}, False),
        ("a100", {"bf16": True, "memory": ">=64GiB", "cuda_graphs": True}, True),
        ("a100", {"fp8": True}, False),
        ("a100-40gb", {"memory": ">=64GiB"}, False),
        ("l4", {"fp8": True, "compute_capability": ">=8.9", "memory": ">=16GiB"}, True),
        ("cpu", {"device": "cpu", "numpy": True}, True),
        ("cpu", {"device": "cuda"}, False),
        ("soft", {"accelerator": True, "devices": 2, "memory": ">=512MiB"}, True),
        ("soft", {"device": "cuda"}, False),
        ("simcuda", {"device": "cuda", "compute_capability": ">=8.0", "cuda_graphs": True, "devices": 2}, True),
        ("simcuda", {"silicon": True}, False),
        ("h200", {"device": "cuda", "silicon": True}, True),
        ("soft", {"cuda_graphs": True}, False),
    ],
)
def test_hardware_promises_what_cases_require_of_it(name: str, requires: dict[str, Any], certain: bool) -> None:
    kind = hardware(name)
    promised = requirements.parse_requirements({**kind.device, **kind.offers})
    assert implication(requirements.parse_requirements(requires), promised).certain is certain


def test_driver_validation_allows_gates_only_for_the_size_of_the_hardware() -> None:
    strict = profile("driver-validation")
    assert (strict.requires["device"], strict.requires["silicon"]) == ("cuda", True)
    assert (strict.isolation, strict.shuffle, strict.repeats, strict.retries) == ("case", True, 3, 0)
    assert strict.skips == "forbidden"
    assert strict.fail_on_flaky
    assert strict.suites is strict.cases is None
    assert strict.exclude == strict.waivers == ()
    assert "memory" in strict.gates
    assert not SOFTWARE & set(strict.gates)
    assert set(VOCABULARY) >= SOFTWARE


@pytest.mark.parametrize("promising", [False, True])
def test_driver_validation_has_no_red_gate_on_a_machine_that_lacks_nothing(
    promising: bool, cases: list[dict[str, Any]]
) -> None:
    """Cases about machines without a GPU or NVML, or with another vendor's GPU, are not a gap in the validation."""
    (h200,) = MACHINES["h200"]
    found = detect_capabilities(Inventory(devices=(h200,), driver="580.10", cuda_driver="13.0"), h200)
    whole: dict[str, Value | None] = dict(found) | {
        "accelerator": True,
        "process_groups": True,
        "free_memory": 140 << 30,
        "cuda_malloc_async": True,
        "expandable_segments": True,
        "cuda": (13, 0),
        "rocm": None,
        "cudnn": (9, 10),
        "cublas": (13, 0),
        "nccl": (2, 28),
        "triton": (3, 5),
    }
    offered = Capabilities({name: partial(Detected, value) for name, value in whole.items()})
    strict = profile("driver-validation")
    policy = Policy(profile="driver-validation", gates=tuple(strict.gates), skips=False, extended=True)
    if promising:
        kind = hardware("h200")
        policy = replace(policy, hardware="h200", promised={**kind.device, **kind.offers})
    red = {}
    for case in cases:
        wanted = [condition for mark in case["requires"] for condition in requirements.parse_requirements(mark)]
        if (ruling := rule_on_gate(policy, wanted, offered)) is not None:
            red[case["id"]] = ruling.text
    assert red == {}


def test_the_page_of_suites_counts_each_case_and_each_file_has_a_subject(cases: list[dict[str, Any]]) -> None:
    names = {field.name for field in fields(CatalogEntry)}
    entries = [CatalogEntry(**{name: value for name, value in case.items() if name in names}) for case in cases]
    page = catalog.suites_page(entries, ROOT)
    assert set(re.findall(r"^## (\w+)$", page, re.MULTILINE)) == {case["suite"] for case in cases}
    rows = re.findall(r"^\| `(test_\w+\.py)` \| (\d+) \| (.*?) \|", page, re.MULTILINE)
    assert sum(int(count) for _, count, _ in rows) == len(cases)
    assert [file for file, _, about in rows if not about] == []


@pytest.mark.parametrize("name", PROFILES)
def test_every_pattern_of_a_profile_selects_cases_and_they_reach_its_minimum(
    name: str, cases: list[dict[str, Any]]
) -> None:
    said = profile(name)
    policy = Policy(suites=said.suites, cases=said.cases, exclude=said.exclude)
    assert idle_rules(policy, [(case["id"], case["suite"]) for case in cases], ["."]) == []
    selected = [case for case in cases if policy.selects(case["id"], case["suite"])]
    if said.requires.get("device") != "cuda":  # then a machine without a GPU is enough
        selected = [case for case in selected if all(mark.get("device") != "cuda" for mark in case["requires"])]
    assert len(selected) >= said.minimum_cases


def test_smoke_selects_some_cases_of_every_suite(cases: list[dict[str, Any]]) -> None:
    said = profile("smoke")
    policy = Policy(suites=said.suites, cases=said.cases, exclude=said.exclude)
    selected = [case["suite"] for case in cases if policy.selects(case["id"], case["suite"])]
    missing = {case["suite"] for case in cases} - set(selected)
    assert not missing, f"add a pattern for {', '.join(sorted(missing))} to configs/profiles/smoke.yaml"
    assert len(selected) < len(cases) / 2


@pytest.mark.parametrize(
    "case_id",
    [
        "suites/operators/test_sizes.py::test_numbers[add]",
        "suites/libraries/test_full_products.py::test_product_of_a_full_size_has_no_wrong_entry[float32-1025x333x769-mm]",
        "suites/libraries/test_full_products.py::test_product_of_a_full_size_has_no_wrong_entry[float16-1025x333x769-mm]",
    ],
)
def test_smoke_has_sums_and_larger_products_of_any_device(case_id: str, cases: list[dict[str, Any]]) -> None:
    """A wrong sum of one type, or a crash in a product of more than a thousand rows, is seen on each kind of device."""
    said = profile("smoke")
    (case,) = (each for each in cases if each["id"] == case_id)
    policy = Policy(suites=said.suites, cases=said.cases, exclude=said.exclude)
    assert policy.selects(case["id"], case["suite"])
    assert not case["requires"]


def test_each_suite_is_in_exactly_one_group() -> None:
    folders = {path.parent.name for path in (ROOT / "suites").glob("*/test_*.py")}
    groups = suite_groups(CONFIGS)
    assert set(groups.values()) == {"device", "arithmetic", "framework"}
    assert set(groups) == folders, "add the suite to the group where it belongs, in configs/profiles"


@pytest.mark.parametrize("group", ["device", "arithmetic", "framework"])
def test_a_group_selects_the_default_cases_of_its_suites(group: str, cases: list[dict[str, Any]]) -> None:
    said = profile(group)
    policy = Policy(suites=said.suites, cases=said.cases, exclude=said.exclude, extended=bool(said.extended))
    assert not policy.extended
    selected = {case["suite"] for case in cases if policy.selects(case["id"], case["suite"])}
    assert selected == set(said.suites or ()) == {case["suite"] for case in cases if case["group"] == group}
    row = next(line for line in DOCS.read_text(encoding="utf-8").splitlines() if line.startswith(f"| `{group}` |"))
    assert row.endswith(f"| {', '.join(said.suites or ())} |")


@pytest.mark.parametrize("model", [Profile, Hardware])
def test_every_key_is_documented(model: type[BaseModel]) -> None:
    section = DOCS.read_text(encoding="utf-8").split("\n## ")
    (described,) = (text for text in section if text.startswith(f"A {model.__name__.lower()}"))
    rows = re.findall(r"^\| `(\w+)` \|", described, re.MULTILINE)
    assert rows == list(model.model_fields)


@pytest.mark.parametrize("model", [Profile, Hardware])
def test_the_documented_example_is_valid(model: type[BaseModel], tmp_path: Path) -> None:
    section = DOCS.read_text(encoding="utf-8").split("\n## ")
    (described,) = (text for text in section if text.startswith(f"A {model.__name__.lower()}"))
    example = re.search(r"```yaml\n(.*?)```", described, re.DOTALL)
    assert example is not None
    file = tmp_path / "example.yaml"
    file.write_text(example[1], encoding="utf-8")
    assert configfile.load_config(file, model).value


def test_every_case_of_the_table_of_overloads_exists(cases: list[dict[str, Any]]) -> None:
    known = {case["id"] for case in cases}
    table = overloads.read_overloads(overloads.FILE)
    missing = [each.text for each in table if each.cases and each.text not in known]
    assert missing == [], "write it again with: python -m tests.breaks overloads suites"


LISTS = sorted((CONFIGS / "must-pass").glob("*.txt"))


@pytest.mark.parametrize("path", LISTS, ids=lambda path: path.stem)
def test_every_case_of_a_must_pass_list_exists(path: Path, cases: list[dict[str, Any]]) -> None:
    """A renamed or removed case changes the definition of conformance, so the list must be written again."""
    missing = mustpass.check_must_pass(mustpass.read_must_pass(path), [case["id"] for case in cases])
    assert missing == (), f"write it again with: harness catalog --must-pass {path.relative_to(ROOT)} --update"
