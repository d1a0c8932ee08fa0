"""The collector of some settings: records go to it, rules are applied, and its store is asked what they gave."""

import urllib.request
from functools import cache
from types import SimpleNamespace
from typing import Any

from clickhouse_connect.driver.client import Client
from google.protobuf.message import Message
from recorded_rollout import Recorder

from reward.rules.run import Evaluated, apply_rules
from tracegrad import clickhouse
from tracegrad.settings import Settings


@cache
def store(url: str) -> Client:
    """A connection to a store, which all tests share."""
    return clickhouse.connect(url)


class Collector:
    """What a Recorder sends to."""

    def __init__(self, settings: Settings) -> None:
        self.otlp = settings.otlp

    def send(self, request: Message) -> Any:
        """Export traces or logs, as the type of the request says."""
        path = "/v1/traces" if hasattr(request, "resource_spans") else "/v1/logs"
        post = urllib.request.Request(
            self.otlp + path, request.SerializeToString(), {"content-type": "application/x-protobuf"}
        )
        with urllib.request.urlopen(post, timeout=30) as answer:
            return SimpleNamespace(status=answer.status)


async def apply(settings: Settings, recorder: Recorder, rules: Any, **options: Any) -> Evaluated:
    """Apply rules to one rollout."""
    return await apply_rules(settings, rules, rollout_id=recorder.rollout_id, **{"quiet_s": 0.0} | options)


def given(settings: Settings, rollout_id: str) -> dict[tuple[str, str], dict[str, Any]]:
    """By span id and name, the newest rewards of a rollout."""
    query = "SELECT * FROM rewards WHERE rollout_id = {rollout:String}"
    rows = store(settings.clickhouse).query(query, parameters={"rollout": rollout_id}).named_results()
    return {(row["span_id"], row["name"]): row for row in rows}


def scores(settings: Settings, recorder: Recorder) -> dict[tuple[str, str], float]:
    """By span id and name, the newest scores of a rollout."""
    return {key: row["score"] for key, row in given(settings, recorder.rollout_id).items()}


def written(settings: Settings, recorder: Recorder) -> int:
    """How many evaluation events there are of a rollout, replaced ones among them."""
    query = "SELECT count() FROM evaluations WHERE told_rollout_id = {rollout:String}"
    rows = store(settings.clickhouse).query(query, parameters={"rollout": recorder.rollout_id}).result_rows
    return int(rows[0][0])
