//! Further processes of the same program.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Stdio};

/// This program once more, in another role. Its standard input is open until it is dropped, which kills it.
pub struct Helper {
    child: Child,
    out: BufReader<ChildStdout>,
}

impl Helper {
    /// Starts this test program with one of its ignored tests, such as `module::role`.
    pub fn test(role: &str, env: &[(&str, &str)]) -> Self {
        Self::start(&[role, "--exact", "--ignored", "--nocapture", "--test-threads=1"], env)
    }

    /// Starts this program with other arguments and these environment variables in addition.
    ///
    /// # Panics
    ///
    /// If it cannot be started.
    pub fn start(args: &[&str], env: &[(&str, &str)]) -> Self {
        let mut child = Command::new(std::env::current_exe().expect("the path of this program"))
            .args(args)
            .envs(env.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("this program starts again");
        let out = BufReader::new(child.stdout.take().expect("a pipe"));
        Self { child, out }
    }

    /// Returns the first line that is not printed by the test harness.
    ///
    /// # Panics
    ///
    /// If it ends without such a line.
    pub fn line(&mut self) -> String {
        loop {
            let mut line = String::new();
            let read = self.out.read_line(&mut line).expect("a line");
            assert!(read > 0, "the process ended without output");
            let is_ours = !line.trim().is_empty()
                && !line.starts_with("running ")
                && !line.starts_with("test ");
            if is_ours {
                return line;
            }
        }
    }

    /// Returns what it prints until it ends.
    ///
    /// # Panics
    ///
    /// If that is not text.
    pub fn rest(&mut self) -> String {
        let mut text = String::new();
        self.out.read_to_string(&mut text).expect("text");
        text
    }

    /// Prints the port of a server in this process, for [`Helper::line`], and returns when the process that
    /// started this one drops the helper or ends.
    pub fn serve(port: u16) {
        println!("\n{port}");
        let _ = std::io::stdin().read(&mut [0]);
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
