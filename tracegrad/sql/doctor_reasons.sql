-- One row per reason for which calls of the last day will not train.
SELECT untrainable_reason AS reason, count() AS calls
FROM llm_calls
WHERE NOT trainable AND started_at > now() - INTERVAL 1 DAY
GROUP BY reason
ORDER BY calls DESC
