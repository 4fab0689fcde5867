//! The manifests in `deploy/kubernetes`.

use saphyr::{LoadableYamlNode, Scalar, Yaml};
use serde_json::{Map, Value};

/// Two servers over one Redis.
pub(crate) const RATEKEEPER: &str = include_str!("../../../../deploy/kubernetes/ratekeeper.yaml");
/// An application with an Envoy sidecar.
pub(crate) const SIDECAR: &str = include_str!("../../../../deploy/kubernetes/envoy-sidecar.yaml");

/// Parses the documents of a file.
pub(crate) fn documents(text: &str) -> Vec<Value> {
    Yaml::load_from_str(text).expect("YAML").iter().map(to_json).collect()
}

/// Returns the document of this kind and name.
pub(crate) fn document(text: &str, kind: &str, name: &str) -> Value {
    let is_it = |one: &Value| one["kind"] == kind && one["metadata"]["name"] == name;
    documents(text).into_iter().find(is_it).unwrap_or_else(|| panic!("there is no {kind} {name}"))
}

/// Returns a file of a `ConfigMap`.
pub(crate) fn file(text: &str, map: &str, name: &str) -> String {
    let file = &document(text, "ConfigMap", map)["data"][name];
    file.as_str().unwrap_or_else(|| panic!("there is no {name}")).to_string()
}

fn to_json(yaml: &Yaml<'_>) -> Value {
    let key = |key: &Yaml<'_>| key.as_str().expect("keys are strings").to_string();
    match yaml {
        Yaml::Value(Scalar::Null) => Value::Null,
        Yaml::Value(Scalar::Boolean(boolean)) => (*boolean).into(),
        Yaml::Value(Scalar::Integer(number)) => (*number).into(),
        Yaml::Value(Scalar::String(text)) => text.to_string().into(),
        Yaml::Sequence(items) => items.iter().map(to_json).collect(),
        Yaml::Mapping(fields) => {
            let fields = fields.iter().map(|(name, value)| (key(name), to_json(value)));
            fields.collect::<Map<_, _>>().into()
        }
        other => panic!("unexpected {other:?}"),
    }
}
