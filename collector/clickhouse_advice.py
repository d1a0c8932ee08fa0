"""What to do about an error of the engine, where its own text does not say, and that text without its repetitions."""

import re

from collector.clickhouse_users import HINT, READONLY, User
from collector.engine import EngineError

MEMORY_LIMIT_EXCEEDED = 241
MOST_MEMORY_BYTES = 603979776
"""What engine.xml lets `max_memory_usage` be."""
_REPEATED_HEAD = re.compile(r"(Code: (\d+)\. DB::Exception: )(?:Code: \2\. DB::Exception: )+")
_REPEATED_TAIL = re.compile(r"(\([A-Z0-9_]+\))(?: \(version [^()]*\)\. \1)+$")
_MEMORY = (
    "a FORMAT other than Pretty, a smaller max_block_size, and fewer rows or columns at a time need less; "
    f"the setting max_memory_usage gives a statement more, up to {MOST_MEMORY_BYTES} bytes for all that run; "
    "beside others, send it again later"
)
_GET = "what came by GET only reads; send it by POST"


def advice(refused: EngineError, user: User | None = None, *, by_get: bool = False) -> str:
    """What to do about it; empty where the error says it."""
    if refused.code == MEMORY_LIMIT_EXCEEDED:
        return _MEMORY
    if refused.code == READONLY and user is not None:
        return "; ".join([HINT] * (not user.writes) + [_GET] * by_get)
    return ""


def told_to(user: User | None, refused: EngineError) -> EngineError:
    """The error with the name of who asked: the engine has but one user, whose name it is told by."""
    if user is None:
        return refused
    return EngineError(str(refused).replace("DB::Exception: default: ", f"DB::Exception: {user.name}: "))


def told_once(text: str) -> str:
    """An error that the engine wrapped into itself, unwrapped."""
    return _REPEATED_TAIL.sub(r"\1", _REPEATED_HEAD.sub(r"\1", text, count=1))
