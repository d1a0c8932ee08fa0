"""Errors of a configuration speak its language, and name what was probably meant."""

from pathlib import Path

import pytest

from tracegrad import settings
from tracegrad.errors import SettingsError
from tracegrad.secret import Secret
from tracegrad.services import as_environment

MODEL = '[[model]]\nname = "a"\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[sidecar]\nworkerz = 2\n", "unknown setting workerz in [sidecar] in FILE: did you mean workers?"),
        ('clickhous = "http://h:1"\n', "unknown setting clickhous in FILE: did you mean clickhouse?"),
        ("workers = 2\n", "unknown setting workers in FILE: it belongs into [sidecar]"),
        ("[vllm]\nqqq = 2\n", "unknown setting qqq in [vllm] in FILE: there are host, port, args"),
        (
            MODEL + 'uptsream = "http://h:1"\n',
            "unknown setting uptsream in [[model]] 'a' in FILE: did you mean upstream?",
        ),
        (
            MODEL + "[model.pins]\ntemprature = 1\n",
            "unknown setting temprature in [[model]] 'a' pins in FILE: did you mean temperature?",
        ),
        ('[model]\nname = "a"\n', "bad setting in FILE: write [[model]] instead of [model]: there may be several"),
        ("[[sidecar]]\nport = 1\n", "bad setting in FILE: write [sidecar] instead of [[sidecar]]: there is one"),
        ("[[model]]\n", "missing setting name in [[model]] number 1 in FILE: give it a value"),
        (
            "[sidecar]\nport = 70000\n",
            "bad setting [sidecar] port in FILE: Input should be less than or equal to 65535",
        ),
        (MODEL + 'upstream = "h"\n', "bad setting [[model]] 'a' upstream in FILE: not an http:// address"),
        (MODEL + "upstream = 3\n", "bad setting [[model]] 'a' upstream in FILE: Input should be a valid string"),
        (
            MODEL + 'upstream = ["http://h:1", "http://h:1/v1/"]\n',
            "bad setting [[model]] 'a' upstream in FILE: http://h:1 is there twice: name each replica once",
        ),
        (
            MODEL + 'policy = ""\n',
            "bad setting [[model]] 'a' policy in FILE: String should have at least 1 character",
        ),
        (
            '[sidecar]\ndata = ""\n',
            "bad setting [sidecar] data in FILE: is empty, which would be the directory that a process happens to start"
            " in: name one",
        ),
        (
            '[[tenant]]\nname = "t"\n',
            "bad setting [[tenant]] 't' in FILE: [[tenant]] 't' needs exactly one of key, key_env, key_file and"
            " key_sha256",
        ),
    ],
)
def test_what_is_wrong_is_one_sentence(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "tracegrad.toml"
    file.write_text(text)
    with pytest.raises(SettingsError) as caught:
        settings.load(file, {})
    assert str(caught.value) == said.replace("FILE", f"{file} or TRACEGRAD_* variables")


def test_a_variable_that_is_not_set_is_named() -> None:
    secret = Secret("key of [[tenant]] 'a'", None, "NOPE_KEY", None)
    with pytest.raises(SettingsError) as caught:
        secret.read({})
    assert str(caught.value) == "environment variable NOPE_KEY is not set: it should hold the key of [[tenant]] 'a'"
    for value, said in (("", "is empty in NOPE_KEY"), ("\u00e9", "is not ASCII in NOPE_KEY")):
        with pytest.raises(SettingsError, match=said):
            secret.read({"NOPE_KEY": value})


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "TRACEGRAD_COLLECTOR_TOKNE",
            "unknown setting TRACEGRAD_COLLECTOR_TOKNE in the environment: [collector] has no such setting, "
            "did you mean TRACEGRAD_COLLECTOR_TOKEN?",
        ),
        ("TRACEGRAD_SIDECAR_ADMIN_KEYFILE", "did you mean TRACEGRAD_SIDECAR_ADMIN_KEY_FILE?"),
        ("TRACEGRAD_VLLM_QQQ", "there are host, port, args"),
        ("TRACEGRAD_VLLM_WORKERS", "it belongs into [sidecar]"),
    ],
)
def test_a_misspelt_variable_of_a_section_is_refused(tmp_path: Path, name: str, said: str) -> None:
    (file := tmp_path / "tracegrad.toml").touch()
    with pytest.raises(SettingsError) as caught:
        settings.load(file, {name: "hush-hush"})
    assert said in str(caught.value)
    assert "hush" not in str(caught.value)


def test_other_variables_are_left_alone(tmp_path: Path) -> None:
    (file := tmp_path / "tracegrad.toml").write_text(
        '[collector]\ntoken_env = "TRACEGRAD_COLLECTOR_OWN"\n'
        '[[tenant]]\nname = "a"\nkey_env = "TRACEGRAD_SIDECAR_OF_A"\n'
    )
    theirs = dict.fromkeys(
        (
            *("TRACEGRAD_RUN_SPAN", "TRACEGRAD_WEIGHTS_ROOT", "TRACEGRAD_ROLLOUT_ID", "TRACEGRAD_COLLECTORS"),
            *("TRACEGRAD_COLLECTOR_OWN", "TRACEGRAD_SIDECAR_OF_A"),
            *("TRACEGRAD_COLLECTOR_SERVICE_HOST", "TRACEGRAD_COLLECTOR_SERVICE_PORT_OTLP", "TRACEGRAD_COLLECTOR_PORT"),
            "TRACEGRAD_COLLECTOR_PORT_4318_TCP_ADDR",
        ),
        "x",
    )
    ours = as_environment(settings.load(file, {}))
    assert settings.load(file, theirs | ours).collector.host == "127.0.0.1"


@pytest.mark.parametrize("name", ["COLLECTOR_HOST", "SIDECAR_HOST", "SIDECAR_ADMIN_HOST", "VLLM_HOST"])
@pytest.mark.parametrize("value", ["", " "])
def test_an_empty_host_is_refused(tmp_path: Path, name: str, value: str) -> None:
    (file := tmp_path / "tracegrad.toml").touch()
    with pytest.raises(SettingsError, match=r"host in .*: is empty: name an address"):
        settings.load(file, {f"TRACEGRAD_{name}": value})
