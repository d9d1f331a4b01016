"""Masks of devices, as tables."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.devices.device import CPU, Device, apply_visible_mask, combinable_devices, mask_for, masks_for


def _gpu(index: int, uuid: str, name: str = "A", parent: str | None = None, fault: str | None = None) -> Device:
    return Device(uuid=uuid, kind="cuda", name=name, index=index, mig_parent=parent, fault=fault)


A0 = _gpu(0, "GPU-aa00")
A1 = _gpu(1, "GPU-aa11")
M2A = _gpu(2, "MIG-c1", "A MIG", parent="GPU-bb22")
M2B = _gpu(2, "MIG-c2", "A MIG", parent="GPU-bb22")
B3 = _gpu(3, "GPU-dd33", "B")
LOST = _gpu(3, "nvml:3", "unknown GPU", fault="handle: GPU is lost")
BOX = (A0, A1, M2A, M2B)


@pytest.mark.parametrize(
    ("mask", "visible", "remark"),
    [
        (None, [A0, A1, M2A, M2B], None),
        ("", [], "hides every GPU"),
        (" ", [], "hides every GPU"),
        ("-1", [], "hides every GPU"),
        ("0", [A0], None),
        ("1,0", [A1, A0], None),
        (" 1 , 0 ", [A1, A0], None),
        ("GPU-aa11", [A1], None),
        ("GPU-aa1", [A1], None),
        ("GPU-aa1,0", [A1, A0], None),
        ("GPU-aa", [], "entry 'GPU-aa' is a prefix of 2 UUIDs"),
        ("MIG-c2", [M2B], None),
        ("MIG-c2,MIG-c1,GPU-aa00", [M2B, M2A, A0], None),
        ("MIG-c", [], "entry 'MIG-c' is a prefix of 2 UUIDs"),
        ("2", [M2A], None),
        ("GPU-bb22", [M2A], None),
        ("GPU-b", [M2A], None),
        ("2,MIG-c1", [], "entry 'MIG-c1' names MIG-c1 a second time"),
        ("MIG-GPU-bb22/1/0", [], "is the UUID of no device"),
        ("0,-1,1", [A0], "entry '-1' is neither an index nor a UUID"),
        ("0,7,1", [A0], "entry '7' is the index of no GPU"),
        ("0,,1", [A0], "entry '' is neither"),
        ("0,GPU-ff,1", [A0], "entry 'GPU-ff' is the UUID of no device"),
        ("0,0", [], "a second time, which hides every GPU"),
        ("0,1,GPU-aa00", [], "entry 'GPU-aa00' names GPU-aa00 a second time"),
        ("0,9,0", [A0], "entry '9'"),
        ("1gpu", [], "entry '1gpu' is neither"),
        ("cpu", [], "entry 'cpu' is neither"),
        ("NoDevFiles", [], "entry 'NoDevFiles' is neither"),
        ("9" * 5000, [], "is neither"),
        ("٣", [], "is neither"),  # a digit, and none that CUDA reads
    ],
)
def test_select(mask: str | None, visible: list[Device], remark: str | None) -> None:
    selection = apply_visible_mask(BOX, {} if mask is None else {"CUDA_VISIBLE_DEVICES": mask})
    assert list(selection.visible) == visible
    assert list(selection.hidden) == [device for device in BOX if device not in visible]
    if remark is None:
        assert selection.notes == ()
    else:
        (note,) = selection.notes
        assert note.startswith(f"CUDA_VISIBLE_DEVICES={mask!r}: ")
        assert remark in note


def test_an_exact_uuid_is_no_prefix_of_a_longer_one() -> None:
    longer = _gpu(1, "GPU-aa00-1")
    assert apply_visible_mask((A0, longer), {"CUDA_VISIBLE_DEVICES": "GPU-aa00"}).visible == (A0,)


def test_names_by_which_old_drivers_report_instances() -> None:
    old = _gpu(0, "MIG-GPU-aa00/1/0", parent="GPU-aa00")
    assert apply_visible_mask((old,), {"CUDA_VISIBLE_DEVICES": "MIG-GPU-aa00/1/0"}).visible == (old,)


@pytest.mark.parametrize(
    ("devices", "mask", "order", "doubt"),
    [
        ((A0, A1, B3), "3", None, "there are 2 GPU models and CUDA counts the fastest GPU first"),
        ((A0, A1, B3), "0,GPU-aa11", "FASTEST_FIRST", "CUDA counts the fastest GPU first"),
        ((A0, A1, B3), "3", "PCI_BUS_ID", None),
        ((A0, A1, B3), "GPU-dd", None, None),
        ((A0, A1), "1", None, None),
        (BOX, "1", None, None),
        ((A0, LOST), "0", "PCI_BUS_ID", "indices are uncertain because nvml:3 has a fault"),
        ((A0, LOST), "GPU-aa00", None, None),
    ],
)
def test_indices_that_may_mean_another_gpu_are_noted(
    devices: tuple[Device, ...], mask: str, order: str | None, doubt: str | None
) -> None:
    environ = {"CUDA_VISIBLE_DEVICES": mask, **({} if order is None else {"CUDA_DEVICE_ORDER": order})}
    notes = apply_visible_mask(devices, environ).notes
    assert notes == () if doubt is None else doubt in notes[0]


def test_an_empty_mask_on_a_machine_without_gpus_is_not_worth_a_note() -> None:
    assert apply_visible_mask((), {"CUDA_VISIBLE_DEVICES": ""}).notes == ()


_ENTRIES = st.one_of(
    st.sampled_from(["0", "1", "2", "3", "-1", "", "GPU-", "GPU-aa", "GPU-aa0", "MIG-", "MIG-c1", "nvml:3", " "]),
    st.text(),
)


@settings(derandomize=True, database=None)
@given(mask=st.lists(_ENTRIES).map(",".join), devices=st.lists(st.sampled_from([*BOX, LOST]), unique=True))
def test_select_never_raises_and_accounts_for_every_device(mask: str, devices: list[Device]) -> None:
    selection = apply_visible_mask(devices, {"CUDA_VISIBLE_DEVICES": mask})
    assert sorted(d.uuid for d in (*selection.visible, *selection.hidden)) == sorted(d.uuid for d in devices)
    assert set(selection.visible).isdisjoint(selection.hidden)


@settings(derandomize=True, database=None)
@given(devices=st.permutations([A0, A1, B3]), count=st.integers(min_value=1, max_value=3))
def test_what_is_bound_is_what_is_seen(devices: list[Device], count: int) -> None:
    bound = tuple(devices[:count])
    assert apply_visible_mask((A0, A1, B3), {"CUDA_VISIBLE_DEVICES": mask_for(bound)}).visible == bound


@pytest.mark.parametrize(
    ("devices", "mask"),
    [((A1, A0), "GPU-aa11,GPU-aa00"), ((M2B,), "MIG-c2"), ((CPU,), ""), ((), "")],
)
def test_mask_for(devices: tuple[Device, ...], mask: str) -> None:
    assert mask_for(devices) == mask


@pytest.mark.parametrize(
    ("devices", "error"),
    [
        ((A0, LOST), "device nvml:3 cannot be used because it has a fault: handle: GPU is lost"),
        ((M2A, M2B), "one process cannot use these devices together: MIG-c1, MIG-c2"),
        ((A0, M2A), "one process cannot use these devices together: GPU-aa00, MIG-c1"),
        ((A0, CPU), "one process cannot use these devices together: GPU-aa00, cpu"),
    ],
)
def test_mask_for_what_cannot_be_bound(devices: tuple[Device, ...], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        mask_for(devices)


@pytest.mark.parametrize(
    ("devices", "together"),
    [
        (BOX, (A0, A1)),
        ((M2A, M2B), (M2A,)),
        ((LOST, M2B), (M2B,)),
        ((LOST, A0), (A0,)),
        ((CPU,), (CPU,)),
        ((LOST, CPU), (CPU,)),
        ((), ()),
    ],
)
def test_combinable(devices: tuple[Device, ...], together: tuple[Device, ...]) -> None:
    assert combinable_devices(devices) == together
    mask_for(together)


SOFT_0, SOFT_1 = (Device(uuid=f"SOFT-{index}", kind="soft", name="soft", index=index) for index in (0, 1))


@pytest.mark.parametrize(
    ("devices", "masks"),
    [
        ((SOFT_1,), {"CUDA_VISIBLE_DEVICES": "", "SOFT_VISIBLE_DEVICES": "SOFT-1"}),
        ((SOFT_1, SOFT_0), {"CUDA_VISIBLE_DEVICES": "", "SOFT_VISIBLE_DEVICES": "SOFT-1,SOFT-0"}),
        ((A0,), {"CUDA_VISIBLE_DEVICES": A0.uuid}),
        ((CPU,), {"CUDA_VISIBLE_DEVICES": ""}),
    ],
)
def test_software_devices_are_shown_by_a_variable_of_their_own(
    devices: tuple[Device, ...], masks: dict[str, str]
) -> None:
    assert masks_for(devices) == masks


@pytest.mark.parametrize("devices", [(SOFT_0, A0), (SOFT_0, CPU)])
def test_a_software_device_stands_beside_its_like_only(devices: tuple[Device, ...]) -> None:
    with pytest.raises(ValueError, match="one process cannot use these devices together"):
        masks_for(devices)


def test_all_software_devices_can_be_held_together() -> None:
    assert combinable_devices((SOFT_0, SOFT_1)) == (SOFT_0, SOFT_1)
