"""The mark ``keeps``: its reason, and what is refused for one."""

from __future__ import annotations

import pytest

from harness.errors import HarnessError
from harness.fixtures import kept

pytest_plugins = ["pytester"]


def marked(pytester: pytest.Pytester, mark: str) -> pytest.Item:
    return pytester.getitem(f"import pytest\n{mark}\ndef test_a(): pass", "test_a")


@pytest.mark.parametrize(
    ("mark", "reason"),
    [
        ("", ""),
        ("@pytest.mark.keeps('torch does')", "torch does"),
        ("@pytest.mark.keeps(reason='torch does')", "torch does"),
        ("pytestmark = pytest.mark.keeps('further')\n@pytest.mark.keeps('nearer')", "nearer"),
    ],
)
def test_the_reason_is_that_of_the_nearest_mark(pytester: pytest.Pytester, mark: str, reason: str) -> None:
    assert kept(marked(pytester, mark)) == reason


@pytest.mark.parametrize("words", ["", "' '", "3", "'a', 'b'", "why='a'", "'a', reason='b'"])
def test_a_mark_without_a_reason_is_refused(pytester: pytest.Pytester, words: str) -> None:
    with pytest.raises(HarnessError, match="needs one reason"):
        kept(marked(pytester, f"@pytest.mark.keeps({words})"))
