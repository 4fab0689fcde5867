//! Chromium, driven by WebDriver: JSON over HTTP to ChromeDriver.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::http1::Client;
use crate::port::free_port;
use crate::process::{Process, temp_dir};
use crate::programs;
use crate::wait::wait_until;

/// The name under which WebDriver refers to an element.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// The Escape key, as WebDriver writes it.
pub const ESCAPE: &str = "\u{e00c}";
/// The right arrow key.
pub const ARROW_RIGHT: &str = "\u{e014}";
/// The Enter key.
pub const ENTER: &str = "\u{e007}";
/// The Tab key.
pub const TAB: &str = "\u{e004}";

/// A browser without a window, closed on drop. Every failure is a panic that says what was asked.
pub struct Browser {
    _driver: Process,
    _profile: TempDir,
    address: SocketAddr,
    session: String,
}

impl Browser {
    /// Starts a browser with an empty profile and a page of 1000 by 800 pixels.
    pub fn start() -> Self {
        let port = free_port();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let profile = temp_dir();
        let mut driver = Process::spawn_in(
            profile.path(),
            &programs::chromedriver(),
            &[format!("--port={port}")],
        );
        driver.wait_until_ready("ChromeDriver", |_| TcpStream::connect(address).is_ok());
        let mut browser =
            Self { _driver: driver, _profile: profile, address, session: String::new() };
        let session = browser.send("POST", "/session", &capabilities(browser._profile.path()));
        browser.session = session["sessionId"].as_str().expect("a session").to_string();
        browser.resize(1000, 800);
        browser
    }

    /// Opens an address and waits until it is loaded.
    pub fn open(&self, url: &str) {
        self.post("/url", &json!({ "url": url }));
    }

    /// Opens a file.
    pub fn open_file(&self, file: &Path) {
        let file = file.canonicalize().expect("the file exists");
        self.open(&format!("file://{}", file.display()));
    }

    /// Runs JavaScript, the body of a function with `arguments`, and returns its result.
    pub fn run(&self, script: &str, arguments: &[Value]) -> Value {
        self.post("/execute/sync", &json!({ "script": script, "args": arguments }))
    }

    /// Returns how many elements a CSS selector matches.
    pub fn count(&self, selector: &str) -> u64 {
        let script = "return document.querySelectorAll(arguments[0]).length";
        self.run(script, &[selector.into()]).as_u64().expect("a number")
    }

    /// Returns the visible text of the first element that a CSS selector matches, or of the page.
    pub fn text(&self, selector: &str) -> String {
        let script = "return document.querySelector(arguments[0])?.innerText ?? null";
        let text = self.run(script, &[selector.into()]);
        text.as_str().map(str::to_string).unwrap_or_default()
    }

    /// Waits until `selector` matches an element whose visible text contains `text`.
    pub fn wait_for(&self, selector: &str, text: &str) {
        let script = "return [...document.querySelectorAll(arguments[0])]\
                      .some((e) => e.innerText.includes(arguments[1]) && e.checkVisibility())";
        wait_until(&format!("{selector} shows {text:?}"), || {
            self.run(script, &[selector.into(), text.into()]) == true
        });
    }

    /// Clicks in the middle of the first element that a CSS selector matches.
    pub fn click(&self, selector: &str) {
        let element = self.element(selector);
        self.post(&format!("/element/{element}/click"), &json!({}));
    }

    /// Replaces the text of a field, as if typed.
    pub fn fill(&self, selector: &str, text: &str) {
        let element = self.element(selector);
        self.post(&format!("/element/{element}/clear"), &json!({}));
        self.keys(selector, text);
    }

    /// Types into an element.
    pub fn keys(&self, selector: &str, text: &str) {
        let element = self.element(selector);
        self.post(&format!("/element/{element}/value"), &json!({ "text": text }));
    }

    /// Presses and releases a key, wherever the focus is.
    pub fn press(&self, key: &str) {
        let action = |kind| json!({ "type": kind, "value": key });
        let keyboard = json!({ "type": "key", "id": "keyboard", "actions": [action("keyDown"), action("keyUp")] });
        self.post("/actions", &json!({ "actions": [keyboard] }));
    }

    /// Moves the pointer over an element: these parts of its width and height, from -0.5 to 0.5, from its middle.
    /// With `drag_to`, presses there, moves to these parts, and releases.
    pub fn pointer(&self, selector: &str, at: (f64, f64), drag_to: Option<(f64, f64)>) {
        let script = "const box = document.querySelector(arguments[0]).getBoundingClientRect(); \
                      return [box.width, box.height]";
        let size = self.run(script, &[selector.into()]);
        let pixels =
            |part: f64, i: usize| (part * size[i].as_f64().expect("a size")).round() as i64;
        let origin = json!({ ELEMENT: self.element(selector) });
        let move_to = |(x, y): (f64, f64)| json!({ "type": "pointerMove", "duration": 0, "x": pixels(x, 0), "y": pixels(y, 1), "origin": origin });
        let mut actions = vec![move_to(at)];
        if let Some(to) = drag_to {
            let button = |kind| json!({ "type": kind, "button": 0 });
            actions.extend([button("pointerDown"), move_to(to), button("pointerUp")]);
        }
        let pointer = json!({ "type": "pointer", "id": "mouse", "actions": actions });
        self.post("/actions", &json!({ "actions": [pointer] }));
    }

    /// Sets the size of the page.
    pub fn resize(&self, width: u32, height: u32) {
        let size =
            json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.devtools("Emulation.setDeviceMetricsOverride", &size);
    }

    /// Sets what style sheets ask for, such as `prefers-color-scheme` to `dark`.
    pub fn prefer(&self, feature: &str, value: &str) {
        let features = json!([{ "name": feature, "value": value }]);
        self.devtools("Emulation.setEmulatedMedia", &json!({ "features": features }));
    }

    /// Returns what was written to the console since the last call, warnings and errors: also uncaught exceptions,
    /// failed requests and what a content security policy forbids.
    pub fn problems(&self) -> Vec<String> {
        let entries = self.post("/se/log", &json!({ "type": "browser" }));
        let entries = entries.as_array().expect("a list").iter();
        let bad = entries.filter(|entry| entry["level"] == "SEVERE" || entry["level"] == "WARNING");
        bad.map(|entry| entry["message"].as_str().unwrap_or_default().to_string()).collect()
    }

    /// Returns the addresses that pages requested since the last call, without those of the browser's own start page.
    pub fn requests(&self) -> Vec<String> {
        let entries = self.post("/se/log", &json!({ "type": "performance" }));
        let events = entries.as_array().expect("a list").iter().map(|entry| {
            let message = entry["message"].as_str().expect("text");
            serde_json::from_str::<Value>(message).expect("JSON")["message"].take()
        });
        let requests = events.filter(|event| event["method"] == "Network.requestWillBeSent");
        requests
            .filter_map(|event| Some(event["params"]["request"]["url"].as_str()?.to_string()))
            .filter(|url| !url.starts_with("chrome://") && !url.starts_with("data:"))
            .collect()
    }

    /// Writes a picture of the whole page to the folder `screens` of the build directory, and returns its path.
    pub fn screenshot(&self, name: &str) -> PathBuf {
        self.capture(name, true)
    }

    /// Writes a picture of what a window of the current size shows.
    pub fn screenshot_of_window(&self, name: &str) -> PathBuf {
        self.capture(name, false)
    }

    fn capture(&self, name: &str, is_whole_page: bool) -> PathBuf {
        let options = json!({ "format": "png", "captureBeyondViewport": is_whole_page });
        let picture = self.devtools("Page.captureScreenshot", &options);
        let bytes = STANDARD.decode(picture["data"].as_str().expect("a picture")).expect("base64");
        let file = screens().join(format!("{name}.png"));
        fs::write(&file, bytes).expect("write a picture");
        file
    }

    fn element(&self, selector: &str) -> String {
        let query = json!({ "using": "css selector", "value": selector });
        let element = self.post("/element", &query);
        element[ELEMENT].as_str().expect("an element").to_string()
    }

    fn devtools(&self, command: &str, parameters: &Value) -> Value {
        self.post("/goog/cdp/execute", &json!({ "cmd": command, "params": parameters }))
    }

    fn post(&self, path: &str, body: &Value) -> Value {
        self.send("POST", &format!("/session/{}{path}", self.session), body)
    }

    fn send(&self, method: &str, path: &str, body: &Value) -> Value {
        let text = body.to_string();
        let mut client = Client::connect(self.address);
        let response = client.request(&format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{text}",
            text.len()
        ));
        let answer: Value = serde_json::from_str(&response.body).expect("JSON");
        let value = &answer["value"];
        let error = value["message"].as_str().unwrap_or_default();
        assert!(response.status() == 200, "{path} {text}: {error}");
        value.clone()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // A browser that hangs ends with its driver.
        if !self.session.is_empty() && !std::thread::panicking() {
            self.send("DELETE", &format!("/session/{}", self.session), &json!({}));
        }
    }
}

fn capabilities(profile: &Path) -> Value {
    let arguments = [
        "--headless".to_string(),
        // Chromium does not run as root with a sandbox.
        "--no-sandbox".to_string(),
        "--disable-gpu".to_string(),
        "--disable-dev-shm-usage".to_string(),
        "--hide-scrollbars".to_string(),
        // The browser ends when its driver does.
        "--remote-debugging-pipe".to_string(),
        format!("--user-data-dir={}", profile.join("profile").display()),
    ];
    let options = json!({ "binary": programs::chromium(), "args": arguments });
    let logs = json!({ "browser": "ALL", "performance": "ALL" });
    json!({ "capabilities": { "alwaysMatch": {
        "browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": logs,
    }}})
}

/// Returns the folder for pictures, beside the test's executable.
fn screens() -> PathBuf {
    let executable = std::env::current_exe().expect("this program has a path");
    let target = executable
        .ancestors()
        .find(|folder| folder.ends_with("debug") || folder.ends_with("release"));
    let folder = target.unwrap_or(&executable).with_file_name("screens");
    fs::create_dir_all(&folder).expect("create a folder");
    folder
}
