"""Measurements of the sidecar that need no model: `tracegrad bench sidecar` reports them."""
