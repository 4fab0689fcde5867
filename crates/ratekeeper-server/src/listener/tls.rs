//! TLS: the server's certificate, which can be replaced while it runs, certificates of clients, and trust
//! in upstreams.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use clap::Args;
use ratekeeper::files::{FILE_BYTES_MAX, FileStamps, ReadError, read};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::failure::Failure;
use crate::reload::{LoadState, Reload};

/// The options of TLS for clients.
#[derive(Args, Clone, Debug)]
pub(crate) struct TlsOptions {
    /// Serve TLS with this certificate chain (PEM); reloaded within seconds when it changes
    #[arg(long, value_name = "FILE", requires = "tls_key", help_heading = "TLS")]
    tls_cert: Option<PathBuf>,

    /// Private key of the certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert", help_heading = "TLS")]
    tls_key: Option<PathBuf>,

    /// Require client certificates of one of these authorities (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert", help_heading = "TLS")]
    tls_client_ca: Option<PathBuf>,
}

impl TlsOptions {
    pub(crate) fn is_wanted(&self) -> bool {
        self.tls_cert.is_some()
    }

    pub(crate) fn wants_client_certificates(&self) -> bool {
        self.tls_client_ca.is_some()
    }

    pub(crate) fn load(&self) -> Result<Option<Arc<Tls>>, Failure> {
        let Some((cert, key)) = self.tls_cert.clone().zip(self.tls_key.clone()) else {
            return Ok(None);
        };
        let files = TlsFiles { cert, key, client_ca: self.tls_client_ca.clone() };
        Tls::load(files).map(Arc::new).map(Some).map_err(Failure::input)
    }
}

struct TlsFiles {
    cert: PathBuf,
    key: PathBuf,
    client_ca: Option<PathBuf>,
}

/// The TLS configuration of the listeners, from files.
pub(crate) struct Tls {
    files: TlsFiles,
    config: ArcSwap<ServerConfig>,
    loads: LoadState,
}

impl Tls {
    fn load(files: TlsFiles) -> Result<Self, TlsError> {
        let loads = LoadState::loaded(files.stamps());
        let config = ArcSwap::from_pointee(files.read()?);
        Ok(Self { files, config, loads })
    }

    /// Performs the handshake with a client. The protocol is the first of these that it supports.
    pub(crate) async fn accept(
        &self,
        stream: TcpStream,
        protocols: &[&[u8]],
    ) -> io::Result<TlsStream<TcpStream>> {
        let mut config = ServerConfig::clone(&self.config.load());
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        TlsAcceptor::from(Arc::new(config)).accept(stream).await
    }
}

impl Reload for Tls {
    type Value = Result<ServerConfig, TlsError>;
    type Error = TlsError;

    fn what(&self) -> &'static str {
        "certificate"
    }

    fn state(&self) -> &LoadState {
        &self.loads
    }

    fn source(&self) -> String {
        self.files.cert.display().to_string()
    }

    fn read(&self) -> (Self::Value, FileStamps) {
        let stamps = self.files.stamps();
        (self.files.read(), stamps)
    }

    fn activate(&self, config: Self::Value) -> Result<String, TlsError> {
        self.config.store(Arc::new(config?));
        Ok(String::new())
    }
}

impl TlsFiles {
    fn stamps(&self) -> FileStamps {
        FileStamps::of([&self.cert, &self.key].into_iter().chain(&self.client_ca))
    }

    fn read(&self) -> Result<ServerConfig, TlsError> {
        let config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(TlsError::Config)?;
        let config = match &self.client_ca {
            None => config.with_no_client_auth(),
            Some(path) => {
                let mut roots = RootCertStore::empty();
                trust(&mut roots, path)?;
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(roots.into(), provider()).build();
                let verifier = verifier.map_err(|error| TlsError::authority(path, error.into()))?;
                config.with_client_cert_verifier(verifier)
            }
        };
        Ok(config.with_cert_resolver(Arc::new(SingleCertAndKey::from(self.own()?))))
    }

    fn own(&self) -> Result<CertifiedKey, TlsError> {
        let Self { cert, key, .. } = self;
        let chain =
            certificates(cert).map_err(|error| TlsError::unusable("certificate", cert, error))?;
        let unusable = |error: PemError| TlsError::unusable("key", key, error);
        let pem = read(key, FILE_BYTES_MAX).map_err(|error| unusable(error.into()))?;
        let der = PrivateKeyDer::from_pem_slice(&pem).map_err(|error| match error {
            pem::Error::NoItemsFound => unusable(PemError::NoKey),
            error => unusable(error.into()),
        })?;
        CertifiedKey::from_der(chain, der, &provider())
            .map_err(|error| unusable(PemError::Mismatch { cert: cert.clone(), error }))
    }
}

/// Returns a connector to upstreams, whose certificates the system or this authority has to have issued.
pub(crate) fn connector(authority: Option<&Path>) -> Result<TlsConnector, Failure> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if let Some(path) = authority {
        trust(&mut roots, path).map_err(Failure::input)?;
    }
    if roots.is_empty() {
        return Err(Failure::input(
            "the system trusts no certificate authority, so no https:// upstream can be verified; name one with --upstream-ca",
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

fn trust(roots: &mut RootCertStore, path: &Path) -> Result<(), TlsError> {
    for certificate in certificates(path).map_err(|error| TlsError::authority(path, error))? {
        roots.add(certificate).map_err(|error| TlsError::authority(path, error.into()))?;
    }
    Ok(())
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, PemError> {
    let pem = read(path, FILE_BYTES_MAX)?;
    let chain = CertificateDer::pem_slice_iter(&pem).collect::<Result<Vec<_>, _>>()?;
    if chain.is_empty() { Err(PemError::NoCertificate) } else { Ok(chain) }
}

/// Why TLS cannot be configured.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TlsError {
    #[error("cannot use the {what} {}: {error}", path.display())]
    Unusable { what: &'static str, path: PathBuf, error: Box<PemError> },
    #[error("cannot configure TLS: {0}")]
    Config(rustls::Error),
}

impl TlsError {
    fn unusable(what: &'static str, path: &Path, error: PemError) -> Self {
        Self::Unusable { what, path: path.to_path_buf(), error: Box::new(error) }
    }

    fn authority(path: &Path, error: PemError) -> Self {
        Self::unusable("authority", path, error)
    }
}

/// What is wrong with a file of certificates or keys.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PemError {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Pem(#[from] pem::Error),
    #[error(transparent)]
    Certificate(#[from] rustls::Error),
    #[error(transparent)]
    Verifier(#[from] VerifierBuilderError),
    #[error("it contains no certificate")]
    NoCertificate,
    #[error("it contains no private key")]
    NoKey,
    #[error("it does not match {}: {error}", cert.display())]
    Mismatch { cert: PathBuf, error: rustls::Error },
}
