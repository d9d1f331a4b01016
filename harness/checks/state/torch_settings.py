"""State of torch and NumPy. All names of torch that the checks use, private ones too, are in this module's tables.

Nothing here imports torch or wakes a device: what is not imported, or not awake, has no state. A name that this release
of torch lacks is left out; `missing_names` says which. What cannot be read at all in any release: the callbacks of
RecordFunction, observers added to it from C++, and the depth of autocast's nesting.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from harness.checks.state.section import ABSENT, Change, Flat, Row, Scene, Values

#: Settings that one function reads and one function of one argument sets: what it is, reader, setter ("" where nothing
#: sets it safely), the value in a process that has not touched it (`ABSENT` where that depends on machine or build).
_PLAIN: tuple[tuple[str, str, str, object], ...] = (
    ("grad mode", "is_grad_enabled", "_C._set_grad_enabled", True),
    ("inference mode", "is_inference_mode_enabled", "", False),
    ("forward-mode differentiation", "_C._is_fwd_grad_enabled", "_C._set_fwd_grad_enabled", True),
    ("view replay in autograd", "_C._is_view_replay_enabled", "_C._set_view_replay_enabled", False),
    ("multithreading in autograd", "_C._is_multithreading_enabled", "_C._set_multithreading_enabled", True),
    ("autograd's enforcing of gradient layouts", "_C._is_grad_layout_enforcement_enabled", "", ABSENT),
    ("autograd's fallback mode", "_C._get_autograd_fallback_mode", "_C._set_autograd_fallback_mode", ABSENT),
    ("anomaly mode", "_C.is_anomaly_enabled", "_C.set_anomaly_enabled", False),
    ("anomaly mode's check for NaN", "_C.is_anomaly_check_nan_enabled", "", ABSENT),
    ("saved-tensor hooks' being allowed", "_C._autograd._saved_tensors_hooks_is_enabled", "", True),
    ("autocast's cache", "is_autocast_cache_enabled", "set_autocast_cache_enabled", True),
    ("the default dtype", "get_default_dtype", "set_default_dtype", ABSENT),
    ("warnings each time (set_warn_always)", "is_warn_always_enabled", "set_warn_always", False),
    ("deterministic algorithms", "_C._get_deterministic_algorithms", "", False),
    ("deterministic algorithms' warn_only", "_C._get_deterministic_algorithms_warn_only", "", False),
    (
        "deterministic filling of uninitialised memory",
        "_C._get_deterministic_fill_uninitialized_memory",
        "_C._set_deterministic_fill_uninitialized_memory",
        True,
    ),
    ("cuDNN's being enabled", "_C._get_cudnn_enabled", "_C._set_cudnn_enabled", True),
    ("cuDNN's benchmark mode", "_C._get_cudnn_benchmark", "_C._set_cudnn_benchmark", False),
    ("cuDNN's deterministic mode", "_C._get_cudnn_deterministic", "_C._set_cudnn_deterministic", False),
    ("cuDNN's depthwise kernel", "_C._get_cudnn_depthwise_kernel", "_C._set_cudnn_depthwise_kernel", ABSENT),
    ("MIOpen's immediate mode", "_C._get_miopen_immediate", "_C._set_miopen_immediate", ABSENT),
    (
        "cuBLAS's reduced-precision reductions in float16",
        "_C._get_cublas_allow_fp16_reduced_precision_reduction",
        "",
        ABSENT,
    ),
    (
        "cuBLAS's reduced-precision reductions in bfloat16",
        "_C._get_cublas_allow_bf16_reduced_precision_reduction",
        "",
        ABSENT,
    ),
    (
        "cuBLAS's accumulation in float16",
        "_C._get_cublas_allow_fp16_accumulation",
        "_C._set_cublas_allow_fp16_accumulation",
        False,
    ),
    ("the carve-out of multiprocessors", "_C._get_sm_carveout_experimental", "_C._set_sm_carveout_experimental", None),
    ("the preferred BLAS library", "_C._get_blas_preferred_backend", "_C._set_blas_preferred_backend", ABSENT),
    (
        "the preferred linear algebra library",
        "_C._get_linalg_preferred_backend",
        "_C._set_linalg_preferred_backend",
        ABSENT,
    ),
    (
        "the preferred flash attention of ROCm",
        "_C._get_rocm_fa_preferred_backend",
        "_C._set_rocm_fa_preferred_backend",
        ABSENT,
    ),
    ("oneDNN's being enabled", "_C._get_mkldnn_enabled", "_C._set_mkldnn_enabled", True),
    ("oneDNN's deterministic mode", "_C._get_mkldnn_deterministic", "_C._set_mkldnn_deterministic", False),
    ("NNPACK's being enabled", "_C._get_nnpack_enabled", "_C._set_nnpack_enabled", ABSENT),
    (
        "the CPU's reduced-precision reductions in float16",
        "_C._get_cpu_allow_fp16_reduced_precision_reduction",
        "_C._set_cpu_allow_fp16_reduced_precision_reduction",
        ABSENT,
    ),
    ("flash attention", "_C._get_flash_sdp_enabled", "_C._set_sdp_use_flash", True),
    ("memory-efficient attention", "_C._get_mem_efficient_sdp_enabled", "_C._set_sdp_use_mem_efficient", True),
    ("the math back end of attention", "_C._get_math_sdp_enabled", "_C._set_sdp_use_math", True),
    ("cuDNN's attention", "_C._get_cudnn_sdp_enabled", "_C._set_sdp_use_cudnn", True),
    ("the overrideable attention", "_C._get_overrideable_sdp_enabled", "_C._set_sdp_use_overrideable", True),
    (
        "reduced-precision reductions in the math back end of attention",
        "_C._get_math_sdp_allow_fp16_bf16_reduction",
        "_C._set_math_sdp_allow_fp16_bf16_reduction",
        False,
    ),
    ("the order of attention back ends", "_C._get_sdp_priority_order", "_C._set_sdp_priority_order", ABSENT),
    ("the fast path of multi-head attention", "backends.mha.get_fastpath_enabled", "", True),
    ("the engine of quantised operators", "_C._get_qengine", "_C._set_qengine", ABSENT),
    (
        "the checks of sparse tensors",
        "_C._check_sparse_tensor_invariants",
        "_C._set_check_sparse_tensor_invariants",
        False,
    ),
    (
        "implicit replication of distributed tensors",
        "_C._get_dtensor_allow_implicit_replication",
        "_C._set_dtensor_allow_implicit_replication",
        False,
    ),
    ("the number of threads", "get_num_threads", "set_num_threads", ABSENT),
    ("the number of threads between operators", "get_num_interop_threads", "", ABSENT),
    ("the state of __torch_function__", "_C._get_torch_function_state", "", ABSENT),
    ("the included dispatch keys", "_C._dispatch_tls_local_include_set", "", ABSENT),
    ("the excluded dispatch keys", "_C._dispatch_tls_local_exclude_set", "", ABSENT),
    ("the level of functorch transforms", "_C._functorch.maybe_current_level", "", None),
    ("the running profiler", "_C._autograd._profiler_type", "", ABSENT),
    ("TorchScript's optimising", "_C._get_graph_executor_optimize", "_C._set_graph_executor_optimize", True),
    ("TorchScript's fuser", "_C._jit_texpr_fuser_enabled", "_C._jit_set_texpr_fuser_enabled", ABSENT),
    ("TorchScript's fusing on the CPU", "_C._jit_can_fuse_on_cpu", "_C._jit_override_can_fuse_on_cpu", ABSENT),
    ("TorchScript's fusing on GPUs", "_C._jit_can_fuse_on_gpu", "_C._jit_override_can_fuse_on_gpu", ABSENT),
    ("TorchScript's LLGA fuser", "_C._jit_llga_enabled", "_C._jit_set_llga_enabled", ABSENT),
    (
        "overwriting of parameters in conversions",
        "__future__.get_overwrite_module_params_on_conversion",
        "__future__.set_overwrite_module_params_on_conversion",
        False,
    ),
    (
        "swapping of parameters in conversions",
        "__future__.get_swap_module_params_on_conversion",
        "__future__.set_swap_module_params_on_conversion",
        False,
    ),
    ("the sharing of tensors between processes", "multiprocessing.get_sharing_strategy", "", ABSENT),
    ("the default process group's being there", "distributed.is_initialized", "", False),
    ("the frame evaluation of torch's compiler", "_C._dynamo.eval_frame.get_eval_frame_callback", "", None),
)

#: Settings that most modes of torch change beside what they are for.
_ECHOES = ("the included dispatch keys", "the excluded dispatch keys")
#: (back end, operation) whose precision of float32 is set on its own.
_PRECISIONS = (
    ("generic", "all"),
    *((backend, operation) for backend in ("cuda", "mkldnn") for operation in ("all", "matmul", "conv", "rnn")),
)
#: Settings that older ways of saying it reach, for releases without `_PRECISIONS`: reading them says nothing, and
#: raises an error, where both ways are in use.
_OLD_PRECISIONS = (
    ("the precision of float32 matrix products", "get_float32_matmul_precision", "set_float32_matmul_precision"),
    ("cuBLAS's TF32", "_C._get_cublas_allow_tf32", "_C._set_cublas_allow_tf32"),
    ("cuDNN's TF32", "_C._get_cudnn_allow_tf32", "_C._set_cudnn_allow_tf32"),
)
_AUTOCAST = ("cpu", "cuda", "xpu", "mps", "hpu", "mtia", "xla", "privateuseone")
#: Modules, and dictionaries of hooks in them that are called for every module or optimiser.
_GLOBAL_HOOKS = (
    ("torch.nn.modules.module", "_global_forward_hooks"),
    ("torch.nn.modules.module", "_global_forward_pre_hooks"),
    ("torch.nn.modules.module", "_global_backward_hooks"),
    ("torch.nn.modules.module", "_global_backward_pre_hooks"),
    ("torch.nn.modules.module", "_global_buffer_registration_hooks"),
    ("torch.nn.modules.module", "_global_module_registration_hooks"),
    ("torch.nn.modules.module", "_global_parameter_registration_hooks"),
    ("torch.optim.optimizer", "_global_optimizer_pre_hooks"),
    ("torch.optim.optimizer", "_global_optimizer_post_hooks"),
)
#: Functions that rows of their own are built on, for `missing_names`.
_OTHERS = (
    "_C._get_fp32_precision_getter",
    "_C._set_fp32_precision_setter",
    "_C._set_deterministic_algorithms",
    "_C._len_torch_function_stack",
    "_C._get_function_stack_at",
    "_C._len_torch_dispatch_stack",
    "_C._get_dispatch_stack_at",
    "_C._autograd._top_saved_tensors_default_hooks",
    "_C._dynamo.guards.dict_version",
    "_GLOBAL_DEVICE_CONTEXT",
    "_tensor_str.PRINT_OPTS",
    "library._defs",
    "library._impls",
)


def reach(torch: Any, path: str) -> Any:
    """The object at the dotted `path` below torch, or `ABSENT`. Imports nothing."""
    found = torch
    for step in path.split("."):
        found = getattr(found, step, ABSENT)
    return found


def missing_names() -> frozenset[str]:
    """The names that this module uses and this release or build of torch lacks, without those of CUDA."""
    torch = sys.modules["torch"]
    plain = {name for _, reader, setter, _ in _PLAIN for name in (reader, setter) if name}
    old = (
        set()
        if reach(torch, "_C._get_fp32_precision_getter") is not ABSENT
        else {name for row in _OLD_PRECISIONS for name in row[1:]}
    )
    hooks = {
        f"{module}.{name}".removeprefix("torch.")
        for module, name in _GLOBAL_HOOKS
        if module in sys.modules and not hasattr(sys.modules[module], name)
    }
    return frozenset({name for name in plain | old | set(_OTHERS) if reach(torch, name) is ABSENT} | hooks)


def torch_settings() -> Sequence[Row] | None:
    """Settings of torch that need no device."""
    torch = sys.modules.get("torch")
    if torch is None or getattr(torch, "_tensor_str", None) is None:  # the import is under way, or has failed
        return None
    rows = plain_rows(torch, _PLAIN)
    rows += [*_precision_rows(torch), *_autocast_rows(torch), *_hook_rows()]
    rows += [
        Row("the default device", functools.partial(_default_device, torch), torch.set_default_device, None),
        Row("the modes of __torch_function__", functools.partial(_function_modes, torch._C), None, ()),
        Row("the modes of __torch_dispatch__", functools.partial(_dispatch_modes, torch._C), None, ()),
        Row(
            "the print options of torch",
            vars(torch._tensor_str.PRINT_OPTS).copy,
            vars(torch._tensor_str.PRINT_OPTS).update,
        ),
        Row("the tracing context of torch's compiler", functools.partial(_tracing_context, torch), None, None),
        Row("torch's log levels and artifacts", functools.partial(_log_state, torch)),
        Row("the default saved-tensor hooks", functools.partial(_saved_tensor_hooks, torch._C), None, ()),
        Row(
            "the types allowed in loading",
            lambda: tuple(torch.serialization.get_safe_globals()),
            None,
            (),
            _types_of_imports,
        ),
    ]
    return [_refined(torch, row) for row in rows]


def plain_rows(torch: Any, table: Sequence[tuple[str, str, str, object]]) -> list[Row]:
    """Rows from a table of name, path of the reader, path of the setter or "", and fresh value."""
    rows = []
    for name, reader, setter, fresh in table:
        read, put_back = reach(torch, reader), reach(torch, setter) if setter else ABSENT
        if read is not ABSENT:
            rows.append(Row(name, read, None if put_back is ABSENT else put_back, fresh))
    return rows


def _refined(torch: Any, row: Row) -> Row:
    """What two rows have in common that one function sets: each is put back beside what the other is by now."""
    if row.name in _ECHOES:
        return replace(row, echo=True)
    setter = reach(torch, "_C._set_deterministic_algorithms")
    if setter is ABSENT:
        return row
    if row.name == "deterministic algorithms":
        other = torch.is_deterministic_algorithms_warn_only_enabled
        return replace(row, put_back=lambda old: setter(old, warn_only=other()))
    if row.name == "deterministic algorithms' warn_only":
        mode = torch.are_deterministic_algorithms_enabled
        return replace(row, put_back=lambda old: setter(mode(), warn_only=old))
    return row


def _precision_rows(torch: Any) -> list[Row]:
    read, write = reach(torch, "_C._get_fp32_precision_getter"), reach(torch, "_C._set_fp32_precision_setter")
    if read is ABSENT or write is ABSENT:
        return plain_rows(torch, [(*row, ABSENT) for row in _OLD_PRECISIONS])
    return [
        Row(
            f"the precision of float32 for {operation} of {backend}",
            functools.partial(read, backend, operation),
            functools.partial(write, backend, operation),
        )
        for backend, operation in _PRECISIONS
    ]


def _autocast_rows(torch: Any) -> list[Row]:
    rows = []
    for kind in _AUTOCAST:
        rows += [
            Row(
                f"autocast on {kind}",
                functools.partial(torch.is_autocast_enabled, kind),
                functools.partial(torch.set_autocast_enabled, kind),
                False,
            ),
            Row(
                f"the dtype of autocast on {kind}",
                functools.partial(torch.get_autocast_dtype, kind),
                functools.partial(torch.set_autocast_dtype, kind),
            ),
        ]
    return rows


def _hook_rows() -> list[Row]:
    rows = []
    for module, name in _GLOBAL_HOOKS:
        hooks = getattr(sys.modules.get(module), name, None)
        if isinstance(hooks, dict):
            rows.append(_hook_row(f"the hooks of {module}.{name}", hooks))
    return rows


def _hook_row(name: str, hooks: dict[Any, Any]) -> Row:
    def put_back(old: object) -> None:
        for key in [key for key, hook in hooks.items() if isinstance(old, tuple) and hook not in old]:
            del hooks[key]

    return Row(name, lambda: tuple(hooks.values()), put_back, ())


def _default_device(torch: Any) -> object:
    """As it was set; asking torch in public makes a tensor."""
    context = getattr(reach(torch, "_GLOBAL_DEVICE_CONTEXT"), "device_context", None)
    return None if context is None else context.device


def _function_modes(binding: Any) -> tuple[object, ...]:
    """The modes on the stack, without that of the default device, which is read by itself."""
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
    return getattr(reach(torch, "_guards._TLS"), "tracing_context", None)


def _log_state(torch: Any) -> object:
    state = reach(torch, "_logging._internal.log_state")
    return [getattr(state, "log_qname_to_level", {}).copy(), set(getattr(state, "artifact_names", ()))]


def _types_of_imports(old: object, new: object, scene: Scene) -> bool:
    """A library that is imported may allow the loading of its own types."""
    if not isinstance(old, tuple) or not isinstance(new, tuple):
        return False
    packages = {module.partition(".")[0] for module in scene.imported}
    added = [kind for kind in new if kind not in old]
    return len(added) == len(new) - len(old) and all(
        getattr(kind, "__module__", "").partition(".")[0] in packages for kind in added
    )


def compiler_settings() -> Sequence[Row] | None:
    """Switches of torch's compiler beside its configuration, once it is imported."""
    frames = sys.modules.get("torch._dynamo.eval_frame")
    backward = sys.modules.get("torch._dynamo.compiled_autograd")
    registry = sys.modules.get("torch._dynamo.backends.registry")
    if frames is None or backward is None or registry is None:
        return None
    stance = getattr(frames, "DynamoStance", None)
    rows = [
        Row(f"compiled autograd's {name}", functools.partial(getattr, backward, name), None, False)
        for name in (
            "compiled_autograd_enabled",
            "compiled_autograd_enabled_force_eager",
            "in_compiled_autograd_region",
        )
        if hasattr(backward, name)
    ]
    if stance is not None and hasattr(frames, "_stance"):
        rows.append(Row("the stance of torch's compiler", lambda: frames._stance, frames._set_stance, stance()))
    if isinstance(backends := getattr(registry, "_BACKENDS", None), dict):
        rows.append(Row("the back ends of torch's compiler", lambda: tuple(backends), excuse=_imported_something))
    return rows


def _imported_something(old: object, new: object, scene: Scene) -> bool:  # noqa: ARG001
    return bool(scene.imported)


def numpy_settings() -> Sequence[Row] | None:
    """How NumPy treats errors of floating point, and how it prints."""
    numpy = sys.modules.get("numpy")
    if numpy is None or getattr(numpy, "set_printoptions", None) is None:
        return None
    return [
        Row("NumPy's treatment of errors", numpy.geterr, lambda old: numpy.seterr(**old)),
        Row("NumPy's handler of errors", numpy.geterrcall, numpy.seterrcall, None),
        Row("the print options of NumPy", numpy.get_printoptions, lambda old: numpy.set_printoptions(**old)),
    ]


class Registrations(Flat):
    """Operators defined and implemented through `torch.library`, by name.

    Counted before they are compared, since there are thousands: a registration in place of another one that was taken
    back is not seen. None is put back: the library object that registered it would have to let go of it.
    """

    def __init__(self) -> None:
        self._sizes: tuple[int, ...] = ()
        self._last: dict[str, object] = {}

    def read(self) -> Values:
        library = sys.modules.get("torch.library")
        definitions, implementations = getattr(library, "_defs", ()), getattr(library, "_impls", ())
        sizes = (len(definitions), len(implementations))
        if sizes != self._sizes:
            self._sizes = sizes
            self._last = {f"{_OPERATOR}{''.join(name.split())}": "registered" for name in definitions}
            self._last |= {_implementation(name): "registered" for name in implementations}
        return self._last

    def changes(self, before: Values, after: Values, scene: Scene) -> list[Change]:
        if before is after or "torch.library" in scene.imported:
            return []
        found = [Change(name, before[name], ABSENT) for name in sorted(before.keys() - after.keys())]
        fresh = after.keys() - before.keys()
        for name in sorted(fresh):
            if name.startswith(_OPERATOR):
                key, operator = "", name.removeprefix(_OPERATOR)
            else:
                key, _, operator = name.removeprefix("the ").partition(_OF)
                if f"{_OPERATOR}{operator}" in fresh:
                    continue  # one line an operator is enough
            if not _is_of_a_library(_origin(operator, key), scene):
                found.append(Change(name, ABSENT, after[name]))
        return found

    def put_back(self, change: Change) -> None:
        pass


_OPERATOR, _OF = "the operator ", " implementation of "


def _implementation(key: str) -> str:
    """From torch's own key: ``namespace/operator.overload/dispatch key``."""
    namespace, _, rest = key.partition("/")
    operator, _, dispatch_key = rest.rpartition("/")
    return f"the {dispatch_key}{_OF}{namespace}::{operator.strip()}"


def _origin(operator: str, key: str) -> str:
    """The file that defined an operator, or with a dispatch key, its implementation; "" when torch cannot tell."""
    torch = sys.modules["torch"]
    definitions, dump = reach(torch, "_library.custom_ops.OPDEFS"), reach(torch, "_C._dispatch_dump")
    definition = None if definitions is ABSENT else definitions.get(operator)
    if definition is not None and not key:
        code = getattr(getattr(definition, "_init_fn", None), "__code__", None)
        return code.co_filename if code is not None else ""
    head = key or "debug"
    try:
        lines = [] if dump is ABSENT else dump(operator).splitlines()
    except RuntimeError:  # not a name to it
        lines = []
    for line in lines:
        if line.startswith((f"{head}: registered at ", f"{head}[alias]: registered at ")):
            file: str = line.partition(" registered at ")[2].partition(" :: ")[0].rpartition(":")[0]
            break
    else:
        return ""
    if key == "Meta" and file.endswith("torch/library.py"):  # it stands in for who called it
        entry = reach(torch, "_library.simple_registry.singleton").find(operator)
        file = str(getattr(entry.fake_impl.kernel, "source", "")).rpartition(":")[0]
    return file


def _is_of_a_library(file: str, scene: Scene) -> bool:
    """Whether code in this file is torch's own, or a module's that was just imported: then it registers what it needs.

    Of what `torch/library.py` and `torch/_library` register on somebody's behalf, nobody can say whose it is: torch's,
    when some of it was imported.
    """
    folder = f"{os.path.dirname(sys.modules['torch'].__file__ or '')}{os.sep}"
    if file.startswith(folder):
        stands_in = file.removeprefix(folder).startswith(("library.py", "_library"))
        return not stands_in or any(name.startswith("torch.") for name in scene.imported)
    return bool(file) and any(getattr(sys.modules.get(name), "__file__", None) == file for name in scene.imported)
