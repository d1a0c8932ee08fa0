"""`tracegrad prompt`: system prompts that replace those of the agents."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from tracegrad.cli.admin_port import AdminError, AdminPort
from tracegrad.cli.options import AsJson, ConfigFile
from tracegrad.cli.prompt_change import Change, described, header_pair
from tracegrad.cli.table import table
from tracegrad.errors import InputError

EXAMPLE = 'Example: tracegrad prompt set writer --text "{system} Be brief." --match-agent writer'
HELP = "Replace the system prompts of agents, by rule: see, set and delete the overrides of a running sidecar."
SET_EXAMPLE = (
    EXAMPLE
    + "\n\n"
    + "Example: tracegrad prompt set writer --version 2 --text-file better.txt --weight 0.2"
    + "\n\n"
    + "Example: tracegrad prompt set writer --file variants.json"
)

app = typer.Typer(no_args_is_help=True, help=HELP, epilog=EXAMPLE)

Name = Annotated[str, typer.Argument(help="The prompt's name.")]
TextFile = Annotated[
    Path | None, typer.Option(help="A file with the text of a variant; `-` is standard input.", metavar="FILE")
]


@app.callback()
def group(context: typer.Context, config: ConfigFile = None) -> None:
    """Keep the configuration file for the subcommand."""
    context.obj = config


@app.command("list", epilog="Example: tracegrad prompt list --json")
def list_prompts(context: typer.Context, config: ConfigFile = None, as_json: AsJson = False) -> None:
    """Show every prompt, in the order in which they are tried: the first whose match holds replaces a call's own."""
    told = AdminPort(config or context.obj).ask("GET", "prompts")
    if as_json:
        typer.echo(json.dumps(told))
        return
    if not told["prompts"]:
        typer.echo("no prompts: set one with `tracegrad prompt set`")
        return
    header = ("PROMPT", "MATCHES", "VERSIONS", "STATE")
    for line in table(header, [_row(prompt) for prompt in told["prompts"]]):
        typer.echo(line)


@app.command("show", epilog="Example: tracegrad prompt show writer")
def show(context: typer.Context, name: Name, config: ConfigFile = None, as_json: AsJson = False) -> None:
    """Show one prompt with every text it ever had."""
    _print(AdminPort(config or context.obj).ask("GET", "prompts", name), as_json)


@app.command("set", epilog=SET_EXAMPLE)
def set_prompt(
    context: typer.Context,
    name: Name,
    *,
    file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help='The whole definition as JSON: {"match": {}, "variants": [{"version": 1, "text": ""}]}.',
        ),
    ] = None,
    text: Annotated[str | None, typer.Option(help="The text of a variant; {system} is the agent's own prompt.")] = None,
    text_file: TextFile = None,
    version: Annotated[
        int | None, typer.Option(min=1, help="Which variant: of --text (default: the next), or one that is known.")
    ] = None,
    weight: Annotated[float | None, typer.Option(min=0, help="Its share, against the weights of the others.")] = None,
    retire: Annotated[list[int] | None, typer.Option(help="A version that new rollouts no longer get.")] = None,
    match_model: Annotated[str | None, typer.Option(help="The model asked for; * is anything.")] = None,
    match_agent: Annotated[
        str | None, typer.Option(metavar="REGEX", help="The whole x-tracegrad-agent header.")
    ] = None,
    match_rollout: Annotated[str | None, typer.Option(metavar="REGEX", help="The whole id of the rollout.")] = None,
    match_system: Annotated[
        str | None, typer.Option(metavar="REGEX", help="Any part of the agent's own prompt.")
    ] = None,
    match_header: Annotated[
        list[str] | None, typer.Option(metavar="NAME=REGEX", help="The whole value of a header; may be repeated.")
    ] = None,
    enabled: Annotated[bool | None, typer.Option("--enable/--disable", help="Put it in or out of force.")] = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Define a prompt, or change what the options name and keep the rest.

    Rollouts under way keep their variant; a changed match and --disable count for every call at once. An empty text
    takes a match out: --match-agent ''.
    """
    try:
        match = {"model": match_model, "agent": match_agent, "rollout": match_rollout, "system": match_system}
        headers = dict(header_pair(one) for one in match_header or ())
        change = Change(text, version, weight, tuple(retire or ()), {**match, "header": headers or None}, enabled)
        change.check(text_file, file)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    admin = AdminPort(config or context.obj)
    if file is not None:
        body: Any = _read(file).encode()
    else:
        change = change.with_text(_read(text_file)) if text_file is not None else change
        body = change.applied(name, _known(admin, name))
    _print(admin.ask("PUT", "prompts", name, body=body), as_json)


@app.command("delete", epilog="Example: tracegrad prompt delete writer")
def delete(context: typer.Context, name: Name, config: ConfigFile = None, as_json: AsJson = False) -> None:
    """Take a prompt out of force at once. Its versions keep their texts, for the record and should it come back."""
    told = AdminPort(config or context.obj).ask("DELETE", "prompts", name)
    typer.echo(json.dumps(told) if as_json else f"deleted prompt {name}")


def _known(admin: AdminPort, name: str) -> dict[str, Any] | None:
    try:
        return admin.ask("GET", "prompts", name)
    except AdminError as error:
        if error.status == 404:
            return None
        raise


def _read(file: Path) -> str:
    try:
        return sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise InputError(f"{file} cannot be read ({reason})") from error


def _row(prompt: dict[str, Any]) -> tuple[str, ...]:
    total = sum(one["weight"] for one in prompt["variants"])
    shares = ", ".join(f"{one['version']} ({one['weight'] / total:.0%})" for one in prompt["variants"])
    return prompt["name"], described(prompt["match"]), shares, "in force" if prompt["enabled"] else "disabled"


def _print(prompt: dict[str, Any], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(prompt))
        return
    name, matches, shares, state = _row(prompt)
    typer.echo(f"{name}: {state}; matches {matches}; versions {shares}")
    for variant in prompt["variants"]:
        typer.echo(f"\n--- version {variant['version']}, weight {variant['weight']:g}\n{variant['text']}")
    for variant in prompt["retired"]:
        typer.echo(f"\n--- version {variant['version']}, retired\n{variant['text']}")
