"""What the store's columns become: calls of attempts, told apart by their messages where token ids are missing."""

import pytest
from recorded_agents import RecordedAgents

from tracegrad import names
from trainer.rollout import Rollout
from trainer.since import Since
from trainer.store import Store
from trainer.transitions import transitions_of

LOST = {
    names.PROMPT_TOKEN_IDS: ["", "[1,2,3]"],
    names.TRAINABLE: [False, True],
    names.UNTRAINABLE_REASON: ["client_disconnected", ""],
}
"""Of two calls, the first was broken off before its token ids were known."""


def attempt(agents: RecordedAgents, rollout_id: str) -> Rollout:
    store = Store(agents.collector.clickhouse)
    (found,) = store.filled(store.rollouts(Since(0, untrained_only=False), [rollout_id]))
    store.close()
    return found


@pytest.mark.parametrize(("second", "received"), [('["a"]', 1), ('["b"]', 2)])
def test_what_was_asked_again_is_known_by_its_messages(agents: RecordedAgents, second: str, received: int) -> None:
    values = {**LOST, names.INPUT_MESSAGES: ['["a"]', second]}
    found = attempt(agents, agents.run("one", 1.0, **values))
    assert len({call.input_hash for call in found.calls}) == received
    assert 0 not in {call.input_hash for call in found.calls}
    assert len(transitions_of(found.calls, {})) == received


def test_messages_are_not_read_where_token_ids_tell_all(agents: RecordedAgents) -> None:
    values = {names.UNTRAINABLE_REASON: ["client_disconnected", ""], names.TRAINABLE: [False, True]}
    found = attempt(agents, agents.run("one", 1.0, **values))
    assert [call.input_hash for call in found.calls] == [0, 0]
    assert [call.tool_call_ids for call in found.calls] == [(), ()]
    assert {type(call.trainable) for call in found.calls} == {bool}
    assert all(call.trace_id == found.trace_id for call in found.calls)
