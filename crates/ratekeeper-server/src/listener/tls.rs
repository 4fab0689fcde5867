//! TLS: the server's certificate, which can be replaced while it runs, certificates of clients, and trust
//! in upstreams.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use clap::Args;
use ratekeeper::files::{FILE_BYTES_MAX, FileStamps, ReadError, read};
use rustls::client::danger::HandshakeSignatureValid;
use rustls::client::verify_server_name;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, InvalidDnsNameError, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ParsedCertificate, VerifierBuilderError, WebPkiClientVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{
    ClientConfig, DigitallySignedStruct, DistinguishedName, RootCertStore, ServerConfig,
    SignatureScheme,
};
use tokio::io::{AsyncRead, AsyncWrite};
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
        let files =
            TlsFiles { cert, key, client_ca: self.tls_client_ca.clone(), client_name: None };
        Tls::load(files).map(Some)
    }
}

/// The files of certificates for a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TlsFiles {
    pub(crate) cert: PathBuf,
    pub(crate) key: PathBuf,
    /// The authorities of required client certificates.
    pub(crate) client_ca: Option<PathBuf>,
    /// A name that client certificates must have.
    pub(crate) client_name: Option<String>,
}

/// The TLS configuration of the listeners, from files.
pub(crate) struct Tls {
    files: TlsFiles,
    config: ArcSwap<ServerConfig>,
    loads: LoadState,
}

impl Tls {
    pub(crate) fn load(files: TlsFiles) -> Result<Arc<Self>, Failure> {
        let loads = LoadState::loaded(files.stamps());
        let config = ArcSwap::from_pointee(files.read().map_err(Failure::input)?);
        Ok(Arc::new(Self { files, config, loads }))
    }

    /// Performs the handshake with a client. The protocol is the first of these that it supports.
    pub(crate) async fn accept<S>(&self, stream: S, protocols: &[&[u8]]) -> io::Result<TlsStream<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
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
                config.with_client_cert_verifier(match &self.client_name {
                    None => verifier,
                    Some(name) => Arc::new(NamedClients::new(verifier, name)?),
                })
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

/// Accepts the client certificates of an authority that have a name.
#[derive(Debug)]
struct NamedClients {
    authority: Arc<dyn ClientCertVerifier>,
    name: ServerName<'static>,
}

impl NamedClients {
    fn new(authority: Arc<dyn ClientCertVerifier>, name: &str) -> Result<Self, TlsError> {
        let parsed = ServerName::try_from(name.to_string());
        let name = parsed.map_err(|error| TlsError::ClientName { name: name.into(), error })?;
        Ok(Self { authority, name })
    }
}

impl ClientCertVerifier for NamedClients {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.authority.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let verified = self.authority.verify_client_cert(end_entity, intermediates, now)?;
        verify_server_name(&ParsedCertificate::try_from(end_entity)?, &self.name)?;
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.authority.verify_tls12_signature(message, cert, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.authority.verify_tls13_signature(message, cert, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.authority.supported_verify_schemes()
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
    #[error("cannot require the name \"{name}\" of clients: {error}; use a DNS name")]
    ClientName { name: String, error: InvalidDnsNameError },
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
