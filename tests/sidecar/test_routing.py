"""Which calls go where: one order of entries, and the first that holds."""

import re
from typing import Any

import pytest
from fake_vllm import FakeVllm
from hypothesis import given
from hypothesis import strategies as st
from sidecar_harness import Harness

from sidecar.chat import ChatDialect
from sidecar.facts import Facts
from sidecar.models import merged
from sidecar.routes import Route, Routes, build_routes
from tracegrad.errors import SettingsError
from tracegrad.settings import Settings


def routes(*entries: dict[str, Any]) -> Routes:
    """Entries whose upstreams tell them apart: http://0, http://1, ..."""
    model = [{"upstream": f"http://{number}"} | entry for number, entry in enumerate(entries)]
    return build_routes(Settings.model_validate({"model": model}))


def chosen(table: Routes, model: str | None, *, system: str = "", **call: Any) -> int | None:
    """The number of the entry that takes a call."""
    body = {"messages": [{"role": "system", "content": system}, {"role": "user", "content": "x"}]}
    route = table.choose(
        Facts(ChatDialect(), body, model, call.get("rollout"), call.get("agent"), call.get("headers", {}))
    )
    return None if route is None else table.entries.index(route)


def test_names_exact_then_with_stars_then_any() -> None:
    table = routes({"name": "*"}, {"name": "gpt-4*"}, {"name": "gpt-4o"}, {"name": "*-mini"})
    names = ["gpt-4o", "gpt-4", "gpt-4o-mini", "gpt-5-mini", "gpt-5", "GPT-4o"]
    assert [chosen(table, name) for name in names] == [2, 1, 1, 3, 0, 0]
    assert chosen(table, None) == 0


MATCHES: list[tuple[dict[str, Any], dict[str, Any], bool]] = [
    ({"rollout": ".*"}, {"rollout": "r1"}, True),
    ({"rollout": ".*"}, {}, False),
    ({"rollout": "eval-.*"}, {"rollout": "eval-1"}, True),
    ({"rollout": "eval-.*"}, {"rollout": "no-eval-1"}, False),
    ({"agent": "writer"}, {"agent": "writer"}, True),
    ({"agent": "writer"}, {"agent": "rewriter"}, False),
    ({"system": "writ(er|ing)"}, {"system": "You are a writer."}, True),
    ({"system": "^writer"}, {"system": "You are a writer."}, False),
    ({"system": "x"}, {"system": "-" * 16_384 + "x"}, False),
    ({"header": {"x-team": "a|b"}}, {"headers": {"x-team": "b"}}, True),
    ({"header": {"x-team": "a|b"}}, {"headers": {"x-team": "ab"}}, False),
    ({"header": {"x-team": ".*"}}, {}, False),
    ({"rollout": ".*", "agent": "writer"}, {"rollout": "r"}, False),
    ({"rollout": ".*", "agent": "writer"}, {"rollout": "r", "agent": "writer"}, True),
    ({}, {}, True),
]


@pytest.mark.parametrize(("match", "call", "holds"), MATCHES)
def test_all_parts_of_a_match_must_hold(match: dict[str, Any], call: dict[str, Any], holds: bool) -> None:
    table = routes({"name": "m"}, {"name": "m", "match": match}) if match else routes({"name": "m", "match": match})
    assert chosen(table, "m", **call) == (table.entries[-1] is not None and int(holds and len(table.entries) > 1))
    alone = routes({"name": "m", "match": match})
    assert chosen(alone, "m", **call) == (0 if holds else None)


def test_of_one_name_those_with_a_match_come_first_and_in_order() -> None:
    table = routes(
        {"name": "m"},
        {"name": "m", "match": {"rollout": "a.*"}},
        {"name": "m", "match": {"rollout": ".*"}},
        {"name": "*", "match": {"rollout": ".*"}},
        {"name": "*"},
    )
    assert [chosen(table, "m", rollout=one) for one in ("ab", "b", None)] == [1, 2, 0]
    assert [chosen(table, "other", rollout=one) for one in ("ab", None)] == [3, 4]
    assert [chosen(table, None, rollout=one) for one in ("ab", None)] == [3, 4]


def test_a_name_that_fits_but_does_not_match_falls_to_the_next() -> None:
    table = routes(
        {"name": "gpt-4o", "match": {"rollout": ".*"}}, {"name": "gpt*", "match": {"agent": "x"}}, {"name": "*"}
    )
    assert chosen(table, "gpt-4o", rollout="r") == 0
    assert chosen(table, "gpt-4o", agent="x") == 1
    assert chosen(table, "gpt-4o") == 2


ENTRY = st.fixed_dictionaries(
    {
        "name": st.sampled_from(["a", "ab", "a*", "*b", "*"]),
        "match": st.sampled_from([None, {"rollout": "r"}, {"agent": "x"}, {"rollout": "r", "agent": "x"}]),
    }
)


@given(
    st.lists(ENTRY, min_size=1, max_size=8, unique_by=lambda one: (one["name"], str(one["match"]))),
    st.sampled_from(["a", "ab", "abb", "c"]),
    st.sampled_from([None, "r"]),
    st.sampled_from([None, "x"]),
)
def test_the_rule_as_it_is_documented(
    entries: list[dict[str, Any]], model: str, rollout: str | None, agent: str | None
) -> None:
    call = {"rollout": rollout, "agent": agent}

    def holds(entry: dict[str, Any]) -> bool:
        name = re.fullmatch(entry["name"].replace("*", ".*"), model)
        return name is not None and all(call[part] == value for part, value in (entry["match"] or {}).items())

    def place(number: int) -> tuple[int, bool, int]:
        name = entries[number]["name"]
        return 2 if name == "*" else 1 if "*" in name else 0, entries[number]["match"] is None, number

    expected = min((number for number, entry in enumerate(entries) if holds(entry)), key=place, default=None)
    assert chosen(routes(*entries), model, **call) == expected


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ([{"name": "a"}, {"name": "a"}], "same name 'a' and the same match"),
        ([{"name": "a", "match": {"agent": "x"}}, {"name": "a", "match": {"agent": "x"}}], "never reached"),
        ([{"name": "a"}, {"name": "a", "match": {}}], "never reached"),
        ([{"name": "a", "match": {"system": "("}}], "bad match of .* 'a': system: .*unclosed group"),
        ([{"name": "a", "match": {"header": {"x-y": "("}}}], "header x-y"),
        ([{"name": "a", "match": {"user": "x"}}], "match.user"),
        ([{"name": ""}], "name"),
        ([{"name": "a", "served": ""}], "served"),
    ],
)
def test_entries_that_cannot_be_meant_are_refused(entries: list[dict[str, Any]], said: str) -> None:
    with pytest.raises((SettingsError, ValueError), match=said):
        routes(*entries)


def test_names_that_agents_make_up_do_not_pile_up() -> None:
    table = routes({"name": "*"})
    for number in range(5000):
        assert chosen(table, f"model-{number}") == 0
    assert len(table._by_model) <= 1000


async def test_rollouts_go_to_the_policy_and_the_rest_to_a_provider(
    harness_for: Any, fake: FakeVllm, another_fake: Any
) -> None:
    async with another_fake() as provider:
        harness = await harness_for(
            {"name": "gpt-4*", "upstream": provider.url},
            {
                "name": "gpt-4*",
                "upstream": fake.url,
                "policy": "policy",
                "served": "policy",
                "match": {"rollout": ".*", "system": "writer", "header": {"X-Team": "a"}},
            },
        )
        writer = {"messages": [{"role": "system", "content": "You are a writer"}], "model": "gpt-4o"}
        policy = await harness.chat(writer, at="/rollout/r/v1", x_team="a")
        assert (await policy.json())["model"] == "policy", "as the engine answers"
        assert fake.requests[0]["model"] == "policy"
        for body, at, team in (
            (writer, "/v1", "a"),
            ({"model": "gpt-4o"}, "/rollout/r/v1", "a"),
            (writer, "/rollout/r/v1", "b"),
        ):
            answer = await harness.chat(body, at=at, x_team=team)
            assert (await answer.json())["model"] == provider.requests[-1]["model"] == "gpt-4o"
        assert (len(fake.requests), len(provider.requests)) == (1, 3)
        spans = await harness.receiver.wait(4)
        first, *others = sorted(spans, key=lambda span: not span.attributes["tracegrad.trainable"])
        assert first.attributes["gen_ai.request.model"] == "gpt-4o"
        assert first.attributes["gen_ai.response.model"] == "policy"
        assert first.attributes["tracegrad.trainable"] is True
        assert {one.attributes["tracegrad.untrainable.reason"] for one in others} == {"passthrough"}
        assert {one.attributes["tracegrad.rollout.id"] for one in others} >= {"r"}


async def test_the_request_names_the_model_as_its_upstream_knows_it(harness_for: Any, fake: FakeVllm) -> None:
    harness = await harness_for({"name": "fast", "upstream": fake.url, "served": "policy"})
    await harness.chat({"model": "fast"})
    await harness.chat({"model": "fast", "stream": True})
    assert [one["model"] for one in fake.requests] == ["policy", "policy"]
    for span in await harness.receiver.wait(2):
        assert span.attributes["gen_ai.request.model"] == "fast"
        assert span.attributes["gen_ai.response.model"] == "policy"


async def test_streams_of_a_policy_under_another_name(harness_for: Any, fake: FakeVllm) -> None:
    harness = await harness_for({"name": "gpt-4o", "upstream": fake.url, "policy": "policy", "served": "policy"})
    answer = await (await harness.chat({"model": "gpt-4o", "stream": True})).read()
    direct = await harness.session.post(
        f"{fake.url}/v1/chat/completions",
        json={"model": "policy", "stream": True, "messages": [{"role": "user", "content": "Hi"}]},
    )
    assert answer == await direct.read()
    assert (await harness.receiver.one()).attributes["tracegrad.trainable"] is True


async def test_a_model_that_nobody_serves_says_which_are(harness_for: Any, fake: FakeVllm) -> None:
    harness: Harness = await harness_for(
        {"name": "policy", "upstream": fake.url, "policy": "policy"},
        {"name": "eval", "upstream": fake.url, "match": {"rollout": ".*"}},
    )
    unknown = await harness.chat({"model": "gpt-5"})
    assert unknown.status == 404
    error = (await unknown.json())["error"]
    assert error["code"] == "model_not_found"
    assert "policy, eval" in error["message"]
    unmatched = await harness.chat({"model": "eval"})
    assert (unmatched.status, "no `match`" in (await unmatched.json())["error"]["message"]) == (404, True)
    assert (await harness.chat({"model": "eval"}, at="/rollout/r/v1")).status == 200
    refused = [span for span in await harness.receiver.wait(3) if span.attributes.get("error.type")]
    assert [span.attributes["error.type"] for span in refused] == ["model_not_found"] * 2
    anthropic = await harness.session.post(f"{harness.url}/v1/messages", json={"model": "x", "messages": []})
    assert (anthropic.status, (await anthropic.json())["error"]["message"]) == (
        404,
        error["message"].replace("gpt-5", "x"),
    )


def listing(table: Routes, **listed: list[str]) -> list[tuple[str, str]]:
    found = merged(
        table, {f"http://{url[1:]}": [{"id": one, "owned_by": url} for one in ids] for url, ids in listed.items()}
    )
    assert all(model["id"] == name for name, model in found.items())
    return [(name, model["owned_by"]) for name, model in found.items()]


def test_the_list_shows_what_a_call_may_reach_and_our_own_names() -> None:
    table = routes({"name": "gpt-4o", "served": "policy"}, {"name": "*"})
    assert listing(table, u0=["policy", "other"], u1=["policy", "big"]) == [
        ("gpt-4o", "u0"),
        ("policy", "u1"),
        ("big", "u1"),
    ]
    matched = routes({"name": "*", "match": {"rollout": ".*"}, "served": "policy"}, {"name": "*"})
    assert listing(matched, u0=["policy"], u1=["big"]) == [("policy", "u0"), ("big", "u1")]
    assert listing(routes({"name": "a", "served": "absent"}), u0=["policy"]) == []
    two = routes({"name": "policy"}, {"name": "gpt-4o", "upstream": "http://0", "served": "policy"})
    assert listing(two, u0=["policy"]) == [("policy", "u0"), ("gpt-4o", "u0")]


async def test_an_alias_is_a_model_like_any_other(harness_for: Any, fake: FakeVllm) -> None:
    harness = await harness_for({"name": "gpt-4o", "upstream": fake.url, "policy": "policy", "served": "policy"})
    listed = await (await harness.session.get(f"{harness.url}/v1/models")).json()
    assert [one["id"] for one in listed["data"]] == ["gpt-4o"]
    shown = await harness.session.get(f"{harness.url}/v1/models/gpt-4o")
    assert (shown.status, (await shown.json())["owned_by"]) == (200, "vllm")
    assert (await harness.session.get(f"{harness.url}/v1/models/policy")).status == 404


def test_one_policy_under_several_names_and_matches() -> None:
    table = routes(
        {"name": "policy", "policy": "p", "upstream": ["http://e", "http://f"]},
        {"name": "gpt-4o", "policy": "p", "upstream": "http://e", "served": "policy", "match": {"rollout": ".*"}},
        {"name": "gpt-4o"},
    )
    assert list(table.policies) == ["p"]
    assert [one.url for one in table.policies["p"].replicas] == ["http://e", "http://f"]
    assert [chosen(table, "gpt-4o", rollout=one) for one in ("r", None)] == [1, 2]
    assert isinstance(table.default, Route)
    assert table.default.name == "policy"
