"""Which API a path belongs to."""

from sidecar.chat import ChatDialect, EmbeddingsDialect
from sidecar.dialect import Dialect, Native


class _Unread(ChatDialect):
    operation = "chat"
    native: Native | None = None


class _UnreadAnthropic(_Unread):
    provider = "anthropic"


class _UnreadText(_Unread):
    operation = "text_completion"


DIALECTS: dict[str, Dialect] = {
    "/v1/chat/completions": ChatDialect(),
    "/v1/embeddings": EmbeddingsDialect(),
    "/v1/completions": _UnreadText(),
    "/v1/responses": _Unread(),
    "/v1/messages": _UnreadAnthropic(),
}
"""Model calls by path. Whatever is not here is forwarded and not recorded."""
