"""Statements of a schema file, and the same statements for a cluster.

Invariant: without a cluster a statement stays as it is in its file. With one, every statement that defines something
says ON CLUSTER, and every table of the MergeTree family is replicated, by the macros `{shard}` and `{replica}`, which
the servers of a replicated cluster define. A statement that cannot be rendered is an error, never passed on as it is.
"""

import re
from collections.abc import Iterator

from collector.store import quote

REPLICAS = "/clickhouse/tables/{shard}"
"""Where a table's replicas find each other in Keeper: this, database and table."""

# What may stand between statements, and texts that may hold anything: neither is looked into.
_OPAQUE = re.compile(r"--[^\n]*|/\*.*?\*/|'(?:[^'\\]|\\.|'')*'|`[^`]*`|\"[^\"]*\"", re.DOTALL)
_NAME = r"(?P<name>[\w.]+)"
_DEFINES = re.compile(
    r"\s*(?P<verb>CREATE(?:\s+OR\s+REPLACE)?|ALTER|DROP|TRUNCATE|OPTIMIZE)"
    rf"\s+(?P<what>DATABASE|TABLE|(?:MATERIALIZED\s+)?VIEW|FUNCTION)(?:\s+IF\s+(?:NOT\s+)?EXISTS)?\s+{_NAME}",
    re.IGNORECASE,
)
_MOVES = re.compile(r"\s*(?:RENAME\s+TABLE|EXCHANGE\s+TABLES)\b", re.IGNORECASE)
_READS_OR_WRITES = re.compile(r"\s*(?:INSERT|SELECT|WITH)\b", re.IGNORECASE)
_ENGINE = re.compile(r"\bENGINE\s*=\s*(?P<engine>\w+)(?:[ \t]*(?P<arguments>\([^()]*\)))?", re.IGNORECASE)


def statements(text: str) -> Iterator[str]:
    """The statements of a file, each with the comments before it and without its semicolon."""
    start = 0
    hidden = _hidden(text)
    for end in [*(found.start() for found in re.finditer(";", hidden)), len(text)]:
        if hidden[start:end].strip():
            yield text[start:end].strip()
        start = end + 1


def on_cluster(statement: str, cluster: str) -> str:
    """`statement` for all servers of `cluster`. Raises ValueError where that is not known of its kind."""
    hidden = _hidden(statement)
    if _READS_OR_WRITES.match(hidden):
        return statement  # of one replica: it reaches the others by replication
    clause = f" ON CLUSTER {quote(cluster)}"
    if _MOVES.match(hidden):
        return statement + clause
    found = _DEFINES.match(hidden)
    if found is None:
        raise ValueError(f"a statement that is not known for clusters: {hidden.strip():.80}")
    rendered = statement[: found.end()] + clause + statement[found.end() :]
    verb, what = (" ".join(found[group].upper().split()) for group in ("verb", "what"))
    if verb == "DROP" and what == "TABLE":
        return rendered + " SYNC"  # a new table of this name would find the old one in Keeper
    if verb.startswith("CREATE") and what == "TABLE":
        if verb != "CREATE":
            raise ValueError(f"CREATE OR REPLACE of table {found['name']}: its path in Keeper is taken, DROP it first")
        return _replicated(rendered, found["name"])
    has_target = re.match(r"\s+TO\s", hidden[found.end() :], re.IGNORECASE)
    if verb.startswith("CREATE") and what == "MATERIALIZED VIEW" and not has_target:
        raise ValueError(f"{found['name']} has no TO: its hidden table would not be replicated")
    return rendered


def for_cluster(statement: str, cluster: str | None) -> str:
    """`statement` as it is without a cluster, and as `on_cluster` has it with one."""
    return on_cluster(statement, cluster) if cluster else statement


def _replicated(statement: str, table: str) -> str:
    hidden = _hidden(statement)
    engines = list(_ENGINE.finditer(hidden))
    if len(engines) != 1:
        raise ValueError(f"{table} has {len(engines)} ENGINE clauses, not one")
    (found,) = engines
    engine = found["engine"]
    if not engine.endswith("MergeTree") or engine.startswith("Replicated"):
        return statement
    arguments = [f"'{REPLICAS}/{table.replace('.', '/')}'", "'{replica}'"]
    if found["arguments"] and (own := statement[found.start("arguments") + 1 : found.end("arguments") - 1].strip()):
        arguments.append(own)
    replicated = f"ENGINE = Replicated{engine}({', '.join(arguments)})"
    return statement[: found.start()] + replicated + statement[found.end() :]


def _hidden(text: str) -> str:
    """`text` with blanks for comments and quoted texts: as long, so that places are the same in both."""
    return _OPAQUE.sub(lambda found: " " * len(found[0]), text)
