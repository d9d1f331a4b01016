"""TorchScript functions.

The compiler evaluates signature types at run time, so annotations here must not be strings.
"""

import torch

from . import _torch_private as private

#: Stacks gathered by the function that TorchScript calls in Python.
GATHERED: list[object] = []


@torch.jit.ignore
def gathered_by_python(x: torch.Tensor) -> int:
    """Gather the stack with and without TorchScript frames, and return the number of elements."""
    GATHERED.extend(private.gathered(script=script) for script in (True, False))
    return x.numel()


def the_script(x: torch.Tensor) -> int:
    """Call back into Python on the first line. To be compiled."""
    return gathered_by_python(x) + 2


def filled_by_a_script(rows: int, columns: int, device: torch.device) -> torch.Tensor:
    """Return a new tensor of 4 * rows * columns bytes. To be compiled."""
    return torch.rand(rows, columns, device=device)
