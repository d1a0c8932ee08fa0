"""The store that the settings name, ready to be inserted into."""

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from collector import migrations
from collector.clickhouse_store import ClickHouseStore
from collector.migrations import Schema
from collector.retention import Retention
from collector.store import Store
from tracegrad.errors import SettingsError
from tracegrad.settings import CollectorSettings

if TYPE_CHECKING:
    from collector.engine import Engine


@dataclass(frozen=True)
class OpenStore:
    """`engine` is the embedded one, which answers SQL here; None with a server, which answers for itself."""

    store: Store
    engine: "Engine | None"


@contextmanager
def open_store(chosen: CollectorSettings) -> Iterator[OpenStore]:
    """The store until the end of the block. Raises TracegradError where it cannot be opened or has another schema.

    A server that does not answer is no error: its store tries again with every insert.
    """
    schema = schema_of(chosen)
    check = migrations.apply if chosen.create_schema else migrations.require
    if (server := chosen.server) is not None:
        store = ClickHouseStore(
            server, chosen.read_store_password(), lambda store: check(store, schema), cluster=schema.cluster
        )
        with contextlib.closing(store):
            store.begin()
            yield OpenStore(store, None)
        return
    if schema.cluster:
        raise SettingsError('[collector] cluster is for ClickHouse servers: set store = "clickhouse://..." as well')
    from collector.chdb_store import ChdbStore  # a large library, and of no use with a server
    from collector.engine import Engine

    with (
        Engine(chosen.data) as engine,
        contextlib.chdir(chosen.data),  # the engine caches schemas of formats where the process stands
        contextlib.closing(ChdbStore(engine)) as embedded,
    ):
        check(embedded, schema)
        yield OpenStore(embedded, engine)


def schema_of(chosen: CollectorSettings) -> Schema:
    """What the store should be like."""
    return Schema(cluster=chosen.cluster or None, retention=Retention(chosen.kept), shared=chosen.server is not None)
