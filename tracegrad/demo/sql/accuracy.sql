-- One row: the scored held-out rollouts whose task id begins with {prefix}, and the share answered right.
SELECT count() AS n, avg(reward) AS accuracy
FROM rollouts
WHERE split = 'eval' AND startsWith(task_id, {prefix:String}) AND reward IS NOT NULL
