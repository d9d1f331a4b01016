"""Configuration files: valid files, invalid files, and the line and key in each error."""

from __future__ import annotations

import contextlib
import json
import os
import string
from datetime import date
from pathlib import Path
from typing import Annotated, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from harness.core.errors import HarnessError
from harness.gating.configfile import (
    MAX_BYTES,
    MAX_DEPTH,
    MAX_VALUES,
    Conditions,
    ConfigError,
    Loaded,
    find_config,
    load_config,
)


class Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Step(Model):
    name: str
    cells: tuple[int, ...] = ()


class Settings(Model):
    description: str
    retries: int = Field(default=1, ge=1)
    factor: float = 1.0
    mode: Literal["batch", "case"] = "batch"
    gates: Literal["all"] | tuple[Annotated[str, Field(min_length=1)], ...] = "all"
    flag: bool = False
    mixed: tuple[int, ...] | tuple[str, ...] = ()
    until: date | None = None
    steps: tuple[Step, ...] = ()
    cells: Annotated[tuple[int, ...], Field(min_length=2)] | None = None
    named: dict[str, Step] = {}
    requires: Conditions = {}


class Anything(BaseModel):
    model_config = ConfigDict(extra="allow")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read(folder: Path, text: str) -> Loaded[Settings]:
    file = folder / "x.yaml"
    file.write_text(text, encoding="utf-8")
    return load_config(file, Settings)


def problems(folder: Path, text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read(folder, text)
    return str(caught.value).splitlines()


GOOD = """\
# a comment
description: >
  a long
  text
retries: 3
factor: 2
gates: [memory,
  devices]
until: 2031-12-31
steps:
  - name: first
    cells: [1, 2]
  - name: "no"
named:
  one: {name: a}
requires:
  driver: ">=570.10"
  any:
    - triton: true
    - cpp_compiler: ">=11"
"""


def test_a_file_is_read_as_its_model(folder: Path) -> None:
    loaded = read(folder, GOOD)
    assert loaded.path == folder / "x.yaml"
    assert loaded.value == Settings(
        description="a long text\n",
        retries=3,
        factor=2.0,
        gates=("memory", "devices"),
        until=date(2031, 12, 31),
        steps=(Step(name="first", cells=(1, 2)), Step(name="no")),
        named={"one": Step(name="a")},
        requires={"driver": ">=570.10", "any": [{"triton": True}, {"cpp_compiler": ">=11"}]},
    )


@pytest.mark.parametrize(
    ("where", "line"),
    [
        ((), 2),
        (("description",), 2),
        (("retries",), 5),
        (("gates", 0), 7),
        (("gates", 1), 8),
        (("steps", 0), 11),
        (("steps", 0, "cells", 1), 12),
        (("steps", 1, "name"), 13),
        (("requires", "any", 1, "cpp_compiler"), 20),
        (("steps", 1, "cells"), 13),
        (("steps", 7), 11),
        (("nothing", "of", "it"), 2),
    ],
)
def test_line_of_a_value_or_of_the_nearest_enclosing_value(
    folder: Path, where: tuple[str | int, ...], line: int
) -> None:
    assert read(folder, GOOD).line_of(*where) == line


def test_a_problem_found_later_is_reported_in_the_same_way(folder: Path) -> None:
    loaded = read(folder, GOOD)
    assert loaded.problem("'memroy' is unknown", "gates", 1) == "x.yaml:8: gates[1]: 'memroy' is unknown"
    assert loaded.problem("of no use") == "x.yaml:2: of no use"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("retries: 2", "x.yaml:1: the key 'description' is missing"),
        ("- a", "x.yaml:1: wanted a mapping, found a list"),
        ("just text", "x.yaml:1: wanted a mapping, found 'just text'"),
        ("", "x.yaml:1: the file is empty"),
        ("# only this", "x.yaml:1: the file is empty"),
        ("description:", "x.yaml:1: description: wanted text, found nothing"),
        ("description: [a]", "x.yaml:1: description: wanted text, found a list"),
        ("description: 5.10", "x.yaml:1: description: wanted text, found 5.10: write it in quotes, '5.10'"),
        ("description: true", "x.yaml:1: description: wanted text, found true: write it in quotes, 'true'"),
    ],
)
def test_a_file_that_does_not_fit_the_model_is_reported_with_its_line(folder: Path, text: str, expected: str) -> None:
    assert problems(folder, text) == [expected]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("retris: 1", "2: retris: there is no such key; did you mean 'retries'?"),
        ("stps:\n  - a", "2: stps: there is no such key; did you mean 'steps'?"),
        ("steps: [{name: a, zzz: 1}]", "2: steps[0].zzz: there is no such key; expected one of: cells, name"),
        ("named:\n  one: {nme: a, name: b}", "3: named.one.nme: there is no such key; did you mean 'name'?"),
        ("retries: '3'", "2: retries: wanted a whole number, found '3'"),
        ("retries: true", "2: retries: wanted a whole number, found true"),
        ("retries: 1.5", "2: retries: wanted a whole number, found 1.5"),
        ("retries: 0", "2: retries: wanted greater than or equal to 1, found 0"),
        ("factor: fast", "2: factor: wanted a number, found 'fast'"),
        ("flag: 'true'", "2: flag: wanted true or false, found 'true'"),
        ("mode: cases", "2: mode: wanted 'batch' or 'case', found 'cases'"),
        ("until: soon", "2: until: wanted a date such as 2031-12-31, found 'soon'"),
        ("until: 2031-02-30", "2: until: wanted a date such as 2031-12-31, found '2031-02-30'"),
        ("gates: al", "2: gates: wanted 'all' or a list, found 'al'"),
        ("gates:\n- a\n- 5", "4: gates[1]: wanted text, found 5: write it in quotes, '5'"),
        ("gates:\n- a\n- ''", "4: gates[1]: wanted text of 1 or more characters, found ''"),
        ("cells: []", "2: cells: wanted a list of 2 or more items, found an empty list"),
        ("cells: [1]", "2: cells: wanted a list of 2 or more items, found a list"),
        ("cells: [1, x]", "2: cells[1]: wanted a whole number, found 'x'"),
        ("mixed: 5", "2: mixed: wanted a list, found 5"),
        ("steps: {name: a}", "2: steps: wanted a list, found a mapping"),
        ("steps:\n- 5", "3: steps[0]: wanted a mapping, found 5"),
        ("steps:\n- cells: []", "3: steps[0]: the key 'name' is missing"),
    ],
)
def test_an_invalid_value_is_reported_with_line_and_key(folder: Path, text: str, expected: str) -> None:
    assert problems(folder, f"description: a\n{text}") == [f"x.yaml:{expected}"]


def test_problems_are_reported_in_the_order_of_the_file(folder: Path) -> None:
    text = "retries: x\nsteps:\n- cells: [1, x]\n  name: 5\nmode: none\ndescription: a\nmore: 1\n"
    assert [problem.split(":")[1] for problem in problems(folder, text)] == ["1", "3", "4", "5", "7"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: no", "x.yaml:1: a: 'no' is ambiguous (text or boolean): write true, false or 'no' in quotes"),
        ("description: Yes", "x.yaml:1: description: 'Yes' is ambiguous (text or boolean)"),
        ("flag: on", "x.yaml:1: flag: 'on' is ambiguous (text or boolean)"),
        ("steps: [off]", "x.yaml:1: steps[0]: 'off' is ambiguous (text or boolean)"),
        ("repeats: 1e3", "x.yaml:1: repeats: '1e3' is ambiguous (text or number)"),
        ("factor: 1.5e+3", "x.yaml:1: factor: '1.5e+3' is not a plain decimal number"),
        ("factor: .inf", "x.yaml:1: factor: '.inf' is not a plain decimal number"),
        ("factor: .nan", "x.yaml:1: factor: '.nan' is not a plain decimal number"),
        ("repeats: 010", "x.yaml:1: repeats: '010' is not a plain decimal number"),
        ("repeats: 0x10", "x.yaml:1: repeats: '0x10' is not a plain decimal number"),
        ("repeats: 1_000", "x.yaml:1: repeats: '1_000' is not a plain decimal number"),
        ("repeats: 1:30", "x.yaml:1: repeats: '1:30' is not a plain decimal number"),
        pytest.param(f"repeats: {'9' * 5000}", "is not a plain decimal number", id="many digits"),
        ('description: "a\\0b"', "x.yaml:1: description: 'a\\x00b' has control characters or surrogates"),
        ('description: "\\e[2J"', "has control characters or surrogates"),
        ('description: "\\ud800"', "has control characters or surrogates"),
        ("description: a\ndescription: b", "x.yaml:2: duplicate key 'description', first on line 1"),
        ("steps:\n- name: a\n  name: b", "x.yaml:3: steps[0]: duplicate key 'name', first on line 2"),
        ("1: a", "x.yaml:1: a key must be text: write '1' in quotes"),
        ("true: a", "x.yaml:1: a key must be text: write 'true' in quotes"),
        ("on: a", "x.yaml:1: 'on' is ambiguous (text or boolean)"),
        ("? [a]\n: b", "x.yaml:1: a key must be text"),
        ("<<: {a: b}", "x.yaml:1: merge keys are not supported: write the values out"),
        ("description: &a b", "x.yaml:1: anchors and aliases are not supported"),
        ("a: b\nc: *d", "x.yaml:2: anchors and aliases are not supported"),
        ("description: !!str 5", "x.yaml:1: tags are not supported: remove 'tag:yaml.org,2002:str'"),
        ("a:\n  !!python/object/apply:os.system [id]", "x.yaml:2: tags are not supported: remove 'tag:yaml.org,2002:p"),
        ("description: ! a", "x.yaml:1: tags are not supported: remove '!'"),
        ("a: b\n---\na: c", "x.yaml:2: not yaml: "),
        ("a: [b\nc: d", "x.yaml:2: not yaml: "),
        ("a:\n\tb: c", "x.yaml:2: not yaml: "),
        ("a: b\nc: \x07", "x.yaml:2: not yaml: character 0x07"),
        pytest.param("[" * 100_000, f"x.yaml:1: more than {MAX_DEPTH} levels of nesting", id="many lists"),
        pytest.param("a:\n" + "- b\n" * MAX_VALUES, f": more than {MAX_VALUES} keys and values", id="many values"),
        pytest.param("? " * 1000, f"x.yaml:1: more than {MAX_DEPTH} levels of nesting", id="many keys of keys"),
        pytest.param(
            "\n".join(" " * n + "a:" for n in range(30)), f": more than {MAX_DEPTH} levels of nesting", id="deep keys"
        ),
    ],
)
def test_ambiguous_and_unsupported_yaml_is_an_error(folder: Path, text: str, expected: str) -> None:
    (problem,) = problems(folder, text)
    assert expected in problem


def test_all_problems_of_the_yaml_are_reported_at_once(folder: Path) -> None:
    assert [text.split(":")[1] for text in problems(folder, "a: no\nb: yes\nc: fine\nd: 1e3")] == ["1", "2", "4"]


def test_the_number_of_reported_problems_is_limited(folder: Path) -> None:
    reported = problems(folder, "".join(f"a{number}: no\n" for number in range(200)))
    assert len(reported) == 51
    assert reported[-1] == "and more"


def test_a_long_value_is_cut_in_the_message(folder: Path) -> None:
    long = "x" * 10_000
    reported = problems(folder, f"description: a\nmode: {long}\n{'y' * 900}: 1\nrequires: {{memory: {long}}}")
    assert [len(text) < limit for text, limit in zip(reported, (300, 400, 1100), strict=True)] == [True] * 3


def test_a_key_is_reported_on_one_line(folder: Path) -> None:
    (problem,) = problems(folder, 'description: a\n"b\\nc": 1')
    assert problem.startswith("x.yaml:2: 'b\\nc': there is no such key; expected one of: ")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "driver: 570.10",
            "3: requires.driver: wanted text in quotes (a number loses its trailing zero), found 570.10",
        ),
        ("any: [{driver: 5.1}]", "3: requires.any[0].driver: wanted text in quotes (a number loses its trailing zero)"),
        (
            "drivr: true",
            "3: requires.drivr: requires(drivr=True): there is no capability 'drivr'; did you mean 'driver'?",
        ),
        ("ecc: true\n  memory: '>=12'", "4: requires.memory: requires(memory='>=12')"),
        ("not: [ecc]", "3: requires.not: requires(not=['ecc'])"),
        ("devices: '>2'\n  all: [{devices: '<=2'}]", "2: requires: requires(devices='>2,<=2'): no number of devices"),
        ("devices: '>2,<2'", "3: requires.devices: requires(devices='>2,<2')"),
    ],
)
def test_a_condition_is_refused_on_its_own_line(folder: Path, text: str, expected: str) -> None:
    (problem,) = problems(folder, f"description: a\nrequires:\n  {text}")
    assert problem.startswith(f"x.yaml:{expected}")


def test_conditions_stay_as_they_are_written() -> None:
    written = {"memory": ">=12GiB", "not": {"ecc": True}}
    assert Settings(description="a", requires=written).requires == written
    with pytest.raises(ValidationError):
        Settings(description="a", requires={"memroy": ">=12GiB"})


def test_a_file_too_large_is_not_read_whole(folder: Path) -> None:
    (folder / "x.yaml").write_text("description: a\n" + "#" * MAX_BYTES)
    with pytest.raises(ConfigError, match=rf"x\.yaml' has \d+ bytes, and the limit is {MAX_BYTES}"):
        load_config(folder / "x.yaml", Settings)


def test_a_file_that_is_not_text_says_where(folder: Path) -> None:
    (folder / "x.yaml").write_bytes(b"description: a\nmode: \xff\n")
    with pytest.raises(ConfigError, match=r"x.yaml:2: byte 0xff is not UTF-8: give a YAML file"):
        load_config(folder / "x.yaml", Settings)


def test_a_pipe_is_an_error_and_does_not_block(folder: Path) -> None:
    os.mkfifo(folder / "pipe.yaml")
    with pytest.raises(ConfigError, match=r"pipe\.yaml' is not a regular file"):
        load_config(folder / "pipe.yaml", Settings)
    with pytest.raises(ConfigError, match=r"there is no configuration file at .*gone\.yaml"):
        load_config(folder / "gone.yaml", Settings)


def test_an_error_is_one_of_the_harness() -> None:
    assert issubclass(ConfigError, HarnessError)


keys = st.text(string.ascii_letters, min_size=1)
texts = st.text(sorted(set(string.printable) - set("\r\v\f")))  # control characters are refused
plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**17), 10**17) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(keys, plain, max_size=5))
def test_json_is_read_as_it_is(tmp_path_factory: pytest.TempPathFactory, data: dict[str, object]) -> None:
    file = tmp_path_factory.getbasetemp() / "json.yaml"
    file.write_text(json.dumps(data), encoding="utf-8")
    assert load_config(file, Anything).value.model_dump() == data


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    file = tmp_path_factory.getbasetemp() / "any.yaml"
    file.write_text(text, encoding="utf-8", errors="replace")
    with contextlib.suppress(ConfigError):  # anything else is a failure
        load_config(file, Anything)


@pytest.fixture
def shelf(folder: Path) -> Path:
    shelf = folder / "configs" / "profiles"
    shelf.mkdir(parents=True)
    for name in ("smoke.yaml", "soak.yaml", "notes.txt"):
        (shelf / name).touch()
    (folder / "mine.yaml").touch()
    return shelf


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("smoke", "configs/profiles/smoke.yaml"),
        ("./mine.yaml", "./mine.yaml"),
        ("mine.yaml", "mine.yaml"),
        ("configs/profiles/soak.yaml", "configs/profiles/soak.yaml"),
    ],
)
def test_a_file_is_found_by_name_or_by_path(folder: Path, shelf: Path, name: str, expected: str) -> None:
    assert find_config(name, shelf, "profile", folder) == folder / expected


def test_files_may_end_otherwise(folder: Path, shelf: Path) -> None:
    assert find_config("notes", shelf, "list", folder, ".txt") == shelf / "notes.txt"
    with pytest.raises(ConfigError, match=r"^there is no list 'smoke' in configs/profiles; expected one of: notes$"):
        find_config("smoke", shelf, "list", folder, ".txt")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("somke", "there is no profile 'somke' in configs/profiles; did you mean 'smoke'?"),
        ("zzz", "there is no profile 'zzz' in configs/profiles; expected one of: smoke, soak"),
        ("", "there is no profile '' in configs/profiles; expected one of: smoke, soak"),
        ("..", "there is no profile '..' in configs/profiles; expected one of: smoke, soak"),
        ("smoke.yaml", "profile 'smoke.yaml': there is no file smoke.yaml"),
        ("./zzz.yml", "profile './zzz.yml': there is no file zzz.yml"),
        ("configs/profiles", "profile 'configs/profiles': there is no file configs/profiles"),
        pytest.param("x" * 5000, "there is no profile 'xxx", id="longer than the system takes"),
        ("a\0b", "there is no profile 'a\\x00b' in configs/profiles"),
    ],
)
def test_the_error_for_a_missing_file_lists_the_existing_ones(
    folder: Path, shelf: Path, name: str, expected: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        find_config(name, shelf, "profile", folder)
    assert str(caught.value).startswith(expected)


def test_a_missing_folder_is_reported(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"^there is no profile 'a': the folder configs/profiles does not exist; go"):
        find_config("a", folder / "configs" / "profiles", "profile", folder)
