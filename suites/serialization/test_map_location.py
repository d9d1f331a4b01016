"""The placement of loaded tensors: by default their original device, otherwise according to `map_location`."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from .. import children
from .files import loaded, saved

ELSEWHERE: dict[str, Any] = {
    "text": "cpu",
    "device": torch.device("cpu"),
    "function": lambda storage, _: storage,
}


@pytest.mark.parametrize("where", ELSEWHERE.values(), ids=ELSEWHERE.keys())
def test_map_location_cpu_takes_everything_to_the_cpu(device: torch.device, where: Any) -> None:
    """With the CPU as `map_location`, in every form, all tensors are on the CPU, with their values and sharing."""
    x = torch.arange(10.0, device=device)
    other = torch.tensor([7.0, -2.0], device=device)

    values = loaded(saved({"whole": x, "part": x[3:], "other": [other]}), map_location=where)

    assert {t.device.type for t in (values["whole"], values["part"], values["other"][0])} == {"cpu"}
    assert values["whole"].tolist() == list(range(10))
    assert values["part"].tolist() == list(range(3, 10))
    assert values["other"][0].tolist() == [7, -2]
    values["whole"].zero_()
    assert values["part"].eq(0).all()


@pytest.mark.requires(accelerator=True)
@pytest.mark.parametrize("how", ["text", "bare", "device", "dictionary", "function"])
def test_map_location_takes_cpu_tensors_to_the_device(device: torch.device, how: str) -> None:
    """CPU tensors are loaded onto the device by `map_location` as a name, device, dictionary or function."""
    places: dict[str, Any] = {
        "text": str(device),
        "bare": device.type,
        "device": device,
        "dictionary": {"cpu": str(device)},
        "function": lambda storage, _: torch.UntypedStorage(storage.nbytes(), device=device).copy_(storage),
    }

    back = loaded(saved([torch.arange(5.0), torch.tensor([7, -2], dtype=torch.int16)]), map_location=places[how])

    assert [x.device for x in back] == [device, device]
    assert back[0].tolist() == [0, 1, 2, 3, 4]
    assert back[1].tolist() == [7, -2]
    assert [x.dtype for x in back] == [torch.float32, torch.int16]


def test_map_location_function_gets_the_location_of_each_storage(device: torch.device) -> None:
    """A `map_location` function is called once per storage, with the storage on the CPU and its original location.

    If it returns None, the storage is placed as by default.
    """
    x, y = torch.arange(4.0, device=device), torch.arange(7.0, 10.0)
    reported: list[tuple[str, str]] = []

    def place(storage: torch.UntypedStorage, location: str) -> None:
        reported.append((storage.device.type, location))

    back = loaded(saved([x, x[1:], y]), map_location=place)

    assert sorted(reported) == sorted([("cpu", "cpu" if device.type == "cpu" else str(device)), ("cpu", "cpu")])
    assert [t.device for t in back] == [device, device, torch.device("cpu")]
    assert all(torch.equal(found, wanted) for found, wanted in zip(back, (x, x[1:], y), strict=True))


@pytest.mark.covers("test_cuda::TestCuda::test_specify_improper_device_name")
@pytest.mark.parametrize("name", ["cuda0", "nonsense", "cuda:", "cuda:-1"])
@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_map_location_with_a_malformed_device_is_refused_and_quoted(name: str, zipped: bool) -> None:
    """A malformed device name raises and is quoted, and the error mentions a device or location."""
    data = saved([torch.nn.Parameter(torch.randn(10, 10))], _use_new_zipfile_serialization=zipped)

    with pytest.raises(RuntimeError) as refusal:
        loaded(data, map_location=name)

    assert name in str(refusal.value)
    assert "device" in str(refusal.value) or "location" in str(refusal.value)


@pytest.mark.requires(accelerator=True)
def test_map_location_past_the_last_device_is_refused(device: torch.device) -> None:
    """A `map_location` beyond the last device raises RuntimeError with that reason."""
    count = torch.accelerator.device_count()

    with pytest.raises(RuntimeError, match=rf"device {count} but torch\.\w+\.device_count\(\) is {count}\b"):
        loaded(saved(torch.ones(3)), map_location=f"{device.type}:{count}")


@pytest.mark.timeout(150)
@pytest.mark.covers("test_cuda::TestCuda::test_specify_improper_device_name")
@pytest.mark.own_process
def test_map_location_is_needed_where_there_is_no_device(tmp_path: Any) -> None:
    """Loading GPU tensors without a GPU raises, and the error names `map_location`, with which they load to the CPU.

    The file is created without a GPU: CPU tensors are saved with a GPU's location.
    """
    path = tmp_path / "gpu.pt"
    script = f"""
import torch
torch.serialization.register_package(1, lambda storage: "cuda:0", lambda storage, place: None)
torch.save(torch.arange(4.0), {str(path)!r})
"""
    children.fork(script).lines()
    script = f"""
import torch
try:
    print("loaded", torch.load({str(path)!r}, weights_only=True).device)
except RuntimeError as error:
    print("map_location" in str(error) and "CUDA" in str(error))
print(torch.load({str(path)!r}, weights_only=True, map_location="cpu").tolist())
"""

    said = children.fork(script, environ={"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}).lines()

    assert said == ["True", "[0.0, 1.0, 2.0, 3.0]"]


def test_map_location_meta_gives_shapes_without_memory() -> None:
    """The location "meta" loads shapes and dtypes without data, also of large tensors."""
    back = loaded(saved(torch.ones(1000, 10, dtype=torch.float64)), map_location="meta")

    assert back.is_meta
    assert (back.shape, back.dtype) == (torch.Size([1000, 10]), torch.float64)


@pytest.mark.requires(accelerator=True, devices=2)
@pytest.mark.parametrize("how", ["default", "dictionary", "text", "bare"])
def test_map_location_for_tensors_of_two_devices(device: torch.device, how: str) -> None:
    """By default each tensor is loaded to its own device.

    A dictionary can swap devices, a string moves all to one, and a type without an index means the current device.
    """
    other = torch.device(device.type, 1)
    x, y = torch.arange(3, device=device), torch.arange(3, 6, device=other)
    wanted: dict[str, tuple[Any, list[torch.device]]] = {
        "default": (None, [device, other]),
        "dictionary": ({str(device): str(other), str(other): str(device)}, [other, device]),
        "text": (str(other), [other, other]),
        "bare": (device.type, [device, device]),
    }
    where, places = wanted[how]

    back = loaded(saved([x, y]), map_location=where)

    assert [t.device for t in back] == places
    assert [t.tolist() for t in back] == [[0, 1, 2], [3, 4, 5]]
    if how == "bare":
        with torch.accelerator.device_index(1):
            back = loaded(saved([x, y]), map_location=where)
        assert [t.device for t in back] == [other, other]
        assert [t.tolist() for t in back] == [[0, 1, 2], [3, 4, 5]]


def test_map_location_dict_maps_the_places_it_names(device: torch.device) -> None:
    """A dictionary moves tensors of the places that it names, and leaves the others where they were."""
    data = saved({"tensor": torch.arange(3.0, device=device), "host": torch.ones(2)})
    here = str(device)

    away = loaded(data, map_location={here: "meta"})
    left = loaded(data, map_location={"cuda:63": "meta"})

    assert away["tensor"].is_meta
    assert away["tensor"].shape == (3,)
    assert away["host"].device.type == ("meta" if device.type == "cpu" else "cpu")
    assert (left["tensor"].device, left["tensor"].tolist()) == (device, [0.0, 1.0, 2.0])
    assert left["host"].tolist() == [1.0, 1.0]
