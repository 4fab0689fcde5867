//! Access logs: finds the format of a log and reads requests from its lines.
//!
//! A format is a template of fields and the text between them, or the names of fields in lines of JSON; see
//! [`FORMATS`]. [`LogFormat::detect`] finds it by the first lines, and [`LogFormat::parse`] reads a line without
//! allocating, unless it has escapes.
//!
//! ```
//! use ratekeeper_lab::access_log::{LogFormat, TimeCache};
//!
//! let line = r#"192.0.2.1 - ann [10/Oct/2026:13:55:36 +0000] "GET /a?b=c HTTP/1.1" 200 2326"#;
//! let format = LogFormat::detect(&[line])?;
//! assert_eq!(format.name(), "common");
//! let record = format.parse(line, &mut TimeCache::default())?;
//! assert_eq!((&*record.method, &*record.path, record.status), ("GET", "/a", Some(200)));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod compression;
mod field;
mod format;
mod formats;
mod json;
mod lines;
mod record;
mod template;
mod time;
mod usage;

pub use compression::decompressed;
pub use field::LogFields;
pub use format::{DetectError, FORMATS, FormatEntry, LogFormat};
pub use lines::{Block, Lines};
pub use record::{AccessRecord, LineError};
pub use template::TemplateError;
pub use time::TimeCache;
