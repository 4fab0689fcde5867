use proptest::prelude::*;

use super::*;

fn finder() -> ClientIp {
    let trusted = ["10.0.0.0/8", "::ffff:192.168.0.0/112", "2001:db8:1::/48"];
    ClientIp::new(trusted.iter().map(|net| net.parse().unwrap()).collect())
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[track_caller]
fn check_by(source: ForwardedBy, peer: &str, lines: &[&str], client: &str) {
    let lines = lines.iter().map(|line| line.as_bytes());
    let found = finder().with_source(source).find(Some(ip(peer)), lines);
    assert_eq!(found, Some(ip(client)));
}

#[track_caller]
fn check(peer: &str, lines: &[&str], client: &str) {
    check_by(ForwardedBy::XForwardedFor, peer, lines, client);
}

#[test]
fn an_untrusted_peer_is_the_client() {
    check("203.0.113.9", &[], "203.0.113.9");
    check("203.0.113.9", &["1.1.1.1"], "203.0.113.9");
    check("203.0.113.9", &["10.0.0.1"], "203.0.113.9");
}

#[test]
fn the_rightmost_untrusted_address_is_the_client() {
    check("10.0.0.1", &["203.0.113.9"], "203.0.113.9");
    check("10.0.0.1", &["1.1.1.1, 203.0.113.9"], "203.0.113.9");
    check("10.0.0.1", &["1.1.1.1,203.0.113.9 ,10.2.3.4"], "203.0.113.9");
    check("10.0.0.1", &["1.1.1.1", "203.0.113.9", "10.0.0.2, 10.0.0.3"], "203.0.113.9");
    check("192.169.0.1", &["203.0.113.9"], "192.169.0.1");
    check("192.168.0.1", &["203.0.113.9"], "203.0.113.9");
}

#[test]
fn if_all_are_trusted_the_leftmost_is_the_client() {
    check("10.0.0.1", &[], "10.0.0.1");
    check("10.0.0.1", &[""], "10.0.0.1");
    check("10.0.0.1", &["10.0.0.9, 10.0.0.2"], "10.0.0.9");
}

#[test]
fn an_invalid_entry_ends_the_search() {
    for junk in
        ["unknown", "_hidden", "x", "1.2.3", "01.2.3.4", "[::1", "::1]", "1.2.3.4:", "%", "\""]
    {
        check("10.0.0.1", &[&format!("1.1.1.1, {junk}, 10.0.0.2")], "10.0.0.2");
        check("10.0.0.1", &["1.1.1.1", junk], "10.0.0.1");
    }
    check("10.0.0.1", &["1.1.1.1, [::1]x"], "10.0.0.1");
    check("10.0.0.1", &["1.1.1.1, 1.2.3.4:http"], "10.0.0.1");
    check("10.0.0.1", &["1.1.1.1, 1.2.3.4:123456"], "10.0.0.1");
    check("10.0.0.1", &["1.1.1.1, fe80::1%eth0"], "10.0.0.1");
    check("10.0.0.1", &["1.1.1.1, [1.2.3.4]"], "10.0.0.1");
}

#[test]
fn ports_brackets_quotes_and_empty_entries_do_not_matter() {
    check("10.0.0.1", &["1.2.3.4:80"], "1.2.3.4");
    check("10.0.0.1", &["2001:db8::1"], "2001:db8::1");
    check("10.0.0.1", &["[2001:db8::1]"], "2001:db8::1");
    check("10.0.0.1", &["[2001:db8::1]:1234, [2001:db8:1::7]:80"], "2001:db8::1");
    check("10.0.0.1", &["\"1.2.3.4:80\""], "1.2.3.4");
    check("10.0.0.1", &["1.2.3.4,, ,\t", ""], "1.2.3.4");
}

#[test]
fn an_ipv4_address_may_be_written_as_ipv6() {
    check("::ffff:10.0.0.1", &["::ffff:1.2.3.4"], "1.2.3.4");
    check("10.0.0.1", &["1.2.3.4, [::ffff:10.0.0.9]:80"], "1.2.3.4");
    check("::ffff:203.0.113.9", &["1.2.3.4"], "203.0.113.9");
}

#[test]
fn forwarded_is_parsed_by_rfc_7239() {
    let check =
        |lines: &[&str], client| check_by(ForwardedBy::Forwarded, "10.0.0.1", lines, client);
    check(&["for=192.0.2.43"], "192.0.2.43");
    check(&["For=\"[2001:db8:cafe::17]:4711\""], "2001:db8:cafe::17");
    check(&["for=192.0.2.60;proto=http;by=203.0.113.43"], "192.0.2.60");
    check(&["proto=http ; FOR = 192.0.2.60"], "192.0.2.60");
    check(&["for=1.1.1.1, for=192.0.2.43, for=10.0.0.7"], "192.0.2.43");
    check(&["for=\"192.0.2.43:_port\""], "192.0.2.43");
    check(&["for=1.1.1.1, for=unknown"], "10.0.0.1");
    check(&["for=1.1.1.1, for=\"_gazonk\""], "10.0.0.1");
    check(&["for=1.1.1.1, proto=https"], "10.0.0.1");
    check(&["for=1.1.1.1, 192.0.2.43"], "10.0.0.1");
    check(&["for=1.1.1.1;for=2.2.2.2"], "10.0.0.1");
}

#[test]
fn a_quote_in_forwarded_cannot_hide_or_invent_an_entry() {
    let check =
        |lines: &[&str], client| check_by(ForwardedBy::Forwarded, "10.0.0.1", lines, client);
    check(&["for=\"1.1.1.1, for=192.0.2.43"], "192.0.2.43");
    check(&["for=192.0.2.43;host=\"x, for=1.1.1.1\""], "192.0.2.43");
    check(&["for=192.0.2.43;host=\"x;for=1.1.1.1\""], "192.0.2.43");
    check(&["for=192.0.2.43;host=\"x\\\", for=1.1.1.1;a=\\\"\""], "192.0.2.43");
    check(&["for=\"1.1.1.1"], "10.0.0.1");
}

#[test]
fn x_real_ip_is_one_address() {
    let check = |lines: &[&str], client| check_by(ForwardedBy::XRealIp, "10.0.0.1", lines, client);
    check(&["203.0.113.9"], "203.0.113.9");
    check(&["1.1.1.1", "10.0.0.5"], "10.0.0.5");
    check(&["1.1.1.1, 2.2.2.2"], "10.0.0.1");
    check(&[], "10.0.0.1");
}

#[test]
fn without_a_peer_there_is_no_client() {
    let everything = ClientIp::new(vec!["0.0.0.0/0".parse().unwrap(), "::/0".parse().unwrap()]);
    assert_eq!(everything.find(None, [b"1.1.1.1".as_slice()].into_iter()), None);
}

#[test]
fn the_number_of_entries_read_is_bounded() {
    let list = format!("1.1.1.1{}", ", 10.0.0.9".repeat(64));
    check("10.0.0.1", &[&list], "10.0.0.9");
    let list = format!("1.1.1.1{}", ", 10.0.0.9".repeat(63));
    check("10.0.0.1", &[&list], "1.1.1.1");
}

#[test]
fn addresses_are_counted_by_network() {
    let key = |finder: &ClientIp, text| finder.key(ip(text)).to_string();
    let finder = ClientIp::new(vec![]);
    assert_eq!(key(&finder, "1.2.3.4"), "1.2.3.4/32");
    assert_eq!(key(&finder, "::ffff:1.2.3.4"), "1.2.3.4/32");
    assert_eq!(key(&finder, "2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::/64");
    let wide = finder.clone().with_prefixes(24, 48).unwrap();
    assert_eq!(key(&wide, "1.2.3.4"), "1.2.3.0/24");
    assert_eq!(key(&wide, "2001:db8:1:2:3:4:5:6"), "2001:db8:1::/48");
    let error = |ipv4, ipv6| finder.clone().with_prefixes(ipv4, ipv6).unwrap_err().to_string();
    assert_eq!(error(33, 64), "an IPv4 prefix length is 0 to 32, not 33");
    assert_eq!(error(32, 129), "an IPv6 prefix length is 0 to 128, not 129");
}

#[test]
fn the_header_is_named() {
    let name = |source| finder().with_source(source).header();
    assert_eq!(finder().header(), "x-forwarded-for");
    assert_eq!(name(ForwardedBy::Forwarded), "forwarded");
    assert_eq!(name(ForwardedBy::XRealIp), "x-real-ip");
}

fn sources() -> impl Strategy<Value = ForwardedBy> {
    prop::sample::select(vec![
        ForwardedBy::XForwardedFor,
        ForwardedBy::Forwarded,
        ForwardedBy::XRealIp,
    ])
}

proptest! {
    #[test]
    fn no_header_panics(
        source in sources(),
        lines in prop::collection::vec(any::<Vec<u8>>(), 0..4),
        tricky in "(for=|[\"\\\\,;:\\[\\]=10._ a]){0,40}",
    ) {
        let lines = lines.iter().map(Vec::as_slice).chain([tricky.as_bytes()]);
        let found = finder().with_source(source).find(Some(ip("10.0.0.1")), lines);
        prop_assert!(found.is_some());
    }

    #[test]
    fn a_forged_header_does_not_change_the_client(
        source in prop::sample::select(vec![ForwardedBy::XForwardedFor, ForwardedBy::Forwarded]),
        sent in prop_oneof![any::<Vec<u8>>(), "(for=|[\"\\\\,;:1.]){0,40}".prop_map(String::into_bytes)],
        client in any::<u32>().prop_map(|bits| IpAddr::V4(bits.into())),
        separate in any::<bool>(),
    ) {
        prop_assume!(!finder().is_trusted(client));
        let prefix = if source == ForwardedBy::Forwarded { "for=" } else { "" };
        let added = format!("{prefix}{client}");
        let one_line = [&sent, b", ".as_slice(), added.as_bytes()].concat();
        let lines = if separate { vec![&sent[..], added.as_bytes()] } else { vec![&one_line[..]] };
        let found = finder().with_source(source).find(Some(ip("10.0.0.1")), lines.into_iter());
        prop_assert_eq!(found, Some(client));
    }

    #[test]
    fn a_key_holds_its_address(ip in any::<IpAddr>(), ipv4 in 0..=32u8, ipv6 in 0..=128u8) {
        let finder = ClientIp::new(vec![]).with_prefixes(ipv4, ipv6).unwrap();
        prop_assert!(finder.key(ip).contains(&ip.to_canonical()));
    }
}
