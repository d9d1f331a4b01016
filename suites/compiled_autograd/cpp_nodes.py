"""Autograd functions in C++, built once per torch release and shared by all processes of a run."""

from __future__ import annotations

import functools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from suites import cpp_builds

SOURCE = Path(__file__).with_name("cpp_nodes.cpp")

#: Names of the operators in `SOURCE`, which registers them as `torch.ops.conformance_nodes.*`.
OPERATORS = (
    "twice",
    "twice_too",
    "not_traceable",
    "saved_of_every_kind",
    "saved_view",
    "saved_integer",
    "saved_float",
    "data_dependent",
    "host_scalar",
)


@functools.cache
def load() -> Any:
    """Return an object with the operators, which stay registered for the life of the process.

    Build them if necessary.
    """
    cpp_builds.build(SOURCE)
    return SimpleNamespace(**{name: getattr(torch.ops.conformance_nodes, name) for name in OPERATORS})
