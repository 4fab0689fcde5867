//! A private certificate authority and a server certificate that it signed.

use std::fs;
use std::path::Path;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};

/// File name of the authority's certificate.
pub const CA: &str = "ca.pem";
/// File name of the server's certificate.
pub const CERTIFICATE: &str = "server.pem";
/// File name of the server's key.
pub const KEY: &str = "server.key";

/// Writes a new authority and a certificate that it signed for 127.0.0.1 and localhost.
pub fn write_certificates(dir: &Path) {
    certificates(dir).expect("create certificates");
}

fn certificates(dir: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let ca_key = KeyPair::generate()?;
    let mut ca = CertificateParams::default();
    ca.distinguished_name.push(DnType::CommonName, "Ratekeeper's tests");
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    ca.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    fs::write(dir.join(CA), ca.self_signed(&ca_key)?.pem())?;

    let key = KeyPair::generate()?;
    let server = CertificateParams::new(["127.0.0.1".to_string(), "localhost".to_string()])?;
    let issuer = Issuer::new(ca, ca_key);
    fs::write(dir.join(CERTIFICATE), server.signed_by(&key, &issuer)?.pem())?;
    fs::write(dir.join(KEY), key.serialize_pem())?;
    Ok(())
}
