//! Tokens that are rejected.

use proptest::prelude::*;

use super::issuers::b64;
use super::*;

fn header_with(alg: &Value) -> String {
    b64(json!({"alg": alg, "typ": "JWT"}).to_string())
}

#[test]
fn a_changed_payload_is_rejected() {
    let changed = b64(json!({"sub": "eve", "exp": NOW + 60}).to_string());
    for issuer in each_issuer() {
        let token = issuer.token(&claims());
        let parts: Vec<&str> = token.split('.').collect();
        let token = [parts[0], &changed, parts[2]].join(".");
        reject(&verifier(issuer.key()), &token, JwtError::Signature);
    }
}

#[test]
fn a_changed_signature_is_rejected() {
    for issuer in each_issuer() {
        let verifier = verifier(issuer.key());
        let token = issuer.token(&claims());
        accept(&verifier, &token);
        let (signed, signature) = token.rsplit_once('.').unwrap();
        let flip = if signature.starts_with('A') { "B" } else { "A" };
        reject(&verifier, &format!("{signed}.{flip}{}", &signature[1..]), JwtError::Signature);
        reject(&verifier, &format!("{signed}."), JwtError::Signature);
        reject(&verifier, &format!("{signed}.{}", &signature[4..]), JwtError::Signature);
        reject(&verifier, &format!("{signed}.{signature}AAAA"), JwtError::Signature);
        reject(&verifier, &format!("{signed}.{}", b64([0; 64])), JwtError::Signature);
        reject(&verifier, &format!("{token}="), JwtError::Malformed);
        reject(&verifier, &format!("{token} "), JwtError::Malformed);
    }
}

#[test]
fn a_token_of_an_unknown_issuer_is_rejected() {
    let unknown = Issuer::new_ed25519();
    reject(&verifier(Issuer::ed25519().key()), &unknown.token(&claims()), JwtError::Signature);
    let unknown = Issuer::of_secret(b"another secret");
    reject(&verifier(Issuer::secret().key()), &unknown.token(&claims()), JwtError::Signature);
}

#[test]
fn unsigned_tokens_and_unknown_algorithms_are_rejected() {
    for issuer in each_issuer() {
        for none in ["none", "None", "NONE", "nOnE", "", "HS256 ", "hs256", "HS1", "ES512"] {
            let unsigned = format!("{}.{}.", header_with(&json!(none)), b64(claims().to_string()));
            reject(&verifier(issuer.key()), &unsigned, JwtError::Algorithm(none.into()));
        }
        for missing in [json!(null), json!(["HS256"]), json!({})] {
            let token = format!("{}.{}.", header_with(&missing), b64(claims().to_string()));
            reject(&verifier(issuer.key()), &token, JwtError::Malformed);
        }
    }
}

#[test]
fn a_public_key_does_not_verify_as_a_secret() {
    let rsa = Issuer::rsa();
    let pem = rsa.pem.as_deref().unwrap();
    for public in [pem, pem.trim(), rsa.jwk["n"].as_str().unwrap()] {
        let forger = Issuer::of_secret(public.as_bytes());
        for algorithm in forger.algorithms {
            let header = json!({"alg": algorithm.name()});
            let token = forger.token_with(&header, &claims());
            reject(&verifier(rsa.key()), &token, JwtError::Algorithm(algorithm.to_string()));
            let both = JwtVerifier::new(vec![rsa.key(), Issuer::secret().key()]).unwrap();
            reject(&both, &token, JwtError::Signature);
        }
    }
}

#[test]
fn a_key_verifies_only_its_own_algorithms() {
    for issuer in each_issuer() {
        let verifier = verifier(issuer.key());
        for other in JwtAlgorithm::ALL.into_iter().filter(|one| !issuer.algorithms.contains(one)) {
            let token = issuer.token_with(&json!({"alg": other.name()}), &claims());
            reject(&verifier, &token, JwtError::Algorithm(other.to_string()));
        }
    }
    // Of its own algorithms, the one that was signed with.
    let rsa = Issuer::rsa();
    let token = rsa.token(&claims());
    let swapped = token.replacen(&header_with(&json!("RS256")), &header_with(&json!("PS256")), 1);
    reject(&verifier(rsa.key()), &swapped, JwtError::Signature);
}

#[test]
fn critical_extensions_are_rejected() {
    let issuer = Issuer::secret();
    let header = json!({"alg": "HS256", "crit": ["b64"], "b64": false});
    reject(&verifier(issuer.key()), &issuer.token_with(&header, &claims()), JwtError::Malformed);
}

#[test]
fn keys_in_the_token_are_ignored() {
    let forger = Issuer::new_ed25519();
    let header = json!({"alg": "EdDSA", "jwk": forger.jwk, "jku": "https://evil.example"});
    let token = forger.token_with(&header, &claims());
    reject(&verifier(Issuer::ed25519().key()), &token, JwtError::Signature);
}

#[test]
fn garbage_is_malformed() {
    let issuer = Issuer::secret();
    let verifier = verifier(issuer.key());
    let good = issuer.token(&claims());
    let (header, rest) = good.split_once('.').unwrap();
    for garbage in [
        "",
        ".",
        "..",
        "...",
        "a",
        "a.b",
        "a.b.c",
        "e30.e30.e30",
        "é.é.é",
        "\0.\0.\0",
        &format!("{good}.x"),
        &format!(".{good}"),
        &format!("{header}..{rest}"),
        &format!(" {good}"),
        &format!("Bearer {good}"),
        &format!("{header}=.{rest}"),
        &format!("bnVsbA.{rest}"),
    ] {
        reject(&verifier, garbage, JwtError::Malformed);
    }
    for payload in [json!(null), json!([]), json!("x"), json!(7)] {
        reject(&verifier, &issuer.token(&payload), JwtError::Malformed);
    }
    let nested = format!("{{\"a\":{}1{}}}", "[".repeat(2000), "]".repeat(2000));
    reject(&verifier, &format!("{}.e30.e30", b64(nested)), JwtError::Malformed);
}

#[test]
fn a_token_that_is_too_long_is_rejected() {
    let issuer = Issuer::secret();
    let with_padding = |bytes| {
        let padding = "x".repeat(bytes);
        issuer.token(&json!({"sub": "ann", "exp": NOW, "padding": padding}))
    };
    accept(&verifier(issuer.key()), &with_padding(5900));
    let long = with_padding(6200);
    assert!(long.len() > 8192);
    reject(&verifier(issuer.key()), &long, JwtError::TooLong);
}

#[test]
fn a_signed_token_with_a_duplicate_claim_is_rejected() {
    let issuer = Issuer::secret();
    let verifier = verifier(issuer.key());
    let exp = NOW + 60;
    let header = r#"{"alg":"HS256"}"#;
    let claims = format!(r#"{{"sub":"ann","exp":{exp}}}"#);
    accept(&verifier, &issuer.token_of_text(header, &claims));
    for (name, claims) in [
        ("sub", format!(r#"{{"sub":"eve","exp":{exp},"sub":"ann"}}"#)),
        ("sub", format!(r#"{{"sub":"ann","exp":{exp},"s\u0075b":"ann"}}"#)),
        ("exp", format!(r#"{{"sub":"ann","exp":1,"exp":{exp}}}"#)),
        ("id", format!(r#"{{"sub":"ann","exp":{exp},"org":{{"id":1,"id":2}}}}"#)),
    ] {
        let token = issuer.token_of_text(header, &claims);
        reject(&verifier, &token, JwtError::Duplicate(name.into()));
    }
    let header = r#"{"alg":"HS256","kid":"a","kid":"b"}"#;
    reject(&verifier, &issuer.token_of_text(header, &claims), JwtError::Duplicate("kid".into()));
    let error = JwtError::Duplicate("sub".into());
    assert_eq!(error.to_string(), "the token has two members named \"sub\"");
}

#[test]
fn the_signature_is_checked_before_the_claims() {
    let forger = Issuer::of_secret(b"another secret");
    let claims = format!(r#"{{"sub":"ann","sub":"eve","exp":{}}}"#, NOW + 60);
    let token = forger.token_of_text(r#"{"alg":"HS256"}"#, &claims);
    reject(&verifier(Issuer::secret().key()), &token, JwtError::Signature);
}

#[test]
fn errors_quote_little_of_the_token() {
    let long = "\u{1b}[31m".repeat(100);
    let token = format!("{}.e30.", header_with(&json!(long)));
    let error = verifier(Issuer::secret().key()).verify(&token, NOW).unwrap_err();
    let message = error.to_string();
    assert!(message.len() < 200 && !message.contains('\u{1b}'), "{message}");
}

proptest! {
    #[test]
    fn random_text_is_rejected(text in any::<String>(), parts in prop::array::uniform3("[A-Za-z0-9_-]{0,40}")) {
        let verifier = verifier(Issuer::secret().key());
        prop_assert!(verifier.verify(&text, NOW).is_err());
        prop_assert!(verifier.verify(&parts.join("."), NOW).is_err());
    }

    #[test]
    fn random_headers_and_payloads_are_rejected(
        header in any::<Vec<u8>>(),
        payload in any::<Vec<u8>>(),
        signature in any::<Vec<u8>>(),
        known in prop::sample::select(JwtAlgorithm::ALL.to_vec()),
    ) {
        let keys = each_issuer().filter(|one| one.algorithm() != JwtAlgorithm::Rs256).map(Issuer::key);
        let verifier = JwtVerifier::new(keys.collect()).unwrap();
        for header in [b64(header), header_with(&json!(known.name()))] {
            let token = [header, b64(&payload), b64(&signature)].join(".");
            prop_assert!(verifier.verify(&token, NOW).is_err());
        }
    }

    #[test]
    fn one_changed_character_is_rejected(at in any::<prop::sample::Index>(), to in "[A-Za-z0-9_.-]") {
        let issuer = Issuer::secret();
        let token = issuer.token(&claims());
        let at = at.index(token.len());
        let changed = [&token[..at], &to, &token[at + 1..]].concat();
        let verifier = verifier(issuer.key());
        prop_assert_eq!(verifier.verify(&changed, NOW).is_ok(), changed == token);
    }
}
