"""Registers the device of ``device.cpp`` with torch under the name ``plain``, as an out-of-tree package has it.

`tests.outside.plain` compiles it and copies this file into a package in a temporary folder.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import backend_registration

from . import _native  # type: ignore[attr-defined]

backend_registration.rename_privateuse1_backend("plain")


class Module:
    """``torch.plain``: the functions that docs/backends.md lists, as far as the device has them."""

    class device:  # noqa: N801 - torch's name for it
        """A context that changes nothing, since there is one device."""

        def __init__(self, device: Any) -> None:
            self._device = device

        def __enter__(self) -> None:
            """Refuse other devices."""
            if self._device is not None:
                _index(self._device)

        def __exit__(self, *_: object) -> None:
            """Change nothing."""

    @property
    def _initialized(self) -> bool:
        return self.is_initialized()

    def device_count(self) -> int:
        return 1

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return bool(_native.is_used())

    def current_device(self) -> int:
        return 0

    def set_device(self, device: Any) -> None:
        _index(device)

    def synchronize(self, device: Any = None) -> None:
        """Do nothing: all work is done when its call returns."""

    def _is_in_bad_fork(self) -> bool:
        return False

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        """Allow regions of autocast, which torch's checkpoints enter. No operator uses them."""
        return [torch.bfloat16]

    def get_device_name(self, device: Any = None) -> str:
        _index(device)
        return "plain device of the tests"

    def current_stream(self, device: Any = None) -> torch.Stream:
        return torch.accelerator.current_stream(_index(device))

    def stream(self, stream: torch.Stream) -> torch.Stream:
        return stream

    def manual_seed(self, seed: int) -> None:
        _native.manual_seed(seed)

    manual_seed_all = manual_seed

    def seed(self) -> int:
        return int(_native.seed())

    seed_all = seed

    def initial_seed(self) -> int:
        return int(_native.initial_seed())

    def get_rng_state(self, device: Any = "plain") -> torch.Tensor:
        _index(device)
        state: torch.Tensor = _native.get_rng_state()
        return state

    def set_rng_state(self, state: torch.Tensor, device: Any = "plain") -> None:
        _index(device)
        _native.set_rng_state(state)

    def get_rng_state_all(self) -> list[torch.Tensor]:
        return [self.get_rng_state()]

    def set_rng_state_all(self, states: list[torch.Tensor]) -> None:
        for state in states:
            self.set_rng_state(state)


def _index(device: Any) -> int:
    """Return the index of a device. Raise ValueError if there is no such device."""
    given = torch.device(device) if isinstance(device, str) else device
    if isinstance(given, torch.device):
        if given.type != "plain":
            raise ValueError(f"expected a plain device, got {str(given)!r}")
        given = given.index
    if given not in (None, 0):
        raise ValueError(f"there is no device plain:{given}")
    return 0


_register: Any = torch._register_device_module
_register("plain", Module())
backend_registration.generate_methods_for_privateuse1_backend()
