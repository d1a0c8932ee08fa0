-- One row is one metric that optimiser steps recorded.
SELECT DISTINCT arrayJoin(JSONExtractKeys(metrics)) AS metric FROM otel.train_steps ORDER BY metric
