//! Keys that are accepted, and the errors of those that are not.

use proptest::prelude::*;
use rand::rngs::OsRng;
use rsa::pkcs1::{EncodeRsaPrivateKey, EncodeRsaPublicKey};
use rsa::pkcs8::{EncodePrivateKey, EncodePublicKey, LineEnding};

use super::issuers::{b64, jwks};
use super::*;
use crate::problems::with_sources;

#[track_caller]
fn wrong(key: Result<JwtKey, JwtKeyError>, part: &str) {
    let message = with_sources(&key.unwrap_err());
    assert!(message.contains(part), "{message}");
}

fn wrong_set(keys: &Value, part: &str) {
    wrong(JwtKey::jwks(&json!({"keys": keys}).to_string()), part);
}

#[test]
fn a_secret_is_a_secret() {
    wrong(JwtKey::secret(b""), "empty");
    wrong(
        JwtKey::secret(Issuer::rsa().pem.as_deref().unwrap().as_bytes()),
        "use it as a public key",
    );
    wrong(JwtKey::secret(b"\n -----BEGIN PUBLIC KEY-----"), "use it as a public key");
}

#[test]
fn a_pem_is_one_public_key() {
    let pem = Issuer::p256().pem.as_deref().unwrap();
    wrong(JwtKey::pem(""), "not PEM");
    wrong(JwtKey::pem("hello"), "not PEM");
    wrong(JwtKey::pem(&format!("{pem}{pem}")), "several blocks");
    wrong(JwtKey::pem("-----BEGIN CERTIFICATE-----"), "openssl x509 -pubkey");
    wrong(JwtKey::pem("-----BEGIN DSA PARAMETERS-----"), "\"DSA PARAMETERS\"");
    wrong(JwtKey::pem("-----BEGIN PUBLIC KEY-----\n"), "invalid");
    wrong(JwtKey::pem(&pem.replace("QgAE", "QgAF")), "not a point");
    JwtKey::pem(&format!("\n{}\r\n", pem.replace('\n', "\r\n"))).unwrap();
}

#[test]
fn a_pem_may_be_on_one_line_and_have_text_around_it() {
    for issuer in each_issuer() {
        let Some(pem) = issuer.pem.as_deref() else { continue };
        let lines: Vec<&str> = pem.lines().collect();
        let content = lines[1..lines.len() - 1].concat();
        let one_line = format!("{}\n{content}\n{}", lines[0], lines[lines.len() - 1]);
        for text in [one_line, format!("key of the issuer\n{pem}\nits end\n")] {
            accept(&verifier(JwtKey::pem(&text).unwrap()), &issuer.token(&claims()));
        }
        wrong(JwtKey::pem(&lines[..lines.len() - 1].join("\n")), "invalid");
        wrong(JwtKey::pem(&pem.replace("-----END", "AAAA-----END")), "invalid");
    }
}

#[test]
fn an_unsupported_pem_names_the_supported_kinds() {
    // X25519, which is for key agreement only.
    let pem = "-----BEGIN PUBLIC KEY-----\n\
               MCowBQYDK2VuAyEAmRYVaA8G0UrAdAWdFiHphEz8bQjeXFz4GtvPYvxgNQc=\n\
               -----END PUBLIC KEY-----";
    wrong(JwtKey::pem(pem), "RSA, P-256, P-384 or Ed25519");
}

#[test]
fn a_compressed_point_is_rejected_with_the_command_that_expands_it() {
    use p256::elliptic_curve::sec1::ToEncodedPoint;
    use rsa::pkcs8::{AlgorithmIdentifierRef, SubjectPublicKeyInfoRef, der::asn1::BitStringRef};
    let point = p256::SecretKey::random(&mut OsRng).public_key().to_encoded_point(true);
    let oid = |text| rsa::pkcs8::ObjectIdentifier::new_unwrap(text);
    let curve = oid("1.2.840.10045.3.1.7");
    let info = SubjectPublicKeyInfoRef {
        algorithm: AlgorithmIdentifierRef {
            oid: oid("1.2.840.10045.2.1"),
            parameters: Some((&curve).into()),
        },
        subject_public_key: BitStringRef::from_bytes(point.as_bytes()).unwrap(),
    };
    let pem = rsa::pkcs8::der::Encode::to_der(&info).unwrap();
    let pem = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, pem);
    let pem = format!("-----BEGIN PUBLIC KEY-----\n{pem}\n-----END PUBLIC KEY-----\n");
    wrong(JwtKey::pem(&pem), "-conv_form uncompressed");
}

#[test]
fn a_private_key_is_rejected() {
    let key = p256::SecretKey::random(&mut OsRng).to_pkcs8_pem(LineEnding::LF).unwrap();
    wrong(JwtKey::pem(&key), "openssl pkey -pubout");
    wrong(JwtKey::pem("-----BEGIN EC PRIVATE KEY-----"), "openssl pkey -pubout");
}

#[test]
fn an_rsa_key_may_be_in_either_format_but_not_short() {
    let short = rsa::RsaPrivateKey::new(&mut OsRng, 1024).unwrap();
    let public = short.to_public_key();
    wrong(JwtKey::pem(&public.to_public_key_pem(LineEnding::LF).unwrap()), "1024 bits");
    wrong(JwtKey::pem(&public.to_pkcs1_pem(LineEnding::LF).unwrap()), "1024 bits");
    wrong(JwtKey::pem(&short.to_pkcs1_pem(LineEnding::LF).unwrap()), "private key");
}

#[test]
fn a_verifier_needs_a_key() {
    assert!(JwtVerifier::new(vec![]).unwrap_err().to_string().contains("needs a key"));
}

#[test]
fn algorithms_can_be_restricted_to_those_of_the_keys() {
    let rsa = Issuer::rsa();
    let new = || verifier(rsa.key());
    let only = new().with_algorithms(&[JwtAlgorithm::Rs512, JwtAlgorithm::Hs256]).unwrap();
    accept(&only, &rsa.token_with(&json!({"alg": "RS512"}), &claims()));
    reject(&only, &rsa.token(&claims()), JwtError::Algorithm("RS256".into()));
    let error = new().with_algorithms(&[JwtAlgorithm::Hs256, JwtAlgorithm::Es256]).unwrap_err();
    let message = "no key can verify [HS256, ES256]; \
                   the keys are for [RS256, RS384, RS512, PS256, PS384, PS512]";
    assert_eq!(error.to_string(), message);
    new().with_algorithms(&[]).unwrap_err();
}

#[test]
fn keys_that_are_not_for_signatures_are_ignored() {
    let (ed, rsa) = (Issuer::ed25519(), Issuer::rsa());
    let set = [
        rsa.jwk_with(&json!({"use": "enc"})),
        rsa.jwk_with(&json!({"key_ops": ["encrypt"]})),
        rsa.jwk_with(&json!({"alg": "RSA-OAEP"})),
        json!({"kty": "future"}),
        json!({}),
        json!(7),
        ed.jwk_with(&json!({"use": "sig", "key_ops": ["verify"], "alg": "EdDSA"})),
    ];
    let verifier = verifier(jwks(&set));
    accept(&verifier, &ed.token(&claims()));
    reject(&verifier, &rsa.token(&claims()), JwtError::Algorithm("RS256".into()));
}

#[test]
fn the_algorithm_of_a_key_restricts_it() {
    let rsa = Issuer::rsa();
    let verifier = verifier(jwks(&[rsa.jwk_with(&json!({"alg": "PS256"}))]));
    accept(&verifier, &rsa.token_with(&json!({"alg": "PS256"}), &claims()));
    reject(&verifier, &rsa.token(&claims()), JwtError::Algorithm("RS256".into()));
    wrong_set(&json!([rsa.jwk_with(&json!({"alg": "HS256"}))]), "does not apply to this type");
}

#[test]
fn a_set_without_a_usable_key_is_rejected_with_the_reasons() {
    wrong(JwtKey::jwks("nonsense"), "invalid JSON");
    wrong(JwtKey::jwks("{}"), "no list `keys`");
    wrong(JwtKey::jwks(r#"{"keys":[{"kty":"oct","k":"AA","k":"AQ"}]}"#), "\"k\" is given twice");
    wrong(JwtKey::jwks(&Issuer::rsa().jwk.to_string()), "no list `keys`");
    wrong_set(&json!([]), "empty");
    wrong_set(&json!([{"kty": "future"}, {"kty": "oct"}]), "key 1: `kty` is not RSA");
    wrong_set(&json!([{"kty": "future"}, {"kty": "oct"}]), "key 2: `k` is missing");
    wrong_set(&json!([{"kty": "oct", "k": ""}]), "empty");
    wrong_set(&json!([{"kty": "oct", "k": "é"}]), "base64url");
    wrong_set(&json!([{"kty": "RSA", "n": "AQAB", "e": "AQAB"}]), "17 bits");
    wrong_set(&json!([{"kty": "RSA", "n": b64([255; 256]), "e": ""}]), "invalid");
    wrong_set(&json!([{"kty": "RSA", "n": b64([255; 256]), "e": "AQ"}]), "invalid");
    wrong_set(&json!([{"kty": "RSA", "n": b64([254; 256]), "e": "AQAB"}]), "invalid");
    wrong_set(&json!([{"kty": "EC", "crv": "P-521", "x": "", "y": ""}]), "P-256 or P-384");
    wrong_set(&json!([{"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA"}]), "32 bytes");
    let off_curve = json!([{"kty": "EC", "crv": "P-256", "x": b64([1; 32]), "y": b64([1; 32])}]);
    wrong_set(&off_curve, "not a point");
    wrong_set(&json!([{"kty": "OKP", "crv": "X25519", "x": "AA"}]), "Ed25519");
    wrong_set(&json!([{"kty": "OKP", "crv": "Ed25519", "x": "AA"}]), "1 bytes instead of 32");
}

#[test]
fn a_coordinate_belongs_to_the_curve_it_names() {
    let mut jwk = Issuer::p256().jwk.clone();
    jwk["crv"] = json!("P-384");
    wrong_set(&json!([jwk]), "48 bytes");
}

#[test]
fn secrets_are_not_printed() {
    let key = JwtKey::secret(b"hush").unwrap();
    let bytes = format!("{:?}", b"hush");
    let verifier = verifier(key.clone());
    for debug in [format!("{key:?}"), format!("{verifier:?}")] {
        assert!(!debug.contains("hush") && !debug.contains(&bytes), "{debug}");
    }
}

#[test]
fn algorithms_have_names() {
    for algorithm in JwtAlgorithm::ALL {
        assert_eq!(algorithm.name().parse::<JwtAlgorithm>().unwrap(), algorithm);
    }
    let message = |name: &str| name.parse::<JwtAlgorithm>().unwrap_err().to_string();
    assert!(message("rs256").contains("did you mean \"RS256\"?"), "{}", message("rs256"));
    assert!(message("none").contains("use one of [HS256"), "{}", message("none"));
}

proptest! {
    #[test]
    fn parsing_a_key_never_panics(text in any::<String>(), bytes in any::<Vec<u8>>()) {
        use base64::Engine;
        let body = base64::engine::general_purpose::STANDARD.encode(&bytes);
        let _ = JwtKey::secret(&bytes);
        let _ = JwtKey::jwks(&text);
        let _ = JwtKey::pem(&text);
        let _ = JwtKey::pem(&format!("-----BEGIN PUBLIC KEY-----\n{body}\n-----END PUBLIC KEY-----"));
    }

    #[test]
    fn a_damaged_pem_never_panics(at in 27..120usize, to in "[A-Za-z0-9+/]") {
        for pem in each_issuer().filter_map(|issuer| issuer.pem.clone()) {
            let at = at.min(pem.len() - 1);
            let _ = JwtKey::pem(&[&pem[..at], &to, &pem[at + 1..]].concat());
        }
    }

    #[test]
    fn parsing_a_key_of_a_set_never_panics(
        kty in prop::sample::select(vec!["RSA", "EC", "OKP", "oct"]),
        crv in prop::sample::select(vec!["P-256", "P-384", "Ed25519", "?"]),
        values in prop::array::uniform3(any::<Vec<u8>>()),
    ) {
        let [a, b, c] = values.map(b64);
        let key = json!({"kty": kty, "crv": crv, "n": a, "e": b, "x": a, "y": b, "k": c});
        let _ = JwtKey::jwks(&json!({"keys": [key]}).to_string());
    }
}
