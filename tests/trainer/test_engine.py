"""The engine against plain torch and transformers: same loss, same gradient, same log-probabilities, same files."""

import dataclasses
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import VOCABULARY, Recorder, write_llama
from transformers import AutoModelForCausalLM, BertConfig, BertForMaskedLM

from tracegrad.errors import InputError, SettingsError, TracegradError
from trainer.config import TrainConfig
from trainer.engine import Engine
from trainer.rows import Row

pytestmark = pytest.mark.slow

LR, WEIGHT_DECAY, CLIP_LOW, CLIP_HIGH = 3e-3, 0.05, 0.2, 0.28


@pytest.fixture(scope="session")
def make_llama(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A function that writes a random Llama of 20k parameters and returns its directory."""
    return lambda **changes: write_llama(tmp_path_factory.mktemp("llama"), **changes)


@pytest.fixture(scope="session")
def llama(make_llama: Callable[..., Path]) -> Path:
    """An untied random Llama."""
    return make_llama()


def config_of(model: Path, **algorithm: Any) -> TrainConfig:
    engine: dict[str, Any] = {"model": model, "lr": LR, "weight_decay": WEIGHT_DECAY, "max_grad_norm": 1e9}
    engine["micro_batch_rows"] = algorithm.pop("micro_batch_rows", 4)
    engine["max_grad_norm"] = algorithm.pop("max_grad_norm", 1e9)
    return TrainConfig.model_validate({"engine": engine, "algorithm": algorithm})


def make_rows(model: Path, seed: int = 0) -> list[Row]:
    """Three rollouts of 3, 1 and 3 rows, of unequal lengths; the middle one has advantage 0.

    Behaviour is the present policy up to noise: some ratios lie beyond the clip range, some beyond dual clip's 3.
    """
    rng = np.random.default_rng(seed)
    llama = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    rows = []
    for n_rows, advantage in ((3, 1.3), (1, 0.0), (3, -0.9)):
        lengths = [(int(rng.integers(1, 9)), int(rng.integers(1, 12))) for _ in range(n_rows)]
        weight = 1 / (3 * sum(r for _, r in lengths))
        for p, r in lengths:
            prompt, response = rng.integers(0, VOCABULARY, p), rng.integers(0, VOCABULARY, r)
            row = Row.of_response(prompt, response, np.zeros(r, np.float32), advantage=advantage, weight=weight)
            with torch.no_grad():
                exact = log_probs_of(llama, row).numpy()
            noise = rng.normal(0, 0.5, r)
            noise[0] = -1.5
            behaviour = np.concatenate([np.zeros(p), exact + noise]).astype(np.float32)
            rows.append(dataclasses.replace(row, behaviour_logprobs=behaviour))
    rng.shuffle(rows)  # type: ignore[arg-type]
    return rows


def log_probs_of(model: Any, row: Row) -> torch.Tensor:
    """Of the trained tokens of a row without branches."""
    ids = torch.from_numpy(row.token_ids)
    log_probs = model(input_ids=ids[None]).logits[0, :-1].log_softmax(-1).gather(-1, ids[1:, None])[:, 0]
    return log_probs[torch.from_numpy(row.mask[1:])]


def trained(values: np.ndarray[Any, Any], row: Row) -> torch.Tensor:
    return torch.from_numpy(values[row.mask])


def reference_loss(model: Any, rows: list[Row]) -> torch.Tensor:
    """Clipped PPO loss with dual clip at 3 (Schulman et al. 2017, eq. 7; Ye et al. 2020), learning.md Level 3."""
    total = torch.zeros(())
    for row in rows:
        ratio = (log_probs_of(model, row) - trained(row.behaviour_logprobs, row)).exp()
        advantages = trained(row.advantages, row)
        clipped = ratio.clamp(1 - CLIP_LOW, 1 + CLIP_HIGH)
        objective = torch.minimum(ratio * advantages, clipped * advantages)
        bounded = torch.where(advantages < 0, objective.maximum(3 * advantages), objective)
        total = total - (trained(row.weights, row) * bounded).sum()
    return total


def test_importing_the_engine_changes_nothing_else(llama: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """verl prints, reads its rank from the environment and has gloo listen: none of it may show."""
    before = dict(os.environ)
    Engine(config_of(llama)).close()
    written = capfd.readouterr()
    assert written.out == ""
    assert written.err == ""
    assert dict(os.environ) == before
    listening = {c.laddr.ip for c in psutil.Process().net_connections("inet") if c.status == psutil.CONN_LISTEN}
    assert listening <= {"127.0.0.1", "::1"}


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("micro_batch_rows", [1, 3, 64])
def test_update_is_plain_torch(make_llama: Callable[..., Path], tied: bool, micro_batch_rows: int) -> None:
    """Gradient of every parameter and weights after two epochs; 7 rows in threes need two padding rows."""
    model = make_llama(tie_word_embeddings=tied)
    rows = make_rows(model)
    engine = Engine(config_of(model, epochs=2, micro_batch_rows=micro_batch_rows))
    recorder = Recorder(engine)
    metrics = engine.update(rows)

    plain = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    optimizer = torch.optim.AdamW(plain.parameters(), lr=LR, weight_decay=WEIGHT_DECAY)
    losses, norms, ratios = [], [], []
    for gradients in recorder.steps:
        optimizer.zero_grad()
        loss = reference_loss(plain, rows)
        loss.backward()
        for name, parameter in plain.named_parameters():
            torch.testing.assert_close(gradients[name], parameter.grad, rtol=1e-4, atol=2e-6, msg=name)
        with torch.no_grad():
            ratios.append(torch.cat([log_probs_of(plain, r) - trained(r.behaviour_logprobs, r) for r in rows]))
        losses.append(loss.item())
        norms.append(torch.nn.utils.get_total_norm([p.grad for p in plain.parameters()]).item())
        optimizer.step()
    assert len(recorder.steps) == 2
    assert metrics["loss"] == pytest.approx(np.mean(losses), rel=1e-5)
    assert metrics["grad_norm"] == pytest.approx(np.mean(norms), rel=1e-5)
    assert metrics["lr"] == pytest.approx(LR)
    assert metrics["ppo_kl"] == pytest.approx(-torch.cat(ratios).mean().item(), rel=1e-4)
    assert 0 < metrics["clip_fraction"] < 1
    assert 0 < metrics["dual_clip_fraction"] < 1
    for name, weight in weights_of(engine, model.parent / "out.safetensors").items():
        torch.testing.assert_close(weight, plain.state_dict()[name], rtol=1e-4, atol=1e-5, msg=name)


def weights_of(engine: Engine, file: Path) -> dict[str, torch.Tensor]:
    engine.write_weights(file)
    return load_file(file)


def test_the_gradient_is_clipped_by_its_norm(llama: Path) -> None:
    engine = Engine(config_of(llama, max_grad_norm=1e-3))
    recorder = Recorder(engine)
    metrics = engine.update(make_rows(llama))
    clipped = torch.nn.utils.get_total_norm(list(recorder.steps[0].values()))
    assert metrics["grad_norm"] > 1e-2
    assert clipped.item() == pytest.approx(1e-3, rel=1e-3)


@pytest.mark.parametrize(
    ("aggregation", "weight_of"),
    [
        ("token-mean", lambda row, rows: 1 / sum(other.n_trained for other in rows)),
        ("seq-mean-token-mean", lambda row, rows: 1 / len(rows) / row.n_trained),
        ("seq-mean-token-sum", lambda row, rows: 1 / len(rows)),
    ],
)
def test_other_aggregations_are_verls_and_ignore_weights(
    llama: Path, aggregation: str, weight_of: Callable[[Row, list[Row]], float]
) -> None:
    """Padding rows (7 rows in threes need two) count neither as tokens nor as sequences."""
    rows = make_rows(llama)
    metrics = Engine(config_of(llama, aggregation=aggregation, micro_batch_rows=3)).update(rows)
    weighted = [dataclasses.replace(row, weights=row.mask * np.float32(weight_of(row, rows))) for row in rows]
    plain = AutoModelForCausalLM.from_pretrained(llama, dtype=torch.float32)
    assert metrics["loss"] == pytest.approx(reference_loss(plain, weighted).item(), rel=1e-5)


@pytest.mark.parametrize("loss", ["dppo_tv", "dppo_kl", "gspo", "gpg", "clip_cov", "kl_cov", "cispo"])
def test_verls_other_losses_take_row_weights(llama: Path, loss: str) -> None:
    """The loss is linear in the weights, whatever it is in the advantage."""
    rows = make_rows(llama)
    double = [dataclasses.replace(row, weights=2 * row.weights) for row in rows]
    found = []
    for given in (rows, double):
        torch.manual_seed(1)  # clip_cov draws which tokens it drops
        engine = Engine(config_of(llama, loss=loss, micro_batch_rows=64))
        found.append(engine.update(given)["loss"])
    assert found[0] != 0
    assert found[1] == pytest.approx(2 * found[0], rel=1e-5)


def test_log_probs_are_transformers(llama: Path) -> None:
    """Each row's own, in the order they came in, whatever the micro-batch."""
    rows = make_rows(llama)
    plain = AutoModelForCausalLM.from_pretrained(llama, dtype=torch.float32)
    for micro_batch_rows in (2, 64):
        found = Engine(config_of(llama, micro_batch_rows=micro_batch_rows)).log_probs(rows)
        for row, log_probs in zip(rows, found, strict=True):
            with torch.no_grad():
                expected = log_probs_of(plain, row).numpy()
            assert log_probs.dtype == np.float32
            np.testing.assert_allclose(log_probs, expected, atol=1e-5)
    assert Engine(config_of(llama)).log_probs([]) == []


@pytest.mark.parametrize("tied", [False, True])
def test_weights_load_in_transformers(make_llama: Callable[..., Path], tmp_path: Path, tied: bool) -> None:
    """Names and values are those of the model that came in, a tied lm_head is not written twice."""
    model = make_llama(tie_word_embeddings=tied)
    file = tmp_path / "policy" / "1" / "model.safetensors"
    tensors = weights_of(Engine(config_of(model)), file)
    original = load_file(model / "model.safetensors")
    assert tensors.keys() == original.keys()
    assert ("lm_head.weight" in tensors) is not tied
    for name, tensor in original.items():
        assert torch.equal(tensors[name], tensor), name
    shutil.copy(model / "config.json", file.parent)
    loaded = AutoModelForCausalLM.from_pretrained(file.parent, dtype=torch.float32)
    plain = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    row = make_rows(model)[0]
    with torch.no_grad():
        assert torch.equal(log_probs_of(loaded, row), log_probs_of(plain, row))
    assert sorted(path.name for path in file.parent.iterdir()) == ["config.json", "model.safetensors"]
    assert file.stat().st_mode & 0o444 == 0o444  # vLLM may run as another user


def test_weights_that_are_not_finite_are_not_written(make_llama: Callable[..., Path], tmp_path: Path) -> None:
    model = make_llama()
    tensors = load_file(model / "model.safetensors")
    tensors["model.norm.weight"][3] = float("nan")
    save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(TracegradError, match=r"model\.norm\.weight are not finite, nothing was written"):
        Engine(config_of(model)).write_weights(tmp_path / "w" / "model.safetensors")
    assert not (tmp_path / "w").exists()


@pytest.mark.parametrize("tied", [False, True])
def test_a_resumed_engine_goes_on_as_if_nothing_had_happened(
    make_llama: Callable[..., Path], tmp_path: Path, tied: bool
) -> None:
    """Weights, optimizer and random state, bit for bit; the dropout makes the random state matter."""
    model = make_llama(tie_word_embeddings=tied, attention_dropout=0.2)
    config = config_of(model)
    batches = [make_rows(model, seed) for seed in range(3)]
    engine = Engine(config)
    for rows in batches[:2]:
        engine.update(rows)
    engine.save(tmp_path / "step-2")
    uninterrupted = engine.update(batches[2])
    expected = weights_of(engine, tmp_path / "expected.safetensors")
    engine.close()

    torch.manual_seed(99)
    resumed = Engine(config, tmp_path / "step-2")
    assert resumed.update(batches[2]) == uninterrupted
    found = weights_of(resumed, tmp_path / "found.safetensors")
    for name, weight in expected.items():
        assert torch.equal(found[name], weight), name


def test_saving_again_replaces_a_checkpoint(llama: Path, tmp_path: Path) -> None:
    engine = Engine(config_of(llama))
    engine.save(tmp_path / "c")
    engine.update(make_rows(llama))
    engine.save(tmp_path / "c")
    assert [path.name for path in tmp_path.iterdir()] == ["c"]
    resumed = Engine(config_of(llama), tmp_path / "c")
    found, expected = weights_of(resumed, tmp_path / "a.st"), weights_of(engine, tmp_path / "b.st")
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize("broken", ["cut", "no file", "other format"])
def test_a_checkpoint_that_is_not_whole_is_refused(llama: Path, tmp_path: Path, broken: str) -> None:
    checkpoint = tmp_path / "c"
    Engine(config_of(llama)).save(checkpoint)
    optimizer = checkpoint / "optimizer.safetensors"
    if broken == "cut":
        optimizer.write_bytes(optimizer.read_bytes()[:-7])
    elif broken == "no file":
        optimizer.unlink()
    else:
        (checkpoint / "checkpoint.json").write_text(json.dumps({"format": 2}))
    with pytest.raises(InputError, match=r"c is not a complete checkpoint|c has checkpoint format 2"):
        Engine(config_of(llama), checkpoint)


def test_a_checkpoint_of_another_model_is_refused(make_llama: Callable[..., Path], llama: Path, tmp_path: Path) -> None:
    Engine(config_of(make_llama(intermediate_size=48))).save(tmp_path / "c")
    with pytest.raises(InputError, match="is a checkpoint of another model"):
        Engine(config_of(llama), tmp_path / "c")


def test_a_step_without_finite_gradient_is_an_error_and_changes_nothing(
    llama: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    engine = Engine(config_of(llama))
    before = weights_of(engine, tmp_path / "before.st")
    rows = make_rows(llama)
    rows[0] = dataclasses.replace(rows[0], advantages=rows[0].advantages * np.float32("nan"))
    with pytest.raises(TracegradError, match="the gradient is not finite"):
        engine.update(rows)
    assert capfd.readouterr().out == ""
    after = weights_of(engine, tmp_path / "after.st")
    assert all(torch.equal(after[name], before[name]) for name in before)


def test_models_that_cannot_be_trained_are_refused(llama: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"bad setting engine\.model: no model \(config\.json\)"):
        Engine(config_of(tmp_path / "nowhere"))
    size = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    BertForMaskedLM(BertConfig(vocab_size=9, **size)).save_pretrained(tmp_path / "bert")
    with pytest.raises(SettingsError, match="not a causal language model but BertForMaskedLM"):
        Engine(config_of(tmp_path / "bert"))
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "config.json").write_text('{"model_type": "nobody-knows"}')
    with pytest.raises(SettingsError, match="odd is not a model: "):
        Engine(config_of(tmp_path / "odd"))
    (tmp_path / "empty").mkdir()
    shutil.copy(llama / "config.json", tmp_path / "empty")
    with pytest.raises(SettingsError, match="empty cannot be loaded: "):
        Engine(config_of(tmp_path / "empty"))


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [
        ({"loss": "grpo"}, r"algorithm\.loss = 'grpo' cannot be used: choose one of vanilla"),
        ({"loss": "geo_mean"}, r"'geo_mean' cannot be used \(verl averages it inside a micro-batch"),
        ({"loss": "sapo"}, 'needs aggregation = "seq-mean-token-mean"'),
        ({"aggregation": "mean"}, r"algorithm\.aggregation = 'mean' is not known: choose one of rollout-mean"),
    ],
)
def test_algorithms_that_verl_cannot_compute_are_refused(llama: Path, algorithm: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        Engine(config_of(llama, **algorithm))
