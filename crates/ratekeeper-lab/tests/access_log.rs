//! Lines of every format, as the documentation of the servers has them.

use ratekeeper_lab::access_log::{DetectError, LineError, LogFormat, TimeCache};

/// Returns the format of a line, and what was read of it: client, user, method, host, path, query, status, duration.
fn read(lines: &[&str]) -> (&'static str, String) {
    let format = LogFormat::detect(lines).unwrap();
    let record = lines.iter().rev().find_map(|line| {
        let mut times = TimeCache::default();
        let record = format.parse(line, &mut times).ok()?;
        let or_none = |text: Option<&str>| text.unwrap_or("-").to_string();
        let client = record.with_attributes(|request| request.peer);
        Some(format!(
            "{} {} {} {} {} {} {} {} {}",
            record.at.get(),
            client.map_or("-".to_string(), |ip| ip.to_string()),
            or_none(record.user.as_deref()),
            record.method,
            or_none(record.host.as_deref()),
            record.path,
            or_none(record.query.as_deref()),
            record.status.map_or("-".to_string(), |status| status.to_string()),
            record.duration_us.map_or("-".to_string(), |us| us.to_string()),
        ))
    });
    (format.name(), record.expect("a line is read"))
}

/// 10 October 2026, 13:55:36 UTC.
const AT: &str = "1791640536000000";

fn check(line: &str, name: &str, expected: &str) {
    assert_eq!(read(&[line]), (name, format!("{AT} {expected}")));
}

#[test]
fn common_and_combined_are_read_with_what_follows() {
    let common = r#"192.0.2.1 - ann [10/Oct/2026:15:55:36 +0200] "GET /a?b=c HTTP/1.1" 200 2326"#;
    check(common, "common", "192.0.2.1 ann GET - /a b=c 200 -");
    check(&format!("{common} 0.250"), "common", "192.0.2.1 ann GET - /a b=c 200 250000");
    let combined = format!(r#"{common} "https://example.org/" "curl/8 \"x\"""#);
    check(&combined, "combined", "192.0.2.1 ann GET - /a b=c 200 -");
    for rest in
        ["0.250", "0.250 0.123", "\"0.250\"", "\"203.0.113.9\" 0.250", "rt=x 0.250", "0.250 ."]
    {
        check(&format!("{combined} {rest}"), "combined", "192.0.2.1 ann GET - /a b=c 200 250000");
    }
    check(&format!("{combined} \"-\""), "combined", "192.0.2.1 ann GET - /a b=c 200 -");
}

#[test]
fn json_of_nginx_is_read_by_the_usual_names() {
    let line = r#"{"time_iso8601":"2026-10-10T13:55:36+00:00","remote_addr":"192.0.2.1","request":"PUT /a?b HTTP/2.0","status":"201","request_time":"0.002","http_host":"shop.example"}"#;
    check(line, "nginx-json", "192.0.2.1 - PUT shop.example /a b 201 2000");
    let line = r#"{"@timestamp":1791640536,"client_ip":"192.0.2.1","method":"GET","path":"/x","status_code":404,"duration_ms":1.5}"#;
    check(line, "nginx-json", "192.0.2.1 - GET - /x - 404 1500");
}

#[test]
fn envoy_is_read_as_text_and_json() {
    let line = r#"[2026-10-10T13:55:36.000Z] "POST /api/v1/locations?x HTTP/2" 204 - 154 0 226 100 "10.0.35.28, 192.0.2.1" "nsq2http" "cc21d9b0-cf5c-432b-8c7e-98aeb7988cd2" "locations.example" "tcp://10.0.2.1:80""#;
    check(line, "envoy", "192.0.2.1 - POST locations.example /api/v1/locations x 204 226000");
    let line = r#"[2026-10-10T13:55:36.000Z] "GET /status/418 HTTP/1.1" 418 - via_upstream - "-" 0 135 4 4 "-" "curl/7.73.0-DEV" "84961386-6d84-929d-98bd-c5aee93b5c88" "httpbin:8000" "127.0.0.1:80" inbound|8000|| 127.0.0.1:41854 10.44.1.27:80 10.44.1.23:37652 outbound_.8000_._.httpbin.foo.svc.cluster.local default"#;
    check(line, "envoy", "10.44.1.23 - GET httpbin:8000 /status/418 - 418 4000");
    let line = r#"{"start_time":"2026-10-10T13:55:36.000Z","method":"GET","path":"/a?b","authority":"x.example","response_code":200,"response_flags":"-","duration":7,"downstream_remote_address":"192.0.2.1:40000","x_forwarded_for":null}"#;
    check(line, "envoy-json", "192.0.2.1 - GET x.example /a b 200 7000");
}

#[test]
fn traefik_is_read_as_text_and_json() {
    let line = r#"192.0.2.1 - - [10/Oct/2026:13:55:36 +0000] "GET /a HTTP/1.1" 200 2 "-" "-" 1 "web@file" "http://10.0.0.1:80" 12ms"#;
    check(line, "traefik", "192.0.2.1 - GET - /a - 200 12000");
    let line = r#"{"ClientAddr":"192.0.2.1:4000","ClientHost":"192.0.2.1","ClientUsername":"-","DownstreamStatus":200,"Duration":1500000,"RequestHost":"x.example","RequestMethod":"GET","RequestPath":"/a?b","StartUTC":"2026-10-10T13:55:36Z","level":"info","time":"2026-10-10T15:55:36+02:00"}"#;
    check(line, "traefik-json", "192.0.2.1 - GET x.example /a b 200 1500");
}

#[test]
fn caddy_is_read() {
    let line = r#"{"level":"info","ts":1791640536.0,"logger":"http.log.access","msg":"handled request","request":{"remote_ip":"10.0.0.1","remote_port":"4","client_ip":"192.0.2.1","proto":"HTTP/2.0","method":"GET","host":"x.example","uri":"/a?b","headers":{"User-Agent":["curl/8"]}},"user_id":"ann","duration":0.000929675,"size":10900,"status":200,"resp_headers":{"Server":["Caddy"]}}"#;
    check(line, "caddy", "192.0.2.1 ann GET x.example /a b 200 929");
}

#[test]
fn haproxy_is_read_with_and_without_syslog() {
    let line = r#"192.0.2.1:33317 [10/Oct/2026:13:55:36.000] http-in static/srv1 10/0/30/69/109 200 2750 - - ---- 1/1/1/1/0 0/0 {1wt.eu} {} "GET /index.html?a HTTP/1.1""#;
    let expected = "192.0.2.1 - GET - /index.html a 200 109000";
    check(line, "haproxy", expected);
    check(&format!("Oct 10 13:55:36 host haproxy[14389]: {line}"), "haproxy", expected);
    check(
        &format!("<134>1 2026-10-10T13:55:36+00:00 host haproxy 14389 - - {line}"),
        "haproxy",
        expected,
    );
}

#[test]
fn load_balancers_of_aws_are_read() {
    let line = r#"h2 2026-10-10T13:55:36.000000Z app/my-loadbalancer/50dc6c495c0c9188 192.0.2.1:2817 10.0.0.1:80 0.001 0.002 0.000 200 200 34 366 "GET https://www.example.com:443/a?b HTTP/2.0" "curl/7.46.0" ECDHE-RSA-AES128-GCM-SHA256 TLSv1.2 arn:aws:elasticloadbalancing:us-east-2:123456789012:targetgroup/my-targets/73e2d6bc24d8a067 "Root=1-58337262-36d228ad5d99923122bbe354" "-" "-" 0 2018-07-02T22:22:48.364000Z "forward" "-" "-" "10.0.0.1:80" "200" "-" "-""#;
    check(line, "alb", "192.0.2.1 - GET www.example.com:443 /a b 200 3000");
}

#[test]
fn cloudfront_is_read_by_its_line_of_fields() {
    let lines = [
        "#Version: 1.0",
        "#Fields: date time x-edge-location sc-bytes c-ip cs-method cs(Host) cs-uri-stem sc-status cs(Referer) cs(User-Agent) cs-uri-query cs(Cookie) x-edge-result-type x-edge-request-id x-host-header cs-protocol cs-bytes time-taken",
        "2026-10-10\t13:55:36\tLAX1\t2390282\t192.0.2.1\tGET\td111111abcdef8.cloudfront.net\t/index.html\t200\t-\tMozilla/5.0\ta=b\t-\tHit\tSOX4xwn4XV6Q4rgb7XiVGOHms_BGlTAC4KyHmureZmBNrjGdRLiNIQ==\tx.example\thttps\t23\t0.001",
    ];
    let expected = format!("{AT} 192.0.2.1 - GET x.example /index.html a=b 200 1000");
    assert_eq!(read(&lines), ("cloudfront", expected));
}

#[test]
fn the_gateway_is_read_as_text_and_json() {
    let line = "2026-10-10T13:55:36.000Z 192.0.2.1 GET /a?b 429 17 0.250ms refused:api 0a1b";
    check(line, "gateway", "192.0.2.1 - GET - /a b 429 250");
    let line = r#"{"at":"2026-10-10T13:55:36.000Z","ip":"192.0.2.1","method":"GET","target":"/a?b","status":429,"bytes":17,"took_us":250,"refused_by":"api","id":"0a1b"}"#;
    check(line, "gateway-json", "192.0.2.1 - GET - /a b 429 250");
}

#[test]
fn what_is_no_access_log_is_an_error_that_shows_the_first_line() {
    assert_eq!(LogFormat::detect(&["", ""]).unwrap_err(), DetectError::Empty);
    for text in ["hello world", "{\"a\":1}", "\u{0}\u{1}\u{2}", "[[[[", "at_us,key,cost"] {
        let error = LogFormat::detect(&[text]).unwrap_err();
        assert_eq!(error, DetectError::Unknown(text.to_string()));
    }
}

#[test]
fn what_is_no_request_is_an_error_of_the_line() {
    let format = LogFormat::detect(&[
        r#"192.0.2.1 - - [10/Oct/2026:13:55:36 +0000] "GET / HTTP/1.1" 200 1 "-" "-""#,
    ]);
    let format = format.unwrap();
    let error = |line| format.parse(line, &mut TimeCache::default()).unwrap_err();
    assert_eq!(error(""), LineError::Blank);
    assert_eq!(error("192.0.2.1 - - [10/Oct/2026:13:55:36 +0000]"), LineError::Fields);
    let lines = [
        (r#"192.0.2.1 - - [10/Oct/2026:13:55:36 +0000] "" 400 0 "-" "-""#, LineError::Request),
        (
            r#"192.0.2.1 - - [10/Oct/2026:13:55:36 +0000] "\x16\x03\x01 a" 400 0 "-" "-""#,
            LineError::Request,
        ),
        (r#"192.0.2.1 - - [yesterday] "GET / HTTP/1.1" 200 1 "-" "-""#, LineError::Time),
    ];
    lines.into_iter().for_each(|(line, why)| assert_eq!(error(line), why));
}
