//! Text as text, whatever it contains: in HTML and XML, in a script block, in Markdown.

use std::fmt::{self, Display, Formatter, Write};

/// Text for an element or a quoted attribute of HTML, SVG or XML.
pub(crate) struct Html<'a>(pub(crate) &'a str);

impl Display for Html<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '&' => f.write_str("&amp;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                '\n' | '\t' => f.write_char(c)?,
                // XML has no control characters, and those for the direction of text would hide what follows.
                c if is_hidden(c) => f.write_char(char::REPLACEMENT_CHARACTER)?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

/// Text on one line of Markdown, without any mark-up.
pub(crate) struct Markdown<'a>(pub(crate) &'a str);

impl Display for Markdown<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '&' => f.write_str("&amp;")?,
                // Without the word joiner, `@name` is a mention.
                '@' => f.write_str("@\u{2060}")?,
                '\\' | '`' | '*' | '_' | '[' | ']' | '|' | '#' | '~' | '!' => {
                    f.write_char('\\')?;
                    f.write_char(c)?;
                }
                '\n' | '\t' => f.write_char(' ')?,
                c if is_hidden(c) => f.write_char(char::REPLACEMENT_CHARACTER)?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

/// Escapes JSON so that it cannot end the script element that contains it.
pub(crate) fn json_in_html(json: &str) -> String {
    json.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026")
}

fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{fffe}' | '\u{ffff}')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn mark_up_is_shown_as_text() {
        let text = "<b a='1' c=\"2\">&\u{0}\u{202e}";
        assert_eq!(
            Html(text).to_string(),
            "&lt;b a=&#39;1&#39; c=&quot;2&quot;&gt;&amp;\u{fffd}\u{fffd}"
        );
        assert_eq!(Markdown("a|b *c* @d\n<e>").to_string(), "a\\|b \\*c\\* @\u{2060}d &lt;e&gt;");
    }

    proptest! {
        #[test]
        fn nothing_can_end_an_element_or_an_attribute(text in ".*") {
            let escaped = Html(&text).to_string();
            prop_assert!(!escaped.contains(['<', '>', '"', '\'']));
        }

        #[test]
        fn json_means_the_same_and_cannot_end_a_script(text in ".*|</script><!--") {
            let json = serde_json::to_string(&text).unwrap();
            let escaped = json_in_html(&json);
            prop_assert!(!escaped.contains(['<', '>', '&']));
            prop_assert_eq!(serde_json::from_str::<String>(&escaped).unwrap(), text);
        }
    }
}
