"""That what is imported under a name of the user's choice becomes no part of a rollout that was recorded here."""

from importlib.resources import files

from tracegrad import clickhouse
from tracegrad.errors import InputError


def refuse_recorded(url: str, rollout_id: str) -> None:
    """Raises InputError where the store has spans of this rollout that were not imported."""
    client = clickhouse.connect(url)
    try:
        query = files("tracegrad").joinpath("sql/import_recorded.sql").read_text()
        with clickhouse.errors_in_one_line(url):
            ((n_spans,),) = client.query(query, parameters={"rollout_id": rollout_id}).result_rows
    finally:
        client.close()
    if n_spans:
        raise InputError(
            f"rollout {rollout_id} was recorded here, with {n_spans} spans, and what is imported would change its "
            "outcome and its rewards: give another name with --rollout"
        )
