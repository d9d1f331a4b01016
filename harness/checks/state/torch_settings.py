"""State of torch and NumPy.

The tables of this module have all names of torch that the checks use, including private ones.

Nothing here imports torch or initialises a device: a library that is not imported, or a device that is not initialised,
has no state. A name that this release of torch lacks is left out; `missing_torch_names` returns these names. No release
provides the callbacks of RecordFunction, and observers added to it from C++.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from harness.checks.state.section import ABSENT, SectionValues, StateChange, StateRow, StateSection

_ATTENTION = "the priority order of attention backends"

#: A setting that one function reads, and one function with one argument sets: name, reader, setter ("" if none is
#: safe), and the value in a process that has not changed it (`ABSENT` if this depends on the machine or the build).
PlainRow = tuple[str, str, str, object]


def _pair(name: str, stem: str, initial: object) -> PlainRow:
    return name, f"_C._get_{stem}", f"_C._set_{stem}", initial


_PLAIN: tuple[PlainRow, ...] = (
    ("grad mode", "is_grad_enabled", "_C._set_grad_enabled", True),
    ("inference mode", "is_inference_mode_enabled", "", False),
    ("forward-mode differentiation", "_C._is_fwd_grad_enabled", "_C._set_fwd_grad_enabled", True),
    ("view replay in autograd", "_C._is_view_replay_enabled", "_C._set_view_replay_enabled", False),
    ("multithreading in autograd", "_C._is_multithreading_enabled", "_C._set_multithreading_enabled", True),
    ("gradient layout enforcement in autograd", "_C._is_grad_layout_enforcement_enabled", "", ABSENT),
    _pair("the autograd fallback mode", "autograd_fallback_mode", ABSENT),
    ("anomaly mode", "_C.is_anomaly_enabled", "_C.set_anomaly_enabled", False),
    ("the NaN check of anomaly mode", "_C.is_anomaly_check_nan_enabled", "", ABSENT),
    ("the permission for saved-tensor hooks", "_C._autograd._saved_tensors_hooks_is_enabled", "", True),
    ("the autocast cache", "is_autocast_cache_enabled", "set_autocast_cache_enabled", True),
    ("the default dtype", "get_default_dtype", "set_default_dtype", ABSENT),
    ("torch.is_warn_always_enabled()", "is_warn_always_enabled", "set_warn_always", False),
    ("deterministic algorithms", "_C._get_deterministic_algorithms", "", False),
    ("warn_only of deterministic algorithms", "_C._get_deterministic_algorithms_warn_only", "", False),
    _pair("deterministic filling of uninitialised memory", "deterministic_fill_uninitialized_memory", True),
    _pair("torch.backends.cudnn.enabled", "cudnn_enabled", True),
    _pair("torch.backends.cudnn.benchmark", "cudnn_benchmark", False),
    _pair("torch.backends.cudnn.deterministic", "cudnn_deterministic", False),
    _pair("the cuDNN depthwise kernel", "cudnn_depthwise_kernel", ABSENT),
    _pair("the MIOpen immediate mode", "miopen_immediate", ABSENT),
    (
        "reduced-precision reductions of cuBLAS in float16",
        "_C._get_cublas_allow_fp16_reduced_precision_reduction",
        "",
        ABSENT,
    ),
    (
        "reduced-precision reductions of cuBLAS in bfloat16",
        "_C._get_cublas_allow_bf16_reduced_precision_reduction",
        "",
        ABSENT,
    ),
    _pair("float16 accumulation of cuBLAS", "cublas_allow_fp16_accumulation", False),
    _pair("the SM carveout", "sm_carveout_experimental", None),
    _pair("the preferred BLAS library", "blas_preferred_backend", ABSENT),
    _pair("the preferred linear algebra library", "linalg_preferred_backend", ABSENT),
    _pair("the preferred flash attention of ROCm", "rocm_fa_preferred_backend", ABSENT),
    _pair("torch.backends.mkldnn.enabled", "mkldnn_enabled", True),
    _pair("torch.backends.mkldnn.deterministic", "mkldnn_deterministic", False),
    _pair("the enabled flag of NNPACK", "nnpack_enabled", ABSENT),
    _pair("reduced-precision reductions of the CPU in float16", "cpu_allow_fp16_reduced_precision_reduction", ABSENT),
    ("flash attention", "_C._get_flash_sdp_enabled", "_C._set_sdp_use_flash", True),
    ("memory-efficient attention", "_C._get_mem_efficient_sdp_enabled", "_C._set_sdp_use_mem_efficient", True),
    ("math attention", "_C._get_math_sdp_enabled", "_C._set_sdp_use_math", True),
    ("cuDNN attention", "_C._get_cudnn_sdp_enabled", "_C._set_sdp_use_cudnn", True),
    ("overrideable attention", "_C._get_overrideable_sdp_enabled", "_C._set_sdp_use_overrideable", True),
    _pair("reduced-precision reductions of math attention", "math_sdp_allow_fp16_bf16_reduction", False),
    _pair(_ATTENTION, "sdp_priority_order", ABSENT),
    ("the fast path of multi-head attention", "backends.mha.get_fastpath_enabled", "", True),
    _pair("torch.backends.quantized.engine", "qengine", ABSENT),
    (
        "the invariant checks of sparse tensors",
        "_C._check_sparse_tensor_invariants",
        "_C._set_check_sparse_tensor_invariants",
        False,
    ),
    _pair("implicit replication of DTensors", "dtensor_allow_implicit_replication", False),
    ("the number of intra-op threads", "get_num_threads", "set_num_threads", ABSENT),
    ("the number of inter-op threads", "get_num_interop_threads", "", ABSENT),
    ("the state of __torch_function__", "_C._get_torch_function_state", "", ABSENT),
    ("the included dispatch keys", "_C._dispatch_tls_local_include_set", "", ABSENT),
    ("the excluded dispatch keys", "_C._dispatch_tls_local_exclude_set", "", ABSENT),
    ("the nesting level of functorch transforms", "_C._functorch.maybe_current_level", "", None),
    ("the active profiler", "_C._autograd._profiler_type", "", ABSENT),
    _pair("TorchScript graph optimization", "graph_executor_optimize", True),
    ("the TensorExpr fuser of TorchScript", "_C._jit_texpr_fuser_enabled", "_C._jit_set_texpr_fuser_enabled", ABSENT),
    ("TorchScript fusion on the CPU", "_C._jit_can_fuse_on_cpu", "_C._jit_override_can_fuse_on_cpu", ABSENT),
    ("TorchScript fusion on GPUs", "_C._jit_can_fuse_on_gpu", "_C._jit_override_can_fuse_on_gpu", ABSENT),
    ("the LLGA fuser of TorchScript", "_C._jit_llga_enabled", "_C._jit_set_llga_enabled", ABSENT),
    *(
        (f"torch.__future__.get_{name}()", f"__future__.get_{name}", f"__future__.set_{name}", False)
        for name in ("overwrite_module_params_on_conversion", "swap_module_params_on_conversion")
    ),
    ("the sharing strategy of torch.multiprocessing", "multiprocessing.get_sharing_strategy", "", ABSENT),
    ("torch.distributed.is_initialized()", "distributed.is_initialized", "", False),
    ("the frame evaluation callback of TorchDynamo", "_C._dynamo.eval_frame.get_eval_frame_callback", "", None),
)

#: Settings that most modes of torch change as a side effect.
_DERIVED = ("the included dispatch keys", "the excluded dispatch keys")
#: (backend, operation) pairs with their own float32 precision.
_PRECISIONS = (
    ("generic", "all"),
    *((backend, operation) for backend in ("cuda", "mkldnn") for operation in ("all", "matmul", "conv", "rnn")),
)
#: The older interface of the same settings, for releases without `_PRECISIONS`. If both interfaces are in use, reading
#: these is useless and raises an error.
_OLD_PRECISIONS = (
    ("torch.get_float32_matmul_precision()", "get_float32_matmul_precision", "set_float32_matmul_precision"),
    ("torch.backends.cuda.matmul.allow_tf32", "_C._get_cublas_allow_tf32", "_C._set_cublas_allow_tf32"),
    ("torch.backends.cudnn.allow_tf32", "_C._get_cudnn_allow_tf32", "_C._set_cudnn_allow_tf32"),
)
_AUTOCAST = ("cpu", "cuda", "xpu", "mps", "hpu", "mtia", "xla", "privateuseone")
#: Modules, and their dictionaries of hooks that are called for every module or optimiser.
_GLOBAL_HOOKS = (
    *(("torch.nn.modules.module", f"_global_{name}_hooks") for name in ("forward", "forward_pre", "backward")),
    ("torch.nn.modules.module", "_global_backward_pre_hooks"),
    *(("torch.nn.modules.module", f"_global_{name}_registration_hooks") for name in ("buffer", "module", "parameter")),
    *(("torch.optim.optimizer", f"_global_optimizer_{name}_hooks") for name in ("pre", "post")),
)
#: Names that special rows use, for `missing_torch_names`.
_OTHERS = (
    *("_C._get_fp32_precision_getter", "_C._set_fp32_precision_setter", "_C._set_deterministic_algorithms"),
    *("_C._len_torch_function_stack", "_C._get_function_stack_at", "_C._len_torch_dispatch_stack"),
    *("_C._get_dispatch_stack_at", "_C._autograd._top_saved_tensors_default_hooks"),
    *("_GLOBAL_DEVICE_CONTEXT", "_tensor_str.PRINT_OPTS", "library._defs", "library._impls"),
)


def find_torch_attribute(torch: Any, path: str) -> Any:
    """Return the object at the dotted `path` below torch, or `ABSENT`. Import nothing."""
    attribute = torch
    for step in path.split("."):
        attribute = getattr(attribute, step, ABSENT)
    return attribute


def missing_torch_names() -> frozenset[str]:
    """Return the names that this module uses and that this release or build of torch lacks, without those of CUDA."""
    torch = sys.modules["torch"]
    plain = {name for _, reader, setter, _ in _PLAIN for name in (reader, setter) if name}
    old = (
        set()
        if find_torch_attribute(torch, "_C._get_fp32_precision_getter") is not ABSENT
        else {name for row in _OLD_PRECISIONS for name in row[1:]}
    )
    hooks = {
        f"{module}.{name}".removeprefix("torch.")
        for module, name in _GLOBAL_HOOKS
        if module in sys.modules and not hasattr(sys.modules[module], name)
    }
    return frozenset(
        {name for name in plain | old | set(_OTHERS) if find_torch_attribute(torch, name) is ABSENT} | hooks
    )


def torch_settings() -> Sequence[StateRow] | None:
    """Return settings of torch that need no device."""
    torch = sys.modules.get("torch")
    if torch is None or getattr(torch, "_tensor_str", None) is None:  # the import is not complete, or has failed
        return None
    rows = rows_from_table(torch, _PLAIN)
    rows += [*_precision_rows(torch), *_autocast_rows(torch), *_hook_rows()]
    rows += [
        StateRow("the default device", functools.partial(_default_device, torch), torch.set_default_device, None),
        StateRow("the modes of __torch_function__", functools.partial(_function_modes, torch._C), None, ()),
        StateRow("the modes of __torch_dispatch__", functools.partial(_dispatch_modes, torch._C), None, ()),
        StateRow(
            "the print options of torch",
            vars(torch._tensor_str.PRINT_OPTS).copy,
            vars(torch._tensor_str.PRINT_OPTS).update,
        ),
        StateRow("the tracing context of torch.compile", functools.partial(_tracing_context, torch), None, None),
        StateRow("the log levels and artifacts of torch", functools.partial(_log_state, torch)),
        StateRow("the default saved-tensor hooks", functools.partial(_saved_tensor_hooks, torch._C), None, ()),
        StateRow(
            "the safe globals of torch.load",
            lambda: tuple(torch.serialization.get_safe_globals()),
            None,
            (),
            _types_of_imports,
        ),
    ]
    return [_refined(torch, row) for row in rows]


def rows_from_table(torch: Any, table: Sequence[PlainRow]) -> list[StateRow]:
    """Return rows from a table of name, path of the reader, path of the setter or "", and initial value."""
    rows = []
    for name, reader, setter, initial in table:
        read, restore = find_torch_attribute(torch, reader), find_torch_attribute(torch, setter) if setter else ABSENT
        if read is not ABSENT:
            rows.append(StateRow(name, read, None if restore is ABSENT else restore, initial))
    return rows


def _refined(torch: Any, row: StateRow) -> StateRow:
    """Return the row with its special rules, if any.

    There are derived rows, a row that torch itself changes, and two rows with one common setter, which keeps the value
    of the other row.
    """
    if row.name in _DERIVED:
        return replace(row, derived=True)
    if row.name == _ATTENTION:
        return replace(row, ignore=functools.partial(_cudnn_goes_first, torch))
    setter = find_torch_attribute(torch, "_C._set_deterministic_algorithms")
    if setter is ABSENT:
        return row
    if row.name == "deterministic algorithms":
        other = torch.is_deterministic_algorithms_warn_only_enabled
        return replace(row, restore=lambda old: setter(old, warn_only=other()))
    if row.name == "warn_only of deterministic algorithms":
        mode = torch.are_deterministic_algorithms_enabled
        return replace(row, restore=lambda old: setter(mode(), warn_only=old))
    return row


def _cudnn_goes_first(torch: Any, old: object, new: object, imported: frozenset[str]) -> bool:  # noqa: ARG001
    """Ignore that torch puts cuDNN first on some GPUs, once per process, when it first chooses a backend."""
    cudnn = int(torch._C._SDPBackend.CUDNN_ATTENTION)
    return (
        torch.cuda.is_initialized()
        and isinstance(old, list)
        and new == [cudnn, *(backend for backend in old if backend != cudnn)]
    )


def _precision_rows(torch: Any) -> list[StateRow]:
    read = find_torch_attribute(torch, "_C._get_fp32_precision_getter")
    write = find_torch_attribute(torch, "_C._set_fp32_precision_setter")
    if read is ABSENT or write is ABSENT:
        return rows_from_table(torch, [(*row, ABSENT) for row in _OLD_PRECISIONS])
    return [
        StateRow(
            f"fp32_precision of {operation} in the {backend} backend",
            functools.partial(read, backend, operation),
            functools.partial(write, backend, operation),
        )
        for backend, operation in _PRECISIONS
    ]


def _autocast_rows(torch: Any) -> list[StateRow]:
    bind = functools.partial
    depth = bind(_autocast_depth, torch), bind(_set_autocast_depth, torch)
    rows = [StateRow("the nesting depth of autocast", *depth, 0)]
    for kind in _AUTOCAST:
        switch = bind(torch.is_autocast_enabled, kind), bind(torch.set_autocast_enabled, kind)
        dtype = bind(torch.get_autocast_dtype, kind), bind(torch.set_autocast_dtype, kind)
        rows += [StateRow(f"autocast on {kind}", *switch, False), StateRow(f"the dtype of autocast on {kind}", *dtype)]
    return rows


def _autocast_depth(torch: Any) -> int:
    """Return how many regions of autocast the thread is in. Only leaving the outermost one drops converted weights."""
    torch.autocast_increment_nesting()
    depth: int = torch.autocast_decrement_nesting()
    return depth


def _set_autocast_depth(torch: Any, wanted: int) -> None:
    depth = _autocast_depth(torch)
    for _ in range(depth, wanted):
        torch.autocast_increment_nesting()
    for _ in range(wanted, depth):
        torch.autocast_decrement_nesting()
    torch.clear_autocast_cache()


def _hook_rows() -> list[StateRow]:
    rows = []
    for module, name in _GLOBAL_HOOKS:
        hooks = getattr(sys.modules.get(module), name, None)
        if isinstance(hooks, dict):
            rows.append(_hook_row(f"the hooks of {module}.{name}", hooks))
    return rows


def _hook_row(name: str, hooks: dict[Any, Any]) -> StateRow:
    def restore(old: object) -> None:
        for key in [key for key, hook in hooks.items() if isinstance(old, tuple) and hook not in old]:
            del hooks[key]

    return StateRow(name, lambda: tuple(hooks.values()), restore, ())


def _default_device(torch: Any) -> object:
    """Return the default device as it was set. The public function of torch would create a tensor."""
    context = getattr(find_torch_attribute(torch, "_GLOBAL_DEVICE_CONTEXT"), "device_context", None)
    return None if context is None else context.device


def _function_modes(binding: Any) -> tuple[object, ...]:
    """Return the modes on the stack, without the mode of the default device, which has its own row."""
    count = binding._len_torch_function_stack()
    if not count:
        return ()
    modes = [binding._get_function_stack_at(index) for index in range(count)]
    return tuple(mode for mode in modes if type(mode).__name__ != "DeviceContext")


def _dispatch_modes(binding: Any) -> tuple[object, ...]:
    count = binding._len_torch_dispatch_stack()
    return tuple(binding._get_dispatch_stack_at(index) for index in range(count)) if count else ()


def _saved_tensor_hooks(binding: Any) -> tuple[object, ...]:
    hooks = binding._autograd._top_saved_tensors_default_hooks(True)
    return () if hooks is None else tuple(hooks)


def _tracing_context(torch: Any) -> object:
    return getattr(find_torch_attribute(torch, "_guards._TLS"), "tracing_context", None)


def _log_state(torch: Any) -> object:
    state = find_torch_attribute(torch, "_logging._internal.log_state")
    return [getattr(state, "log_qname_to_level", {}).copy(), set(getattr(state, "artifact_names", ()))]


def _types_of_imports(old: object, new: object, imported: frozenset[str]) -> bool:
    """Ignore types that a library allows in torch.load when it is imported."""
    if not isinstance(old, tuple) or not isinstance(new, tuple):
        return False
    packages = {module.partition(".")[0] for module in imported}
    added = [kind for kind in new if kind not in old]
    return len(added) == len(new) - len(old) and all(
        getattr(kind, "__module__", "").partition(".")[0] in packages for kind in added
    )


def compiler_settings() -> Sequence[StateRow] | None:
    """Return settings of torch.compile outside its configuration modules, once it is imported."""
    frames = sys.modules.get("torch._dynamo.eval_frame")
    backward = sys.modules.get("torch._dynamo.compiled_autograd")
    registry = sys.modules.get("torch._dynamo.backends.registry")
    if frames is None or backward is None or registry is None:
        return None
    stance = getattr(frames, "DynamoStance", None)
    rows = [
        StateRow(f"{name} of compiled autograd", functools.partial(getattr, backward, name), None, False)
        for name in (
            "compiled_autograd_enabled",
            "compiled_autograd_enabled_force_eager",
            "in_compiled_autograd_region",
        )
        if hasattr(backward, name)
    ]
    if stance is not None and hasattr(frames, "_stance"):
        rows.append(StateRow("the stance of torch.compile", lambda: frames._stance, frames._set_stance, stance()))
    if isinstance(backends := getattr(registry, "_BACKENDS", None), dict):
        rows.append(
            StateRow("the registered backends of torch.compile", lambda: tuple(backends), ignore=_imported_something)
        )
    return rows


def _imported_something(old: object, new: object, imported: frozenset[str]) -> bool:  # noqa: ARG001
    return bool(imported)


def numpy_settings() -> Sequence[StateRow] | None:
    """Return NumPy's handling of floating-point errors, and its print options."""
    numpy = sys.modules.get("numpy")
    if numpy is None or getattr(numpy, "set_printoptions", None) is None:
        return None
    return [
        StateRow("numpy.geterr()", numpy.geterr, lambda old: numpy.seterr(**old)),
        StateRow("numpy.geterrcall()", numpy.geterrcall, numpy.seterrcall, None),
        StateRow("the print options of NumPy", numpy.get_printoptions, lambda old: numpy.set_printoptions(**old)),
    ]


class OperatorRegistrations(StateSection):
    """Operators defined and implemented through `torch.library`, by name.

    There are thousands of registrations, so they are compared only if their number has changed. If one registration is
    removed and another added, this goes unnoticed. Registrations are not restored: only the library object that made
    one can remove it.
    """

    def __init__(self) -> None:
        self._sizes: tuple[int, ...] = ()
        self._last: dict[str, object] = {}

    def read(self) -> SectionValues:
        library = sys.modules.get("torch.library")
        definitions, implementations = getattr(library, "_defs", ()), getattr(library, "_impls", ())
        sizes = (len(definitions), len(implementations))
        if sizes != self._sizes:
            self._sizes = sizes
            self._last = {f"{_OPERATOR}{''.join(name.split())}": "registered" for name in definitions}
            self._last |= {_implementation(name): "registered" for name in implementations}
        return self._last

    def changes(self, before: SectionValues, after: SectionValues, imported: frozenset[str]) -> list[StateChange]:
        if before is after or "torch.library" in imported:
            return []
        changes = [StateChange(name, before[name], ABSENT) for name in sorted(before.keys() - after.keys())]
        added = after.keys() - before.keys()
        for name in sorted(added):
            if name.startswith(_OPERATOR):
                key, operator = "", name.removeprefix(_OPERATOR)
            else:
                key, _, operator = name.removeprefix("the ").partition(_OF)
                if f"{_OPERATOR}{operator}" in added:
                    continue  # one line per operator is enough
            if not _is_of_a_library(_origin(operator, key), imported):
                changes.append(StateChange(name, ABSENT, after[name]))
        return changes


_OPERATOR, _OF = "the operator ", " implementation of "


def _implementation(key: str) -> str:
    """Return the name of a change from torch's key: ``namespace/operator.overload/dispatch key``."""
    namespace, _, rest = key.partition("/")
    operator, _, dispatch_key = rest.rpartition("/")
    return f"the {dispatch_key}{_OF}{namespace}::{operator.strip()}"


def _origin(operator: str, key: str) -> str:
    """Return the file that defined an operator, or its implementation for a dispatch key; "" if torch does not know
    it.
    """
    torch = sys.modules["torch"]
    definitions, dump = (
        find_torch_attribute(torch, "_library.custom_ops.OPDEFS"),
        find_torch_attribute(torch, "_C._dispatch_dump"),
    )
    definition = None if definitions is ABSENT else definitions.get(operator)
    if definition is not None and not key:
        code = getattr(getattr(definition, "_init_fn", None), "__code__", None)
        return code.co_filename if code is not None else ""
    head = key or "debug"
    try:
        lines = [] if dump is ABSENT else dump(operator).splitlines()
    except RuntimeError:  # torch does not know the name
        lines = []
    for line in lines:
        if line.startswith((f"{head}: registered at ", f"{head}[alias]: registered at ")):
            file: str = line.partition(" registered at ")[2].partition(" :: ")[0].rpartition(":")[0]
            break
    else:
        return ""
    if key == "Meta" and file.endswith("torch/library.py"):  # torch/library.py registers it for its caller
        entry = find_torch_attribute(torch, "_library.simple_registry.singleton").find(operator)
        file = str(getattr(entry.fake_impl.kernel, "source", "")).rpartition(":")[0]
    return file


def _is_of_a_library(file: str, imported: frozenset[str]) -> bool:
    """Return whether this file belongs to torch or to a module that was just imported.

    Their registrations are expected.

    `torch/library.py` and `torch/_library` register operators for other code. Their caller is unknown, and assumed to
    be torch if a module of torch was imported.
    """
    folder = f"{os.path.dirname(sys.modules['torch'].__file__ or '')}{os.sep}"
    if file.startswith(folder):
        for_caller = file.removeprefix(folder).startswith(("library.py", "_library"))
        return not for_caller or any(name.startswith("torch.") for name in imported)
    return bool(file) and any(getattr(sys.modules.get(name), "__file__", None) == file for name in imported)
