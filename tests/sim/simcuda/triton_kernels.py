"""Kernels of Triton, for the checks of its launches and of races."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, unused-ignore"
# Triton's compiler takes no other annotations.

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def plus(x, y):
    return x + y


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):  # noqa: N803
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = places < n
    tl.store(out + places, plus(tl.load(x + places, mask=mask), tl.load(y + places, mask=mask)), mask=mask)


@triton.jit
def softmax(x, out, n, BLOCK: tl.constexpr):  # noqa: N803
    row, places = tl.program_id(0), tl.arange(0, BLOCK)
    value = tl.load(x + row * n + places, mask=places < n, other=-float("inf"))
    power = tl.exp(value - tl.max(value, axis=0))
    tl.store(out + row * n + places, power / power.sum(axis=0), mask=places < n)


@triton.jit
def sums(x, out, BLOCK: tl.constexpr):  # noqa: N803
    row = tl.program_id(0)
    tl.store(out + row, tl.sum(tl.load(x + row * BLOCK + tl.arange(0, BLOCK))))


@triton.jit
def product(x, y, out, SIZE: tl.constexpr, PRECISION: tl.constexpr = None):  # noqa: N803
    rows, columns = tl.arange(0, SIZE)[:, None], tl.arange(0, SIZE)[None, :]
    left, right = tl.load(x + rows * SIZE + columns), tl.load(y + rows * SIZE + columns)
    value = tl.dot(left, right, input_precision=PRECISION)
    tl.store(out + rows * SIZE + columns, value.to(out.dtype.element_ty))


@triton.jit
def choose(x, y, out, BLOCK: tl.constexpr):  # noqa: N803
    places = tl.arange(0, BLOCK)
    one, other = tl.load(x + places), tl.load(y + places)
    tl.store(out + places, tl.where(one > other, one * other + 1.5, one - other))


@triton.jit
def sine(x, out, BLOCK: tl.constexpr):  # noqa: N803
    places = tl.arange(0, BLOCK)
    tl.store(out + places, tl.extra.libdevice.asin(tl.load(x + places)))


@triton.jit
def gather(x, index, out, BLOCK: tl.constexpr):  # noqa: N803
    places = tl.arange(0, BLOCK)
    tl.store(out + places, tl.load(x + tl.load(index + places)))


@triton.jit
def count(counter):
    tl.atomic_add(counter, 1)


@triton.jit
def fill_with_sum(x, start, BLOCK: tl.constexpr):  # noqa: N803
    places = start + tl.arange(0, BLOCK)
    tl.store(x + places, tl.sum(tl.load(x + places), axis=0))


@triton.jit(debug=True)
def expect(x):
    tl.device_assert(tl.load(x) == 1.0, "not one")


@triton.jit
def increase(x, n, BLOCK: tl.constexpr):  # noqa: N803
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + places, tl.load(x + places, mask=places < n) + 1, mask=places < n)


@triton.jit
def sizes(out):
    tl.store(out, tl.extra.cuda.num_threads())
    tl.store(out + 1, tl.extra.cuda.num_warps())


@triton.jit
def share(x, SIZE: tl.constexpr):  # noqa: N803
    rows, columns = tl.arange(0, SIZE)[:, None], tl.arange(0, SIZE)[None, :]
    value = tl.load(x + rows * SIZE + columns)
    tl.store(x + rows * SIZE + columns, tl.dot(value, value))


# What the interpreter does not have.


@triton.jit
def scaled(x, y, scale, out):
    rows, columns = tl.arange(0, 32)[:, None], tl.arange(0, 32)[None, :]
    a, b = tl.load(x + rows * 32 + columns), tl.load(y + rows * 32 + columns)
    scales = tl.load(scale + tl.arange(0, 32)[:, None])
    tl.store(out + rows * 32 + columns, tl.dot_scaled(a, scales, "e5m2", b, scales, "e5m2"))


@triton.jit
def halved(x):
    return x / 2


@triton.jit
def mapped(x):
    tl.store(x + tl.arange(0, 32), tl.map_elementwise(halved, tl.load(x + tl.arange(0, 32))))


@triton.jit
def describe(x):
    part = tl.make_tensor_descriptor(x, shape=[64], strides=[1], block_shape=[64])
    part.atomic_add([0], part.load([0]))


@triton.jit
def add_in_bfloat16(x):
    tl.atomic_add(x, tl.load(x))


@triton.jit
def now(x):
    tl.store(x, tl.extra.cuda.globaltimer().to(tl.float32))


@triton.jit
def assembly(x):
    value = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [tl.load(x)], dtype=tl.float32, is_pure=True, pack=1)
    tl.store(x, value)
