"""A small real tokenizer, and chat templates of several habits."""

from functools import cache
from typing import Any

END = "<|im_end|>"
_HEAD = (
    "{% if tools %}<|im_start|>system\n{% for t in tools %}{{ t['function']['name'] }} {% endfor %}"
    "<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
)
_BODY = (
    "{{ m['content'] }}{% for c in m.get('tool_calls') or [] %}<tool_call>\n"
    "{\"name\": \"{{ c['function']['name'] }}\", \"arguments\": {{ c['function']['arguments'] | tojson }}}"
    "\n</tool_call>{% endfor %}"
)
_TAIL = "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
_THINKING = "{% if m.get('reasoning_content') %}<think>\n{{ m['reasoning_content'] }}\n</think>\n\n{% endif %}"

APPEND_ONLY = _HEAD + _THINKING + _BODY + _TAIL
"""Writes every turn once, with the thinking that it is given."""
NO_THINKING = _HEAD + _BODY + _TAIL
"""The same without thinking."""
STRIPS_THINKING = (
    _HEAD + "{% if loop.last or loop.nextitem.role == 'tool' %}" + _THINKING + "{% endif %}" + _BODY + _TAIL
)
"""Takes thinking away once something follows, except within a tool's use."""
NO_TOOLS = _HEAD.replace("{% if tools %}", "{% if tools %}{{ raise_exception('no tools') }}") + _BODY + _TAIL
"""Refuses tools."""
TWO_ENDS = (
    _HEAD
    + _BODY
    + "{{ '!' if m.get('tool_calls') else '' }}"
    + "{{ '<|im_start|>' if m.get('tool_calls') else '<|im_end|>' }}\n"
    + _TAIL.removeprefix("<|im_end|>\n")
)
"""Ends an answer with a tool call otherwise than one without."""


@cache
def tokenizer() -> Any:
    """Byte-level, with merges for a few words, and ChatML's tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=[END, "<|im_start|>", "<tool_call>", "</tool_call>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    words = "user assistant system tool the sea rises and falls with the moon twice a day name arguments think"
    bpe.train_from_iterator([words] * 4, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token=END, clean_up_tokenization_spaces=False)


class WithTemplate:
    """A tokenizer with another template."""

    def __init__(self, base: Any, template: str) -> None:
        self._base = base
        self._template = template
        self.eos_token_id: int = base.eos_token_id

    def encode(self, text: str, **options: Any) -> list[int]:
        """Ids of a text."""
        found: list[int] = self._base.encode(text, **options)
        return found

    def decode(self, ids: list[int]) -> str:
        """The text of ids."""
        text: str = self._base.decode(ids)
        return text

    def apply_chat_template(self, messages: Any, **options: Any) -> list[int]:
        """Ids of a conversation."""
        ids: list[int] = self._base.apply_chat_template(messages, chat_template=self._template, **options)
        return ids
