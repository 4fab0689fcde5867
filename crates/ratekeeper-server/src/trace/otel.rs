//! Spans by OpenTelemetry.

use std::env;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use opentelemetry::trace::{
    Span as _, SpanContext, SpanId, SpanKind, TraceContextExt as _, TraceFlags, TraceId,
    TraceState, Tracer as _, TracerProvider as _,
};
use opentelemetry::{Context, KeyValue};
use opentelemetry_otlp::{SpanExporter, WithExportConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};
use ratekeeper::Micros;

use super::{DecisionSpan, Parent, TraceError};

static TRACES: OnceLock<Traces> = OnceLock::new();

/// The variables of OpenTelemetry; the second is for traces alone.
const ENDPOINTS: [&str; 2] = ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"];
const SERVICE: &str = "OTEL_SERVICE_NAME";

struct Traces {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
}

/// Exports spans to the collector at this address, or at the one that the environment names. Without
/// either there are none. Must not be called in a runtime.
///
/// # Errors
///
/// If the address is invalid.
pub(crate) fn start(url: Option<&str>) -> Result<(), TraceError> {
    let is_named = |name: &str| env::var_os(name).is_some_and(|value| !value.is_empty());
    if url.is_none() && !ENDPOINTS.iter().any(|name| is_named(name)) {
        return Ok(());
    }
    let mut exporter = SpanExporter::builder().with_http();
    if let Some(url) = url {
        exporter = exporter.with_endpoint(format!("{}/v1/traces", url.trim_end_matches('/')));
    }
    let exporter = exporter.build()?;
    let mut resource = Resource::builder();
    if !is_named(SERVICE) {
        resource = resource.with_service_name("ratekeeper");
    }
    let provider = SdkTracerProvider::builder().with_batch_exporter(exporter);
    let provider = provider.with_resource(resource.build()).build();
    let tracer = provider.tracer("ratekeeper");
    let _ = TRACES.set(Traces { provider, tracer });
    Ok(())
}

/// Exports the remaining spans, before the process exits.
pub(crate) fn shut_down() {
    if let Some(traces) = TRACES.get()
        && let Err(error) = traces.provider.shutdown()
    {
        tracing::warn!(%error, "the last spans were not exported");
    }
}

#[inline]
pub(crate) fn is_on() -> bool {
    TRACES.get().is_some()
}

/// Records the span of a decision.
#[inline]
pub(crate) fn record(decision: &DecisionSpan<'_>) {
    if let Some(traces) = TRACES.get() {
        traces.record(decision);
    }
}

impl Traces {
    fn record(&self, decision: &DecisionSpan<'_>) {
        let DecisionSpan { protocol, info, outcome, began, ended, parent } = decision;
        let mut attributes = vec![
            KeyValue::new("ratekeeper.protocol", *protocol),
            KeyValue::new("ratekeeper.outcome", *outcome),
            KeyValue::new("ratekeeper.degraded", info.is_degraded),
        ];
        let limit = info.limit.clone();
        attributes.extend(limit.map(|limit| KeyValue::new("ratekeeper.limit", limit)));
        let span = self.tracer.span_builder("ratekeeper.decide").with_kind(SpanKind::Server);
        let span = span.with_start_time(system_time(*began)).with_attributes(attributes);
        let context = parent.map_or_else(Context::new, Parent::context);
        span.start_with_context(&self.tracer, &context).end_with_timestamp(system_time(*ended));
    }
}

impl Parent {
    fn context(self) -> Context {
        let (trace, span) = (self.trace.to_be_bytes(), self.span.to_be_bytes());
        let remote = SpanContext::new(
            TraceId::from_bytes(trace),
            SpanId::from_bytes(span),
            TraceFlags::new(self.flags),
            true,
            TraceState::default(),
        );
        Context::new().with_remote_span_context(remote)
    }
}

fn system_time(at: Micros) -> SystemTime {
    UNIX_EPOCH + Duration::from_micros(at.get())
}
