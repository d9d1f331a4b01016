"""Inductor's generator of C++ code for the CPU, used for simulated devices.

The generated code is that for the CPU: loops over addresses. `kernels` compiles and launches it. Inductor's other code
for CUDA is unchanged: partitions, streams, guards, CUDA graphs, and the operators that it calls.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch._inductor.config as config
from torch._inductor import codecache, cpu_vec_isa
from torch._inductor.codegen import common, cpp, cpp_wrapper_gpu, wrapper, wrapper_fxir
from torch._inductor.utils import IndentedBuffer, Placeholder, get_fused_kernel_name
from torch._inductor.virtualized import V

from harness.sim.simcuda.compiler import accesses

#: The name of `kernels.load_kernel` in generated modules.
_LOAD = "load_simcuda_kernel"


class _Proxy(cpp.CppKernelProxy):
    """A kernel that one thread runs, without vector instructions. Its compilation takes a fraction of the time."""

    def decide_parallel_depth(self, max_parallel_depth: cpp.ParallelDepth, threads: int) -> cpp.ParallelDepth:  # noqa: ARG002
        # If a thread of the runtime started OpenMP threads, it would keep them.
        return cpp.ParallelDepth(parallel_depth=0, start_depth=max_parallel_depth.start_depth)


class SimcudaScheduling(cpp.CppScheduling):
    """Generates the kernels of a graph for a device, and their definitions."""

    kernel_proxy_cls = _Proxy

    def codegen_node(self, node: Any) -> None:
        with no_vectors():
            super().codegen_node(node)
        # One kernel per node, as with Triton. The generator for the CPU would collect more, and call the last kernel of
        # a graph after the guard of its device, where the default stream may be that of another device.
        self._set_flush_status(True)

    def define_kernel(self, src_code: str, nodes: Sequence[Any], kernel_args: Any = None) -> str:
        code = V.graph.wrapper_code
        if src_code in code.src_to_kernel:
            return str(code.src_to_kernel[src_code])
        fused = get_fused_kernel_name(nodes, config.cpp.descriptive_names) if config.cpp.descriptive_names else ""
        name = "_".join(["cpp", fused, code.next_kernel_suffix()])
        code.src_to_kernel[src_code] = name
        source = src_code.replace(str(Placeholder.KERNEL_NAME), "kernel").replace(
            str(Placeholder.DESCRIPTIVE_NAME), name
        )
        definition = IndentedBuffer()
        definition.writeline(f"{_LOAD}({name!r}, r'''")
        definition.splice(source, strip=True)
        args = self.kernel_group.args if kernel_args is None else kernel_args
        uses = accesses.describe_accesses(args, nodes, V.graph.scheduler.mutation_real_name)
        plain = {place: [(write, layout and tuple(layout)) for write, layout in each] for place, each in uses.items()}
        definition.writeline(f"''', {plain!r})")
        code.add_import_once(f"from harness.sim.simcuda.compiler.kernels import load_kernel as {_LOAD}")
        code.define_kernel(name, definition.getvalue(), gpu=False)
        return name


def register_scheduling() -> None:
    """Register the generator with Inductor for CUDA."""
    install_choice()
    common.register_backend_for_device(
        "cuda",
        SimcudaScheduling,
        wrapper.PythonWrapperCodegen,
        cpp_wrapper_gpu.CppWrapperGpu,
        wrapper_fxir.WrapperFxCodegen,
    )


class _State(threading.local):
    """Whether this thread generates or compiles code for simulated devices."""

    plain = False


_state = _State()


@contextmanager
def no_vectors() -> Iterator[None]:
    """Make Inductor choose no vector instructions in this thread, and not look for any.

    Inductor detects the available kinds by compiling and loading a program for each, which takes half a minute.
    """
    before, _state.plain = _state.plain, True
    try:
        yield
    finally:
        _state.plain = before


def _choice(pick: Callable[[], cpu_vec_isa.VecISA]) -> Callable[[], cpu_vec_isa.VecISA]:
    def chosen() -> cpu_vec_isa.VecISA:
        return cpu_vec_isa.invalid_vec_isa if _state.plain else pick()

    return chosen


def install_choice() -> None:
    """Make Inductor's choice respect `no_vectors`, under both of its names."""
    chosen = _choice(cpu_vec_isa.pick_vec_isa)
    cpu_vec_isa.pick_vec_isa = chosen
    codecache.pick_vec_isa = chosen  # type: ignore[attr-defined]
