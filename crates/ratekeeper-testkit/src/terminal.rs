//! A terminal with a shell in it: tmux without a window.

use std::process::Command;
use std::thread;

use tempfile::TempDir;

use crate::process::{Process, output, temp_dir};
use crate::programs;
use crate::wait::wait_until;

/// What a program must leave as it found it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TerminalMode {
    /// Whether the screen is the one for programs that fill it.
    pub is_alternate_screen: bool,
    /// Whether the cursor can be seen.
    pub has_cursor: bool,
    /// Whether lines are edited and shown while they are typed.
    pub is_line_mode: bool,
}

/// A terminal, closed on drop. If the test fails, the screen is printed.
pub struct Terminal {
    _server: Process,
    folder: TempDir,
    tty: String,
}

impl Terminal {
    /// Starts a shell in a terminal of this size.
    pub fn start(width: u16, height: u16) -> Self {
        let folder = temp_dir();
        let tmux = programs::tmux();
        let socket = folder.path().join("socket");
        let mut command = Command::new(tmux);
        command.arg("-S").arg(&socket).args(["-f", "/dev/null", "-D"]);
        let command = command.current_dir(folder.path()).env_remove("TMUX");
        let mut server = Process::spawn(command.env("SHELL", "/bin/sh").env("PS1", "$ "));
        server.wait_until_ready("tmux", |_| socket.exists());
        let mut terminal = Self { _server: server, folder, tty: String::new() };
        let (width, height) = (width.to_string(), height.to_string());
        terminal.tmux(&["new-session", "-d", "-x", &width, "-y", &height, "/bin/sh"]);
        terminal.tty = terminal.tmux(&["display-message", "-p", "#{pane_tty}"]);
        terminal
    }

    /// Types this text.
    pub fn write(&self, text: &str) {
        self.tmux(&["send-keys", "-l", "--", text]);
    }

    /// Presses a key, by the name that tmux gives it, such as `Enter` or `C-c`.
    pub fn press(&self, key: &str) {
        self.tmux(&["send-keys", key]);
    }

    /// Changes the size.
    pub fn resize(&self, width: u16, height: u16) {
        let (width, height) = (width.to_string(), height.to_string());
        self.tmux(&["resize-window", "-x", &width, "-y", &height]);
    }

    /// Returns what can be seen.
    pub fn screen(&self) -> String {
        self.tmux(&["capture-pane", "-p"])
    }

    /// Returns the modes that a program can change.
    pub fn mode(&self) -> TerminalMode {
        let flags = self.tmux(&["display-message", "-p", "#{alternate_on} #{cursor_flag}"]);
        let (alternate, cursor) = flags.split_once(' ').expect("two flags");
        let settings = output(Command::new("stty").args(["-a", "-F", &self.tty]));
        let settings = settings.unwrap_or_else(|error| panic!("stty: {error}"));
        let has = |setting: &str| settings.split([' ', '\n', ';']).any(|word| word == setting);
        TerminalMode {
            is_alternate_screen: alternate == "1",
            has_cursor: cursor == "1",
            is_line_mode: has("icanon") && has("echo"),
        }
    }

    /// Waits until the screen is as it should be.
    pub fn wait_until(&self, what: &str, mut is_expected: impl FnMut(&str) -> bool) {
        wait_until(what, || is_expected(&self.screen()));
    }

    /// Waits until this text can be seen.
    pub fn wait_for(&self, text: &str) {
        self.wait_until(text, |screen| screen.contains(text));
    }

    fn tmux(&self, args: &[&str]) -> String {
        let mut command = Command::new(programs::tmux());
        command.arg("-S").arg(self.folder.path().join("socket")).args(args).env_remove("TMUX");
        output(&mut command).unwrap_or_else(|error| panic!("tmux {args:?}: {error}"))
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("screen:\n{}", self.screen());
        }
    }
}
