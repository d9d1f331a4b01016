"""`set_flags` and `flags` of torch's backends: each argument sets one flag, and the call returns the old values."""

from __future__ import annotations

import copy
import pickle
import platform
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from . import _torch_private as private

CUDA = pytest.mark.requires(device="cuda")
cudnn, mkldnn, nnpack = torch.backends.cudnn, torch.backends.mkldnn, torch.backends.nnpack

#: By module: the arguments of `set_flags`, by position, with the function that reads each flag and two values for it.
Flag = tuple[str, Callable[[], Any], tuple[Any, Any]]
CUDNN: list[Flag] = [
    ("enabled", lambda: cudnn.enabled, (False, True)),
    ("benchmark", lambda: cudnn.benchmark, (True, False)),
    ("benchmark_limit", lambda: cudnn.benchmark_limit, (7, 3)),
    ("deterministic", lambda: cudnn.deterministic, (True, False)),
    ("allow_tf32", lambda: cudnn.allow_tf32, (False, True)),
]
#: Without cuDNN there is no limit.
EACH_OF_CUDNN = pytest.mark.parametrize(
    "place",
    [
        pytest.param(place, id=name, marks=[pytest.mark.requires(cudnn=True)] if name == "benchmark_limit" else [])
        for place, (name, _, _) in enumerate(CUDNN)
    ],
)
MKLDNN: list[Flag] = [
    ("enabled", lambda: mkldnn.enabled, (False, True)),
    ("deterministic", lambda: mkldnn.deterministic, (True, False)),
]


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """Restore the flags."""
    before = cudnn.set_flags(_fp32_precision=None), mkldnn.set_flags(_fp32_precision=None)
    yield
    cudnn.set_flags(*before[0])
    mkldnn.set_flags(*before[1])


@pytest.fixture
def assignable_flags() -> Iterator[None]:
    with private.assignable_flags():
        yield


@pytest.mark.requires(torch=">=2.13")
@EACH_OF_CUDNN
def test_cudnn_set_flags_sets_one_flag_and_returns_all_before(place: int) -> None:
    """An argument of `set_flags` only changes its own flag; the call returns all previous values."""
    name, read, values = CUDNN[place]
    for value in (*values, values[0]):
        before = [each() for _, each, _ in CUDNN]
        returned = cudnn.set_flags(**{f"_{name}": value}, _fp32_precision=None)
        assert list(returned[: len(CUDNN)]) == before
        assert read() == value
        assert [each() for _, each, _ in CUDNN] == [value if i == place else old for i, old in enumerate(before)]


@pytest.mark.requires(torch=">=2.13")
@EACH_OF_CUDNN
def test_cudnn_flags_set_one_flag_in_their_block(place: int) -> None:
    """`flags` sets its arguments in the block, and other flags to its signature's defaults, and restores them."""
    name, _, values = CUDNN[place]
    defaults = {
        "enabled": False,
        "benchmark": False,
        "benchmark_limit": 10 if cudnn.is_available() else None,
        "deterministic": False,
        "allow_tf32": True,
    }
    before = [each() for _, each, _ in CUDNN]
    for value in values:
        with cudnn.flags(**{name: value}):
            assert {key: each() for key, each, _ in CUDNN} == {**defaults, name: value}
        assert [each() for _, each, _ in CUDNN] == before


@pytest.mark.requires(torch=">=2.13")
@pytest.mark.parametrize("value", ["ieee", "tf32", "none"])
def test_cudnn_flags_set_fp32_precision_in_their_block(value: str) -> None:
    """`flags(fp32_precision=…)` sets the precision of convolutions and recurrent networks, and restores it."""
    before = cudnn.fp32_precision, cudnn.conv.fp32_precision
    with cudnn.flags(enabled=True, fp32_precision=value):
        assert cudnn.fp32_precision == value
    assert (cudnn.fp32_precision, cudnn.conv.fp32_precision) == before


@pytest.mark.parametrize("place", range(len(MKLDNN)), ids=[name for name, _, _ in MKLDNN])
def test_mkldnn_set_flags_sets_one_flag_and_returns_all_before(place: int) -> None:
    """An argument of `set_flags` only changes its own flag; the call returns the previous values."""
    name, read, values = MKLDNN[place]
    for value in (*values, values[0]):
        before = [each() for _, each, _ in MKLDNN]
        returned = mkldnn.set_flags(**{f"_{name}": value}, _fp32_precision=None)
        assert list(returned[: len(MKLDNN)]) == before
        assert read() == value
        assert [each() for _, each, _ in MKLDNN] == [value if i == place else old for i, old in enumerate(before)]


@pytest.mark.filterwarnings("ignore:TF32 acceleration on top of oneDNN:UserWarning")
@pytest.mark.parametrize("value", ["ieee", "bf16", "none"])
def test_mkldnn_flags_set_fp32_precision_in_their_block(value: str) -> None:
    """`flags(fp32_precision=…)` sets the precision of oneDNN, "none" by default, and restores it."""
    before = mkldnn.fp32_precision
    with mkldnn.flags(enabled=True, fp32_precision=value):
        assert mkldnn.fp32_precision == value
        with mkldnn.flags(enabled=True):
            assert mkldnn.fp32_precision == "none"
        assert mkldnn.fp32_precision == value
        assert mkldnn.set_flags(_fp32_precision=None)[-1] == value
    assert mkldnn.fp32_precision == before


@pytest.mark.xfail(
    raises=AssertionError,
    reason="torch 2.11 to 2.13 set the precision of all back ends (MkldnnModule in torch/backends/mkldnn/__init__.py,"
    " https://github.com/pytorch/pytorch)",
)
@pytest.mark.usefixtures("assignable_flags")
def test_mkldnn_fp32_precision_is_that_of_onednn_alone() -> None:
    """`mkldnn.fp32_precision = …` sets the precision of oneDNN only, and not that of all backends."""
    backends = torch.backends
    before = backends.fp32_precision, mkldnn.set_flags(_fp32_precision=None)[-1]
    try:
        mkldnn.fp32_precision = "ieee"
        assert (backends.fp32_precision, mkldnn.fp32_precision) == (before[0], "ieee")
    finally:
        backends.set_flags(before[0])
        mkldnn.set_flags(_fp32_precision=before[1])


@pytest.mark.filterwarnings("ignore:TF32 acceleration on top of oneDNN:UserWarning")
def test_mkldnn_flags_turn_onednn_off_and_are_not_deterministic_by_default() -> None:
    """`flags` without arguments disables oneDNN and determinism; each argument changes one of them."""
    cudnn_before = [read() for _, read, _ in MKLDNN]
    with mkldnn.flags():
        assert (mkldnn.enabled, mkldnn.deterministic) == (False, False)
    with mkldnn.flags(enabled=True, deterministic=True):
        assert (mkldnn.enabled, mkldnn.deterministic) == (True, True)
    assert [read() for _, read, _ in MKLDNN] == cudnn_before


def test_is_available_of_the_back_ends_is_a_truth_value() -> None:
    """`is_available` of each backend is True or False, and the module's own one equals the function's."""
    for module in (cudnn, mkldnn, nnpack, torch.backends.cuda, torch.backends.openmp, torch.backends.mkl):
        reported = module.is_built() if module is torch.backends.cuda else module.is_available()
        assert isinstance(reported, bool), module.__name__


@pytest.mark.requires(cudnn=True)
@CUDA
def test_cudnn_is_acceptable_for_device_tensors_of_its_types(device: torch.device) -> None:
    """cuDNN accepts device tensors of half, float and double while it is enabled, and refuses all others."""
    ones = torch.ones(2, device=device)
    with cudnn.flags(enabled=True):
        assert [cudnn.is_acceptable(ones.to(dtype)) for dtype in (torch.half, torch.float, torch.double)] == [True] * 3
        assert not cudnn.is_acceptable(ones.cpu())
        assert not cudnn.is_acceptable(ones.to(torch.int32))
    with cudnn.flags(enabled=False):
        assert not cudnn.is_acceptable(ones)


@CUDA
def test_cudnn_is_acceptable_refuses_host_tensors_and_other_types(device: torch.device) -> None:
    """cuDNN refuses host tensors and integers, and while it is disabled all tensors."""
    ones = torch.ones(2, device=device)
    with cudnn.flags(enabled=True):
        assert cudnn.is_acceptable(ones.cpu()) is False
        assert cudnn.is_acceptable(ones.to(torch.int32)) is False
    with cudnn.flags(enabled=False):
        assert cudnn.is_acceptable(ones) is False


def test_cuda_matmul_settings_are_each_their_own() -> None:
    """Each setting of `torch.backends.cuda.matmul` reads back and changes no other; an unknown one raises."""
    matmul = torch.backends.cuda.matmul
    names = (
        "allow_fp16_reduced_precision_reduction",
        "allow_bf16_reduced_precision_reduction",
        "allow_fp16_accumulation",
    )
    before = {name: getattr(matmul, name) for name in names}
    try:
        for name in names:
            for value in (not before[name], before[name]):
                setattr(matmul, name, value)
                assert {each: getattr(matmul, each) for each in names} == {**before, name: value}
        for call in (lambda: matmul.unknown, lambda: setattr(matmul, "unknown", True)):
            with pytest.raises(AttributeError, match="unknown"):
                call()
    finally:
        for name in names:
            setattr(matmul, name, before[name])


@CUDA
def test_can_use_attention_kernels_answer_with_a_truth_value(device: torch.device) -> None:
    """`can_use_flash_attention` and its siblings return True or False for parameters of attention.

    None of them supports float64.
    """
    q = torch.ones(1, 2, 4, 8, device=device, dtype=torch.float64)
    parameters = torch.backends.cuda.SDPAParams(q, q, q, None, 0.0, False, False)
    for ask in (
        torch.backends.cuda.can_use_flash_attention,
        torch.backends.cuda.can_use_efficient_attention,
        torch.backends.cuda.can_use_cudnn_attention,
    ):
        assert ask(parameters) is False


#: Each setting of the float32 precision, with two values that it accepts.
PRECISIONS: dict[str, tuple[Any, tuple[str, str]]] = {
    "cudnn.conv": (cudnn.conv, ("ieee", "tf32")),
    "cudnn.rnn": (cudnn.rnn, ("ieee", "tf32")),
    "cuda.matmul": (torch.backends.cuda.matmul, ("ieee", "tf32")),
    "mkldnn.matmul": (mkldnn.matmul, ("ieee", "bf16")),
    "mkldnn.conv": (mkldnn.conv, ("ieee", "bf16")),
    "mkldnn.rnn": (mkldnn.rnn, ("ieee", "bf16")),
}


@pytest.fixture
def precisions_as_before() -> Iterator[None]:
    """Restore every precision setting."""
    before = {name: each.fp32_precision for name, (each, _) in PRECISIONS.items()}
    yield
    for name, value in before.items():
        PRECISIONS[name][0].fp32_precision = value


@pytest.mark.usefixtures("precisions_as_before")
@pytest.mark.parametrize("name", PRECISIONS)
def test_fp32_precision_of_one_kind_reads_back_and_changes_no_other(name: str) -> None:
    """A setting reads back as set, and no other setting changes.

    Reading or writing an unknown attribute raises. `cudnn.rnn` is a module and accepts any attribute.
    """
    setting, values = PRECISIONS[name]
    others = {each: PRECISIONS[each][0].fp32_precision for each in PRECISIONS if each != name}
    for value in (*values, values[0]):
        setting.fp32_precision = value
        assert setting.fp32_precision == value
        assert {each: PRECISIONS[each][0].fp32_precision for each in others} == others
    if name == "cudnn.rnn":
        return
    with pytest.raises(AttributeError, match="precise"):
        setting.precise  # noqa: B018 - the case checks the read
    with pytest.raises(AttributeError, match="precise"):
        setting.precise = True


def test_mha_fastpath_reads_back() -> None:
    """`get_fastpath_enabled` returns the value of `torch.backends.mha.set_fastpath_enabled`, initially True."""
    before = torch.backends.mha.get_fastpath_enabled()
    try:
        assert before is True
        for value in (False, True):
            torch.backends.mha.set_fastpath_enabled(value)
            assert torch.backends.mha.get_fastpath_enabled() is value
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


@pytest.mark.requires(torch=">=2.13")
def test_cudnn_flags_set_the_depthwise_kernel_in_their_block() -> None:
    """`flags(depthwise_kernel=…)` chooses the kernel of depthwise convolutions in the block, and restores it."""
    before = cudnn.depthwise_kernel
    other = "cudnn" if before != "cudnn" else "native"
    with cudnn.flags(enabled=True, depthwise_kernel=other):
        assert cudnn.depthwise_kernel == other
    assert cudnn.depthwise_kernel == before


@CUDA
def test_cudnn_get_cudnn_mode_is_the_number_that_cudnn_has() -> None:
    """`rnn.get_cudnn_mode` returns the `cudnnRNNMode_t` of each kind of recurrent network, and refuses another name."""
    modes = {"RNN_RELU": 0, "RNN_TANH": 1, "LSTM": 2, "GRU": 3}
    assert {name: cudnn.rnn.get_cudnn_mode(name) for name in modes} == modes
    with pytest.raises(ValueError, match="LSTMS"):
        cudnn.rnn.get_cudnn_mode("LSTMS")


def test_backends_flags_set_the_precision_of_all_in_their_block() -> None:
    """`torch.backends.flags` and `set_flags` set the precision of all backends, by default "none".

    The block restores the precision.
    """
    backends = torch.backends
    (before,) = backends.set_flags(None)
    assert backends.fp32_precision == before
    try:
        assert backends.set_flags("tf32") == (before,)
        with backends.flags("ieee"):
            assert backends.fp32_precision == "ieee"
            with backends.flags():
                assert backends.fp32_precision == "none"
            with pytest.raises(LookupError), backends.flags():
                raise LookupError
            assert backends.fp32_precision == "ieee"
        assert backends.set_flags() == ("tf32",)
        assert backends.fp32_precision == "none"
    finally:
        backends.set_flags(before)


def test_quantized_engine_is_one_of_the_supported_ones() -> None:
    """Each supported engine reads back; an unknown name raises and changes nothing; the list is read-only."""
    quantized = torch.backends.quantized
    before = quantized.engine
    names = quantized.supported_engines
    assert names
    assert before in names
    assert set(names) <= {"none", "fbgemm", "qnnpack", "onednn", "x86"}
    try:
        for name in names:
            quantized.engine = name
            assert quantized.engine == name
            with pytest.raises(RuntimeError, match="fbgemms"):
                quantized.engine = "fbgemms"
            assert quantized.engine == name
        with pytest.raises(RuntimeError, match="not supported"):
            quantized.supported_engines = ["x86"]
        assert quantized.supported_engines == names
    finally:
        quantized.engine = before


@pytest.fixture
def opt_einsum_as_before() -> Iterator[None]:
    """Restore the settings of opt_einsum."""
    library = torch.backends.opt_einsum
    before = library.enabled, library.strategy
    yield
    if library.is_available():
        library.enabled = True
        library.strategy = before[1]
    library.enabled = before[0]


def einsum() -> torch.Tensor:
    """Return a product of three matrices, for which the order matters."""
    a, b, c = (torch.arange(6.0, dtype=torch.float64).reshape(shape) for shape in ((2, 3), (3, 2), (2, 3)))
    return torch.einsum("ij,jk,kl->il", a, b, c)


@pytest.mark.usefixtures("opt_einsum_as_before")
def test_opt_einsum_flags_set_enabled_and_strategy_in_their_block() -> None:
    """`opt_einsum.flags` sets whether and how einsum orders its products in its block; the result is the same.

    `set_flags` returns the previous settings. A strategy is one of three, and requires the library and that it is
    enabled. Without the library, neither can be set.
    """
    library = torch.backends.opt_einsum
    wanted = torch.tensor([[39.0, 62.0, 85.0], [120.0, 188.0, 256.0]], dtype=torch.float64)
    assert isinstance(library.is_available(), bool)
    assert (library.get_opt_einsum() is not None) is library.is_available() is library.enabled
    assert library.strategy == ("auto" if library.is_available() else None)
    assert library.set_flags() == (library.enabled, library.strategy)
    assert torch.equal(einsum(), wanted)
    with library.flags(enabled=False):
        assert library.enabled is False
        assert torch.equal(einsum(), wanted)
        with pytest.raises(ValueError, match="`strategy`"):
            library.set_flags(_strategy="greedy")
    assert library.enabled is library.is_available()
    with pytest.raises(LookupError), library.flags(enabled=False):
        raise LookupError
    assert library.enabled is library.is_available()
    if not library.is_available():
        with pytest.raises(ValueError, match="opt_einsum is not available, so setting `enabled` to True"):
            library.set_flags(_enabled=True)
        with pytest.raises(ValueError, match="opt_einsum is not available, so setting `strategy` to auto"):
            library.set_flags(_strategy="auto")
        assert (library.enabled, library.strategy) == (False, None)
        return
    for strategy in ("greedy", "optimal", "auto"):
        with library.flags(strategy=strategy):
            assert library.strategy == strategy
            assert torch.equal(einsum(), wanted)
    with pytest.raises(ValueError, match="must be one of the following"):
        library.set_flags(_strategy="best")
    assert library.strategy == "auto"


def test_get_cpu_capability_names_instructions_that_the_processor_has() -> None:
    """`cpu.get_cpu_capability` is one of the documented names, and one whose instructions the kernel lists."""
    name = torch.backends.cpu.get_cpu_capability()
    assert name in {"DEFAULT", "VSX", "Z VECTOR", "NO AVX", "AVX2", "AVX512", "SVE256", "SVE"}
    flags = Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
    for capability, flag in (("AVX2", "avx2"), ("AVX512", "avx512f"), ("SVE", "sve")):
        assert not name.startswith(capability) or flag in flags


def test_cusparselt_and_other_libraries_that_a_build_has() -> None:
    """`is_available` of optional libraries is True or False; cuSPARSELt has a version if and only if it is available.

    The version is MAJOR * 100 + MINOR * 10 + PATCH, and the same each time. KleidiAI and the Arm Compute Library are
    for Arm only.
    """
    cusparselt = torch.backends.cusparselt
    version = cusparselt.version()
    assert cusparselt.is_available() is (version is not None)
    assert version is None or 100 <= version < 10000
    assert cusparselt.version() == version
    # Releases of cuSPARSELt with their largest algorithm number, which is a constant in torch.
    assert cusparselt.get_max_alg_id() == {400: 4, 502: 5, 602: 37}.get(version)
    for reported in (torch.backends.kleidiai.is_available(), mkldnn.is_acl_available()):
        assert isinstance(reported, bool)
        assert not reported or platform.machine() in ("aarch64", "arm64")


def test_cudnn_rnn_unserializable_keeps_its_value_until_it_is_pickled() -> None:
    """`rnn.Unserializable` holds the dropout state of old models: `get` returns the state, and after pickling None."""
    state = cudnn.rnn.Unserializable([1, 2])
    assert state.get() == [1, 2]
    assert pickle.loads(pickle.dumps(state)).get() is None
    assert copy.deepcopy(state).get() is None
    assert state.get() == [1, 2]


@CUDA
def test_cudnn_rnn_init_dropout_state_without_dropout_is_none(device: torch.device) -> None:
    """Without dropout, or while not training, `rnn.init_dropout_state` keeps no state for the device."""
    known: dict[str, Any] = {}
    assert cudnn.rnn.init_dropout_state(0.0, True, 3, known) is None
    assert cudnn.rnn.init_dropout_state(0.5, False, 3, known) is None
    assert list(known) == [f"desc_{device.index}"]
    assert known[f"desc_{device.index}"].get() is None


@pytest.mark.requires(device="cuda", silicon=True, rocm=False)
def test_cudnn_rnn_init_dropout_state_is_made_once(device: torch.device) -> None:
    """With dropout, `rnn.init_dropout_state` creates a state on the device once, and again after pickling."""
    known: dict[str, Any] = {}
    made = cudnn.rnn.init_dropout_state(0.5, True, 3, known)
    assert (made.dtype, made.device) == (torch.uint8, device)
    assert made.numel() > 0
    assert cudnn.rnn.init_dropout_state(0.5, True, 3, known) is made
    again = cudnn.rnn.init_dropout_state(0.5, True, 3, pickle.loads(pickle.dumps(known)))
    assert (again.dtype, again.numel()) == (torch.uint8, made.numel())
    assert again.data_ptr() != made.data_ptr()


@pytest.mark.usefixtures("assignable_flags")
def test_contextprop_and_propmodule_make_flags_of_a_module() -> None:
    """`ContextProp` reads and writes a flag through functions; `PropModule` has a module's other attributes."""
    stored = [1]

    class Flags(torch.backends.PropModule):
        flag = torch.backends.ContextProp(lambda: stored[0], lambda value: stored.__setitem__(0, value))

    plain = types.ModuleType("plain")
    plain.other = "o"  # type: ignore[attr-defined]
    flags = Flags(plain, "flags")
    assert (flags.flag, flags.other, flags.__name__) == (1, "o", "flags")
    flags.flag = 2
    assert (flags.flag, stored) == (2, [2])
    with pytest.raises(AttributeError, match="unknown"):
        flags.unknown  # noqa: B018 - the case checks the read
