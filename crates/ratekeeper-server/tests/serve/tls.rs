//! TLS and mutual TLS on every listener.

use std::fs;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::process::Command;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2::handshake;
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use ratekeeper_testkit::{CA, CERTIFICATE, KEY, ServerBuilder, wait_until, write_certificates};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::grpc;
use crate::process::{Server, envoy_config, file, path, request, run};

fn certificates() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    write_certificates(dir.path());
    dir
}

fn options(dir: &TempDir) -> [String; 4] {
    let of = |name| dir.path().join(name).display().to_string();
    ["--tls-cert".into(), of(CERTIFICATE), "--tls-key".into(), of(KEY)]
}

/// A server with all listeners.
fn secured(dir: &TempDir, args: &[&str]) -> Server {
    let (tls, config) = (options(dir), envoy_config(1_000));
    let tls: Vec<_> = tls.iter().map(String::as_str).collect();
    let all = ["--resp", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--envoy-config"];
    Server::start(&[&tls, &all[..], &[path(config.path())], args].concat())
}

/// The certificate that a client shows, and the authority that it trusts.
struct Caller<'d> {
    trusts: &'d Path,
    shows: Option<&'d Path>,
}

impl Caller<'_> {
    async fn connect(
        &self,
        address: SocketAddr,
        protocol: Option<&str>,
    ) -> io::Result<TlsStream<TcpStream>> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(self.trusts.join(CA)).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider);
        let config = config.with_safe_default_protocol_versions().unwrap();
        let config = config.with_root_certificates(roots);
        let mut config = match self.shows {
            None => config.with_no_client_auth(),
            Some(dir) => {
                let own = CertificateDer::from_pem_file(dir.join(CERTIFICATE)).unwrap();
                let key = PrivateKeyDer::from_pem_file(dir.join(KEY)).unwrap();
                config.with_client_auth_cert(vec![own], key).unwrap()
            }
        };
        config.alpn_protocols = protocol.iter().map(|name| name.as_bytes().to_vec()).collect();
        let stream = TcpStream::connect(address).await?;
        let name = ServerName::try_from("localhost").unwrap();
        TlsConnector::from(Arc::new(config)).connect(name, stream).await
    }

    /// Sends this, and gives what comes back until the server closes.
    async fn exchange(
        &self,
        address: SocketAddr,
        protocol: Option<&str>,
        request: &str,
    ) -> io::Result<String> {
        let mut stream = self.connect(address, protocol).await?;
        stream.write_all(request.as_bytes()).await?;
        let mut response = String::new();
        stream.read_to_string(&mut response).await?;
        Ok(response)
    }

    /// The gRPC status of a request as Envoy sends it.
    async fn ask_as_envoy(&self, address: SocketAddr) -> io::Result<String> {
        let stream = self.connect(address, Some("h2")).await?;
        let shaken = handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
        let (mut sender, connection) = shaken.map_err(io::Error::other)?;
        tokio::spawn(connection);
        let message = grpc::request(&[("user", "ann")]).encode_to_vec();
        let mut body = BytesMut::new();
        body.put_u8(0);
        body.put_u32(message.len() as u32);
        body.put(&message[..]);
        let uri = "https://localhost/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
        let request = Request::post(uri).header("content-type", "application/grpc");
        let request = request.header("te", "trailers").body(Full::new(body.freeze())).unwrap();
        let response = sender.send_request(request).await.map_err(io::Error::other)?;
        let response = response.into_body().collect().await.map_err(io::Error::other)?;
        let status = response.trailers().and_then(|trailers| trailers.get("grpc-status")).cloned();
        let _: Bytes = response.to_bytes();
        Ok(status.map(|status| status.to_str().unwrap().to_string()).unwrap_or_default())
    }

    /// Whether every listener serves it.
    async fn is_served(&self, server: &Server) -> [bool; 4] {
        let check = request("/v1/check", "Connection: close\r\n", r#"{"key":"k","rate":"9/s"}"#);
        let metrics = "GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
        let http = self.exchange(server.http(), Some("http/1.1"), &check).await;
        let admin = self.exchange(server.admin(), None, metrics).await;
        let redis = self.exchange(server.resp(), None, "PING\r\nQUIT\r\n").await;
        let envoy = self.ask_as_envoy(server.grpc()).await;
        [
            http.is_ok_and(|response| response.starts_with("HTTP/1.1 200")),
            admin.is_ok_and(|response| response.contains("ratekeeper_policy_ok 1")),
            redis.is_ok_and(|response| response == "+PONG\r\n+OK\r\n"),
            envoy.is_ok_and(|status| status == "0"),
        ]
    }
}

#[tokio::test]
async fn every_listener_speaks_tls() {
    let dir = certificates();
    let server = secured(&dir, &[]);
    assert!(server.log().contains("try: curl -i https://127.0.0.1:"), "{}", server.log());
    let caller = Caller { trusts: dir.path(), shows: None };
    assert_eq!(caller.is_served(&server).await, [true; 4]);
    let plain = server.post_plain();
    assert!(!plain.contains("200 OK"), "{plain}");
}

/// Provides tonic's client with its connection.
#[derive(Clone)]
struct Connector {
    folder: std::path::PathBuf,
    address: SocketAddr,
}

impl tower_service::Service<http::Uri> for Connector {
    type Response = TokioIo<TlsStream<TcpStream>>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: http::Uri) -> Self::Future {
        let Self { folder, address } = self.clone();
        Box::pin(async move {
            let caller = Caller { trusts: &folder, shows: None };
            caller.connect(address, Some("h2")).await.map(TokioIo::new)
        })
    }
}

#[tokio::test]
async fn a_grpc_client_asks_over_tls_many_times_on_one_connection() {
    let dir = certificates();
    let server = secured(&dir, &[]);
    let connector = Connector { folder: dir.path().to_path_buf(), address: server.grpc() };
    let endpoint = tonic::transport::Endpoint::from_static("http://localhost");
    let channel = endpoint.connect_with_connector(connector).await.unwrap();
    let client = grpc::Client::over(channel);
    let mut requests = tokio::task::JoinSet::new();
    for _ in 0..1_200 {
        let mut client = client.clone();
        requests.spawn(async move { client.is_over(&[("user", "ann")]).await });
    }
    let over = requests.join_all().await.into_iter().filter(|is_over| *is_over).count();
    assert_eq!(over, 200, "a thousand may pass");
}

/// The first message of a client that knows nothing newer than this version of TLS.
fn client_hello(version: [u8; 2]) -> Vec<u8> {
    let suites = [0xc0, 0x2f, 0xc0, 0x13, 0x00, 0x2f];
    let hello = [&version[..], &[7; 32], &[0, 0, suites.len() as u8], &suites, &[1, 0]].concat();
    let head = [0x16, version[0], version[1], 0, hello.len() as u8 + 4, 1, 0, 0, hello.len() as u8];
    [&head[..], &hello].concat()
}

#[tokio::test]
async fn versions_of_tls_before_1_2_are_refused_at_every_listener() {
    let dir = certificates();
    let server = secured(&dir, &[]);
    for listener in [server.http(), server.grpc(), server.resp(), server.admin()] {
        for version in [[3, 0], [3, 1], [3, 2]] {
            let mut stream = TcpStream::connect(listener).await.unwrap();
            stream.write_all(&client_hello(version)).await.unwrap();
            let mut response = Vec::new();
            stream.read_to_end(&mut response).await.unwrap();
            let is_fatal_alert = response.len() == 7 && response[0] == 0x15 && response[5] == 2;
            assert!(is_fatal_alert, "{version:?}: {response:?}");
        }
    }
}

#[tokio::test]
async fn only_clients_with_a_certificate_of_the_authority_are_served() {
    let (dir, friends, others) = (certificates(), certificates(), certificates());
    let ca = friends.path().join(CA);
    let server = secured(&dir, &["--tls-client-ca", path(&ca)]);
    let known = Caller { trusts: dir.path(), shows: Some(friends.path()) };
    assert_eq!(known.is_served(&server).await, [true; 4]);
    for shows in [None, Some(others.path())] {
        let unknown = Caller { trusts: dir.path(), shows };
        assert_eq!(unknown.is_served(&server).await, [false; 4]);
    }

    // The authority is another one from now on, without a restart of the server.
    fs::copy(others.path().join(CA), &ca).unwrap();
    later(&ca);
    server.wait_for_log("certificate reloaded");
    assert_eq!(known.is_served(&server).await, [false; 4]);
    let other = Caller { trusts: dir.path(), shows: Some(others.path()) };
    assert_eq!(other.is_served(&server).await, [true; 4]);
}

#[tokio::test]
async fn a_new_certificate_is_shown_at_every_listener() {
    let (dir, next) = (certificates(), certificates());
    let server = secured(&dir, &[]);
    fs::write(dir.path().join(CERTIFICATE), "not a certificate").unwrap();
    server.signal("-HUP");
    server.wait_for_log("certificate not reloaded");
    let trusting = |trusts| Caller { trusts, shows: None };
    assert_eq!(trusting(dir.path()).is_served(&server).await, [true; 4], "the old one stays");
    for name in [CERTIFICATE, KEY] {
        fs::copy(next.path().join(name), dir.path().join(name)).unwrap();
    }
    later(&dir.path().join(KEY));
    server.wait_for_log("certificate reloaded");
    assert_eq!(trusting(next.path()).is_served(&server).await, [true; 4]);
    assert_eq!(trusting(dir.path()).is_served(&server).await, [false; 4]);
}

/// Moves a file's time on: it may have been written in the same tick as before.
fn later(file: &Path) {
    let changed = fs::metadata(file).unwrap().modified().unwrap() + Duration::from_secs(2);
    fs::File::options().write(true).open(file).unwrap().set_modified(changed).unwrap();
}

#[test]
fn redis_cli_speaks_tls_with_it() {
    let dir = certificates();
    let ca = dir.path().join(CA);
    let server = secured(&dir, &["--tls-client-ca", path(&ca)]);
    let of = |name: &str| dir.path().join(name).display().to_string();
    let port = server.resp().port().to_string();
    let output = Command::new("redis-cli")
        .args(["-p", &port, "--tls", "--cacert", &of(CA), "--cert", &of(CERTIFICATE)])
        .args(["--key", &of(KEY), "CL.THROTTLE", "user:42", "15", "30", "60"])
        .output()
        .unwrap();
    let reply = String::from_utf8(output.stdout).unwrap();
    assert_eq!(reply.split_whitespace().collect::<Vec<_>>(), ["0", "16", "15", "-1", "2"]);
}

#[test]
fn a_listener_can_be_left_in_plain_text() {
    let dir = certificates();
    let server = secured(&dir, &["--plaintext", "admin"]);
    assert!(server.log().contains("admin: http://"), "{}", server.log());
    let mut client = crate::client::Client::connect(server.admin());
    assert_eq!(client.get("/healthz").status(), 200);
}

#[test]
fn others_are_not_let_in_by_accident() {
    let (dir, tokens) = (certificates(), file("alpha\n"));
    let tls = options(&dir);
    let tls: Vec<_> = tls.iter().map(String::as_str).collect();
    let public = ["--http", "0.0.0.0:0", "--admin", "off"];
    let tokens = ["--tokens", path(tokens.path())];
    let refused = |args: &[&str]| {
        let tried = run(&[&public, args].concat());
        assert_eq!(tried.status.code(), Some(2));
        String::from_utf8_lossy(&tried.stderr).into_owned()
    };
    let neither = refused(&[]);
    assert!(neither.contains("TLS (--tls-cert, --tls-key) and --tokens or"), "{neither}");
    assert!(neither.contains("--insecure-public"), "{neither}");
    assert!(refused(&tokens).contains("use TLS (--tls-cert, --tls-key),"));
    assert!(refused(&tls).contains("use --tokens or --tls-client-ca,"));
    assert!(refused(&[&tls[..], &tokens, &["--plaintext", "http"]].concat()).contains("use TLS"));
    let resp = refused(&[&tls[..], &tokens, &["--resp", "0.0.0.0:0"]].concat());
    assert!(resp.contains("--resp-passwords"), "{resp}");

    for allowed in [[&tls[..], &tokens].concat(), vec!["--insecure-public"]] {
        Server::start(&[&public, &allowed[..]].concat());
    }
    let ca = dir.path().join(CA);
    Server::start(&[&public, &tls[..], &["--tls-client-ca", path(&ca)]].concat());
}

#[test]
fn a_client_that_never_begins_does_not_hold_up_the_others() {
    let dir = certificates();
    let server = secured(&dir, &["--workers", "1"]);
    let silent: Vec<_> =
        (0..8).map(|_| std::net::TcpStream::connect(server.http()).unwrap()).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let caller = Caller { trusts: dir.path(), shows: None };
    wait_until("others are served", || runtime.block_on(caller.is_served(&server)) == [true; 4]);
    drop(silent);
}

#[tokio::test]
async fn a_client_of_redis_that_takes_no_answers_is_cut_off() {
    let dir = certificates();
    let server = secured(&dir, &["--resp-write-timeout", "1s"]);
    let caller = Caller { trusts: dir.path(), shows: None };
    let mut stream = caller.connect(server.resp(), None).await.unwrap();
    let commands = "INFO\r\n".repeat(1_000);
    // It sends requests until the connection is closed, and reads no reply.
    let cut_off = async { while stream.write_all(commands.as_bytes()).await.is_ok() {} };
    tokio::time::timeout(ratekeeper_testkit::TIMEOUT, cut_off).await.expect("it is cut off");
}

/// The variables of envoyproxy/ratelimit, for the gRPC listener alone.
#[tokio::test]
async fn variables_of_envoyproxy_ratelimit_secure_the_grpc_listener() {
    let (dir, root) = (certificates(), tempfile::tempdir().unwrap());
    let limits = "{ domain: test, descriptors: [{ key: user, rate_limit: { rate: 1000/year } }] }";
    fs::create_dir(root.path().join("config")).unwrap();
    fs::write(root.path().join("config/limits.yaml"), limits).unwrap();
    let start = |client_name: &str| {
        let builder =
            ServerBuilder::serve(env!("CARGO_BIN_EXE_ratekeeper")).args(["--resp", "off"]);
        let builder = builder.env("RUNTIME_ROOT", root.path()).env("GRPC_SERVER_USE_TLS", "true");
        let files = [
            ("GRPC_SERVER_TLS_CERT", CERTIFICATE),
            ("GRPC_SERVER_TLS_KEY", KEY),
            ("GRPC_CLIENT_TLS_CACERT", CA),
        ];
        let builder = files
            .into_iter()
            .fold(builder, |builder, (name, file)| builder.env(name, dir.path().join(file)));
        let ports = ["GRPC_PORT", "PORT", "DEBUG_PORT"];
        let builder = ports.into_iter().fold(builder, |builder, name| builder.env(name, "0"));
        builder.env("GRPC_CLIENT_TLS_SAN", client_name).start()
    };
    let named = Caller { trusts: dir.path(), shows: Some(dir.path()) };
    let anonymous = Caller { trusts: dir.path(), shows: None };
    let server = start("localhost");
    assert_eq!(named.ask_as_envoy(server.grpc()).await.unwrap(), "0");
    assert!(anonymous.ask_as_envoy(server.grpc()).await.is_err());
    // The other listeners are as they were.
    let health = ratekeeper_testkit::http1::Client::connect(server.http()).get("/healthcheck");
    assert_eq!(health.status(), 200);

    let server = start("envoy.example.com");
    assert!(named.ask_as_envoy(server.grpc()).await.is_err(), "the certificate has another name");
}
