"""What the trainer's tests share: calls, as the store gives them."""

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest

from trainer.transitions import Call

MakeCall = Callable[..., Call]


@pytest.fixture(scope="session")
def make_call() -> MakeCall:
    """A function that makes a call that may be trained on: `make_call(span_id, started_ns, **changes)`."""

    def make(span_id: str, started_ns: int, **changes: object) -> Call:
        call = Call(
            rollout_id="r1",
            attempt=0,
            task_id="t",
            agent="",
            trace_id="ab" * 16,
            span_id=span_id,
            policy="policy",
            policy_version=0,
            started_ns=started_ns,
            prompt_token_ids=np.array([1, started_ns], np.int64),
            response_token_ids=np.array([7, 8], np.int64),
            logprobs=np.array([-0.5, -0.25], np.float32),
            trainable=True,
            untrainable_reason="",
            error_type="",
            input_hash=started_ns,
            sampling='{"temperature":1.0}',
            response_id=f"chatcmpl-{span_id}",
            retry_count=0,
        )
        return dataclasses.replace(call, **changes)  # type: ignore[arg-type]

    return make
