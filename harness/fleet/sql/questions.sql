-- The questions to a history. Values are given by name: $nights is a number of nights before and with the last one,
-- $stale the number after which a lane without a run has no present state. Questions about failures read the views,
-- questions about millions of verdicts the tables, whose names are numbers.

-- name: runs
SELECT run.*, coalesce(devices, '') AS devices,
    lag(run.run) OVER (PARTITION BY lane ORDER BY begun, run.run) AS previous
FROM run LEFT JOIN (
    SELECT run, string_agg(key, ', ' ORDER BY key) AS devices FROM run_device JOIN device_name USING (device)
    GROUP BY run
) USING (run) ORDER BY begun, run;

-- name: lanes
-- The latest run of each lane, the red cases of its runs, and how many cases are newly red and no longer red in it.
-- First the lanes with most red cases, then those without a present state.
WITH line AS (
    SELECT run, lane, red, night, row_number() OVER (PARTITION BY lane ORDER BY begun DESC, run DESC) AS age FROM run
),
own AS (
    SELECT lane, any_value(run) FILTER (age = 1) AS run, any_value(run) FILTER (age = 2) AS before,
        any_value(red) FILTER (age = 1) AS red, list(red ORDER BY age DESC) FILTER (age <= $trend) AS trend,
        max(night) <= (SELECT max(night) FROM run) - to_days($stale) AS stale
    FROM line GROUP BY lane
),
bad AS (SELECT DISTINCT run, "case" FROM trouble JOIN outcome_name USING (outcome) WHERE red),
begun AS (
    SELECT lane, count(*) AS new FROM own JOIN bad USING (run)
        ANTI JOIN bad was ON was.run = own.before AND was."case" = bad."case"
    WHERE before IS NOT NULL GROUP BY lane
),
ended AS (
    SELECT lane, count(*) AS fixed FROM own JOIN bad ON bad.run = own.before
        ANTI JOIN bad still ON still.run = own.run AND still."case" = bad."case"
    GROUP BY lane
)
SELECT lane, run, trend, coalesce(new, 0), coalesce(fixed, 0), stale
FROM own LEFT JOIN begun USING (lane) LEFT JOIN ended USING (lane) ORDER BY stale, red DESC, lane;

-- name: nights
-- The columns of `answers.Night`.
SELECT night, count(*), count(*) FILTER (exit_status NOT IN (0, 5)), sum(ran)::BIGINT, sum(red)::BIGINT,
    sum(flaky)::BIGINT
FROM run WHERE run IN (FROM recent($nights)) GROUP BY night ORDER BY night;

-- name: present_findings
SELECT run.lane, kind, message FROM run_finding JOIN latest($stale) USING (run) JOIN run USING (run)
ORDER BY red DESC, run.lane, kind, message;

-- name: new_findings
-- Findings of the run $run that the run $before does not have.
SELECT kind, message FROM run_finding
WHERE run = $run AND title NOT IN (SELECT title FROM run_finding WHERE run = $before) ORDER BY kind, message;

-- name: fixed
-- Cases that were red in the run $before, and ran without being red in the run $run.
SELECT id FROM trouble t JOIN outcome_name p USING (outcome) JOIN verdict v USING ("case")
    JOIN outcome_name o ON o.outcome = v.outcome JOIN case_name USING ("case")
WHERE t.run = $before AND p.red AND v.run = $run AND o.ran AND NOT o.red ORDER BY id;

-- name: newly_gated
SELECT id FROM verdict v JOIN outcome_name o USING (outcome) JOIN verdict w USING ("case")
    JOIN outcome_name p ON p.outcome = w.outcome JOIN case_name USING ("case")
WHERE v.run = $run AND o.name = 'gated' AND w.run = $before AND p.ran ORDER BY id;

-- name: failures
-- The columns of `answers.HistoryFailure`. A condition and an order follow.
SELECT run, night, lane, "case", outcome, coalesce(device, ''), "group", title, message, reproduce
FROM (SELECT f.*, begun FROM failures f JOIN run USING (run))

-- name: new_failures
-- A condition on `failures`: cases of the run $run that were not red in the run $before, or in another group.
WHERE run = $run AND red
    AND ("case", "group") NOT IN (SELECT ("case", "group") FROM failures WHERE run = $before AND red)
ORDER BY "case"

-- name: healed
-- A condition on `failures`: cases that pass now, although a waiver expects them to fail.
WHERE outcome = 'unexpected_pass' AND run IN (SELECT run FROM latest($stale)) ORDER BY begun, "case"

-- name: groups
-- The columns of `answers.FailureGroup`, except onsets, for groups of red verdicts: those in the latest runs, or all
-- with $closed; only the group $key, unless it is empty.
WITH red AS (SELECT f.*, begun FROM failures f JOIN run USING (run) WHERE f.red),
now AS (
    SELECT "group", count(DISTINCT "case") AS cases, count(DISTINCT lane) AS lanes
    FROM red JOIN latest($stale) USING (run, lane) GROUP BY "group"
)
SELECT "group", any_value(title), min(night) AS first, max(night) AS last, count(*) AS failures,
    count(DISTINCT "case"), count(DISTINCT run),
    coalesce(list(DISTINCT device ORDER BY device) FILTER (device IS NOT NULL), []),
    list(DISTINCT driver ORDER BY driver), list(DISTINCT lane ORDER BY lane),
    arg_max("case", (begun, "case")), arg_max(message, (begun, "case")), arg_max(reproduce, (begun, "case")),
    arg_max(stack, (begun, "case")),
    coalesce(any_value(now.cases), 0) AS open_cases, coalesce(any_value(now.lanes), 0) AS open_lanes
FROM red LEFT JOIN now USING ("group")
WHERE (now.lanes IS NOT NULL OR $closed) AND $key IN ('', "group")
GROUP BY "group" ORDER BY open_lanes = 0, open_cases DESC, last DESC, failures DESC, "group" LIMIT $most;

-- name: past
-- The columns of `notify.Past` for groups that were red in the lane before the run $run.
WITH line AS (
    SELECT run, night, begun + to_seconds(coalesce(seconds, 0)) AS ended,
        row_number() OVER (ORDER BY begun, run) AS place
    FROM run
    WHERE lane = $lane AND (begun, run) < (SELECT (begun, run) FROM run WHERE run = $run)
),
there AS (
    SELECT DISTINCT "group", line.* FROM failures JOIN line USING (run) WHERE red AND list_contains($keys, "group")
),
spell AS (SELECT *, place - row_number() OVER (PARTITION BY "group" ORDER BY place) AS spell FROM there)
SELECT "group", max(night), min(night), arg_max(ended, place)::DATE
FROM (FROM spell QUALIFY spell = max(spell) OVER (PARTITION BY "group")) GROUP BY "group";

-- name: presence
-- The runs in which a case of a group has a result, and whether the group was there. A lost case has no result, but is
-- a failure of its group.
WITH had AS (SELECT t.*, key FROM trouble t JOIN failure_group USING (grp) WHERE list_contains($keys, key)),
ran AS (
    SELECT DISTINCT key, v.run FROM (SELECT DISTINCT key, "case" FROM had) JOIN verdict v USING ("case")
        JOIN outcome_name o USING (outcome)
    WHERE (o.ran OR o.name = 'lost') AND v.run IN (FROM recent($nights))
)
SELECT key, lane, run, own.run IS NOT NULL FROM ran JOIN run USING (run)
    LEFT JOIN (SELECT DISTINCT key, run FROM had) own USING (key, run)
ORDER BY key, lane, begun, run;

-- name: observations
-- The results of cases in the last nights: a row per case and run, in the order of the runs of a lane.
SELECT "case", lane, run, night, o.name, coalesce(d.key, ''), v.seconds, pow(2, v.host_size / 8 - 20),
    pow(2, v.device_size / 8 - 20)
FROM verdict v JOIN outcome_name o USING (outcome) JOIN run USING (run) LEFT JOIN device_name d USING (device)
WHERE "case" IN (SELECT unnest($cases)) AND night > (SELECT max(night) FROM run) - to_days($nights)
    AND list_contains($lanes, lane)
ORDER BY "case", lane, begun, run;

-- name: not_run
SELECT id, night, reason FROM silent($nights) WHERE night IS NOT NULL ORDER BY night DESC, id LIMIT $most;

-- name: never_run
SELECT reason, count(*) AS cases FROM silent($nights) WHERE night IS NULL GROUP BY reason ORDER BY cases DESC, reason;

-- name: flaky
-- Cases with bad results in the last nights: how many, of how many results, and on how many devices. A case without the
-- verdict flaky needs two spells of fewer than $steady bad results in one lane, one that has ended, and more good
-- results than bad ones. `results` is the line of a case in a lane: `..x.xx`.
WITH line AS (
    SELECT run, dense_rank() OVER (ORDER BY lane)::INTEGER AS lane,
        row_number() OVER (ORDER BY begun, run)::INTEGER AS place
    FROM run WHERE run IN (FROM recent($nights))
),
bad AS (
    SELECT run, "case", device, o.name = 'flaky' AS flaky
    FROM trouble JOIN line USING (run) JOIN outcome_name o USING (outcome) WHERE is_bad(o.red, o.ran, o.name)
),
own AS (
    SELECT "case", count(*) AS bad, count(DISTINCT device) AS devices, bool_or(flaky) AS flaky
    FROM bad GROUP BY "case" HAVING bool_or(flaky) OR count(*) > 1
),
seen AS (
    SELECT v."case", lane, count(*) AS ran,
        string_agg(CASE WHEN bad.run IS NULL THEN '.' ELSE 'x' END, '' ORDER BY place) AS results
    FROM verdict v JOIN own USING ("case") JOIN outcome_name o USING (outcome) JOIN line USING (run)
        LEFT JOIN bad ON bad.run = v.run AND bad."case" = v."case"
    WHERE o.ran GROUP BY v."case", lane
),
spells AS (
    SELECT "case", ran, ends_with(results, 'x') AS goes_on,
        list_filter(string_split(results, '.'), lambda spell: spell <> '') AS bad
    FROM seen
),
whole AS (
    SELECT "case", sum(ran)::BIGINT AS ran, sum(len(bad) - goes_on::INTEGER) AS ended,
        max(len(list_filter(bad, lambda spell: len(spell) < $steady))) AS short
    FROM spells GROUP BY "case"
)
SELECT id, own.bad, whole.ran, devices FROM whole JOIN own USING ("case") JOIN case_name USING ("case")
WHERE flaky OR (short > 1 AND ended > 0 AND 2 * own.bad < whole.ran) ORDER BY own.bad DESC, id LIMIT $most;

-- name: rises
-- The cases whose median duration rose most from the first to the last $ends runs of a lane's window, the largest rise
-- first.
WITH line AS (
    SELECT run, lane, row_number() OVER (PARTITION BY lane ORDER BY begun DESC, run DESC) - 1 AS age,
        least($window, count(*) OVER (PARTITION BY lane)) AS length
    FROM run WHERE lane IN (SELECT lane FROM latest($stale))
),
measured AS (
    SELECT lane, "case", median(seconds) FILTER (age >= length - $ends) AS early,
        median(seconds) FILTER (age < $ends) AS late
    FROM verdict JOIN line USING (run)
    WHERE length >= $least AND age < length AND (age < $ends OR age >= length - $ends) AND seconds IS NOT NULL
    GROUP BY lane, "case"
)
SELECT lane, "case", id FROM measured JOIN case_name USING ("case")
WHERE late > $factor * early AND late > early + $seconds
ORDER BY late - early DESC, lane, "case" LIMIT $most;

-- name: device
SELECT * FROM device_name WHERE key = $key;

-- name: device_nights
-- By night: results and bad results of a device.
SELECT night, count(*), count(*) FILTER (is_bad(o.red, o.ran, o.name))
FROM verdict v JOIN outcome_name o USING (outcome) JOIN run USING (run)
WHERE device = $device AND o.ran GROUP BY night ORDER BY night;

-- name: device_events
SELECT night, run, state, xid, message FROM health_event JOIN run USING (run)
WHERE device = $device ORDER BY begun DESC LIMIT 100;

-- name: suspicions
-- The columns of `answers.DeviceSuspicion`, except its chance, for each device of the last nights. A stratum is one
-- case in one night, on devices of one kind with one driver and one torch. Strata with one device do not count.
WITH recent_run AS (SELECT run, night, driver, torch FROM run WHERE run IN (FROM recent($nights))),
bad AS (
    SELECT run, "case", device, night, driver, torch, d.name
    FROM trouble JOIN recent_run USING (run) JOIN device_name d USING (device) JOIN outcome_name o USING (outcome)
    WHERE is_bad(o.red, o.ran, o.name)
),
stratum AS (SELECT night, driver, torch, name, "case", count(*) AS bad FROM bad GROUP BY ALL),
ran AS (
    SELECT stratum.*, v.device, count(*) AS ran
    FROM verdict v JOIN recent_run r USING (run) JOIN device_name d USING (device)
        JOIN outcome_name o USING (outcome)
        JOIN stratum ON stratum.night = r.night AND stratum.driver = r.driver AND stratum.torch = r.torch
            AND stratum.name = d.name AND stratum."case" = v."case"
    WHERE o.ran GROUP BY ALL
),
share AS (
    SELECT *, ran / sum(ran) OVER stratum AS share, count(*) OVER stratum AS devices FROM ran
    WINDOW stratum AS (PARTITION BY night, driver, torch, name, "case")
),
expected AS (SELECT device, sum(bad * share) AS expected FROM share WHERE devices > 1 GROUP BY device),
counted AS (
    SELECT device, count(*) AS bad, count(DISTINCT run) AS runs, count(DISTINCT "case") AS cases
    FROM bad SEMI JOIN (FROM share WHERE devices > 1) USING (night, driver, torch, name, "case") GROUP BY device
),
sick AS (
    SELECT device, count(*) AS events, list(DISTINCT xid ORDER BY xid) FILTER (xid > 0) AS xids
    FROM health_event JOIN recent_run USING (run) GROUP BY device
)
SELECT key, name, host, coalesce(bad, 0), coalesce(round(expected, 6), 0.0)::DOUBLE, coalesce(runs, 0), coalesce(cases, 0),
    coalesce(events, 0), coalesce(xids, [])
FROM device_name SEMI JOIN (FROM run_device JOIN recent_run USING (run)) USING (device)
    LEFT JOIN expected USING (device) LEFT JOIN counted USING (device) LEFT JOIN sick USING (device)
ORDER BY key;

-- name: device_records
-- Each device over all runs, the most suspicious first: the cases that ran on it and how many were red; red cases that
-- were green (only_here) or red (on_both) on a second device; how often it was the second device, and the case red on it;
-- how often it was sick and drained; and its findings by kind.
WITH used AS (
    SELECT device, count(DISTINCT run) AS runs, list(DISTINCT host ORDER BY host) AS hosts, epoch(min(begun)) AS first,
        epoch(max(begun)) AS last
    FROM (SELECT run, device, run_device.host, begun FROM run_device JOIN run USING (run)) GROUP BY device
),
ran AS (
    SELECT key, count(*) AS cases, count(*) FILTER (red) AS red
    FROM (
        SELECT unnest(coalesce(v.devices, [key])) AS key, o.red
        FROM verdict v JOIN outcome_name o USING (outcome) JOIN device_name USING (device) WHERE o.ran
    ) GROUP BY key
),
firsts AS (
    SELECT device, count(*) FILTER (NOT red) AS only_here, count(*) FILTER (red) AS on_both
    FROM second_device GROUP BY device
),
seconds AS (
    SELECT other AS device, count(*) AS second, count(*) FILTER (red) AS second_red FROM second_device GROUP BY other
),
ill AS (
    SELECT device, count(*) FILTER (state = 'sick') AS sick, count(*) FILTER (state = 'drained') AS drained
    FROM health_event GROUP BY device
),
found AS (
    SELECT key, histogram(kind) AS findings, count(*) AS number
    FROM (SELECT kind, unnest(devices) AS key FROM run_finding) GROUP BY key
)
SELECT key AS device, hosts, runs, first, last, coalesce(cases, 0) AS cases, coalesce(red, 0) AS red,
    coalesce(only_here, 0) AS only_here, coalesce(on_both, 0) AS on_both, coalesce(second, 0) AS second,
    coalesce(second_red, 0) AS second_red, coalesce(sick, 0) AS sick, coalesce(drained, 0) AS drained,
    coalesce(findings, MAP {}) AS findings
FROM device_name JOIN used USING (device) LEFT JOIN ran USING (key) LEFT JOIN firsts USING (device)
    LEFT JOIN seconds USING (device) LEFT JOIN ill USING (device) LEFT JOIN found USING (key)
ORDER BY only_here DESC, drained DESC, sick DESC, coalesce(number, 0) DESC, red DESC, key;

-- name: findings_of_no_device
SELECT kind, count(*) FROM run_finding WHERE len(coalesce(devices, [])) = 0 GROUP BY kind ORDER BY kind;
