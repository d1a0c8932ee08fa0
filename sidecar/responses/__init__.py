"""The Responses API for policies: requests become chat completions, whose answers and streams become responses."""
