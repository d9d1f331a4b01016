"""The names of items of a history, for addresses of pages and for searches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.tools.history.answers import MOST

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection


def page_names(database: DuckDBPyConnection) -> dict[str, list[str]]:
    """Return the cases, groups, devices and ids of runs of the history, by the folder of their pages."""
    queries = {
        "cases": "SELECT id FROM case_name ORDER BY id",
        "groups": "SELECT key FROM failure_group ORDER BY key",
        "devices": "SELECT key FROM device_name ORDER BY key",
        "runs": "SELECT run_id FROM run ORDER BY begun DESC, run DESC",
    }
    return {kind: [name for (name,) in database.execute(query).fetchall()] for kind, query in queries.items()}


def search_names(database: DuckDBPyConnection, words: str) -> list[tuple[str, str, str]]:
    """Return kind, name and title of items with `words` in their names, up to a maximum number per kind."""
    wanted = "contains(lower({}), lower($1))"
    queries = {
        "case": ("SELECT id, id FROM case_name WHERE", wanted.format("id"), "ORDER BY id"),
        "group": (
            "SELECT key, title FROM failure_group WHERE",
            f"{wanted.format('title')} OR starts_with(key, $1)",
            "ORDER BY title",
        ),
        "device": (
            "SELECT key, key FROM device_name WHERE",
            wanted.format("concat_ws(' ', key, host, name)"),
            "ORDER BY key",
        ),
        "run": (
            "SELECT run::TEXT, run_id FROM run WHERE",
            wanted.format("concat_ws(' ', run_id, lane, driver, torch)"),
            "ORDER BY begun DESC",
        ),
    }
    listed = []
    for kind, query in queries.items():
        rows = database.execute(f"{' '.join(query)} LIMIT {MOST}", [words]).fetchall()
        listed += [(kind, name, title or "") for name, title in rows]
    return listed
