"""Values with several options at once, of which torch's samples have one at a time."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

from . import _torch_private, oracles
from .sizes import sample, waves, whole

pytestmark = pytest.mark.filterwarnings("ignore")  # deprecated features warn

REDUCTIONS = ("none", "mean", "sum")


def _normalize() -> list[SimpleNamespace]:
    return [
        sample(waves(5, 6) * size, p=p, dim=dim, eps=0.5) for size in (0.1, 3) for p in (1.0, 3.0) for dim in (0, 1)
    ]


def _conv3d() -> list[SimpleNamespace]:
    x, weight, bias = waves(2, 4, 7, 6, 8), waves(6, 2, 3, 2, 3, phase=1), waves(6, phase=2)
    return [
        sample(x, weight, bias, stride=stride, padding=padding, dilation=dilation, groups=2)
        for stride in ((2, 1, 2), (1, 3, 1))
        for padding in ((1, 0, 1), (0, 1, 2))
        for dilation in (1, 2)
    ]


def _instance_norm() -> list[SimpleNamespace]:
    x, weight, bias = waves(2, 3, 4, 5), waves(3, phase=1), waves(3, phase=2)
    mean, variance = waves(3, phase=3), waves(3, phase=4).abs() + 0.5
    return [
        sample(x, mean, variance, weight=weight, bias=bias, use_input_stats=own, momentum=0.3, eps=0.25)
        for own in (True, False)
    ]


def _unfold() -> list[SimpleNamespace]:
    return [
        sample(waves(2, 3, 7, 9), kernel_size=(3, 2), dilation=(1, 2), padding=padding, stride=stride)
        for padding in ((1, 0), (2, 1))
        for stride in ((2, 1), (1, 3))
    ]


def _multi_margin() -> list[SimpleNamespace]:
    x, targets, weight = waves(6, 5), whole(6, high=5), waves(5, phase=1).abs()
    return [
        sample(x, targets, p=p, margin=0.6, weight=given, reduction=reduction)
        for p in (1, 2)
        for given in (None, weight)
        for reduction in REDUCTIONS
    ]


def _triplets(**more: object) -> Callable[[], list[SimpleNamespace]]:
    def build() -> list[SimpleNamespace]:
        three = [waves(6, 5, phase=phase) for phase in (0, 1, 2)]
        return [
            sample(*three, margin=2.5, swap=swap, reduction=reduction, **more)
            for swap in (True, False)
            for reduction in REDUCTIONS
        ]

    return build


def _trapezoids() -> list[SimpleNamespace]:
    return [sample(waves(4, 5, 3), dx=0.25, dim=dim) for dim in range(3)]


def _smooth_l1() -> list[SimpleNamespace]:
    return [sample(waves(6, 5), waves(6, 5, phase=1), beta=0.4, reduction=reduction) for reduction in REDUCTIONS]


def _embedding() -> list[SimpleNamespace]:
    return [
        sample(waves(7, 5), whole(3, 4, high=7), padding_idx=2, max_norm=1.5, norm_type=norm, scale_grad_by_freq=scaled)
        for norm in (1.0, 3.0)
        for scaled in (True, False)
    ]


def _embedding_bag() -> list[SimpleNamespace]:
    weight, rows = waves(7, 5), whole(9, high=7)
    named = {"offsets": torch.tensor([0, 3, 3, 9]), "include_last_offset": True, "padding_idx": 2}
    return [
        *(sample(weight, rows, mode=mode, max_norm=1.5, norm_type=1.0, **named) for mode in ("sum", "mean", "max")),
        sample(weight, rows, mode="sum", per_sample_weights=waves(9, phase=1), **named),
    ]


def _prod() -> list[SimpleNamespace]:
    return [sample(waves(3, 4, 2), dim=dim, keepdim=True, dtype=torch.float64) for dim in range(3)]


def _distance() -> list[SimpleNamespace]:
    return [
        sample(waves(4, 5), waves(4, 5, phase=1), p=p, eps=0.1, keepdim=keepdim)
        for p in (1.0, 2.0, 3.5)
        for keepdim in (True, False)
    ]


def _cross_entropy() -> list[SimpleNamespace]:
    x, targets, weight = waves(8, 5), whole(8, high=5), waves(5, phase=1).abs() + 0.5
    shares = waves(8, 5, phase=2).softmax(1)
    return [
        *(sample(x, targets, ignore_index=3, reduction=reduction) for reduction in REDUCTIONS),
        *(
            sample(x, shares, weight=given, label_smoothing=0.25, reduction=reduction)
            for given in (None, weight)
            for reduction in REDUCTIONS
        ),
    ]


def _repeats() -> list[SimpleNamespace]:
    return [sample(waves(3, 4), repeats=torch.tensor([2, 0, 1]), dim=0, output_size=3)]


def _stft() -> list[SimpleNamespace]:
    window = waves(8, phase=1).abs() + 0.2
    return [
        sample(
            waves(2, 40), n_fft=8, hop_length=hop, window=window, center=center, onesided=onesided, return_complex=True
        )
        for hop in (2, 4)
        for center in (True, False)
        for onesided in (True, False)
    ]


def _istft() -> list[SimpleNamespace]:
    window = waves(6, phase=1).abs() + 0.2
    made = []
    for onesided in (True, False):
        x = torch.complex(waves(2, 5 if onesided else 8, 9), waves(2, 5 if onesided else 8, 9, phase=1))
        options = {"hop_length": 2, "win_length": 6, "window": window, "onesided": onesided, "center": True}
        made.append(sample(x, n_fft=8, return_complex=False, **options))
    return made


#: By operator, samples with pairs of options that torch's samples lack.
PAIRS: dict[str, Callable[[], list[SimpleNamespace]]] = {
    "cumulative_trapezoid": _trapezoids,
    "istft": _istft,
    "nn.functional.conv3d": _conv3d,
    "nn.functional.cross_entropy": _cross_entropy,
    "nn.functional.embedding": _embedding,
    "nn.functional.embedding_bag": _embedding_bag,
    "nn.functional.instance_norm": _instance_norm,
    "nn.functional.multi_margin_loss": _multi_margin,
    "nn.functional.normalize": _normalize,
    "nn.functional.pairwise_distance": _distance,
    "nn.functional.smooth_l1_loss": _smooth_l1,
    "nn.functional.triplet_margin_loss": _triplets(p=1.0, eps=0.1),
    "nn.functional.triplet_margin_with_distance_loss": _triplets(),
    "nn.functional.unfold": _unfold,
    "prod": _prod,
    "repeat_interleave": _repeats,
    "stft": _stft,
    "trapezoid": _trapezoids,
    "trapz": _trapezoids,
}


@pytest.mark.parametrize("name", [pytest.param(each, marks=pytest.mark.operator(each)) for each in PAIRS])
def test_option_pairs(name: str, device: torch.device) -> None:
    """Options given together have the values of the definition, in float32."""
    info = _torch_private.operator(name)
    for each in PAIRS[name]():
        oracles.verify(name, info, each, device)
