"""Text completions, the second API that a policy's engine speaks itself."""
