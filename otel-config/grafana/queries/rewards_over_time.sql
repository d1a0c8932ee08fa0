-- One row is one interval and reward name: the mean of the scores given in it.
SELECT $__timeInterval(at) AS time, name, avg(score) AS score
FROM otel.rewards
WHERE $__timeFilter(at)
GROUP BY time, name
ORDER BY time, name
