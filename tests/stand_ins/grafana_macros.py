"""What Grafana's ClickHouse plug-in 4.x makes of a query before ClickHouse gets it: macros and variables expanded."""

from collections.abc import Mapping
from datetime import datetime

INTERVAL_S = 60


def arguments(sql: str, at: int) -> tuple[list[str], int]:
    """The arguments of the macro whose bracket opens at `at`, and where it ends."""
    depth, begin, found = 0, at + 1, []
    for place in range(at, len(sql)):
        if sql[place] == "(":
            depth += 1
        elif sql[place] == ")":
            depth -= 1
        if (sql[place] == "," and depth == 1) or depth == 0:
            found.append(sql[begin:place])
            begin = place + 1
        if depth == 0:
            return found, place + 1
    raise AssertionError(f"a macro without an end: {sql[at:]}")


def expand(sql: str, chosen: Mapping[str, tuple[str, ...]], begin: datetime, end: datetime) -> str:
    """The SQL that ClickHouse gets: conditional parts and variables first, as the plug-in does in the browser."""
    while (at := sql.rfind("$__conditionalAll(")) >= 0:
        (condition, variable), after = arguments(sql, at + len("$__conditionalAll"))
        name = variable.strip().strip("${}")
        sql = sql[:at] + (condition if chosen[name] else "1=1") + sql[after:]
    for name, values in chosen.items():
        quoted = ",".join("'" + value.replace("'", "\\'") + "'" for value in values)
        sql = sql.replace("${" + name + ":singlequote}", quoted)
    sql = sql.replace("$__interval_s", str(INTERVAL_S))
    for macro in ("$__timeFilter", "$__timeInterval"):
        while (at := sql.find(macro + "(")) >= 0:
            (column,), after = arguments(sql, at + len(macro))
            sql = sql[:at] + _time(macro, column, begin, end) + sql[after:]
    assert "$" not in sql, f"not expanded: {sql}"
    return sql


def _time(macro: str, column: str, begin: datetime, end: datetime) -> str:
    if macro == "$__timeInterval":
        return f"toStartOfInterval(toDateTime({column}), INTERVAL {INTERVAL_S} second)"
    bounds = [f"toDateTime({int(at.timestamp())})" for at in (begin, end)]
    return f"{column} >= {bounds[0]} AND {column} <= {bounds[1]}"
