"""Anthropic's Messages API: translated to chat completions for a policy, only read where it passes to a provider."""
