"""The command line: examples in every help, statuses 0, 1 and 2, one line on stderr, nothing secret in it."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

COMMANDS = ["up", "sidecar", "collector", "rollout", "reward", "train", "transitions", "sql", "doctor", "demo"]
NOBODY = "http://127.0.0.1:9"


def tracegrad(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tracegrad", *arguments],
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example_and_the_configuration_file(command: str) -> None:
    result = tracegrad(command, "--help", COLUMNS="80")
    assert result.returncode == 0
    assert re.search(rf"Example:\s+tracegrad {command}\b", result.stdout)
    assert "--config" in result.stdout


def test_no_command_shows_them_all_and_an_unknown_one_is_bad_usage() -> None:
    assert all(command in tracegrad().stdout for command in COMMANDS)
    assert tracegrad("no-such-command").returncode == 2
    assert tracegrad("sql").returncode == 2


@pytest.mark.parametrize(
    ("arguments", "environment", "said"),
    [
        (("sql", "SELECT 1"), {"TRACEGRAD_CLICKHOUSE": NOBODY}, "no store at http://127.0.0.1:9"),
        (("sql", "SELECT 1"), {"TRACEGRAD_CLICKHOUSE": "nonsense"}, "bad setting clickhouse"),
        (("doctor", "--config", "absent.toml"), {}, "no configuration file at absent.toml"),
        (("train", "absent.toml"), {}, "absent.toml"),
        (("up", "--model", "/no/such/model"), {}, "no model at /no/such/model"),
    ],
)
def test_a_failure_is_status_1_and_one_line(arguments: tuple[str, ...], environment: dict[str, str], said: str) -> None:
    result = tracegrad(*arguments, **environment)
    assert result.returncode == 1
    (line,) = result.stderr.splitlines()
    assert said in line


def test_a_password_in_an_address_is_never_shown() -> None:
    secret = {"TRACEGRAD_CLICKHOUSE": "http://bob:s3cret@127.0.0.1:9"}
    for arguments in (("sql", "SELECT 1"), ("doctor",), ("transitions",)):
        result = tracegrad(*arguments, **secret)
        assert result.returncode == 1
        assert "s3cret" not in result.stdout + result.stderr


def test_the_doctor_without_services_names_each_and_what_to_start() -> None:
    nobody = {f"TRACEGRAD_{name}": NOBODY for name in ("CLICKHOUSE", "OTLP", "SIDECAR_URL", "SIDECAR_ADMIN_URL")}
    result = tracegrad("doctor", **nobody)
    assert result.returncode == 1
    assert re.findall(r"FAIL +(.+?):", result.stdout) == ["collector (OTLP)", "sidecar", "store (SQL)"]
    assert result.stdout.count("start it: `tracegrad") == 3


def test_sql_answers_in_any_format_and_stops_when_nobody_reads(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("wb") as output:
        collector = subprocess.Popen(
            [
                *(sys.executable, "-m", "tracegrad", "collector", "--data", str(tmp_path / "store")),
                *("--otlp-http-port", "0", "--otlp-grpc-port", "0", "--clickhouse-port", "0"),
            ],
            stderr=output,
        )
    try:
        deadline = time.monotonic() + 60
        while (ready := re.search(r"clickhouse=(\S+)", log.read_text())) is None:
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        store = {"TRACEGRAD_CLICKHOUSE": ready[1]}
        assert tracegrad("sql", "--json", "SELECT 1 AS one", **store).stdout == '{"one":1}\n'
        assert tracegrad("sql", "SELECT 1, 2 FORMAT CSV", **store).stdout == "1,2\n"
        assert tracegrad("sql", "--format", "TSV", "SELECT 'a'", **store).stdout == "a\n"
        assert tracegrad("sql", "SHOW TABLES", **store).stdout.count("llm_calls") == 1
        wrong = tracegrad("sql", "SELEC 1", **store)
        assert (wrong.returncode, len(wrong.stderr.splitlines())) == (1, 1)
        assert "Syntax error" in wrong.stderr
        many = subprocess.run(
            [
                "bash",
                "-c",
                f"{sys.executable} -m tracegrad sql 'SELECT number FROM numbers(3000000) FORMAT TSV' | head -1",
            ],
            env=os.environ | store,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (many.stdout, many.stderr) == ("0\n", "")
    finally:
        collector.send_signal(signal.SIGTERM)
        assert collector.wait(30) == 0
