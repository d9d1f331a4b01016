"""The classes of tensors and storages returned by conversion methods."""

from __future__ import annotations

import pytest
import torch

pytestmark = pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")

ON_HOST = {
    "double": (torch.DoubleTensor, torch.DoubleStorage),
    "float": (torch.FloatTensor, torch.FloatStorage),
    "half": (torch.HalfTensor, torch.HalfStorage),
    "bfloat16": (torch.BFloat16Tensor, torch.BFloat16Storage),
    "long": (torch.LongTensor, torch.LongStorage),
    "int": (torch.IntTensor, torch.IntStorage),
    "short": (torch.ShortTensor, torch.ShortStorage),
    "char": (torch.CharTensor, torch.CharStorage),
    "byte": (torch.ByteTensor, torch.ByteStorage),
    "bool": (torch.BoolTensor, torch.BoolStorage),
}
METHODS = pytest.mark.parametrize("method", ON_HOST)


@METHODS
def test_type_methods_on_the_cpu_give_their_class(method: str) -> None:
    """On the CPU, a conversion method returns a tensor or storage of its class and no other, with the same values."""
    x = torch.arange(5).float()
    tensor, storage = getattr(x, method)(), getattr(x.storage(), method)()

    for name, (tensor_class, storage_class) in ON_HOST.items():
        assert isinstance(tensor, tensor_class) == (name == method), name
        assert isinstance(storage, storage_class) == (name == method), name
    wanted = [0, 1, 1, 1, 1] if method == "bool" else [0, 1, 2, 3, 4]
    assert tensor.float().tolist() == wanted
    assert list(storage) == wanted


@pytest.mark.covers("test_cuda::TestCuda::test_type_conversions")
@pytest.mark.requires(device="cuda")
@METHODS
def test_type_methods_on_a_gpu_and_back_give_their_class(device: torch.device, method: str) -> None:
    """On a GPU, tensors and storages have CUDA classes after a conversion, and CPU classes after a copy back."""
    x = torch.randn(5, 5).abs() * 10
    tensor_class, storage_class = ON_HOST[method]
    there_class = getattr(torch.cuda, tensor_class.__name__)

    there = getattr(x.to(device), method)()
    stored = getattr(x.storage().cuda(device.index), method)()

    assert isinstance(there, there_class)
    assert not isinstance(there, tensor_class)
    assert isinstance(there.cpu(), tensor_class)
    assert isinstance(there.cpu().int(), torch.IntTensor)
    assert torch.equal(there.cpu(), getattr(x, method)())
    assert isinstance(stored, getattr(torch.cuda, storage_class.__name__))
    assert isinstance(stored.cpu(), storage_class)
    assert isinstance(stored.cpu().int(), torch.IntStorage)
    assert list(stored.cpu()) == getattr(x, method)().flatten().tolist()
