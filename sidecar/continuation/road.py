"""Which road a call of a policy takes: its own messages, or an earlier call's tokens and what is new after them."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import orjson

from sidecar.continuation.bridge import bridge, marked
from sidecar.continuation.continued import FIELD, TOKENS, Continued
from sidecar.continuation.conversation import conversation, has_media, thought
from sidecar.continuation.memory import Memory, Turn
from sidecar.continuation.patience import LIMIT_S, Patience
from sidecar.continuation.render import Renderer, RenderError, has_documents
from sidecar.continuation.template import Template
from sidecar.continuation.templates import Templates
from sidecar.identity import Identity

log = logging.getLogger(__name__)

Setting = Literal["auto", "tokens", "off"]
Json = dict[str, Any]

NO_HISTORY, NOT_AN_EXTENSION = "no_history", "not_an_extension"
OTHER_SETTINGS, NOTHING_NEW = "other_settings", "nothing_new"
EDITED_THINKING, DROPPED_THINKING = "edited_thinking", "dropped_thinking"
MEDIA, UNUSUAL, TOO_LONG = "media", "unusual_request", "too_long"
TEMPLATE, UNPROVED, CUT_OFF, OTHER_END, UNRENDERED = "template", "unproved", "cut_off", "other_end", "unrendered"
SLOW = "slow"

UNUSUAL_FIELDS = ("echo", "continue_final_message", "truncate_prompt_tokens", "use_beam_search", FIELD)
"""Fields of a request whose prompt is more, or less, than its messages."""


class _Ordinary(Exception):  # noqa: N818 - not a failure: the other road
    """The call goes by its messages."""


class Continuation:
    """One policy's. `setting` auto: where the template is append-only; tokens: everywhere; off: nowhere."""

    def __init__(self, policy: str, setting: Setting = "auto", memory: Memory | None = None) -> None:
        self.policy = policy
        self.setting: Setting = setting
        self._memory = memory or Memory()
        self._templates = Templates(self._said)
        self._patience = Patience()
        self._last: tuple[str, str] | None = None

    async def extend(
        self, renderer: Renderer, identity: Identity, chat: Mapping[str, Any], *, tenant: str
    ) -> Continued | None:
        """What the engine is to be asked, for a chat request as it would be sent.

        None: switched off, or neither a rollout nor a caller's trace names the call, so that nothing extends it.
        """
        if self.setting == "off" or not identity.has_company:
            return None
        if has_documents(chat):  # each such call would be a template of its own to examine
            return Continued(UNUSUAL if _has_answer(chat) else None)
        known = self._templates.known(renderer, chat)
        if known is not None and not self._usable(known):
            return Continued(TEMPLATE if _has_answer(chat) else None)
        if known is None and not self._templates.asked(renderer, chat):
            return Continued(UNRENDERED if _has_answer(chat) else None)
        key = (tenant, identity.rollout_id, identity.attempt)
        talk = conversation(chat)
        if talk is None or has_media(talk.messages):
            return Continued(MEDIA if talk is not None and talk.prefixes else None)
        continued = Continued(None, self._memory, key, talk, stops=bool(chat.get("stop")))
        if talk.prefixes:
            continued.outcome = await self._outcome(renderer, chat, continued)
        return continued

    async def _outcome(self, renderer: Renderer, chat: Mapping[str, Any], continued: Continued) -> str:
        """Set what the call extends, where that can be told in time. What its span says: `tokens`, or why not."""
        try:
            async with asyncio.timeout(LIMIT_S):
                await self._prompt(renderer, chat, continued)
        except _Ordinary as reason:
            return str(reason)
        except RenderError as error:
            log.debug("not continued policy=%s problem=%s", self.policy, error)
            return UNRENDERED
        except TimeoutError:
            if self._templates.known(renderer, chat) is not None:  # an examination takes longer than a call
                self._patience.slow(renderer.url)
            return SLOW
        self._patience.quick(renderer.url)
        return TOKENS

    def under(self, setting: Setting) -> "Continuation":
        """The same by another setting: what is remembered of rollouts stays."""
        return self if setting == self.setting else Continuation(self.policy, setting, self._memory)

    async def examine(self, renderer: Renderer, chat: Mapping[str, Any]) -> None:
        """Find out about the engine's template. Raises RenderError."""
        if self.setting != "off":
            await self._templates.of(renderer, chat)

    @property
    def state(self) -> tuple[str, str]:
        """What calls do that name no template variables (off, unknown, refused, tokens), and why."""
        if self.setting == "off":
            return "off", 'continuation = "off"'
        known = self._templates.plain
        if not known:
            return "unknown", self._templates.problem or "no engine was examined yet"
        worst = min(known, key=lambda one: (one.end is not None, one.append_only))
        if worst.append_only:
            return TOKENS, f"the template is append-only: {worst.why}"
        why = f"the template is not append-only: {worst.why}"
        if worst.end is None:
            return "refused", why
        if self.setting == "auto":
            return "refused", f'{why}. continuation = "tokens" keeps history as it was sampled all the same'
        return TOKENS, f"{why}. History stays as it was sampled all the same, as continuation says"

    def describe(self) -> dict[str, str]:
        """For people and programs."""
        state, why = self.state
        return {"setting": self.setting, "state": state, "why": why}

    def _said(self) -> None:
        if (state := self.state) != self._last:
            self._last = state
            level = logging.WARNING if state[0] == "refused" and self.setting == "tokens" else logging.INFO
            log.log(level, "continuation policy=%s state=%s why=%s", self.policy, *state)

    def _usable(self, template: Template) -> bool:
        return template.end is not None and (template.append_only or self.setting == TOKENS)

    async def _prompt(self, renderer: Renderer, chat: Mapping[str, Any], continued: Continued) -> None:
        """Set what the call extends and what is new. Raises _Ordinary and RenderError."""
        if any(chat.get(name) for name in UNUSUAL_FIELDS) or chat.get("add_generation_prompt") is False:
            raise _Ordinary(UNUSUAL)
        place, before = self._before(continued)
        talk = continued.talk
        assert talk is not None  # noqa: S101 - the caller made it
        if place == len(talk.messages):
            raise _Ordinary(NOTHING_NEW)
        if not self._patience.asks(renderer.url):
            raise _Ordinary(SLOW)
        template = await self._templates.of(renderer, chat)
        end = template.end
        if end is None or not self._usable(template) or (chat.get("tools") and not template.tools):
            raise _Ordinary(TEMPLATE)
        self._check_thinking(talk.messages[:place], before, template)
        answer = talk.messages[place - 1]
        other = marked(answer)
        closed = before.last == end
        if other is None or (answer.get("tool_calls") and not closed):
            raise _Ordinary(CUT_OFF)
        if not closed and not before.broken_off:
            raise _Ordinary(OTHER_END)
        messages = [*talk.messages]
        rendered, changed = await renderer.all(chat, messages, [*messages[: place - 1], other, *messages[place:]])
        known: list[int] = orjson.loads(f"[{before.tokens}]")
        turns = known[: -before.sampled].count(end)
        new = bridge(rendered.ids, changed.ids, end, turns=turns, closed=closed)
        if not new:
            raise _Ordinary(UNPROVED)
        if len(known) + len(new) >= rendered.max_model_len:
            raise _Ordinary(TOO_LONG)
        continued.before, continued.new = before, ",".join(map(str, new))

    def _before(self, continued: Continued) -> tuple[int, Turn]:
        """The longest known conversation that this one begins with, as its number of messages and its last turn."""
        assert continued.talk is not None  # noqa: S101 - the caller made it
        talk, key = continued.talk, continued.key
        for place, digest in reversed(talk.prefixes):
            if (turn := self._memory.find(key, digest, talk.settings)) is not None:
                return place, turn
        if any(self._memory.has(key, digest) for _, digest in talk.prefixes):
            raise _Ordinary(OTHER_SETTINGS)
        raise _Ordinary(NOT_AN_EXTENSION if key in self._memory else NO_HISTORY)

    def _check_thinking(self, messages: Sequence[Json], before: Turn, template: Template) -> None:
        """Thinking that the prompt shows may be missing from the messages only where it may stay regardless."""
        for place, message in enumerate(messages):
            given, shown = thought(message), before.thinking.get(place, "")
            if given.text and given.text != shown:
                raise _Ordinary(EDITED_THINKING)
            written = given.text and (given.aloud or template.writes_thinking)
            if shown and not written and self.setting != TOKENS:
                raise _Ordinary(DROPPED_THINKING)


def _has_answer(chat: Mapping[str, Any]) -> bool:
    messages = chat.get("messages")
    return isinstance(messages, list) and any(
        isinstance(one, dict) and one.get("role") == "assistant" for one in messages
    )
