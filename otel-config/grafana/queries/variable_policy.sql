-- One row is one policy: one that was published, or only sampled from.
SELECT DISTINCT policy
FROM
(
    SELECT name AS policy FROM otel.policies
    UNION ALL
    SELECT PolicyName AS policy FROM otel.otel_traces WHERE IsLlmCall AND PolicyName != '' GROUP BY PolicyName
)
ORDER BY policy
