"""What differs between the nodes of a fleet."""

from __future__ import annotations

from harness.ready.drift import Drift, SlowGpu, drifts, slow_gpus
from harness.ready.model import CheckRun


def test_equal_nodes_have_no_drift() -> None:
    assert drifts({f"n{number}": {"driver": "580.1", "hardware": str(number)} for number in range(9)}) == []


def test_a_fact_that_one_node_has_otherwise() -> None:
    stacks = {f"n{number}": {"driver": "580.1"} for number in range(9)} | {"n9": {"driver": "570.2"}}

    assert drifts(stacks) == [Drift("driver", "580.1", 9, True, {"570.2": ("n9",)})]


def test_a_fact_that_a_node_lacks() -> None:
    stacks = {"a": {"nccl": "2.29"}, "b": {"nccl": "2.29"}, "c": dict[str, str]()}

    assert drifts(stacks) == [Drift("nccl", "2.29", 2, True, {"none": ("c",)})]


def test_without_a_majority_no_value_is_the_right_one() -> None:
    (found,) = drifts({"a": {"kernel": "6.1"}, "b": {"kernel": "6.5"}})

    assert (found.usual, found.count, found.majority) == ("6.1", 1, False)


def test_facts_in_which_few_nodes_differ_come_first() -> None:
    stacks = {
        f"n{number}": {
            "kernel": "6.1" if number < 6 else "6.5",
            "driver": "580" if number < 9 else "570",
            "torch": str(number),
        }
        for number in range(10)
    }

    assert [each.name for each in drifts(stacks)] == ["driver", "kernel", "torch"]


def checks(*values: float) -> list[CheckRun]:
    return [
        CheckRun(name="product_bf16", gpu=f"GPU-{number}", state="ok", value=value, unit="FLOP/s")
        for number, value in enumerate(values)
    ]


def test_a_gpu_slower_than_those_of_its_model_in_the_fleet() -> None:
    """The GPUs of one node may all be slow, which only the fleet shows."""
    runs = {"a": checks(8e14, 8.1e14), "b": checks(8e14, 7.9e14), "c": checks(5e14, 5.1e14)}
    models = {(node, f"GPU-{number}"): "H100" for node in runs for number in range(2)}
    found = slow_gpus(runs, models)

    assert [(slow.node, slow.gpu, slow.count) for slow in found] == [("c", "GPU-0", 6), ("c", "GPU-1", 6)]
    assert found[0].text == "product_bf16 is 500 TFLOP/s, and the median of 6 GPUs is 795 TFLOP/s"


def test_other_models_and_checks_without_a_value_are_left_out() -> None:
    runs = {"a": checks(8e14, 8e14), "b": [*checks(1e14), CheckRun(name="copies", gpu="GPU-0", state="ok")]}
    models = {("a", "GPU-0"): "H100", ("a", "GPU-1"): "H100", ("b", "GPU-0"): "L4"}

    assert slow_gpus(runs, models) == list[SlowGpu]()
