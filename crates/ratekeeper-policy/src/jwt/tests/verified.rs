//! Tokens that are accepted.

use std::slice;

use super::issuers::jwks;
use super::*;

#[test]
fn every_algorithm_is_verified_with_every_form_of_its_key() {
    for issuer in each_issuer() {
        let forms = [issuer.key(), jwks(slice::from_ref(&issuer.jwk))];
        for (form, algorithm) in
            forms.iter().flat_map(|form| issuer.algorithms.iter().map(move |one| (form, one)))
        {
            let token = issuer.token_with(&json!({"alg": algorithm.name()}), &claims());
            accept(&verifier(form.clone()), &token);
        }
    }
}

#[test]
fn a_secret_can_be_given_as_bytes() {
    let key = JwtKey::secret(b"a long random secret").unwrap();
    accept(&verifier(key), &Issuer::secret().token(&claims()));
}

#[test]
fn a_token_finds_its_key_among_several() {
    let all = || each_issuer().map(Issuer::key).collect();
    let verifier = JwtVerifier::new(all()).unwrap();
    for issuer in each_issuer() {
        accept(&verifier, &issuer.token(&claims()));
        accept(&verifier, &issuer.token_of_key("any", &claims()));
    }
}

#[test]
fn a_token_may_name_its_key() {
    let issuers = [Issuer::new_ed25519(), Issuer::new_ed25519()];
    let verifier = verifier(jwks(&[
        issuers[0].jwk_with(&json!({"kid": "a"})),
        issuers[1].jwk_with(&json!({"kid": "b"})),
    ]));
    accept(&verifier, &issuers[0].token_of_key("a", &claims()));
    accept(&verifier, &issuers[1].token_of_key("b", &claims()));
    accept(&verifier, &issuers[1].token(&claims()));
    reject(&verifier, &issuers[1].token_of_key("a", &claims()), JwtError::Signature);
    reject(&verifier, &issuers[1].token_of_key("c", &claims()), JwtError::UnknownKey);
}

#[test]
fn a_token_without_a_key_id_is_tried_on_a_bounded_number_of_keys() {
    let issuer = Issuer::new_ed25519();
    let others: Vec<_> = (0..16).map(|_| Issuer::new_ed25519().jwk).collect();
    let last_of =
        |others: &[Value]| verifier(jwks(&[others, slice::from_ref(&issuer.jwk)].concat()));
    accept(&last_of(&others[..15]), &issuer.token(&claims()));
    reject(&last_of(&others), &issuer.token(&claims()), JwtError::Signature);
}

#[test]
fn a_token_is_valid_from_its_start_until_its_expiry() {
    let issuer = Issuer::secret();
    let token = issuer.token(&json!({"sub": "ann", "nbf": NOW, "exp": NOW + 60}));
    let check = |verifier: &JwtVerifier, at, error: Option<JwtError>| {
        for _ in ["uncached", "cached"] {
            assert_eq!(verifier.verify(&token, at).err(), error, "{at}");
        }
    };
    let lenient = verifier(issuer.key());
    check(&lenient, NOW - 31, Some(JwtError::NotYetValid));
    check(&lenient, NOW - 30, None);
    check(&lenient, NOW + 89, None);
    check(&lenient, NOW + 90, Some(JwtError::Expired { seconds_ago: 30 }));
    check(&lenient, NOW - 31, Some(JwtError::NotYetValid));
    check(&lenient, u64::MAX, Some(JwtError::Expired { seconds_ago: u64::MAX - NOW - 60 }));
    let strict = verifier(issuer.key()).with_leeway(0);
    check(&strict, NOW - 1, Some(JwtError::NotYetValid));
    check(&strict, NOW, None);
    check(&strict, NOW + 59, None);
    check(&strict, NOW + 60, Some(JwtError::Expired { seconds_ago: 0 }));
    let boundless = verifier(issuer.key()).with_leeway(u64::MAX);
    check(&boundless, u64::MAX - 1, None);
}

#[test]
fn a_token_without_expiry_is_accepted_only_if_allowed() {
    let issuer = Issuer::secret();
    let token = issuer.token(&json!({"sub": "ann"}));
    reject(&verifier(issuer.key()), &token, JwtError::NoExpiry);
    let verifier = verifier(issuer.key()).allow_missing_expiry();
    accept(&verifier, &token);
    accept(&verifier, &token);
    reject(
        &verifier,
        &issuer.token(&json!({"exp": NOW - 100})),
        JwtError::Expired { seconds_ago: 100 },
    );
}

#[test]
fn times_may_have_fractions() {
    let issuer = Issuer::secret();
    let verifier = verifier(issuer.key()).with_leeway(0);
    accept(&verifier, &issuer.token(&json!({"sub": "ann", "exp": NOW as f64 + 1.5, "nbf": -1.5})));
    for wrong in [json!("1900000000"), json!(null), json!([NOW + 60]), json!(true)] {
        reject(&verifier, &issuer.token(&json!({"exp": wrong})), JwtError::Malformed);
    }
}

#[test]
fn issuer_and_audience_are_checked_if_given() {
    let issuer = Issuer::secret();
    let new = || verifier(issuer.key());
    let token = issuer.token(&claims());
    accept(&new().with_issuer("https://issuer.example").with_audience("web"), &token);
    accept(&new().with_issuer("other").with_issuer("https://issuer.example"), &token);
    accept(&new().with_audience("other").with_audience("api"), &token);
    reject(&new().with_issuer("https://issuer.example/"), &token, JwtError::Issuer);
    reject(&new().with_audience("ap"), &token, JwtError::Audience);
    let one = issuer.token(&json!({"sub": "ann", "exp": NOW, "aud": "api"}));
    accept(&new().with_audience("api"), &one);
    let none = issuer.token(&json!({"sub": "ann", "exp": NOW}));
    accept(&new(), &none);
    reject(&new().with_issuer("x"), &none, JwtError::Issuer);
    reject(&new().with_audience("x"), &none, JwtError::Audience);
    let odd = issuer.token(&json!({"exp": NOW, "iss": ["x"], "aud": {"x": "x"}}));
    reject(&new().with_issuer("x"), &odd, JwtError::Issuer);
    reject(&new().with_audience("x"), &odd, JwtError::Audience);
}

#[test]
fn a_stricter_verifier_starts_with_an_empty_cache() {
    let issuer = Issuer::rsa();
    let token = issuer.token(&claims());
    let used = || {
        let verifier = verifier(issuer.key());
        accept(&verifier, &token);
        assert_eq!(verifier.cache.len(), 1);
        verifier
    };
    reject(&used().with_issuer("x"), &token, JwtError::Issuer);
    reject(&used().with_audience("x"), &token, JwtError::Audience);
    let only_pss = used().with_algorithms(&[JwtAlgorithm::Ps256]).unwrap();
    reject(&only_pss, &token, JwtError::Algorithm("RS256".into()));
}

#[test]
fn only_valid_tokens_are_cached() {
    let issuer = Issuer::secret();
    let verifier = verifier(issuer.key());
    for wrong in ["", "a.b.c", &issuer.token(&json!({"exp": 1})), &issuer.token(&json!({}))] {
        verifier.verify(wrong, NOW).unwrap_err();
    }
    assert_eq!(verifier.cache.len(), 0);
}

#[test]
fn threads_share_a_verifier() {
    let issuer = Issuer::ed25519();
    let verifier = verifier(issuer.key());
    let token = issuer.token(&claims());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..50).for_each(|_| accept(&verifier, &token)));
        }
    });
    assert_eq!(verifier.cache.len(), 1);
}
