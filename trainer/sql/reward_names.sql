-- One row per name that an evaluation in the store has.
SELECT DISTINCT name FROM rewards ORDER BY name
