"""Credit over span trees: the worked examples, and what must hold on any tree."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tree_spans import span

from tracegrad.errors import SettingsError, TracegradError
from trainer.credit import SCHEMES, Execution, scheme_named
from trainer.spans import Span, SpanTree
from trainer.tool_requests import tool_requests
from trainer.transitions import Call, transitions_of

MakeCall = Callable[..., Call]


def execution(
    spans: Sequence[Span], calls: Sequence[Call], rewards: Mapping[str, float], gamma: float = 1.0, root: str = "root"
) -> Execution:
    transitions = transitions_of(calls, rewards)
    tree = SpanTree(spans, root)
    requests = tool_requests(tree, calls, [transition.call for transition in transitions])
    return Execution(transitions, rewards, tree, requests, gamma)


def credits(name: str, *arguments: Any, **options: Any) -> list[float]:
    return [float(credit) for credit in SCHEMES[name](execution(*arguments, **options))]


@pytest.fixture
def calls(make_call: MakeCall) -> list[Call]:
    """Three calls, c1 to c3, at times 10, 20 and 30."""
    return [make_call(f"c{number}", number * 10) for number in (1, 2, 3)]


def under(parent: str, calls: Sequence[Call]) -> list[Span]:
    return [span(call.span_id, parent, call.started_ns) for call in calls]


def test_worked_example_3_discounted(calls: list[Call]) -> None:
    spans = [span("root"), *under("root", calls)]
    assert credits("discounted", spans, calls, {"root": 1.0}, gamma=0.9) == pytest.approx([0.81, 0.9, 1.0])


def test_worked_example_4_a_tools_reward_goes_to_the_call_that_asked(make_call: MakeCall) -> None:
    calls = [make_call("c1", 10, tool_call_ids=("id",)), make_call("c2", 30)]
    spans = [span("root"), span("v", "root", agent="a"), *under("v", calls)]
    spans += [span("tool", "v", 20, is_tool=True, tool_call_id="id")]
    rewards = {"root": 1.0, "tool": 0.1}
    assert credits("identical", spans, calls, rewards) == pytest.approx([1.1, 1.1])
    assert credits("hierarchical", spans, calls, rewards) == pytest.approx([1.1, 1.0])
    assert credits("step", spans, calls, rewards) == pytest.approx([0.1, 0.0])


def test_worked_example_6_rewards_go_to_the_spans_that_they_name(make_call: MakeCall) -> None:
    """The calls overlap, the rewards come in the other order, and the tools' clock is seconds behind."""
    behind = -5_000_000_000
    calls = [make_call("c1", 100, ended_ns=400, tool_call_ids=("one",)), make_call("c2", 200, tool_call_ids=("two",))]
    spans = [span("root"), *under("root", calls)]
    spans += [span(name, "root", behind, is_tool=True, tool_call_id=name) for name in ("two", "one")]
    rewards = {"two": 0.2, "c2": 0.02, "one": 0.1, "c1": 0.01}
    for order in (rewards, dict(reversed(rewards.items()))):
        assert credits("step", spans, calls, order) == pytest.approx([0.11, 0.22])
        assert credits("hierarchical", spans, calls, order) == pytest.approx([0.11, 0.22])


def test_a_span_is_shared_by_the_calls_under_it_discounted_by_those_that_follow(calls: list[Call]) -> None:
    spans = [span("root"), span("v", "root"), *under("v", calls[:2]), *under("root", calls[2:])]
    rewards = {"root": 1.0, "v": 10.0, "c1": 100.0}
    expected = [100 + 10 * 0.5 + 0.25, 10 + 0.5, 1.0]
    assert credits("hierarchical", spans, calls, rewards, gamma=0.5) == pytest.approx(expected)


def test_choices_of_one_request_do_not_discount_each_other(make_call: MakeCall) -> None:
    calls = [make_call("a", 10, response_id="r"), make_call("b", 10, response_id="r"), make_call("c", 20)]
    spans = [span("root"), span("request", "root"), *under("request", calls[:2]), *under("root", calls[2:])]
    assert credits("hierarchical", spans, calls, {"root": 1.0, "request": 1.0}, gamma=0.5) == [1.5, 1.5, 1.0]


def test_without_parents_the_root_is_above_all(calls: list[Call]) -> None:
    lost = [span("root"), *under("lost", calls)]
    assert credits("hierarchical", lost[1:], calls, {"lost": 1.0}, root="") == [1.0] * 3
    for name in ("identical", "hierarchical"):
        assert credits(name, lost, calls, {"root": 1.0}) == [1.0] * 3
        assert credits(name, [], calls, {"root": 1.0}) == [1.0] * 3
        assert credits(name, [], calls, {"": 1.0}, root="") == [1.0] * 3
    assert credits("hierarchical", lost, calls, {"": 1.0, "root": 1.0}) == [2.0] * 3


def test_a_tool_without_an_id_is_the_last_calls_before_it_under_the_same_agent(make_call: MakeCall) -> None:
    calls = [make_call("w1", 10), make_call("k1", 20), make_call("w2", 40)]
    spans = [span("root"), span("writer", "root", agent="writer"), span("critic", "root", agent="critic")]
    spans += [*under("writer", [calls[0], calls[2]]), *under("critic", [calls[1]])]
    spans += [span("tool", "writer", 30, is_tool=True), span("early", "writer", 5, is_tool=True)]
    rewards = {"tool": 1.0, "early": 7.0}
    assert credits("step", spans, calls, rewards) == [1.0, 0.0, 0.0]
    found = execution(spans, calls, rewards)
    assert dict(found.requests) == {"tool": "w1"}
    assert credits("discounted", spans, calls, rewards) == [8.0, 7.0, 7.0]


def test_an_id_that_counts_from_zero_in_every_conversation(make_call: MakeCall) -> None:
    ids = {"tool_call_ids": ("call_0",)}
    calls = [make_call("w1", 10, **ids), make_call("k1", 20, **ids), make_call("w2", 40, **ids)]
    spans = [span("root"), span("writer", "root", agent="w"), span("critic", "root", agent="k")]
    spans += [*under("writer", [calls[0], calls[2]]), *under("critic", [calls[1]])]
    tools = [("t1", "writer", 30), ("t2", "critic", 30), ("t3", "writer", 50), ("t4", "writer", 1), ("t5", "root", 45)]
    spans += [span(name, parent, at, is_tool=True, tool_call_id="call_0") for name, parent, at in tools]
    found = execution(spans, calls, {})
    assert dict(found.requests) == {"t1": "w1", "t2": "k1", "t3": "w2", "t4": "w1", "t5": "w2"}


def test_a_tool_that_a_call_of_another_policy_asked_for_rewards_no_call_of_this_one(make_call: MakeCall) -> None:
    other = make_call("o1", 5, policy="other", tool_call_ids=("id",))
    own = make_call("c1", 10)
    tree = SpanTree(
        [span("root"), *under("root", [other, own]), span("t", "root", 20, is_tool=True, tool_call_id="id")], "root"
    )
    selected = [item for item in transitions_of([other, own], {}) if item.call.policy == own.policy]
    requests = tool_requests(tree, [other, own], [item.call for item in selected])
    found = Execution(selected, {"t": 1.0}, tree, requests, 1.0)
    assert {name: scheme(found).tolist() for name, scheme in SCHEMES.items()} == {
        "identical": [1.0],
        "discounted": [1.0],
        "step": [0.0],
        "hierarchical": [0.0],
    }


def test_circles_and_missing_parents_end_the_way_up() -> None:
    tree = SpanTree([span("a", "b"), span("b", "c"), span("c", "a"), span("d", "gone", agent="x")], "root")
    assert tree.ancestors("a") == ["b", "c", "root"]
    assert tree.ancestors("d") == ["gone", "root"]
    assert tree.ancestors("root") == []
    assert tree.agent_span("d") == "d"
    assert tree.agent_span("a") == ""


@st.composite
def executions(draw: st.DrawFn) -> tuple[list[tuple[str, str, int]], dict[str, float], float]:
    """Spans as (id, parent, start), the root first; the rewards; gamma. Ids that begin with c are calls'."""
    spans = [("root", "", 0)]
    for number in range(draw(st.integers(0, 12))):
        kind = draw(st.sampled_from(["c", "c", "s"]))
        parent = draw(st.sampled_from([name for name, _, _ in spans] + ["lost"]))
        spans.append((f"{kind}{number}", parent, draw(st.integers(0, 6))))
    scores = st.floats(-2, 2, allow_nan=False)
    rewards = draw(st.dictionaries(st.sampled_from([name for name, _, _ in spans] + ["lost"]), scores, max_size=5))
    return spans, rewards, draw(st.sampled_from([0.0, 0.5, 0.9, 1.0]))


@given(executions())
@settings(max_examples=150, deadline=None)
def test_on_any_tree(make_call: MakeCall, drawn: tuple[list[tuple[str, str, int]], dict[str, float], float]) -> None:
    spans, rewards, gamma = drawn
    calls = [make_call(name, start) for name, _, start in spans if name.startswith("c")]
    tree = [span(name, parent, start) for name, parent, start in spans]
    found = execution(tree, calls, rewards, gamma)
    order = [transition.call.span_id for transition in found.transitions]
    starts = {name: start for name, _, start in spans}
    parents = {name: parent for name, parent, _ in spans}

    def line(name: str) -> list[str]:
        up = [name]
        while parents.get(up[-1]) and up[-1] != "root":
            up.append(parents[up[-1]])
        return list(dict.fromkeys([*up, "root"]))

    # The definition, term by term.
    expected = [
        sum(
            gamma ** sum(starts[other] > starts[name] for other in order if above in line(other))
            * rewards.get(above, 0.0)
            for above in line(name)
        )
        for name in order
    ]
    assert SCHEMES["hierarchical"](found) == pytest.approx(expected, abs=1e-12)
    returns = SCHEMES["discounted"](found)
    assert SCHEMES["identical"](found) == pytest.approx([sum(rewards.values())] * len(order), abs=1e-12)
    if order:
        own = [rewards.get(name, 0.0) for name in order]
        own[-1] += sum(score for name, score in rewards.items() if name not in order)
        assert returns == pytest.approx(
            [sum(gamma ** (k - t) * own[k] for k in range(t, len(own))) for t in range(len(own))]
        )
    if set(rewards) <= {"root"} and gamma == 1:
        assert SCHEMES["hierarchical"](found) == pytest.approx(SCHEMES["identical"](found))
    if set(rewards) <= set(order) and not any(parents[name].startswith("c") for name in order):
        assert SCHEMES["hierarchical"](found) == pytest.approx(SCHEMES["step"](found))


def test_a_scheme_of_ones_own(calls: list[Call], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "credits_of_mine.py").write_text(
        "def last_only(execution):\n"
        "    return [0.0] * (len(execution.transitions) - 1) + [execution.ret]\n"
        "def too_few(execution):\n"
        "    return [1.0]\n"
        "number = 5\n"
        "def texts(execution):\n"
        "    return ['much'] * len(execution.transitions)\n"
        "def divides(execution):\n"
        "    return 1 / 0\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    found = execution([span("root"), *under("root", calls)], calls, {"root": 2.0})
    assert np.array_equal(scheme_named("credits_of_mine:last_only")(found), [0.0, 0.0, 2.0])
    with pytest.raises(TracegradError, match="must return one finite number for each of the 3 transitions"):
        scheme_named("credits_of_mine:too_few")(found)
    with pytest.raises(TracegradError, match=r"each of the 3 transitions, not list of something else \(could not conv"):
        scheme_named("credits_of_mine:texts")(found)
    with pytest.raises(
        TracegradError, match=r"'credits_of_mine:divides' failed: ZeroDivisionError: .*, at credits_of_m"
    ):
        scheme_named("credits_of_mine:divides")(found)
    with pytest.raises(SettingsError, match="'nothing' is not there"):
        scheme_named("credits_of_mine:nothing")
    with pytest.raises(SettingsError, match="'number' is not a function"):
        scheme_named("credits_of_mine:number")
    with pytest.raises(SettingsError, match="cannot be imported"):
        scheme_named("no_such_module_of_mine:x")
