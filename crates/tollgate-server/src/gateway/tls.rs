//! TLS both ways: the gateway's own certificate, which can be replaced while it runs, and trust in
//! the upstreams'.

use std::fmt::{self, Debug, Formatter};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::SystemTime;

use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::failure::Failure;

/// The certificate that clients are shown.
pub(super) struct Certificate {
    cert: PathBuf,
    key: PathBuf,
    current: RwLock<Arc<CertifiedKey>>,
    /// The files' times when they were last read.
    seen: Mutex<Stamp>,
}

type Stamp = [Option<SystemTime>; 2];

impl Certificate {
    pub(super) fn load(cert: PathBuf, key: PathBuf) -> Result<Arc<Self>, Failure> {
        let seen = Mutex::new([changed_at(&cert), changed_at(&key)]);
        let current = RwLock::new(Arc::new(read(&cert, &key).map_err(Failure::input)?));
        Ok(Arc::new(Self { cert, key, current, seen }))
    }

    pub(super) fn acceptor(self: &Arc<Self>) -> Result<TlsAcceptor, Failure> {
        let config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(Failure::input)?;
        let mut config = config.with_no_client_auth().with_cert_resolver(Arc::clone(self) as _);
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(TlsAcceptor::from(Arc::new(config)))
    }

    /// Reads the files again if they have changed since.
    pub(super) fn reload_if_changed(&self) {
        let now = [changed_at(&self.cert), changed_at(&self.key)];
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if *seen != now {
            *seen = now;
            drop(seen);
            self.reload();
        }
    }

    /// Reads the files again. The certificate stays as it is if they cannot be used.
    pub(super) fn reload(&self) {
        match read(&self.cert, &self.key) {
            Ok(fresh) => {
                *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(fresh);
                tracing::info!(file = %self.cert.display(), "certificate reloaded");
            }
            Err(error) => tracing::error!(%error, "certificate not reloaded, the old one stays"),
        }
    }
}

impl ResolvesServerCert for Certificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner)))
    }
}

impl Debug for Certificate {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certificate").field("cert", &self.cert).finish_non_exhaustive()
    }
}

/// Connects to upstreams whose certificates the system trusts, or this authority.
pub(super) fn connector(authority: Option<&Path>) -> Result<TlsConnector, Failure> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if let Some(path) = authority {
        let unusable = |error: &str| Failure::input(cannot("the authority", path, error));
        for certificate in certificates(path).map_err(|error| unusable(&error))? {
            roots.add(certificate).map_err(|error| unusable(&error.to_string()))?;
        }
    }
    if roots.is_empty() {
        return Err(Failure::input(
            "the system trusts no authority, so no https:// upstream can be verified; name one with --upstream-ca",
        ));
    }
    let config = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(Failure::input)?;
    let mut config = config.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn read(cert: &Path, key: &Path) -> Result<CertifiedKey, String> {
    let chain = certificates(cert).map_err(|error| cannot("the certificate", cert, &error))?;
    let unusable = |error: &str| cannot("the key", key, error);
    let der = PrivateKeyDer::from_pem_file(key).map_err(|error| unusable(&error.to_string()))?;
    CertifiedKey::from_der(chain, der, &provider())
        .map_err(|error| unusable(&format!("it does not go with {}: {error}", cert.display())))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    let chain = chain.map_err(|error| error.to_string())?;
    if chain.is_empty() { Err("there is no certificate in it".to_string()) } else { Ok(chain) }
}

fn cannot(what: &str, path: &Path, error: &str) -> String {
    format!("cannot use {what} {}: {error}", path.display())
}

fn changed_at(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).and_then(|about| about.modified()).ok()
}
