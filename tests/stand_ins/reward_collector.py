"""The collector of some settings, for whoever sends records to it and asks its store."""

import urllib.request
from functools import cache
from types import SimpleNamespace
from typing import Any

from clickhouse_connect.driver.client import Client
from google.protobuf.message import Message

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
