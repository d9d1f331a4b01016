"""The order in which breaks are tried."""

from __future__ import annotations

from tests.breaks.mutants.mutant import Mutant
from tests.breaks.search.order import Rarity, Reach, breaks_to_try, is_named, shared_words

COMMON = Reach({"torch/a.py": [1, 2]}, ["add.Tensor", "copy_"], ["torch.get_num_threads"], [])
REACH = Reach(
    {"torch/a.py": [1, 2, 3]},
    ["add.Tensor", "copy_", "relu", "equal"],
    ["torch.get_num_threads", "torch.Generator.seed"],
    ["torch.Tensor.grad"],
)
RARITY = Rarity([REACH, COMMON, COMMON])


def mutant(line: int, number: int = 0) -> Mutant:
    return Mutant("torch/a.py", "f", line, line, "constant changed", 0, 1, "1", "2", number)


def tried(case: str, mutants: list[Mutant], most: int = 100) -> list[str | Mutant]:
    return breaks_to_try(case, REACH, RARITY, lambda _: mutants, most)


def test_rare_places_come_first_and_the_kinds_alternate() -> None:
    first, second = mutant(3), mutant(1)
    found = tried("suites/a/test_a.py::test_x", [second, first])
    assert found[:5] == [
        first,
        "operator relu:last",
        "function torch.Generator.seed:last",
        "attribute torch.Tensor.grad:last",
        second,
    ]


def test_each_statement_is_changed_once_before_one_is_changed_twice() -> None:
    mutants = [mutant(3), mutant(3, 1), mutant(2)]
    found = [each for each in tried("suites/a/test_a.py::test_x", mutants) if isinstance(each, Mutant)]
    assert found == [mutants[0], mutants[2], mutants[1]]


def test_places_that_the_case_names_come_first() -> None:
    found = tried("suites/a/test_a.py::test_copy_keeps_values[add]", [])
    assert [each for each in found if str(each).startswith("operator ")][:2] == [
        "operator add.Tensor:last",
        "operator copy_:last",
    ]


def test_operators_with_which_cases_compare_are_broken_only_in_cases_that_name_them() -> None:
    assert not any("equal" in str(each) for each in tried("suites/a/test_a.py::test_x", []))
    assert any("equal" in str(each) for each in tried("suites/a/test_a.py::test_equal_of_nan", []))


def test_number_of_breaks_is_limited() -> None:
    assert len(tried("suites/a/test_a.py::test_x", [mutant(1), mutant(2)], most=3)) == 3


def test_names_in_the_name_of_a_test_function() -> None:
    assert is_named("_foreach_add_.List", "suites/a/test_x.py::test_foreach_add_is_off")
    assert is_named("torch.Generator.manual_seed", "suites/a/test_x.py::test_manual_seed")
    assert not is_named("add.Tensor", "suites/a/test_x.py::test_addcmul")


def test_lost_errors_come_first_for_a_case_about_an_error() -> None:
    raising = Mutant("torch/a.py", "g", 1, 1, "statement dropped", 0, 1, "raise ValueError", "pass")
    found = tried("suites/a/test_a.py::test_relu_refuses_a_text", [mutant(3), raising])
    assert found[0] == raising
    assert found[1:3] == ["operator relu:errors", "function torch.Generator.seed:errors"]


def test_words_that_a_break_and_a_test_function_share() -> None:
    assert shared_words("scaler_grows_too_late", "suites/a/test_a.py::test_scaler_grows_a_lot[late]") == 2
    assert shared_words("the_first", "suites/a/test_a.py::test_the_second") == 0
