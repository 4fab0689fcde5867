//! What people see in a browser: a real one, Chromium.

mod console;
mod reports;
