"""Precision settings: reading, writing, dependencies, and the environment."""

from __future__ import annotations

import os

import pytest
import torch

from suites import children

from .asked import answers, answers_each

pytestmark = pytest.mark.own_process

OVERRIDE = "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"
#: None if the variable is not set, so that no new interpreter is needed.
NO_OVERRIDE = {OVERRIDE: "0"} if os.environ.get(OVERRIDE) == "1" else None
TF32 = "B.cuda.matmul.allow_tf32"
PRECISION = "torch.get_float32_matmul_precision()"


@pytest.mark.covers("test_cuda::TestCuda::test_cublas_allow_tf32_get_set")
def test_allow_tf32_in_matmul_is_off_and_can_be_set() -> None:
    """TF32 in matrix products is off by default and reads back as set."""
    assert answers(TF32, f"{TF32} = True", TF32, f"{TF32} = False", TF32, environ=NO_OVERRIDE) == [False, True, False]


@pytest.mark.covers("test_cuda::TestCuda::test_cublas_allow_tf32_get_set")
@pytest.mark.parametrize("value", ["1", "0"])
def test_torch_allow_tf32_cublas_override_turns_tf32_on(value: str) -> None:
    """TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1 enables TF32 in products with precision "high"; 0 has no effect."""
    found = answers(TF32, PRECISION, environ={OVERRIDE: value})

    assert found == ([True, "high"] if value == "1" else [False, "highest"])


@pytest.mark.covers("test_cuda::TestCuda::test_float32_matmul_precision_get_set")
def test_set_float32_matmul_precision_and_allow_tf32_agree() -> None:
    """`set_float32_matmul_precision` and `allow_tf32` agree: "high" and "medium" enable TF32, "highest" disables it.

    Setting `allow_tf32` sets "high" or "highest". An invalid name warns or raises and changes nothing.
    """
    name = "torch.set_float32_matmul_precision('{}')".format
    by_name = [step for value in ("medium", "highest", "high", "highest") for step in (name(value), PRECISION, TF32)]
    by_flag = [f"{TF32} = True", PRECISION, f"{TF32} = False", PRECISION]
    fresh, named, flagged, bad = answers_each(
        [PRECISION, TF32], by_name, by_flag, [name("medium"), name("often"), PRECISION, TF32], environ=NO_OVERRIDE
    )

    assert fresh == ["highest", False]
    assert named[1:3] + named[7:9] == ["medium", True, "high", True]
    assert named[4:6] == named[10:12] == ["highest", False]
    assert flagged == ["high", "highest"]
    assert bad[2:] == ["medium", True]
    assert bad[1] in ("warned", "RuntimeError")


@pytest.mark.covers(
    "test_cuda::TestCuda::test_cublas_allow_fp16_reduced_precision_reduction_get_set",
    "test_cuda::TestCuda::test_cublas_allow_bf16_reduced_precision_reduction_get_set",
)
@pytest.mark.parametrize("kind", ["fp16", "bf16"])
def test_allow_reduced_precision_reduction_reads_back(kind: str) -> None:
    """Reduced-precision reductions are enabled by default, read back as set, and do not affect the other dtype.

    A pair also sets whether split-K is allowed. An invalid value raises and changes nothing.
    """
    flag = f"B.cuda.matmul.allow_{kind}_reduced_precision_reduction"
    other = f"B.cuda.matmul.allow_{'bf16' if kind == 'fp16' else 'fp16'}_reduced_precision_reduction"
    split = f"{flag}_split_k"

    alone, pairs, wrong = answers_each(
        [flag, split, f"{flag} = False", flag, other, f"{other} = False", f"{flag} = True", flag, other],
        [
            *(f"{flag} = (False, False)", flag, split, f"{flag} = (True, True)", flag, split),
            *(f"{flag} = (False, True)", flag, split),
        ],
        [f"{flag} = False", f"setattr(B.cuda.matmul, '{flag.rpartition('.')[2]}', 'often')", flag],
    )

    assert alone == [True, True, False, True, True, False]
    assert pairs == [False, False, True, True, False, True]
    assert wrong[0].endswith("Error")
    assert wrong[1] is False


@pytest.mark.covers("test_cuda::TestCuda::test_cudnn_allow_tf32_get_set")
def test_cudnn_flags_hold_in_their_block() -> None:
    """TF32 in cuDNN is enabled by default.

    A block of `cudnn.flags` sets all flags and restores the previous ones at its end, also after an exception.
    """
    flags = "(B.cudnn.enabled, B.cudnn.benchmark, B.cudnn.deterministic, B.cudnn.allow_tf32)"
    block = (
        "seen = []\n"
        "for value in (False, True):\n"
        "    with B.cudnn.flags(enabled=None, benchmark=None, deterministic=None, allow_tf32=value):\n"
        "        seen.append(B.cudnn.allow_tf32)\n"
        "    seen.append(B.cudnn.allow_tf32)\n"
        "try:\n"
        "    with B.cudnn.flags(enabled=False, benchmark=True, deterministic=True, allow_tf32=False):\n"
        f"        seen.append({flags})\n"
        "        raise KeyError\n"
        "except KeyError:\n"
        f"    seen.append({flags})"
    )
    other_way = (
        "B.cudnn.benchmark, B.cudnn.deterministic, B.cudnn.allow_tf32 = True, True, False\n"
        "seen = []\n"
        "with B.cudnn.flags(enabled=True, benchmark=False, deterministic=False, allow_tf32=True):\n"
        f"    seen.append({flags})\n"
        f"seen.append({flags})"
    )
    at_first, from_others = answers_each(["B.cudnn.allow_tf32", block, "str(seen)"], [other_way, "str(seen)"])

    assert at_first == [
        True,
        "[False, True, True, True, (False, True, True, False), (True, False, False, True)]",
    ]
    assert from_others == ["[(True, False, False, True), (True, True, True, False)]"]


@pytest.mark.covers("test_cuda::TestCuda::test_cublas_allow_fp16_accumulation_get_set")
def test_allow_fp16_accumulation_reads_back() -> None:
    """Accumulation in float16 is off by default and reads back as set."""
    flag = "B.cuda.matmul.allow_fp16_accumulation"
    assert answers(flag, f"{flag} = True", flag, f"{flag} = False", flag) == [False, True, False]


@pytest.mark.covers("test_cuda::TestCuda::test_cudnn_depthwise_kernel_get_set")
@pytest.mark.requires(torch=">=2.13")
def test_depthwise_convolution_kernel_reads_back() -> None:
    """The depthwise convolution kernel is "auto" by default, reads back as set, and an invalid name raises."""
    flag = "B.cudnn.depthwise_kernel"
    first, second, third, refused, after = answers(
        flag, f"{flag} = 'cudnn'", flag, f"{flag} = 'native'", flag, "setattr(B.cudnn, 'depthwise_kernel', 'x')", flag
    )
    assert (first, second, third, after) == ("auto", "cudnn", "native", "native")
    assert refused.endswith("Error")


def test_cuda_matmul_setting_that_is_unknown_is_refused() -> None:
    """Reading or writing an unknown matmul setting raises."""
    assert answers("B.cuda.matmul.allow_tf33", "setattr(B.cuda.matmul, 'allow_tf33', True)") == ["AttributeError"] * 2


# ---- BLAS library ----


@pytest.mark.covers("test_cuda::TestCuda::test_preferred_blas_library_settings")
@pytest.mark.requires(device="cuda", rocm=False)
def test_preferred_blas_library_reads_back() -> None:
    """cuBLAS is the default; cuBLASLt can be selected by name or environment, and an invalid name raises."""
    ask = "str(B.cuda.preferred_blas_library())"

    assert answers(
        ask, "str(B.cuda.preferred_blas_library('cublaslt'))", ask, "B.cuda.preferred_blas_library('x')"
    ) == [
        "_BlasBackend.Cublas",
        "_BlasBackend.Cublaslt",
        "_BlasBackend.Cublaslt",
        "RuntimeError",
    ]
    assert answers(ask, environ={"TORCH_BLAS_PREFER_CUBLASLT": "1"}) == ["_BlasBackend.Cublaslt"]


@pytest.mark.covers("test_cuda::TestCuda::test_preferred_blas_library_settings")
def test_preferred_blas_library_unknown_is_refused_without_a_gpu() -> None:
    """Without a GPU too, the preferred library can be read, and an invalid name raises and changes nothing."""
    ask = "str(B.cuda.preferred_blas_library())"
    first, refused, after = answers(ask, "B.cuda.preferred_blas_library('x')", ask)

    assert first.startswith("_BlasBackend.")
    assert (refused, after) == ("RuntimeError", first)


# ---- precision by name ----

MATMUL = "B.cuda.matmul.fp32_precision"
CONV, RNN = "B.cudnn.conv.fp32_precision", "B.cudnn.rnn.fp32_precision"


@pytest.mark.covers("test_cuda::TestCuda::test_fp32_precision_with_tf32")
@pytest.mark.parametrize("on", [True, False])
def test_allow_tf32_is_seen_by_fp32_precision(on: bool) -> None:
    """In `fp32_precision`, enabled `allow_tf32` is "tf32"; disabled, it is "ieee" for products and "none" for cuDNN."""
    wanted = "tf32" if on else "ieee"

    product, cudnn = answers_each(
        [f"{TF32} = {on}", MATMUL], [f"B.cudnn.allow_tf32 = {on}", CONV, RNN, "B.cudnn.allow_tf32"], environ=NO_OVERRIDE
    )

    assert product == [wanted]
    assert cudnn == (["tf32", "tf32", True] if on else ["none", "none", False])


@pytest.mark.covers("test_cuda::TestCuda::test_fp32_precision_with_float32_matmul_precision")
@pytest.mark.parametrize(
    ("name", "product", "onednn"), [("highest", "ieee", "ieee"), ("high", "tf32", "tf32"), ("medium", "tf32", "bf16")]
)
def test_set_float32_matmul_precision_is_seen_by_fp32_precision(name: str, product: str, onednn: str) -> None:
    """`set_float32_matmul_precision` sets `fp32_precision` of cuBLAS and oneDNN, which has bfloat16 for TF32."""
    found = answers(
        f"torch.set_float32_matmul_precision('{name}')", MATMUL, "B.mkldnn.matmul.fp32_precision", environ=NO_OVERRIDE
    )
    assert found[1:] == [product, onednn]


@pytest.mark.covers("test_cuda::TestFP32PrecisionFlags::test_generic_fp32_precision_propagates_to_cudnn_conv_rnn")
def test_fp32_precision_global_applies_to_each() -> None:
    """The global `fp32_precision` applies to each operation without its own setting.

    It does not override an operation's own setting.
    """
    everything = [MATMUL, CONV, RNN, "B.mkldnn.matmul.fp32_precision"]

    all_, *own = answers_each(
        ["B.fp32_precision = 'tf32'", *everything],
        *([f"{one} = 'ieee'", "B.fp32_precision = 'tf32'", *everything] for one in everything),
    )

    assert all_ == ["tf32"] * 4
    assert own == [["ieee" if one == other else "tf32" for other in everything] for one in everything]


@pytest.mark.covers("test_cuda::TestFP32PrecisionFlags::test_generic_fp32_precision_propagates_to_cudnn_conv_rnn")
@pytest.mark.requires(torch=">=2.13")
def test_fp32_precision_global_ieee_applies_to_cudnn() -> None:
    """Global "ieee" applies to cuDNN's convolutions and RNNs, whose default is TF32. Before torch 2.13 it did not."""
    all_, conv, rnn = answers_each(
        ["B.fp32_precision = 'ieee'", CONV, RNN, MATMUL],
        ["B.fp32_precision = 'ieee'", f"{CONV} = 'tf32'", CONV, RNN],
        ["B.fp32_precision = 'ieee'", f"{RNN} = 'tf32'", CONV, RNN],
    )

    assert all_ == ["ieee"] * 3
    assert conv == ["tf32", "ieee"]
    assert rnn == ["ieee", "tf32"]


@pytest.mark.covers("test_cuda::TestCuda::test_invalid_status_for_legacy_api")
def test_allow_tf32_raises_for_states_of_fp32_precision_only() -> None:
    """Reading `allow_tf32` raises if `fp32_precision` was set to a state that the old API cannot express.

    For cuDNN, this is TF32 in only one of convolutions and RNNs; for products, TF32 that the new API set.
    """
    cudnn, other_way, product = answers_each(
        [f"{CONV} = 'tf32'", f"{RNN} = 'ieee'", "B.cudnn.allow_tf32", CONV, RNN],
        [f"{CONV} = 'ieee'", f"{RNN} = 'tf32'", "B.cudnn.allow_tf32", CONV, RNN],
        [f"{MATMUL} = 'tf32'", TF32, PRECISION, MATMUL],
        environ=NO_OVERRIDE,
    )

    assert cudnn == ["RuntimeError", "tf32", "ieee"]
    assert other_way == ["RuntimeError", "ieee", "tf32"]
    assert product == ["RuntimeError", "RuntimeError", "tf32"]


def test_fp32_precision_unknown_is_refused() -> None:
    """An unknown precision, or one that a backend lacks, raises RuntimeError and changes nothing."""
    wrong = [
        *("setattr(B, 'fp32_precision', 'often')", "setattr(B.cuda.matmul, 'fp32_precision', 'bf16')"),
        *("B.fp32_precision", MATMUL),
    ]
    fresh, others = answers_each(wrong, ["B.fp32_precision = 'tf32'", f"{MATMUL} = 'ieee'", *wrong])

    assert fresh == ["RuntimeError", "RuntimeError", "none", "none"]
    assert others == ["RuntimeError", "RuntimeError", "tf32", "ieee"]


def test_disable_global_flags_refuses_settings_outside_of_blocks() -> None:
    """After `disable_global_flags`, an assignment raises and changes nothing; a block of `flags` sets and restores.

    The flags remain frozen after the block.
    """
    frozen, enabled = "B.flags_frozen()", "B.cudnn.enabled"
    block = "with B.cudnn.flags(enabled=False):\n    seen = B.cudnn.enabled"
    blocks = [f"with B.{each}.flags():\n    pass" for each in ("mkldnn", "nnpack")] + ["with B.flags():\n    pass"]
    found = answers(
        *(frozen, enabled, f"{enabled} = True", "B.disable_global_flags()", frozen),
        *("setattr(B.cudnn, 'enabled', False)", enabled, "setattr(B, 'fp32_precision', 'ieee')", "B.fp32_precision"),
        *(block, "seen", enabled, frozen),
        *(step for each in blocks for step in (each, frozen)),
    )
    assert found[:4] == [False, True, None, True]
    assert found[4:8] == ["RuntimeError", True, "RuntimeError", "none"]
    assert found[8:] == [False, True, True, True, True, True]


# ---- libraries ----


@pytest.mark.requires(device="cuda", rocm=False)
def test_preferred_linalg_library_reads_back() -> None:
    """The linear algebra library is torch's choice by default and reads back as set.

    An invalid name raises and changes nothing.
    """
    ask = "str(B.cuda.preferred_linalg_library())"
    steps = (ask, "str(B.cuda.preferred_linalg_library('cusolver'))", ask, "B.cuda.preferred_linalg_library('x')", ask)
    assert answers("warnings.simplefilter('ignore')", *steps)[1:] == [
        "_LinalgBackend.Default",
        "_LinalgBackend.Cusolver",
        "_LinalgBackend.Cusolver",
        "RuntimeError",
        "_LinalgBackend.Cusolver",
    ]


@pytest.mark.parametrize("of", ["blas", "linalg"])
def test_preferred_library_takes_what_it_has_returned(of: str) -> None:
    """`preferred_blas_library` and `preferred_linalg_library` accept the value that they return, and no other type."""
    ask = f"B.cuda.preferred_{of}_library"
    before, again, number, after = answers(f"str({ask}())", f"str({ask}({ask}()))", f"{ask}(1)", f"str({ask}())")
    assert before == again == after
    assert before.rpartition(".")[0] == {"blas": "_BlasBackend", "linalg": "_LinalgBackend"}[of]
    assert number == "RuntimeError"


@pytest.mark.requires(rocm=False)
def test_preferred_rocm_fa_library_reads_back_and_does_nothing_elsewhere() -> None:
    """The attention library for ROCm reads back as set, also where it has no effect; other values are refused.

    It is set by a name or by a value that the function has returned.
    """
    ask = "B.cuda.preferred_rocm_fa_library"
    steps = (f"str({ask}())", f"str({ask}('ck'))", f"{ask}('x')", f"{ask}(1)", f"str({ask}({ask}()))")
    last = f"[str({ask}(each)) for each in ('aotriton', 'default')]"
    *found, names = answers(*steps, last)
    assert found == ["_ROCmFABackend.Default", "_ROCmFABackend.Ck", "RuntimeError", "ValueError", "_ROCmFABackend.Ck"]
    assert names == "['_ROCmFABackend.AOTriton', '_ROCmFABackend.Default']"


@pytest.mark.requires(torch=">=2.13", rocm=False)
def test_is_ck_sdpa_available_is_for_rocm() -> None:
    """composable_kernel is a library for ROCm, and other builds do not have it."""
    assert torch.backends.cuda.is_ck_sdpa_available() is False


@pytest.mark.requires(device="cuda", rocm=False)
def test_cudnn_version_has_major_minor_and_patch() -> None:
    """`cudnn.version` is MAJOR * 10000 + MINOR * 100 + PATCH since cuDNN 9, and at least the version of the build."""
    version = torch.backends.cudnn.version()
    assert version is not None
    assert 9_00_00 <= version < 99_00_00
    assert version == torch.backends.cudnn.version()


@pytest.mark.requires(cudnn=False)
def test_cudnn_version_without_cudnn_is_none() -> None:
    """`cudnn.version` is None if torch has no cuDNN."""
    assert torch.backends.cudnn.version() is None
    assert not torch.backends.cudnn.is_available()


@pytest.mark.requires(device="cpu")
def test_nnpack_is_available_decides_whether_it_can_be_used() -> None:
    """`nnpack.is_available` does not change; a convolution has the same result with and without NNPACK."""
    available = torch.backends.nnpack.is_available()
    x, weight = torch.arange(2 * 3 * 8 * 8.0).reshape(2, 3, 8, 8), torch.arange(4 * 3 * 3 * 3.0).reshape(4, 3, 3, 3)
    results = []
    for enabled in (True, False):
        with torch.backends.nnpack.flags(enabled):
            results.append(torch.nn.functional.conv2d(x, weight))
    torch.testing.assert_close(*results)
    assert torch.backends.nnpack.is_available() is available


VERBOSE = """
import torch
from torch.backends import {library} as library
{work}
for name, level in (("before", None), ("off", library.VERBOSE_OFF), ("on", library.VERBOSE_ON), ("after", None)):
    print(name, flush=True)
    if level is None:
        work()
    else:
        block = library.verbose(level)
        with block as entered:
            work()
        assert level == library.VERBOSE_OFF or entered is block
try:
    with library.verbose(library.VERBOSE_ON):
        raise LookupError
except LookupError:
    print("raised", flush=True)
    work()
"""
CONVOLUTION = "layer, x = torch.nn.Conv2d(16, 32, 3), torch.ones(4, 16, 64, 64)\nwork = lambda: layer(x)"
PRODUCT = "x = torch.ones(64, 64, dtype=torch.float64)\nwork = lambda: x @ x"


def printed(library: str, work: str, sign: str) -> dict[str, list[str]]:
    """Return the lines with `sign` that a library prints before, during and after blocks of `verbose`."""
    quiet = {"DNNL_VERBOSE": "0", "ONEDNN_VERBOSE": "0", "MKL_VERBOSE": "0"}
    parts: dict[str, list[str]] = {}
    for line in children.fork(VERBOSE.format(library=library, work=work), environ=quiet).lines():
        if line in ("before", "off", "on", "after", "raised"):
            parts[line] = []
        else:
            parts[next(reversed(parts))].append(line)
    return {name: [line for line in own if sign in line] for name, own in parts.items()}


@pytest.mark.requires(device="cpu")
def test_mkldnn_verbose_prints_the_primitives_of_its_block() -> None:
    """`mkldnn.verbose(VERBOSE_ON)` makes oneDNN print the primitives that run in the block, and none before or after.

    `VERBOSE_OFF` prints nothing. An exception leaves the block and ends it. A block of `VERBOSE_ON` yields its object.
    """
    if not torch.backends.mkldnn.is_available():
        pytest.skip("this torch has no oneDNN")
    ran = printed("mkldnn", CONVOLUTION, ",exec,")
    assert any(",convolution," in line for line in ran.pop("on"))
    assert ran == {"before": [], "off": [], "after": [], "raised": []}


@pytest.mark.requires(device="cpu")
def test_mkl_verbose_prints_the_calls_of_its_block() -> None:
    """`mkl.verbose(VERBOSE_ON)` makes oneMKL print the calls that run in the block, and none before or after.

    `VERBOSE_OFF` prints nothing. An exception leaves the block and ends it. A block of `VERBOSE_ON` yields its object.
    """
    if not torch.backends.mkl.is_available():
        pytest.skip("this torch has no oneMKL")
    ran = printed("mkl", PRODUCT, "MKL_VERBOSE")
    assert any("DGEMM(N,N,64,64,64," in line for line in ran.pop("on"))
    assert ran == {"before": [], "off": [], "after": [], "raised": []}
