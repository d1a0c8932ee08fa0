"""What a ClickHouse server must be like to be our store. Each check says what to do where it is not."""

from collections.abc import Collection
from typing import TYPE_CHECKING

import orjson

from tracegrad.errors import TracegradError

if TYPE_CHECKING:
    from collector.schema_lock import Statements

OLDEST_SERVER = "25.6"
NEEDED_SETTINGS = ("format_schema_source", "input_format_protobuf_oneof_presence")
"""The first arrived last, in 25.6: with it a server reads OTLP bytes without a schema file on its disk."""


def require_formats(name: str, version: str, settings: Collection[str]) -> None:
    """Raise TracegradError unless the server reads OTLP bytes."""
    if missing := [setting for setting in NEEDED_SETTINGS if setting not in settings]:
        raise TracegradError(
            f"{name} is ClickHouse {version}, which lacks the setting {missing[0]}: "
            f"upgrade it to {OLDEST_SERVER} or newer"
        )


def require_cluster(store: "Statements", cluster: str) -> None:
    """Raise TracegradError unless `cluster` is there, has one shard, and its servers say which replica each is.

    More shards would need tables over tables: spans of a trace, its logs and what was learned from them would lie on
    different servers, and the views, which join them, would answer for one of these only.
    """
    macros = _pairs(store, "SELECT macro, substitution FROM system.macros")
    name = cluster
    for macro, text in macros.items():
        name = name.replace(f"{{{macro}}}", text)
    shards = _pairs(store, "SELECT cluster, toString(uniqExact(shard_num)) FROM system.clusters GROUP BY cluster")
    if name not in shards:
        known = ", ".join(sorted(shards)) or "none"
        raise TracegradError(f"the server knows no cluster {name!r}, only {known}: correct [collector] cluster")
    if int(shards[name]) != 1:
        raise TracegradError(
            f"cluster {name!r} has {shards[name]} shards, and traces must be on one: "
            "name a cluster of one shard, with as many replicas as you like"
        )
    if missing := {"shard", "replica"} - macros.keys():
        raise TracegradError(
            f"the server has no macro {' and no macro '.join(sorted(missing))}: replicated tables need both, see "
            "<macros> in its configuration"
        )


def _pairs(store: "Statements", sql: str) -> dict[str, str]:
    rows = store.query(sql, "JSONCompactEachRow").body.splitlines()
    return {str(row[0]): str(row[1]) for row in map(orjson.loads, rows)}
