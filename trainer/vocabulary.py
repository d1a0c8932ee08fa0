"""Which token ids a model can be trained on: those that it has an embedding of and that its tokenizer knows."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tracegrad.errors import SettingsError


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """`known[i]`: whether id i decodes. Models have more rows than tokens: the rest is padding."""

    known: NDArray[np.bool_]

    @classmethod
    def of_model(cls, directory: Path) -> "Vocabulary | None":
        """The ids of the model in `directory`; None where nothing there tells any. Raises SettingsError."""
        size = _size(directory)
        file = directory / "tokenizer.json"
        if file.is_file():
            ids = _ids_of_tokens(file)
            known = np.zeros(max(ids.max(initial=-1) + 1, 0) if size is None else size, np.bool_)
            known[ids[ids < len(known)]] = True
            return cls(known)
        return None if size is None else cls(np.ones(size, np.bool_))

    def decodes(self, ids: NDArray[np.int64]) -> bool:
        """Whether every one of `ids` decodes."""
        if len(ids) == 0:
            return True
        return bool(ids.min() >= 0 and ids.max() < len(self.known) and self.known[ids].all())


def _size(directory: Path) -> int | None:
    """How many ids the model has embeddings of, as its configuration tells."""
    try:
        config = json.loads((directory / "config.json").read_text())
    except FileNotFoundError as error:
        raise SettingsError(f"bad setting engine.model: no model (config.json) in directory {directory}") from error
    except ValueError as error:
        raise SettingsError(f"bad setting engine.model: config.json in {directory} is not JSON ({error})") from error
    nested = config.get("text_config")
    size = config.get("vocab_size", nested.get("vocab_size") if isinstance(nested, dict) else None)
    return size if isinstance(size, int) else None


def _ids_of_tokens(file: Path) -> NDArray[np.int64]:
    from tokenizers import Tokenizer  # takes a moment, and only a job needs it

    try:
        tokens = Tokenizer.from_file(str(file)).get_vocab(with_added_tokens=True)
    except Exception as error:  # tokenizers raises nothing more precise
        raise SettingsError(f"the tokenizer {file} cannot be read ({error}): copy the model's own there") from error
    return np.fromiter(tokens.values(), np.int64, len(tokens))
