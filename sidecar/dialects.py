"""Which API a path belongs to."""

from sidecar.anthropic.dialect import MessagesDialect
from sidecar.chat import ChatDialect, EmbeddingsDialect
from sidecar.completions.dialect import CompletionsDialect
from sidecar.dialect import Dialect
from sidecar.responses.dialect import ResponsesDialect
from sidecar.responses.store_thread import StoreThread

MODEL_CALLS = ("/v1/chat/completions", "/v1/embeddings", "/v1/completions", "/v1/responses", "/v1/messages")
"""The paths of model calls. Whatever is not here is forwarded and not recorded."""


def dialects(responses: StoreThread) -> dict[str, Dialect]:
    """The API of each path of `MODEL_CALLS`."""
    return {
        "/v1/chat/completions": ChatDialect(),
        "/v1/embeddings": EmbeddingsDialect(),
        "/v1/completions": CompletionsDialect(),
        "/v1/responses": ResponsesDialect(responses),
        "/v1/messages": MessagesDialect(),
    }
