-- The tables of a history. The program enters the rows of outcome_name, and the version in meta.
-- verdict.devices: the keys of all devices of a case that had several. absent: the cases that a run knows and left out.
-- run.unread: the beginnings of ids that a run did not collect. run_finding.named: the first of its cases;
-- run_finding.devices: the keys of the devices that it is about. second_device: a red case of a device was run on another.
CREATE TABLE meta (name TEXT NOT NULL, value TEXT NOT NULL);
INSERT INTO meta VALUES ('what', 'history of gpu-conformance-harness');
CREATE TABLE outcome_name (outcome UTINYINT, name TEXT, red BOOLEAN, ran BOOLEAN);
CREATE TABLE run (
    run INTEGER NOT NULL, run_id TEXT NOT NULL, print TEXT NOT NULL, lane TEXT NOT NULL,
    begun TIMESTAMP NOT NULL, night DATE NOT NULL, seconds DOUBLE,
    host TEXT, model TEXT, driver TEXT, cuda TEXT, torch TEXT, python TEXT, harness TEXT,
    "commit" TEXT, dirty BOOLEAN, suites TEXT, profile TEXT, hardware TEXT, isolation TEXT, shard TEXT,
    seed TEXT, argv TEXT, tool TEXT, exit_status INTEGER, complete BOOLEAN, fail_on_flaky BOOLEAN, waivers INTEGER,
    path TEXT, page TEXT, identity TEXT, parts TEXT[],
    environment TEXT, levels TEXT, notes TEXT[], unread TEXT[],
    cases INTEGER, ran INTEGER, passed INTEGER, red INTEGER, flaky INTEGER, waived INTEGER, gated INTEGER
);
CREATE TABLE case_name ("case" INTEGER NOT NULL, id TEXT NOT NULL, suite TEXT NOT NULL);
CREATE TABLE device_name (device INTEGER NOT NULL, key TEXT NOT NULL, uuid TEXT, host TEXT, name TEXT, kind TEXT,
    parent TEXT);
CREATE TABLE failure_group (grp INTEGER NOT NULL, key TEXT NOT NULL, title TEXT);
CREATE TABLE reason (reason INTEGER NOT NULL, text TEXT NOT NULL, found TEXT);
CREATE TABLE verdict (
    run INTEGER NOT NULL, "case" INTEGER NOT NULL, outcome UTINYINT NOT NULL, device INTEGER, attempts UTINYINT,
    seconds FLOAT, reason INTEGER, host_size USMALLINT, device_size USMALLINT, devices TEXT[]
);
CREATE TABLE absent (run INTEGER NOT NULL, "case" INTEGER NOT NULL, outcome TEXT NOT NULL);
CREATE TABLE trouble (
    run INTEGER NOT NULL, "case" INTEGER NOT NULL, outcome UTINYINT NOT NULL, device INTEGER, grp INTEGER NOT NULL,
    message TEXT, stack TEXT, reproduce TEXT, rule TEXT
);
CREATE TABLE run_device (run INTEGER NOT NULL, device INTEGER NOT NULL, host TEXT);
CREATE TABLE second_device (run INTEGER NOT NULL, device INTEGER NOT NULL, other INTEGER NOT NULL, red BOOLEAN);
CREATE TABLE health_event (run INTEGER NOT NULL, device INTEGER NOT NULL, state TEXT, message TEXT, xid INTEGER);
CREATE TABLE run_finding (
    run INTEGER NOT NULL, kind TEXT, message TEXT, title TEXT, cases INTEGER, named TEXT[], reproduce TEXT,
    devices TEXT[]
);

-- The views that `harness history sql` documents (docs/history.md). Their columns stay when the tables change.
-- A size is stored as a code, see `record.size_code`.
CREATE VIEW runs AS
    SELECT run, run_id, lane, begun, night, seconds, host, model, driver, cuda, torch, python, harness, "commit",
        dirty, suites, profile, hardware, shard, seed, argv, tool, exit_status, complete, cases, ran, passed, red,
        flaky, waived, gated, path
    FROM run;
CREATE VIEW results AS
    SELECT v.run, r.run_id, r.night, r.lane, c.id AS "case", c.suite, o.name AS outcome, o.red,
        d.key AS device, r.driver, r.torch, v.attempts, v.seconds,
        round(pow(2, v.host_size / 8))::BIGINT AS host_memory,
        round(pow(2, v.device_size / 8))::BIGINT AS device_memory, w.text AS reason
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
