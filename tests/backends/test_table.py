"""Registrations from outside: what a process knows of them, and one sentence for each unusable one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from harness.backends import table
from harness.backends.backend import Backend
from harness.backends.table import BACKENDS, RegistrationError
from harness.devices.capabilities import detect_capabilities
from harness.devices.device import Device, Inventory
from suites.host_kernels import has_host_kernels


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """Forget the registrations of a test."""
    before = set(BACKENDS)
    yield
    for kind in set(BACKENDS) - before:
        BACKENDS.forget(kind)


def test_the_name_alone_is_a_whole_registration() -> None:
    backend = Backend("npu")
    assert (backend.torch_type, backend.label, backend.no_gpu) == ("npu", "npu", "the device is npu")
    assert backend.uuid_prefixes == ("NPU-",)
    facts = {name: getattr(backend, name) for name in ("accelerator", "hardware", "warmed", "software", "nvml")}
    assert facts == {"accelerator": True, "hardware": True, "warmed": True, "software": False, "nvml": False}


def test_a_registration_states_its_modules_and_kernels_to_cases() -> None:
    assert Backend("npu").stated == {"HARNESS_DEVICE_MODULES": None, "HARNESS_HOST_KERNELS": None}
    stated = Backend("npu", modules=("npu_device", "npu_more"), host_kernels=True).stated
    assert stated == {"HARNESS_DEVICE_MODULES": "npu_device,npu_more", "HARNESS_HOST_KERNELS": "1"}
    assert {kind for kind in table.own_kinds() if BACKENDS[kind].host_kernels} == {"soft", "simcuda"}


@pytest.mark.parametrize(("host_kernels", "silicon"), [(False, True), (True, False)])
def test_a_device_that_computes_with_the_cpu_has_no_arithmetic_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, host_kernels: bool, silicon: bool
) -> None:
    """The known errors of the CPU's kernels are expected of it, and cases about a GPU's arithmetic are gated."""
    file = tmp_path / "npu.py"
    file.write_text(
        f"from harness.backends.backend import Backend\nBACKEND = Backend('npu', host_kernels={host_kernels})\n"
    )
    backend = BACKENDS.add(str(file))
    device = Device("NPU-0", "npu", "a device")
    found = detect_capabilities(Inventory((device,)), device)
    assert found.finding("silicon").value is silicon
    monkeypatch.setenv("HARNESS_HOST_KERNELS", backend.stated["HARNESS_HOST_KERNELS"] or "")
    assert has_host_kernels(torch.device("meta")) is host_kernels
    assert has_host_kernels(torch.device("cpu"))


def test_a_kind_is_known_to_this_process_and_to_those_that_it_starts() -> None:
    environ: dict[str, str] = {}
    assert BACKENDS.get("npu") is None
    backend = table.activate("npu", environ)
    assert BACKENDS["npu"] is backend
    assert table.activate("npu", environ) is backend
    assert environ == {table.VARIABLE: "npu"}
    assert table.backend_of("NPU-1") is backend
    assert table.labels(["NPU-0", "NPU-1"]) == "npu"
    assert table.names("npu") == ("npu",)


def test_kinds_of_this_tree_change_no_environment() -> None:
    environ: dict[str, str] = {}
    assert table.activate("cpu", environ) is BACKENDS["cpu"]
    assert environ == {}


def test_a_file_registers_its_kind(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("from harness.backends.backend import Backend\nBACKEND = Backend('npu', mask='NPU_VISIBLE')\n")
    environ: dict[str, str] = {}
    backend = table.activate(str(file), environ)
    assert (backend.kind, backend.mask) == ("npu", "NPU_VISIBLE")
    assert table.activate("npu", environ) is backend, "--device names the kind that --backend has registered"
    assert environ == {table.VARIABLE: str(file)}
    assert "NPU_VISIBLE" in table.device_variables()


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        (None, "there is no such Python file"),
        ("1 / 0", "its import raises ZeroDivisionError"),
        ("import does_not_exist_anywhere", "its import raises ModuleNotFoundError"),
        ("KIND = 'npu'", "expected a Backend named BACKEND in the file"),
        ("BACKEND = 7", "BACKEND is 7, expected a harness.backends.backend.Backend"),
        (
            "from harness.backends.backend import Backend\nBACKEND = Backend('NPU 1')",
            "has the kind 'NPU 1': expected a new name of small letters and digits",
        ),
        (
            "from harness.backends.backend import Backend\nBACKEND = Backend('cuda')",
            "has the kind 'cuda': expected a new name",
        ),
    ],
)
def test_a_wrong_file_is_named_in_one_sentence(tmp_path: Path, source: str | None, sentence: str) -> None:
    file = tmp_path / "wrong.py"
    if source is not None:
        file.write_text(source)
    with pytest.raises(RegistrationError) as caught:
        table.activate(str(file), {})
    assert sentence in str(caught.value)
    assert repr(str(file)) in str(caught.value)


def test_a_kind_is_registered_once(tmp_path: Path) -> None:
    table.activate("npu", {})
    file = tmp_path / "second.py"
    file.write_text("BACKEND = 'npu'")
    with pytest.raises(RegistrationError, match="the kind 'npu' is registered already"):
        table.activate(str(file), {})


@pytest.mark.parametrize("name", ["GPU", "gpu", "two words", "", "a" * 40, "auto"])
def test_names_that_are_no_kinds(name: str) -> None:
    with pytest.raises(RegistrationError, match="is no kind of device"):
        table.activate(name, {})
