"""A tiny Llama (0.7M parameters) with its own tokenizer and a chat template that vLLM's `hermes` tool parser reads.

The template is append-only: a conversation rendered after a tool call begins with the very text (and ids) that the
engine was prompted with and sampled. Digits are single tokens; the JSON frame of a call is one token, so that what
there is to learn is which calculation to ask for.
"""

import random
from pathlib import Path
from typing import Any

from tracegrad.demo.tasks import Demonstration, demonstrate, sloppy_habits

SYSTEM_PROMPT = "Use the calculator."
SPECIAL_TOKENS = [
    "<|pad|>",
    "<|end|>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|tool|>",
    "<tool_call>",
    "</tool_call>",
]
CALL_OPENING, CALL_CLOSING = '{"name": "calculator", "arguments": {"expression": "', '"}}'
CONTEXT_TOKENS = 512
SOURCE = Path(__file__).read_text()
"""A kept model is used again only while this file is as it was."""

CHAT_TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{% if m['content'] %}{{ m['content'] }}{% endif %}"
    "{% for c in m.get('tool_calls') or [] %}<tool_call>"
    '{"name": "{{ c[\'function\'][\'name\'] }}", "arguments": '
    "{{ c['function']['arguments'] if c['function']['arguments'] is string else c['function']['arguments'] | tojson }}}"
    "</tool_call>{% endfor %}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def prompt_text(question: str) -> str:
    """What the template renders for the agent's first request."""
    return f"<|system|>{SYSTEM_PROMPT}<|end|><|user|>{question}<|end|><|assistant|>"


def solution_text(demonstration: Demonstration) -> list[tuple[str, bool]]:
    """The conversation in pieces of (text, whether the assistant says it and so is trained)."""
    pieces = [(prompt_text(demonstration.question), False)]
    for expression, result in demonstration.calls:
        call = f"<tool_call>{CALL_OPENING}{expression}{CALL_CLOSING}</tool_call><|end|>"
        pieces += [(call, True), (f"<|tool|>{result}<|end|><|assistant|>", False)]
    return [*pieces, (f"The answer is {demonstration.answer}.<|end|>", True)]


def build_tokenizer(directory: Path) -> Any:
    """A byte-level BPE over the demo's own text, saved to `directory`; returns the transformers tokenizer."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    core.train_from_iterator(_corpus(), trainer)
    core.add_tokens([AddedToken(CALL_OPENING, normalized=False), AddedToken(CALL_CLOSING, normalized=False)])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token="<|end|>", pad_token="<|pad|>", clean_up_tokenization_spaces=False
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(directory)
    return tokenizer


def _corpus() -> list[str]:
    rng = random.Random(0)
    habits, _ = sloppy_habits(rng, reliable_share=0.5, reliable=0.5, unreliable=0.3)
    return ["".join(text for text, _ in solution_text(demonstrate(rng, habits))) for _ in range(4000)]


def build_model(tokenizer: Any) -> Any:
    """A randomly initialised LlamaForCausalLM in float32 for `tokenizer`; seed torch before."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=-(-len(tokenizer) // 64) * 64,
        hidden_size=128,
        intermediate_size=320,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=32,
        max_position_embeddings=CONTEXT_TOKENS,
        rope_theta=1000.0,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        attn_implementation="sdpa",
    )
    return LlamaForCausalLM(config)
