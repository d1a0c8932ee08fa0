"""vLLM's control endpoints, as of 0.32 with VLLM_SERVER_DEV_MODE=1. Knows the protocol; decides nothing."""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

import aiohttp

from sidecar.chat_answer import mapping
from tracegrad.errors import UnreachableError

BASE_VERSION = "default"
"""What an engine says whose weights are those it was started with; we call that version 0."""

READING = frozenset(("GET", "HEAD", "OPTIONS"))
OPEN_PATHS = frozenset(
    (
        *("/tokenize", "/detokenize", "/ping"),
        *("/pooling", "/classify", "/score", "/v1/score", "/rerank", "/v1/rerank", "/v2/rerank", "/v2/embed"),
        *("/v1/audio/transcriptions", "/v1/audio/translations"),
        *(f"/v1/{api}/render" for api in ("chat/completions", "completions", "messages", "responses")),
        *("/v1/chat/completions/derender", "/v1/completions/derender"),
    )
)
"""What agents may send to a policy's engine beside model calls: it neither changes the engine nor writes as the policy.

All else is closed to them, known or not (`is_open`). Control (`/pause`, `/update_weights`, `/collective_rpc`,
`/start_profile`, ...) would break lineage behind the sidecar's back; other doors to the same model (`/invocations`,
`/inference/v1/generate`, `/v1/chat/completions/batch`, `/cohere/v2/chat`, ...) would give tokens that nobody records.
"""


def is_open(method: str, path: str) -> bool:
    """Whether agents may send this to a policy's engine, beside model calls. `path`: as the engine will read it."""
    return method in READING or path in OPEN_PATHS


class EngineError(UnreachableError):
    """The engine does not answer, or refuses a control call."""


class EngineGoneError(EngineError):
    """Nobody listens where the engine was: its process has ended."""


class NoVersionError(EngineError):
    """The engine answers, but has no version to tell: asking again soon will not help."""


class NamelessVersionError(NoVersionError):
    """The engine's version is no number, so that nothing can be stamped with it until a publication gives it one."""


async def weight_version(session: aiohttp.ClientSession, url: str, timeout_s: float) -> int:
    """The version of the weights the engine runs. Raises NoVersionError where the engine cannot tell."""
    answer = await _get(session, url, "/weight_info", timeout_s)
    version = str(answer.get("weight_version"))
    if version == BASE_VERSION:
        return 0
    if not version.isdecimal():
        raise NamelessVersionError(
            f"engine at {url} has weight version {version!r}, which is not a number: publish one"
        )
    return int(version)


async def is_paused(session: aiohttp.ClientSession, url: str) -> bool:
    """Whether `pause` was called without `resume`."""
    return (await _get(session, url, "/is_paused", 60)).get("is_paused") is True


async def token_settings(session: aiohttp.ClientSession, url: str) -> tuple[str, bool]:
    """What the engine's log-probs are of (`raw_logprobs`, `processed_logprobs`, ...), and whether calls of strict tools
    are made to keep to their schema. Settings of the whole engine.

    Raises NoVersionError where the engine does not tell. The first answer takes vLLM seconds: it looks at its machine.
    """
    answer = await _get(session, url, "/server_info?config_format=json", 120)
    mode = mapping(mapping(answer.get("vllm_config")).get("model_config")).get("logprobs_mode")
    if not isinstance(mode, str):
        raise NoVersionError(f"engine at {url} does not tell its logprobs_mode: leave out the pin, or use vLLM 0.32")
    return mode, mapping(answer.get("vllm_env")).get("VLLM_ENFORCE_STRICT_TOOL_CALLING") is not False


async def pause(session: aiohttp.ClientSession, url: str) -> None:
    """Freeze the requests in flight and hold new ones; nothing is aborted."""
    await _post(session, url, "/pause?mode=keep")


async def resume(session: aiohttp.ClientSession, url: str) -> None:
    """Let everything that `pause` froze go on."""
    await _post(session, url, "/resume")


async def init_transfer(session: aiohttp.ClientSession, url: str, root: str) -> None:
    """Prepare the engine's `file` transfer, for files under `root` only; needed once in an engine's life."""
    await _post(session, url, "/init_weight_transfer_engine", {"init_info": {"root": root}})


async def load_weights(session: aiohttp.ClientSession, url: str, file: str, sha256: str, version: int) -> None:
    """Swap the weights of a paused engine for those in `file`, and drop every cache computed with the old ones.

    The engine itself compares the digest of what it reads: the file may have been written anew since it was checked.
    Requests in flight keep their tokens and compute their cache anew: `reset_running_requests`, without which the
    reset fails silently while any request runs. Raises EngineError; the engine's weights are then undefined.
    """
    try:
        await _post(session, url, "/start_weight_update")
    except EngineError:
        await _close_open_update(session, url)
        await _post(session, url, "/start_weight_update")
    await _post(session, url, "/update_weights", {"update_info": {"path": file, "sha256": sha256}}, timeout_s=600)
    await _post(session, url, "/finish_weight_update", {"weight_version": str(version)}, timeout_s=600)
    answer = await _post(session, url, "/reset_prefix_cache?reset_running_requests=true")
    if answer.get("success") is not True:
        raise EngineError(f"engine at {url} did not reset its prefix cache: publish again")
    if (found := await weight_version(session, url, 60)) != version:
        raise EngineError(f"engine at {url} is on version {found} after loading {version}: publish again")


async def _close_open_update(session: aiohttp.ClientSession, url: str) -> None:
    """End an update that a publisher left open when it died: vLLM closes one when a transfer fails."""
    try:
        await _post(session, url, "/update_weights", {"update_info": {"path": ""}})
    except EngineError:
        return


async def _get(session: aiohttp.ClientSession, url: str, path: str, timeout_s: float) -> dict[str, Any]:
    return await _call(session.get(url + path, timeout=_limit(timeout_s)), url, path, timeout_s)


async def _post(
    session: aiohttp.ClientSession, url: str, path: str, body: Mapping[str, Any] | None = None, *, timeout_s: float = 60
) -> dict[str, Any]:
    return await _call(session.post(url + path, json=body or {}, timeout=_limit(timeout_s)), url, path, timeout_s)


async def _call(
    asked: AbstractAsyncContextManager[aiohttp.ClientResponse], url: str, path: str, timeout_s: float
) -> dict[str, Any]:
    path = path.partition("?")[0]
    try:
        async with asked as answer:
            if answer.status == 404:
                raise NoVersionError(f"engine at {url} has no {path}: start vLLM with VLLM_SERVER_DEV_MODE=1")
            if answer.status != 200:
                text = (await answer.text(errors="replace"))[:300]
                raise EngineError(f"engine at {url} refused {path} (status {answer.status}): {text}")
            result = await answer.json(content_type=None)
    except aiohttp.ClientConnectorError as error:
        raise EngineGoneError(f"no engine answers at {url}: {error}") from error
    except TimeoutError as error:
        raise EngineError(f"engine at {url} does not answer {path} within {timeout_s:g} s") from error
    except (aiohttp.ClientError, ValueError) as error:
        raise EngineError(f"engine at {url} does not answer {path}: {str(error) or type(error).__name__}") from error
    return result if isinstance(result, dict) else {}


def _limit(timeout_s: float) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=timeout_s, sock_connect=5)
