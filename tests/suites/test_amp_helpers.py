"""The mixed-precision suite's helpers: the table of operations, conversions of arguments, and the model of a scale."""

from __future__ import annotations

import sys

import pytest
import torch

from suites.amp import _torch_private as private
from suites.amp import lists
from suites.amp.lists import ACCELERATOR, CPU, TABLE, Listed, call, converted, dtypes, entries, lowered, same
from suites.amp.training import Scale, scales

HOST = torch.device("cpu")


def test_an_operation_that_is_listed_twice_has_two_names() -> None:
    names = [str(entry) for of, name in TABLE for entry in entries(of, name) if of == ACCELERATOR]

    assert len(names) == len(set(names))
    assert "torch_fp32-norm_3" in names
    assert "torch_fp16-mm" in names


def test_what_torch_lists_beyond_the_table_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = {"torch_16": [("mm", ()), ("mm", ()), ("unheard_of", ())], "unheard_of_list": [("mm", ())]}
    monkeypatch.setattr(lists, "operator_lists", lambda *_: listed)

    assert lists.complete(CPU, HOST) == [("torch_16", "mm"), ("torch_16", "unheard_of"), ("unheard_of_list", "mm")]


def test_an_entry_that_torch_does_not_list_is_a_skip() -> None:
    with pytest.raises(pytest.skip.Exception, match="does not list torch_16-mm_7"):
        call(Listed(CPU, "torch_16", "mm", 7), HOST, torch.float16)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_calls_have_arguments_of_the_type_asked_for(dtype: torch.dtype) -> None:
    for of, name in TABLE:
        for entry in entries(of, name):
            if entry.operation == "rms_norm" and torch.__version__ < "2.13":
                continue
            found = dtypes(call(entry, HOST, dtype).args) & {torch.float16, torch.bfloat16}
            assert found <= {dtype}, entry


def test_conversions_go_into_containers() -> None:
    one, whole = torch.ones(1), torch.ones(1, dtype=torch.int64)
    value = (one, [whole, (one.half(),)], 2.0)

    assert dtypes(converted(value, torch.float64)) == {torch.float64, torch.int64}
    assert dtypes(lowered(value, torch.bfloat16)) == {torch.float32, torch.bfloat16, torch.int64}
    assert same(converted(value, torch.float64), converted(value, torch.float64))


@pytest.mark.parametrize(
    ("left", "right", "equal"),
    [
        (torch.ones(2), torch.ones(2), True),
        (torch.ones(2), torch.ones(2).half(), False),
        (torch.ones(2), torch.zeros(2), False),
        ((torch.ones(1), 2), (torch.ones(1), 2), True),
        ((torch.ones(1),), (torch.ones(1), 2), False),
        (True, True, True),
        (torch.ones(1), 1, False),
    ],
)
def test_sameness(left: object, right: object, equal: bool) -> None:
    assert same(left, right) == equal


def test_the_lists_come_without_what_their_module_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, private.COMMON, raising=False)
    private._module.cache_clear()

    assert "mm" in [row[0] for row in private.operator_lists(CPU, HOST)["torch_16"]]
    assert private.COMMON not in sys.modules


def test_a_missing_name_is_a_skip(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(pytest.skip.Exception, match=r"no torch\._C\._nn\.unheard_of"):
        private.nn_function("unheard_of")
    monkeypatch.delattr(private._module(), "AutocastCPUTestLists")
    with pytest.raises(pytest.skip.Exception, match="AutocastCPUTestLists"):
        private.operator_lists(CPU, HOST)
    private._module.cache_clear()


def test_casts_are_counted() -> None:
    tally: list[torch.dtype] = []
    with private.counting_casts(tally):
        torch.ones(1).half().half().double()

    assert tally == [torch.float16, torch.float64]


def test_the_model_of_a_scale() -> None:
    first = Scale(8.0, growth=4.0, backoff=0.5, interval=2)

    assert list(scales(first, [False, False, True, False, True])) == [(8, 1), (32, 0), (16, 0), (16, 1), (8, 0)]


def test_that_onednn_lacks_bf16_is_what_it_says_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    assert private.onednn_lacks_bf16() is not torch.ops.mkldnn._is_mkldnn_bf16_supported()
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert not private.onednn_lacks_bf16()
