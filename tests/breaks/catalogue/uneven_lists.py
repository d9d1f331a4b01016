"""Lists whose tensors are taken for alike, and collectives of one process that confuse devices."""

from __future__ import annotations

import functools
from typing import Any

from tests.breaks.breaks import Theme, replace
from tests.breaks.kernels import torch_with_cuda

broken = Theme()
_LISTS = "suites/operators/test_uneven_lists.py"
_ONE_PROCESS = "suites/collectives/test_one_process.py"
_on_cuda = functools.partial(broken, device="simcuda")


def _sums(place: int) -> object:
    """Return the types of the sums of two lists, of which one tensor is of another type."""
    import torch

    tensors = [torch.ones(2) for _ in range(3)]
    tensors[place] = tensors[place].double()
    return [str(each.dtype) for each in torch._foreach_add(tensors, tensors)]


@broken("A sum of lists has the type of the first tensors.", _LISTS, shows=lambda: _sums(2))
def lists_have_the_type_of_the_first() -> None:
    import torch

    def around(add: Any) -> Any:
        return lambda x, *more, **named: [each.to(x[0].dtype) for each in add(x, *more, **named)]

    replace(torch, "_foreach_add", around)


@broken("A product of lists leaves out the last tensors.", _LISTS, shows=lambda: _product_of_lists())
def lists_end_before_the_last() -> None:
    import torch

    def around(multiply: Any) -> Any:
        return lambda x, y: multiply(x[:-1], y[:-1] if isinstance(y, list) else y)

    replace(torch, "_foreach_mul_", around)


def _product_of_lists() -> object:
    import torch

    tensors = [torch.ones(2) for _ in range(2)]
    torch._foreach_mul_(tensors, [torch.full((2,), 2.0)] * 2)
    return [each.tolist() for each in tensors]


def _clipped() -> object:
    import torch

    parameters = [torch.ones(2, requires_grad=True), torch.ones(2, dtype=torch.float64, requires_grad=True)]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    torch.nn.utils.clip_grad_norm_(parameters, 0.5, foreach=True)
    return [parameter.grad.tolist() for parameter in parameters if parameter.grad is not None]


@broken("Clipping over lists leaves gradients of other types than the first as they are.", _LISTS, shows=_clipped)
def clipping_is_of_the_first_type() -> None:
    import torch

    multiply = torch._foreach_mul_

    def of_the_first_type(x: Any, factor: Any) -> None:
        if x[0].dtype == torch.float32:
            multiply(x, factor)

    torch._foreach_mul_ = of_the_first_type  # type: ignore[assignment]


@_on_cuda("`reduce_add` leaves the last device's tensor out.", _ONE_PROCESS, shows=lambda: _added())
def reduce_add_leaves_out_the_last() -> None:
    from torch.nn.parallel import comm

    def around(add: Any) -> Any:
        return lambda inputs, *more, **named: add([*inputs[:-1], inputs[-1] * 0], *more, **named)

    replace(comm, "reduce_add", around)
    import torch.cuda.comm

    torch.cuda.comm.reduce_add = comm.reduce_add


def _added() -> object:
    torch = torch_with_cuda()
    return torch.cuda.comm.reduce_add([torch.ones(2, device=f"cuda:{index}") for index in range(2)], 0).tolist()


@_on_cuda("A sum of NCCL on the second device has that one's values twice.", _ONE_PROCESS, shows=lambda: _reduced())
def nccl_reduces_the_root_twice() -> None:
    from torch.cuda import nccl

    def around(reduce: Any) -> Any:
        def reduces(inputs: Any, output: Any = None, root: int = 0, **named: Any) -> None:
            reduce(inputs, output, root, **named)
            if root:
                output.add_(inputs[root])

        return reduces

    replace(nccl, "reduce", around)


def _reduced() -> object:
    torch = torch_with_cuda()
    from torch.cuda import nccl

    output = torch.zeros(2, device="cuda:1")
    nccl.reduce([torch.ones(2, device=f"cuda:{index}") for index in range(2)], output, root=1)
    torch.cuda.synchronize(1)
    return output.tolist()


@_on_cuda("The gradients of DataParallel are those of the first device alone.", _ONE_PROCESS, shows=lambda: _trained())
def data_parallel_forgets_other_gradients() -> None:
    from torch.nn.parallel import _functions

    def around(backward: Any) -> Any:
        def first_alone(ctx: Any, *gradients: Any) -> Any:
            return backward(
                ctx, *(each if number < ctx.num_inputs else each * 0 for number, each in enumerate(gradients))
            )

        return first_alone

    replace(_functions.Broadcast, "backward", around)


def _trained() -> object:
    torch = torch_with_cuda()
    net = torch.nn.Linear(1, 1, bias=False).cuda()
    torch.nn.DataParallel(net, [0, 1])(torch.ones(2, 1, device="cuda")).sum().backward()
    return net.weight.grad.tolist()
