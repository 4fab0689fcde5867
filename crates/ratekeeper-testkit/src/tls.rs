//! A private authority, and a certificate of its for a server on this machine.

use std::fs;
use std::path::Path;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};

/// The file with the authority's certificate.
pub const CA: &str = "ca.pem";
/// The file with the server's certificate.
pub const CERTIFICATE: &str = "server.pem";
/// The file with the server's key.
pub const KEY: &str = "server.key";

/// Writes a new authority, and a certificate of its for 127.0.0.1 and localhost.
pub fn write_certificates(dir: &Path) {
    certificates(dir).expect("certificates can be made");
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
