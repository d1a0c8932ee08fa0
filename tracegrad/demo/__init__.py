"""`make demo`: a small model, an untouched agent, and the whole real road between them, measured as it runs."""
