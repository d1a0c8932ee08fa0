"""A ClickHouse server as the collector's store: its address, its password, and what follows for everybody else."""

from pathlib import Path

import pytest

from tracegrad import settings
from tracegrad.errors import SettingsError
from tracegrad.services import as_environment, services
from tracegrad.store_address import store_address


def configured(directory: Path, text: str, **environ: str) -> settings.Settings:
    file = directory / "tracegrad.toml"
    file.write_text("[collector]\n" + text)
    return settings.load(file, environ)


def test_an_address_with_everything() -> None:
    found = store_address(
        "clickhouse://a%40b:p%3Aw@h.example:9443/otel?secure=1&verify=0&ca_cert=/ca.pem&compression=zstd"
        "&connect_timeout=3&send_receive_timeout=60&insert_quorum=2&insert_quorum_timeout=5000"
    )
    assert (found.host, found.port, found.secure, found.user, found.password) == ("h.example", 9443, True, "a@b", "p:w")
    assert (found.verify, found.ca_cert, found.compression) == (False, "/ca.pem", "zstd")
    assert (found.connect_timeout, found.send_receive_timeout) == (3, 60)
    assert found.settings == {"insert_quorum": "2", "insert_quorum_timeout": "5000"}
    assert found.http_url("s/ecret") == "https://a%40b:s%2Fecret@h.example:9443?ca_cert=%2Fca.pem"
    assert str(found) == "clickhouses://h.example:9443"
    assert "p:w" not in repr(found)


@pytest.mark.parametrize(
    ("url", "host", "port", "secure"),
    [
        ("clickhouse://h", "h", 8123, False),
        ("clickhouse://h/", "h", 8123, False),
        ("clickhouse://h?secure=true", "h", 8443, True),
        ("clickhouses://h", "h", 8443, True),
        ("clickhouses://h?secure=0", "h", 8123, False),
        ("clickhouse://[::1]:1/otel", "::1", 1, False),
    ],
)
def test_ports_follow_from_the_scheme(url: str, host: str, port: int, secure: bool) -> None:
    found = store_address(url)
    assert (found.host, found.port, found.secure) == (host, port, secure)
    assert store_address(found.http_url("").replace("http", "clickhouse")).port == port


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("postgres://h", "neither chdb nor an address"),
        ("clickhouse://", "neither chdb nor an address"),
        ("clickhouse://h:port", "not an address"),
        ("clickhouse://h/other", "names database 'other'"),
        ("clickhouse://u:se#cret@h", "not an address"),
        ("clickhouse://u:1#cret@h", "# as %23"),
        ("clickhouse://u:1/cret@h", "/ as %2F"),
        ("clickhouse://u:1?cret@h", r"\? as %3F"),
        ("clickhouse://u:secret@h#x", "# as %23"),
        ("clickhouse://h?secure=perhaps", "secure=perhaps: give 1 or 0"),
        ("clickhouse://h?compression=br", "there are zstd"),
        ("clickhouse://h?connect_timeout=0", "give whole seconds"),
        ("clickhouse://h?ca_cert=", "ca_cert without a value"),
        ("clickhouse://h?a=1&a=2", "names a twice"),
        ("clickhouse://h?Bad-Name=1", "not the name of a setting"),
        ("clickhouse://h?async_insert=1", "sets async_insert, which is the collector's own"),
        ("clickhouse://h?wait_for_async_insert=0", "sets wait_for_async_insert"),
        ("clickhouse://h?password=secret", "sets password"),
    ],
)
def test_what_is_wrong_with_an_address_is_said_without_the_password(tmp_path: Path, url: str, why: str) -> None:
    with pytest.raises(ValueError, match=why) as refused:
        store_address(url)
    assert "cret" not in str(refused.value)
    with pytest.raises(SettingsError, match=rf"\[collector\] store .*({why})") as refused_setting:
        configured(tmp_path, f'store = "{url}"')
    assert "cret" not in str(refused_setting.value)


def test_the_password_is_kept_in_one_place(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("from a file\n")
    address = 'store = "clickhouse://writer@h"\n'
    for text in ('store_password = "from a file"', f'store_password_file = "{tmp_path}/password"'):
        chosen = configured(tmp_path, address + text)
        assert chosen.collector.read_store_password() == "from a file"
        assert chosen.clickhouse == "http://writer:from%20a%20file@h:8123"
        assert "from" not in repr(chosen.collector)
    assert configured(tmp_path, 'store = "clickhouse://w:in-it@h"').collector.read_store_password() == "in-it"
    with pytest.raises(SettingsError, match="keep it in one place"):
        configured(tmp_path, 'store = "clickhouse://w:p@h"\nstore_password = "q"')
    with pytest.raises(SettingsError, match="given more than once"):
        configured(tmp_path, address + 'store_password = "q"\nstore_password_env = "Q"')
    with pytest.raises(SettingsError, match="needs a user"):
        configured(tmp_path, 'store = "clickhouse://h"\nstore_password = "q"')


def test_who_cannot_read_the_password_still_finds_the_server(tmp_path: Path) -> None:
    chosen = configured(tmp_path, 'store = "clickhouse://w@h"\nstore_password_env = "NOT_THERE"')
    assert chosen.clickhouse == "http://w@h:8123"
    with pytest.raises(SettingsError, match="NOT_THERE is not set"):
        chosen.collector.read_store_password()


def test_readers_ask_the_server_unless_told_otherwise(tmp_path: Path) -> None:
    text = 'store = "clickhouses://w:p@h/otel"'
    assert configured(tmp_path, text).clickhouse == "https://w:p@h:8443"
    assert configured(tmp_path, text, TRACEGRAD_CLICKHOUSE="http://other:1").clickhouse == "http://other:1"
    assert settings.load(environ={"TRACEGRAD_COLLECTOR_STORE": "clickhouse://e"}).clickhouse == "http://e:8123"


def test_up_starts_a_collector_without_sql_and_passes_no_password_on(tmp_path: Path) -> None:
    chosen = configured(tmp_path, 'store = "clickhouse://w:hush@h"')
    collector = services(chosen, None, None)[0]
    assert collector.ports == (4318, 4317)
    assert collector.ready_url == "http://127.0.0.1:4318/healthz"
    assert "hush" not in " ".join(as_environment(chosen).values())
    assert "hush" not in " ".join(collector.argv)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("", {}),
        ('ttl = "30d"', {"traces": "30d", "logs": "30d", "metrics": "30d"}),
        ('ttl = "30d"\nttl_logs = "forever"\nttl_metrics = "012h"', {"traces": "30d", "metrics": "12h"}),
        ('ttl_traces = "4w"', {"traces": "4w"}),
        ('ttl = "forever"', {}),
    ],
)
def test_how_long_rows_are_kept(tmp_path: Path, text: str, kept: dict[str, str]) -> None:
    assert configured(tmp_path, text).collector.kept == kept


@pytest.mark.parametrize("text", ["30", "d", "1.5d", "-1d", "0d", "3m", "100000d", "30 d", "٣d"])
def test_times_that_are_none(tmp_path: Path, text: str) -> None:
    with pytest.raises(SettingsError, match=r"\[collector\] ttl .*(12h, 30d or 4w|kept from 1h)"):
        configured(tmp_path, f'ttl = "{text}"')


@pytest.mark.parametrize("name", ["a b", "a'b", "a;b"])
def test_a_cluster_has_a_plain_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(SettingsError, match=r"\[collector\] cluster"):
        configured(tmp_path, f'cluster = "{name}"')
