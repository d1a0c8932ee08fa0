"""Whether a model call was refused because prompt and answer do not fit into the model's context.

No API has a common code for it, and a span keeps what the answer said, so it is told by the words of engines and
providers: vLLM, SGLang, TGI, llama.cpp, OpenAI, Anthropic, Google, Mistral, Bedrock, Cohere and those like them.
"""

import re

WORDS = (
    r"context_length_exceeded"
    r"|(?:maximum|max) (?:model |context )(?:context )?length"
    r"|model'?s (?:maximum )?context length"
    r"|context window"
    r"|(?:exceeds?|larger than|longer than) (?:the |this )?(?:available |model'?s )?context (?:size|length|limit)"
    r"|prompt is too long"
    r"|input is too long"
    r"|input token count .*exceeds the maximum"
    r"|total number of tokens .{0,60}cannot exceed"
    r"|tokens.{0,40} must be <="
)
"""A regular expression that ClickHouse reads as Python does, but for upper and lower case: put (?i) before it there."""

_WORDS = re.compile(WORDS, re.IGNORECASE | re.DOTALL)


def is_context_overflow(message: str) -> bool:
    """Whether the message of a failed call says so."""
    return _WORDS.search(message) is not None
