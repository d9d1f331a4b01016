"""Overloads of aten that only gradients, compiled code or one layout call: values compared with NumPy."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from . import comparison, known
from ._torch_private import overload
from .comparison import Bound
from .references.formats import Array
from .single import CPU_OR_GPU, given, same

pytestmark = [CPU_OR_GPU, pytest.mark.filterwarnings("ignore")]  # deprecated and experimental features warn
CLOSE = Bound(64, 64)


@pytest.mark.operator("clamp_max")
def test_clamp_max_of_a_number_in_place(device: torch.device, rng: np.random.Generator) -> None:
    """`clamp_max_` replaces elements larger than the number, and keeps NaN."""
    x = np.append(rng.normal(size=40), [np.nan, np.inf, -np.inf])
    target = given(x, torch.float64, device)
    assert overload("clamp_max_.default")(target, 0.25) is target
    same(target, np.where(np.isnan(x), np.nan, np.minimum(x, 0.25)), "clamp_max_", Bound(0))


@pytest.mark.requires(not_={"accelerator": True})  # torch has the kernel for the CPU only
@pytest.mark.operator("_add_relu")
def test_add_relu_of_a_number_in_place(device: torch.device, rng: np.random.Generator) -> None:
    """`_add_relu_` adds `alpha` times the number, and replaces negative results by zero."""
    x = rng.normal(size=(5, 9))
    target = given(x, torch.float32, device)
    overload("_add_relu_.Scalar")(target, 0.5, 2)
    same(target, np.maximum(x.astype(np.float32).astype(float) + 1.0, 0), "_add_relu_", CLOSE)


@pytest.mark.operator("randperm")
@pytest.mark.parametrize("number", [0, 1, 1000, 40000])
def test_randperm_into_a_tensor_with_a_generator(device: torch.device, number: int) -> None:
    """`randperm(out=, generator=)` writes each number once, in an order that the seed determines."""
    seen = []
    for seed in (7, 7, 8):
        generator = torch.Generator(device).manual_seed(seed)
        out = torch.full((number,), -1, dtype=torch.int64, device=device)
        overload("randperm.generator_out")(number, generator=generator, out=out)
        seen.append(comparison.on_host(out).numpy())
        np.testing.assert_array_equal(np.sort(seen[-1]), np.arange(number))
    np.testing.assert_array_equal(seen[0], seen[1])
    assert number < 2 or (seen[0] != seen[2]).any()
    assert number < 2 or (seen[0] != np.arange(number)).any()


@pytest.mark.operator("nn.functional.rrelu")
def test_rrelu_keeps_its_slopes(device: torch.device, rng: np.random.Generator) -> None:
    """`rrelu_with_noise` in training multiplies negative numbers by the slopes that it writes into `noise`.

    The slopes are between the bounds; the slope of other numbers is one.
    """
    x = rng.normal(size=(20, 30))
    forms = {
        "in place": lambda x, noise: overload("rrelu_with_noise_.default")(x, noise, 0.25, 0.5, True),
        "out=": lambda x, noise: overload("rrelu_with_noise.out")(x, noise, 0.25, 0.5, True, out=torch.zeros_like(x)),
    }
    for what, run in forms.items():
        noise = torch.zeros(x.shape, dtype=torch.float64, device=device)
        found = run(given(x, torch.float64, device), noise)
        slopes = comparison.on_host(noise).numpy()
        assert ((slopes[x <= 0] >= 0.25) & (slopes[x <= 0] <= 0.5)).all(), what
        assert (slopes[x > 0] == 1).all(), what
        assert len(np.unique(slopes[x <= 0])) > 100, what
        same(found, x * slopes, f"rrelu {what}", CLOSE)


@pytest.mark.operator("index_put")
@pytest.mark.parametrize("accumulate", [False, True])
def test_index_put_impl_writes_or_adds(device: torch.device, rng: np.random.Generator, accumulate: bool) -> None:
    """`_index_put_impl_` replaces the elements at the indices, or adds to them each time that an index occurs."""
    x, values = rng.normal(size=(6, 5)), rng.normal(size=4)
    rows, columns = np.array([0, 2, 5, 2]), np.array([1, 3, 0, 3 if accumulate else 4])
    target = given(x, torch.float64, device)
    places = [given(each, torch.int64, device) for each in (rows, columns)]
    overload("_index_put_impl_.default")(target, places, given(values, torch.float64, device), accumulate, False)
    wanted = x.copy()
    if accumulate:
        np.add.at(wanted, (rows, columns), values)
    else:
        wanted[rows, columns] = values
    same(target, wanted, "_index_put_impl_", CLOSE)


@pytest.mark.operator("linalg.eigvals")
def test_eigenvalues_without_vectors(device: torch.device, rng: np.random.Generator) -> None:
    """`_linalg_eigvals` returns the eigenvalues in some order: those of a triangular matrix are its diagonal."""
    x = np.triu(rng.normal(size=(3, 6, 6)), 1)
    wanted = np.arange(1.0, 7.0) + np.arange(3)[:, None] * 10
    x += wanted[:, :, None] * np.eye(6)
    found = comparison.on_host(overload("_linalg_eigvals.default")(given(x, torch.float64, device)))
    same(found.real.contiguous().sort().values, wanted, "eigenvalues", Bound(2**12, 2**12))
    assert float(found.imag.abs().max()) == 0


@pytest.mark.operator("cholesky_solve")
@pytest.mark.parametrize("upper", [False, True])
def test_cholesky_solve_helper(device: torch.device, rng: np.random.Generator, upper: bool) -> None:
    """`_cholesky_solve_helper` solves for a batch of matrices, each given as a factor with a positive diagonal."""
    factor = np.tril(rng.normal(size=(2, 5, 5)), -1) * 0.3 + np.eye(5) * 2
    right = rng.normal(size=(2, 5, 3))
    whole = factor @ factor.transpose(0, 2, 1)
    shape = factor.transpose(0, 2, 1) if upper else factor
    arguments = [given(each, torch.float64, device) for each in (right, shape)]
    found = overload("_cholesky_solve_helper.default")(*arguments, upper)
    same(found, np.linalg.solve(whole, right), "cholesky_solve", Bound(2**10, 2**10))


@pytest.mark.operator("nn.functional.glu")
def test_second_derivative_of_glu_along_a_direction(device: torch.device, rng: np.random.Generator) -> None:
    """`glu_backward_jvp` is the derivative of glu's gradient along a direction of input and incoming gradient."""
    x, dx = rng.normal(size=(3, 8)), rng.normal(size=(3, 8))
    grad, dgrad = rng.normal(size=(3, 4)), rng.normal(size=(3, 4))

    def gradient(x: Any, grad: Any) -> Any:
        a, b = x[:, :4], x[:, 4:]
        gate = 1 / (1 + np.exp(-b))
        return np.concatenate([grad * gate, grad * a * gate * (1 - gate)], 1)

    step = 1e-30j  # a derivative by an imaginary step has no cancellation
    wanted = (gradient(x + step * dx, grad + step * dgrad) / 1e-30).imag
    arguments = [given(each, torch.float64, device) for each in (gradient(x, grad), grad, x, dgrad, dx)]
    same(overload("glu_backward_jvp.default")(*arguments, 1), wanted, "glu_backward_jvp", Bound(256, 256))


@pytest.mark.operator("nn.functional.embedding_bag")
@pytest.mark.parametrize("mode", [0, 1])
def test_gradient_of_an_embedding_bag(device: torch.device, rng: np.random.Generator, mode: int) -> None:
    """`_embedding_bag_dense_backward` adds each bag's gradient to its rows, for means divided by the bag's size."""
    rows, bags = np.array([1, 4, 1, 0, 3, 1]), np.array([0, 0, 0, 1, 1, 2])
    grad, sizes = rng.normal(size=(3, 5)), np.array([3, 2, 1])
    wanted = np.zeros((6, 5))
    np.add.at(wanted, rows, grad[bags] / (sizes[bags][:, None] if mode else 1))
    whole = [given(each, torch.int64, device) for each in (rows, bags, sizes, np.zeros(3))]
    found = overload("_embedding_bag_dense_backward.default")(
        given(grad, torch.float64, device), *whole, 6, False, mode, None
    )
    same(found, wanted, "the gradient of an embedding bag", CLOSE)


#: On the CPU only: the counts of another row are read.
_WRONG_COUNTS = "a row is divided by the count of another (https://github.com/pytorch/pytorch/issues/190063)"


@pytest.mark.operator("nn.functional.embedding", "nn.functional.embedding_bag")
@pytest.mark.parametrize("name", ["embedding", "sum", "mean"])
def test_gradients_of_embeddings_by_frequency(
    name: str, device: torch.device, rng: np.random.Generator, request: pytest.FixtureRequest
) -> None:
    """With `scale_grad_by_freq`, the gradient of each row is divided by how often the batch has the row.

    Rows occur once, twice, three times and never, in no order. Source: documentation of `torch.nn.functional.embedding`
    and `embedding_bag`.
    """
    if name != "embedding":
        known.waive(request, _WRONG_COUNTS, device)
    rows, bags = np.array([1, 4, 1, 0, 4, 3, 4]), np.array([0, 0, 0, 1, 1, 1, 1])
    grad = rng.normal(size=(7 if name == "embedding" else 2, 5))
    each = grad if name == "embedding" else grad[bags]
    shares = np.array([3, 4])[bags] if name == "mean" else 1
    wanted = np.zeros((6, 5))
    np.add.at(wanted, rows, each / (np.bincount(rows)[rows] * shares)[:, None])
    weight = given(rng.normal(size=(6, 5)), torch.float64, device).requires_grad_()
    places = given(rows, torch.int64, device)
    if name == "embedding":
        found = torch.nn.functional.embedding(places, weight, scale_grad_by_freq=True)
    else:
        starts = given([0, 3], torch.int64, device)
        found = torch.nn.functional.embedding_bag(places, weight, starts, mode=name, scale_grad_by_freq=True)
    found.backward(given(grad, torch.float64, device))
    assert weight.grad is not None
    same(weight.grad, wanted, f"the gradient of {name}", Bound(16, 16))


@pytest.mark.requires(not_={"accelerator": True})  # CUDA has the kernels of convolution_backward
@pytest.mark.operator("nn.functional.conv2d")
def test_gradients_of_the_own_convolution(device: torch.device, rng: np.random.Generator) -> None:
    """`_slow_conv2d_backward` returns the gradients of input, weight and bias, also into given tensors."""
    x, weight, grad = rng.normal(size=(2, 3, 5, 6)), rng.normal(size=(4, 3, 2, 3)), rng.normal(size=(2, 4, 4, 4))
    by_x, by_weight = np.zeros(x.shape), np.zeros(weight.shape)
    for i in range(2):
        for j in range(3):
            by_weight[:, :, i, j] = np.einsum("nohw,nchw->oc", grad, x[:, :, i : i + 4, j : j + 4])
            by_x[:, :, i : i + 4, j : j + 4] += np.einsum("nohw,oc->nchw", grad, weight[:, :, i, j])
    wanted = (by_x, by_weight, grad.sum((0, 2, 3)))
    sizes = ([2, 3], [1, 1], [0, 0])
    arguments = [given(each, torch.float64, device) for each in (grad, x, weight)]
    found = overload("_slow_conv2d_backward.output_mask")(*arguments, *sizes, [True, True, True])
    outs = [torch.zeros(each.shape, dtype=torch.float64, device=device) for each in wanted]
    names = ("grad_input", "grad_weight", "grad_bias")
    overload("_slow_conv2d_backward.grad_input")(*arguments, *sizes, **dict(zip(names, outs, strict=True)))
    for name, one, two, expected in zip(names, found, outs, wanted, strict=True):
        same(one, expected, name, Bound(256, 256))
        same(two, expected, f"{name} into a tensor", Bound(256, 256))


@pytest.mark.requires(not_={"accelerator": True})  # torch has the kernel for the CPU only
@pytest.mark.operator("nn.functional.conv3d")
def test_the_own_convolution_into_a_tensor(device: torch.device, rng: np.random.Generator) -> None:
    """`slow_conv3d_forward.output` writes the convolution into the tensor."""
    x, weight, bias = rng.normal(size=(1, 2, 4, 5, 4)), rng.normal(size=(3, 2, 2, 2, 2)), rng.normal(size=3)
    wanted = np.zeros((1, 3, 3, 4, 3)) + bias[None, :, None, None, None]
    for i, j, k in np.ndindex(2, 2, 2):
        wanted += np.einsum("ncdhw,oc->nodhw", x[:, :, i : i + 3, j : j + 4, k : k + 3], weight[:, :, i, j, k])
    out = torch.zeros(wanted.shape, dtype=torch.float64)
    a, b, c = (given(each, torch.float64, device) for each in (x, weight, bias))
    overload("slow_conv3d_forward.output")(a, b, [2, 2, 2], c, [1, 1, 1], [0, 0, 0], output=out)
    same(out, wanted, "slow_conv3d_forward", Bound(256, 256))


@pytest.mark.requires(not_={"accelerator": True})  # torch has the kernel for the CPU only
@pytest.mark.operator("sspaddmm")
def test_sspaddmm_into_a_sparse_tensor(device: torch.device, rng: np.random.Generator) -> None:
    """`sspaddmm(out=)` writes beta times a sparse matrix plus alpha times the product of a sparse and a dense one."""
    a, b, c = (np.round(rng.normal(size=shape), 3) * (rng.random(shape) < 0.4) for shape in ((4, 5), (4, 6), (6, 5)))
    out = torch.sparse_coo_tensor(torch.zeros(2, 0, dtype=torch.int64), torch.zeros(0, dtype=torch.float64), (4, 5))
    sparse = [given(each, torch.float64, device).to_sparse() for each in (a, b)]
    overload("sspaddmm.out")(*sparse, given(c, torch.float64, device), beta=2, alpha=3, out=out)
    same(out.to_dense(), 2 * a + 3 * b @ c, "sspaddmm", CLOSE)


@pytest.mark.requires(not_={"accelerator": True})  # torch has oneDNN's layout for the CPU only
@pytest.mark.operator("to_mkldnn")
def test_a_tensor_of_onednn_has_the_same_numbers(device: torch.device, rng: np.random.Generator) -> None:
    """`to_mkldnn` and back keeps every number, also for a tensor with gaps."""
    if not torch.backends.mkldnn.is_available():
        pytest.skip("this build of torch has no oneDNN")
    x = given(rng.normal(size=(4, 6)), torch.float32, device)
    for each in (x, x[:, ::2], x.t()):
        found = overload("to_mkldnn.default")(each)
        assert found.layout == torch._mkldnn
        assert torch.equal(found.to_dense(), each)


@pytest.mark.operator("from_file")
def test_a_file_is_read_as_a_tensor(rng: np.random.Generator, tmp_path: Path) -> None:
    """`from_file` maps the numbers of a file; with `shared`, writes reach the file."""
    values: Array = rng.normal(size=100)
    path = tmp_path / "numbers"
    path.write_bytes(values.tobytes())
    found = overload("from_file.default")(str(path), False, 100, dtype=torch.float64)
    same(found, values, "the file", Bound(0))
    found[0] = math.pi
    assert path.read_bytes() == values.tobytes()
    shared = overload("from_file.default")(str(path), True, 100, dtype=torch.float64)
    shared[0] = math.pi
    assert np.frombuffer(path.read_bytes())[0] == math.pi


@pytest.mark.operator("nn.functional.scaled_dot_product_attention")
def test_the_choice_of_attention_can_run(device: torch.device) -> None:
    """`_fused_sdp_choice` returns a backend of `SDPBackend` that is not disabled."""
    query = torch.ones(1, 2, 4, 8, device=device)
    choice = overload("_fused_sdp_choice.default")
    allowed = torch.nn.attention.SDPBackend
    assert choice(query, query, query) in {int(each) for each in allowed.__members__.values()} - {int(allowed.ERROR)}
    with torch.nn.attention.sdpa_kernel(allowed.MATH):
        assert choice(query, query, query) == int(allowed.MATH)


@pytest.mark.operator("_dirichlet_grad")
def test_gradient_of_dirichlet_of_two_is_that_of_beta(device: torch.device) -> None:
    """For Beta(a, 1) the distribution function is x^a, so dx/da = -x log(x) / a, here with a = 1.

    `_dirichlet_grad` divides this by 1 - x, because the other numbers share the rest.
    """
    x = np.array([0.1, 0.35, 0.5, 0.8, 0.95])
    ones = np.ones_like(x)
    found = overload("_dirichlet_grad.default")(*(given(each, torch.float64, device) for each in (x, ones, 2 * ones)))
    same(found * given(1 - x, torch.float64, device), -x * np.log(x), "_dirichlet_grad", Bound(2**36, 2**36))
