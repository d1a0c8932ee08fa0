"""Token ids decode where the model has an embedding of them and its tokenizer a token."""

import json
from pathlib import Path

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, models

from tracegrad.errors import SettingsError
from trainer.vocabulary import Vocabulary


def model(directory: Path, **config: object) -> Path:
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def decodes(directory: Path, *ids: int) -> bool:
    vocabulary = Vocabulary.of_model(directory)
    assert vocabulary is not None
    return vocabulary.decodes(np.array(ids, np.int64))


def test_without_a_tokenizer_the_models_size_decides(tmp_path: Path) -> None:
    model(tmp_path, vocab_size=64)
    assert decodes(tmp_path, 0, 63)
    assert decodes(tmp_path)
    assert not decodes(tmp_path, 1, 64)
    assert not decodes(tmp_path, -1)


def test_the_size_of_a_model_of_several_parts_is_its_texts(tmp_path: Path) -> None:
    model(tmp_path, text_config={"vocab_size": 8})
    assert decodes(tmp_path, 7)
    assert not decodes(tmp_path, 8)


@pytest.mark.parametrize(
    "core", [models.WordLevel({"a": 0, "b": 5}, unk_token="a"), models.Unigram([("a", 0.0), ("b", -1.0)])]
)
def test_padding_of_a_vocabulary_is_no_token(tmp_path: Path, core: models.Model) -> None:
    tokenizer = Tokenizer(core)
    tokenizer.add_special_tokens([AddedToken("<end>", special=True)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    known = set(tokenizer.get_vocab().values())
    assert len(known) == 3
    model(tmp_path, vocab_size=64)
    assert {number for number in range(70) if decodes(tmp_path, number)} == known
    model(tmp_path)
    assert {number for number in range(70) if decodes(tmp_path, number)} == known
    model(tmp_path, vocab_size=max(known))
    assert not decodes(tmp_path, max(known)), "the model has no embedding of it"


def test_a_directory_that_tells_nothing_proves_nothing(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"engine\.model: no model \(config\.json\)"):
        Vocabulary.of_model(tmp_path)
    assert Vocabulary.of_model(model(tmp_path)) is None
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(SettingsError, match=r"tokenizer\.json cannot be read"):
        Vocabulary.of_model(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(SettingsError, match=r"config\.json in .* is not JSON"):
        Vocabulary.of_model(tmp_path)
