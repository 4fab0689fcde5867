//! `ratekeeper check`: validates policy files, and files of envoyproxy/ratelimit.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use ratekeeper::policy::Problem;
use ratekeeper::policy::envoy::{EnvoyConfig, EnvoyErrors};
use ratekeeper::{Policy, PolicyErrors, RedisUrlError};
use serde_json::{Value as Json, json};

use crate::choices::Format;
use crate::failure::Failure;
use crate::policy_input;
use crate::serve::read_config;
use crate::style;

const EXAMPLES: &str = "\
Examples:
  Before a policy is deployed, warnings included:
    ratekeeper check policy.yaml --strict

  Files of envoyproxy/ratelimit, as \"serve --envoy-config\" reads them:
    ratekeeper check --envoy /etc/ratelimit

Exit codes: 0 all files are valid, 1 there are warnings (--strict), 2 some files are not valid.";

/// Validate policy files: print all errors at once, each with its line and column
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Check {
    /// The policy files; - is standard input
    #[arg(value_name = "FILE", required_unless_present = "envoy")]
    files: Vec<PathBuf>,

    /// Folder with files of envoyproxy/ratelimit; repeatable
    #[arg(long, value_name = "DIR")]
    envoy: Vec<PathBuf>,

    /// Exit with 1 if there are warnings
    #[arg(long)]
    strict: bool,

    /// Output format
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

impl Check {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let files = self.files.iter().map(|file| Checked::policy(file));
        let folders = self.envoy.iter().map(|folder| Checked::envoy(folder));
        let checked: Vec<_> = files.chain(folders).collect();
        let is_valid = checked.iter().all(Checked::is_valid);
        match self.format {
            Format::Text => checked.iter().try_for_each(Checked::print),
            Format::Json => {
                let files: Vec<_> = checked.iter().map(Checked::to_json).collect();
                let all = json!({ "ok": is_valid, "files": files });
                writeln!(io::stdout(), "{all:#}")
            }
        }
        .map_err(Failure::output)?;
        match is_valid {
            false => Err(Failure::Reported),
            true if self.strict && checked.iter().any(Checked::has_warnings) => {
                Err(Failure::Warnings)
            }
            true => Ok(()),
        }
    }
}

/// A file or folder, and what it contains or what is wrong.
struct Checked {
    file: String,
    content: Result<FileContent, Errors>,
}

/// What a valid file contains.
enum FileContent {
    Policy { policy: Box<Policy>, address: String },
    Envoy(EnvoyConfig),
}

/// What is wrong with a file.
enum Errors {
    Policy(PolicyErrors),
    Address(RedisUrlError),
    Envoy(EnvoyErrors),
}

impl Checked {
    fn policy(path: &Path) -> Self {
        let policy = policy_input::read(path);
        let file = match &policy {
            Err(errors) => errors.file().to_string(),
            Ok(_) if path.as_os_str() == "-" => "standard input".into(),
            Ok(_) => path.display().to_string(),
        };
        let content = policy.map_err(Errors::Policy).and_then(|policy| {
            let address = policy_input::address(policy.store()).map_err(Errors::Address)?;
            Ok(FileContent::Policy { policy: Box::new(policy), address })
        });
        Self { file, content }
    }

    fn envoy(folder: &Path) -> Self {
        let content = read_config(folder).map(FileContent::Envoy).map_err(Errors::Envoy);
        Self { file: folder.display().to_string(), content }
    }

    fn is_valid(&self) -> bool {
        self.content.is_ok()
    }

    fn has_warnings(&self) -> bool {
        self.content.as_ref().is_ok_and(|content| {
            !content.warnings().is_empty() || content.general_warning().is_some()
        })
    }

    fn print(&self) -> io::Result<()> {
        let file = &self.file;
        match &self.content {
            Ok(content) => self.print_valid(content),
            Err(Errors::Address(error)) => {
                writeln!(style::stderr(), "{}: store: {error}", style::heading(file))
            }
            Err(Errors::Policy(errors)) => print_errors(&errors.to_string()),
            Err(Errors::Envoy(errors)) => print_errors(&errors.to_string()),
        }
    }

    fn print_valid(&self, content: &FileContent) -> io::Result<()> {
        let label = style::warning("warning:");
        for warning in content.warnings() {
            let (line, column, message) = (warning.line(), warning.column(), warning.message());
            let position = style::heading(&format!("{}:{line}:{column}:", self.file));
            writeln!(style::stderr(), "{position} {label} {message}")?;
        }
        if let Some(message) = content.general_warning() {
            let position = style::heading(&format!("{}:", self.file));
            writeln!(style::stderr(), "{position} {label} {message}")?;
        }
        let (file, ok) = (style::heading(&format!("{}:", self.file)), style::ok("ok"));
        writeln!(style::stdout(), "{file} {ok}, {}", content.summary())
    }

    fn to_json(&self) -> Json {
        match &self.content {
            Ok(content) => {
                let mut json = content.to_json();
                let warnings = content.warnings().iter();
                let warnings = warnings.map(|warning| problem_json(&self.file, warning));
                let general = content.general_warning();
                let general = general.map(|message| file_json(&self.file, message));
                json["warnings"] = warnings.chain(general).collect();
                json["file"] = self.file.as_str().into();
                json["ok"] = true.into();
                json
            }
            Err(errors) => {
                json!({ "file": self.file, "ok": false, "errors": errors.to_json(&self.file) })
            }
        }
    }
}

impl FileContent {
    fn warnings(&self) -> &[Problem] {
        match self {
            Self::Policy { policy, .. } => policy.warnings(),
            Self::Envoy(_) => &[],
        }
    }

    /// Returns a warning that has no position.
    fn general_warning(&self) -> Option<&'static str> {
        match self {
            Self::Envoy(config) if config.limits().is_empty() => {
                Some("there are no limits in the files of this folder")
            }
            _ => None,
        }
    }

    fn summary(&self) -> String {
        match self {
            Self::Policy { policy, address } => {
                let limits = counted(policy.limits().len(), "limit", "limits");
                let identities = counted(policy.identities().count(), "identity", "identities");
                format!("{limits}, {identities}, store {address}")
            }
            Self::Envoy(config) => {
                let limits = counted(config.limits().len(), "limit", "limits");
                format!("{limits}, {}", counted(config.domains().len(), "domain", "domains"))
            }
        }
    }

    fn to_json(&self) -> Json {
        match self {
            Self::Policy { policy, address } => json!({
                "limits": policy.limits().len(),
                "identities": policy.identities().count(),
                "store": address,
            }),
            Self::Envoy(config) => json!({
                "limits": config.limits().len(),
                "domains": config.domains(),
            }),
        }
    }
}

impl Errors {
    fn to_json(&self, file: &str) -> Vec<Json> {
        let problems = |errors: &PolicyErrors| -> Vec<Json> {
            errors.problems().iter().map(|problem| problem_json(errors.file(), problem)).collect()
        };
        match self {
            Self::Policy(errors) => problems(errors),
            Self::Address(error) => vec![file_json(file, &format!("store: {error}"))],
            Self::Envoy(errors) => errors.files().iter().flat_map(problems).collect(),
        }
    }
}

fn print_errors(errors: &str) -> io::Result<()> {
    writeln!(style::stderr(), "{}\n", style::errors(errors))
}

fn problem_json(file: &str, problem: &Problem) -> Json {
    json!({
        "file": file,
        "line": problem.line(),
        "column": problem.column(),
        "text": problem.text(),
        "message": problem.message(),
    })
}

/// A problem of a whole file.
fn file_json(file: &str, message: &str) -> Json {
    json!({ "file": file, "line": 0, "column": 0, "text": "", "message": message })
}

fn counted(n: usize, one: &str, many: &str) -> String {
    if n == 1 { format!("1 {one}") } else { format!("{n} {many}") }
}
