-- The rows of the runs of several files, on their way into the tables. The Parquet file of a run has these columns, and
-- `part`, the kind of row. `place`: the place of a row in its run, in the order of collection.

CREATE OR REPLACE TEMP TABLE stage_run (
    run_id TEXT, print TEXT, begun DOUBLE, run_seconds DOUBLE, host TEXT, model TEXT, driver TEXT, cuda TEXT,
    torch TEXT, python TEXT, harness TEXT, "commit" TEXT, dirty BOOLEAN, suites TEXT, profile TEXT, hardware TEXT,
    isolation TEXT, shard TEXT, seed TEXT, argv TEXT, tool TEXT, exit_status INTEGER, complete BOOLEAN,
    fail_on_flaky BOOLEAN, waivers INTEGER, path TEXT, page TEXT, identity TEXT, parts TEXT[], place BIGINT,
    environment TEXT, levels TEXT, notes TEXT[], unread TEXT[]
);
CREATE OR REPLACE TEMP TABLE stage_verdict (
    run_id TEXT, "case" TEXT, suite TEXT, outcome TEXT, device TEXT, attempts UTINYINT, seconds FLOAT,
    host_size USMALLINT, device_size USMALLINT, reason TEXT, place BIGINT, devices TEXT[], found TEXT
);
CREATE OR REPLACE TEMP TABLE stage_absent (run_id TEXT, "case" TEXT, outcome TEXT, place BIGINT);
CREATE OR REPLACE TEMP TABLE stage_trouble (
    run_id TEXT, "case" TEXT, outcome TEXT, device TEXT, key TEXT, title TEXT, message TEXT, stack TEXT, reproduce TEXT,
    rule TEXT, place BIGINT
);
CREATE OR REPLACE TEMP TABLE stage_device (
    run_id TEXT, key TEXT, uuid TEXT, host TEXT, name TEXT, kind TEXT, place BIGINT, parent TEXT
);
CREATE OR REPLACE TEMP TABLE stage_health (
    run_id TEXT, device TEXT, state TEXT, message TEXT, xid INTEGER, place BIGINT
);
CREATE OR REPLACE TEMP TABLE stage_finding (
    run_id TEXT, kind TEXT, message TEXT, title TEXT, cases INTEGER, place BIGINT, named TEXT[], reproduce TEXT,
    devices TEXT[]
);
CREATE OR REPLACE TEMP TABLE stage_second (run_id TEXT, device TEXT, other TEXT, red BOOLEAN, place BIGINT);
