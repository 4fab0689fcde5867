//! A client of the admin API, for the commands that ask a running server.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use clap::Args;
use http::header::{AUTHORIZATION, HOST};
use http::{HeaderValue, Request, StatusCode};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};
use tokio_rustls::TlsConnector;

use crate::failure::Failure;
use crate::gateway::UpstreamAddress;
use crate::listener::tls;

/// How long one request may take.
const TIMEOUT: Duration = Duration::from_secs(10);
const BODY_MAX: usize = 16 << 20;

/// The options of a command that asks a running server.
#[derive(Args)]
pub(crate) struct AdminOptions {
    /// Address of the server's admin listener
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:9091")]
    admin: UpstreamAddress,

    /// File with the bearer token of the admin listener, on its first line
    #[arg(long, value_name = "FILE")]
    token: Option<PathBuf>,

    /// Certificates to trust in addition to the system's, in PEM
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
}

/// Asks one server. Every request has a connection of its own.
pub(crate) struct AdminClient {
    address: UpstreamAddress,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    authorization: Option<HeaderValue>,
    runtime: Runtime,
}

/// Why a request to the admin API failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AdminError {
    #[error(
        "cannot reach the admin listener at {address}; is the server running, and is this the address of --admin?"
    )]
    Unreachable { address: String, source: io::Error },
    #[error("the admin listener at {address} did not respond within {TIMEOUT:?}")]
    Timeout { address: String },
    #[error("the admin listener at {address} failed to respond")]
    Http { address: String, source: Box<dyn std::error::Error + Send + Sync> },
    #[error("the admin listener wants a valid token; name a file that has it with --token")]
    Unauthorized,
    #[error("{0}")]
    Refused(String),
    #[error("the response is not JSON; is this the address of an admin listener?")]
    NotJson,
}

impl AdminOptions {
    /// Returns a client with these options.
    pub(crate) fn client(&self) -> Result<AdminClient, Failure> {
        let address = self.admin.clone();
        let tls = match address.is_tls {
            false => None,
            true => {
                let name = ServerName::try_from(address.host.clone()).map_err(Failure::input)?;
                Some((tls::connector(self.ca.as_deref())?, name))
            }
        };
        let authorization = self.token.as_ref().map(read_token).transpose()?;
        let runtime = Builder::new_current_thread().enable_all().build().map_err(Failure::io)?;
        Ok(AdminClient { address, tls, authorization, runtime })
    }
}

/// Reads the first line of a file, as a header.
fn read_token(path: &PathBuf) -> Result<HeaderValue, Failure> {
    let text = fs::read_to_string(path);
    let text = text.map_err(|error| Failure::input(format!("{}: {error}", path.display())))?;
    let is_token = |line: &&str| !line.is_empty() && !line.starts_with('#');
    let token = text.lines().map(str::trim).find(is_token).unwrap_or_default();
    let mut value = HeaderValue::try_from(format!("Bearer {token}")).map_err(Failure::input)?;
    value.set_sensitive(true);
    Ok(value)
}

impl AdminClient {
    /// Returns the address that it asks.
    pub(crate) fn address(&self) -> String {
        self.address.to_string()
    }

    /// Returns the JSON at this path; `None` if there is none.
    pub(crate) fn get(&self, path: &str) -> Result<Option<Value>, AdminError> {
        self.runtime.block_on(async {
            let address = || self.address();
            tokio::time::timeout(TIMEOUT, self.request(path))
                .await
                .map_err(|_| AdminError::Timeout { address: address() })?
        })
    }

    async fn request(&self, path: &str) -> Result<Option<Value>, AdminError> {
        let unreachable = |source| AdminError::Unreachable { address: self.address(), source };
        let target = (self.address.host.as_str(), self.address.port);
        let stream = TcpStream::connect(target).await.map_err(unreachable)?;
        match &self.tls {
            None => self.request_on(stream, path).await,
            Some((connector, name)) => {
                let stream = connector.connect(name.clone(), stream).await.map_err(unreachable)?;
                self.request_on(stream, path).await
            }
        }
    }

    async fn request_on<S>(&self, stream: S, path: &str) -> Result<Option<Value>, AdminError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|error| self.failed(error))?;
        let connection = tokio::spawn(connection);
        let mut request = Request::get(path).header(HOST, self.address());
        if let Some(authorization) = &self.authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        let request = request.body(Empty::<Bytes>::new()).map_err(|error| self.failed(error))?;
        let response = sender.send_request(request).await.map_err(|error| self.failed(error))?;
        let (parts, body) = response.into_parts();
        let body = Limited::new(body, BODY_MAX).collect().await;
        let body = body.map_err(|source| AdminError::Http { address: self.address(), source })?;
        connection.abort();
        let body = body.to_bytes();
        match parts.status {
            StatusCode::OK => {
                serde_json::from_slice(&body).map(Some).map_err(|_| AdminError::NotJson)
            }
            StatusCode::NOT_FOUND => Ok(None),
            StatusCode::UNAUTHORIZED => Err(AdminError::Unauthorized),
            _ => Err(AdminError::Refused(String::from_utf8_lossy(&body).trim().to_string())),
        }
    }

    fn failed(&self, error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> AdminError {
        AdminError::Http { address: self.address(), source: error.into() }
    }
}

impl From<AdminError> for Failure {
    fn from(error: AdminError) -> Self {
        match error {
            AdminError::Refused(_) => Self::input(error),
            error => Self::io(error),
        }
    }
}
