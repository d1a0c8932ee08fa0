-- Continues attempts.sql. One row; the counts after `total` exclude each other and add up to it.
SELECT
    count() AS total,
    countIf(state = 'ready') AS ready,
    countIf(state = 'settling') AS settling,
    countIf(state = 'lost') AS lost,
    countIf(state = 'running') AS running,
    countIf(state = 'unrewarded') AS unrewarded,
    countIf(state = 'uncalled') AS uncalled,
    countIf(state = 'alongside') AS alongside,
    countIf(state = 'trained') AS trained
FROM attempts
