"""Functions in TorchScript. Its compiler reads the types in signatures as they stand, so here they are no texts."""

import torch

from . import _torch_private as private

#: What was gathered, by the function that Python runs for a script.
GATHERED: list[object] = []


@torch.jit.ignore
def gathered_by_python(x: torch.Tensor) -> int:
    """Gather the stack with calls of TorchScript and without; how many elements there are."""
    GATHERED.extend(private.gathered(script=script) for script in (True, False))
    return x.numel()


def the_script(x: torch.Tensor) -> int:
    """To be compiled: calls back into Python at its first line."""
    return gathered_by_python(x) + 2


def filled_by_a_script(rows: int, columns: int, device: torch.device) -> torch.Tensor:
    """To be compiled: allocates a tensor of 4 * rows * columns bytes."""
    return torch.rand(rows, columns, device=device)
