"""Users of collectives: DistributedDataParallel, sharded tensors, functional collectives, checkpoints."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from tests.breaks.breaks import Theme, replace
from tests.breaks.on_ranks import on_two_ranks

broken = Theme()

_PARALLEL, _SHARDING, _FUNCTIONAL, _CHECKPOINT = (
    f"suites/collectives/test_{name}.py" for name in ("data_parallel", "sharding", "functional", "checkpoint")
)


def paralleled(rank: Any) -> object:
    import gc

    import torch
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(rank.number)
    norm: Any = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    wrapped = DistributedDataParallel(norm, find_unused_parameters=True)
    rows = torch.arange(6.0).view(3, 2) * (rank.number + 1)
    with wrapped.no_sync():
        wrapped(rows).square().sum().backward()
    local = norm[0].weight.grad.tolist()
    wrapped(rows + 1).square().sum().backward()
    wrapped(rows)
    found = local, norm[0].weight.grad.tolist(), norm[0].weight.tolist(), norm[1].running_mean.tolist()
    spare = torch.nn.Linear(2, 2)
    spare.register_parameter("unused", torch.nn.Parameter(torch.ones(1)))
    text = ""
    partial: Any = DistributedDataParallel(spare, find_unused_parameters=True)
    try:
        for _ in range(2):
            partial(rows).sum().backward()
    except RuntimeError as error:
        text = str(error)[:40]
    del wrapped, norm, spare, partial
    gc.collect()
    return found, text


def sharded(rank: Any) -> object:
    import gc

    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard
    from torch.distributed.tensor import DTensor, Partial, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("all",))
    square = init_device_mesh("cpu", (2, 1), mesh_dim_names=("outer", "inner"))
    whole = torch.arange(6.0).view(3, 2)
    made: Any = distribute_tensor(whole, mesh, [Shard(0)])
    summed: Any = DTensor.from_local(whole * (rank.number + 1), mesh, [Partial()])
    torch.manual_seed(1)
    model: Any = fully_shard(torch.nn.Linear(2, 4), mesh=mesh)
    model.set_requires_gradient_sync(False)
    model(whole * (rank.number + 1)).square().sum().backward()
    silent = [parameter.grad is None for parameter in model.parameters()]
    model.set_requires_gradient_sync(True)
    model(whole * (rank.number + 1)).square().sum().backward()
    away: Any = fully_shard(torch.nn.Linear(2, 4), mesh=mesh, offload_policy=CPUOffloadPolicy(pin_memory=False))
    away(whole * (rank.number + 1)).square().sum().backward()
    gradients = [each.grad.full_tensor().tolist() for each in (*model.parameters(), *away.parameters())]
    found = (
        made.to_local().tolist(),
        made.full_tensor().tolist(),
        summed.redistribute(mesh, [Shard(1)]).to_local().tolist(),
        summed.full_tensor().tolist(),
        square.get_coordinate(),
        dist.get_process_group_ranks(square.get_group("outer")),
        (made.t() @ made).full_tensor().tolist(),
        silent,
        gradients,
    )
    del model, made, summed
    gc.collect()
    return found


def functional(rank: Any) -> object:
    import time
    import warnings

    import torch
    import torch.distributed as dist
    from torch.distributed import _functional_collectives as private
    from torch.distributed.nn import functional as differentiable

    warnings.simplefilter("ignore")
    collectives: Any = private
    group = dist.group.WORLD
    given = torch.arange(4.0) + rank.number
    total = collectives.all_reduce(given, "sum", group) + 0
    rows = collectives.all_gather_tensor(given.view(2, 2), 1, group) + 0
    pair = [each + 0 for each in collectives.all_reduce_coalesced([given, given * 2], "sum", group)]
    if rank.number == 0:
        time.sleep(0.3)
    early = collectives.all_reduce(given, "sum", group) + 0
    parameter = torch.ones(2, requires_grad=True)
    (differentiable.all_reduce(parameter) * (rank.number + 1)).sum().backward()
    assert parameter.grad is not None
    values = given, total, early, rows, *pair, parameter.grad
    return [value.tolist() for value in values]


def restored(rank: Any) -> object:
    import torch
    import torch.distributed.checkpoint as package
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    checkpoint: Any = package
    mesh = init_device_mesh("cpu", (2,))
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.25)
    model(torch.ones(2)).sum().backward()
    optimizer.step()
    weights, state = get_state_dict(model, optimizer)
    values = {"whole": distribute_tensor(torch.arange(6.0).view(3, 2), mesh, [Shard(0)]), "state": state}
    checkpoint.save(values, checkpoint_id=rank.folder / "saved")
    loaded: Any = {"whole": distribute_tensor(torch.zeros(3, 2), mesh, [Shard(1)]), "state": state}
    checkpoint.load(loaded, checkpoint_id=rank.folder / "saved")
    other = torch.nn.Linear(2, 2)
    again = torch.optim.Adam(other.parameters(), lr=0.5)
    set_state_dict(other, again, model_state_dict=weights, optim_state_dict=state)
    return loaded["whole"].full_tensor().tolist(), again.param_groups[0]["lr"], len(again.state)


_PARALLELED = on_two_ranks(paralleled, "torch.nn.parallel")
_SHARDED = on_two_ranks(sharded, "torch.distributed.fsdp", "torch.distributed.tensor")
_FUNCTIONALS = on_two_ranks(functional, "torch.distributed._functional_collectives", "torch.distributed.nn")
_RESTORED = on_two_ranks(restored, "torch.distributed.checkpoint.state_dict", "torch.distributed.tensor")


# DistributedDataParallel.


@broken("no_sync does not keep gradients local.", _PARALLEL, shows=_PARALLELED)
def no_sync_is_ignored() -> None:
    from torch.nn.parallel import DistributedDataParallel

    replace(DistributedDataParallel, "no_sync", lambda _: lambda self: nullcontext())


@broken("DistributedDataParallel begins with the weights of each rank.", _PARALLEL, shows=_PARALLELED)
def ddp_keeps_the_weights_of_each_rank() -> None:
    import torch.nn.parallel.distributed as module

    replace(module, "_sync_module_states", lambda _: lambda *_, **__: None)


@broken("DistributedDataParallel ignores find_unused_parameters.", _PARALLEL, shows=_PARALLELED)
def ddp_ignores_find_unused_parameters() -> None:
    from torch.nn.parallel import DistributedDataParallel

    def make(original: Any) -> Any:
        def init(self: Any, *more: Any, **named: Any) -> None:
            named.pop("find_unused_parameters", None)
            original(self, *more, **named)

        return init

    replace(DistributedDataParallel, "__init__", make)


@broken("DistributedDataParallel adds up gradients and does not average them.", _PARALLEL, shows=_PARALLELED)
def ddp_adds_up_gradients() -> None:
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    def make(original: Any) -> Any:
        def init(self: Any, module: Any, *more: Any, **named: Any) -> None:
            original(self, module, *more, **named)
            for parameter in module.parameters():
                parameter.register_hook(lambda grad: grad * dist.get_world_size())

        return init

    replace(DistributedDataParallel, "__init__", make)


@broken("DistributedDataParallel leaves buffers to each rank.", _PARALLEL, shows=_PARALLELED)
def ddp_does_not_broadcast_buffers() -> None:
    from torch.nn.parallel import DistributedDataParallel

    replace(DistributedDataParallel, "_sync_buffers", lambda _: lambda self, *more, **named: None)


# Sharding.


@broken("distribute_tensor divides columns where it is to divide rows.", _SHARDING, shows=_SHARDED)
def dtensor_has_another_placement() -> None:
    import torch.distributed.tensor as package
    from torch.distributed.tensor import Shard

    def make(original: Any) -> Any:
        def distribute(tensor: Any, mesh: Any = None, placements: Any = None, *more: Any, **named: Any) -> Any:
            wrong = [Shard(tensor.dim() - 1) if each == Shard(0) else each for each in placements or []]
            return original(tensor, mesh, wrong or placements, *more, **named)

        return distribute

    replace(package, "distribute_tensor", make)


@broken("A partial DTensor is averaged and not added up.", _SHARDING, shows=_SHARDED)
def dtensor_averages_partial_sums() -> None:
    from torch.distributed.tensor import Partial

    def make(original: Any) -> Any:
        def reduced(self: Any, tensor: Any, mesh: Any, *more: Any, **named: Any) -> Any:
            done = original(self, tensor, mesh, *more, **named)
            return done / mesh.size() if self.reduce_op == "sum" else done

        return reduced

    for name in ("_reduce_value", "_reduce_shard_value"):
        replace(Partial, name, make)


@broken("full_tensor of a sharded DTensor has the rows of the ranks in reverse order.", _SHARDING, shows=_SHARDED)
def full_tensor_reverses_rows() -> None:
    from torch.distributed.tensor import DTensor

    def make(original: Any) -> Any:
        def full(self: Any, *more: Any, **named: Any) -> Any:
            whole = original(self, *more, **named)
            return whole.flip(0) if self.placements[0].is_shard(0) else whole

        return full

    replace(DTensor, "full_tensor", make)


broken.edit(
    "offloaded_gradients_are_rounded",
    "fully_shard with an offload rounds gradients to 16 bits on their way to the host.",
    "torch.distributed.fsdp._fully_shard._fsdp_param_group:foreach_reduce",
    "new_sharded_grad = new_sharded_grad.to(",
    "new_sharded_grad = new_sharded_grad.bfloat16().to(new_sharded_grad.dtype).to(",
    _SHARDING,
    shows=_SHARDED,
)


@broken("get_coordinate of a DeviceMesh has its numbers in reverse order.", _SHARDING, shows=_SHARDED)
def mesh_coordinates_are_reversed() -> None:
    from torch.distributed.device_mesh import DeviceMesh

    replace(DeviceMesh, "get_coordinate", lambda original: lambda self: original(self) and original(self)[::-1])


@broken("The groups of a DeviceMesh are those of its other dimension.", _SHARDING, shows=_SHARDED)
def mesh_swaps_its_groups() -> None:
    from torch.distributed.device_mesh import DeviceMesh

    def make(original: Any) -> Any:
        def group(self: Any, mesh_dim: Any = None) -> Any:
            names = self.mesh_dim_names
            if self.ndim == 2 and mesh_dim in names:
                mesh_dim = names[1 - names.index(mesh_dim)]
            return original(self, mesh_dim)

        return group

    replace(DeviceMesh, "get_group", make)


@broken("fully_shard reduces gradients also where it is not to.", _SHARDING, shows=_SHARDED)
def fully_shard_always_reduces_gradients() -> None:
    from torch.distributed.fsdp import FSDPModule

    replace(FSDPModule, "set_requires_gradient_sync", lambda _: lambda self, *more, **named: None)


# Functional collectives and checkpoints.


@broken("A functional all_reduce writes its input.", _FUNCTIONAL, shows=_FUNCTIONALS)
def functional_all_reduce_is_in_place() -> None:
    import torch.distributed._functional_collectives as collectives

    def make(original: Any) -> Any:
        def all_reduce(given: Any, *more: Any, **named: Any) -> Any:
            made = original(given, *more, **named)
            given.data.copy_(made + 0)
            return made

        return all_reduce

    replace(collectives, "all_reduce", make)


@broken("A functional all_gather takes dimension 0 for each dimension.", _FUNCTIONAL, shows=_FUNCTIONALS)
def functional_all_gather_ignores_the_dimension() -> None:
    import torch.distributed._functional_collectives as collectives

    def make(original: Any) -> Any:
        def gather(given: Any, dim: int, *more: Any, **named: Any) -> Any:
            return original(given, 0, *more, **named)

        return gather

    for name in ("all_gather_single", "all_gather_tensor"):
        if hasattr(collectives, name):
            replace(
                collectives,
                name,
                lambda original: lambda given, _dim, *more, **named: original(given, 0, *more, **named),
            )


@broken("all_reduce_coalesced swaps its results.", _FUNCTIONAL, shows=_FUNCTIONALS)
def functional_coalesced_swaps_results() -> None:
    import torch.distributed._functional_collectives as collectives

    replace(collectives, "all_reduce_coalesced", lambda original: lambda *more, **named: original(*more, **named)[::-1])


@broken("The result of a functional collective is used before it is there.", _FUNCTIONAL, shows=_FUNCTIONALS)
def functional_result_is_used_early() -> None:
    from torch.distributed import _functional_collectives as collectives

    replace(collectives.AsyncCollectiveTensor, "trigger_wait", lambda _: lambda self: self.elem)


@broken("The gradient of a sum over ranks stays on its rank.", _FUNCTIONAL, shows=_FUNCTIONALS)
def gradient_of_all_reduce_is_local() -> None:
    import torch.distributed.nn.functional as functional_module

    replace(functional_module._AllReduce, "backward", lambda _: lambda ctx, grad: (None, None, grad))


@broken("A checkpoint is read without the last piece that a rank needs.", _CHECKPOINT, shows=_RESTORED)
def checkpoint_forgets_a_piece() -> None:
    import torch.distributed.checkpoint.planner_helpers as helpers

    def make(original: Any) -> Any:
        def pieces(*more: Any, **named: Any) -> Any:
            found = original(*more, **named)
            return found[:-1] if len(found) > 1 else found

        return pieces

    replace(helpers, "create_read_items_for_chunk_list", make)


@broken("A checkpoint has zeros for what the last rank has of a tensor.", _CHECKPOINT, shows=_RESTORED)
def checkpoint_saves_a_part_less() -> None:
    from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

    def make(original: Any) -> Any:
        def resolved(self: Any, item: Any) -> Any:
            import torch
            import torch.distributed as dist

            found, data = original(self, item), item.tensor_data
            last = dist.get_rank() == dist.get_world_size() - 1
            return torch.zeros_like(found) if last and data and data.chunk.sizes != data.size else found

        return resolved

    replace(DefaultSavePlanner, "resolve_data", make)


@broken("set_state_dict leaves the optimiser as it was.", _CHECKPOINT, shows=_RESTORED)
def set_state_dict_forgets_the_optimizer() -> None:
    import torch.distributed.checkpoint.state_dict as module

    replace(module, "_load_optim_state_dict", lambda _: lambda *_, **__: None)
