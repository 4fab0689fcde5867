//! Generates the JSON Schema of a file format, for editors.

use serde_json::{Map, Value as Json, json};

use crate::schema::{Field, Schema, Section};

/// Returns the JSON Schema of a file with this root section.
pub(crate) fn json_schema(root: &'static Section, title: &str) -> Json {
    let mut definitions = Map::new();
    let of_root = section_json(root, &mut definitions);
    let mut schema = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": title,
    });
    if let (Json::Object(schema), Json::Object(of_root)) = (&mut schema, of_root) {
        schema.extend(of_root);
        schema.insert("$defs".into(), Json::Object(definitions));
    }
    schema
}

fn schema_json(schema: &Schema, definitions: &mut Map<String, Json>) -> Json {
    match schema {
        Schema::Text(what) => {
            json!({ "type": ["string", "number", "boolean"], "minLength": 1, "description": what })
        }
        Schema::Anything(what) => json!({ "description": what }),
        Schema::Form { what, pattern } => {
            json!({ "type": ["string", "number"], "description": what, "pattern": pattern })
        }
        Schema::Integer(least, most) => {
            json!({ "type": "integer", "minimum": least, "maximum": most })
        }
        Schema::Boolean => json!({ "type": "boolean" }),
        Schema::Choice(words) => {
            let one = |(word, doc): &(&str, &str)| json!({ "const": word, "description": doc });
            json!({ "oneOf": words.iter().map(one).collect::<Vec<_>>() })
        }
        Schema::List(item) => {
            json!({ "type": "array", "minItems": 1, "items": schema_json(item, definitions) })
        }
        Schema::OneOrMany(item) => {
            let item = schema_json(item, definitions);
            json!({ "anyOf": [item.clone(), { "type": "array", "minItems": 1, "items": item }] })
        }
        Schema::Map(of) => {
            let of = schema_json(of, definitions);
            json!({ "type": "object", "minProperties": 1, "additionalProperties": of })
        }
        Schema::Section(section) => reference(section, definitions),
        Schema::SectionOrMap { section, map } => {
            json!({ "anyOf": [reference(section, definitions), schema_json(map, definitions)] })
        }
        Schema::Tagged { tagged, plain, .. } => {
            json!({ "anyOf": [reference(plain, definitions), reference(tagged, definitions)] })
        }
        Schema::Either(schemas) => {
            let each = schemas.iter().map(|schema| schema_json(schema, definitions));
            json!({ "anyOf": each.collect::<Vec<_>>() })
        }
    }
}

/// Extends a JSON Schema to accept an empty value.
fn or_empty(schema: &Json, field: &Field) -> Json {
    let nothing = match field.is_required {
        true => json!({ "const": [] }),
        false => json!({ "enum": [null, [], {}] }),
    };
    json!({ "anyOf": [schema, nothing] })
}

/// Returns a reference to the definition of a section. Sections may be recursive.
fn reference(section: &Section, definitions: &mut Map<String, Json>) -> Json {
    let name = section.what.trim_start_matches(['a', 'n']).trim().replace(' ', "_");
    if !definitions.contains_key(&name) {
        definitions.insert(name.clone(), Json::Null);
        let schema = section_json(section, definitions);
        definitions.insert(name.clone(), schema);
    }
    json!({ "$ref": format!("#/$defs/{name}") })
}

fn section_json(section: &Section, definitions: &mut Map<String, Json>) -> Json {
    let mut properties = Map::new();
    for field in section.fields {
        let schema = schema_json(&field.schema, definitions);
        let mut schema = if field.may_be_empty { or_empty(&schema, field) } else { schema };
        schema["description"] = field.doc.into();
        properties.insert(field.name.into(), schema);
    }
    let required = section.fields.iter().filter(|field| field.is_required).map(|field| field.name);
    let mut schema = json!({
        "type": "object",
        "additionalProperties": false,
        "properties": properties,
        "required": required.collect::<Vec<_>>(),
    });
    if !section.one_of.is_empty() {
        let one = |name: &&str| json!({ "required": [name] });
        schema["oneOf"] = section.one_of.iter().map(one).collect();
    }
    schema
}
