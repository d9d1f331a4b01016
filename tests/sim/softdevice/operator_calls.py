"""A table of calls of operators: each is a function from a namespace of tensors to the call's result.

`prepare` creates the same tensors for any device; a call may change them. A result is a tensor or a sequence of
tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import torch
from torch.nn import functional as F  # noqa: N812 - its usual name

Call = Callable[[SimpleNamespace], object]


def prepare(device: str) -> SimpleNamespace:
    """Return tensors by name: floating-point ones of several shapes, integers, booleans, indices within bounds."""
    source = torch.Generator().manual_seed(7)

    def normal(*sizes: int) -> torch.Tensor:
        return torch.randn(*sizes, generator=source)

    tensors = SimpleNamespace(
        x=normal(4, 6),
        y=normal(4, 6),
        positive=normal(4, 6).abs() + 0.5,
        unit=torch.rand(4, 6, generator=source) * 0.9 + 0.05,
        row=normal(6),
        column=normal(4, 1),
        square=normal(6, 6),
        double=normal(4, 6).double(),
        half=normal(4, 6).bfloat16(),
        complex=torch.complex(normal(4, 6), normal(4, 6)),
        whole=torch.randint(-9, 9, (4, 6), generator=source),
        small=torch.randint(1, 5, (4, 6), generator=source),
        truth=torch.rand(4, 6, generator=source) > 0.5,
        index=torch.tensor([2, 0, 3, 1]),
        spots=torch.randint(0, 4, (4, 6), generator=source),
        batch=normal(3, 4, 5),
        other_batch=normal(3, 5, 2),
        added=normal(3, 4, 2),
        image=normal(2, 4, 8, 8),
        kernel=normal(6, 4, 3, 3),
        bias=normal(6),
        classes=torch.tensor([1, 5, 0, 2]),
        vocabulary=normal(10, 3),
        scalar=torch.tensor(0.5),
        sorted=torch.sort(normal(9)).values,
    )
    for name, tensor in vars(tensors).items():
        setattr(tensors, name, tensor.to(device))
    return tensors


def out_of(function: Callable[..., object], *arguments: object, like: torch.Tensor, **options: object) -> object:
    """Return the output that the function writes, which has the wrong size initially."""
    output = torch.empty(0, dtype=like.dtype, device=like.device)
    function(*arguments, out=output, **options)
    return output


def _names(text: str) -> list[str]:
    return text.split()


_ONE_OPERAND = _names(
    "abs acos acosh angle asin asinh atan atanh ceil cos cosh deg2rad digamma erf erfc erfinv exp exp2 expm1 floor "
    "frac isfinite isinf isnan isneginf isposinf lgamma log log10 log1p log2 logical_not logit nan_to_num neg positive "
    "rad2deg reciprocal relu round rsqrt sgn sigmoid sign signbit sin sinc sinh sqrt square tan tanh trunc"
)
_TWO_OPERANDS = _names(
    "add atan2 copysign div eq floor_divide fmax fmin fmod ge gt hypot le logaddexp logaddexp2 logical_and logical_or "
    "logical_xor lt maximum minimum mul ne nextafter remainder sub xlogy"
)
_WHOLE_NUMBERS = _names("bitwise_and bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor gcd lcm")
_REDUCTIONS = _names("all amax amin any argmax argmin logsumexp mean nansum prod std sum var")
_ACTIVATIONS = _names(
    "celu elu gelu hardshrink hardsigmoid hardswish hardtanh leaky_relu logsigmoid mish relu relu6 selu silu softplus "
    "softshrink softsign tanhshrink"
)


def _one(name: str) -> Call:
    return lambda t: getattr(torch, name)(t.unit)


def _two(name: str) -> Call:
    return lambda t: getattr(torch, name)(t.x, t.positive)


def _whole(name: str) -> Call:
    return lambda t: getattr(torch, name)(t.small, t.small.flip(0))


def _reduced(name: str) -> Call:
    dims = (1,) if name == "logsumexp" else ()
    return lambda t: (getattr(torch, name)(t.x, *dims), getattr(torch, name)(t.x, 1, keepdim=True))


def _activation(name: str) -> Call:
    return lambda t: getattr(F, name)(t.x)


def _gradient(function: Call, *names: str) -> Call:
    """Return the gradients of a call's sum of squares with respect to the tensors with these names."""

    def call(t: SimpleNamespace) -> object:
        leaves = []
        for name in names:
            leaf = getattr(t, name).detach().requires_grad_()
            setattr(t, name, leaf)
            leaves.append(leaf)
        result = function(t)
        assert isinstance(result, torch.Tensor)
        return torch.autograd.grad((result * result).sum(), leaves)

    return call


def _in_place(function: Callable[[SimpleNamespace], object], name: str = "x") -> Call:
    def call(t: SimpleNamespace) -> object:
        function(t)
        return getattr(t, name)

    return call


#: Calls that launch work and return immediately.
ASYNCHRONOUS: dict[str, Call] = {
    **{name: _one(name) for name in _ONE_OPERAND},
    **{name: _two(name) for name in _TWO_OPERANDS},
    **{name: _whole(name) for name in _WHOLE_NUMBERS},
    **{name: _reduced(name) for name in _REDUCTIONS},
    **{name: _activation(name) for name in _ACTIVATIONS},
    **{f"{name} backward": _gradient(_activation(name), "x") for name in _ACTIVATIONS},
    # creation and filling
    "arange": lambda t: torch.arange(1, 9, 2, device=t.x.device),
    "eye": lambda t: torch.eye(3, 5, device=t.x.device),
    "full": lambda t: torch.full((2, 3), 7.5, device=t.x.device),
    "linspace": lambda t: torch.linspace(0, 1, 7, device=t.x.device),
    "ones_like": lambda t: torch.ones_like(t.whole),
    "zeros": lambda t: torch.zeros(3, 3, device=t.x.device),
    "tril, triu": lambda t: (t.square.tril(), t.square.triu(1), t.square.clone().tril_(-1)),
    # arithmetic
    "add with alpha": lambda t: torch.add(t.x, t.y, alpha=2),
    "add of types": lambda t: (t.x + t.whole, t.half + t.x, t.whole + 1.5, t.truth + 1, t.double + t.half),
    "add of shapes": lambda t: t.x + t.row * t.column,
    "add of a scalar of the host": lambda t: t.x + torch.tensor(2.0),
    "subtraction from a number": lambda t: 1 - t.x,
    "in place": _in_place(lambda t: t.x.add_(t.y).mul_(2).sub_(t.row).div_(3).clamp_(-1, 1).neg_().exp_()),
    "division with rounding": lambda t: (t.whole // 3, torch.div(t.x, t.y, rounding_mode="trunc"), t.whole % 4),
    "power": lambda t: (t.positive**2.5, 2**t.x, t.positive**t.y),
    "addcmul, addcdiv, lerp": lambda t: (
        torch.addcmul(t.x, t.y, t.positive, value=0.5),
        torch.addcdiv(t.x, t.y, t.positive),
        torch.lerp(t.x, t.y, 0.25),
        torch.lerp(t.x, t.y, t.unit),
    ),
    "clamp": lambda t: (t.x.clamp(-0.5, 0.5), t.x.clamp(min=t.row), t.x.clamp_max(0)),
    "where": lambda t: (
        torch.where(t.truth, t.x, t.y),
        torch.where(t.truth, t.x, 0.0),
        torch.where(t.x > 0, t.row, t.y),
    ),
    "shifts": lambda t: (t.small << 2, t.small >> 1, ~t.truth),
    "complex": lambda t: (t.complex.conj() * t.complex, t.complex.real + 1, t.complex.abs(), t.complex.conj().imag + 1),
    "conjugate product": lambda t: t.complex @ t.complex.mH,
    "out": lambda t: (
        out_of(torch.add, t.x, t.y, like=t.x),
        out_of(torch.mm, t.x, t.square, like=t.x),
        out_of(torch.sum, t.x, 1, like=t.x),
        out_of(torch.abs, t.x, like=t.x),
    ),
    "strided": lambda t: (t.x.t() + t.y.t(), t.x[:, ::2] * 2, t.square[1:, 1:].sum(0), t.image.permute(0, 2, 3, 1) + 1),
    "into a view": _in_place(lambda t: t.x[1:3, ::2].fill_(9)),
    # reductions and scans
    "sum of kinds": lambda t: (
        t.whole.sum(),
        t.truth.sum(0),
        t.half.sum(),
        t.x.sum((0, 1)),
        t.x.sum(dtype=torch.float64),
    ),
    "max, min with indices": lambda t: (*t.x.max(1), *t.x.min(0), t.x.max(), t.x.min(), *t.x.aminmax(dim=1)),
    "cumsum, cumprod": lambda t: (t.x.cumsum(1), t.x.cumprod(0), torch.logcumsumexp(t.x, 1), *t.x.cummax(1)),
    "norms": lambda t: (t.x.norm(), t.x.norm(1, dim=1), torch.linalg.vector_norm(t.x, 3, dim=0)),
    "var_mean": lambda t: (*torch.var_mean(t.x, 1), *torch.std_mean(t.x)),
    "medians": lambda t: (t.x.median(), *t.x.median(1), *t.x.kthvalue(2, 1)),
    "count_nonzero": lambda t: torch.count_nonzero(t.whole, 1),
    "softmax": lambda t: (t.x.softmax(1), t.x.log_softmax(0), t.half.softmax(1)),
    "softmax backward": _gradient(lambda t: t.x.softmax(1) + t.x.log_softmax(1), "x"),
    "sum, mean, amax, norm backward": _gradient(
        lambda t: t.x.sum(1) + t.x.mean(1) + t.x.amax(1) + t.x.norm(dim=1) + t.x.var(1), "x"
    ),
    # products
    "mm": lambda t: t.x @ t.square,
    "addmm": lambda t: (torch.addmm(t.row, t.x, t.square, beta=0.5, alpha=2), t.x.addmm(t.x, t.square)),
    "addmm_": _in_place(lambda t: t.x.addmm_(t.y, t.square)),
    "bmm, baddbmm": lambda t: (t.batch @ t.other_batch, torch.baddbmm(t.added, t.batch, t.other_batch)),
    "mv, dot, outer": lambda t: (t.x @ t.row, t.row.dot(t.row), torch.outer(t.row, t.row), torch.mv(t.square, t.row)),
    "addbmm": lambda t: torch.addbmm(t.added[0], t.batch, t.other_batch),
    "einsum": lambda t: torch.einsum("bij,bjk->ik", t.batch, t.other_batch),
    "linear": lambda t: F.linear(t.x, t.square, t.row),
    "linear backward": _gradient(lambda t: F.linear(t.x, t.square, t.row), "x", "square", "row"),
    "bmm backward": _gradient(lambda t: t.batch @ t.other_batch, "batch", "other_batch"),
    "products of bfloat16": lambda t: t.half @ t.half.t(),
    # indices
    "index_select": lambda t: (t.x.index_select(0, t.index), torch.index_select(t.x, 1, t.index)),
    "gather": lambda t: t.x.gather(0, t.spots),
    "scatter": lambda t: (
        t.x.scatter(0, t.spots, 3.0),
        t.x.scatter_add(0, t.spots, t.y),
        t.x.scatter_reduce(0, t.spots, t.y, "amax"),
    ),
    "index_add, index_copy, index_fill": lambda t: (
        t.x.index_add(0, t.index, t.y),
        t.x.index_copy(0, t.index, t.y),
        t.x.index_fill(1, t.index, 2.0),
    ),
    "advanced indices": lambda t: (t.x[t.index], t.x[t.index, t.index], t.x[:, t.index], t.x[1], t.x[..., None, 2]),
    "indices of the host": lambda t: t.x[torch.tensor([0, 2])],
    "index_put": _in_place(lambda t: t.x.__setitem__((t.index, t.index), t.row[:4])),
    "index_put accumulated": lambda t: t.x.index_put((t.spots[0],), t.row, accumulate=True),
    "assignment by a mask": _in_place(lambda t: t.x.__setitem__(t.truth, 0.0)),
    "masked_fill": lambda t: (t.x.masked_fill(t.truth, 5.0), t.x.masked_fill(t.truth, t.scalar)),
    "masked_scatter": lambda t: t.x.masked_scatter(t.truth, t.y),
    "take, put": lambda t: (t.x.take(t.spots), t.x.put(t.index, t.row[:4])),
    "embedding": lambda t: F.embedding(t.spots, t.vocabulary),
    "embedding backward": _gradient(lambda t: F.embedding(t.spots, t.vocabulary), "vocabulary"),
    "gather backward": _gradient(lambda t: t.x.gather(0, t.spots) + t.x[t.index], "x"),
    "searchsorted, bucketize": lambda t: (
        torch.searchsorted(t.sorted, t.x),
        torch.bucketize(t.x, t.sorted, right=True),
    ),
    # joining, ordering, moving
    "cat, stack": lambda t: (torch.cat([t.x, t.y], 1), torch.stack([t.x, t.y]), torch.cat([t.x, t.whole])),
    "split, chunk, unbind": lambda t: [part + 1 for part in (*t.x.split(4, 1), *t.x.chunk(2), *t.x.unbind(0))],
    "flip, roll, rot90": lambda t: (t.x.flip(0, 1), t.x.roll(2, 1), t.x.roll(3), torch.rot90(t.x)),
    "sort, argsort, topk": lambda t: (*t.x.sort(1), t.x.argsort(0, descending=True), *t.x.topk(3, 1)),
    "repeat, expand, tile": lambda t: (t.x.repeat(2, 3), t.column.expand(4, 6) + 0, t.x.tile(2)),
    "reshape": lambda t: (t.x.t().reshape(3, 8), t.x.view(24) + 1, t.x.unfold(1, 2, 2) * 2, t.batch.movedim(0, 2) + 1),
    "diagonal": lambda t: (t.square.diagonal() * 2, torch.diag(t.row), t.square.trace(), torch.diag_embed(t.row)),
    "meshgrid": lambda t: [part + 0 for part in torch.meshgrid(t.row, t.row, indexing="ij")],
    # types
    "casts": lambda t: (t.x.double(), t.x.half(), t.x.int(), t.whole.float(), t.x.bool(), t.truth.to(torch.uint8)),
    "contiguous": lambda t: (t.x.t().contiguous(), t.image.contiguous(memory_format=torch.channels_last)),
    "view of another type": lambda t: t.x.view(torch.int32) + 1,
    # losses
    "mse_loss": lambda t: (F.mse_loss(t.x, t.y), F.mse_loss(t.x, t.y, reduction="none")),
    "mse_loss backward": _gradient(lambda t: F.mse_loss(t.x, t.y), "x"),
    "l1 losses": lambda t: (F.l1_loss(t.x, t.y), F.smooth_l1_loss(t.x, t.y), F.huber_loss(t.x, t.y, delta=0.5)),
    "l1 losses backward": _gradient(lambda t: F.smooth_l1_loss(t.x, t.y) + F.huber_loss(t.x, t.y), "x"),
    "cross_entropy": lambda t: (F.cross_entropy(t.x, t.classes), F.cross_entropy(t.x, t.classes, label_smoothing=0.1)),
    "cross_entropy backward": _gradient(lambda t: F.cross_entropy(t.x, t.classes, weight=t.positive[0]), "x"),
    "binary_cross_entropy": lambda t: (
        F.binary_cross_entropy(t.unit, t.truth.float()),
        F.binary_cross_entropy_with_logits(t.x, t.unit),
    ),
    "binary_cross_entropy backward": _gradient(lambda t: F.binary_cross_entropy(t.unit, t.truth.float()), "unit"),
    "kl_div": lambda t: F.kl_div(t.x.log_softmax(1), t.y.softmax(1), reduction="batchmean"),
    # layers
    "layer_norm": lambda t: F.layer_norm(t.x, (6,), t.row, t.row),
    "layer_norm backward": _gradient(lambda t: F.layer_norm(t.x, (6,), t.row), "x", "row"),
    "batch_norm": lambda t: (
        F.batch_norm(t.x, t.row.clone(), t.row.abs(), training=True),
        F.batch_norm(t.x, t.row, t.row.abs() + 1, t.row, t.row),
    ),
    "batch_norm's running statistics": _in_place(
        lambda t: F.batch_norm(t.x, t.row, torch.ones_like(t.row), training=True), "row"
    ),
    "batch_norm backward": _gradient(lambda t: F.batch_norm(t.x, None, None, t.row, training=True), "x", "row"),
    "group_norm": lambda t: F.group_norm(t.image, 2),
    "group_norm backward": _gradient(lambda t: F.group_norm(t.image, 2), "image"),
    "conv2d": lambda t: (F.conv2d(t.image, t.kernel, t.bias, padding=1), F.conv2d(t.image, t.kernel, stride=2)),
    "conv2d backward": _gradient(lambda t: F.conv2d(t.image, t.kernel, t.bias, stride=2), "image", "kernel", "bias"),
    "conv_transpose2d": lambda t: F.conv_transpose2d(t.image, t.kernel.transpose(0, 1), stride=2, output_padding=1),
    "pools": lambda t: (F.max_pool2d(t.image, 2), F.avg_pool2d(t.image, 2), F.adaptive_avg_pool2d(t.image, 3)),
    "pools backward": _gradient(lambda t: F.max_pool2d(t.image, 2) + F.avg_pool2d(t.image, 2), "image"),
    "padding": lambda t: (
        F.pad(t.x, (1, 2)),
        F.pad(t.image, (1, 1, 1, 1), "reflect"),
        F.pad(t.image, (1, 2, 0, 1), "circular"),
    ),
    "interpolate": lambda t: (F.interpolate(t.image, scale_factor=2), F.interpolate(t.image, size=5, mode="bilinear")),
    "attention": lambda t: F.scaled_dot_product_attention(t.batch, t.batch, t.batch),
    "glu": lambda t: F.glu(t.x),
    "glu backward": _gradient(lambda t: F.glu(t.x), "x"),
    # lists of tensors
    "foreach": lambda t: (
        *torch._foreach_add([t.x, t.y], 1.0),
        *torch._foreach_mul([t.x, t.row], [t.y, t.row]),
        *torch._foreach_norm([t.x, t.y]),
    ),
    "foreach in place": lambda t: torch._foreach_lerp_([t.x], [t.y], 0.5) or t.x,
}

#: Calls that run on the CPU after waiting for the stream.
SYNCHRONOUS: dict[str, Call] = {
    "nonzero": lambda t: t.truth.nonzero(),
    "masked_select": lambda t: t.x[t.truth],
    "unique": lambda t: torch.unique(t.whole, return_inverse=True, return_counts=True),
    "equal": lambda t: torch.tensor([torch.equal(t.x, t.y), torch.equal(t.x, t.x)]),
    "item": lambda t: torch.tensor(t.row[2].item()),
    "histc": lambda t: torch.histc(t.x, 5),
    "bincount": lambda t: torch.bincount(t.small.flatten()),
    "linear algebra": lambda t: (
        torch.linalg.inv(t.square),
        torch.linalg.det(t.square),
        torch.linalg.solve(t.square, t.x.t()),
        torch.linalg.qr(t.x.t()).R.abs(),
    ),
    "inverse backward": _gradient(lambda t: torch.linalg.inv(t.square), "square"),
    "fft": lambda t: torch.fft.rfft(t.x).abs(),
    "special functions": lambda t: torch.special.bessel_j0(t.x),
    "combinations": lambda t: torch.combinations(t.row, 2),
    "tril_indices": lambda t: torch.tril_indices(4, 4, device=t.x.device),
    "cdist backward": _gradient(lambda t: torch.cdist(t.x, t.y), "x"),
}
