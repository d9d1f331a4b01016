"""Multi-head attention and transformer layers in NumPy, by the formulas of torch's documentation.

Arrays may be complex, for derivatives by an imaginary step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from .oracle import Array


def softmax(x: Array) -> Array:
    """Return the softmax of the last dimension."""
    powers = np.exp(x - x.real.max(-1, keepdims=True))
    found: Array = powers / powers.sum(-1, keepdims=True)
    return found


def split(x: Array, heads: int) -> Array:
    """Return (rows, steps, features) as (rows, heads, steps, features of a head)."""
    return x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)


def attention(
    query: Array, key: Array, value: Array, weights: Mapping[str, Array], heads: int, blocked: Array
) -> tuple[Array, Array]:
    """Return the result and the weights of each head. `blocked`: the steps that a step must not see."""
    parts = np.split(weights["in_proj_weight"], 3), np.split(weights["in_proj_bias"], 3)
    q, k, v = (split(x @ w.T + b, heads) for x, w, b in zip((query, key, value), *parts, strict=True))
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])
    shares = softmax(np.where(blocked, -np.inf, scores))
    mixed = (shares @ v).swapaxes(1, 2).reshape(*query.shape)
    return mixed @ weights["out_proj.weight"].T + weights["out_proj.bias"], shares


def layer_norm(x: Array, weight: Array, bias: Array, eps: float = 1e-5) -> Array:
    off = x - x.mean(-1, keepdims=True)
    found: Array = off / np.sqrt((off**2).mean(-1, keepdims=True) + eps) * weight + bias
    return found


def encoder_layer(
    x: Array,
    weights: Mapping[str, Array],
    heads: int,
    blocked: Array,
    norm_first: bool,
    active: Callable[[Array], Array],
) -> Array:
    """Return the result of an encoder layer, by the names of `nn.TransformerEncoderLayer`."""
    own = {key.removeprefix("self_attn."): each for key, each in weights.items() if key.startswith("self_attn.")}

    def attends(y: Array) -> Array:
        return attention(y, y, y, own, heads, blocked)[0]

    def feeds(y: Array) -> Array:
        inner = active(y @ weights["linear1.weight"].T + weights["linear1.bias"])
        found: Array = inner @ weights["linear2.weight"].T + weights["linear2.bias"]
        return found

    def norm(y: Array, place: int) -> Array:
        return layer_norm(y, weights[f"norm{place}.weight"], weights[f"norm{place}.bias"])

    if norm_first:
        x = x + attends(norm(x, 1))
        return x + feeds(norm(x, 2))
    x = norm(x + attends(x), 1)
    return norm(x + feeds(x), 2)
