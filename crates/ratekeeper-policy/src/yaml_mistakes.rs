//! Says what is wrong with a file that is not YAML, and what was probably meant. The parser's errors are in
//! terms of its grammar; these are in terms of lines, columns, dashes and colons.

use crate::problems::quoted;
use crate::yaml::Span;

/// Returns where the mistake is and what was probably meant. `at` and `info` are the parser's error.
pub(crate) fn describe(text: &str, at: Span, info: &str) -> (Span, String) {
    let text = text.replace("\r\n", "\n");
    let lines: Vec<&str> = text.split(['\n', '\r']).collect();
    let found = tab(&lines, at, info)
        .or_else(|| alias(at, info))
        .or_else(|| quotes(at, info))
        .or_else(|| brackets(&lines, at))
        .or_else(|| block(&lines, at, info));
    found.unwrap_or_else(|| (at, format!("this is not YAML: {info}")))
}

fn tab(lines: &[&str], at: Span, info: &str) -> Option<(Span, String)> {
    let is_about_tabs = info.contains("tab");
    let (first, last) = match is_about_tabs {
        true => (1, at.line + 1),
        false => (at.line.saturating_sub(1).max(1), at.line),
    };
    for number in first..=last {
        let Some(line) = lines.get(number - 1) else { continue };
        let indent = line.len() - line.trim_start_matches([' ', '\t']).len();
        if let Some(before) = line[..indent].find('\t').filter(|_| !line.trim().is_empty()) {
            let width = line[before..indent].len();
            let why = "this line is indented with a tab; use spaces";
            return Some((Span { line: number, column: before + 1, width }, why.into()));
        }
    }
    is_about_tabs.then(|| (at, "a tab is not allowed here; use spaces".into()))
}

fn alias(at: Span, info: &str) -> Option<(Span, String)> {
    let is_alias = info.contains("unknown anchor") || info.contains("anchor or alias");
    let why = "a value that begins with * must be quoted, as in \"*.example.com\"";
    is_alias.then(|| (at, why.into()))
}

fn quotes(at: Span, info: &str) -> Option<(Span, String)> {
    if info.contains("trailing content after") {
        let why = "a quoted text ends before this; put the whole value in quotes, or none of it";
        return Some((at, why.into()));
    }
    let is_open =
        info.contains("quoted scalar, found unexpected") || info.contains("in quoted scalar");
    is_open.then(|| (at, "a text in quotes is not closed with the same quote".into()))
}

/// A bracket that is open at the position of an error.
struct Bracket {
    span: Span,
    opening: char,
}

impl Bracket {
    fn closing(&self) -> char {
        if self.opening == '[' { ']' } else { '}' }
    }
}

fn brackets(lines: &[&str], at: Span) -> Option<(Span, String)> {
    let bracket = open_bracket(lines, at)?;
    let (opening, closing, line) = (bracket.opening, bracket.closing(), bracket.span.line);
    let found = char_at(lines, at);
    // The rest of the file is read as a part of the brackets, so the end of their line is where to look.
    if found.is_none() || at.line > line {
        let why = format!("this \"{opening}\" is not closed with \"{closing}\"");
        return Some((bracket.span, why));
    }
    if matches!(found, Some('{' | '[')) {
        let why =
            "within brackets, a value that contains brackets must be quoted, as in \"/users/{id}\"";
        return Some((at, why.into()));
    }
    if matches!(found, Some(']' | '}')) {
        let why = format!(
            "expected \"{closing}\" for the \"{opening}\" in column {}",
            bracket.span.column
        );
        return Some((at, why));
    }
    let why = format!(
        "expected a comma or \"{closing}\" before this; a value with \": \" must be quoted"
    );
    Some((at, why))
}

fn char_at(lines: &[&str], at: Span) -> Option<char> {
    lines.get(at.line.checked_sub(1)?)?.chars().nth(at.column.checked_sub(1)?)
}

/// Returns the innermost bracket that is open before a position.
fn open_bracket(lines: &[&str], at: Span) -> Option<Bracket> {
    let mut open: Vec<Bracket> = Vec::new();
    let mut quote = None;
    for (index, line) in lines.iter().enumerate().take(at.line) {
        let mut before = ' ';
        for (column, c) in line.chars().enumerate() {
            let span = Span { line: index + 1, column: column + 1, width: 1 };
            if (span.line, span.column) >= (at.line, at.column) {
                return open.pop();
            }
            let is_start = before.is_whitespace() || matches!(before, '[' | '{' | ',' | ':');
            match (quote, c) {
                (Some(open), _) => quote = Some(open).filter(|open| *open != c),
                (None, '#') if before.is_whitespace() => break,
                (None, '"' | '\'') if is_start => quote = Some(c),
                (None, '[' | '{') if is_start => open.push(Bracket { span, opening: c }),
                (None, ']' | '}') => drop(open.pop()),
                _ => {}
            }
            before = c;
        }
    }
    open.pop()
}

/// A line of block style: dashes, then perhaps a name and a colon.
#[derive(Clone)]
struct BlockLine<'t> {
    number: usize,
    /// The columns of dashes that begin the line.
    dashes: Vec<usize>,
    /// The column after the indentation and the dashes.
    column: usize,
    content: &'t str,
}

impl<'t> BlockLine<'t> {
    /// Returns `None` for an empty line or a comment.
    fn parse(number: usize, line: &'t str) -> Option<Self> {
        let line = line.trim_end();
        let mut content = line.trim_start_matches(' ');
        if content.is_empty() || content.starts_with('#') {
            return None;
        }
        // Only blanks and dashes come before, so that bytes are columns.
        let column_of = |content: &str| line.len() - content.len() + 1;
        let mut dashes = Vec::new();
        while let Some(rest) = content.strip_prefix("- ") {
            dashes.push(column_of(content));
            content = rest.trim_start_matches(' ');
        }
        let column = column_of(content);
        Some(Self { number, dashes, column, content })
    }

    /// Returns the name before a colon, and what follows.
    fn entry(&self) -> Option<(&'t str, &'t str)> {
        let (name, value) = match self.content.split_once(": ") {
            Some((name, value)) => (name, value.trim()),
            None => (self.content.strip_suffix(':')?, ""),
        };
        let value = if value.starts_with('#') { "" } else { value };
        (!name.is_empty()).then_some((name, value))
    }

    fn span(&self) -> Span {
        let width = self.entry().map_or(self.content, |(name, _)| name).chars().count();
        Span { line: self.number, column: self.column, width }
    }

    /// Returns the column of the first dash, or of the content.
    fn start(&self) -> usize {
        self.dashes.first().copied().unwrap_or(self.column)
    }
}

/// A level of indentation that a line can continue.
struct IndentLevel<'t> {
    column: usize,
    is_dash: bool,
    line: BlockLine<'t>,
}

/// Parts of the parser's errors that are about lines of block style.
const BLOCK_ERRORS: [&str; 6] =
    ["a block ", "block sequence", "mapping ", "simple key", "indentation", "<document start>"];

fn block(lines: &[&str], at: Span, info: &str) -> Option<(Span, String)> {
    if !BLOCK_ERRORS.iter().any(|part| info.contains(part)) {
        return None;
    }
    let last = at.line.min(lines.len());
    let lines = lines[..last].iter().enumerate();
    let mut lines: Vec<_> =
        lines.filter_map(|(index, line)| BlockLine::parse(index + 1, line)).collect();
    let wrong = lines.pop()?;
    let above = lines.last().cloned();
    missing_punctuation(&wrong)
        .or_else(|| above.as_ref().and_then(missing_punctuation))
        .or_else(|| second_colon(&wrong, at))
        .or_else(|| wrong_indentation(&levels(&lines), &wrong))
        .or_else(|| Some((wrong.span(), other_columns(&levels(&lines)))))
}

fn other_columns(levels: &[IndentLevel<'_>]) -> String {
    let columns: Vec<_> = levels.iter().map(|level| level.column.to_string()).collect();
    let above = match columns.split_last() {
        Some((last, [])) => format!("column {last}"),
        Some((last, others)) => format!("column {} or {last}", others.join(", ")),
        None => return "this line is neither a name with a colon nor an item with a dash".into(),
    };
    format!(
        "this line does not fit those above: check its indentation, and theirs; they begin in {above}"
    )
}

/// Reports a line without a colon, or without a space after its colon or dash.
fn missing_punctuation(line: &BlockLine<'_>) -> Option<(Span, String)> {
    let content = line.content;
    let at = |width: usize| Span { line: line.number, column: line.column, width };
    let dashless = content.strip_prefix('-').filter(|rest| rest.starts_with(is_name));
    if dashless.is_some() {
        return Some((at(1), "a space is missing after the dash".into()));
    }
    let name = content.split(|c| !is_name(c)).next().filter(|name| !name.is_empty())?;
    let rest = &content[name.len()..];
    let width = name.chars().count();
    if line.entry().is_some() {
        return None;
    }
    if rest.starts_with(':') {
        return Some((at(width + 1), format!("a space is missing after \"{name}:\"")));
    }
    // Without a name, an item of a list is just a value.
    let is_word = line.dashes.is_empty() && (rest.is_empty() || rest.starts_with(' '));
    // The value is not repeated: it may be a secret.
    is_word.then(|| (at(width), format!("a colon is missing after {}", quoted(name))))
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '-')
}

/// Reports a value that contains a colon and a space.
fn second_colon(line: &BlockLine<'_>, at: Span) -> Option<(Span, String)> {
    let (name, value) = line.entry()?;
    let is_within = at.line == line.number && at.column > line.column + name.chars().count() + 1;
    let is_quoted = value.starts_with(['"', '\'']);
    (is_within && !is_quoted && value.contains(':')).then(|| {
        (at, format!("a value with a colon must be quoted; put that of {} in quotes", quoted(name)))
    })
}

/// Returns the levels of indentation that are open after these lines.
fn levels<'t>(lines: &[BlockLine<'t>]) -> Vec<IndentLevel<'t>> {
    let mut levels: Vec<IndentLevel<'t>> = Vec::new();
    for line in lines {
        levels.retain(|level| level.column < line.start());
        let dashes = line.dashes.iter().map(|column| (*column, true));
        for (column, is_dash) in dashes.chain([(line.column, false)]) {
            levels.push(IndentLevel { column, is_dash, line: line.clone() });
        }
    }
    levels
}

fn wrong_indentation(levels: &[IndentLevel<'_>], wrong: &BlockLine<'_>) -> Option<(Span, String)> {
    let (name, _) = wrong.entry().unwrap_or((wrong.content, ""));
    let named = quoted(name);
    let start = wrong.start();
    if let Some(first) = wrong.dashes.first() {
        let other = levels.iter().rfind(|level| level.is_dash)?;
        let why = format!(
            "this dash is in column {first}; the dash of the item in line {} is in column {}",
            other.line.number, other.column
        );
        let span = Span { line: wrong.number, column: *first, width: 1 };
        return (other.column != *first).then_some((span, why));
    }
    let same = levels.iter().find(|level| level.column == start);
    if let Some(dash) = same.filter(|level| level.is_dash) {
        let (first, _) = dash.line.entry()?;
        let why = match first == name {
            true => format!("a dash is missing: write \"- {name}\" to begin another item"),
            false => format!(
                "{named} is below a dash; begin it in column {}, like {} in line {}, or with a dash \
                 if it is another item",
                dash.line.column,
                quoted(first),
                dash.line.number
            ),
        };
        return Some((wrong.span(), why));
    }
    let field = levels.iter().rfind(|level| !level.is_dash && level.line.entry().is_some())?;
    let (known, value) = field.line.entry()?;
    let like = format!("like {} in line {}", quoted(known), field.line.number);
    let column = field.column;
    (same.is_none() && (start < column || !value.is_empty())).then(|| {
        let direction = if start < column { "too little" } else { "too far" };
        let why = format!("{named} is indented {direction}; begin it in column {column}, {like}");
        (wrong.span(), why)
    })
}
