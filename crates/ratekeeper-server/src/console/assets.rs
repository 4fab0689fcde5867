//! The files of the console, which are part of the program.

use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderMap, HeaderName, HeaderValue};
use ratekeeper_lab::report::web;

/// The page, and what it loads: this server only, and no inline script or style.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
    img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const JS: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

/// A file of the console.
#[derive(Debug)]
pub(super) struct Asset {
    pub(super) path: &'static str,
    content_type: &'static str,
    pub(super) text: &'static str,
}

macro_rules! file {
    ($name:literal) => {
        include_str!(concat!("../../console/", $name))
    };
}

const fn asset(path: &'static str, content_type: &'static str, text: &'static str) -> Asset {
    Asset { path, content_type, text }
}

pub(super) const ASSETS: &[Asset] = &[
    asset("/", HTML, file!("index.html")),
    asset("/console/icon.svg", SVG, file!("icon.svg")),
    asset("/console/console.css", CSS, file!("console.css")),
    asset("/console/marks.css", CSS, web::MARKS_CSS),
    asset("/console/chart.css", CSS, web::CHART_CSS),
    asset("/console/main.js", JS, file!("main.js")),
    asset("/console/api.js", JS, file!("api.js")),
    asset("/console/series.js", JS, file!("series.js")),
    asset("/console/overview.js", JS, file!("overview.js")),
    asset("/console/limits.js", JS, file!("limits.js")),
    asset("/console/keys.js", JS, file!("keys.js")),
    asset("/console/refusals.js", JS, file!("refusals.js")),
    asset("/console/protection.js", JS, file!("protection.js")),
    asset("/console/try.js", JS, file!("try.js")),
    asset("/console/listing.js", JS, file!("listing.js")),
    asset("/console/report.js", JS, file!("report.js")),
    asset("/console/chart.js", JS, web::CHART_JS),
    asset("/console/plot.js", JS, web::PLOT_JS),
    asset("/console/scale.js", JS, web::SCALE_JS),
    asset("/console/table.js", JS, web::TABLE_JS),
    asset("/console/format.js", JS, web::FORMAT_JS),
    asset("/console/dom.js", JS, web::DOM_JS),
];

/// Returns the file at this path.
pub(super) fn find(path: &str) -> Option<&'static Asset> {
    ASSETS.iter().find(|asset| asset.path == path)
}

impl Asset {
    /// Returns the headers of a response with this file.
    pub(super) fn headers(&self) -> HeaderMap {
        let headers: [(HeaderName, &'static str); 5] = [
            (CONTENT_TYPE, self.content_type),
            (CONTENT_SECURITY_POLICY, POLICY),
            (X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (REFERRER_POLICY, "no-referrer"),
            // After an upgrade, the files of one version belong together.
            (CACHE_CONTROL, "no-store"),
        ];
        headers.into_iter().map(|(name, value)| (name, HeaderValue::from_static(value))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_console_is_small_and_loads_only_what_it_has() {
        let bytes: usize = ASSETS.iter().map(|asset| asset.text.len()).sum();
        assert!(bytes < 150_000, "{bytes}");
        for asset in ASSETS {
            for line in asset.text.lines().filter(|line| line.starts_with("import ")) {
                let module = line.split('"').nth(1).expect("a module").trim_start_matches("./");
                assert!(find(&format!("/console/{module}")).is_some(), "{}: {line}", asset.path);
            }
            let is_own = |url: &str| url.starts_with("http://www.w3.org/");
            let mut urls = asset.text.split("http").skip(1).map(|rest| format!("http{rest}"));
            assert!(
                urls.all(|url| !url.contains("://") || is_own(&url) || !url[..8].contains("://")),
                "{}",
                asset.path
            );
        }
    }
}
