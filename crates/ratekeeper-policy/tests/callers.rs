//! Which key a request is counted under.

mod support;

use ratekeeper_policy::RequestAttributes;
use support::{check, errors, policy, request, resolved};

const IDENTITIES: &str = "
identify:
  user: { header: x-user }
  key: { query: key, missing: anonymous }
  session: { cookie: sid, missing: deny }
  either: { first_of: [user, key] }
  both: { all_of: [user, ip] }
  tenant: { path_segment: 2 }
";

fn per(identity: &str) -> ratekeeper_policy::Policy {
    policy(&format!("{IDENTITIES}limits: [{{ name: l, rate: 1/s, per: {identity} }}]"))
}

#[test]
fn an_identity_is_the_single_value_sent() {
    check(&per("user"), "GET / x-user:ann", "l user=ann");
    check(&per("user"), "GET / X-User:ann x-user:ann", "l user=ann");
    check(&per("user"), "GET / x-user:ann x-user:bob", "l user~ip=192.0.2.1");
    check(&per("user"), "GET / x-user:", "l user~ip=192.0.2.1");
    check(&per("user"), "GET / x-user: x-user:ann", "l user~ip=192.0.2.1");
    check(&per("user"), "GET / peer=-", "l user~");
    check(&per("key"), "GET /?key=a%2Cb", "l key=a%2Cb");
    check(&per("key"), "GET /?key=a&key=b", "l key~");
    check(&per("key"), "GET /?key=a&k%65y=a", "l key=a");
    check(&per("session"), "GET / cookie:a=b;+sid=s;+c=d", "l session=s");
    check(&per("tenant"), "GET /t/a%62c;x=1/d", "l tenant=abc");
    check(&per("tenant"), "GET //x/..//t/./abc/d", "l tenant=abc");
    check(&per("tenant"), "GET /t", "l tenant~ip=192.0.2.1");
    // Some servers read the tenant as abc, others as x.
    for path in ["/t/abc/..%2fx/d", "/t/abc/..;/x/d", "/t/abc/f/..\\..\\..\\t\\x"] {
        check(&per("tenant"), &format!("GET {path}"), "l tenant~ip=192.0.2.1");
    }
    check(&per("ip"), "GET / peer=2001:db8::1", "l ip=2001:db8::/64");
}

#[test]
fn a_missing_required_identity_is_rejected() {
    let rejected = "rejected by l: session it was not sent";
    check(&per("session"), "GET /", rejected);
    check(
        &per("session"),
        "GET / cookie:sid=a cookie:sid=b",
        "rejected by l: session it was sent more than once",
    );
}

#[test]
fn identities_can_combine_others() {
    check(&per("either"), "GET /?key=k x-user:ann", "l either~user=ann");
    check(&per("either"), "GET /?key=k", "l either~key=k");
    check(&per("either"), "GET /?key=k x-user:a x-user:b", "l either~key=k");
    check(&per("either"), "GET /", "l either~ip=192.0.2.1");
    check(&per("both"), "GET / x-user:ann", "l user=ann,ip=192.0.2.1");
    check(&per("both"), "GET /", "l user~ip=192.0.2.1,ip=192.0.2.1");
    check(&per("[user, key]"), "GET /?key=k", "l user~ip=192.0.2.1,key=k");
}

#[test]
fn all_of_uses_missing_of_its_identities() {
    let text = "identify: { u: { header: x }, b: { all_of: [u, ip], missing: deny } }\nlimits: []";
    assert!(errors(text).contains("is that of each of its identities"), "{}", errors(text));
}

#[test]
fn an_explanation_shows_combined_identities() {
    let policy = per("both");
    let shown = support::request("GET / x-user:ann").of(|request| {
        let explained = policy.explain(request);
        explained.identities.into_iter().find(|(name, _)| *name == "both").unwrap().1
    });
    assert_eq!(shown.unwrap(), "user=ann,ip=192.0.2.1");
}

const TIERS: &str = "
identify: { key: { header: x-key }, plan: { header: x-plan } }
limits:
  - { name: l, per: key, rate: { free: 1/s, pro: 10/s, vip: unlimited } }
  - { name: paid, match: { tier: [pro, vip] }, rate: 1/s }
";

#[test]
fn tiers_are_set_by_members_or_by_name() {
    let members = "tiers: { of: key, members: { k1: pro, k2: vip }, default: free }";
    let members = policy(&format!("{members}{TIERS}"));
    let amounts = |request: &str| {
        support::request(request).of(|request| match members.resolve(request) {
            ratekeeper_policy::Resolution::Charged(of) => {
                of.iter().map(|one| one.amount().to_string()).collect::<Vec<_>>().join(", ")
            }
            other => panic!("{other:?}"),
        })
    };
    assert_eq!(amounts("GET / x-key:k0"), "token_bucket 1/s");
    assert_eq!(amounts("GET / x-key:k1"), "token_bucket 10/s, token_bucket 1/s");
    check(&members, "GET / x-key:k2", "paid *");
    check(&members, "GET / x-key:k1 x-key:k2", "l key~ip=192.0.2.1");
    let names = policy(&format!("tiers: {{ of: plan, names: [pro, vip], default: free }}{TIERS}"));
    check(&names, "GET / x-plan:vip", "paid *");
    check(&names, "GET / x-plan:VIP x-key:k", "l key=k");
    check(&names, "GET / x-plan:vip x-plan:free x-key:k", "l key=k");
}

#[test]
fn every_tier_has_a_rate() {
    let text =
        "tiers: { of: ip, names: [pro], default: free }\nlimits: [{ name: l, rate: { pro: 1/s } }]";
    assert!(errors(text).contains("no value for the tier free"), "{}", errors(text));
    let text = "limits: [{ name: l, rate: {} }]";
    assert!(errors(text).contains("this is empty"), "{}", errors(text));
}

const PROXIES: &str = "
identify: { ip: { client_ip: { trusted_proxies: [10.0.0.0/8, '::ffff:172.16.0.0/108'] } } }
exempt: [{ ip: '::ffff:203.0.113.0/120' }]
limits: [{ name: l, per: ip, rate: 1/s }]
";

#[test]
fn trusted_proxies_determine_the_client() {
    let policy = policy(PROXIES);
    check(&policy, "GET / peer=10.0.0.1 x-forwarded-for:1.1.1.1,+8.8.8.8", "l ip=8.8.8.8");
    check(&policy, "GET / peer=172.16.0.1 x-forwarded-for:8.8.8.8", "l ip=8.8.8.8");
    check(&policy, "GET / peer=9.9.9.9 x-forwarded-for:8.8.8.8", "l ip=9.9.9.9");
    check(&policy, "GET / peer=203.0.113.7", "exempt 0");
    assert_eq!(resolved(&policy, "GET / peer=::ffff:203.0.113.7"), "exempt 0");
}

#[test]
fn trusting_every_address_is_rejected() {
    for network in ["0.0.0.0/0", "::/0"] {
        let text = format!(
            "identify: {{ ip: {{ client_ip: {{ trusted_proxies: ['{network}'] }} }} }}\nlimits: []"
        );
        assert!(errors(&text).contains("trusts every address"), "{}", errors(&text));
    }
}

#[test]
fn an_explanation_says_in_words_what_is_counted() {
    let policy = policy(
        "identify:
  user: { header: u }
  session: { cookie: s }
  guest: { header: g, missing: anonymous }
  caller: { first_of: [user, session] }
limits:
  - { name: all, rate: 10/s }
  - { name: user, per: user, rate: 1/s }
  - { name: guest, per: guest, rate: 1/s }
  - { name: caller, per: [caller, ip], rate: 1/s }
",
    );
    let counted = |line: &str| -> Vec<String> {
        let explained = |request: &RequestAttributes<'_>| policy.explain(request).limits;
        request(line).of(|request| explained(request).into_iter().map(|one| one.counted).collect())
    };
    assert_eq!(
        counted("GET / u:ann g:bob"),
        [
            "one count for all requests",
            "counted by user",
            "counted by guest",
            "counted by caller (from user) and ip",
        ]
    );
    assert_eq!(
        counted("GET /"),
        [
            "one count for all requests",
            "identity user is missing: counted by the client's address",
            "identity guest is missing: one count for all requests without it",
            "counted by ip; identity caller is missing: counted by the client's address",
        ]
    );
    assert_eq!(
        counted("GET / peer=none u:ann")[3],
        "counted by caller (from user); counted by the client's address, which is unknown here"
    );
}
