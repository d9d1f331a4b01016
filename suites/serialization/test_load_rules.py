"""How `torch.load` decides what it may execute, where it starts to read, and where it places tensors."""

from __future__ import annotations

import io
import os
import pickle
from collections import OrderedDict
from fractions import Fraction
from typing import IO, Any

import pytest
import torch

from .files import saved

WEIGHTS_ONLY, NOT_WEIGHTS_ONLY = "TORCH_FORCE_WEIGHTS_ONLY_LOAD", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"


def load(data: bytes, **settings: Any) -> Any:
    return torch.load(io.BytesIO(data), **settings)


@pytest.fixture
def no_variables(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in (WEIGHTS_ONLY, NOT_WEIGHTS_ONLY):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.mark.usefixtures("no_variables")
def test_load_is_weights_only_by_default() -> None:
    """By default, and with `weights_only`, an object of a class that is not allowed is refused by name."""
    data = saved({"share": Fraction(1, 3)})
    for settings in ({}, {"weights_only": True}):
        with pytest.raises(pickle.UnpicklingError, match=r"fractions\.Fraction"):
            load(data, **settings)
    assert load(data, weights_only=False) == {"share": Fraction(1, 3)}


@pytest.mark.parametrize("value", ["1", "y", "yes", "true"])
def test_load_variable_forces_weights_only(no_variables: pytest.MonkeyPatch, value: str) -> None:
    """`TORCH_FORCE_WEIGHTS_ONLY_LOAD` makes each load weights-only, even with `weights_only=False`."""
    no_variables.setenv(WEIGHTS_ONLY, value)
    data = saved({"share": Fraction(1, 3)})
    for settings in ({}, {"weights_only": False}):
        with pytest.raises(pickle.UnpicklingError, match=r"fractions\.Fraction"):
            load(data, **settings)
    assert load(saved([1, 2])) == [1, 2]


def test_load_variable_allows_more_where_nothing_is_asked_for(no_variables: pytest.MonkeyPatch) -> None:
    """`TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD` allows all objects, with a warning, unless the call passes `weights_only`."""
    no_variables.setenv(NOT_WEIGHTS_ONLY, "1")
    data = saved({"share": Fraction(1, 3)})
    with pytest.warns(UserWarning, match=NOT_WEIGHTS_ONLY):
        assert load(data) == {"share": Fraction(1, 3)}
    with pytest.raises(pickle.UnpicklingError, match=r"fractions\.Fraction"):
        load(data, weights_only=True)


@pytest.mark.parametrize("value", ["0", "no", ""])
def test_load_variables_that_say_no_change_nothing(no_variables: pytest.MonkeyPatch, value: str) -> None:
    """A value other than a yes in either variable changes nothing."""
    for name in (WEIGHTS_ONLY, NOT_WEIGHTS_ONLY):
        no_variables.setenv(name, value)
    data = saved({"share": Fraction(1, 3)})
    with pytest.raises(pickle.UnpicklingError, match=r"fractions\.Fraction"):
        load(data)
    assert load(data, weights_only=False) == {"share": Fraction(1, 3)}


def test_load_refuses_both_variables(no_variables: pytest.MonkeyPatch) -> None:
    """Both variables together are refused, whatever the call passes."""
    for name in (WEIGHTS_ONLY, NOT_WEIGHTS_ONLY):
        no_variables.setenv(name, "1")
    for settings in ({}, {"weights_only": True}, {"weights_only": False}):
        with pytest.raises(RuntimeError, match="both were set"):
            load(saved([1]), **settings)


@pytest.mark.usefixtures("no_variables")
def test_load_weights_only_takes_no_pickle_module() -> None:
    """A weights-only load refuses a `pickle_module`; other loads accept it."""
    data = saved([1, 2])
    with pytest.raises(RuntimeError, match="pickle_module"):
        load(data, weights_only=True, pickle_module=pickle)
    assert load(data, weights_only=False, pickle_module=pickle) == [1, 2]


@pytest.mark.usefixtures("no_variables")
def test_load_weights_only_warns_of_arguments_for_pickle() -> None:
    """A weights-only load ignores arguments for pickle, with a warning."""
    with pytest.warns(UserWarning, match="pickle_load_args only works"):
        load(saved([1, 2]), weights_only=True, encoding="ascii")


def test_map_location_dict_takes_some_places_to_others() -> None:
    """A dict moves tensors from its keys to its values, and leaves tensors of other places where they were."""
    data = saved(torch.arange(3.0))
    assert load(data, map_location={"cpu": "meta"}).device.type == "meta"
    stays = load(data, map_location={"cuda:0": "meta", "meta": "cpu"})
    assert stays.device.type == "cpu"
    assert stays.tolist() == [0.0, 1.0, 2.0]
    assert load(data, map_location={}).device.type == "cpu"
    assert load(data, map_location=torch.device("meta")).device.type == "meta"


@pytest.mark.parametrize("zipped", [True, False], ids=["archive", "old_format"])
def test_map_location_is_the_same_for_both_formats(zipped: bool) -> None:
    """Both formats accept a `map_location` that is a name, a device, a dict or a function."""
    data = saved(torch.arange(3.0), _use_new_zipfile_serialization=zipped)
    ways: list[Any] = ["cpu", torch.device("cpu"), {"cpu": "cpu"}, lambda storage, _: storage, lambda *_: None]
    for where in ways:
        assert load(data, map_location=where).tolist() == [0.0, 1.0, 2.0]


class Stream(io.RawIOBase):
    """A file that can only be read from beginning to end."""

    def __init__(self, data: bytes) -> None:
        self._rest = io.BytesIO(data)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._rest.readinto(buffer)


def test_load_needs_a_file_in_which_it_can_go_back() -> None:
    """A file that cannot seek is refused, and the error names the remedy."""
    stream: IO[bytes] = io.BufferedReader(Stream(saved([1, 2])))
    with pytest.raises((AttributeError, io.UnsupportedOperation), match="pre-load the data into a buffer"):
        torch.load(stream)


def test_save_to_a_buffer_is_a_whole_archive_at_its_end() -> None:
    """After `save`, a buffer has a complete archive from its position on; two can follow each other."""
    buffer = io.BytesIO()
    torch.save(OrderedDict(a=torch.ones(3)), buffer)
    first = buffer.getvalue()
    assert load(first)["a"].tolist() == [1.0] * 3
    assert first[-22:-18] == b"PK\x05\x06"  # the archive's end of central directory record


def test_save_refuses_one_memory_as_two_types() -> None:
    """Two tensors that view one memory as different types cannot be saved together, in either format."""
    x = torch.arange(4, dtype=torch.int32)
    data = saved([x, x[1:]])
    assert [each.tolist() for each in load(data)] == [[0, 1, 2, 3], [1, 2, 3]]
    for zipped in (True, False):
        with pytest.raises(RuntimeError, match="view the same data as different types"):
            saved([x, x.view(torch.float32)], _use_new_zipfile_serialization=zipped)


def test_load_of_the_old_format_begins_where_the_buffer_stands() -> None:
    """Values in the old format that follow each other in a buffer are loaded one after another."""
    buffer = io.BytesIO()
    buffer.write(b"a head")
    for value in (torch.ones(2), torch.arange(3.0)):
        torch.save(value, buffer, _use_new_zipfile_serialization=False)
    buffer.seek(6)
    assert [torch.load(buffer).tolist() for _ in range(2)] == [[1.0, 1.0], [0.0, 1.0, 2.0]]


@pytest.mark.filterwarnings("ignore:Detected pickle protocol 4")
def test_load_weights_only_says_what_to_do() -> None:
    """The error for a refused file says how to allow a class, that a module is blocked, or to report unknown content.

    Each message names `weights_only` and the documentation.
    """

    class Blocked:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.getcwd, ()

    said: list[str] = []
    for data in (saved(Fraction(1, 3)), saved(Blocked()), saved([1], pickle_protocol=4)):
        with pytest.raises(pickle.UnpicklingError, match=r"Weights only load failed") as refusal:
            load(data)
        said.append(str(refusal.value))
    allow, blocked, unknown = said
    assert all(
        "`weights_only` set to `False`" in text and "Check the documentation of torch.load" in text for text in said
    )
    assert ["you have two options" in text for text in said] == [True, False, False]
    assert ["Please file an issue" in text for text in said] == [False, False, True]
    assert "fractions.Fraction" in allow
    assert "is blocked" in blocked
    assert "Unsupported operand" in unknown
