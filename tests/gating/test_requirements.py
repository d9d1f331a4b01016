"""Requirements: valid conditions, invalid conditions, and the values that meet each condition."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.core.errors import HarnessError
from harness.devices.capabilities import VOCABULARY, Capabilities, ValueKind, detect_capabilities
from harness.devices.device import CPU, Device, Inventory, Value
from harness.gating import requirements
from harness.gating.requirements import (
    Clause,
    Requirement,
    RequirementError,
    Unmet,
    devices_wanted,
    first_unmet,
    parse_requirements,
    requirements_from_marks,
)
from tests.gating.examples import offering


def meets(name: str, condition: object, value: Value | None) -> bool:
    return first_unmet(parse_requirements({name: condition}), offering(**{name: value})) is None


@pytest.mark.parametrize(
    ("name", "condition", "met_by", "unmet_by"),
    [
        ("compute_capability", ">=8.0", [(8, 0), (8, 6), (9, 0), (10, 0)], [(7, 5), None]),
        ("compute_capability", "8.0", [(8, 0)], [(8, 6), None]),
        ("compute_capability", "==8", [(8, 0), (8, 9)], [(9, 0), (7, 5)]),
        ("compute_capability", ">8", [(9, 0)], [(8, 9), (8, 0)]),
        ("torch", ">=2.11,<2.13", [(2, 11, 0), (2, 12, 5)], [(2, 10, 9), (2, 13, 0), None]),
        ("torch", ">=2.13", [(2, 13, 0), (2, 13), (3,)], [(2, 12, 9)]),
        ("torch", "==2.13", [(2, 13, 0), (2, 13, 1), (2, 13)], [(2, 14, 0), (2, 1, 3)]),
        ("torch", "!=2.13", [(2, 14, 0)], [(2, 13, 0), (2, 13, 1), None]),
        ("torch", ">2.13", [(2, 14, 0)], [(2, 13, 1)]),
        ("torch", "<=2.13", [(2, 13, 1), (2, 12, 0)], [(2, 14, 0)]),
        ("torch", "==2.13.1", [(2, 13, 1)], [(2, 13, 0), (2, 13)]),
        ("torch", "==2.13.0", [(2, 13), (2, 13, 0)], [(2, 13, 1)]),
        ("torch", " >= 2.11 , < 2.13 ", [(2, 11, 0)], [(2, 13, 0)]),
        ("driver", ">=535", [(570, 86, 15), (535, 1)], [(470, 2)]),
        ("memory", ">=12GiB", [12 * 2**30, 80 * 2**30], [12 * 2**30 - 1, None]),
        ("memory", ">=12GB", [12 * 10**9], [12 * 10**9 - 1]),
        ("memory", "<1.5TiB", [3 * 2**39 - 1], [3 * 2**39]),
        ("memory", ">=1024 KiB", [2**20], [2**20 - 1]),
        ("memory", ">1MB,<=1MiB", [2**20], [10**6, 2**20 + 1]),
        ("triton", True, [(3, 6, 0)], [None]),
        ("triton", False, [None], [(3, 6, 0)]),
        ("triton", ">=3", [(3, 6, 0)], [(2, 9), None]),
        ("cuda_graphs", True, [True], [False, None]),
        ("ecc", False, [False, None], [True]),
        ("device", "cuda", ["cuda"], ["cpu"]),
        ("device", "cpu", ["cuda", "cpu"], []),
        ("platform", "linux-x86_64", ["linux-x86_64"], ["linux-aarch64"]),
        ("platform", "!=linux-x86_64", ["linux-aarch64"], ["linux-x86_64"]),
        ("platform", "!=a,!=b", ["c"], ["a", "b"]),
        ("platform", "linux-*", ["linux-x86_64", "linux-"], ["darwin-arm64", "a linux-x", None]),
        ("platform", "linux-x86_64|darwin-*", ["linux-x86_64", "darwin-arm64"], ["linux-aarch64"]),
        ("platform", "!=linux-*|darwin-*", ["win"], ["linux-x86_64", "darwin-arm64", None]),
        ("platform", "a.c", ["a.c"], ["abc"]),
        ("devices", 2, [2, 8], [1]),
        ("devices", "2", [2, 8], [1]),
        ("devices", "==2", [2, 8], [1]),
        ("devices", "<=4", [1, 8], []),
        ("devices", ">=2,<=4", [2, 8], [1]),
        ("devices", ">1,!=2", [3], [2]),
        ("device_count", 2, [2, 8], [1]),
        ("device_count", "==2", [2], [1, 8]),
    ],
)
def test_what_meets_a_condition(
    name: str, condition: object, met_by: list[Value | None], unmet_by: list[Value | None]
) -> None:
    assert [value for value in met_by if not meets(name, condition, value)] == []
    assert [value for value in unmet_by if meets(name, condition, value)] == []


@pytest.mark.parametrize(
    ("kwargs", "capabilities", "text"),
    [
        ({"memory": ">=12GiB"}, offering(memory=8 * 2**30), "memory: wanted >=12GiB, found 8.0GiB"),
        ({"triton": True}, offering(triton=None), "triton: wanted True, found absent (not there)"),
        ({"torch": ">=2.11,<2.13"}, offering(torch=(2, 13, 0)), "torch: wanted >=2.11,<2.13, found 2.13.0"),
        ({"devices": 2}, detect_capabilities(Inventory((CPU,)), CPU), "devices: wanted 2, found 1 (cpu)"),
        ({"memory": ">=1TiB", "device": "cuda"}, offering(device="cpu", memory=1), "device: wanted cuda, found cpu"),
    ],
)
def test_the_text_of_an_unmet_requirement(kwargs: Mapping[str, object], capabilities: Capabilities, text: str) -> None:
    unmet = first_unmet(parse_requirements(kwargs), capabilities)
    assert unmet is not None
    assert unmet.text == text


def test_unmet_has_its_parts() -> None:
    unmet = first_unmet(parse_requirements({"memory": ">=12GiB"}), offering(memory=8 * 2**30))
    assert unmet == Unmet(capability="memory", wanted=">=12GiB", found="8.0GiB", names=("memory",))


def test_no_conditions_are_met_without_detecting_anything() -> None:
    assert first_unmet((), Capabilities({})) is None
    assert parse_requirements({}) == ()


@pytest.mark.parametrize(
    ("kwargs", "error"),
    [
        ({"memmory": ">=1GiB"}, "requires(memmory='>=1GiB'): there is no capability 'memmory'; did you mean 'memory'?"),
        ({"gpus": 2}, "requires(gpus=2): there is no capability 'gpus'; expected one of: device, accelerator, "),
        ({"memory": "12GiB"}, "requires(memory='12GiB'): memory takes '>=12GiB'"),
        ({"memory": ">=12"}, "memory takes '>=12GiB'"),
        ({"memory": ">=12gib"}, "memory takes '>=12GiB'"),
        ({"memory": ">=12GiB,"}, "memory takes '>=12GiB'"),
        ({"memory": 2**30}, "memory takes '>=12GiB'"),
        ({"memory": True}, "memory takes '>=12GiB'"),
        ({"compute_capability": 8.0}, "requires(compute_capability=8.0): compute_capability takes '>=2.11'"),
        ({"compute_capability": (8, 0)}, "compute_capability takes"),
        ({"torch": ""}, "torch takes '>=2.11', '>=2.11,<2.13', True or False"),
        ({"torch": ">="}, "torch takes"),
        ({"torch": "~=2.11"}, "torch takes"),
        ({"torch": "=>2.11"}, "torch takes"),
        ({"torch": ">=2.13.0+cpu"}, "torch takes"),
        ({"torch": ">=2.x"}, "torch takes"),
        ({"torch": ">=2."}, "torch takes"),
        ({"torch": "latest"}, "torch takes"),
        ({"torch": ">=٣"}, "torch takes"),
        ({"torch": ">=" + "9" * 5000}, "torch takes"),
        ({"torch": None}, "requires(torch=None): torch takes"),
        ({"torch": 2}, "requires(torch=2): torch takes"),
        ({"mig": "yes"}, "requires(mig='yes'): mig takes True or False"),
        ({"mig": 1}, "mig takes True or False"),
        ({"devices": 0}, "requires(devices=0): devices takes 2, '==2' or '>=2,<=4'"),
        ({"devices": -1}, "devices takes"),
        ({"devices": True}, "devices takes"),
        ({"devices": 1.5}, "devices takes"),
        ({"devices": ">=4,<2"}, "requires(devices='>=4,<2'): no number of devices fits"),
        (
            {"device": "gpu"},
            "requires(device='gpu'): device takes 'cuda' or 'simcuda' or 'rocm' or",
        ),
        ({"device": "==cuda"}, "device takes 'cuda' or 'simcuda' or 'rocm' or"),
        ({"device": True}, "device takes 'cuda' or 'simcuda' or 'rocm' or"),
        ({"platform": ">linux"}, "platform takes 'linux-x86_64', 'linux-*|darwin-arm64' or '!=linux-x86_64'"),
        ({"platform": "|linux"}, "platform takes"),
        ({"platform": "linux\0"}, "platform takes"),
        ({"any": {"ecc": True}}, "any takes a list of mappings"),
        ({"any": []}, "any takes a list of mappings"),
        ({"any": [{}]}, "any takes conditions, such as {'ecc': True}"),
        ({"all": ["ecc"]}, "all takes conditions, such as {'ecc': True}"),
        ({"not": [{"ecc": True}]}, "not takes conditions, such as {'ecc': True}"),
        ({"not_": {"eccc": True}}, "there is no capability 'eccc'; did you mean 'ecc'?"),
        ({"any": [{"torch": "x"}]}, "requires(torch='x'): torch takes"),
        (
            {"any": [{"device": "cuda", "devices": 2}]},
            "'devices' is how many devices the case gets, so it is not allowed in 'any'",
        ),
        ({"not": {"all": [{"devices": 2}]}}, "in 'not'; use 'device_count' for how many devices the machine has"),
        ({"any": [{"ranks": 2}]}, "'ranks' is how many processes the case gets, so it is not allowed in 'any'"),
        ({"nt": {"ecc": True}}, "did you mean 'not'?"),
    ],
)
def test_an_invalid_condition_is_an_error(kwargs: Mapping[str, object], error: str) -> None:
    with pytest.raises(RequirementError) as caught:
        parse_requirements(kwargs)
    assert isinstance(caught.value, HarnessError)
    assert error in str(caught.value)


def test_marks_are_merged_and_all_must_hold() -> None:
    marks = [
        pytest.mark.requires(memory=">=12GiB", device="cuda").mark,
        pytest.mark.requires(device="cuda", memory="<40GiB").mark,
        pytest.mark.requires(device="cpu").mark,
    ]
    requirements = requirements_from_marks(marks)
    assert [str(requirement) for requirement in requirements] == ["device cuda,cpu", "memory >=12GiB,<40GiB"]
    assert first_unmet(requirements, offering(device="cuda", memory=24 * 2**30)) is None
    assert first_unmet(requirements, offering(device="cuda", memory=80 * 2**30)) is not None
    assert first_unmet(requirements, offering(device="cpu", memory=24 * 2**30)) is not None


@pytest.mark.parametrize(
    ("kwargs", "met_by", "unmet_by"),
    [
        (
            {"any": [{"triton": True}, {"cpp_compiler": ">=11"}]},
            [{"triton": (3, 6)}, {"cpp_compiler": (12, 2)}, {"triton": (3, 6), "cpp_compiler": (12, 2)}],
            [{}, {"cpp_compiler": (10, 4)}],
        ),
        (
            {"any": [{"triton": True, "ecc": True}, {"mig": True}]},
            [{"triton": (3,), "ecc": True}, {"mig": True}],
            [{"triton": (3,)}, {"ecc": True}],
        ),
        ({"all": [{"ecc": True}, {"mig": False}]}, [{"ecc": True}], [{"ecc": True, "mig": True}, {}]),
        ({"not_": {"ecc": True}}, [{}, {"ecc": False}], [{"ecc": True}]),
        ({"not": {"ecc": True, "mig": True}}, [{"ecc": True}, {"mig": True}, {}], [{"ecc": True, "mig": True}]),
        ({"not": {"any": [{"ecc": True}, {"mig": True}]}}, [{}], [{"ecc": True}, {"mig": True}]),
        ({"not": {"not": {"ecc": True}}}, [{"ecc": True}], [{}]),
        ({"ecc": True, "any": [{"mig": True}, {"triton": True}]}, [{"ecc": True, "mig": True}], [{"ecc": True}]),
    ],
)
def test_any_all_and_not(
    kwargs: Mapping[str, object], met_by: list[dict[str, Value]], unmet_by: list[dict[str, Value]]
) -> None:
    nothing = {"triton": None, "cpp_compiler": None, "ecc": False, "mig": False}
    assert [
        found for found in met_by if first_unmet(parse_requirements(kwargs), offering(**nothing | found)) is not None
    ] == []
    assert [
        found for found in unmet_by if first_unmet(parse_requirements(kwargs), offering(**nothing | found)) is None
    ] == []


@pytest.mark.parametrize(
    ("kwargs", "text", "names"),
    [
        (
            {"any": [{"triton": True}, {"memory": ">=12GiB", "ecc": True}]},
            "any: wanted triton True or memory >=12GiB and ecc True, found triton absent (not there); memory 8.0GiB",
            ("triton", "memory"),
        ),
        ({"not": {"ecc": False}}, "not: wanted not (ecc False), found ecc False", ("ecc",)),
        (
            {"not": {"any": [{"ecc": False}, {"triton": True}]}},
            "not: wanted not ((ecc False or triton True)), found ecc False; triton absent (not there)",
            ("ecc", "triton"),
        ),
    ],
)
def test_the_text_of_unmet_any_and_not(kwargs: Mapping[str, object], text: str, names: tuple[str, ...]) -> None:
    unmet = first_unmet(parse_requirements(kwargs), offering(triton=None, memory=8 * 2**30, ecc=False))
    assert unmet is not None
    assert (unmet.text, unmet.names) == (text, names)


def test_conditions_in_all_are_merged_with_the_rest() -> None:
    conditions = parse_requirements({"memory": ">=1GiB", "all": [{"memory": "<8GiB"}, {"device": "cuda"}]})
    assert [str(condition) for condition in conditions] == ["device cuda", "memory >=1GiB,<8GiB"]


def test_nesting_is_limited() -> None:
    conditions: dict[str, object] = {"ecc": True}
    for _ in range(1000):
        conditions = {"not": conditions}
    with pytest.raises(RequirementError, match="more than 8 levels of nesting"):
        parse_requirements(conditions)


def test_no_marks() -> None:
    assert requirements_from_marks([]) == ()


@pytest.mark.parametrize(
    ("mark", "error"),
    [
        (pytest.mark.requires("cuda"), "requires('cuda'): takes keyword arguments only, such as device='cuda'"),
        (pytest.mark.requires("cuda", 2, triton=True), "requires('cuda', 2): takes keyword arguments only"),
        (pytest.mark.requires(), "requires() has no arguments: name a capability, such as device='cuda'"),
    ],
)
def test_invalid_marks(mark: pytest.MarkDecorator, error: str) -> None:
    with pytest.raises(RequirementError) as caught:
        requirements_from_marks([mark.mark])
    assert error in str(caught.value)


def test_marks_that_no_number_of_devices_can_meet_together() -> None:
    with pytest.raises(RequirementError, match="no number of devices fits"):
        requirements_from_marks([pytest.mark.requires(devices="==2").mark, pytest.mark.requires(devices=3).mark])


@pytest.mark.parametrize(
    ("conditions", "count"),
    [([], 1), ([2], 2), (["==3"], 3), (["<=4"], 1), ([">2"], 3), (["!=1"], 2), (["!=1,!=2"], 3), ([2, "!=2,!=3"], 4)],
)
def test_devices_wanted(conditions: list[object], count: int) -> None:
    marks = [pytest.mark.requires(devices=condition, device="cuda").mark for condition in conditions]
    assert devices_wanted(requirements_from_marks(marks)) == count


@pytest.mark.parametrize(
    ("conditions", "on_accelerator", "on_cpu"),
    [({"ranks": 4}, 4, 1), ({"ranks": "==3", "devices": 2}, 3, 2), ({"ranks": 2, "devices": 4}, 4, 4)],
)
def test_each_rank_has_a_device_of_an_accelerator(
    conditions: Mapping[str, object], on_accelerator: int, on_cpu: int
) -> None:
    parsed = parse_requirements(conditions)
    assert devices_wanted(parsed) == on_accelerator
    assert devices_wanted(parsed, per_rank=False) == on_cpu


def test_ranks_need_as_many_devices_as_they_are() -> None:
    assert first_unmet(parse_requirements({"ranks": 4}), offering(ranks=8)) is None
    unmet = first_unmet(parse_requirements({"ranks": 4}), offering(ranks=2))
    assert unmet is not None
    assert unmet.text == "ranks: wanted 4, found 2"


def test_two_gpus_are_two_devices_and_two_instances_are_not() -> None:
    def gpu(uuid: str, parent: str | None = None) -> Device:
        return Device(uuid=uuid, kind="cuda", name="A", mig_parent=parent)

    wanted = parse_requirements({"device": "cuda", "devices": 2})
    whole, cut = Inventory((gpu("GPU-a"), gpu("GPU-b"))), Inventory((gpu("MIG-a", "GPU-c"), gpu("MIG-b", "GPU-c")))
    assert first_unmet(wanted, detect_capabilities(whole, whole.devices[0])) is None
    unmet = first_unmet(wanted, detect_capabilities(cut, cut.devices[0]))
    assert unmet is not None
    assert unmet.text == "devices: wanted 2, found 1 (cuda; a process sees only one mig instance)"


_SIGNS = st.sampled_from([">=", "<=", "==", "!=", ">", "<"])
_VERSIONS = st.lists(st.integers(0, 999), min_size=1, max_size=4).map(tuple)


@settings(derandomize=True, database=None)
@given(clauses=st.lists(st.tuples(_SIGNS, _VERSIONS), min_size=1, max_size=3), gap=st.sampled_from(["", " "]))
def test_a_written_condition_is_read_back(clauses: list[tuple[str, tuple[int, ...]]], gap: str) -> None:
    text = ",".join(f"{gap}{sign}{gap}{'.'.join(map(str, version))}{gap}" for sign, version in clauses)
    expected = tuple(Clause(sign, version) for sign, version in clauses)
    assert parse_requirements({"torch": text}) == (Requirement("torch", text, expected),)


@settings(derandomize=True, database=None)
@given(wanted=_VERSIONS, found=_VERSIONS)
def test_exactly_one_of_less_equal_and_greater_holds(wanted: tuple[int, ...], found: tuple[int, ...]) -> None:
    text = ".".join(map(str, wanted))
    holding = [sign for sign in ("<", "==", ">") if meets("torch", f"{sign}{text}", found)]
    assert len(holding) == 1
    assert meets("torch", f">={text}", found) == (holding != ["<"])
    assert meets("torch", f"<={text}", found) == (holding != [">"])
    assert meets("torch", f"!={text}", found) == (holding != ["=="])


_CONDITIONS = st.one_of(
    st.text(), st.text(alphabet=">=<!,. 0123456789GiBKM"), st.integers(), st.floats(), st.booleans(), st.none()
)


@settings(derandomize=True, database=None)
@given(name=st.sampled_from(sorted(VOCABULARY)), condition=_CONDITIONS)
def test_a_condition_is_parsed_or_rejected_and_absence_never_meets_it(name: str, condition: object) -> None:
    try:
        requirements = parse_requirements({name: condition})
    except RequirementError:
        return
    asks_for_absence = condition is False or name == "device"
    assert meets(name, condition, None) == (asks_for_absence and condition != "cuda")
    assert str(requirements[0]) == f"{name} {condition}"
    assert VOCABULARY[name].kind is not ValueKind.BOOL or isinstance(condition, bool)


@pytest.mark.parametrize(
    ("parameters", "needed"),
    [
        ({}, ()),
        ({"dtype": torch.float64}, ("float64",)),
        ({"source": "complex128", "target": torch.int8, "again": torch.int8}, ("complex128", "int8")),
        ({"size": 3, "name": "sum", "kind": "double", "half": torch.qint8}, ()),
    ],
)
def test_the_types_among_the_parameters_of_an_item(parameters: dict[str, Any], needed: tuple[str, ...]) -> None:
    assert requirements.parameter_types(SimpleNamespace(callspec=SimpleNamespace(params=parameters))) == needed
    assert requirements.parameter_types(SimpleNamespace(parameter_types=needed)) == needed


def test_an_item_without_parameters_needs_no_type() -> None:
    assert requirements.parameter_types(SimpleNamespace()) == ()


def test_marks_add_types() -> None:
    marks = [pytest.mark.types("float16", "float64").mark, pytest.mark.types("int8").mark]
    assert requirements.types_needed(("float64",), marks) == ["float64", "float16", "int8"]


@pytest.mark.parametrize(
    ("mark", "text"),
    [
        (pytest.mark.types(), "names of one or more types"),
        (pytest.mark.types("float64", at="once"), "names of one or more types"),
        (pytest.mark.types("double"), r"types\('double'\): expected names among float64, float32"),
        (pytest.mark.types(torch.float64), r"types\(torch.float64\): expected names among"),
    ],
)
def test_a_mark_that_names_no_type_is_an_error(mark: pytest.MarkDecorator, text: str) -> None:
    with pytest.raises(HarnessError, match=text):
        requirements.types_needed((), [mark.mark])


def test_the_first_type_that_is_lacking_is_the_reason() -> None:
    unmet = requirements.first_lacking(["int8", "complex128", "float64"], ("float64", "complex128"), "npu")
    assert unmet is not None
    assert unmet.text == "types: wanted complex128, found a device without it, as hardware npu declares"
    assert requirements.first_lacking(["int8"], ("float64",), "npu") is None
    assert requirements.first_lacking(["int8"], (), "npu") is None


def test_every_type_of_torch_is_known_but_quantized_and_packed_ones() -> None:
    names = {str(value).removeprefix("torch.") for value in vars(torch).values() if isinstance(value, torch.dtype)}
    left_out = {name for name in names if name.startswith(("qint", "quint", "bits")) or name[-1] in "1234567"}
    # Types of 1 to 7 bits, or packed: int4, uint7, quint2x4. Types of whole bytes with the same endings stay.
    left_out -= {"int16", "int32", "int64", "uint16", "uint32", "uint64", "float16", "bfloat16", "float32", "float64"}
    left_out -= {"complex32", "complex64", "float8_e5m2"}
    assert {*requirements.KNOWN} >= names - left_out
