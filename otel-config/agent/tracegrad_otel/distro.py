"""The three entry points of `opentelemetry-instrument`: defaults, then the SDK, then the trace that this process joins.

In the parent of forked agents (`python -m tracegrad_otel.warm`) the last two wait: they start threads and read an
environment that is each agent's own, so the agent runs them itself after the fork, by `configure_process`.
"""

import os
import sys
from typing import Any

from opentelemetry.instrumentation.distro import BaseDistro
from opentelemetry.instrumentation.version import __version__ as instrumentation_version
from opentelemetry.sdk._configuration import _OTelSDKConfigurator

from tracegrad_otel import ending, export, ids, quiet, run_trace

DEFAULTS = {
    "OTEL_TRACES_EXPORTER": "otlp",
    "OTEL_LOGS_EXPORTER": "otlp",  # evaluation events of the agent's own
    "OTEL_METRICS_EXPORTER": "none",
    "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
    # Short, because what a killed process has not exported is lost.
    "OTEL_BSP_SCHEDULE_DELAY": "200",
    "OTEL_BLRP_SCHEDULE_DELAY": "200",
}
HTTP_ENDPOINT = "http://127.0.0.1:4318"


def set_defaults() -> None:
    """Put our values where the user gave none; an empty variable counts as none, as OpenTelemetry specifies."""
    for name, value in DEFAULTS.items():
        if not os.environ.get(name):
            os.environ[name] = value
    over_http = os.environ["OTEL_EXPORTER_OTLP_PROTOCOL"] == DEFAULTS["OTEL_EXPORTER_OTLP_PROTOCOL"]
    if over_http and not os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT"):
        os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = HTTP_ENDPOINT
    if not os.environ.get("OTEL_SERVICE_NAME") and not _has_service_name(os.environ.get("OTEL_RESOURCE_ATTRIBUTES")):
        name = run_trace.program(sys.orig_argv).removesuffix(".py")
        if name != "-c":
            os.environ["OTEL_SERVICE_NAME"] = name


def _has_service_name(attributes: str | None) -> bool:
    return any(pair.partition("=")[0].strip() == "service.name" for pair in (attributes or "").split(","))


class Distro(BaseDistro):
    """Defaults for the environment. Instrumentations load as the base class does it."""

    def _configure(self, **_: Any) -> None:
        set_defaults()
        quiet.limit_logging()


class Configurator(_OTelSDKConfigurator):
    """The SDK's own configuration from OTEL_* variables, with processors that end in bounded time."""

    def _configure(self, **options: Any) -> None:
        if not forks_agents():
            _configure_sdk(super()._configure, options)

    def configure_after_fork(self) -> None:
        """What `configure` left out in the parent."""
        _configure_sdk(super()._configure, {"auto_instrumentation_version": instrumentation_version})


def pre_instrument() -> None:
    """Called once the SDK stands and before libraries are instrumented."""
    ending.flush_before_os_exit()
    if not forks_agents():
        _join()


def configure_process() -> None:
    """In a forked agent: what `opentelemetry-instrument` would have done in a fresh process with this environment."""
    set_defaults()
    Configurator().configure_after_fork()  # type: ignore[no-untyped-call]
    _join()


def forks_agents() -> bool:
    """Whether this process was started as `python -m tracegrad_otel.warm`; its forked children inherit the answer."""
    return ("-m", run_trace.FORKING_PARENT) in zip(sys.orig_argv, sys.orig_argv[1:], strict=False)


def _configure_sdk(configure: Any, options: dict[str, Any]) -> None:
    if os.environ.get("OTEL_CONFIG_FILE"):
        configure(**options)  # the file describes everything; the SDK warns about keywords beside it
        return
    export.leave_random_alone()
    if not os.environ.get("OTEL_PYTHON_ID_GENERATOR"):
        options["id_generator"] = ids.SystemRandomIds()
    configure(
        export_span_processor=export.span_processor,
        export_log_record_processor=export.log_processor,
        **options,
    )


def _join() -> None:
    run_trace.join()
    ending.flush_on_sigterm()
