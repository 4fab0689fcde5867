//! Parses YAML into a tree whose nodes have spans: of policies, and of other files.
//!
//! ```
//! use ratekeeper_policy::yaml;
//!
//! let (root, mut problems) = yaml::read("scenario.yaml", "rate: 5/x\n");
//! let rate = root.as_ref().and_then(|root| root.get("rate")).expect("it is there");
//! problems.report(rate.span, "it has no such unit");
//! assert!(problems.into_errors().to_string().starts_with("scenario.yaml:1:7: it has no such unit"));
//! ```

use std::collections::HashMap;

use saphyr_parser::{Event, Parser, ScalarStyle, Span as Marks, StrInput};

pub use crate::problems::Problems;
use crate::problems::quoted;
use crate::yaml_mistakes;

/// Maximum number of nodes. Expanded aliases count each time, and long texts as several nodes.
const NODES_MAX: usize = 200_000;
const BYTES_PER_NODE: usize = 32;
const DEPTH_MAX: usize = 64;

/// A position in a file. Lines and columns count from 1, in characters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// The line.
    pub line: usize,
    /// The column.
    pub column: usize,
    /// Number of characters in the line.
    pub width: usize,
}

/// A value and where it is.
#[derive(Clone, Debug)]
pub struct Node {
    /// Where it is.
    pub span: Span,
    /// What it is.
    pub value: Value,
}

/// A value.
#[derive(Clone, Debug)]
pub enum Value {
    /// Text, a number or a boolean.
    Scalar {
        /// As it is written, without quotes.
        text: String,
        /// Whether it is in quotes.
        is_quoted: bool,
    },
    /// A list.
    List(Vec<Node>),
    /// Names and their values.
    Map(Vec<(Node, Node)>),
}

impl Node {
    /// Returns the text of a scalar.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Scalar { text, .. } => Some(text),
            _ => None,
        }
    }

    /// Whether the value is null or absent.
    #[must_use]
    pub fn is_null(&self) -> bool {
        let Value::Scalar { text, is_quoted } = &self.value else { return false };
        !is_quoted && matches!(text.as_str(), "" | "~" | "null")
    }

    /// Whether the value is null, or an empty list or map.
    pub(crate) fn is_empty(&self) -> bool {
        match &self.value {
            Value::Scalar { .. } => self.is_null(),
            Value::List(items) => items.is_empty(),
            Value::Map(entries) => entries.is_empty(),
        }
    }

    /// Returns the value of a field, unless it is null.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Node> {
        let found = self.entries().iter().find(|(key, _)| key.text() == Some(name));
        found.map(|(_, value)| value).filter(|value| !value.is_null())
    }

    /// Returns the fields of a map.
    #[must_use]
    pub fn entries(&self) -> &[(Node, Node)] {
        match &self.value {
            Value::Map(entries) => entries,
            _ => &[],
        }
    }

    /// Returns the items of a list; a single value is a list of one.
    #[must_use]
    pub fn items(&self) -> &[Node] {
        match &self.value {
            Value::List(items) => items,
            _ => std::slice::from_ref(self),
        }
    }
}

/// Parses a file of this name. Returns its root and what is wrong so far. Without a root, the file is empty, or
/// invalid, which is then reported.
#[must_use]
pub fn read(file: &str, text: &str) -> (Option<Node>, Problems) {
    let mut problems = Problems::new(file, text);
    let root = parse(text, &mut problems);
    (root, problems)
}

/// Parses a document. Returns `None` if it is empty, or invalid, which is then reported.
pub(crate) fn parse(text: &str, problems: &mut Problems) -> Option<Node> {
    // Some editors write a byte order mark.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let parser = Parser::new_from_str(text);
    let mut builder = TreeBuilder { text, parser, anchors: HashMap::new(), nodes: 0, deepest: 0 };
    match builder.document(problems) {
        Ok(node) => node,
        Err((span, why)) => {
            problems.hide_likely_secrets();
            problems.report(span, why);
            None
        }
    }
}

type YamlError = (Span, String);

struct TreeBuilder<'t> {
    text: &'t str,
    parser: Parser<'t, StrInput<'t>>,
    anchors: HashMap<usize, Anchor>,
    nodes: usize,
    /// The greatest depth reached within the current node.
    deepest: usize,
}

/// The node that an alias refers to, with its number of nodes and its height.
#[derive(Clone)]
struct Anchor {
    node: Node,
    size: usize,
    height: usize,
}

impl<'t> TreeBuilder<'t> {
    fn document(&mut self, problems: &mut Problems) -> Result<Option<Node>, YamlError> {
        loop {
            match self.next()? {
                (Event::StreamStart | Event::DocumentStart(_), _) => {}
                (Event::StreamEnd | Event::DocumentEnd, _) => return Ok(None),
                (event, span) => {
                    let root = self.node(event, span, 0, problems)?;
                    self.expect_end()?;
                    return Ok(Some(root));
                }
            }
        }
    }

    /// Rejects a second document, which would otherwise be ignored.
    fn expect_end(&mut self) -> Result<(), YamlError> {
        loop {
            match self.next()? {
                (Event::StreamEnd, _) => return Ok(()),
                (Event::DocumentStart(_), span) => {
                    return Err((span, "a file is one document; remove this one".into()));
                }
                _ => {}
            }
        }
    }

    fn next(&mut self) -> Result<(Event<'t>, Span), YamlError> {
        match self.parser.next_event() {
            Some(Ok((event, marks))) => Ok((event, span_of(marks))),
            Some(Err(error)) => {
                let mark = error.marker();
                let span = Span { line: mark.line(), column: mark.col() + 1, width: 1 };
                Err(yaml_mistakes::describe(self.text, span, error.info()))
            }
            None => Ok((Event::StreamEnd, Span::default())),
        }
    }

    fn node(
        &mut self,
        event: Event<'t>,
        span: Span,
        depth: usize,
        problems: &mut Problems,
    ) -> Result<Node, YamlError> {
        let nodes_before = self.nodes;
        self.count(1, span)?;
        self.go_down(depth, span)?;
        if let Event::Alias(anchor) = event {
            return self.alias(anchor, depth, span);
        }
        let deepest_before = std::mem::replace(&mut self.deepest, depth);
        let (value, anchor) = match event {
            Event::Scalar(text, style, anchor, _) => {
                self.count(text.len() / BYTES_PER_NODE, span)?;
                let is_quoted = style != ScalarStyle::Plain;
                (Value::Scalar { text: text.into_owned(), is_quoted }, anchor)
            }
            Event::SequenceStart(anchor, _) => (self.list(depth, problems)?, anchor),
            Event::MappingStart(anchor, _) => (self.map(depth, problems)?, anchor),
            _ => return Err((span, "a value is missing here".into())),
        };
        let node = Node { span, value };
        if anchor != 0 {
            let (size, height) = (self.nodes - nodes_before, self.deepest - depth);
            self.anchors.insert(anchor, Anchor { node: node.clone(), size, height });
        }
        self.deepest = self.deepest.max(deepest_before);
        Ok(node)
    }

    fn go_down(&mut self, depth: usize, span: Span) -> Result<(), YamlError> {
        self.deepest = self.deepest.max(depth);
        match depth > DEPTH_MAX {
            true => Err((span, format!("nested more than {DEPTH_MAX} deep"))),
            false => Ok(()),
        }
    }

    fn list(&mut self, depth: usize, problems: &mut Problems) -> Result<Value, YamlError> {
        let mut items = Vec::new();
        loop {
            match self.next()? {
                (Event::SequenceEnd, _) => return Ok(Value::List(items)),
                (event, span) => items.push(self.node(event, span, depth + 1, problems)?),
            }
        }
    }

    fn map(&mut self, depth: usize, problems: &mut Problems) -> Result<Value, YamlError> {
        let mut entries: Vec<(Node, Node)> = Vec::new();
        let mut known = HashMap::new();
        loop {
            let (event, span) = self.next()?;
            if event == Event::MappingEnd {
                return Ok(Value::Map(entries));
            }
            let key = self.node(event, span, depth + 1, problems)?;
            let (event, span) = self.next()?;
            let value = self.node(event, span, depth + 1, problems)?;
            let Some(name) = key.text() else {
                problems.report(key.span, "a name must be text");
                continue;
            };
            match known.insert(name.to_string(), key.span.line) {
                Some(line) => {
                    let name = quoted(name);
                    problems
                        .report(key.span, format!("{name} is here twice, first in line {line}"));
                }
                None => entries.push((key, value)),
            }
        }
    }

    /// Returns a copy of the anchored node. Problems in it are reported at the anchor.
    fn alias(&mut self, anchor: usize, depth: usize, span: Span) -> Result<Node, YamlError> {
        let Some(Anchor { size, height, .. }) = self.anchors.get(&anchor) else {
            return Err((span, "this alias contains itself".into()));
        };
        let (size, height) = (*size, *height);
        self.count(size, span)?;
        self.go_down(depth + height, span)?;
        Ok(self.anchors[&anchor].node.clone())
    }

    fn count(&mut self, nodes: usize, span: Span) -> Result<(), YamlError> {
        self.nodes += nodes;
        match self.nodes > NODES_MAX {
            true => Err((span, format!("a file may have {NODES_MAX} values at most"))),
            false => Ok(()),
        }
    }
}

fn span_of(marks: Marks) -> Span {
    let (start, end) = (marks.start, marks.end);
    let width = match start.line() == end.line() {
        true => end.col().saturating_sub(start.col()),
        false => 0,
    };
    Span { line: start.line(), column: start.col() + 1, width }
}
