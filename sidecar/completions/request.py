"""What is added to a text completion so that the engine tells its tokens, and what its answer must be read with.

`echo` puts the prompt before the answer. vLLM leaves it out where ids are asked for, and with log-probs computes those
of the prompt, so nothing is added to such a request: it is trained on only where its client asked for both itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sidecar.chat_answer import count, mapping
from sidecar.chat_request import Hidden
from sidecar.dialect import Json


@dataclass(frozen=True)
class Asked(Hidden):
    """What the client must not see, and how its request shapes the answer."""

    n: int | None = 1
    """Choices per prompt, which follow one another; None: not looked at."""
    sampled: bool = True
    """False: what comes back is no sample of the prompt's ids (beam search, a prompt of embeddings)."""


PASSING = Asked(token_ids=False, logprobs=False, usage=False, n=None)
"""For the answers that only pass through."""


def capture_fields(body: Mapping[str, Any]) -> tuple[Json, Asked]:
    """The fields to set in the engine's request, and what to know of its answer."""
    fields: Json = {}
    echo, beams = bool(body.get("echo")), bool(body.get("use_beam_search"))
    if hide_ids := not body.get("return_token_ids") and not echo:
        fields["return_token_ids"] = True
    # Without `logprobs` a request with `logprob_token_ids` is refused, and must be.
    if hide_logprobs := not (body.get("logprobs") is not None or echo or beams or body.get("logprob_token_ids")):
        fields["logprobs"] = 0
    hide_usage = False
    if body.get("stream"):
        options = mapping(body.get("stream_options"))
        if hide_usage := not options.get("include_usage"):
            fields["stream_options"] = {**options, "include_usage": True, "continuous_usage_stats": False}
    sampled = not beams and not body.get("prompt_embeds")
    return fields, Asked(hide_ids, hide_logprobs, hide_usage, count(body.get("n")) or 1, sampled)


def as_chat(body: Json) -> Json:
    """The request in chat completions' names: each prompt is what a user says; one of token ids says nothing."""
    prompt = body.get("prompt")
    prompts = prompt if isinstance(prompt, list) else [prompt]
    messages = [{"role": "user", "content": one} for one in prompts if isinstance(one, str)]
    return {name: value for name, value in body.items() if name not in ("prompt", "prompt_embeds")} | {
        "messages": messages
    }
