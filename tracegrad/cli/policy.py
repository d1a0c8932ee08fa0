"""`tracegrad policy`: the weights that agents are served with."""

import hashlib
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from tracegrad.cli.admin_port import AdminPort
from tracegrad.cli.options import AsJson, ConfigFile
from tracegrad.cli.table import table
from tracegrad.errors import InputError

EXAMPLE = "Example: tracegrad policy list"
HELP = "See the policies of a running sidecar, publish weights to them, pause, resume or forget them."

WEIGHTS_FILE = "model.safetensors"
PIECE_BYTES = 8 << 20
WORTH_PROGRESS_BYTES = 256 << 20
MEBI = 1 << 20

app = typer.Typer(no_args_is_help=True, help=HELP, epilog=EXAMPLE)

Name = Annotated[str, typer.Argument(help="The policy's name.")]


@app.callback()
def group(context: typer.Context, config: ConfigFile = None) -> None:
    """Keep the configuration file for the subcommand."""
    context.obj = config


@app.command("list", epilog="Example: tracegrad policy list --json")
def list_policies(context: typer.Context, config: ConfigFile = None, as_json: AsJson = False) -> None:
    """Show every policy with the version that each of its replicas runs."""
    told = AdminPort(config or context.obj).ask("GET", "policies")
    _show(told, told["policies"], as_json)


@app.command(
    "publish",
    epilog="Example: tracegrad policy publish policy --version 7 --weights .tracegrad/weights/policy/7",
)
def publish(
    context: typer.Context,
    name: Name,
    *,
    version: Annotated[int, typer.Option(min=1, help="The policy version that the weights become.")],
    weights: Annotated[
        Path,
        typer.Option(help=f"A .safetensors file, or a directory with {WEIGHTS_FILE}.", metavar="PATH"),
    ],
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Load weights into every replica of a policy, while agents go on; they must lie under the sidecar's `weights`."""
    admin = AdminPort(config or context.obj)
    file = _weights_file(weights)
    body = {"version": version, "weights": str(file), "sha256": _sha256(file)}
    typer.echo(f"publishing {name}@{version}", err=True)
    told = admin.ask("POST", "policies", name, "publish", body=body, timeout_s=None)
    _show(told, [told], as_json)


@app.command("forget", epilog="Example: tracegrad policy forget policy")
def forget(context: typer.Context, name: Name, config: ConfigFile = None, as_json: AsJson = False) -> None:
    """Drop the record of what was published: engines may serve whatever they run, until the next publication.

    For engines that somebody else publishes to, and to start over with versions of the same numbers.
    """
    told = AdminPort(config or context.obj).ask("POST", "policies", name, "forget")
    _show(told, [told], as_json)


@app.command("pause", epilog="Example: tracegrad policy pause policy")
def pause(context: typer.Context, name: Name, config: ConfigFile = None, as_json: AsJson = False) -> None:
    """Freeze a policy: calls in flight and new ones wait, and none fails, until `resume`."""
    told = AdminPort(config or context.obj).ask("POST", "policies", name, "pause")
    _show(told, [told], as_json)


@app.command("resume", epilog="Example: tracegrad policy resume policy")
def resume(context: typer.Context, name: Name, config: ConfigFile = None, as_json: AsJson = False) -> None:
    """End a pause."""
    told = AdminPort(config or context.obj).ask("POST", "policies", name, "resume")
    _show(told, [told], as_json)


def _show(told: dict[str, Any], policies: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(told))
        return
    rows = [_row(policy, replica) for policy in policies for replica in policy["replicas"]]
    if not rows:
        typer.echo("no policies: give a [[model]] of the sidecar a `policy`")
        return
    for line in table(("POLICY", "VERSION", "MODEL", "REPLICA", "RUNS", "STATE"), rows):
        typer.echo(line)


def _row(policy: dict[str, Any], replica: dict[str, Any]) -> tuple[str, ...]:
    state = replica["standing"].replace("_", " ")
    problem = replica.get("problem")
    return (
        policy["name"],
        _version(policy["version"]),
        policy["model"],
        replica["url"],
        _version(replica["version"]),
        f"{state}: {problem}" if problem else state,
    )


def _version(version: int | None) -> str:
    return "?" if version is None else str(version)


def _weights_file(path: Path) -> Path:
    file = (path / WEIGHTS_FILE if path.is_dir() else path).absolute()
    if not file.is_file() or file.suffix != ".safetensors":
        raise InputError(f"weights must be a .safetensors file or a directory with {WEIGHTS_FILE}: {path} is neither")
    return file


def _sha256(file: Path) -> str:
    """The digest of a file, with progress on stderr where it is large."""
    digest = hashlib.sha256()
    try:
        with file.open("rb") as content, _progress(file) as advance:
            while piece := content.read(PIECE_BYTES):
                digest.update(piece)
                advance(len(piece))
    except OSError as error:
        raise InputError(f"weights {file} cannot be read ({error.strerror})") from error
    return digest.hexdigest()


@contextmanager
def _progress(file: Path) -> Iterator[Callable[[int], None]]:
    """A function to call with each number of bytes read: a bar on a terminal, a line per quarter elsewhere."""
    total = file.stat().st_size
    if total < WORTH_PROGRESS_BYTES:
        yield lambda _: None
        return
    if not sys.stderr.isatty():
        done = 0

        def line(count: int) -> None:
            nonlocal done
            before, done = done * 4 // total, done + count
            if done * 4 // total > before:
                typer.echo(f"reading {file.name}: {done // MEBI}/{total // MEBI} MiB", err=True)

        yield line
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(f"reading {file.name}"), BarColumn(), DownloadColumn(binary_units=True))
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as bars:
        bar = bars.add_task("", total=total)
        yield lambda count: bars.update(bar, advance=count)
