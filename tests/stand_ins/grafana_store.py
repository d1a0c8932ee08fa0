"""Rollouts, rewards, policies, optimiser steps and counters for the dashboards to show."""

import json
import secrets
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tracegrad import names, otlp
from tracegrad.otlp import SpanContext

POLICY, AGENT, TASK = f"policy-{secrets.token_hex(4)}", f"writer-{secrets.token_hex(4)}", f"task-{secrets.token_hex(4)}"
BEGIN = datetime(2026, 3, 1, 12, tzinfo=UTC)
"""A time of its own, apart from what other tests store."""


def ns(at: timedelta) -> int:
    return int((BEGIN + at).timestamp() * 1e9)


def seed(collector: Any) -> None:
    """Two versions are published, half an hour apart; an agent runs before, between and after; two steps are taken."""
    traces, logs = ExportTraceServiceRequest(), ExportLogsServiceRequest()
    for request in (traces.resource_spans, logs.resource_logs):
        request.add().resource.attributes.add(key="service.name").value.string_value = "grafana-test"
    spans = traces.resource_spans[0].scope_spans.add().spans
    records = logs.resource_logs[0].scope_logs.add().log_records
    calls = []
    for number, (minute, version) in enumerate([(5, 0), (35, 0), (65, 1), (70, 2)]):
        rollout = f"grafana-{POLICY}-{number}"
        root, at = SpanContext.new(), timedelta(minutes=minute)
        identity: dict[str, otlp.Value] = {
            names.ROLLOUT_ID: rollout,
            names.ROLLOUT_ATTEMPT: 0,
            names.TASK_ID: TASK,
        }
        ended: dict[str, otlp.Value] = {names.ROLLOUT_STATUS: "failed" if number == 1 else "succeeded"}
        spans.append(
            otlp.span(
                names.ROOT_SPAN_NAME,
                root,
                start_ns=ns(at),
                end_ns=ns(at + timedelta(seconds=30)),
                values=identity | ended,
            )
        )
        agent = SpanContext.new(root.trace_id)
        named: dict[str, otlp.Value] = {names.OPERATION_NAME: "invoke_agent", names.AGENT_NAME: AGENT}
        spans.append(
            otlp.span("invoke_agent", agent, parent_span_id=root.span_id, start_ns=ns(at), end_ns=ns(at), values=named)
        )
        for trainable in (True, False):
            context = SpanContext.new(root.trace_id)
            calls.append((context, rollout))
            told: dict[str, otlp.Value] = {
                names.TRAINABLE: trainable,
                names.UNTRAINABLE_REASON: None if trainable else "error",
                names.ERROR_TYPE: None if trainable else "503",
                names.POLICY_NAME: POLICY,
                names.POLICY_VERSION: version,
                names.PROMPT_TOKEN_IDS: "[1,2,3]",
                names.RESPONSE_TOKEN_IDS: "[4,5]",
                names.RESPONSE_LOGPROBS: "[-1,-2]",
                names.FINISH_REASONS: ["stop"],
                names.RESPONSE_MODEL: "served",
            }
            spans.append(
                otlp.span(
                    "chat served",
                    context,
                    parent_span_id=agent.span_id,
                    start_ns=ns(at + timedelta(seconds=2)),
                    end_ns=ns(at + timedelta(seconds=3)),
                    values=identity | told,
                )
            )
        scored: dict[str, otlp.Value] = {
            names.EVALUATION_NAME: "exact",
            names.EVALUATION_SCORE: float(version),
        }
        reward = otlp.event(names.EVALUATION_EVENT, root, identity | scored)
        reward.time_unix_nano = ns(at + timedelta(seconds=40))
        records.append(reward)
    assert collector.send(traces).status == 200
    assert collector.send(logs).status == 200
    wait_for(collector, f"SELECT count() FROM llm_calls WHERE policy = '{POLICY}'", len(calls))
    wait_for(collector, f"SELECT count() FROM rewards WHERE rollout_id LIKE 'grafana-{POLICY}%'", len(records))
    store_training(collector, calls)
    store_counters(collector)


def wait_for(collector: Any, count: str, wanted: int) -> None:
    deadline = time.monotonic() + 60
    while int(collector.sql(count)) < wanted:
        assert time.monotonic() < deadline, count
        time.sleep(0.05)


def store_training(collector: Any, calls: list[tuple[SpanContext, str]]) -> None:
    """What the trainer writes: versions 1 and 2 at 0:30 and 1:00, by a step each that used a call and dropped one."""
    for version in (1, 2):
        step, ended = f"{POLICY}-step-{version}", BEGIN + timedelta(minutes=30 * version)
        measured = {"loss": 0.5, "grad_norm": 2, "reward_mean": 0.25 * version, "staleness_mean": 0.5}
        insert(
            collector,
            "policies",
            {
                "name": POLICY,
                "version": version,
                "sha256": "ab" * 32,
                "path": "/weights",
                "parent_version": version - 1 or None,
                "created_at": ended.replace(tzinfo=None),
                "step_id": step,
            },
        )
        insert(
            collector,
            "train_steps",
            {
                "step_id": step,
                "job": "job",
                "policy": POLICY,
                "from_version": version - 1,
                "to_version": version,
                "algorithm": "grpo",
                "config": "{}",
                "metrics": json.dumps(measured | {"staleness_max": 1, "seconds_update": 3.5}),
                "started_at": (ended - timedelta(seconds=20)).replace(tzinfo=None),
                "ended_at": ended.replace(tzinfo=None),
            },
        )
        for dropped, (context, rollout) in enumerate(calls[:2]):
            sample = {"trace_id": context.trace_id.hex(), "span_id": context.span_id.hex(), "rollout_id": rollout}
            verdict = {"used": not dropped, "drop_reason": "error" * dropped}
            judged = {"agent": AGENT, "reward": 1.0, "advantage": 0.5, "n_tokens": 2}
            insert(collector, "train_samples", {"step_id": step} | sample | judged | verdict)


def store_counters(collector: Any) -> None:
    """A sidecar dropped 3 spans, was restarted, and dropped 2 more; a spool set 1 record aside."""
    for table, name, attributes, minute, total in [
        ("sum", "sidecar_spans_total", {"state": "dropped_spool_full"}, 0, 7),
        ("sum", "sidecar_spans_total", {"state": "dropped_spool_full"}, 2, 10),
        ("sum", "sidecar_spans_total", {"state": "dropped_spool_full"}, 4, 2),
        ("sum", "sidecar_spans_total", {"state": "sent"}, 2, 1),
        ("sum", "sidecar_spans_total", {"state": "sent"}, 4, 99),
        ("gauge", "collector_spool_losses", {"signal": "logs", "kind": "refused_records"}, 0, 0),
        ("gauge", "collector_spool_losses", {"signal": "logs", "kind": "refused_records"}, 6, 1),
        ("gauge", "collector_spool_losses", {"signal": "logs", "kind": "refused_bytes"}, 0, 0),
        ("gauge", "collector_spool_losses", {"signal": "logs", "kind": "refused_bytes"}, 6, 500),
    ]:
        insert(
            collector,
            f"otel_metrics_{table}",
            {
                "ServiceName": "scraped",
                "MetricName": f"tracegrad_{name}",
                "Attributes": attributes,
                "TimeUnix": BEGIN + timedelta(minutes=minute),
                "Value": total,
            },
        )


def insert(collector: Any, table: str, row: Mapping[str, Any]) -> None:
    collector.client().insert(table, [list(row.values())], column_names=list(row))
