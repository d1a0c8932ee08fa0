"""OTLP over HTTP: what is accepted, what is stored of it, and how the rest is refused."""

import base64
import concurrent.futures
import gzip
import json
import secrets
import socket
import zlib
from typing import Any

import pytest
import zstandard
from google.protobuf.json_format import MessageToDict
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue, KeyValueList

PROTOBUF = "application/x-protobuf"
OURS = "IngestId, PromptTokenIds, ResponseTokenIds, ResponseLogprobs"
"""What `otel_traces` has besides the columns of the official exporter."""


def one_span(name: str = "work", value: AnyValue | None = None, key: str = "key") -> ExportTraceServiceRequest:
    request = ExportTraceServiceRequest()
    resource = request.resource_spans.add()
    resource.resource.attributes.add(key="service.name").value.string_value = "shop"
    scope = resource.scope_spans.add()
    scope.scope.name, scope.scope.version = "lib", "1.2"
    span = scope.spans.add(
        trace_id=secrets.token_bytes(16),
        span_id=secrets.token_bytes(8),
        name=name,
        start_time_unix_nano=1_700_000_000_123_456_789,
        end_time_unix_nano=1_700_000_001_123_456_789,
    )
    if value is not None:
        span.attributes.append(KeyValue(key=key, value=value))
    return request


def trace_id(request: ExportTraceServiceRequest) -> str:
    return request.resource_spans[0].scope_spans[0].spans[0].trace_id.hex()


def row(collector: Any, request: ExportTraceServiceRequest, columns: str = "*") -> dict[str, Any]:
    answer = collector.sql(
        f"SELECT {columns} FROM otel_traces WHERE TraceId = '{trace_id(request)}' FORMAT JSONEachRow"
    )
    (line,) = answer.splitlines()
    found: dict[str, Any] = json.loads(line)
    return found


def text(value: str) -> AnyValue:
    return AnyValue(string_value=value)


def array(*values: AnyValue) -> AnyValue:
    return AnyValue(array_value=ArrayValue(values=values))


def kvlist(**values: AnyValue) -> AnyValue:
    return AnyValue(kvlist_value=KeyValueList(values=[KeyValue(key=key, value=value) for key, value in values.items()]))


def test_a_span_is_stored_column_for_column(collector: Any) -> None:
    request = one_span()
    span = request.resource_spans[0].scope_spans[0].spans[0]
    span.parent_span_id, span.trace_state, span.kind = b"\x01" * 8, "a=b", 2
    span.status.code, span.status.message = 2, "it broke"
    for key, value in {
        "text": text('say "hi" \\ \u2713'),
        "int": AnyValue(int_value=-(2**63)),
        "double": AnyValue(double_value=0.25),
        "whole": AnyValue(double_value=3.0),
        "bool": AnyValue(bool_value=False),
        "bytes": AnyValue(bytes_value=b"\x00\xff"),
        "none": AnyValue(),
        "empty": array(),
        "array": array(text('a"b'), AnyValue(int_value=1), AnyValue(double_value=0.5), AnyValue(bool_value=True)),
        "array of odd ones": array(AnyValue(bytes_value=b"\x00\xff"), AnyValue()),
    }.items():
        span.attributes.append(KeyValue(key=key, value=value))
    event = span.events.add(name="exception", time_unix_nano=1_700_000_000_500_000_000)
    event.attributes.add(key="exception.type").value.string_value = "ValueError"
    span.events.add(name="later", time_unix_nano=1_700_000_000_600_000_000)
    link = span.links.add(trace_id=b"\x02" * 16, span_id=b"\x03" * 8, trace_state="x=y")
    link.attributes.add(key="why").value.int_value = 7

    assert collector.send(request).status == 200
    assert row(collector, request, f"* EXCEPT ({OURS})") == {
        "Timestamp": "2023-11-14 22:13:20.123456789",
        "TraceId": span.trace_id.hex(),
        "SpanId": span.span_id.hex(),
        "ParentSpanId": "01" * 8,
        "TraceState": "a=b",
        "SpanName": "work",
        "SpanKind": "Server",
        "ServiceName": "shop",
        "ResourceAttributes": {"service.name": "shop"},
        "ScopeName": "lib",
        "ScopeVersion": "1.2",
        "SpanAttributes": {
            "text": 'say "hi" \\ \u2713',
            "int": "-9223372036854775808",
            "double": "0.25",
            "whole": "3",
            "bool": "false",
            "bytes": base64.b64encode(b"\x00\xff").decode(),
            "none": "",
            "empty": "[]",
            "array": '["a\\"b",1,0.5,true]',
            "array of odd ones": '["AP8=",null]',
        },
        "Duration": 1_000_000_000,
        "StatusCode": "Error",
        "StatusMessage": "it broke",
        "Events.Timestamp": ["2023-11-14 22:13:20.500000000", "2023-11-14 22:13:20.600000000"],
        "Events.Name": ["exception", "later"],
        "Events.Attributes": [{"exception.type": "ValueError"}, {}],
        "Links.TraceId": ["02" * 16],
        "Links.SpanId": ["03" * 8],
        "Links.TraceState": ["x=y"],
        "Links.Attributes": [{"why": "7"}],
    }


def test_a_log_record_is_stored_column_for_column(collector: Any) -> None:
    request, trace = ExportLogsServiceRequest(), secrets.token_bytes(16)
    resource = request.resource_logs.add(schema_url="https://r")
    resource.resource.attributes.add(key="service.name").value.string_value = "grader"
    scope = resource.scope_logs.add(schema_url="https://s")
    scope.scope.name, scope.scope.version = "lib", "3"
    scope.scope.attributes.add(key="k").value.bool_value = True
    record = scope.log_records.add(
        observed_time_unix_nano=1_700_000_000_000_000_001,
        severity_number=9,
        severity_text="INFO",
        event_name="something.happened",
        trace_id=trace,
        span_id=b"\x05" * 8,
        flags=0x101,
    )
    record.body.CopyFrom(kvlist(role=text("user"), parts=array(kvlist(n=AnyValue(int_value=1)))))
    record.attributes.add(key="n").value.int_value = 5

    assert collector.send(request).status == 200
    answer = collector.sql(
        f"SELECT * EXCEPT (IngestId) FROM otel_logs WHERE TraceId = '{trace.hex()}' FORMAT JSONEachRow"
    )
    assert json.loads(answer) == {
        "Timestamp": "2023-11-14 22:13:20.000000001",  # the observed time, for want of another
        "TimestampTime": "2023-11-14 22:13:20",
        "TraceId": trace.hex(),
        "SpanId": "05" * 8,
        "TraceFlags": 1,
        "SeverityText": "INFO",
        "SeverityNumber": 9,
        "ServiceName": "grader",
        "Body": '{"parts":[{"n":1}],"role":"user"}',
        "ResourceSchemaUrl": "https://r",
        "ResourceAttributes": {"service.name": "grader"},
        "ScopeSchemaUrl": "https://s",
        "ScopeName": "lib",
        "ScopeVersion": "3",
        "ScopeAttributes": {"k": "true"},
        "LogAttributes": {"n": "5"},
        "EventName": "something.happened",
    }


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (kvlist(), "{}"),
        (kvlist(b=AnyValue(int_value=2), a=text("x")), '{"a":"x","b":2}'),
        (array(array(AnyValue(int_value=1)), array()), "[[1],[]]"),
        (array(text("plain"), kvlist(a=AnyValue())), '["plain",{"a":null}]'),
        (
            array(kvlist(role=text("user"), parts=array(kvlist(type=text("text"), content=text("<hi> & \u2713"))))),
            '[{"parts":[{"content":"<hi> & \u2713","type":"text"}],"role":"user"}]',
        ),
        (
            kvlist(
                deep=kvlist(deeper=array(array(kvlist(d=AnyValue(double_value=2.0), y=AnyValue(bytes_value=b"\xff")))))
            ),
            '{"deep":{"deeper":[[{"d":2,"y":"/w=="}]]}}',
        ),
    ],
)
def test_nested_values_become_json_text(collector: Any, value: AnyValue, stored: str) -> None:
    request = one_span(value=value)
    span = request.resource_spans[0].scope_spans[0].spans[0]
    span.events.add(name="e").attributes.append(KeyValue(key="key", value=value))
    span.links.add(trace_id=b"\x01" * 16).attributes.append(KeyValue(key="key", value=value))
    request.resource_spans[0].resource.attributes.append(KeyValue(key="key", value=value))
    assert collector.send(request).status == 200
    found = row(collector, request)
    assert found["SpanAttributes"]["key"] == stored
    assert found["Events.Attributes"] == [{"key": stored}]
    assert found["Links.Attributes"] == [{"key": stored}]
    assert found["ResourceAttributes"]["key"] == stored


def test_extremes_do_not_fail_the_insert(collector: Any) -> None:
    request = one_span()
    spans = request.resource_spans[0].scope_spans[0].spans
    for day in range(150):  # ClickHouse's own limit is 100 partitions an insert
        spans.add(
            name="old",
            span_id=secrets.token_bytes(8),
            trace_id=spans[0].trace_id,
            start_time_unix_nano=day * 86_400 * 10**9,
        )
    spans.add(
        name="ends before it starts", trace_id=spans[0].trace_id, start_time_unix_nano=10, end_time_unix_nano=5, kind=99
    )
    spans.add(name="far away", trace_id=spans[0].trace_id, start_time_unix_nano=2**64 - 1)
    assert collector.send(request).status == 200
    count = collector.sql(f"SELECT count(), max(Duration) FROM otel_traces WHERE TraceId = '{trace_id(request)}'")
    assert count == "153\t1000000000"


@pytest.mark.parametrize(
    ("encoding", "compressed"),
    [
        ("gzip", gzip.compress),
        ("gzip", lambda body: gzip.compress(body[:10]) + gzip.compress(body[10:])),
        ("deflate", zlib.compress),
        ("zstd", zstandard.ZstdCompressor().compress),
        ("identity", lambda body: body),
        ("GZIP", gzip.compress),
    ],
)
def test_content_encodings(collector: Any, fetch: Any, encoding: str, compressed: Any) -> None:
    request = one_span()
    body = compressed(request.SerializeToString())
    reply = fetch(f"{collector.otlp}/v1/traces", body, content_type=PROTOBUF, content_encoding=encoding)
    assert (reply.status, reply.headers["Content-Type"]) == (200, PROTOBUF)
    assert ExportTraceServiceResponse.FromString(reply.body) == ExportTraceServiceResponse()
    assert row(collector, request)["SpanName"] == "work"


def test_json(collector: Any, fetch: Any) -> None:
    trace, span = secrets.token_hex(16), secrets.token_hex(8)
    body = {
        "resourceSpans": [
            {
                "resource": {"attributes": [{"key": "service.name", "value": {"stringValue": "js"}}]},
                "scopeSpans": [
                    {
                        "spans": [
                            {
                                "traceId": trace,
                                "spanId": span,
                                "parentSpanId": "00f067aa0ba902b7",
                                "name": "from json",
                                "kind": 3,
                                "startTimeUnixNano": "1700000000000000000",
                                "endTimeUnixNano": 1700000000000000005,
                                "attributes": [{"key": "n", "value": {"intValue": "7"}}],
                                "fieldOfTheFuture": 1,
                            }
                        ]
                    }
                ],
            }
        ]
    }
    reply = fetch(f"{collector.otlp}/v1/traces", json.dumps(body).encode(), content_type="application/json")
    assert (reply.status, json.loads(reply.body)) == (200, {})
    answer = collector.sql(
        "SELECT SpanId, ParentSpanId, ServiceName, SpanKind, Duration, SpanAttributes['n'] "
        f"FROM otel_traces WHERE TraceId = '{trace}'"
    )
    assert answer.split("\t") == [span, "00f067aa0ba902b7", "js", "Client", "5", "7"]


@pytest.mark.parametrize(
    "body",
    [b"{", b"[]", b'{"resourceSpans": 1}', b'{"resourceSpans":[{"scopeSpans":[{"spans":[{"traceId":"xyz"}]}]}]}'],
)
def test_malformed_json_is_refused_in_json(collector: Any, fetch: Any, body: bytes) -> None:
    reply = fetch(f"{collector.otlp}/v1/traces", body, content_type="application/json")
    status = json.loads(reply.body)
    assert (reply.status, status["code"]) == (400, 3)
    assert "OTLP traces" in status["message"]


def json_span(trace: str, value: str) -> bytes:
    span = f'{{"traceId":"{trace}","spanId":"00f067aa0ba902b7","attributes":[{{"key":"n","value":{value}}}]}}'
    return f'{{"resourceSpans":[{{"scopeSpans":[{{"spans":[{span}]}}]}}]}}'.encode()


def nested_arrays(depth: int) -> str:
    return '{"arrayValue":{"values":[' * depth + '{"intValue":7}' + "]}}" * depth


@pytest.mark.parametrize("depth", [60, 300, 5000])
def test_json_that_is_nested_too_deep_is_refused(collector: Any, fetch: Any, depth: int) -> None:
    body = json_span(secrets.token_hex(16), nested_arrays(depth))
    reply = fetch(f"{collector.otlp}/v1/traces", body, content_type="application/json")
    status = json.loads(reply.body)
    assert (reply.status, reply.headers["Content-Type"], status["code"]) == (400, "application/json", 3)
    assert status["message"].startswith("the body is not an OTLP traces export request in JSON")
    assert len(status["message"]) < 600


def test_json_may_be_nested_as_deep_as_protobuf(collector: Any, fetch: Any) -> None:
    trace = secrets.token_hex(16)
    body = json_span(trace, nested_arrays(40))
    assert fetch(f"{collector.otlp}/v1/traces", body, content_type="application/json").status == 200
    found = collector.sql(f"SELECT SpanAttributes['n'] FROM otel_traces WHERE TraceId = '{trace}'")
    assert found == "[" * 40 + "7" + "]" * 40


WHOLE = one_span().SerializeToString()


@pytest.mark.parametrize("path", ["/v1/traces", "/v1/logs"])
@pytest.mark.parametrize(
    "body",
    [
        b"garbage!!",
        b'{"resourceSpans": []}',
        WHOLE[:-1],  # cut off
        WHOLE + b"\x0a",  # a length is missing
        b"\x0a\x02\x0a\x7f",  # whole outside, cut off inside
        b"\x0a\x04\x12\x02\x12\x7f",
        b"\xff" * 11,
    ],
)
def test_a_malformed_body_is_refused_as_a_status_message(collector: Any, fetch: Any, path: str, body: bytes) -> None:
    reply = fetch(collector.otlp + path, body, content_type=PROTOBUF)
    status = Status.FromString(reply.body)
    assert (reply.status, reply.headers["Content-Type"], status.code) == (400, PROTOBUF, 3)
    assert f"OTLP {path.removeprefix('/v1/')}" in status.message


def test_only_the_malformed_one_of_many_is_refused(collector: Any, fetch: Any) -> None:
    bad = b"\x0a\x04\x12\x02\x12\x7f"
    good = [one_span(value=kvlist(a=text("b")) if index % 3 == 0 else text("plain")) for index in range(30)]
    bodies = [request.SerializeToString() for request in good]
    bodies[10:10], bodies[20:20] = [bad], [bad]
    with concurrent.futures.ThreadPoolExecutor(32) as threads:
        replies = list(
            threads.map(lambda body: fetch(f"{collector.otlp}/v1/traces", body, content_type=PROTOBUF), bodies)
        )
    assert [reply.status for reply in replies] == [400 if body == bad else 200 for body in bodies]
    ids = ", ".join(f"'{trace_id(request)}'" for request in good)
    assert collector.sql(f"SELECT uniqExact(TraceId), count() FROM otel_traces WHERE TraceId IN ({ids})") == "30\t30"


@pytest.mark.parametrize(
    ("encoding", "body", "refused"),
    [
        ("br", b"x", (415, "br")),
        ("gzip", b"not gzip", (400, "gzip")),
        ("gzip", gzip.compress(WHOLE)[:-9], (400, "cut off")),
        ("gzip", gzip.compress(bytes(65 << 20), 1), (413, "bytes")),
        ("zstd", zstandard.compress(bytes(65 << 20)), (413, "bytes")),
    ],
)
def test_other_encodings_are_refused(
    collector: Any, fetch: Any, encoding: str, body: bytes, refused: tuple[int, str]
) -> None:
    reply = fetch(f"{collector.otlp}/v1/traces", body, content_type=PROTOBUF, content_encoding=encoding)
    assert reply.status == refused[0]
    assert refused[1] in Status.FromString(reply.body).message


def test_other_content_types_are_refused(collector: Any, fetch: Any) -> None:
    reply = fetch(f"{collector.otlp}/v1/traces", WHOLE, content_type="text/plain")
    assert reply.status == 415
    assert "text/plain" in Status.FromString(reply.body).message


def test_a_body_that_is_announced_too_large_is_not_read(collector: Any, fetch: Any) -> None:
    reply = fetch(f"{collector.otlp}/v1/traces", bytes((64 << 20) + 1), content_type=PROTOBUF)
    assert reply.status == 413


@pytest.mark.parametrize("form", ["protobuf", "json"])
def test_metrics_are_stored(collector: Any, fetch: Any, form: str) -> None:
    request, name = ExportMetricsServiceRequest(), f"m.{secrets.token_hex(4)}"
    metric = request.resource_metrics.add().scope_metrics.add().metrics.add(name=name)
    for value in (1, 2):
        metric.gauge.data_points.add(as_int=value, time_unix_nano=1_700_000_000_000_000_000)
    metric.gauge.data_points[0].exemplars.add(trace_id=b"\x01" * 16, span_id=b"\x02" * 8, as_int=1)
    body, content_type = request.SerializeToString(), PROTOBUF
    if form == "json":
        content = MessageToDict(request)
        point = content["resourceMetrics"][0]["scopeMetrics"][0]["metrics"][0]["gauge"]["dataPoints"][0]
        point["exemplars"][0] |= {"traceId": "01" * 16, "spanId": "02" * 8}
        body, content_type = json.dumps(content).encode(), "application/json"
    reply = fetch(f"{collector.otlp}/v1/metrics", body, content_type=content_type)
    assert (reply.status, reply.body) == (200, b"{}" if form == "json" else b"")
    query = f"SELECT Value, Exemplars.TraceId FROM otel_metrics_gauge WHERE MetricName = '{name}' ORDER BY Value"
    assert collector.sql(query).splitlines() == [f"1\t['{'01' * 16}']", "2\t[]"]


def test_json_with_half_a_character_is_read(collector: Any, fetch: Any) -> None:
    trace = secrets.token_hex(16)
    body = json_span(trace, '{"stringValue":"cut \\ud83d, whole \\ud83d\\ude00"}')
    assert fetch(f"{collector.otlp}/v1/traces", body, content_type="application/json").status == 200
    assert collector.sql(f"SELECT SpanAttributes['n'] FROM otel_traces WHERE TraceId = '{trace}'") == (
        "cut \ufffd, whole \U0001f600"
    )


def test_nonsense_costs_one_line_of_the_log(collector: Any) -> None:
    host, port = collector.otlp.removeprefix("http://").split(":")
    before = len(collector.log.read_text().splitlines())
    for nonsense in (b"\x16\x03\x01\x02\x00\x01\x00", b"my-secret-key\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n") * 3:
        with socket.create_connection((host, int(port)), timeout=20) as opened:
            opened.sendall(nonsense)
            opened.shutdown(socket.SHUT_WR)
            while opened.recv(4096):
                pass
    log = "\n".join(collector.log.read_text().splitlines()[before:])
    assert "Traceback" not in log
    assert "my-secret-key" not in log
    assert log.count("what came is no HTTP") <= 1


def test_an_empty_request_is_accepted(collector: Any, fetch: Any) -> None:
    assert fetch(f"{collector.otlp}/v1/logs", b"", content_type=PROTOBUF).status == 200


def test_health(collector: Any, fetch: Any) -> None:
    assert json.loads(fetch(f"{collector.otlp}/healthz").body) == {"status": "ok"}


def test_web_pages_of_other_sites_are_refused(collector: Any, fetch: Any) -> None:
    for url in (f"{collector.otlp}/v1/traces", f"{collector.clickhouse}/"):
        assert fetch(url, b"SELECT 1", origin="https://elsewhere.example").status == 403
        assert fetch(url, b"SELECT 1", origin="null").status == 403
        assert fetch(url, b"SELECT 1", host="elsewhere.example").status == 403
    own = collector.clickhouse
    assert fetch(own, b"SELECT 1", origin=own).status == 200
    assert fetch(own, b"SELECT 1", host=f"localhost:{own.rpartition(':')[2]}").status == 200


def test_delivered_answers_when_what_was_acknowledged_is_in_the_store(collector: Any, fetch: Any) -> None:
    request = ExportTraceServiceRequest()
    request.resource_spans.add().scope_spans.add().spans.add(name="delivered", start_time_unix_nano=10**18)
    assert collector.send(request).status == 200
    assert json.loads(fetch(f"{collector.otlp}/delivered?within_s=30").body) == {"delivered": True}
    reply = fetch(collector.clickhouse + "/", b"SELECT count() FROM otel.otel_traces WHERE SpanName = 'delivered'")
    assert reply.body == b"1\n"
    assert fetch(f"{collector.otlp}/delivered?within_s=soon").status == 400


def test_a_record_that_is_no_protobuf_does_not_cost_the_others(collector: Any, fetch: Any) -> None:
    request = ExportTraceServiceRequest()
    spans = request.resource_spans.add().scope_spans.add().spans
    for name in ("partial-0", "partial-1", "partial-2"):
        spans.add(name=name, start_time_unix_nano=10**18)
    name_of_one = b"\x2a\x09partial-1"  # field 5 with a length; made a group that nothing ends
    body = request.SerializeToString().replace(name_of_one, b"\x2b" + name_of_one[1:])
    reply = fetch(f"{collector.otlp}/v1/traces", body, content_type=PROTOBUF)
    partial = ExportTraceServiceResponse.FromString(reply.body).partial_success
    assert (reply.status, partial.rejected_spans) == (200, 1)
    assert "no protobuf" in partial.error_message
    assert collector.sql("SELECT SpanName FROM otel_traces WHERE SpanName LIKE 'partial-%' ORDER BY ALL") == (
        "partial-0\npartial-2"
    )
