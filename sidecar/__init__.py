"""The proxy beside the agents: OpenAI-compatible in, vLLM or any provider out, every call captured to the token."""
