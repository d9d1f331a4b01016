-- The questions of a matrix. `column_of` has the machine of each run, and the place of the run in the matrix.
-- $holes are the kinds of holes, the one that counts first.

-- name: runs
-- The runs, with the UUIDs of their devices.
SELECT run.*, epoch(begun) AS seconds_since_1970, coalesce(uuids, []) AS uuids
FROM run LEFT JOIN (
    SELECT run, list(uuid ORDER BY uuid) AS uuids FROM run_device JOIN device_name USING (device) GROUP BY run
) USING (run) ORDER BY run;

-- name: make_cells
-- A table with each case and machine: the number of runs by outcome and, if no run says anything about the case, the
-- kind of hole, its reason, and what was found.
CREATE OR REPLACE TEMP TABLE cell AS
WITH unread AS (
    SELECT DISTINCT "case", run
    FROM (SELECT run, unnest(unread) AS prefix FROM run) JOIN case_name ON starts_with(id, prefix)
    ANTI JOIN (SELECT run, "case" FROM verdict UNION SELECT run, "case" FROM absent) USING (run, "case")
),
said AS (
    SELECT v."case", v.run, o.name AS outcome, nullif(list_position($holes, o.name), 0) AS hole, found,
        CASE WHEN o.name = 'lost' THEN 'it started and never finished'
            WHEN ends_with(text, ', found ' || found) THEN left(text, len(text) - len(', found ' || found))
            ELSE coalesce(nullif(text, o.name), left(t.message, 300), '')
        END AS reason
    FROM verdict v JOIN outcome_name o USING (outcome) LEFT JOIN reason USING (reason)
        LEFT JOIN trouble t ON t.run = v.run AND t."case" = v."case" AND o.name IN ('waived', 'not_run')
    UNION ALL BY NAME
    SELECT "case", run, list_position($holes, outcome) AS hole,
        CASE outcome WHEN 'deselected' THEN 'excluded by the options of the run'
            ELSE 'it is in another shard of the run, which is missing here' END AS reason
    FROM absent
    UNION ALL BY NAME
    SELECT "case", run, list_position($holes, 'deselected') AS hole, 'excluded by the options of the run' AS reason
    FROM unread
    UNION ALL BY NAME
    SELECT "case", run, list_position($holes, 'not_collected') AS hole,
        'the runs of these machines have no such case' AS reason
    FROM case_name CROSS JOIN run
)
SELECT "case", machine, coalesce(histogram(outcome) FILTER (outcome IS NOT NULL), MAP {}) AS outcomes,
    CASE WHEN count(*) FILTER (hole IS NULL) = 0 THEN min(hole) END AS hole,
    CASE WHEN count(*) FILTER (hole IS NULL) = 0 THEN arg_min(reason, (hole, place)) END AS reason,
    list(DISTINCT found) FILTER (found <> '') AS found
FROM said JOIN column_of USING (run) GROUP BY "case", machine;

-- name: cells
-- The different cells, with the cases and machines that have them. The most frequent have the shortest numbers.
SELECT outcomes, hole, reason, list("case"), list(machine) FROM cell GROUP BY outcomes, hole, reason
ORDER BY count(*) DESC, hole, outcomes::TEXT, reason;

-- name: holes
-- The holes by reason, those of most cells first. Only gated cases found something.
SELECT hole, reason, CASE WHEN hole = list_position($holes, 'gated')
        THEN list_sort(list_distinct(flatten(list(coalesce(found, []))))) ELSE [] END,
    list(DISTINCT "case"), list(DISTINCT machine), count(*)
FROM cell WHERE hole IS NOT NULL GROUP BY hole, reason ORDER BY count(*) DESC, hole, reason;

-- name: observations
-- The runs that say something about the cases that are bad somewhere, with the keys of the devices.
SELECT v."case", place, coalesce(v.devices, [d.key]) AS devices,
    CASE WHEN o.red THEN 0 WHEN o.name = 'flaky' THEN 1 ELSE 2 END AS kind
FROM verdict v SEMI JOIN (
        SELECT "case" FROM trouble JOIN outcome_name b USING (outcome) WHERE is_bad(b.red, b.ran, b.name)
    ) bad ON bad."case" = v."case"
    JOIN outcome_name o USING (outcome) JOIN column_of USING (run) LEFT JOIN device_name d USING (device)
WHERE NOT list_contains($holes, o.name) ORDER BY v."case", place;

-- name: messages
-- The messages of cases that are bad, the earliest first, with the number of runs and a command that runs the case.
SELECT "case", message, count(*), arg_min(reproduce, place) FILTER (reproduce <> '')
FROM trouble JOIN outcome_name o USING (outcome) JOIN column_of USING (run)
WHERE is_bad(o.red, o.ran, o.name) GROUP BY "case", message ORDER BY "case", min(place), message;

-- name: findings
-- The findings, those of most runs first. Of one run, the first $most count.
SELECT kind, arg_min(message, place) AS message, list(DISTINCT place ORDER BY place) AS runs, max(cases) AS concerned,
    flatten(list(coalesce(named, []) ORDER BY place)), arg_min(reproduce, place) FILTER (reproduce <> '')
FROM (
    FROM run_finding JOIN column_of USING (run)
    QUALIFY row_number() OVER (PARTITION BY run ORDER BY run_finding.rowid) <= $most
)
GROUP BY kind, title ORDER BY len(runs) DESC, kind, message;

-- name: bad_runs
-- The places of the runs in which cases were bad.
SELECT "case", list(place ORDER BY place) FROM trouble JOIN outcome_name o USING (outcome) JOIN column_of USING (run)
WHERE is_bad(o.red, o.ran, o.name) GROUP BY "case";

-- name: devices
-- The devices by key, with UUID, name, parent, and whether only one host has a device with the UUID.
SELECT key, uuid, name, coalesce(parent, ''), key = uuid FROM device_name;
