//! Writes a plan as a policy file.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;
use ratekeeper::policy::NoSources;
use ratekeeper::{Policy, PolicyErrors};
use ratekeeper_lab::plan::{CapacityPlan, Division, PolicyOptions};

use crate::command_line::command_line;
use crate::failure::Failure;

#[derive(Args)]
#[command(next_help_heading = "Options")]
pub(super) struct PolicyFile {
    /// Write a policy to this file, which must not exist
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,

    /// Overwrite the file
    #[arg(long, requires = "write")]
    force: bool,
}

/// What a policy from capacity takes from requests.
#[derive(Args)]
pub(super) struct PolicyHeaders {
    /// Guarantee each class its rate out of one limit, so that others can use what it leaves
    #[arg(long, requires = "write", requires = "split")]
    guarantee: bool,

    /// Header that names the class of a request
    #[arg(long, value_name = "NAME", default_value = "x-class", value_parser = header, conflicts_with = "log")]
    class_header: String,

    /// Header that names the user of a request
    #[arg(long, value_name = "NAME", default_value = "x-user", value_parser = header, conflicts_with = "log")]
    user_header: String,
}

/// Why a policy file is not written.
#[derive(Debug, thiserror::Error)]
enum WriteError {
    #[error("{} exists already; overwrite it with --force", .0.display())]
    Exists(PathBuf),
    #[error("cannot write {}", .0.display())]
    Io(PathBuf, #[source] io::Error),
    #[error("this plan is no valid policy; use rounder numbers")]
    Invalid(#[source] PolicyErrors),
}

#[derive(Debug, thiserror::Error)]
#[error("a header has letters, digits and hyphens")]
struct HeaderError;

fn header(text: &str) -> Result<String, HeaderError> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '-';
    match text.starts_with(|c: char| c.is_ascii_alphabetic()) && text.chars().all(is_name) {
        true => Ok(text.to_ascii_lowercase()),
        false => Err(HeaderError),
    }
}

impl PolicyHeaders {
    pub(super) fn policy(&self, plan: &CapacityPlan, division: &Division, command: &str) -> String {
        let options = PolicyOptions {
            guarantee: self.guarantee,
            class_header: &self.class_header,
            user_header: &self.user_header,
            command,
        };
        division.to_policy(plan, &options)
    }
}

impl PolicyFile {
    /// Writes the policy that `text` makes for this command line, if a file is given.
    pub(super) fn write(&self, text: impl FnOnce(&str) -> String) -> Result<(), Failure> {
        let Some(path) = &self.write else { return Ok(()) };
        let text = text(&command_line());
        let name = path.display().to_string();
        Policy::parse(&name, &text, &NoSources)
            .map_err(|errors| Failure::input(WriteError::Invalid(errors)))?;
        let mut file = OpenOptions::new();
        let file = match self.force {
            true => file.create(true).truncate(true),
            false => file.create_new(true),
        };
        let written =
            file.write(true).open(path).and_then(|mut file| file.write_all(text.as_bytes()));
        written.map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => Failure::input(WriteError::Exists(path.clone())),
            _ => Failure::io(WriteError::Io(path.clone(), error)),
        })
    }
}
