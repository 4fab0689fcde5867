//! What people see in a browser: a real one, Chromium.

mod access;
mod console;
mod pages;
mod reports;
mod screenshots;
mod support;
