"""One trace for one run: everything that a process and its children do shares it.

With TRACEPARENT in the environment (from `tracegrad rollout`, or any caller that traces) spans become children of
that span. Without it, this process starts a span for the whole run and puts it into TRACEPARENT for its children.
TRACEGRAD_RUN_SPAN=false turns that off, for servers, which should have one trace for each request instead.
"""

import atexit
import os
import sys
from collections.abc import Sequence
from pathlib import PurePath

from opentelemetry import context, propagate, trace

from tracegrad_otel import __version__, ending

VARIABLES = ("TRACEPARENT", "TRACESTATE", "BAGGAGE")
FORKING_PARENT = "tracegrad_otel.warm"
OPTIONS_WITH_VALUE = ("-X", "-W", "--check-hash-based-pycs")


def join() -> None:
    """Make the environment's trace, or a new one, the current context of this process."""
    carrier = {name.lower(): os.environ[name] for name in VARIABLES if os.environ.get(name)}
    current = propagate.extract(carrier)
    caller = trace.get_current_span(current).get_span_context()
    if not caller.is_valid and os.environ.get("TRACEGRAD_RUN_SPAN", "true").lower() not in ("false", "0", "no"):
        current = _start_run_span(current)
    context.attach(current)


def _start_run_span(parent: context.Context) -> context.Context:
    tracer = trace.get_tracer("tracegrad_otel", __version__)
    span = tracer.start_span(f"run {program(sys.orig_argv)}", context=parent, attributes={"process.pid": os.getpid()})
    started_in = os.getpid()

    def end() -> None:
        if os.getpid() != started_in or not span.is_recording():
            return
        failure = getattr(sys, "last_value", None)  # set by the interpreter when an exception ended the program
        if failure is not None:
            span.set_attribute("error.type", type(failure).__qualname__)
            span.set_status(trace.StatusCode.ERROR)
        span.end()

    atexit.register(end)  # after the SDK's own handler, so it runs before it
    ending.before_ending(end)
    current = trace.set_span_in_context(span, parent)
    carrier: dict[str, str] = {}
    propagate.inject(carrier, current)
    for name in VARIABLES:
        if name.lower() in carrier:
            os.environ[name] = carrier[name.lower()]
    return current


def program(argv: Sequence[str]) -> str:
    """What Python was asked to run, from `sys.orig_argv`: a file's name, a module, or `-c`."""
    rest = iter(argv[1:])
    for argument in rest:
        if argument in OPTIONS_WITH_VALUE:
            next(rest, None)
        elif argument == "-m":
            module = next(rest, "-m")
            if module != FORKING_PARENT:  # what that one runs stands behind it
                return module
        elif argument.startswith("-c"):
            return "-c"
        elif not argument.startswith("-"):
            return PurePath(argument).name
    return "python"
