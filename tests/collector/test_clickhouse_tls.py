"""ClickHouse HTTP with a certificate: own processes trust it by their configuration, others need one of their own."""

import json
import os
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from certificates import Authority, authority

from tracegrad import clickhouse
from tracegrad.errors import SettingsError, TracegradError
from tracegrad.settings import Settings, load
from tracegrad.store_tls import context_of, files_of


@pytest.fixture(scope="module")
def trusted(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def configured(tmp_path_factory: pytest.TempPathFactory, trusted: Authority, start: Any) -> Iterator[Path]:
    """The configuration of a running collector that asks for certificates."""
    home = tmp_path_factory.mktemp("tls")
    cert, key = trusted.certify("collector")
    ours, our_key = trusted.certify("ours")
    file = home / "tracegrad.toml"
    text = f"""
otlp_ca = "{trusted.file}"
otlp_cert = "{ours}"
otlp_key = "{our_key}"
[collector]
data = "{home / "store"}"
tls_cert = "{cert}"
tls_key = "{key}"
tls_client_ca = "{trusted.file}"
"""
    file.write_text(text)
    with start(home / "store", "--config", str(file)) as started:
        assert started.clickhouse.startswith("https://127.0.0.1:")
        file.write_text(f"{text}clickhouse_port = {started.clickhouse.rpartition(':')[2]}\n")
        yield file
        log = started.log.read_text()
    assert "Traceback" not in log


def test_own_processes_read_and_write(configured: Path) -> None:
    settings = load(configured, environ={})
    client = clickhouse.connect(settings.clickhouse_to_write)
    client.command("CREATE TABLE mine (k UInt8) ENGINE = Memory")
    client.insert("mine", [[7]], column_names=["k"])
    client.close()
    reader = clickhouse.connect(settings.clickhouse)
    assert reader.query("SELECT k, currentDatabase() FROM mine").first_row == (7, "otel")
    reader.close()
    asked = [sys.executable, "-m", "tracegrad", "sql", "--config", str(configured), "--json", "SELECT 1 AS one"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TRACEGRAD_")}
    done = subprocess.run(asked, env=environment, capture_output=True, check=False, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"one": 1}


def test_nobody_else_gets_in(configured: Path, trusted: Authority) -> None:
    address = clickhouse.shown(load(configured, environ={}).clickhouse)
    stranger = ssl.create_default_context(cafile=trusted.file)
    with pytest.raises((urllib.error.URLError, OSError)):
        urllib.request.urlopen(address, b"SELECT 1", timeout=30, context=stranger)
    with pytest.raises((urllib.error.URLError, OSError)):
        urllib.request.urlopen(address.replace("https", "http"), b"SELECT 1", timeout=30)
    with pytest.raises(TracegradError):
        clickhouse.connect(address)


def test_files_of_an_address(tmp_path: Path) -> None:
    url = "https://writer:pw@h:8123?ca_cert=/a%20b.pem"
    assert files_of(url) == {"ca_cert": "/a b.pem"}
    assert clickhouse.shown(url) == "https://h:8123"
    assert context_of("http://h:8123") is None
    with pytest.raises(SettingsError, match="cannot be used"):
        context_of(f"https://h:8123?ca_cert={tmp_path / 'absent'}")
    with pytest.raises(SettingsError, match="has a parameter 'verify'"):
        files_of("https://h:8123?verify=0")


def test_the_default_address_follows_the_certificate(tmp_path: Path) -> None:
    collector = {"tls_cert": tmp_path / "c.pem", "tls_key": tmp_path / "c.key"}
    plain = Settings.model_validate({"collector": collector})
    assert plain.clickhouse == "https://127.0.0.1:8123"
    trusting = Settings.model_validate({"collector": collector, "otlp_ca": tmp_path / "ca.pem"})
    assert files_of(trusting.clickhouse) == {"ca_cert": str(tmp_path / "ca.pem")}
    given = Settings.model_validate({"collector": collector, "clickhouse": "http://h:1"})
    assert given.clickhouse == "http://h:1"
