"""What the finish reason of an answer says of how it ended, in the words of engines and providers."""

TRUNCATED = frozenset({"length", "max_tokens", "max_output_tokens", "MAX_TOKENS"})
"""It was cut off at the longest it might be: chat completions', Anthropic's, Responses', Gemini's word for it."""

CONTEXT_FULL = "model_context_window_exceeded"
"""The end of the context cut it off, where a provider tells that from others."""
