"""Python imports this at the start of an interpreter that a case has started in a search."""

from tests.breaks.search import child

child.install()
