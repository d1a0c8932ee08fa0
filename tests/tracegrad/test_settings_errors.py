"""Errors of a configuration speak its language, and name what was probably meant."""

from pathlib import Path

import pytest

from tracegrad import settings
from tracegrad.errors import SettingsError
from tracegrad.secret import Secret

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
