"""Inputs of sizes that reach each tail of a kernel: near powers of two, primes, and more than one block of work."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

#: Lengths for elementwise operators: vectors of 2 to 64 elements, and their tails.
LENGTHS = (1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 127, 129, 251, 255, 257, 1023, 1025, 4099, 32771)


def waves(*shape: int, dtype: torch.dtype = torch.float32, phase: float = 0.0) -> torch.Tensor:
    """Return numbers between -2 and 2 without a period, so that each exchange of two elements is visible."""
    count = 1
    for each in shape:
        count *= each
    number = torch.arange(count, dtype=torch.float64)
    return (
        (torch.sin(number * 0.7318 + phase) * 1.5 + torch.cos(number * number * 0.0137) * 0.4).reshape(shape).to(dtype)
    )


def whole(*shape: int, high: int, step: int = 7919) -> torch.Tensor:
    """Return numbers from 0 to below `high` in an irregular order."""
    count = 1
    for each in shape:
        count *= each
    return (torch.arange(count) * step + torch.arange(count) // 3).remainder(high).reshape(shape)


def sample(x: Any, *args: Any, **kwargs: Any) -> SimpleNamespace:
    """Return inputs in the form of a sample of torch's catalogue."""
    return SimpleNamespace(input=x, args=args, kwargs=kwargs)


Builder = Callable[[], list[SimpleNamespace]]


def _products() -> list[SimpleNamespace]:
    shapes = (
        (1, 1, 1),
        (3, 5, 7),
        (17, 31, 33),
        (64, 64, 64),
        (65, 129, 63),
        (127, 300, 5),
        (307, 65, 311),
        (1, 1031, 257),
    )
    return [sample(waves(m, k), waves(k, n, phase=1)) for m, k, n in shapes]


def _vectors() -> list[SimpleNamespace]:
    return [sample(waves(m, k), waves(k, phase=1)) for m, k in ((1, 1), (33, 65), (257, 1025), (1031, 17))]


def _batches() -> list[SimpleNamespace]:
    shapes = ((1, 3, 5, 7), (5, 33, 17, 31), (17, 65, 64, 63), (2, 307, 9, 305))
    return [sample(waves(b, m, k), waves(b, k, n, phase=1)) for b, m, k, n in shapes]


def _added() -> list[SimpleNamespace]:
    return [
        sample(waves(m, n, phase=2), waves(m, k), waves(k, n, phase=1), beta=0.5, alpha=1.25)
        for m, k, n in ((3, 5, 7), (65, 129, 63), (307, 33, 311))
    ]


def _linear() -> list[SimpleNamespace]:
    shapes = ((3, 5, 7), (33, 65, 129), (311, 64, 307))
    return [sample(waves(m, k), waves(n, k, phase=1), waves(n, phase=2)) for m, k, n in shapes]


def _rows(*args: Any, **kwargs: Any) -> Builder:
    """Return rows of all lengths around powers of two, few and many."""

    def build() -> list[SimpleNamespace]:
        shapes = (
            (1, 1),
            (3, 31),
            (5, 33),
            (2, 127),
            (7, 129),
            (3, 255),
            (3, 257),
            (2, 1023),
            (2, 1025),
            (1031, 3),
            (1, 8197),
        )
        return [sample(waves(*shape), *args, **kwargs) for shape in shapes]

    return build


def _columns(*args: Any, **kwargs: Any) -> Builder:
    def build() -> list[SimpleNamespace]:
        return [
            sample(waves(*shape), *args, **kwargs) for shape in ((33, 5), (129, 17), (257, 9), (1025, 3), (3, 1031))
        ]

    return build


def _convolutions(count: int, transposed: bool = False) -> Builder:
    sizes = {1: ((65,), (257,)), 2: ((17, 33), (31, 9)), 3: ((5, 9, 17), (7, 8, 9))}[count]

    def build() -> list[SimpleNamespace]:
        found = []
        for channels, out, kernel, options in (
            (3, 5, 3, {"padding": 1}), (16, 17, 3, {"stride": 2}), (8, 8, 1, {}), (6, 9, 3, {"groups": 3,
            "padding": 2, "dilation": 2}),
        ):  # fmt: skip
            for size in sizes:
                groups = options.get("groups", 1)
                first, second = (channels, out // groups) if transposed else (out, channels // groups)
                weight = waves(first, second, *[kernel] * count, phase=1)
                found.append(sample(waves(2, channels, *size), weight, waves(out, phase=2), **options))
        return found

    return build


def _pooled(count: int, **options: Any) -> Builder:
    shapes = {
        1: ((2, 3, 65), (1, 33, 129)),
        2: ((2, 3, 33, 17), (1, 33, 9, 31)),
        3: ((1, 3, 9, 17, 7), (2, 5, 5, 8, 9)),
    }[count]
    return lambda: [sample(waves(*shape), kernel, **options) for shape in shapes for kernel in (2, 3)]


def _adaptive(count: int) -> Builder:
    shapes = {1: (2, 17, 65), 2: (2, 5, 33, 17), 3: (1, 3, 9, 17, 7)}
    return lambda: [sample(waves(*shapes[count]), size) for size in (1, 3, 7)]


def _resized(mode: str, count: int) -> Builder:
    shapes = {1: (8, 5, 33), 2: (2, 5, 17, 9), 3: (1, 3, 7, 9, 5)}
    aligned = {"align_corners": True}

    def build() -> list[SimpleNamespace]:
        x = waves(*shapes[count])
        found = [sample(x, size=[each] * count, mode=mode) for each in (3, 13, 31)]
        found.append(sample(x, scale_factor=1.7, mode=mode))
        return found + (
            [sample(x, size=[19] * count, mode=mode, **aligned)] if mode.endswith(("linear", "cubic")) else []
        )

    return build


def _attention() -> list[SimpleNamespace]:
    found = []
    for queries, keys, width, causal in (
        (7, 7, 8, False),
        (33, 65, 16, False),
        (129, 129, 32, True),
        (257, 65, 64, True),
        (65, 257, 40, True),
    ):
        q, k, v = waves(2, 3, queries, width), waves(2, 3, keys, width, phase=1), waves(2, 3, keys, width, phase=2)
        found.append(sample(q, k, v, is_causal=causal))
    mask = whole(33, 65, high=3) > 0
    found.append(
        sample(waves(2, 3, 33, 16), waves(2, 3, 65, 16, phase=1), waves(2, 3, 65, 16, phase=2), attn_mask=mask)
    )
    return found


def _transforms(name: str) -> Builder:
    def build() -> list[SimpleNamespace]:
        lengths = (1, 2, 3, 5, 8, 16, 17, 31, 64, 97, 120, 128, 129, 243, 256, 509)
        complex_ = name in ("fft", "ifft", "irfft", "hfft")
        made = [waves(2, each) + 1j * waves(2, each, phase=1) if complex_ else waves(2, each) for each in lengths]
        return [
            sample(each.to(torch.complex64) if complex_ else each)
            for each in made
            if each.shape[-1] > 1 or name in ("fft", "ifft", "rfft")
        ]

    return build


def _images(name: str) -> Builder:
    def build() -> list[SimpleNamespace]:
        complex_ = name in ("fft2", "fftn", "ifft2", "ifftn", "irfft2", "irfftn")
        found = []
        for shape in ((3, 5), (2, 17, 31), (33, 64), (1, 30, 7)):
            x = waves(*shape)
            found.append(sample((x + 1j * waves(*shape, phase=1)).to(torch.complex64) if complex_ else x))
        return found

    return build


def _indexed(kind: str) -> Builder:
    def build() -> list[SimpleNamespace]:
        found = []
        for rows, columns, count in ((7, 5, 3), (65, 33, 129), (1031, 3, 257), (257, 65, 1025)):
            x = waves(rows, columns)
            index = whole(count, high=rows)
            grid = whole(count, columns, high=rows)
            source = waves(count, columns, phase=1)
            found.append({
                "gather": lambda x=x, grid=grid: sample(x, 0, grid),
                "select": lambda x=x, index=index: sample(x, 0, index),
                "add": lambda x=x, index=index, source=source: sample(x, 0, index, source),
                "copy": lambda x=x, rows=rows: sample(x, 0, torch.arange(rows - 1, -1, -1), waves(*x.shape, phase=1)),
                "scatter_add": lambda x=x, grid=grid, source=source: sample(x, 0, grid, source),
                "embedding": lambda x=x, index=index: sample(x, index),
                "take": lambda x=x: sample(x, whole(x.numel() // 2, high=x.numel())),
            }[kind]())  # fmt: skip
        return found

    return build


def _normalized(kind: str) -> Builder:
    def build() -> list[SimpleNamespace]:
        found = []
        for shape in ((3, 6, 5), (2, 12, 33), (5, 18, 17, 9), (1, 6, 1031)):
            x, channels = waves(*shape), shape[1]
            weight, bias = waves(channels, phase=1), waves(channels, phase=2)
            last = shape[-1:]
            if kind == "layer":
                found.append(sample(x, last, waves(*last, phase=1), waves(*last, phase=2)))
            elif kind == "rms":
                found.append(sample(x, last, waves(*last, phase=1)))
            elif kind == "group":
                found.append(sample(x, 3, weight, bias))
            elif kind == "instance":
                found.append(sample(x, None, None, weight, bias))
            else:
                found.append(
                    sample(
                        x, waves(channels, phase=3), waves(channels, phase=4).abs() + 0.5, weight, bias, training=True
                    )
                )
        return found

    return build


def _losses(whole_target: bool = False) -> Builder:
    def build() -> list[SimpleNamespace]:
        found = []
        for rows, columns in ((3, 5), (65, 33), (257, 9), (5, 1031)):
            x = waves(rows, columns)
            target = whole(rows, high=columns) if whole_target else waves(rows, columns, phase=1)
            found.extend(sample(x, target, reduction=each) for each in ("mean", "sum", "none"))
        return found

    return build


def _distances() -> list[SimpleNamespace]:
    shapes = ((3, 5, 4), (33, 65, 17), (129, 7, 33), (65, 257, 3))
    return [sample(waves(m, k), waves(n, k, phase=1), p=p) for m, n, k in shapes for p in (1.0, 2.0, 3.0, float("inf"))]


def _squares(symmetric: bool = False, right: bool = False) -> Builder:
    def build() -> list[SimpleNamespace]:
        found = []
        for size in (1, 2, 7, 17, 33, 65):
            x = waves(size, size) + 3 * size**0.5 * torch.eye(size)
            x = x @ x.mT / size if symmetric else x
            found.append(sample(x, waves(size, 5, phase=1)) if right else sample(x))
        return found

    return build


def _joined() -> list[SimpleNamespace]:
    return [
        sample([waves(3, a), waves(3, b, phase=1), waves(3, 1, phase=2)], 1) for a, b in ((5, 7), (33, 65), (1025, 257))
    ]


def _grid() -> list[SimpleNamespace]:
    x, grid = waves(2, 3, 17, 33), waves(2, 13, 31, 2, phase=1) * 0.6
    return [
        sample(x, grid, mode, padding, align)
        for mode in ("bilinear", "nearest")
        for padding in ("zeros", "border")
        for align in (True, False)
    ]


#: The builder of each operator's inputs.
SIZES: dict[str, Builder] = {
    "mm": _products, "matmul": _products, "bmm": _batches, "mv": _vectors, "addmm": _added,
    "nn.functional.linear": _linear,
    "dot": lambda: [sample(waves(n), waves(n, phase=1)) for n in (1, 31, 33, 1025, 8197)],
    "cumsum": _rows(1), "cumprod": _rows(1), "logcumsumexp": _rows(1), "cummax": _rows(1), "cummin": _rows(1),
    "sort": _rows(1), "argsort": _rows(1), "topk": _rows(1, 1), "median": _rows(1), "kthvalue": _rows(1, 1),
    "flip": _rows([1]),
    "softmax": _rows(1), "log_softmax": _rows(1), "logsumexp": _rows(1), "sum": _rows(1), "mean": _rows(1),
    "amax": _rows(1),
    "amin": _rows(1), "argmax": _rows(1), "argmin": _rows(1), "var": _rows(1), "std": _rows(1), "prod": _rows(1),
    "linalg.vector_norm": _rows(), "norm": _rows(), "any": _columns(0), "all": _columns(0), "nansum": _columns(0),
    "count_nonzero": _columns(0), "roll": _rows(3, 1), "triu": _columns(), "tril": _columns(), "trace": _columns(),
    "nn.functional.conv1d": _convolutions(1), "nn.functional.conv2d": _convolutions(2),
    "nn.functional.conv3d": _convolutions(3),
    "nn.functional.conv_transpose1d": _convolutions(1, True), "nn.functional.conv_transpose2d": _convolutions(2, True),
    "nn.functional.conv_transpose3d": _convolutions(3, True),
    "nn.functional.max_pool1d": _pooled(1), "nn.functional.max_pool2d": _pooled(2, padding=1),
    "nn.functional.max_pool3d": _pooled(3),
    "nn.functional.avg_pool1d": _pooled(1), "nn.functional.avg_pool2d": _pooled(2, padding=1),
    "nn.functional.avg_pool3d": _pooled(3),
    "nn.functional.adaptive_avg_pool1d": _adaptive(1), "nn.functional.adaptive_avg_pool2d": _adaptive(2),
    "nn.functional.adaptive_avg_pool3d": _adaptive(3), "nn.functional.adaptive_max_pool1d": _adaptive(1),
    "nn.functional.adaptive_max_pool2d": _adaptive(2), "nn.functional.adaptive_max_pool3d": _adaptive(3),
    "nn.functional.interpolate.nearest": _resized("nearest", 2),
    "nn.functional.interpolate.nearest-exact": _resized("nearest-exact", 2),
    "nn.functional.interpolate.linear": _resized("linear", 1),
    "nn.functional.interpolate.bilinear": _resized("bilinear", 2),
    "nn.functional.interpolate.bicubic": _resized("bicubic", 2),
    "nn.functional.interpolate.trilinear": _resized("trilinear", 3),
    "nn.functional.interpolate.area": _resized("area", 2), "nn.functional.grid_sample": _grid,
    "nn.functional.scaled_dot_product_attention": _attention,
    **{f"fft.{each}": _transforms(each) for each in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")},
    **{f"fft.{each}": _images(each) for each in ("fft2", "ifft2", "rfft2", "irfft2", "fftn", "rfftn", "irfftn")},
    "gather": _indexed("gather"), "index_select": _indexed("select"), "index_add": _indexed("add"),
    "index_copy": _indexed("copy"), "scatter_add": _indexed("scatter_add"),
    "nn.functional.embedding": _indexed("embedding"),
    "take": _indexed("take"),
    "nn.functional.layer_norm": _normalized("layer"), "nn.functional.rms_norm": _normalized("rms"),
    "nn.functional.group_norm": _normalized("group"), "nn.functional.instance_norm": _normalized("instance"),
    "nn.functional.batch_norm": _normalized("batch"),
    "nn.functional.mse_loss": _losses(), "nn.functional.l1_loss": _losses(), "nn.functional.smooth_l1_loss": _losses(),
    "nn.functional.huber_loss": _losses(), "nn.functional.cross_entropy": _losses(True),
    "cdist": _distances, "linalg.inv": _squares(), "linalg.solve": _squares(right=True), "linalg.det": _squares(),
    "linalg.slogdet": _squares(), "linalg.cholesky": _squares(symmetric=True), "linalg.eigh": _squares(symmetric=True),
    "linalg.eigvalsh": _squares(symmetric=True), "linalg.svd": _squares(), "linalg.svdvals": _squares(),
    "linalg.qr": _squares(),
    "linalg.eigvals": _squares(), "linalg.eig": _squares(), "linalg.lu_factor": _squares(), "linalg.lu": _squares(),
    "cat": _joined, "unique": lambda: [sample(whole(n, high=max(2, n // 3))) for n in (5, 65, 1031)],
    "bincount": lambda: [sample(whole(n, high=max(2, n // 3))) for n in (5, 65, 1031)],
    "nn.functional.nll_loss": lambda: [
        sample(waves(3, 5, 9, 11), whole(3, 9, 11, high=5), reduction=each) for each in ("mean", "sum", "none")
    ],
    "nn.functional.unfold": lambda: [sample(waves(2, 3, 17, 9), 3, padding=1), sample(waves(1, 5, 8, 31), 2, stride=2)],
    "native_dropout_backward": lambda: [sample(waves(n), whole(n, high=2) > 0, 1.25) for n in (5, 33, 1031)],
    "nonzero": lambda: [sample(whole(n, 3, high=3)) for n in (5, 65, 1031)],
}  # fmt: skip
