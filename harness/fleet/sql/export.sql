-- The run $run of a history that is attached as `old`, as the rows of its file: the opposite of ingest.sql.
SELECT 'run' AS part, run.* EXCLUDE (run, lane, night, seconds, cases, ran, passed, red, flaky, waived, gated)
        REPLACE (epoch(begun) AS begun), seconds AS run_seconds, 0 AS place
    FROM old.run WHERE run = $run
UNION ALL BY NAME
SELECT 'verdict' AS part, run_id, id AS "case", suite, o.name AS outcome, coalesce(d.key, '') AS device, attempts,
        v.seconds, host_size, device_size, coalesce(text, '') AS reason, row_number() OVER (ORDER BY v.rowid) - 1 AS place
    FROM old.verdict v JOIN old.run USING (run) JOIN old.case_name USING ("case")
        JOIN old.outcome_name o USING (outcome) LEFT JOIN old.device_name d USING (device)
        LEFT JOIN old.reason USING (reason)
    WHERE run = $run
UNION ALL BY NAME
SELECT 'trouble' AS part, run_id, id AS "case", o.name AS outcome, coalesce(d.key, '') AS device, g.key, title, message,
        stack, reproduce, rule, row_number() OVER (ORDER BY t.rowid) - 1 AS place
    FROM old.trouble t JOIN old.run USING (run) JOIN old.case_name USING ("case")
        JOIN old.outcome_name o USING (outcome) LEFT JOIN old.device_name d USING (device)
        JOIN old.failure_group g USING (grp)
    WHERE run = $run
UNION ALL BY NAME
SELECT 'device' AS part, run_id, d.* EXCLUDE (device), row_number() OVER (ORDER BY u.rowid) - 1 AS place
    FROM old.run_device u JOIN old.run USING (run) JOIN old.device_name d USING (device) WHERE run = $run
UNION ALL BY NAME
SELECT 'health' AS part, run_id, d.key AS device, state, message, xid, row_number() OVER (ORDER BY h.rowid) - 1 AS place
    FROM old.health_event h JOIN old.run USING (run) JOIN old.device_name d USING (device) WHERE run = $run
UNION ALL BY NAME
SELECT 'finding' AS part, run_id, kind, message, title, f.cases, row_number() OVER (ORDER BY f.rowid) - 1 AS place
    FROM old.run_finding f JOIN old.run USING (run) WHERE run = $run;
