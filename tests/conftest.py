"""Fixtures that several rooms share: a tiny model made on the spot, and a real vLLM that serves it.

The model knows a few answers by heart, so that greedy decoding is far from ties and its tool call is real.
"""

import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import free_ports
import hypothesis
import pytest

# How long an example takes is the machine's affair: several processes run tests side by side.
hypothesis.settings.register_profile("tests", deadline=None)
hypothesis.settings.load_profile("tests")

GROUPS = {
    "kills": r"/test_killed\.py::.*\[50\]$",
    "road": r"^tests/end_to_end/",
    "vllm": r"/test_(file_engine|\w*real_vllm\w*)\.py::",
}
"""Tests that one process runs, where several run side by side: each real vLLM is started once."""
SERVED_NAME = "policy"
END, PAD = "<|im_end|>", "<|pad|>"
CHAT_TEMPLATE = (
    "{% if tools %}<|im_start|>system\nTools:{% for t in tools %} {{ t['function']['name'] }}{% endfor %}"
    "<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{% if m['content'] %}{{ m['content'] }}{% endif %}"
    "{% for c in m.get('tool_calls') or [] %}<tool_call>\n"
    '{"name": "{{ c[\'function\'][\'name\'] }}", "arguments": '
    "{% set given = c['function']['arguments'] %}{{ given if given is string else given | tojson }}}"
    "\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CALCULATOR = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Evaluate an arithmetic expression.",
        "parameters": {
            "type": "object",
            "properties": {"expression": {"type": "string"}},
            "required": ["expression"],
        },
    },
}
BY_HEART: tuple[tuple[str, bool, str], ...] = (
    (
        "What is 3 times 14?",
        True,
        '<tool_call>\n{"name": "calculator", "arguments": {"expression": "3*14"}}\n</tool_call>',
    ),
    ("Say hello.", False, "Hello, it is good to see you: \u2713 caf\u00e9 and 3 more words."),
)
"""What the model answers greedily: question, whether the calculator is offered, answer."""


def unit_of(nodeid: str) -> str:
    """What is run by one process: tests of a file share its fixtures, and those of a group what is dearer."""
    return next((name for name, tests in GROUPS.items() if re.search(tests, nodeid)), nodeid.partition("::")[0])


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where tests run side by side, those that take longest begin."""
    for item in items:
        if "start_vllm" in getattr(item, "fixturenames", ()) and unit_of(item.nodeid) != "vllm":
            raise pytest.UsageError(f"{item.nodeid} would start one more vLLM: name its file so that it is in GROUPS")
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: (unit_of(item.nodeid) not in GROUPS, item.get_closest_marker("slow") is None))


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Bytes with random ids or a time in them would give a test another name in each process."""
    return argname if isinstance(val, bytes) and not val.isascii() else None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Of `--dist loadscope`: a scope is what `unit_of` says."""
    from xdist.scheduler import LoadScopeScheduling

    class ByUnit(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return unit_of(nodeid)

    return ByUnit(config, log) if config.getvalue("dist") == "loadscope" else None


@dataclass(frozen=True)
class VllmServer:
    """A running vLLM. `url` has no trailing slash and no `/v1`."""

    url: str
    model_dir: Path
    served_name: str = SERVED_NAME


def make_tokenizer() -> Any:
    """A byte-level tokenizer with ChatML tokens and a template that writes tool calls in hermes form."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=[PAD, END, "<|im_start|>", "<tool_call>", "</tool_call>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(
        [f"{question} {answer} user assistant system tool" for question, _, answer in BY_HEART], trainer
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token=END, pad_token=PAD, clean_up_tokenization_spaces=False
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def make_model(directory: Path, *, seed: int = 0, tied: bool = False, steps: int = 150) -> Path:
    """Write a Llama of 0.15M parameters and its tokenizer to `directory`, after `steps` of training."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = make_tokenizer()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # so small that threads would only wait for each other
    torch.manual_seed(seed)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=64,
            intermediate_size=192,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=32,
            max_position_embeddings=512,
            tie_word_embeddings=tied,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    texts = []
    for question, with_tool, answer in BY_HEART:
        prompt = tokenizer.apply_chat_template(
            [{"role": "user", "content": question}],
            tools=[CALCULATOR] if with_tool else None,
            tokenize=False,
            add_generation_prompt=True,
        )
        texts.append(prompt + answer + END)
    batch = tokenizer(texts, return_tensors="pt", padding=True)
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    for _ in range(steps):
        loss = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.set_num_threads(threads)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


@pytest.fixture(scope="session")
def free_port() -> Any:
    """A function that finds a port nobody listens on."""
    return free_ports.free_port


@pytest.fixture(scope="session")
def model_maker() -> Any:
    """`make_model`, for tests that need a model with other weights."""
    return make_model


@pytest.fixture(scope="session")
def start_vllm(free_port: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A function that serves a model directory with a real vLLM until the session ends."""
    started: list[subprocess.Popen[bytes]] = []

    def start(model_dir: Path, *extra: str) -> VllmServer:
        port = free_port()
        log = tmp_path_factory.mktemp("vllm") / "vllm.log"
        command = [
            *(sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model_dir)),
            *("--served-model-name", SERVED_NAME, "--host", "127.0.0.1", "--port", str(port)),
            *("--dtype", "float32", "--enforce-eager", "--max-model-len", "512", "--max-num-seqs", "16"),
            *("--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--generation-config", "vllm"),
            *("--weight-transfer-config", '{"backend":"file"}', "--disable-uvicorn-access-log", *extra),
        ]
        environment = os.environ | {
            "HF_HUB_OFFLINE": "1",
            "VLLM_SERVER_DEV_MODE": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
            "VLLM_LOGGING_LEVEL": "WARNING",
        }
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )
        started.append(process)
        server = VllmServer(f"http://127.0.0.1:{port}", model_dir)
        deadline = time.monotonic() + 280
        while not _answers(server.url + "/health"):
            if process.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"vLLM did not come up, status {process.poll()}:\n{log.read_text()[-4000:]}")
            time.sleep(0.5)
        return server

    yield start
    for process in started:
        stop_group(process)


@pytest.fixture(scope="session")
def vllm_server(start_vllm: Any, tmp_path_factory: pytest.TempPathFactory) -> VllmServer:
    """One real vLLM for the whole session, serving the tiny model (untied, seed 0) as `policy`.

    Tests that change its weights must put the weights of `model_dir` back.
    """
    server: VllmServer = start_vllm(make_model(tmp_path_factory.mktemp("model"), seed=0))
    return server


def stop_group(process: subprocess.Popen[bytes]) -> None:
    """End a process that was started with its own session, and its children."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False
