//! Traces: a span per decision, exported over OTLP. Only with the feature `otel`, and only if there is a
//! collector.
//!
//! A span is recorded after the response, from times that were read anyway.

#[cfg(feature = "otel")]
mod otel;

use http::HeaderMap;
use ratekeeper::Micros;

#[cfg(feature = "otel")]
pub(crate) use otel::{is_on, record, shut_down, start};

/// A decision, as it becomes a span.
#[cfg_attr(not(feature = "otel"), allow(dead_code, reason = "there are no spans"))]
pub(crate) struct DecisionSpan<'a> {
    pub(crate) protocol: &'static str,
    pub(crate) info: &'a DecisionInfo,
    pub(crate) outcome: &'static str,
    pub(crate) began: Micros,
    pub(crate) ended: Micros,
    pub(crate) parent: Option<Parent>,
}

/// What a span records of a decision, carried from the decision to where the span is made.
#[derive(Clone, Debug, Default)]
#[cfg_attr(not(feature = "otel"), allow(dead_code, reason = "there are no spans"))]
pub(crate) struct DecisionInfo {
    /// The binding limit, if there is one.
    pub(crate) limit: Option<String>,
    /// Whether it was decided without the store, which was unavailable.
    pub(crate) is_degraded: bool,
}

/// The parent span, from the client's `traceparent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "otel"), allow(dead_code, reason = "there are no spans"))]
pub(crate) struct Parent {
    trace: u128,
    span: u64,
    flags: u8,
}

const TRACEPARENT: &str = "traceparent";

impl Parent {
    /// Reads the headers of a request, if tracing is on.
    pub(crate) fn of(headers: &HeaderMap) -> Option<Self> {
        let text = is_on().then(|| headers.get(TRACEPARENT)).flatten()?;
        Self::read(text.to_str().ok()?)
    }

    /// Parses `00-<trace>-<span>-<flags>`; later versions may have more at the end.
    fn read(text: &str) -> Option<Self> {
        let mut parts = text.trim().split('-');
        let mut part = |len: usize| {
            let part = parts.next().filter(|part| part.len() == len)?;
            part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')).then_some(part)
        };
        let (version, trace, span, flags) = (part(2)?, part(32)?, part(16)?, part(2)?);
        if version == "ff" || (version == "00" && parts.next().is_some()) {
            return None;
        }
        let trace = u128::from_str_radix(trace, 16).ok().filter(|trace| *trace != 0)?;
        let span = u64::from_str_radix(span, 16).ok().filter(|span| *span != 0)?;
        Some(Self { trace, span, flags: u8::from_str_radix(flags, 16).ok()? })
    }
}

/// Why tracing cannot be started.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TraceError {
    #[cfg(not(feature = "otel"))]
    #[error(
        "this program was built without the feature otel; build it with that, or remove --otlp"
    )]
    NotBuilt,
    #[cfg(feature = "otel")]
    #[error("--otlp: {0}")]
    Exporter(#[from] opentelemetry_otlp::ExporterBuildError),
}

/// Fails if spans are to be exported.
#[cfg(not(feature = "otel"))]
pub(crate) fn start(url: Option<&str>) -> Result<(), TraceError> {
    match url {
        None => Ok(()),
        Some(_) => Err(TraceError::NotBuilt),
    }
}

#[cfg(not(feature = "otel"))]
pub(crate) const fn is_on() -> bool {
    false
}

#[cfg(not(feature = "otel"))]
pub(crate) const fn record(_: &DecisionSpan<'_>) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_traceparent_is_parsed_or_ignored() {
        let text = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let trace = 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736;
        let parent = Parent { trace, span: 0x00f0_67aa_0ba9_02b7, flags: 1 };
        assert_eq!(Parent::read(text), Some(parent));
        let later = text.replacen("00", "01", 1) + "-more";
        assert_eq!(Parent::read(&later), Some(parent));
        for wrong in [
            "",
            "00",
            &format!("{text}-more"),
            &text.replacen("00", "ff", 1),
            &text.to_uppercase(),
            &text.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32)),
            &text.replace("00f067aa0ba902b7", &"0".repeat(16)),
            &text.replace("4bf9", "+bf9"),
        ] {
            assert_eq!(Parent::read(wrong), None, "{wrong}");
        }
    }
}
