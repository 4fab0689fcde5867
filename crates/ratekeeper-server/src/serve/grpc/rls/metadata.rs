//! Dynamic metadata of a response, in the form of envoyproxy/ratelimit: the request, and the metadata of the
//! descriptors that are not over their limits.

use prost_types::value::Kind;
use prost_types::{ListValue, Struct, Value};
use ratekeeper::policy::envoy::{Metadata, Unit};
use serde_json::Value as Json;

use super::proto::{RateLimitDescriptor, RateLimitRequest};

/// Returns the dynamic metadata of a response. Of a name in several of `passed`, the first value counts.
pub(super) fn dynamic_metadata<'m>(
    request: &RateLimitRequest,
    passed: impl Iterator<Item = &'m Metadata>,
) -> Struct {
    let mut fields = Struct::default();
    set(&mut fields, "domain", text(&request.domain));
    set(&mut fields, "descriptors", list(request.descriptors.iter().map(descriptor)));
    if request.hits_addend != 0 {
        set(&mut fields, "hitsAddend", Kind::NumberValue(f64::from(request.hits_addend)));
    }
    let mut metadata = Metadata::new();
    passed.for_each(|more| merge(&mut metadata, more));
    if !metadata.is_empty() {
        set(&mut fields, "metadata", object(&metadata));
    }
    fields
}

fn descriptor(descriptor: &RateLimitDescriptor) -> Value {
    let mut fields = Struct::default();
    let entries = descriptor.entries.iter();
    let entries = entries.map(|entry| value(text(&format!("{}={}", entry.key, entry.value))));
    set(&mut fields, "entries", list(entries));
    if let Some(limit) = &descriptor.limit {
        let unit = Unit::from_number(limit.unit)
            .map_or("UNKNOWN".into(), |unit| unit.name().to_uppercase());
        let limit = format!("requests_per_unit:{} unit:{unit}", limit.requests_per_unit);
        set(&mut fields, "limit", text(&limit));
    }
    if let Some(hits) = descriptor.hits_addend {
        set(&mut fields, "hitsAddend", number(hits));
    }
    value(Kind::StructValue(fields))
}

/// Adds names that are not there yet, also within values that both have.
fn merge(all: &mut Metadata, more: &Metadata) {
    for (name, value) in more {
        match (all.get_mut(name), value) {
            (None, _) => drop(all.insert(name.clone(), value.clone())),
            (Some(Json::Object(known)), Json::Object(value)) => merge(known, value),
            (Some(_), _) => {}
        }
    }
}

fn set(fields: &mut Struct, name: &str, kind: Kind) {
    fields.fields.insert(name.to_string(), value(kind));
}

fn value(kind: Kind) -> Value {
    Value { kind: Some(kind) }
}

fn text(text: &str) -> Kind {
    Kind::StringValue(text.to_string())
}

/// The protocol has no other numbers.
#[allow(clippy::cast_precision_loss)]
fn number(number: u64) -> Kind {
    Kind::NumberValue(number as f64)
}

fn list(values: impl Iterator<Item = Value>) -> Kind {
    Kind::ListValue(ListValue { values: values.collect() })
}

fn object(fields: &Metadata) -> Kind {
    let fields = fields.iter().map(|(name, json)| (name.clone(), value(kind_of(json))));
    Kind::StructValue(Struct { fields: fields.collect() })
}

fn kind_of(json: &Json) -> Kind {
    match json {
        Json::Null => Kind::NullValue(0),
        Json::Bool(value) => Kind::BoolValue(*value),
        Json::Number(number) => Kind::NumberValue(number.as_f64().unwrap_or_default()),
        Json::String(value) => text(value),
        Json::Array(items) => list(items.iter().map(|item| value(kind_of(item)))),
        Json::Object(fields) => object(fields),
    }
}
