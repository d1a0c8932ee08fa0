"""Whose key opens what, and where no key is ever seen."""

import hashlib
import hmac
import logging
from pathlib import Path
from typing import Any

import pytest
from fake_vllm import FakeVllm
from sidecar_harness import Harness
from sidecar_process import until

from sidecar import tenants
from sidecar.operation import warn_of_risks
from sidecar.tenants import Key, owner_of, presented_key, tenant_keys, with_digests
from tracegrad import settings
from tracegrad.errors import SettingsError
from tracegrad.settings import Settings

RED, BLUE, PROVIDER = "key-of-red-1f", "key-of-blue-2e", "sk-provider-3d"
TENANTS = [{"name": "red", "key": RED}, {"name": "blue", "key_sha256": hashlib.sha256(BLUE.encode()).hexdigest()}]


@pytest.fixture
async def guarded(harness_for: Any, fake: FakeVllm, tmp_path: Path) -> Harness:
    models = (
        {"name": "policy", "policy": "policy", "upstream": fake.url},
        {"name": "paid", "upstream": fake.url, "api_key": PROVIDER},
        {"name": "open", "upstream": fake.url},
    )
    log = str(tmp_path / "access.log")
    started: Harness = await harness_for(*models, tenant=TENANTS, limits={"access_log": log})
    return started


@pytest.mark.parametrize(
    ("headers", "tenant"),
    [
        ({"authorization": f"Bearer {RED}"}, "red"),
        ({"authorization": f"bearer  {BLUE}"}, "blue"),
        ({"x-api-key": BLUE}, "blue"),
        ({"api-key": BLUE}, "blue"),
        ({"authorization": "Basic eHg6eHg=", "x-api-key": RED}, "red"),
    ],
)
async def test_a_tenants_key_opens_and_names_it(guarded: Harness, headers: dict[str, str], tenant: str) -> None:
    answer = await guarded.chat({}, **headers)
    assert answer.status == 200
    assert (await guarded.receiver.one()).attributes["tracegrad.tenant"] == tenant


@pytest.mark.parametrize(
    "headers", [{}, {"authorization": "Bearer "}, {"authorization": f"Bearer {RED}x"}, {"x-api-key": RED[:-1]}]
)
async def test_any_other_key_is_refused_in_the_apis_own_shape(
    guarded: Harness, fake: FakeVllm, headers: dict[str, str]
) -> None:
    answer = await guarded.chat({}, **headers)
    assert (answer.status, (await answer.json())["error"]["code"]) == (401, "invalid_api_key")
    answer = await guarded.session.post(f"{guarded.url}/v1/messages", json={"model": "policy"}, headers=headers)
    assert (answer.status, (await answer.json())["error"]["type"]) == (401, "authentication_error")
    for path in ("/v1/models", "/echo", "/v1/feedback"):
        assert (await guarded.session.get(f"{guarded.url}{path}", headers=headers)).status == 401
    assert fake.headers == []


async def test_a_tenants_key_goes_nowhere(
    guarded: Harness, fake: FakeVllm, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    for model, headers in (
        ("policy", {"authorization": f"Bearer {RED}"}),
        ("paid", {"authorization": f"Bearer {RED}", "x-api-key": BLUE}),
        ("open", {"x-api-key": BLUE}),
        ("open", {"api-key": BLUE}),
        ("paid", {"api-key": RED}),
        ("nothing", {"authorization": f"Bearer {RED}"}),
    ):
        await guarded.chat({"model": model}, **headers)
    await guarded.session.get(f"{guarded.url}/echo?api_key={RED}", headers={"x-api-key": RED})
    await guarded.session.get(f"{guarded.url}/echo?key={BLUE}")
    policy, paid, unpaid, _, azure = fake.headers
    assert "authorization" not in policy
    assert (paid["x-api-key"], paid.get("authorization")) == (PROVIDER, None), "in the header where the client's was"
    assert "authorization" not in unpaid
    assert (azure["api-key"], azure.get("authorization")) == (PROVIDER, None)
    spans = await guarded.receiver.wait(6)
    metrics = await (await guarded.session.get(f"{guarded.admin}/metrics")).text()
    log = tmp_path / "access.log"
    await until(lambda: log.read_text().count("\n") == 8)
    lines = log.read_text()
    for secret in (RED, BLUE, PROVIDER):
        for place in (fake.headers[0], fake.headers[2], *spans, metrics, lines, caplog.text, repr(guarded)):
            assert secret not in str(place)
    assert RED not in str(fake.headers)
    assert BLUE not in str(fake.headers)


async def test_without_tenants_the_clients_own_key_goes_to_the_provider(harness_for: Any, fake: FakeVllm) -> None:
    models = ({"name": "paid", "upstream": fake.url, "api_key": PROVIDER}, {"name": "*", "upstream": fake.url})
    harness = await harness_for(*models)
    await harness.chat({"model": "mine"}, authorization="Bearer sk-mine")
    await harness.chat({"model": "paid"}, authorization="Bearer sk-mine")
    await harness.chat({"model": "paid"})
    assert [one["authorization"] for one in fake.headers] == ["Bearer sk-mine", *[f"Bearer {PROVIDER}"] * 2]


def test_every_key_is_compared_in_constant_time_whichever_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[int, int]] = []
    genuine = hmac.compare_digest

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((len(one), len(other)))
        return genuine(one, other)

    monkeypatch.setattr(tenants.hmac, "compare_digest", compare)
    keys = [Key.of(name, f"key {name}") for name in "abc"]
    texts = ("key a", "key c", "key d", "", None, "k" * 10_000, "\udcff")
    assert [owner_of(keys, text) for text in texts] == ["a", "c", None, None, None, None, None]
    assert compared == [(32, 32)] * 21


def test_a_key_may_be_kept_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "key").write_text(f"{RED}\n")
    monkeypatch.setenv("BLUE_KEY", BLUE)
    entries = [{"name": "red", "key_file": tmp_path / "key"}, {"name": "blue", "key_env": "BLUE_KEY"}]
    keys = tenant_keys(Settings.model_validate({"tenant": entries}))
    assert [owner_of(keys, text) for text in (RED, BLUE)] == ["red", "blue"]
    monkeypatch.delenv("BLUE_KEY")
    with pytest.raises(SettingsError, match=r"BLUE_KEY is not set: .*blue"):
        tenant_keys(Settings.model_validate({"tenant": entries}))
    (tmp_path / "key").unlink()
    with pytest.raises(SettingsError, match=r"red.* cannot be read"):
        tenant_keys(Settings.model_validate({"tenant": entries}))


def test_a_tenant_may_have_two_keys_but_a_key_one_tenant() -> None:
    both = Settings.model_validate({"tenant": [{"name": "red", "key": RED}, {"name": "red", "key": BLUE}]})
    assert [owner_of(tenant_keys(both), text) for text in (RED, BLUE)] == ["red", "red"]
    with pytest.raises(SettingsError, match="have the same key") as caught:
        tenant_keys(Settings.model_validate({"tenant": [{"name": "red", "key": RED}, {"name": "blue", "key": RED}]}))
    assert RED not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[[tenant]]\nname = "a"\n', "exactly one"),
        ('[[tenant]]\nname = "a"\nkey = "sekret"\nkey_env = "X"\n', "more than once"),
        ('[[tenant]]\nname = "a"\nkey = "sekret"\nkey_sha256 = "00"\n', "key_sha256"),
        ('[[tenant]]\nname = "a b"\nkey = "sekret"\n', "name"),
    ],
)
def test_a_bad_tenant_is_one_line_without_its_key(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "bad.toml").write_text(text)
    with pytest.raises(SettingsError, match=said) as caught:
        settings.load(tmp_path / "bad.toml", {})
    assert "\n" not in str(caught.value)
    assert "sekret" not in str(caught.value)


def test_workers_learn_digests_alone() -> None:
    given = Settings.model_validate({"tenant": TENANTS, "sidecar": {"port": 1, "admin_key": PROVIDER}})
    told = with_digests(given).to_json()
    assert RED.encode() not in told
    assert PROVIDER.encode() not in told
    assert tenant_keys(Settings.from_json(told)) == tenant_keys(given)
    assert Settings.from_json(told).sidecar.port == 1


def test_what_is_seldom_meant_is_said(caplog: pytest.LogCaptureFixture) -> None:
    warn_of_risks(Settings.model_validate({"tenant": TENANTS, "model": [{"name": "gpt-5"}]}))
    assert "model gpt-5 has no api_key" in caplog.text
    caplog.clear()
    warn_of_risks(Settings.model_validate({"sidecar": {"host": "0.0.0.0", "admin_host": "0.0.0.0"}}))  # noqa: S104
    assert "admin port is open" in caplog.text
    assert "agents' port is open" in caplog.text
    caplog.clear()
    warn_of_risks(Settings())
    assert caplog.text == ""


async def test_the_admin_port_may_ask_for_a_key(harness_for: Any, fake: FakeVllm) -> None:
    model = {"name": "policy", "policy": "policy", "upstream": fake.url}
    harness = await harness_for(model, limits={"admin_key": RED})
    for path in ("/policies", "/metrics", "/prompts"):
        answer = await harness.session.get(f"{harness.admin}{path}")
        assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")
        for headers in ({"authorization": f"Bearer {RED}"}, {"x-api-key": RED}):
            assert (await harness.session.get(f"{harness.admin}{path}", headers=headers)).status == 200
    assert (await harness.session.post(f"{harness.admin}/reload")).status == 401
    assert (await harness.session.post(f"{harness.admin}/policies/policy/pause")).status == 401
    for path in ("/healthz", "/readyz"):
        assert (await harness.session.get(f"{harness.admin}{path}")).status == 200
    assert (await harness.chat({})).status == 200, "agents need no key for that"


def test_a_key_is_found_in_either_header() -> None:
    assert presented_key({"authorization": "Bearer a", "x-api-key": "b"}) == "a"
    assert presented_key({"x-api-key": "b"}) == "b"
    assert presented_key({"authorization": "Token a"}) is None
