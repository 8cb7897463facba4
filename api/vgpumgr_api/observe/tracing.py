# SPDX-License-Identifier: Apache-2.0
"""Traces of requests and their statements, for a collector that speaks OTLP. Needs vgpumgr[otel].

The names of attributes are those of OpenTelemetry's conventions for HTTP and databases. Statements are reported without
their parameters. No tracer is registered globally, so only a process that is configured to trace does so.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from vgpumgr import __version__
from vgpumgr_api.db.database import Database
from vgpumgr_api.observe import statements
from vgpumgr_api.observe.exchange import Exchange

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span

SERVICE = "vgpumgr-api"


class TracingError(Exception):
    """Traces cannot be made. The message is one line that says what to install."""


def exporting(endpoint: str) -> "TracerProvider":
    """Returns a provider that sends spans, in a thread, to a collector like ``http://127.0.0.1:4318/v1/traces``."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ModuleNotFoundError as error:
        raise TracingError(f"otlp_endpoint needs {error.name}; run: pip install 'vgpumgr[otel]'") from None
    provider = TracerProvider(resource=Resource({"service.name": SERVICE, "service.version": __version__}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
    return provider


class Tracing:
    """Belongs to one application."""

    def __init__(self, provider: "TracerProvider", database: Database) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._tracer = provider.get_tracer(SERVICE, __version__)
        self._propagator = TraceContextTextMapPropagator()
        self._system = "sqlite" if database.is_sqlite else "postgresql"
        statements.watch(database.engine, self._statement)

    @contextmanager
    def request(self, headers: Mapping[str, str]) -> "Iterator[Span]":
        """The context of a request, in its client's trace if the headers name one. `answered` completes the span."""
        from opentelemetry.trace import SpanKind

        caller = self._propagator.extract(dict(headers))
        with self._tracer.start_as_current_span("request", context=caller, kind=SpanKind.SERVER) as span:
            yield span

    @staticmethod
    def answered(span: "Span", exchange: Exchange, request_id: str) -> None:
        """Adds the request and its outcome to the span."""
        from opentelemetry.trace import StatusCode

        span.update_name(f"{exchange.method} {exchange.route}")
        span.set_attribute("http.request.method", exchange.method)
        span.set_attribute("http.route", exchange.route)
        span.set_attribute("http.response.status_code", exchange.status)
        span.set_attribute("vgpumgr.request_id", request_id)
        if exchange.code:
            span.set_attribute("error.type", exchange.code)
        if exchange.status >= 500:
            span.set_status(StatusCode.ERROR)

    def _statement(self, statement: str, seconds: float, error: BaseException | None) -> None:
        from opentelemetry.trace import SpanKind, StatusCode

        ended_ns = time.time_ns()
        operation = statement.split(maxsplit=1)[0].upper() if statement.strip() else "statement"
        span = self._tracer.start_span(operation, kind=SpanKind.CLIENT, start_time=ended_ns - int(seconds * 1e9))
        span.set_attribute("db.system.name", self._system)
        span.set_attribute("db.operation.name", operation)
        span.set_attribute("db.query.text", " ".join(statement.split())[: statements.SHOWN_CHARACTERS])
        if error is not None:
            span.set_attribute("error.type", type(error).__name__)
            span.set_status(StatusCode.ERROR)
        span.end(end_time=ended_ns)
