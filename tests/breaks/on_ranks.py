"""Demonstrations on two ranks: forks of this process, in a process group with gloo, or with NCCL on devices."""

from __future__ import annotations

import dataclasses
import importlib
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.ranks.ranks import Ranks, RanksError, RankSettings


def on_two_ranks(body: Callable[[Any], object], *modules: str, cuda: bool = False) -> Callable[[], object]:
    """Return a demonstration: the results of two ranks, or the error of the rank that broke first.

    `modules` are imported before the ranks are forked, once for all demonstrations. `cuda`: each rank has a GPU.
    """
    settings = dataclasses.replace(_SETTINGS, device="cuda:{}".format) if cuda else _SETTINGS

    def show() -> object:
        for module in modules:
            importlib.import_module(module)
        with tempfile.TemporaryDirectory() as folder:
            ranks = Ranks(settings, Path(folder))
            try:
                return ranks.run(in_group, body.__module__, body.__name__, world=2, limit=35.0)
            except RanksError as error:
                line = str(error).splitlines()[0]
                kind, colon, text = line.partition(" raised ")[2].partition(": ")
                raise type(kind if colon else "RanksError", (Exception,), {})(text if colon else line) from None

    return show


def in_group(rank: Any, module: str, name: str) -> object:
    """Call a function of a module in a process group. Its objects are freed before the group."""
    import torch
    import torch.distributed as dist

    more: dict[str, Any] = {}
    if rank.device.type == "cuda":
        torch.cuda.set_device(rank.device)
        more["device_id"] = rank.device
    dist.init_process_group(
        "nccl" if more else "gloo",
        init_method=rank.rendezvous(),
        rank=rank.number,
        world_size=rank.world,
        **more,
    )
    result = getattr(importlib.import_module(module), name)(rank)
    if dist.is_initialized():
        dist.destroy_process_group()
    return result


_SETTINGS = RankSettings(
    device=lambda _: "cpu",
    devices=None,
    seed=1,
    deadline=None,
    limit=0.0,
    unsafe=lambda: "",
    loading=lambda: "",
    leftovers=lambda _: None,
    note=lambda *_: True,
)
