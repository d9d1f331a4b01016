"""The tables and views of a history, and the staging tables through which a run enters."""

from __future__ import annotations

from harness.core.outcome import Outcome

#: Incremented with every change of the tables.
SCHEMA = 1

_OUTCOMES = ", ".join(
    f"({number}, '{outcome.value}', {outcome.is_red}, {outcome.ran})" for number, outcome in enumerate(Outcome)
)

_TABLES = f"""
    CREATE TABLE meta (name TEXT NOT NULL, value TEXT NOT NULL);
    INSERT INTO meta VALUES ('what', 'history of gpu-conformance-harness');
    CREATE TABLE outcome_name (outcome UTINYINT, name TEXT, red BOOLEAN, ran BOOLEAN);
    INSERT INTO outcome_name VALUES {_OUTCOMES};
    CREATE TABLE run (
        run INTEGER NOT NULL, run_id TEXT NOT NULL, print TEXT NOT NULL, lane TEXT NOT NULL,
        begun TIMESTAMP NOT NULL, night DATE NOT NULL, seconds DOUBLE,
        host TEXT, model TEXT, driver TEXT, cuda TEXT, torch TEXT, python TEXT, harness TEXT,
        "commit" TEXT, dirty BOOLEAN, suites TEXT, profile TEXT, hardware TEXT, isolation TEXT, shard TEXT,
        seed TEXT, argv TEXT, tool TEXT, exit_status INTEGER, complete BOOLEAN, fail_on_flaky BOOLEAN, waivers INTEGER,
        path TEXT, page TEXT, identity TEXT, parts TEXT[],
        cases INTEGER, ran INTEGER, passed INTEGER, red INTEGER, flaky INTEGER, waived INTEGER, gated INTEGER
    );
    CREATE TABLE case_name ("case" INTEGER NOT NULL, id TEXT NOT NULL, suite TEXT NOT NULL);
    CREATE TABLE device_name (device INTEGER NOT NULL, key TEXT NOT NULL, uuid TEXT, host TEXT, name TEXT, kind TEXT);
    CREATE TABLE failure_group (grp INTEGER NOT NULL, key TEXT NOT NULL, title TEXT);
    CREATE TABLE reason (reason INTEGER NOT NULL, text TEXT NOT NULL);
    CREATE TABLE verdict (
        run INTEGER NOT NULL, "case" INTEGER NOT NULL, outcome UTINYINT NOT NULL, device INTEGER, attempts UTINYINT,
        seconds FLOAT, reason INTEGER, host_size USMALLINT, device_size USMALLINT
    );
    CREATE TABLE trouble (
        run INTEGER NOT NULL, "case" INTEGER NOT NULL, outcome UTINYINT NOT NULL, device INTEGER, grp INTEGER NOT NULL,
        message TEXT, stack TEXT, reproduce TEXT, rule TEXT
    );
    CREATE TABLE run_device (run INTEGER NOT NULL, device INTEGER NOT NULL);
    CREATE TABLE health_event (run INTEGER NOT NULL, device INTEGER NOT NULL, state TEXT, message TEXT, xid INTEGER);
    CREATE TABLE run_finding (run INTEGER NOT NULL, kind TEXT, message TEXT, title TEXT, cases INTEGER);
"""

#: The views that `harness history sql` documents (docs/history.md). Their columns stay when the tables change. This is
#: the SQL for a number of bytes from its code (`record.size_code`).
_BYTES = "round(pow(2, {} / 8))::BIGINT"
_VIEWS = f"""
    CREATE VIEW runs AS
        SELECT run, run_id, lane, begun, night, seconds, host, model, driver, cuda, torch, python, harness, "commit",
            dirty, suites, profile, hardware, shard, seed, argv, tool, exit_status, complete, cases, ran, passed, red,
            flaky, waived, gated, path
        FROM run;
    CREATE VIEW results AS
        SELECT v.run, r.run_id, r.night, r.lane, c.id AS "case", c.suite, o.name AS outcome, o.red,
            d.key AS device, r.driver, r.torch, v.attempts, v.seconds, {_BYTES.format("v.host_size")} AS host_memory,
            {_BYTES.format("v.device_size")} AS device_memory, w.text AS reason
        FROM verdict v JOIN run r USING (run) JOIN case_name c USING ("case") JOIN outcome_name o USING (outcome)
            LEFT JOIN device_name d USING (device) LEFT JOIN reason w USING (reason);
    CREATE VIEW failures AS
        SELECT t.run, r.run_id, r.night, r.lane, c.id AS "case", c.suite, o.name AS outcome, o.red, d.key AS device,
            r.driver, r.torch, g.key AS "group", g.title, t.message, t.stack, t.reproduce, t.rule
        FROM trouble t JOIN run r USING (run) JOIN case_name c USING ("case") JOIN outcome_name o USING (outcome)
            JOIN failure_group g USING (grp) LEFT JOIN device_name d USING (device);
    CREATE VIEW groups AS
        SELECT "group", any_value(title) AS title, min(night) AS first_seen, max(night) AS last_seen,
            count(*) AS failures, count(DISTINCT "case") AS cases, count(DISTINCT run) AS runs,
            count(DISTINCT device) AS devices, list(DISTINCT driver) AS drivers
        FROM failures GROUP BY "group";
    CREATE VIEW devices AS
        SELECT d.key AS device, d.uuid, d.host, d.name, d.kind, count(*) AS runs, min(r.night) AS first_seen,
            max(r.night) AS last_seen
        FROM device_name d JOIN run_device USING (device) JOIN run r USING (run) GROUP BY ALL;
    CREATE VIEW health AS
        SELECT h.run, r.run_id, r.night, d.key AS device, h.state, h.xid, h.message
        FROM health_event h JOIN run r USING (run) JOIN device_name d USING (device);
    CREATE VIEW findings AS
        SELECT f.run, r.run_id, r.night, r.lane, f.kind, f.message, f.cases FROM run_finding f JOIN run r USING (run);
    CREATE VIEW cases AS SELECT id AS "case", suite FROM case_name;
"""
VIEWS = ("runs", "results", "failures", "groups", "devices", "health", "findings", "cases")

#: Makes an empty history.
CREATE = _TABLES + _VIEWS

#: Columns of the staging tables, and of the files of a folder. These files have all columns, and `part`, the kind of
#: row.
STAGES: dict[str, dict[str, str]] = {
    "run": {
        "run_id": "TEXT", "print": "TEXT", "begun": "DOUBLE", "run_seconds": "DOUBLE", "host": "TEXT", "model": "TEXT",
        "driver": "TEXT", "cuda": "TEXT", "torch": "TEXT", "python": "TEXT", "harness": "TEXT", "commit": "TEXT",
        "dirty": "BOOLEAN", "suites": "TEXT", "profile": "TEXT", "hardware": "TEXT", "isolation": "TEXT",
        "shard": "TEXT", "seed": "TEXT", "argv": "TEXT", "tool": "TEXT", "exit_status": "INTEGER",
        "complete": "BOOLEAN", "fail_on_flaky": "BOOLEAN", "waivers": "INTEGER", "path": "TEXT", "page": "TEXT",
        "identity": "TEXT", "parts": "TEXT[]",
    },
    "verdict": {
        "run_id": "TEXT", "case": "TEXT", "suite": "TEXT", "outcome": "TEXT", "device": "TEXT", "attempts": "UTINYINT",
        "seconds": "FLOAT", "host_size": "USMALLINT", "device_size": "USMALLINT", "reason": "TEXT",
    },
    "trouble": {
        "run_id": "TEXT", "case": "TEXT", "outcome": "TEXT", "device": "TEXT", "key": "TEXT", "title": "TEXT",
        "message": "TEXT", "stack": "TEXT", "reproduce": "TEXT", "rule": "TEXT",
    },
    "device": {"run_id": "TEXT", "key": "TEXT", "uuid": "TEXT", "host": "TEXT", "name": "TEXT", "kind": "TEXT"},
    "health": {"run_id": "TEXT", "device": "TEXT", "state": "TEXT", "message": "TEXT", "xid": "INTEGER"},
    "finding": {"run_id": "TEXT", "kind": "TEXT", "message": "TEXT", "title": "TEXT", "cases": "INTEGER"},
}  # fmt: skip

#: Enters staged rows: names first, then rows with the numbers of the names. `{stage}` is the schema of the stages.
INGEST = (
    # Shards whose merged run is present, or is being added, are part of that run.
    """
    CREATE OR REPLACE TEMP TABLE fresh AS
        SELECT s.*, (SELECT coalesce(max(run), 0) FROM run) + row_number() OVER (ORDER BY begun, run_id) AS run
        FROM stage_run s
        WHERE run_id NOT IN (SELECT run_id FROM run)
            AND run_id NOT IN (SELECT unnest(parts) FROM run)
            AND run_id NOT IN (SELECT unnest(parts) FROM stage_run)
    """,
    """
    INSERT INTO case_name
        SELECT (SELECT coalesce(max("case"), 0) FROM case_name) + row_number() OVER (ORDER BY place), id, suite
        FROM (SELECT "case" AS id, any_value(suite) AS suite, min(place) AS place FROM stage_verdict GROUP BY "case")
        WHERE id NOT IN (SELECT id FROM case_name)
    """,
    """
    INSERT INTO device_name
        SELECT (SELECT coalesce(max(device), 0) FROM device_name) + row_number() OVER (ORDER BY key),
            key, uuid, host, name, kind
        FROM (SELECT key, arg_max(uuid, place) AS uuid, arg_max(host, place) AS host, arg_max(name, place) AS name,
                arg_max(kind, place) AS kind FROM stage_device GROUP BY key)
        WHERE key NOT IN (SELECT key FROM device_name)
    """,
    """
    INSERT INTO failure_group
        SELECT (SELECT coalesce(max(grp), 0) FROM failure_group) + row_number() OVER (ORDER BY key), key, title
        FROM (SELECT key, any_value(title) AS title FROM stage_trouble GROUP BY key)
        WHERE key NOT IN (SELECT key FROM failure_group)
    """,
    """
    INSERT INTO reason
        SELECT (SELECT coalesce(max(reason), 0) FROM reason) + row_number() OVER (ORDER BY text), text
        FROM (SELECT DISTINCT reason AS text FROM stage_verdict WHERE reason <> '')
        WHERE text NOT IN (SELECT text FROM reason)
    """,
    """
    INSERT INTO verdict
        SELECT f.run, c."case", o.outcome, d.device, s.attempts, s.seconds, w.reason, s.host_size, s.device_size
        FROM stage_verdict s JOIN fresh f USING (run_id) JOIN case_name c ON c.id = s."case"
            JOIN outcome_name o ON o.name = s.outcome
            LEFT JOIN device_name d ON d.key = s.device LEFT JOIN reason w ON w.text = s.reason
        ORDER BY f.run, c."case"
    """,
    """
    INSERT INTO trouble
        SELECT f.run, c."case", o.outcome, d.device, g.grp, s.message, s.stack, s.reproduce, s.rule
        FROM stage_trouble s JOIN fresh f USING (run_id) JOIN case_name c ON c.id = s."case"
            JOIN outcome_name o ON o.name = s.outcome JOIN failure_group g USING (key)
            LEFT JOIN device_name d ON d.key = s.device
        ORDER BY f.run, c."case"
    """,
    """
    INSERT INTO run_device SELECT f.run, d.device FROM stage_device JOIN fresh f USING (run_id) JOIN device_name d
        USING (key)
    """,
    """
    INSERT INTO health_event
        SELECT f.run, d.device, s.state, s.message, s.xid
        FROM stage_health s JOIN fresh f USING (run_id) JOIN device_name d ON d.key = s.device
    """,
    """
    INSERT INTO run_finding SELECT f.run, kind, message, title, cases FROM stage_finding JOIN fresh f USING (run_id)
    """,
    """
    INSERT INTO run
        SELECT f.run, run_id, print,
            concat_ws(' · ', host, model, coalesce(nullif(tool, ''), nullif(profile, 'none')), nullif(shard, '')),
            make_timestamp((begun * 1000000)::BIGINT),
            (make_timestamp((begun * 1000000)::BIGINT) - INTERVAL 12 HOUR)::DATE,
            run_seconds, host, model, driver, cuda, torch, python, harness, "commit", dirty, suites, profile, hardware,
            isolation, shard, seed, argv, tool, exit_status, complete, fail_on_flaky, waivers, path, page, identity,
            parts,
            coalesce(n.cases, 0), coalesce(n.ran, 0), coalesce(n.passed, 0), coalesce(n.red, 0), coalesce(n.flaky, 0),
            coalesce(n.waived, 0), coalesce(n.gated, 0)
        FROM fresh f LEFT JOIN (
            SELECT run, count(*) AS cases, count(*) FILTER (o.ran) AS ran,
                count(*) FILTER (o.name = 'passed') AS passed,
                count(*) FILTER (o.red) AS red, count(*) FILTER (o.name = 'flaky') AS flaky,
                count(*) FILTER (o.name = 'waived') AS waived, count(*) FILTER (o.name = 'gated') AS gated
            FROM verdict JOIN outcome_name o USING (outcome)
            WHERE run IN (SELECT run FROM fresh) GROUP BY run
        ) n USING (run)
    """,
)

#: Makes the staging views of the run with the number `{run}` in a database `old` with these tables: the opposite of
#: `INGEST`.
_OF_RUN = 'JOIN old.case_name USING ("case") JOIN old.outcome_name o USING (outcome) LEFT JOIN old.device_name d USING'
EXPORT = {
    "run": "SELECT * EXCLUDE (run, run_id) REPLACE (epoch(begun) AS begun), seconds AS run_seconds, rowid AS row "
    "FROM old.run WHERE run = {run}",
    "verdict": f"""
        SELECT id AS "case", suite, o.name AS outcome, coalesce(d.key, '') AS device, attempts, seconds, host_size,
            device_size, coalesce(text, '') AS reason, v.rowid AS row
        FROM old.verdict v {_OF_RUN} (device) LEFT JOIN old.reason USING (reason) WHERE run = {{run}}
    """,
    "trouble": f"""
        SELECT id AS "case", o.name AS outcome, coalesce(d.key, '') AS device, g.key, title, message, stack, reproduce,
            rule, t.rowid AS row
        FROM old.trouble t {_OF_RUN} (device) JOIN old.failure_group g USING (grp) WHERE run = {{run}}
    """,
    "device": "SELECT d.* EXCLUDE (device), r.rowid AS row FROM old.run_device r JOIN old.device_name d USING (device) "
    "WHERE run = {run}",
    "health": "SELECT d.key AS device, state, message, xid, h.rowid AS row FROM old.health_event h "
    "JOIN old.device_name d USING (device) WHERE run = {run}",
    "finding": "SELECT kind, message, title, cases, rowid AS row FROM old.run_finding WHERE run = {run}",
}

#: The tables with rows of runs.
OF_RUNS = ("verdict", "trouble", "run_device", "health_event", "run_finding", "run")
#: Removes names that no row uses, after runs were removed.
FORGET = (
    'DELETE FROM case_name WHERE "case" NOT IN (SELECT DISTINCT "case" FROM verdict)',
    "DELETE FROM device_name WHERE device NOT IN (SELECT DISTINCT device FROM run_device)",
    "DELETE FROM failure_group WHERE grp NOT IN (SELECT DISTINCT grp FROM trouble)",
    "DELETE FROM reason WHERE reason NOT IN (SELECT DISTINCT reason FROM verdict WHERE reason IS NOT NULL)",
)
