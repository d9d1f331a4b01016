-- Enters staged runs that the history does not have: names first, then rows with the numbers of the names.
-- Shards whose merged run is present, or is being added, are part of that run.
CREATE OR REPLACE TEMP TABLE fresh AS
    SELECT s.*, (SELECT coalesce(max(run), 0) FROM run) + row_number() OVER (ORDER BY begun, run_id) AS run
    FROM stage_run s
    WHERE run_id NOT IN (SELECT run_id FROM run)
        AND run_id NOT IN (SELECT unnest(parts) FROM run)
        AND run_id NOT IN (SELECT unnest(parts) FROM stage_run);
INSERT INTO case_name
    SELECT (SELECT coalesce(max("case"), 0) FROM case_name) + row_number() OVER (ORDER BY place), id, suite
    FROM (
        SELECT "case" AS id, any_value(suite) AS suite, min(place) AS place
        FROM (FROM stage_verdict UNION ALL BY NAME FROM stage_absent) GROUP BY "case"
    )
    WHERE id NOT IN (SELECT id FROM case_name);
INSERT INTO device_name
    SELECT (SELECT coalesce(max(device), 0) FROM device_name) + row_number() OVER (ORDER BY key),
        key, uuid, host, name, kind, parent
    FROM (
        SELECT key, arg_max(uuid, place) AS uuid, arg_max(host, place) AS host, arg_max(kind, place) AS kind,
            arg_max(name, (name <> 'unknown', place)) AS name, arg_max(parent, place) AS parent
        FROM stage_device GROUP BY key
    )
    WHERE key NOT IN (SELECT key FROM device_name);
INSERT INTO failure_group
    SELECT (SELECT coalesce(max(grp), 0) FROM failure_group) + row_number() OVER (ORDER BY key), key, title
    FROM (SELECT key, any_value(title) AS title FROM stage_trouble GROUP BY key)
    WHERE key NOT IN (SELECT key FROM failure_group);
INSERT INTO reason
    SELECT (SELECT coalesce(max(reason), 0) FROM reason) + row_number() OVER (ORDER BY text), text, found
    FROM (SELECT reason AS text, any_value(found) AS found FROM stage_verdict WHERE reason <> '' GROUP BY reason)
    WHERE text NOT IN (SELECT text FROM reason);
INSERT INTO verdict
    SELECT f.run, c."case", o.outcome, d.device, s.attempts, s.seconds, w.reason, s.host_size, s.device_size,
        s.devices
    FROM stage_verdict s JOIN fresh f USING (run_id) JOIN case_name c ON c.id = s."case"
        JOIN outcome_name o ON o.name = s.outcome
        LEFT JOIN device_name d ON d.key = s.device LEFT JOIN reason w ON w.text = s.reason
    ORDER BY f.run, c."case";
INSERT INTO absent
    SELECT f.run, c."case", s.outcome FROM stage_absent s JOIN fresh f USING (run_id) JOIN case_name c ON c.id = s."case"
    ORDER BY f.run, c."case";
INSERT INTO trouble
    SELECT f.run, c."case", o.outcome, d.device, g.grp, s.message, s.stack, s.reproduce, s.rule
    FROM stage_trouble s JOIN fresh f USING (run_id) JOIN case_name c ON c.id = s."case"
        JOIN outcome_name o ON o.name = s.outcome JOIN failure_group g USING (key)
        LEFT JOIN device_name d ON d.key = s.device
    ORDER BY f.run, c."case";
INSERT INTO run_device
    SELECT f.run, d.device, s.host FROM stage_device s JOIN fresh f USING (run_id) JOIN device_name d USING (key);
INSERT INTO second_device
    SELECT f.run, d.device, other.device, s.red
    FROM stage_second s JOIN fresh f USING (run_id) JOIN device_name d ON d.key = s.device
        JOIN device_name other ON other.key = s.other;
INSERT INTO health_event
    SELECT f.run, d.device, s.state, s.message, s.xid
    FROM stage_health s JOIN fresh f USING (run_id) JOIN device_name d ON d.key = s.device;
INSERT INTO run_finding
    SELECT f.run, kind, message, title, cases, named, reproduce, devices FROM stage_finding s JOIN fresh f USING (run_id)
    ORDER BY f.run, s.place;
INSERT INTO run
    SELECT f.run, run_id, print,
        concat_ws(' · ', host, model, coalesce(nullif(tool, ''), nullif(profile, 'none')), nullif(shard, '')),
        make_timestamp((begun * 1000000)::BIGINT),
        (make_timestamp((begun * 1000000)::BIGINT) - INTERVAL 12 HOUR)::DATE,
        run_seconds, host, model, driver, cuda, torch, python, harness, "commit", dirty, suites, profile, hardware,
        isolation, shard, seed, argv, tool, exit_status, complete, fail_on_flaky, waivers, path, page, identity,
        parts, environment, levels, notes, unread,
        coalesce(n.cases, 0), coalesce(n.ran, 0), coalesce(n.passed, 0), coalesce(n.red, 0), coalesce(n.flaky, 0),
        coalesce(n.waived, 0), coalesce(n.gated, 0)
    FROM fresh f LEFT JOIN (
        SELECT run, count(*) AS cases, count(*) FILTER (o.ran) AS ran,
            count(*) FILTER (o.name = 'passed') AS passed,
            count(*) FILTER (o.red) AS red, count(*) FILTER (o.name = 'flaky') AS flaky,
            count(*) FILTER (o.name = 'waived') AS waived, count(*) FILTER (o.name = 'gated') AS gated
        FROM verdict JOIN outcome_name o USING (outcome)
        WHERE run IN (SELECT run FROM fresh) GROUP BY run
    ) n USING (run);
