"""Functions whose graphs inductor partitions for CUDA graphs, into parts that are recorded and parts that are not.

Each function takes the result of its `make` for a call number. `parts` is the number of recorded parts, if it is part
of the contract. Work that cannot be captured (host work, copies to and from the host, data-dependent sizes, operators
with the tag) is left out, and all other work is in as few parts as its order allows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .operators import positive, twice, unsafe_add_, unsafe_twice
from .trees import whole_numbers

Make = Callable[[torch.device, int], Sequence[object]]


def one(device: torch.device, number: int) -> Sequence[object]:
    return [whole_numbers(8, 8, device=device, start=number)]


def one_in_turn(device: torch.device, number: int) -> Sequence[object]:
    """Return one of two tensors in turn, so that a data-dependent number or size takes two values."""
    return one(device, number % 2)


def two(device: torch.device, number: int) -> Sequence[object]:
    return [whole_numbers(8, 8, device=device, start=number), whole_numbers(8, 8, device=device, start=3 * number + 1)]


def with_host_tensor(device: torch.device, number: int) -> Sequence[object]:
    return [
        whole_numbers(8, 8, device=device, start=number),
        whole_numbers(8, 8, device=torch.device("cpu"), start=number + 2),
    ]


def with_both_of_the_host(device: torch.device, number: int) -> Sequence[object]:
    return [*with_host_tensor(device, number), torch.tensor(float(number + 1))]


def with_host_number(device: torch.device, number: int) -> Sequence[object]:
    return [whole_numbers(8, 8, device=device, start=number), torch.tensor(float(number + 1))]


def with_index(device: torch.device, number: int) -> Sequence[object]:
    return [whole_numbers(8, 8, device=device, start=number), torch.tensor([number % 8, 3], device=device)]


#: The number of different values that `with_number` returns.
NUMBERS = 6


def with_number(device: torch.device, number: int) -> Sequence[object]:
    return [whole_numbers(8, 8, device=device, start=number), number % NUMBERS + 2]


def varying(device: torch.device, number: int) -> Sequence[object]:
    return [whole_numbers(6 + 2 * (number % 2), 8, device=device, start=number)]


def copied_to_the_host(x: Tensor) -> Tensor:
    y = x + 1
    return (y.cpu() * 2).to(x.device) @ y


def host_and_device(x: Tensor, host: Tensor) -> tuple[Tensor, Tensor]:
    return x @ x + 1, host * 2 - 1


def interleaved(x: Tensor, host: Tensor) -> tuple[Tensor, Tensor]:
    """Return the results of two independent chains with interleaved steps."""
    for _ in range(3):
        x = (x % 3) @ (x % 2)
        host = (host % 3) @ (host % 2)
    return x, host


def host_number(x: Tensor, number: Tensor) -> Tensor:
    return x * number + 1


def host_numbers(x: Tensor, number: Tensor) -> Tensor:
    return (x * number) @ (x + number * 2) - number


def host_number_on_both(x: Tensor, number: Tensor) -> tuple[Tensor, Tensor]:
    return x * number, number + 1


def host_number_used_on_both(x: Tensor, host: Tensor, number: Tensor) -> tuple[Tensor, Tensor]:
    return x * number, host + number * 2


def host_number_out(x: Tensor, number: Tensor) -> tuple[Tensor, Tensor]:
    return x + number, number


def host_number_moved(x: Tensor, number: Tensor) -> Tensor:
    return x @ x + number.to(x.device)


def host_number_changed(x: Tensor, number: Tensor) -> Tensor:
    number.add_(1)
    return x * number


def host_sizes(x: Tensor, host: Tensor) -> tuple[Tensor, Tensor]:
    return x * host.shape[0] + 1, host + x.shape[1]


def reads_item(x: Tensor) -> Tensor:
    number = x.to(torch.int64).sum().item()
    return (x @ x) * number


def reads_float_item(x: Tensor) -> Tensor:
    """Compute with a floating-point number from `item`. Torch may leave the number on the device and use the tensor."""
    number = x.sum().item()
    return (x @ x) * number


def counts_nonzero(x: Tensor) -> tuple[Tensor, Tensor]:
    rows = torch.nonzero(x + 1)
    return rows.sum(0), x @ x


def picks_positive(x: Tensor) -> tuple[Tensor, Tensor]:
    return positive(x) + 1, x @ x


def several_unknown_sizes(x: Tensor) -> tuple[Tensor, ...]:
    values, counts = torch.unique(x + x[0, 0], return_counts=True)
    return values * 2, counts + 1, x @ x


def boolean_index(x: Tensor, y: Tensor) -> Tensor:
    z = (x + 1).clone()
    z[x > 0] = 5.0
    return z @ y


def boolean_index_of_a_part(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    z = x @ y
    z[y > 2] = 0.0
    return z + 1, z


def condition(x: Tensor, y: Tensor) -> Tensor:
    z = torch.cond(x.sum() > 0, lambda a, b: a + b, lambda a, b: a - b, (x, y))
    return z @ y


def lists(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    added = torch._foreach_add([x, y, x @ y], [y, x, x])
    host = added[0].cpu() + 1
    return (*torch._foreach_mul(added, 2), host)


def safe_operator(x: Tensor) -> Tensor:
    return twice(x @ x) + 1


def unsafe_operator(x: Tensor) -> Tensor:
    return unsafe_twice(x @ x) @ x


def unsafe_operator_by_itself(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Run an unsafe operator between others, without dependencies in either direction."""
    z = x @ x
    free = unsafe_twice(y)
    return (z % 5) @ x, free


def unsafe_operator_at_the_start(x: Tensor, y: Tensor) -> Tensor:
    z = (x @ x) % 3
    return z @ unsafe_twice(y)


def unsafe_change(x: Tensor, y: Tensor) -> Tensor:
    z = x @ y
    unsafe_add_(z, y)
    return z @ x


def unsafe_change_of_what_is_used_before(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    z = (x @ y) % 7
    before = z @ x
    unsafe_add_(z, y)
    return before, z @ x


def views_across(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x @ x
    part = y.t()[2:6]
    seen = unsafe_twice(part)
    return seen + part, y.reshape(-1)[3:] + 1


def memory_reused(x: Tensor, y: Tensor) -> Tensor:
    a = x @ y
    b = unsafe_twice(a) % 11
    c = b @ x % 11
    d = unsafe_twice(c) % 11
    return d @ y


def same_kernel_twice(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    a = x.sin() * 0 + x * 3
    b = unsafe_twice(a)
    return b, y.sin() * 0 + y * 3 + b.sum() * 0


def fused(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    a, b = (x + 1).sum(0), (x + 1).sum(1)
    return a, b, unsafe_twice(y) + a


def users_kernel(x: Tensor, y: Tensor) -> Tensor:
    from .kernels import add

    first = add(x, y)
    return add(unsafe_twice(first), x)


def any_size_and_host(x: Tensor) -> Tensor:
    y = x + 1
    host = y.cpu() * 2
    return host.to(x.device) * y


def any_size_unsafe(x: Tensor) -> Tensor:
    return unsafe_twice(x + x.shape[0]) * 3


def size_in_result(x: Tensor) -> tuple[Tensor, int]:
    return x * x.shape[0], x.shape[0] + 1


def size_of_cat(x: Tensor) -> Tensor:
    return torch.cat([x, unsafe_twice(x), x])[: x.shape[0] + 1] * 2


def strided_by_size(x: Tensor) -> Tensor:
    return unsafe_twice(x.t().contiguous()).t() + x


def index_of_index(x: Tensor, index: Tensor) -> Tensor:
    return unsafe_twice(x[index][:, index]) + 1


def index_changed(x: Tensor, index: Tensor) -> Tensor:
    y = x.clone()
    y[index] += 1
    return unsafe_twice(y)[index]


def number_argument(x: Tensor, number: int) -> Tensor:
    return unsafe_twice(x * number) + number


@dataclass(frozen=True)
class Split:
    """A function, the maker of its arguments, its inventory rows, the required settings, and known torch bugs."""

    work: Callable[..., Any]
    make: Make
    rows: tuple[str, ...]
    parts: int | None = None
    dynamic: bool = False
    capture: bool = False
    #: The number of different recordings of each part, by size or number.
    sizes: int = 1
    #: The reason why torch is expected to fail.
    wrong: str = ""


#: Reasons why torch 2.13 fails. The code that inductor generates for Triton has the same parts, inputs and outputs.
LIST_AS_INPUT = (
    "if an operation with several outputs is left out, their list becomes an input of the next part, which cannot be "
    "recorded (https://github.com/pytorch/pytorch/pull/196504 meets it too)"
)
NONE_AS_INPUT = (
    "a part that needs a number read back from the device has None as an extra input and cannot be recorded "
    "(https://github.com/pytorch/pytorch/pull/189123)"
)
HOST_NUMBER_AS_INPUT = (
    "a CPU scalar that host work needs too becomes an input of a part without a copy to the GPU, so the part cannot "
    "be recorded (not reported yet)"
)
MOVED_OUTPUT = (
    "a result computed only from a CPU scalar is computed and returned on the GPU, because the pass that moves it also "
    "moves outputs (ConstructorMoverPass; not reported yet)"
)


def row(*names: str) -> tuple[str, ...]:
    return tuple(f"test_cudagraph_trees::CudaGraphTreeTests::test_{name}" for name in names)


SPLITS: dict[str, Split] = {
    split.work.__name__: split
    for split in (
        Split(copied_to_the_host, one, row("graph_partition", "graph_partition_simple"), parts=2),
        Split(host_and_device, with_host_tensor, row("graph_partition_reorder_cpu_and_gpu"), parts=1),
        Split(interleaved, with_host_tensor, row("graph_partition_reorder_cpu_and_gpu_interleave")),
        Split(host_number, with_host_number, row("graph_partition_cpu_scalar1")),
        Split(
            host_numbers, with_host_number, row("graph_partition_cpu_scalar2", "graph_partition_cpu_scalar_multiple")
        ),
        Split(
            host_number_used_on_both,
            with_both_of_the_host,
            row("graph_partition_cpu_scalar3", "graph_partition_cpu_scalar_used_in_cpu_op"),
            wrong=HOST_NUMBER_AS_INPUT,
        ),
        Split(
            host_number_on_both,
            with_host_number,
            row("graph_partition_cpu_scalar3"),
            wrong=MOVED_OUTPUT,
        ),
        Split(host_number_out, with_host_number, row("graph_partition_cpu_scalar_as_output")),
        Split(
            host_number_moved,
            with_host_number,
            row("graph_partition_cpu_scalar4", "graph_partition_cpu_scalar_device_put"),
        ),
        Split(host_number_changed, with_host_number, row("graph_partition_cpu_scalar_mutation")),
        Split(host_sizes, with_host_tensor, row("graph_partition_cpu_tensor_symints")),
        Split(
            reads_item,
            one_in_turn,
            row("graph_partition_item", "graph_partition_unbacked_symint"),
            capture=True,
            sizes=2,
            wrong=NONE_AS_INPUT,
        ),
        Split(reads_float_item, one, row("graph_partition_item"), capture=True),
        Split(counts_nonzero, one, row("graph_partition_unbacked_symint"), capture=True),
        Split(picks_positive, one_in_turn, row("graph_partition_unbacked_symint"), capture=True, sizes=2),
        Split(
            several_unknown_sizes,
            one,
            row("graph_partition_unbacked_symint_multi_output_layout"),
            capture=True,
            wrong=LIST_AS_INPUT,
        ),
        Split(boolean_index, two, row("index_put_boolean_fallback_partitions_cudagraphs")),
        Split(boolean_index_of_a_part, two, row("index_put_boolean_mutation_across_partitions")),
        Split(condition, two, row("graph_partition_condition_op"), wrong=LIST_AS_INPUT),
        Split(lists, two, row("graph_partition_foreach_op")),
        Split(safe_operator, one, row("graph_partition_custom_op_no_split"), parts=1),
        Split(unsafe_operator, one, row("graph_partition_custom_op"), parts=2),
        Split(unsafe_operator_by_itself, two, row("graph_partition_reorder_custom_op_with_no_dependency"), parts=1),
        Split(unsafe_operator_at_the_start, two, row("graph_partition_reorder_custom_op_with_no_dependency1"), parts=1),
        Split(
            unsafe_change,
            two,
            row("graph_partition_custom_op_mutation", "graph_partition_custom_op_mutation_with_cudagraph_unsafe"),
            parts=2,
        ),
        Split(unsafe_change_of_what_is_used_before, two, row("graph_partition_custom_op_mutation_late_free")),
        Split(views_across, one, row("graph_partition_view_fallback")),
        Split(memory_reused, two, row("graph_partition_buffer_reuse"), parts=3),
        Split(same_kernel_twice, two, row("graph_partition_kernel_reuse")),
        Split(fused, two, row("graph_partition_fused_scheduler_node")),
        Split(users_kernel, two, row("graph_partition_user_defined_triton_kernel_reuse"), parts=2),
        Split(
            any_size_and_host,
            varying,
            row("graph_partition_dynamic_shapes", "graph_partition_cpu_op_and_dynamic_shapes"),
            dynamic=True,
            sizes=2,
        ),
        Split(any_size_unsafe, varying, row("graph_partition_custom_op_dynamoc_shapes"), dynamic=True, sizes=2),
        Split(size_in_result, varying, row("graph_partition_symint"), dynamic=True, sizes=2),
        Split(size_of_cat, varying, row("graph_partition_symint"), dynamic=True, sizes=2),
        Split(strided_by_size, varying, row("graph_partition_input_layout_symints"), dynamic=True, sizes=2),
        Split(index_of_index, with_index, row("graph_partition_symint_from_nested_indirect_indexing"), dynamic=True),
        Split(index_changed, with_index, row("graph_partition_symint_from_mutation_index"), dynamic=True),
        Split(number_argument, with_number, row("graph_partition_dynamic_scalar_inputs"), dynamic=True, sizes=NUMBERS),
    )
}
