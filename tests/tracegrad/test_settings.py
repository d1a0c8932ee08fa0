"""Defaults, then the file, then the environment; one clear line for what is wrong."""

from pathlib import Path

import pytest

from tracegrad import settings
from tracegrad.errors import SettingsError


def test_defaults_bind_to_loopback_on_the_documented_ports() -> None:
    chosen = settings.load(environ={})
    assert (chosen.sidecar.host, chosen.sidecar.port, chosen.sidecar.admin_port) == ("127.0.0.1", 8088, 8089)
    assert (chosen.collector.host, chosen.collector.otlp_http_port) == ("127.0.0.1", 4318)
    assert (chosen.collector.clickhouse_port, chosen.vllm.port) == (8123, 8000)
    assert chosen.clickhouse == "http://127.0.0.1:8123"


def test_environment_wins_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "tracegrad.toml"
    file.write_text('clickhouse = "http://a:1"\n[sidecar]\nport = 1000\nadmin_port = 1001\n')
    chosen = settings.load(file, {"TRACEGRAD_SIDECAR_PORT": "2000", "TRACEGRAD_CLICKHOUSE": "http://b:2"})
    assert (chosen.sidecar.port, chosen.sidecar.admin_port, chosen.clickhouse) == (2000, 1001, "http://b:2")


def test_command_line_wins_over_all() -> None:
    chosen = settings.load(environ={"TRACEGRAD_SIDECAR_PORT": "2000"}).with_values(
        "sidecar", port=3000, admin_port=None
    )
    assert (chosen.sidecar.port, chosen.sidecar.admin_port) == (3000, 8089)


def test_model_routes(tmp_path: Path) -> None:
    file = tmp_path / "tracegrad.toml"
    file.write_text(
        '[[model]]\nname = "policy"\nupstream = ["http://a:1/v1/", "http://b:2"]\npolicy = "p"\n'
        '[[model]]\nname = "*"\nupstream = "http://c:3"\napi_key = "secret-value"\n'
    )
    first, rest = settings.load(file, {}).routes
    assert (first.upstreams, first.policy) == (("http://a:1", "http://b:2"), "p")
    assert rest.policy is None
    assert "secret-value" not in repr(rest), "a key must not show in logs"


def test_without_routes_every_model_is_the_policy_of_the_local_engine() -> None:
    (only,) = settings.load(environ={"TRACEGRAD_VLLM_PORT": "8001"}).routes
    assert (only.name, only.upstreams, only.policy) == ("*", ("http://127.0.0.1:8001",), "policy")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[sidecar]\nport = 70000\n", r"\[sidecar\] port"),
        ("[sidecar]\nprot = 1\n", r"prot in \[sidecar\]"),
        ("[sidecar\n", "not TOML"),
    ],
)
def test_a_bad_file_is_one_line_that_names_the_setting(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "bad.toml"
    file.write_text(text)
    with pytest.raises(SettingsError, match=said) as caught:
        settings.load(file, {})
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="no configuration file"):
        settings.load(tmp_path / "absent.toml", {})


def test_addresses_follow_the_ports(tmp_path: Path) -> None:
    file = tmp_path / "tracegrad.toml"
    file.write_text("[sidecar]\nport = 9000\nadmin_port = 9001\n[collector]\nclickhouse_port = 9123\n")
    chosen = settings.load(file, {"TRACEGRAD_COLLECTOR_OTLP_HTTP_PORT": "5318"})
    assert (chosen.sidecar_url, chosen.sidecar_admin_url) == ("http://127.0.0.1:9000", "http://127.0.0.1:9001")
    assert (chosen.clickhouse, chosen.otlp) == ("http://127.0.0.1:9123", "http://127.0.0.1:5318")
    assert chosen.with_values("sidecar", port=9002).sidecar_url == "http://127.0.0.1:9002"
    elsewhere = settings.load(file, {"TRACEGRAD_CLICKHOUSE": "http://store:1/"})
    assert elsewhere.with_values("collector", clickhouse_port=7).clickhouse == "http://store:1", "a given one stays"


@pytest.mark.parametrize("address", ["http://h:99999", "ftp://h", "localhost:8123", "http://"])
def test_a_bad_address_is_one_line(address: str) -> None:
    with pytest.raises(SettingsError, match="bad setting clickhouse") as caught:
        settings.load(environ={"TRACEGRAD_CLICKHOUSE": address})
    assert "\n" not in str(caught.value)


def test_a_directory_as_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be read"):
        settings.load(tmp_path, {})


def test_engine_arguments_from_the_environment() -> None:
    chosen = settings.load(environ={"TRACEGRAD_VLLM_ARGS": "--dtype float32 --seed 1"})
    assert chosen.vllm.args == ("--dtype", "float32", "--seed", "1")


def test_an_upstream_is_an_address_without_a_password(tmp_path: Path) -> None:
    file = tmp_path / "tracegrad.toml"
    for upstream in ("nonsense", "http://h:bad", "http://user:s3cret@h:1"):
        file.write_text(f'[[model]]\nname = "m"\nupstream = "{upstream}"\n')
        with pytest.raises(SettingsError, match=r"\[\[model\]\] 'm' upstream") as caught:
            settings.load(file, {})
        assert "s3cret" not in str(caught.value)
    assert settings.load(environ={"TRACEGRAD_CLICKHOUSE": "http://bob:pw@h:1"}).clickhouse == "http://bob:pw@h:1"
    with pytest.raises(SettingsError, match="bad setting otlp"):
        settings.load(environ={"TRACEGRAD_OTLP": "http://bob:pw@h:1"})


def test_nonsense_around_sections_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "tracegrad.toml"
    file.write_text("sidecar = 3\n")
    with pytest.raises(SettingsError, match="it is a section"):
        settings.load(file, {"TRACEGRAD_SIDECAR_PORT": "1"})
    with pytest.raises(SettingsError, match="No closing quotation"):
        settings.load(environ={"TRACEGRAD_VLLM_ARGS": '"unclosed'})


def test_agents_and_operators_have_a_port_each() -> None:
    with pytest.raises(SettingsError, match="port and admin_port are both 9000") as caught:
        settings.load(environ={"TRACEGRAD_SIDECAR_PORT": "9000", "TRACEGRAD_SIDECAR_ADMIN_PORT": "9000"})
    assert "\n" not in str(caught.value)
    with pytest.raises(SettingsError, match="a port each"):
        settings.load(environ={}).with_values("sidecar", port=8089)
    settings.load(environ={}).with_values("sidecar", port=8089, host="192.0.2.1")
    settings.load(environ={"TRACEGRAD_SIDECAR_PORT": "0", "TRACEGRAD_SIDECAR_ADMIN_PORT": "0"})
