"""The two APIs for streams and events: the accelerator-generic classes and CUDA's own, with the same contracts."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Api:
    """The classes and functions of one API. `event` takes a device and the options of the class."""

    stream: Callable[..., torch.Stream]
    event: Callable[..., torch.Event]
    current_stream: Callable[[torch.device], torch.Stream]
    synchronize: Callable[[torch.device], None]
    entered: Callable[[torch.Stream], AbstractContextManager[object]]


GENERIC = Api(
    stream=torch.Stream,
    event=torch.Event,
    current_stream=torch.accelerator.current_stream,
    synchronize=torch.accelerator.synchronize,
    entered=lambda stream: stream,
)

CUDA = Api(
    stream=torch.cuda.Stream,
    event=lambda _device=None, **options: torch.cuda.Event(**options),
    current_stream=torch.cuda.current_stream,
    synchronize=torch.cuda.synchronize,
    entered=torch.cuda.stream,
)

#: The APIs by the parameter names of the fixture `api`.
APIS = {"generic": GENERIC, "cuda": CUDA}
