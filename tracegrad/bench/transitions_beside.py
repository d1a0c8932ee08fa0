"""What reading transitions is measured against, of the same rollouts in the same run.

Row by row: the view `llm_calls` as lists of Python integers, as any client reads it. Stored columns: the token ids and
log-probabilities that the calls' spans hold, as Arrow, with nothing put together and nothing looked at: no reader of
this store can do with less.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tracegrad.clickhouse import connect, errors_in_one_line
from trainer.columns import FORMAT, SETTINGS, blocks_of
from trainer.portions import chunks

SQL = Path(__file__).parent / "sql"


def row_by_row(url: str, rollout_ids: Sequence[str]) -> tuple[int, int]:
    """Calls and their tokens, each of which was a Python integer once."""
    calls = tokens = 0
    client = connect(url)
    for some in chunks(rollout_ids):
        with errors_in_one_line(url):
            answer = client.query((SQL / "calls_by_row.sql").read_text(), parameters={"rollout_ids": some})
        for row in answer.named_results():
            prompt = np.array(row["prompt_token_ids"], np.int64)
            response = np.array(row["response_token_ids"], np.int64)
            np.array(row["logprobs"], np.float32)
            calls += 1
            tokens += len(prompt) + len(response)
    client.close()
    return calls, tokens


def stored_columns(url: str, rollout_ids: Sequence[str]) -> tuple[int, int]:
    """Calls and the tokens that their spans hold."""
    calls = tokens = 0
    client = connect(url)
    with errors_in_one_line(url):
        answer = client.raw_query(
            (SQL / "stored_columns.sql").read_text(), {"rollout_ids": rollout_ids}, SETTINGS, fmt=FORMAT
        )
    for columns, _ in blocks_of(answer):
        calls += len(columns["n_tokens"])
        tokens += sum(columns["n_tokens"])
    client.close()
    return calls, tokens
