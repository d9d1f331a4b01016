"""`scaled_dot_product_attention` with each backend: softmax(q k^T * scale + mask) v and its gradients, by NumPy.

The error of a score is at most gamma(d + 2) of the magnitudes of its products, and changes a weight by that factor
twice, once in its numerator and once in the sum. Weights are added in float32 and, for 16-bit types, rounded to the
type before they are multiplied by the values. Each output is therefore within (2 s + gamma(n + 8) + 4 u) of the
weighted sum of the values' magnitudes, where s is the largest error of a score and u the roundoff of the type.
Gradients repeat these steps, with the factor 8 on their magnitudes. A weight of a 16-bit type that is below its normal
numbers is off by its smallest number, times the values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from .. import bfloat16
from .oracle import Array, accumulator, assert_equal, assert_within, gamma, numbers, reals, tensor, unit

NEW_GPU = {"silicon": True, "compute_capability": ">=8.0"}
FLASH_ON_CPU = {"not_": {"device": "cuda"}}

F64, F32, F16, BF16 = torch.float64, torch.float32, torch.float16, torch.bfloat16


@dataclass(frozen=True, slots=True)
class Path:
    """A backend, a type, and the requirements of both."""

    backend: SDPBackend
    dtype: torch.dtype
    needs: Any = None


PATHS = {
    "math-float64": Path(SDPBackend.MATH, F64),
    "math-float32": Path(SDPBackend.MATH, F32),
    "math-float16": Path(SDPBackend.MATH, F16),
    "math-bfloat16": Path(SDPBackend.MATH, BF16, bfloat16.NEEDS),
    "flash-float64": Path(SDPBackend.FLASH_ATTENTION, F64, FLASH_ON_CPU),
    "flash-float32": Path(SDPBackend.FLASH_ATTENTION, F32, FLASH_ON_CPU),
    "flash-float16": Path(SDPBackend.FLASH_ATTENTION, F16, {"any": [NEW_GPU, FLASH_ON_CPU]}),
    "flash-bfloat16": Path(
        SDPBackend.FLASH_ATTENTION, BF16, {"any": [NEW_GPU, {"all": [FLASH_ON_CPU, {"cpu_bf16": True}]}]}
    ),
    "efficient-float32": Path(SDPBackend.EFFICIENT_ATTENTION, F32, NEW_GPU),
    "efficient-float16": Path(SDPBackend.EFFICIENT_ATTENTION, F16, NEW_GPU),
    "efficient-bfloat16": Path(SDPBackend.EFFICIENT_ATTENTION, BF16, NEW_GPU),
    "cudnn-float16": Path(SDPBackend.CUDNN_ATTENTION, F16, {**NEW_GPU, "cudnn": True}),
    "cudnn-bfloat16": Path(SDPBackend.CUDNN_ATTENTION, BF16, {**NEW_GPU, "cudnn": True}),
}


def _marks(path: Path) -> list[pytest.MarkDecorator]:
    found = [pytest.mark.requires(**path.needs)] if path.needs else []
    return [*found, pytest.mark.types("float64")] if path.dtype == F64 else found


PATH = pytest.mark.parametrize("path", [pytest.param(path, marks=_marks(path), id=key) for key, path in PATHS.items()])
#: The paths that accept any mask.
MASKED = pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=_marks(path), id=key) for key, path in PATHS.items() if not key.startswith("cudnn")],
)

#: Batch, heads, queries, keys, width of a head: single elements, primes, tails of blocks of 64 and 128.
SHAPES = {
    "one": (1, 1, 1, 1, 8),
    "small": (2, 3, 5, 7, 16),
    "square": (2, 2, 64, 64, 32),
    "tails": (1, 2, 65, 129, 64),
    "long": (1, 1, 3, 513, 64),
    "wide": (1, 2, 33, 33, 128),
}
SHAPE = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())

Shape = tuple[int, int, int, int, int]

#: torch warns why a backend does not support a shape; `attend` reports the reason.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def inputs(rng: np.random.Generator, shape: Shape, dtype: torch.dtype) -> list[torch.Tensor]:
    """Return queries, keys and values on the host."""
    batch, heads, queries, keys, width = shape
    sizes = (queries, keys, keys)
    return [reals(rng, (batch, heads, size, width), dtype) for size in sizes]


def attend(
    path: Path, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, must: bool = False, **options: Any
) -> torch.Tensor:
    """Return attention with one backend.

    Skip the case if the backend on CUDA does not support the shape, unless it `must`.
    """
    with sdpa_kernel([path.backend]):
        try:
            return scaled_dot_product_attention(q, k, v, **options)
        except RuntimeError as error:
            if must or path.backend == SDPBackend.MATH or q.device.type != "cuda" or "No available" not in str(error):
                raise
            pytest.skip(f"{path.backend.name} has no kernel for {tuple(q.shape)} and {tuple(k.shape)}")


def weights_of(q: Array, k: Array, scale: float, mask: Array | None) -> Array:
    """Return the weight of each key for each query."""
    scores = q @ k.swapaxes(-1, -2) * scale
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
    raised = np.exp(scores - scores.max(-1, keepdims=True))
    return raised / raised.sum(-1, keepdims=True)


def bound_of(q: Array, k: Array, scale: float, dtype: torch.dtype, mask: Array | None = None) -> float:
    """Return the largest relative error of an output, as derived in this file's docstring."""
    u, width, keys = unit(accumulator(dtype)), q.shape[-1], k.shape[-2]
    magnitude = float((np.abs(q) @ np.abs(k).swapaxes(-1, -2)).max()) * scale
    if mask is not None and mask.dtype != bool:
        magnitude += float(np.abs(mask[np.isfinite(mask)]).max())
    return 2 * gamma(width + 6, u) * magnitude + gamma(keys + 8, u) + 4 * unit(dtype) + 1e-14


def smallest(dtype: torch.dtype) -> float:
    """Return the smallest number of a type, which is subnormal."""
    return torch.finfo(dtype).tiny * torch.finfo(dtype).eps


def assert_attention(
    found: torch.Tensor, q: Array, k: Array, v: Array, scale: float, mask: Array | None = None
) -> None:
    """Check the output of attention against NumPy's, within the bound."""
    weights = weights_of(q, k, scale, mask)
    below_normal = smallest(found.dtype) * (1 + np.abs(v).sum(-2, keepdims=True))
    assert_within(found, weights @ v, bound_of(q, k, scale, found.dtype, mask) * (weights @ np.abs(v)) + below_normal)


def below(queries: int, keys: int) -> Array:
    """Return the causal mask: query i attends to keys up to i."""
    return np.tri(queries, keys, dtype=bool)


@PATH
@SHAPE
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_attention_is_within_the_bound(
    device: torch.device, rng: np.random.Generator, path: Path, shape: Shape, causal: bool
) -> None:
    """Attention of normal numbers, with and without `is_causal`, is the weighted mean of the values."""
    if causal and shape[2] != shape[3]:
        shape = (*shape[:3], shape[2], shape[4])  # backends place the start of a non-square mask differently
    q, k, v = inputs(rng, shape, path.dtype)

    plain = shape == SHAPES["square"]
    found = attend(path, *(x.to(device) for x in (q, k, v)), must=plain, is_causal=causal)

    assert found.dtype == path.dtype
    mask = below(shape[2], shape[3]) if causal else None
    assert_attention(found, *map(numbers, (q, k, v)), scale=shape[4] ** -0.5, mask=mask)


@PATH
@pytest.mark.parametrize("size", [1, 2, 63, 64, 65, 128, 257])
def test_attention_causal_of_equal_scores_is_the_running_mean(
    device: torch.device, rng: np.random.Generator, path: Path, size: int
) -> None:
    """With queries of zero, each output under `is_causal` is the mean of the values so far: known answers.

    One key too many or too few for one query changes its output by far more than a rounding.
    """
    v = rng.integers(-8, 9, (1, 2, size, 64)).astype(np.float64)
    q, k = np.zeros_like(v), rng.standard_normal(v.shape)
    expected = v.cumsum(2) / np.arange(1, size + 1)[:, None]

    found = attend(path, *(tensor(x, path.dtype, device) for x in (q, k, v)), is_causal=True)

    sizes = np.abs(v).cumsum(2) / np.arange(1, size + 1)[:, None]
    bound = gamma(size + 8, unit(accumulator(path.dtype))) + 4 * unit(path.dtype)
    assert_within(found, expected, bound * sizes)


@PATH
@pytest.mark.parametrize("size", [7, 64, 129])
def test_attention_with_one_matching_key_is_its_value(
    device: torch.device, rng: np.random.Generator, path: Path, size: int
) -> None:
    """A query whose score is larger by 2^8 for one key than for all others gets exactly the value of that key."""
    chosen = rng.integers(0, size, size)
    codes = np.array([[1.0 if number >> bit & 1 else -1.0 for bit in range(8)] for number in range(size)])
    k = np.concatenate([codes, -codes] * 4, axis=1)[None, None]
    q = 16 * k[:, :, chosen]
    v = rng.choice([-1.0, 1.0], (1, 1, size, 64)) * rng.integers(1, 101, (1, 1, size, 64))

    found = attend(path, *(tensor(x, path.dtype, device) for x in (q, k, v)), scale=1.0)

    assert_equal(found, v[:, :, chosen])


@MASKED
@pytest.mark.parametrize("kind", ["bool", "float", "broadcast", "padding"])
def test_attention_with_a_mask(device: torch.device, rng: np.random.Generator, path: Path, kind: str) -> None:
    """A mask of bools removes keys, a mask of numbers is added to scores, and both broadcast over batch and heads."""
    batch, heads, queries, keys, width = shape = (2, 3, 17, 40, 32)
    q, k, v = inputs(rng, shape, path.dtype)
    if kind == "float":
        x = reals(rng, (batch, heads, queries, keys), path.dtype)
    elif kind == "broadcast":
        x = reals(rng, (1, 1, queries, keys), path.dtype)
    elif kind == "bool":
        x = torch.from_numpy(rng.random((batch, heads, queries, keys)) < 0.7)
        x[..., 0] = True
    else:
        x = torch.from_numpy(np.arange(keys) < np.array([keys, 9])[:, None])[:, None, None].expand(
            batch, 1, queries, keys
        )

    found = attend(path, *(y.to(device) for y in (q, k, v)), attn_mask=x.to(device))

    assert_attention(found, *map(numbers, (q, k, v)), scale=width**-0.5, mask=numbers(x))


@PATH
@pytest.mark.parametrize("scale", [1.0, 0.01, 0.37])
def test_attention_with_a_scale(device: torch.device, rng: np.random.Generator, path: Path, scale: float) -> None:
    """`scale` replaces one over the root of the head's width."""
    q, k, v = inputs(rng, (2, 2, 19, 23, 32), path.dtype)

    found = attend(path, *(x.to(device) for x in (q, k, v)), scale=scale)

    assert_attention(found, *map(numbers, (q, k, v)), scale=scale)


@PATH
@pytest.mark.parametrize("groups", [2, 4])
def test_attention_of_grouped_queries(device: torch.device, rng: np.random.Generator, path: Path, groups: int) -> None:
    """With `enable_gqa`, consecutive heads of queries share one head of keys and values."""
    q = reals(rng, (2, 2 * groups, 9, 64), path.dtype)
    k, v = reals(rng, (2, 2, 21, 64), path.dtype), reals(rng, (2, 2, 21, 64), path.dtype)

    found = attend(path, *(x.to(device) for x in (q, k, v)), enable_gqa=True)

    keys, values = (numbers(x).repeat(groups, axis=1) for x in (k, v))
    assert_attention(found, numbers(q), keys, values, scale=64**-0.5)


@PATH
@pytest.mark.parametrize("layout", ["heads_last", "sliced", "packed"])
def test_attention_of_views(device: torch.device, rng: np.random.Generator, path: Path, layout: str) -> None:
    """Views give the same result: heads that were a dimension of the sequence, slices, and parts of one tensor."""
    if layout == "packed":
        q, k, v = reals(rng, (2, 20, 3, 4, 32), path.dtype).to(device).permute(2, 0, 3, 1, 4)
    else:
        q, k, v = (reals(rng, (2, 20, 4, 64), path.dtype).to(device).transpose(1, 2) for _ in range(3))
        if layout == "sliced":
            q, k, v = (x[:, ::2, 3:, :32] for x in (q, k, v))

    found = attend(path, q, k, v)

    assert_attention(found, *map(numbers, (q, k, v)), scale=q.shape[-1] ** -0.5)


@PATH
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize(
    "shape", [SHAPES["small"], SHAPES["square"], SHAPES["tails"]], ids=["small", "square", "tails"]
)
def test_attention_gradients_are_within_the_bound(
    device: torch.device, rng: np.random.Generator, path: Path, shape: Shape, causal: bool
) -> None:
    """Gradients of queries, keys and values equal those of the formula, written out in NumPy."""
    if causal:
        shape = (*shape[:3], shape[2], shape[4])
    host = inputs(rng, shape, path.dtype)
    sent = reals(rng, (*shape[:3], shape[4]), path.dtype)
    leaves = [x.to(device).requires_grad_() for x in host]

    attend(path, *leaves, is_causal=causal).backward(sent.to(device))

    (q, k, v), g, scale = map(numbers, host), numbers(sent), shape[4] ** -0.5
    mask = below(shape[2], shape[3]) if causal else None
    p = weights_of(q, k, scale, mask)
    into = g @ v.swapaxes(-1, -2)
    row = (into * p).sum(-1, keepdims=True)
    of_scores = p * (into - row)
    larger = np.abs(g) @ np.abs(v).swapaxes(-1, -2)
    size = p * (larger + (larger * p).sum(-1, keepdims=True))
    bound = 8 * bound_of(q, k, scale, path.dtype)
    for leaf, expected, sizes, other in (
        (leaves[0], of_scores @ k * scale, size @ np.abs(k) * scale, k),
        (leaves[1], of_scores.swapaxes(-1, -2) @ q * scale, size.swapaxes(-1, -2) @ np.abs(q) * scale, q),
        (leaves[2], p.swapaxes(-1, -2) @ g, p.swapaxes(-1, -2) @ np.abs(g), g),
    ):
        assert leaf.grad is not None
        below_normal = 8 * smallest(path.dtype) * (1 + np.abs(other).sum(-2, keepdims=True))
        assert_within(leaf.grad, expected, bound * sizes + below_normal)


@PATH
def test_attention_dropout_of_zero_changes_no_bit(device: torch.device, rng: np.random.Generator, path: Path) -> None:
    """`dropout_p=0.0` gives the same bits, and so does a second call."""
    q, k, v = (x.to(device) for x in inputs(rng, (2, 2, 33, 33, 32), path.dtype))

    first, second = (attend(path, q, k, v, dropout_p=0.0) for _ in range(2))
    third = attend(path, q, k, v)

    assert torch.equal(first, second)
    assert torch.equal(first, third)


@pytest.mark.requires(silicon=True, compute_capability=">=8.0", free_memory=">=6GiB")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("backend", ["flash", "efficient", "cudnn"])
def test_attention_of_a_full_size(device: torch.device, rng: np.random.Generator, backend: str, causal: bool) -> None:
    """Attention that occupies a whole GPU, 4096 keys with tails, is within the bound."""
    path = PATHS[f"{backend}-bfloat16"]
    q, k, v = inputs(rng, (2, 16, 4001, 4001, 128), path.dtype)

    found = attend(path, *(x.to(device) for x in (q, k, v)), is_causal=causal)

    mask = below(4001, 4001) if causal else None
    for head in range(0, 16, 5):
        some = [numbers(x[:, head]) for x in (q, k, v)]
        assert_attention(found[:, head], *some, scale=128**-0.5, mask=mask)


@pytest.mark.requires(device="cuda")
@pytest.mark.parametrize("backend", ["flash", "cudnn"])
def test_can_use_attention_needs_the_switch_and_half_precision(device: torch.device, backend: str) -> None:
    """`can_use_flash_attention` and `can_use_cudnn_attention` are False for a disabled backend and for float64.

    `is_flash_attention_available` tells whether the build has flash attention.
    """
    cuda = torch.backends.cuda
    can = {"flash": cuda.can_use_flash_attention, "cudnn": cuda.can_use_cudnn_attention}[backend]
    own = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}[backend]

    def params(dtype: torch.dtype) -> Any:
        x = torch.ones(1, 2, 8, 64, device=device, dtype=dtype)
        return cuda.SDPAParams(x, x, x, None, 0.0, False, False)

    with sdpa_kernel(own):
        usable = can(params(F16))
        assert usable == can(params(F16))
        assert not can(params(F64))
    with sdpa_kernel(SDPBackend.MATH):
        assert not can(params(F16))
    if backend == "flash" and not cuda.is_flash_attention_available():
        assert not usable


@pytest.mark.requires(cuda=False, rocm=False)
def test_flash_attention_of_cuda_is_not_available_without_cuda() -> None:
    """A build without CUDA has no flash attention for it, and can use cuDNN's for no tensors."""
    x = torch.ones(1, 2, 8, 64)
    params = torch.backends.cuda.SDPAParams(x, x, x, None, 0.0, False, False)
    assert not torch.backends.cuda.is_flash_attention_available()
    assert not torch.backends.cuda.can_use_cudnn_attention(params)
