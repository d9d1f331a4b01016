-- The words of all questions: the runs of the last nights; the latest run of each lane that has a present state; a bad
-- result.
CREATE OR REPLACE TEMP MACRO recent(nights) AS TABLE
    SELECT run FROM run WHERE night > (SELECT max(night) FROM run) - to_days(nights);
CREATE OR REPLACE TEMP MACRO latest(stale) AS TABLE
    SELECT lane, run FROM (SELECT lane, arg_max(run, (begun, run)) AS run, max(night) AS last FROM run GROUP BY lane)
    WHERE last > (SELECT max(night) FROM run) - to_days(stale);
CREATE OR REPLACE TEMP MACRO is_bad(red, ran, name) AS red AND ran OR name = 'flaky';
-- The cases that no run of the last nights ran, with the last night in which they ran, and the reason.
CREATE OR REPLACE TEMP MACRO silent(nights) AS TABLE
    WITH unrun AS (
        SELECT "case", coalesce(min(text), '') AS reason
        FROM verdict JOIN outcome_name o USING (outcome) LEFT JOIN reason USING (reason)
        WHERE run IN (FROM recent(nights)) GROUP BY "case" HAVING NOT bool_or(o.ran)
    ),
    ran AS (
        SELECT "case", max(night) AS night
        FROM verdict JOIN unrun USING ("case") JOIN outcome_name o USING (outcome) JOIN run USING (run)
        WHERE o.ran GROUP BY "case"
    )
    SELECT id, night, unrun.reason FROM unrun JOIN case_name USING ("case") LEFT JOIN ran USING ("case");
