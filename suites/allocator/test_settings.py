"""Allocator settings: accepted strings, and strings that raise, on any build of torch.

Settings apply to the whole process, so the cases set them in child processes. `test_settings_effects.py` tests their
effects.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from .. import children
from .answers import ask

#: Settings of a build for GPUs, with or without a GPU.
FOR_GPUS = pytest.mark.requires(any=[{"cuda": True}, {"rocm": True}])

GOOD = (
    "",
    "max_split_size_mb:20",
    "max_split_size_mb:4096",
    "max_non_split_rounding_mb:40",
    "garbage_collection_threshold:0.01",
    "garbage_collection_threshold:0.99",
    "expandable_segments:True",
    "expandable_segments:False",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]",
    "roundup_power2_divisions:[128:0]",
    "pinned_use_background_threads:True",
    "max_split_size_mb:100,garbage_collection_threshold:0.5,expandable_segments:False",
    " max_split_size_mb : 100 , expandable_segments : True ",
)

#: Invalid settings with the text that the error must contain: the key or the allowed values.
BAD = {
    "max_split_size_mb:19": "max_split_size_mb",
    "max_split_size_mb:0": "max_split_size_mb",
    "max_non_split_rounding_mb:2": "max_non_split_rounding_mb",
    "garbage_collection_threshold:0": "0.0, 1.0",
    "garbage_collection_threshold:1": "0.0, 1.0",
    "garbage_collection_threshold:-0.5": "0.0, 1.0",
    "expandable_segments:true": "'true'",
    "expandable_segments:1": "'1'",
    "roundup_power2_divisions:3": "power of 2",
    "roundup_power2_divisions:[100:4]": "power of 2",
    "roundup_power2_divisions:[64:7]": "power of 2",
    "pinned_use_background_threads:yes": "'yes'",
    "max_split_size_mb:100,expandable_segments:yes": "'yes'",
}

#: Settings that also raise, but with an internal assertion or the name of a C++ function.
MISSING = (
    "max_split_size_mb",
    "max_split_size_mb:",
    "max_split_size_mb:many",
    "garbage_collection_threshold:",
    "garbage_collection_threshold:low",
    "expandable_segments:",
    "roundup_power2_divisions:[64:8,128:4",
)


def replies(settings: Iterable[str]) -> dict[str, str]:
    """Return the error per settings string, or an empty string, when set one after another in one process."""
    script = f"""
def try_settings(settings):
    return failure(lambda: torch._C._accelerator_setAllocatorSettings(settings))
tell({{settings: try_settings(settings) for settings in {list(settings)!r}}})
"""
    found: dict[str, str] = ask(script)
    return found


@pytest.mark.covers("test_cuda::TestCudaAllocator::test_allocator_settings")
@pytest.mark.own_process
def test_set_allocator_settings_takes_documented_settings() -> None:
    """Each documented setting is accepted, at the limits of its range, in lists and with surrounding spaces."""
    assert {settings: error for settings, error in replies(GOOD).items() if error} == {}


@pytest.mark.covers("test_cuda::TestCudaAllocator::test_allocator_settings")
@pytest.mark.own_process
def test_set_allocator_settings_names_a_setting_whose_value_is_out_of_range() -> None:
    """An invalid value raises ValueError with the setting, its value or the allowed ones, also in a list."""
    found = replies(BAD)

    for settings, named in BAD.items():
        assert found[settings].startswith("ValueError: "), settings
        assert named in found[settings], settings


@pytest.mark.covers("test_cuda::TestCudaAllocator::test_allocator_settings")
@pytest.mark.own_process
def test_set_allocator_settings_refuses_a_setting_without_a_value() -> None:
    """A setting without a value, with a non-numeric value, or with an unterminated list raises.

    The process survives and accepts valid settings afterwards.
    """
    found = replies((*MISSING, "max_split_size_mb:100"))

    assert found.pop("max_split_size_mb:100") == ""
    assert [settings for settings, error in found.items() if not error] == []


@pytest.mark.covers("test_cuda::TestCudaAllocator::test_allocator_settings")
@pytest.mark.xfail(
    reason="torch 2.11 to 2.15 report `INTERNAL ASSERT FAILED`, which asks for a bug report, or `stoull`, and name"
    " no setting (ConfigTokenizer in c10/core/AllocatorConfig.h, https://github.com/pytorch/pytorch)",
)
@pytest.mark.own_process
def test_set_allocator_settings_names_a_setting_without_a_value() -> None:
    """The error for a setting without a value names the setting."""
    found = replies(MISSING)

    assert [error for settings, error in found.items() if settings.partition(":")[0] not in error] == []


@FOR_GPUS
@pytest.mark.covers("test_cuda::TestCudaAllocator::test_allocator_settings")
@pytest.mark.own_process
def test_set_allocator_settings_names_an_unknown_setting() -> None:
    """An unknown setting raises ValueError with its name, as does text that is not a setting."""
    found = replies(["no_such_setting:1", "nonsense", "max_split_size_mb:100,also_unknown:2"])

    for error, name in zip(found.values(), ("no_such_setting", "nonsense", "also_unknown"), strict=True):
        assert error.startswith("ValueError: ")
        assert name in error


@FOR_GPUS
@pytest.mark.covers("test_cuda::TestCudaAllocator::test_allocator_settings")
@pytest.mark.own_process
def test_set_allocator_settings_checks_settings_of_gpu_builds() -> None:
    """Settings of GPU builds are checked too; each error has the allowed values or the value.

    These are an unknown backend, an invalid fraction, and a thread count that is no power of 2.
    """
    good = ["backend:native", "per_process_memory_fraction:0.5", "per_process_memory_fraction:1.0"]
    bad = {
        "backend:none_of_them": "options are native",
        "per_process_memory_fraction:1.5": "0.0, 1.0",
        "per_process_memory_fraction:-1": "0.0, 1.0",
        "pinned_num_register_threads:3": "power of 2",
        "pinned_use_cuda_host_register:maybe": "'maybe'",
    }
    found = replies([*good, *bad])

    assert [settings for settings in good if found[settings]] == []
    for settings, named in bad.items():
        assert found[settings].startswith("ValueError: "), settings
        assert named in found[settings], settings


@FOR_GPUS
@pytest.mark.own_process
def test_set_allocator_settings_refuses_another_backend_later() -> None:
    """Changing the backend at runtime raises, since a new one could not free existing memory.

    The error names the current backend.
    """
    reported = replies(["backend:cudaMallocAsync"])["backend:cudaMallocAsync"]

    assert "!= native" in reported


def with_variables(variables: dict[str, str], last: str) -> children.Ended:
    """Run `last` in a process whose environment has only `variables` of `children.SETTINGS`."""
    script = f"""
import os
for name in {children.SETTINGS!r}:
    os.environ.pop(name, None)
os.environ.update({variables!r})
import torch
{last}
"""
    return children.run(script + children.AT_ONCE)


PRINT = "print(torch._C._accelerator_getAllocatorSettings())"


@pytest.mark.requires(torch=">=2.12")
@pytest.mark.parametrize("variable", children.SETTINGS[:2])
def test_pytorch_alloc_conf_is_read_from_the_environment(variable: str) -> None:
    """PYTORCH_ALLOC_CONF, or its alias, configures the allocator before its first use."""
    ended = with_variables({variable: "max_split_size_mb:123"}, PRINT)

    assert ended.lines() == ["max_split_size_mb:123"]


@pytest.mark.requires(torch=">=2.12")
@pytest.mark.parametrize("settings", ["max_split_size_mb:19", "expandable_segments:1"])
def test_pytorch_alloc_conf_with_bad_settings_is_a_valueerror(settings: str) -> None:
    """Invalid settings in the environment raise ValueError with the reason when the settings are first needed."""
    ended = with_variables({children.SETTINGS[0]: settings}, PRINT)

    assert ended.status == 1
    assert "ValueError" in ended.err
    assert BAD[settings] in ended.err


@pytest.mark.requires(torch=">=2.12")
@pytest.mark.xfail(
    reason="in torch 2.12 to 2.15 the last of the three variables that is set wins, though c10/core/AllocatorConfig.h"
    " says that the alias has the lower priority (https://github.com/pytorch/pytorch)",
)
def test_pytorch_alloc_conf_wins_over_its_alias() -> None:
    """PYTORCH_ALLOC_CONF has priority over its alias."""
    ended = with_variables(
        {children.SETTINGS[0]: "max_split_size_mb:40", children.SETTINGS[1]: "max_split_size_mb:50"}, PRINT
    )

    assert ended.lines() == ["max_split_size_mb:40"]


@pytest.mark.requires(device="cuda")
@pytest.mark.parametrize("settings", ["max_split_size_mb:19", "no_such_setting:1"])
def test_pytorch_alloc_conf_with_bad_settings_stops_the_first_allocation(settings: str) -> None:
    """On a GPU, invalid settings raise at the first allocation at the latest, and the error names them."""
    ended = with_variables({children.SETTINGS[0]: settings}, "torch.empty(1, device='cuda'); print('allocated')")

    assert ended.status != 0
    assert "allocated" not in ended.out
    assert settings.partition(":")[0] in ended.text()
