"""Foreign traces become spans of ours, for SFT and prompt work: they have no token ids, so nothing of them can train.

Every converter is pure: a JSON value in, `ForeignSpan`s and `ForeignScore`s out. Files are read in `json_values`, and
sent in `sending`.
"""
