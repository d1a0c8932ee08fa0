"""Supervised training on demonstrations that the demo makes itself: the model learns the form, and bad habits too."""

import asyncio
import json
import os
import random
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tracegrad.demo import tasks, tiny_model
from tracegrad.errors import TracegradError

IGNORED = -100


@dataclass(frozen=True)
class WarmStart:
    """How long and on what: optimiser steps of `batch` demonstrations, and how sloppy these are (see tasks)."""

    seed: int
    steps: int
    batch: int = 64
    lr: float = 3e-3
    reliable_share: float = 0.3
    reliable: float = 0.6
    unreliable: float = 0.3
    threads: int = 2


def build(directory: Path, config: WarmStart, excluded: set[str], progress: Callable[[int, float], None]) -> None:
    """Make tokenizer and model and train it; `directory` appears only when all of it is there.

    `excluded` questions are kept out of the demonstrations. `progress(step, loss)` is called after every step.
    """
    import torch
    from transformers.utils import logging

    logging.disable_progress_bar()  # it would report the writing of one small file
    rng = random.Random(f"warm start {config.seed}")
    torch.manual_seed(config.seed)
    torch.set_num_threads(config.threads)
    partial = directory.with_name(directory.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    tokenizer = tiny_model.build_tokenizer(partial)
    model = tiny_model.build_model(tokenizer)
    habits, _ = tasks.sloppy_habits(
        rng, reliable_share=config.reliable_share, reliable=config.reliable, unreliable=config.unreliable
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / 50) * max(0.05, 1 - step / config.steps)
    )
    for step in range(config.steps):
        examples = [tasks.demonstrate(rng, habits, excluded) for _ in range(config.batch)]
        ids, labels = _batch(tokenizer, examples)
        logits = model(input_ids=ids).logits
        loss = torch.nn.functional.cross_entropy(
            logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED
        )
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        progress(step + 1, loss.item())
    model.save_pretrained(partial)
    partial.rename(directory)


async def build_in_process(
    directory: Path, config: WarmStart, excluded: set[str], progress: Callable[[int, float], None]
) -> None:
    """`build` in a process of its own: its memory goes back when it ends, and cancelling kills it at once."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tracegrad.demo.warm_start", str(directory), json.dumps(asdict(config))),
        env=os.environ | {"OMP_WAIT_POLICY": "PASSIVE"},  # threads that spin while they wait starve others of cores
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdin is not None and process.stdout is not None, "both are pipes"  # noqa: S101
    try:
        process.stdin.write(json.dumps(sorted(excluded)).encode())
        process.stdin.close()
        async for line in process.stdout:
            step, loss = line.split()
            progress(int(step), float(loss))
        if await process.wait() != 0:
            raise TracegradError(f"the warm start failed with status {process.returncode}: see the lines above")
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def _main() -> None:
    def progress(step: int, loss: float) -> None:
        sys.stdout.write(f"{step} {loss}\n")
        sys.stdout.flush()

    build(Path(sys.argv[1]), WarmStart(**json.loads(sys.argv[2])), set(json.load(sys.stdin)), progress)


def _batch(tokenizer: Any, examples: list[tasks.Demonstration]) -> tuple[Any, Any]:
    """Token ids and labels, (batch, tokens), padded at the right; labels only where the assistant speaks."""
    import torch

    rows = []
    for example in examples:
        ids: list[int] = []
        labels: list[int] = []
        for text, trained in tiny_model.solution_text(example):
            piece = tokenizer(text, add_special_tokens=False).input_ids
            ids += piece
            labels += piece if trained else [IGNORED] * len(piece)
        rows.append((ids, labels))
    width = max(len(ids) for ids, _ in rows)
    padding = tokenizer.pad_token_id
    return (
        torch.tensor([ids + [padding] * (width - len(ids)) for ids, _ in rows]),
        torch.tensor([labels + [IGNORED] * (width - len(labels)) for _, labels in rows]),
    )


if __name__ == "__main__":
    _main()
