"""A program of checks for simulated devices (see `checks`), for layers and for operators on lists.

Each check compares the results with the CPU's, or with the known behaviour of CUDA's kernels.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import Any

import torch
from torch.nn import functional

HALVES = (torch.float16, torch.bfloat16)
aten: Any = torch.ops.aten  # untyped


def refused(message: str, work: Callable[[], object]) -> None:
    found = "nothing was refused"
    try:
        work()
    except (RuntimeError, ValueError) as error:
        found = str(error)
    assert message in found, found


def check_convolutions_without_channels() -> None:
    for dim, bias, stride in product((1, 2, 3), (False, True), (1, 2)):
        found = []
        for device in ("cpu", "cuda"):
            shapes: list[tuple[int, ...]] = [(2, 0, *[5] * dim), (4, 0, *[3] * dim), *([(4,)] if bias else [])]
            given = [torch.ones(shape, device=device, requires_grad=True) for shape in shapes]
            out = getattr(functional, f"conv{dim}d")(*given, stride=stride)
            out.sum().backward()
            found.append([out.detach().cpu(), *(each.grad.cpu() for each in given if each.grad is not None)])
        for here, there in zip(*found, strict=True):
            torch.testing.assert_close(here, there)


def check_one_padding_for_all_dimensions() -> None:
    for dtype in (torch.float32, torch.complex64):
        images, weight = (torch.rand(1, 1, 1, 1, size, dtype=dtype) for size in (10, 4))
        out = functional.conv3d(images.cuda(), weight.cuda(), padding="valid")
        torch.testing.assert_close(out.cpu(), functional.conv3d(images, weight))


def check_layouts_of_convolutions() -> None:
    """cuDNN's layouts: channels last if the input or the weight has it, but not for float64."""
    formats = {2: torch.channels_last, 3: torch.channels_last_3d}
    for (dim, last), dtype in product(formats.items(), (torch.float32, torch.float64)):
        images = torch.rand(2, 8, *[4] * dim, dtype=dtype, device="cuda")
        weight = torch.rand(4, 8, *[3] * dim, dtype=dtype, device="cuda").to(memory_format=last)
        out = getattr(functional, f"conv{dim}d")(images, weight)
        sizes = ([1] * dim, [0] * dim, [1] * dim, False, [0] * dim, 1)
        results = [out, *aten.convolution_backward(out, images, weight, [4], *sizes, [True, True, False])[:2]]
        wanted = last if dtype is torch.float32 else torch.contiguous_format
        assert all(each.is_contiguous(memory_format=wanted) for each in results), (dim, dtype)


def check_layouts_of_cudnn_by_name() -> None:
    """The layouts also apply if torch itself would not choose cuDNN."""
    last = torch.channels_last
    images, weight = torch.rand(2, 4, 6, 6, device="cuda").to(memory_format=last), torch.rand(4, 1, 3, 3, device="cuda")
    sizes = ((1, 1), (0, 0), (1, 1), 4)
    with torch.backends.cudnn.flags(enabled=False):
        plain = functional.conv2d(images, weight, groups=4)
        relu = torch.cudnn_convolution_relu(images, weight, None, *sizes)
        added = torch.cudnn_convolution_add_relu(images, weight, relu, 2.0, None, *sizes)
    assert plain.is_contiguous()
    assert all(each.is_contiguous(memory_format=last) for each in (relu, added))
    assert torch.equal(relu, plain.relu())


def check_large_convolutions_that_do_not_fit() -> None:
    images, weight = torch.ones(1, 3, 200, 200, device="cuda"), torch.ones(4, 2, 3, 3, device="cuda")
    refused("to have 2 channels", lambda: functional.conv2d(images, weight))


def check_layers_of_16_bits() -> None:
    """The CPU has no kernels for them; CUDA computes in float32, and rounds once."""
    classes, labels = torch.tensor([1, 0]), torch.tensor([[1, 0, -1]] * 2)
    layers: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], Sequence[int]]] = {
        "mean of windows": (torch.nn.AvgPool3d(3, 2), (2, 3, 6, 6, 6)),
        "antialiased": (lambda x: functional.interpolate(x, (3, 4), mode="bilinear", antialias=True), (1, 2, 9, 9)),
        "antialiased, cubic": (
            lambda x: functional.interpolate(x, (3, 4), mode="bicubic", antialias=True),
            (1, 2, 9, 9),
        ),
        "margins": (lambda x: functional.multi_margin_loss(x, classes.to(x.device)), (2, 5)),
        "margins of labels": (lambda x: functional.multilabel_margin_loss(x, labels.to(x.device)), (2, 3)),
        "derivative of digamma": (lambda x: torch.special.polygamma(1, x.abs() + 1), (5,)),
    }
    torch.manual_seed(1)
    for dtype, (name, (layer, shape)) in product(HALVES, layers.items()):
        values = torch.randn(shape).to(dtype)
        found = []
        for given in (values.cuda(), values.float()):
            given.requires_grad_()
            out = layer(given)
            assert out.dtype is given.dtype, (name, out.dtype)
            (grad,) = torch.autograd.grad(out.sum(), given)
            found.append((out.detach().cpu().float(), grad.cpu().float()))
        error = 2 * torch.finfo(dtype).eps
        for here, there in zip(*found, strict=True):
            torch.testing.assert_close(here, there, atol=error, rtol=error, msg=(name + ": {}").format)


def check_windows_of_16_bits() -> None:
    for dtype in HALVES:
        large = torch.ones(1, 1, 1 << 17, 1, 1, device="cuda", dtype=dtype)
        assert functional.avg_pool3d(large, 1).eq(1).all()
        out = torch.empty(1, 1, 1, 1, 1, device="cuda", dtype=dtype)
        assert aten.avg_pool3d.out(large[:, :, :2], [2, 1, 1], out=out) is out
        assert out.item() == 1
        small = large[:, :, :2]
        refused("smaller than kernel size", partial(functional.avg_pool3d, small, 3))


def check_layouts_of_windows() -> None:
    volumes = torch.randn(2, 5, 6, 6, 6, device="cuda").to(memory_format=torch.channels_last_3d)
    for given in (volumes, volumes[0].clone()):
        results = aten.max_pool3d_with_indices(given, [3], [1])
        wanted = aten.max_pool3d_with_indices(given.contiguous(), [3], [1])
        for result, plain in zip(results, wanted, strict=True):
            batch = result if result.dim() == 5 else result.unsqueeze(0)
            assert batch.is_contiguous(memory_format=torch.channels_last_3d), (result.shape, result.stride())
            assert plain.is_contiguous()
            assert torch.equal(result, plain)
    images = torch.randn(2, 5, 6, 6, device="cuda").to(memory_format=torch.channels_last)
    averages = functional.adaptive_avg_pool2d(images, 3)
    assert averages.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(averages, functional.adaptive_avg_pool2d(images.contiguous(), 3))


def check_shapes_of_bags() -> None:
    flat, square = (torch.zeros(shape, dtype=torch.int64, device="cuda") for shape in ((2,), (2, 2)))
    functions: tuple[Any, ...] = (torch.embedding_bag, torch._embedding_bag, torch._embedding_bag_forward_only)
    for rows, bags in product((4, 100_000), functions):
        table = torch.zeros(rows, 2, device="cuda")
        for given, message in (
            ((table, flat[0], flat), "input has to be a 1D or 2D Tensor, but got Tensor of dimension 0"),
            ((table, flat, square), "offsets has to be a 1D Tensor, but got Tensor of dimension 2"),
            ((table[None], flat, flat), "weight has to be a 2D Tensor, but got Tensor of dimension 3"),
            ((table, flat, flat[:0], False, 0, False, None, True), "numBags should be at least 1"),
        ):
            refused(message, partial(bags, *given))


def entries(rows: Sequence[int], values: Sequence[float], dtype: torch.dtype = torch.float32, size: int = 10) -> Any:
    indices = torch.tensor([rows], dtype=torch.int64)
    numbers = torch.tensor(values, dtype=dtype)
    return torch.sparse_coo_tensor(indices, numbers, (size,), device="cuda", check_invariants=True)


def check_sums_of_sparse_tensors() -> None:
    """CUDA concatenates entries, after type promotion, and merges them once there are more of them than elements."""
    for dtype in (*HALVES, torch.float32, torch.int64, torch.bool):
        first, second = entries([7, 1], [1, 0], dtype), entries([1, 7], [1, 1], dtype)
        total = first + second
        assert (total._indices().tolist(), total._values().tolist()) == ([[7, 1, 1, 7]], [1, 0, 1, 1]), total
        assert (total.dtype, total.is_coalesced()) == (dtype, False), total
        first.add_(second)
        assert first._indices().tolist() == [[7, 1, 1, 7]], first
    assert torch.add(entries([2], [1]), entries([3], [1]), alpha=3)._values().tolist() == [1, 3]
    assert (entries([2], [1], torch.float16) + entries([3], [1])).dtype is torch.float32
    assert (entries([0, 1], [1, 1], size=3) + entries([0, 1], [1, 1], size=3))._values().tolist() == [2, 2]
    out = entries([], [], torch.float64, size=1)
    torch.add(entries([1], [1], size=4), entries([2], [1], size=4), out=out)
    assert out.to_dense().tolist() == [0, 1, 1, 0]


def check_sums_with_empty_sparse_tensors() -> None:
    empty, merged = entries([], []), entries([2, 2], [1, 1]).coalesce()
    for total in (empty + merged, merged + empty):
        assert (total.is_coalesced(), total._values().tolist()) == (True, [2]), total
        total._values().zero_()  # this must not change the other tensor
    assert merged._values().tolist() == [2]


def check_sums_of_sparse_tensors_that_do_not_fit() -> None:
    ones = torch.ones(2, 2, device="cuda")
    refused("to have same size", lambda: entries([1], [1]) + entries([1], [1], size=11))
    refused("to have same density", lambda: ones.to_sparse(1) + ones.to_sparse(2))
    refused("'self' to be a CUDA tensor, but got a CPU tensor", lambda: torch.ones(2, 2) + ones.to_sparse())
    refused("'self' to be CUDA, but got CPU", lambda: torch.ones(2, 2).to_sparse() + ones.to_sparse())


def check_sparse_gradients_are_not_merged() -> None:
    for dtype in (torch.float16, torch.float64):
        layer = torch.nn.Embedding(10, 3, sparse=True, device="cuda", dtype=dtype)
        for _ in range(2):
            layer(torch.tensor([7, 1, 3], device="cuda")).sum().backward()
        assert layer.weight.grad is not None
        assert layer.weight.grad._indices().tolist() == [[7, 1, 3, 7, 1, 3]]
        assert layer.weight.grad._values().eq(1).all()


def check_interpolation_takes_no_bytes() -> None:
    images = torch.ones(1, 3, 8, 8, dtype=torch.uint8, device="cuda")
    for mode, antialias in product(("bilinear", "bicubic"), (False, True)):
        work = partial(functional.interpolate, images, (4, 4), mode=mode, antialias=antialias)
        refused("not implemented for 'Byte'", work)


def check_grid_samples_of_halves_are_rounded_once() -> None:
    torch.manual_seed(1)
    for dtype, dim in product(HALVES, (2, 3)):
        images = torch.randn(2, 4, *[6] * dim).to(dtype)
        grid = (torch.rand(2, *[5] * dim, dim) * 2 - 1).to(dtype)
        out = functional.grid_sample(images.cuda(), grid.cuda(), align_corners=False)
        wanted = functional.grid_sample(images.double(), grid.double(), align_corners=False)
        torch.testing.assert_close(out.cpu(), wanted.to(dtype))


def check_norms_of_halves_are_rounded_once_and_keep_statistics_in_float32() -> None:
    torch.manual_seed(1)
    for dtype in HALVES:
        x = torch.randint(1, 10, (3, 4, 8)).to(dtype).cuda()
        layer = [torch.rand(8).to(dtype).cuda() for _ in range(2)]
        channels = [torch.rand(4).to(dtype).cuda() for _ in range(2)]
        for training in (True, False):
            running = [torch.full((4,), value, dtype=dtype, device="cuda") for value in (0.5, 2.0)]
            wide = [each.float() for each in running]
            given = aten.native_batch_norm(x, *channels, *running, training, 0.1, 1e-5)
            wanted = aten.native_batch_norm(x.float(), *(each.float() for each in channels), *wide, training, 0.1, 1e-5)
            assert [each.dtype for each in given] == [dtype, torch.float32, torch.float32]
            assert [tuple(each.shape) for each in given] == [(3, 4, 8), (4,), (4,)]
            for here, there in zip((*given, *running), (*wanted, *wide), strict=True):
                assert torch.equal(here, there.to(here.dtype))
            if not training:
                torch.testing.assert_close(given[1:], (running[0].float(), (running[1].float() + 1e-5).rsqrt()))
        given = aten.native_layer_norm(x, (8,), *layer, 1e-5)
        wanted = aten.native_layer_norm(x.float(), (8,), *(each.float() for each in layer), 1e-5)
        assert [each.dtype for each in given] == [dtype, torch.float32, torch.float32]
        for here, there in zip(given, wanted, strict=True):
            assert torch.equal(here, there.to(here.dtype))
        for module in (torch.nn.BatchNorm1d(4), torch.nn.LayerNorm(8)):
            gradients = []
            for kind in (dtype, torch.float32):
                with torch.backends.cudnn.flags(enabled=False):
                    leaf = x.clone().to(kind).requires_grad_()
                    (module.to("cuda", kind)(leaf) * x.to(kind)).sum().backward()
                assert leaf.grad is not None
                gradients.append(leaf.grad)
            torch.testing.assert_close(gradients[0], gradients[1].to(dtype), rtol=0.05, atol=0.01)


def check_nested_tensors() -> None:
    torch.manual_seed(1)
    parts = [torch.rand(2, 8), torch.rand(3, 8)]
    weight, bias, projection, offset = torch.rand(8), torch.rand(8), torch.rand(24, 8), torch.rand(24)

    def found(device: str) -> list[torch.Tensor]:
        nested = torch.nested.nested_tensor([part.to(device) for part in parts])
        twice = torch.nested.nested_tensor([torch.stack((part, part)).to(device) for part in parts])
        joined = functional.linear(nested, projection.to(device))
        mask = torch.ones(2, 3, dtype=torch.bool, device=device)
        mask[0, 2] = False
        return [
            nested.to_padded_tensor(0.5),
            nested.to_padded_tensor(0.5, (2, 4, 9)),
            functional.layer_norm(nested, (8,), weight.to(device), bias.to(device)).to_padded_tensor(0.0),
            torch.bmm(nested, nested.transpose(1, 2)).to_padded_tensor(0.0),
            torch.matmul(twice, twice.transpose(2, 3)).to_padded_tensor(0.0),
            *aten._transform_bias_rescale_qkv(joined, offset.to(device), 2),
            aten._nested_tensor_from_mask(nested.to_padded_tensor(0.0), mask).to_padded_tensor(2.0),
        ]

    for here, there in zip(found("cuda"), found("cpu"), strict=True):
        torch.testing.assert_close(here.cpu(), there)
    nested = torch.nested.nested_tensor([part.cuda() for part in parts])
    refused("requires weight and bias", lambda: functional.layer_norm(nested, (8,)))


def check_encoder_of_sequences_with_padding() -> None:
    torch.manual_seed(1)
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
    encoder = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=True).eval()
    x, padding = torch.rand(3, 4, 8), torch.zeros(3, 4, dtype=torch.bool)
    padding[0, 3] = padding[1, 1:] = True
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that nested tensors are a prototype
        wanted = encoder(x, src_key_padding_mask=padding)
        found = encoder.cuda()(x.cuda(), src_key_padding_mask=padding.cuda())
    torch.testing.assert_close(found.cpu(), wanted)


def check_margin_losses_of_one_sample_are_one_number() -> None:
    for shape, target, multilabel, wanted in (
        ((5,), 1, False, ()),
        ((5,), [1], False, (1,)),
        ((2, 5), [1, 0], False, (2,)),
        ((), 0, True, ()),
        ((5,), [0, -1, 1, 2, 3], True, ()),
        ((2, 5), [[0, -1, 1, 2, 3]] * 2, True, (2,)),
    ):
        loss = functional.multilabel_margin_loss if multilabel else functional.multi_margin_loss
        for reduction in ("none", "mean"):
            x = torch.rand(shape, requires_grad=True)
            there = x.detach().cuda().requires_grad_()
            expected = loss(x, torch.tensor(target), reduction=reduction)
            found = loss(there, torch.tensor(target, device="cuda"), reduction=reduction)
            assert found.shape == (wanted if reduction == "none" else ())
            torch.testing.assert_close(found.detach().cpu(), expected.detach().view_as(found))
            torch.autograd.backward([found.sum(), expected.sum()])
            torch.testing.assert_close(there.grad.cpu() if there.grad is not None else None, x.grad)
    for loss, like in ((functional.multi_margin_loss, ()), (functional.multilabel_margin_loss, (0,))):
        for samples in ((), (3,)):  # without classes there is nothing to choose from
            x = torch.rand(*samples, 0, device="cuda")
            y = torch.zeros(*(samples or (3,)), *like, dtype=torch.int64, device="cuda")
            refused("Expected non-empty", partial(loss, x, y))


def kernels(work: Callable[[], object]) -> list[str]:
    """Return the names of the kernels that `work` launches."""
    torch.cuda.synchronize()
    with torch.profiler.profile() as taken:
        work()
        torch.cuda.synchronize()
    return [event.name for event in taken.events() if event.device_type.name == "CUDA"]


def on_both(operator: Callable[..., Any], *lists: Sequence[torch.Tensor], **others: Any) -> list[str]:
    """Compare the results of an operator on lists with the CPU's. Return the names of its kernels."""
    wanted = operator(*([each.clone() for each in given] for given in lists), **others)
    found: list[Any] = []
    given = [[each.cuda() for each in one] for one in lists]
    launched = kernels(lambda: found.append(operator(*given, **others)))
    for here, there in zip(found[0], wanted, strict=True):
        torch.testing.assert_close(here.cpu(), there)
    return launched


def copied(to: list[torch.Tensor], source: list[torch.Tensor]) -> list[torch.Tensor]:
    torch._foreach_copy_(to, source)
    return to


def check_operators_on_lists_are_one_kernel() -> None:
    one, two = ([torch.rand(size) + 0.5 for size in (3, 1, 20)] for _ in range(2))
    whole = [torch.arange(size) for size in (3, 1, 20)]
    for launched in (
        on_both(torch._foreach_exp, one),
        on_both(torch._foreach_abs, whole),
        on_both(torch._foreach_max, one),
        on_both(torch._foreach_add, one, two, alpha=3),
        on_both(torch._foreach_mul, whole, whole),
        on_both(partial(torch._foreach_add, scalars=[1.0, 2.0, 3.0]), one),
        on_both(partial(torch._foreach_addcdiv, scalars=torch.tensor([1.0, 2.0, 3.0])), one, two, one),
        on_both(torch._foreach_lerp, one, two, weight=0.25),
        on_both(partial(torch._foreach_pow, 2.0), one),
        on_both(copied, one, whole),
        *(on_both(partial(torch._foreach_norm, ord=order), one) for order in (1, 2, float("inf"))),
    ):
        assert launched == ["multi_tensor_apply_kernel"], launched


def check_operators_on_lists_with_types_that_change_are_a_kernel_each() -> None:
    one, whole = [torch.rand(2), torch.rand(3)], [torch.arange(2), torch.arange(3)]
    for launched in (
        on_both(torch._foreach_exp, whole),
        on_both(partial(torch._foreach_add, scalar=1.5), whole),
        on_both(torch._foreach_div, whole, [each + 1 for each in whole]),
        on_both(partial(torch._foreach_norm, ord=3), one),
        on_both(torch._foreach_abs, [each.to(torch.complex64) for each in one]),
        on_both(torch._foreach_add, [torch.rand(2, 3).t()] * 2, [torch.rand(3, 2)] * 2),
        on_both(copied, one, [whole[0], one[1]]),
    ):
        assert len(launched) > 1
        assert "multi_tensor_apply_kernel" not in launched, launched


def check_operators_on_lists_in_place_move_each_version_by_one() -> None:
    for dtype, scalar in ((torch.float32, 1.0), (torch.int64, 1)):
        given = [torch.ones(size, dtype=dtype, device="cuda") for size in (2, 3)]
        torch._foreach_add_(given, scalar)
        assert [each._version for each in given] == [1, 1]
    for numbers in ([2.0, 1], [2.0, True]):  # the launch of the second one must not be taken for a known kind
        given = [torch.ones(2, device="cuda"), torch.ones(3, device="cuda")]
        if numbers[1] is True:
            refused("bool tensor", partial(torch._foreach_sub_, given, numbers))
        else:
            torch._foreach_sub_(given, numbers)
    refused("complex", lambda: torch._foreach_maximum([torch.ones(2, dtype=torch.complex64, device="cuda")], 1.0))
    refused("same number", lambda: torch._foreach_mul([torch.ones(2, device="cuda")], []))


def run(check: Callable[[], None]) -> None:
    check()
    torch.cuda.synchronize()
