# SPDX-License-Identifier: Apache-2.0
"""Traces: a request is a span in its client's trace, and its statements are child spans."""

import sys
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from vgpumgr_api.app import create_app
from vgpumgr_api.db.database import Database
from vgpumgr_api.observe.tracing import TracingError, exporting

from tests.api.http.cloud import Cloud

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def cloud(database: Database, exporter: InMemorySpanExporter) -> Cloud:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    made = Cloud(database, create_app(database, traces=provider))
    exporter.clear()
    return made


def spans(exporter: InMemorySpanExporter, kind: SpanKind) -> list[ReadableSpan]:
    return [span for span in exporter.get_finished_spans() if span.kind is kind]


def test_statements_lie_in_their_request_and_that_in_its_clients_trace(
    cloud: Cloud, exporter: InMemorySpanExporter
) -> None:
    cloud.operator("POST", "/v1/tenants", {"name": "acme"}, headers={"traceparent": PARENT})
    (request,) = spans(exporter, SpanKind.SERVER)
    assert request.name == "POST /v1/tenants"
    assert request.attributes is not None
    assert request.attributes["http.route"] == "/v1/tenants"
    assert request.attributes["http.response.status_code"] == 201
    assert request.context is not None
    assert f"{request.context.trace_id:032x}" == TRACE
    statements = spans(exporter, SpanKind.CLIENT)
    assert {span.parent.span_id for span in statements if span.parent} == {request.context.span_id}
    assert all(span.parent for span in statements)
    inserts = [span for span in statements if span.name == "INSERT"]
    assert inserts
    said = str([span.attributes for span in statements])
    assert "INSERT INTO tenants" in said
    assert "acme" not in said
    assert cloud.operator.token is not None
    assert cloud.operator.token not in str([span.to_json() for span in exporter.get_finished_spans()])


def test_a_defect_and_a_refusal_are_told_apart(
    cloud: Cloud, exporter: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError

    cloud.operator("GET", "/v1/tenants/nobody")
    monkeypatch.setattr("vgpumgr_api.tenancy.tenants.refuse_duplicate", fail)
    cloud.operator("POST", "/v1/tenants", {"name": "acme"})
    refused, failed = spans(exporter, SpanKind.SERVER)
    assert refused.attributes is not None
    assert refused.attributes["error.type"] == "object.unknown"
    assert refused.status.status_code is StatusCode.UNSET
    assert failed.status.status_code is StatusCode.ERROR


def test_nothing_is_traced_unless_told_whatever_the_environment_says(
    database: Database, exporter: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "otlp")
    Cloud(database, create_app(database)).operator("GET", "/v1/tenants")
    assert exporter.get_finished_spans() == ()


def test_without_the_extra_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(TracingError, match=r"vgpumgr\[otel\]"):
        exporting("http://127.0.0.1:4318/v1/traces")


def test_with_it_spans_go_to_the_collector_that_is_named() -> None:
    provider = exporting("http://127.0.0.1:9/v1/traces")
    assert provider.resource.attributes["service.name"] == "vgpumgr-api"
    provider.shutdown()
