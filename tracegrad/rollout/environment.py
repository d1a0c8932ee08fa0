"""What an agent finds in its environment: where the model is, which trace it is part of, where spans go."""

import os
from collections.abc import Mapping
from urllib.parse import quote

from tracegrad import names
from tracegrad.otlp import SpanContext
from tracegrad.settings import Settings

Changes = dict[str, str | None]
"""Variables to set; None removes one."""
ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT")


def shared(settings: Settings, inherited: Mapping[str, str]) -> Changes:
    """What is the same for all agents. Telemetry variables and keys that the user has set stay.

    Our token goes nowhere else: agents that are told to send to another place do not get it. Raises SettingsError.
    """
    changes: Changes = {"TRACEPARENT": None, "TRACESTATE": None, "BAGGAGE": None}
    base_url = f"{settings.sidecar_url.rstrip('/')}/v1"
    changes |= {"OPENAI_BASE_URL": base_url, "OPENAI_API_BASE": base_url}
    defaults = {
        "OPENAI_API_KEY": "unused",
        "OTEL_EXPORTER_OTLP_ENDPOINT": settings.otlp,
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
    }
    if not any(inherited.get(name, settings.otlp).rstrip("/") != settings.otlp for name in ENDPOINTS):
        defaults |= settings.otlp_access.environment()
    return changes | {name: value for name, value in defaults.items() if not inherited.get(name)}


def search(directory: str | None) -> Changes:
    """PATH with `directory`, if any, searched first."""
    if directory is None:
        return {}
    return {"PATH": os.pathsep.join(part for part in (directory, os.environ.get("PATH")) if part)}


def for_rollout(
    settings: Settings, context: SpanContext, rollout_id: str, attempt: int, task_id: str, *, split: str
) -> dict[str, str]:
    """What tells one rollout from another."""
    base_url = f"{settings.sidecar_url.rstrip('/')}/rollout/{rollout_id}/attempt/{attempt}/v1"
    baggage = {names.BAGGAGE_ROLLOUT_ID: rollout_id, names.BAGGAGE_TASK_ID: task_id, names.BAGGAGE_SPLIT: split}
    return {
        "OPENAI_BASE_URL": base_url,
        "OPENAI_API_BASE": base_url,
        "TRACEPARENT": context.traceparent,
        "BAGGAGE": ",".join(f"{name}={quote(value, safe='')}" for name, value in baggage.items()),
    }


def apply(inherited: Mapping[str, str], *changes: Mapping[str, str | None]) -> dict[str, str]:
    """`inherited` with `changes`, in order."""
    merged: dict[str, str | None] = {**inherited}
    for change in changes:
        merged |= change
    return {name: value for name, value in merged.items() if value is not None}
