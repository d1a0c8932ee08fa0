"""`train.toml`: the contract's names are known, what is not available yet is refused, and so is what cannot be read."""

from pathlib import Path

import pytest

from tracegrad.errors import SettingsError
from tracegrad.settings import Settings
from trainer import config
from trainer.choices import LOSSES, UNSUPPORTED_LOSSES
from trainer.config import RESERVED, DataConfig, TrainConfig

TOML = """
[data]
agents = ["writer", "re.*"]
on_failure = "keep"
settle = "500ms"
[credit]
gamma = 1
[algorithm]
kl_coef = 0.0
correction = "none"
[engine]
model = "m"
workers = 1
lora_rank = 0
merge_prefixes = false
[publish]
every = 1
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "train.toml"
    file.write_text(TOML)
    return file


def test_names_of_what_is_to_come_are_accepted(file: Path) -> None:
    assert all(f"{name} = " in TOML for settings in RESERVED.values() for name in settings)
    loaded = config.load(file)
    assert loaded.engine.model == Path("m")
    assert loaded.data.settle_s == 0.5


@pytest.mark.parametrize(
    ("line", "other", "said"),
    [
        ("workers = 1", "workers = true", "engine.workers = true in FILE is not available yet: use 1"),
        (
            "kl_coef",
            'name = "ppo"\nkl_coef',
            'algorithm.name = "ppo" in FILE needs a critic, which is not available yet: use another estimator',
        ),
        (
            '"re.*"',
            '"re(.*"',
            "bad setting data.agents 're(.*': give names or regular expressions "
            "(missing ), unterminated subpattern at position 2)",
        ),
        (
            "gamma = 1",
            'scheme = "hierarchic"',
            "bad setting credit.scheme 'hierarchic': choose one of identical, discounted, step, hierarchical, or name "
            "a function of your own as package.module:function",
        ),
        (
            "kl_coef",
            "lam = 0.5\nkl_coef",
            "algorithm.lam = 0.5 has no effect with algorithm.name = 'grpo', only with ppo: leave it out",
        ),
        (
            "kl_coef",
            'name = "reinforce_plus_plus"\nsingleton = "batch"\nkl_coef',
            "algorithm.singleton = 'batch' has no effect with algorithm.name = 'reinforce_plus_plus', only with grpo, "
            "dr_grpo, rloo, reinforce_plus_plus_baseline, gigpo: leave it out",
        ),
        (
            'settle = "500ms"',
            "min_group = 1",
            "bad setting data.min_group in FILE: Input should be greater than or equal to 2",
        ),
        (
            'settle = "500ms"',
            "penalty = -inf",
            "bad setting data.penalty in FILE: Input should be a finite number",
        ),
        (
            "[engine]",
            "[reward_set.mine]\nanswer = nan\n[engine]",
            "bad setting reward_set.mine.answer in FILE: Input should be a finite number",
        ),
        (
            "[engine]",
            "[reward_set.mine]\nanswer = 1e7\n[engine]",
            "bad setting reward_set.mine.answer in FILE: Input should be less than or equal to 1000000",
        ),
        ('settle = "500ms"', 'settle = "soon"', "bad setting data.settle 'soon': give a duration like 500ms, 2s or 1m"),
    ],
)
def test_what_is_not_available_is_one_line(file: Path, line: str, other: str, said: str) -> None:
    file.write_text(TOML.replace(line, other))
    with pytest.raises(SettingsError) as caught:
        config.load(file)
    assert str(caught.value) == said.replace("FILE", str(file))


def test_the_failure_policy_is_a_word_or_a_table(file: Path) -> None:
    assert config.load(file).data.on_failure == "keep"
    file.write_text(TOML.replace('on_failure = "keep"', 'on_failure = { timeout = "mask", truncation = "penalize" }'))
    assert config.load(file).data.on_failure == {"timeout": "mask", "truncation": "penalize"}
    for wrong in ('"forgive"', '{ timeout = "forgive" }', '{ boredom = "mask" }'):
        file.write_text(TOML.replace('"keep"', wrong))
        with pytest.raises(SettingsError, match=r"bad setting data\.on_failure"):
            config.load(file)
    with pytest.raises(SettingsError, match=r"data\.on_failure\.boredom: error types are exception, timeout, "):
        config.load(file)


def test_what_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be read: Is a directory"):
        config.load(tmp_path)
    with pytest.raises(SettingsError, match="no training configuration at"):
        config.load(tmp_path / "missing.toml")


def test_durations() -> None:
    assert [DataConfig(settle=text).settle_s for text in ("10s", "1.5s", "2m", "0s")] == [10, 1.5, 120, 0]
    for text in ("10", "s", "-1s", "1 s", "9" * 400 + "s"):
        with pytest.raises(SettingsError, match=r"data\.settle"):
            DataConfig(settle=text)


def test_where_to_publish_follows_the_settings_unless_given(tmp_path: Path) -> None:
    file = tmp_path / "train.toml"
    chosen = Settings.model_validate({"sidecar": {"admin_port": 9001, "weights": "w"}})
    file.write_text('[engine]\nmodel = "m"\n[publish]\nkeep_versions = 7\n')
    publish = config.load(file).completed(chosen).publish
    assert (publish.sidecar, publish.weights, publish.keep_versions) == ("http://127.0.0.1:9001", Path("w"), 7)
    file.write_text('[engine]\nmodel = "m"\n[publish]\nsidecar = "http://s:1"\nweights = "given"\n')
    publish = config.load(file).completed(chosen).publish
    assert (publish.sidecar, publish.weights) == ("http://s:1", Path("given"))


def test_the_admin_ports_key_follows_the_settings_and_is_never_recorded() -> None:
    settings = Settings.model_validate({"sidecar": {"admin_key": "key-of-admin"}})
    completed = TrainConfig.model_validate({"engine": {"model": "m"}}).completed(settings)
    assert completed.publish.admin_key is not None
    assert completed.publish.admin_key.get_secret_value() == "key-of-admin"
    assert "key-of-admin" not in completed.model_dump_json()
    elsewhere = {"engine": {"model": "m"}, "publish": {"sidecar": "http://another:1"}}
    assert TrainConfig.model_validate(elsewhere).completed(settings).publish.admin_key is None


def test_losses_are_those_that_verl_has() -> None:
    from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY

    assert {*LOSSES, *UNSUPPORTED_LOSSES} == set(POLICY_LOSS_REGISTRY)
    assert not {*LOSSES}.intersection(UNSUPPORTED_LOSSES)
