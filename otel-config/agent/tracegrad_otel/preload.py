"""Which modules the parent of forked agents may import for them: installed ones that the program imports at its top.

The agent's own modules are read for their imports, but never run before the fork: what they do when imported (read
the environment, make a client) has to happen in each agent.
"""

import ast
import importlib
import importlib.machinery
import importlib.util
import site
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path

SPEAKS_ON_IMPORT = ("this", "antigravity")

IMPORTED_LATE = {
    "httpx": ("httpcore",),
    "httpx2": ("httpcore2",),
    "tracegrad_otel.distro": (
        "opentelemetry.exporter.otlp.proto.http.trace_exporter",
        "opentelemetry.exporter.otlp.proto.http._log_exporter",
        "requests",
    ),
}
"""Module -> what it imports only at its first use, which would be in each agent: half of an agent's start."""


class InstalledImports:
    """Collects the names of installed modules that source files import, following the agent's own modules."""

    def __init__(self, search_path: Sequence[str]) -> None:
        self.names: dict[str, None] = {}
        self._search_path = list(search_path)
        self._read: set[Path] = set()

    def read(self, file: Path, package: str = "") -> None:
        """Add what `file` imports at module level. Raises SyntaxError, ValueError or OSError if it is not readable."""
        if file in self._read:
            return
        self._read.add(file)
        for name in _imported_names(ast.parse(file.read_bytes(), str(file)), package):
            self._add(name)

    def _add(self, name: str) -> None:
        top = name.partition(".")[0]
        if top in sys.stdlib_module_names:
            if top not in SPEAKS_ON_IMPORT:
                self.names[name] = None
            return
        own = find_source(name, self._search_path)
        if own is None:
            spec = importlib.machinery.PathFinder.find_spec(top, self._search_path)
            if spec is not None and _is_installed(spec):
                self.names[name] = None
            return
        for file, package in own:
            try:
                self.read(file, package)
            except (SyntaxError, ValueError, OSError):
                continue  # the agent meets it, as it would without us


def find_source(name: str, search_path: Sequence[str]) -> list[tuple[Path, str]] | None:
    """The files that importing `name` runs, outermost package first, each with the package its relative imports use.

    None where `name` is installed, or not found. Nothing is imported to find out.
    """
    files: list[tuple[Path, str]] = []
    path: Sequence[str] | None = search_path
    parts = name.split(".")
    for length in range(1, len(parts) + 1):
        prefix = ".".join(parts[:length])
        spec = importlib.machinery.PathFinder.find_spec(prefix, path)
        if spec is None:
            return files or None  # `from package import name_of_a_function`
        if length == 1 and _is_installed(spec):
            return None
        if spec.origin is not None and spec.origin.endswith(".py"):
            files.append((Path(spec.origin), spec.parent or ""))
        path = spec.submodule_search_locations
        if path is None:
            break
    return files


def import_all(names: Sequence[str]) -> list[str]:
    """Import each module; returns those that failed (the agent will meet the same error where it imports them)."""
    failed = []
    for name in names:
        package, _, attribute = name.rpartition(".")
        if hasattr(sys.modules.get(package), attribute):
            continue  # from `from package import attribute`
        try:
            importlib.import_module(name)
        except (Exception, SystemExit):  # noqa: BLE001 - a library may raise anything, and the agent may expect it
            failed.append(name)
    return failed


def import_late_ones() -> None:
    """Import what modules that are loaded by now would load at their first use."""
    for name, late in IMPORTED_LATE.items():
        if name in sys.modules:
            import_all(late)


def _is_installed(spec: importlib.machinery.ModuleSpec) -> bool:
    """Whether a top-level module belongs to the environment rather than to the agent's own code."""
    locations = list(spec.submodule_search_locations or ()) or [spec.origin or ""]
    roots = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages()}
    if site.ENABLE_USER_SITE:
        roots.add(site.getusersitepackages())
    resolved = [Path(root).resolve() for root in roots]
    return any(Path(location).resolve().is_relative_to(root) for location in locations for root in resolved)


def _imported_names(tree: ast.Module, package: str) -> Iterator[str]:
    for node in _module_level(tree.body):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            if node.level:
                try:
                    base = importlib.util.resolve_name(base, package)
                except ImportError:
                    continue  # reaches beyond the top-level package
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names if alias.name != "*")


def _module_level(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that run on import: also inside `try`, `with` and `if`, but for `if TYPE_CHECKING`."""
    for node in body:
        match node:
            case ast.If(test=ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING"), orelse=orelse):
                yield from _module_level(orelse)
            case ast.If(body=inner, orelse=orelse):
                yield from _module_level([*inner, *orelse])
            case ast.Try(body=inner, handlers=handlers, orelse=orelse, finalbody=final):
                yield from _module_level([*inner, *(s for h in handlers for s in h.body), *orelse, *final])
            case ast.With(body=inner):
                yield from _module_level(inner)
            case _:
                yield node
