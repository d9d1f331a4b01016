"""The mark ``keeps`` of a case: which one applies, and its position in a message."""

from __future__ import annotations

import pytest

from harness.checks.keeping import Keeps
from harness.core.errors import HarnessError
from harness.fixtures import kept

pytestmark = pytest.mark.acceptance

pytest_plugins = ["pytester"]


def marked(pytester: pytest.Pytester, mark: str) -> pytest.Item:
    return pytester.getitem(f"import pytest\n{mark}\ndef test_a(): pass", "test_a")


@pytest.mark.parametrize(
    ("mark", "keeps"),
    [
        ("", None),
        ("@pytest.mark.keeps('torch does')", Keeps("torch does", {})),
        ("@pytest.mark.keeps(reason='torch does')", Keeps("torch does", {})),
        ("pytestmark = pytest.mark.keeps('further', tensors=1)\n@pytest.mark.keeps('nearer')", Keeps("nearer", {})),
        (
            "@pytest.mark.keeps('torch does', tensors=4, host='64KiB')",
            Keeps("torch does", {"tensors": 4, "host": 64 << 10}),
        ),
    ],
)
def test_the_nearest_mark_counts(pytester: pytest.Pytester, mark: str, keeps: Keeps | None) -> None:
    assert kept(marked(pytester, mark)) == keeps


def test_a_wrong_mark_is_refused_by_file_line_argument_and_value(pytester: pytest.Pytester) -> None:
    with pytest.raises(HarnessError) as caught:
        kept(marked(pytester, "\n@pytest.mark.keeps('torch does', host='64 k')"))
    assert str(caught.value) == (
        "test_a_wrong_mark_is_refused_by_file_line_argument_and_value.py:3: keeps(host='64 k'): expected a size with a "
        "unit, such as '64KiB', '2MiB' or '1GiB'"
    )
