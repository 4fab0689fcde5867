//! TLS from clients and to upstreams.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ratekeeper_testkit::{CA, CERTIFICATE, KEY, wait_until, write_certificates};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::backend::Backend;
use crate::http2::{get, http2_client, run, text};
use crate::process::Gateway;

fn certificates() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    write_certificates(dir.path());
    dir
}

fn path(dir: &TempDir, name: &str) -> String {
    dir.path().join(name).display().to_string()
}

fn secured(dir: &TempDir, args: &[&str]) -> Gateway {
    let (cert, key) = (path(dir, CERTIFICATE), path(dir, KEY));
    let tls = ["--tls-cert", &cert, "--tls-key", &key];
    Gateway::before(&Backend::echo(), &[&tls, args].concat())
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

async fn connect(
    gateway: &Gateway,
    authority: &Path,
    protocol: &str,
) -> std::io::Result<TlsStream<TcpStream>> {
    connect_to(gateway.address(), authority, protocol).await
}

async fn connect_to(
    address: SocketAddr,
    authority: &Path,
    protocol: &str,
) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(authority).unwrap()).unwrap();
    let config = ClientConfig::builder_with_provider(provider());
    let config = config.with_safe_default_protocol_versions().unwrap();
    let mut config = config.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
    let stream = TcpStream::connect(address).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, stream).await
}

#[test]
fn http1_and_http2_work_over_tls() {
    let dir = certificates();
    let gateway = secured(&dir, &[]);
    assert!(gateway.log().starts_with("listening on https://127.0.0.1:"), "{}", gateway.log());
    run(async {
        let ca = dir.path().join(CA);
        let mut sender = http2_client(connect(&gateway, &ca, "h2").await.unwrap()).await;
        let seen = text(sender.send_request(get("https://localhost/")).await.unwrap()).await;
        assert!(seen.contains("x-forwarded-proto: https\n"), "{seen}");

        let mut stream = connect(&gateway, &ca, "http/1.1").await.unwrap();
        let request = b"GET /1 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        stream.write_all(request).await.unwrap();
        let mut seen = String::new();
        stream.read_to_string(&mut seen).await.unwrap();
        assert!(seen.contains("GET /1 HTTP/1.1\n"), "{seen}");
    });
}

#[test]
fn a_valid_certificate_is_reloaded_and_an_invalid_one_is_rejected() {
    let (dir, next) = (certificates(), certificates());
    let gateway = secured(&dir, &[]);
    let is_trusted = |ca: &Path| run(connect(&gateway, ca, "h2")).is_ok();
    let old_ca = dir.path().join(CA);
    assert!(is_trusted(&old_ca) && !is_trusted(&next.path().join(CA)));

    fs::write(dir.path().join(CERTIFICATE), "not a certificate").unwrap();
    gateway.signal("-HUP");
    gateway.wait_for_log("certificate not reloaded");
    assert!(is_trusted(&old_ca), "the old one stays");

    fs::copy(next.path().join(KEY), dir.path().join(KEY)).unwrap();
    fs::copy(next.path().join(CERTIFICATE), dir.path().join(CERTIFICATE)).unwrap();
    // No signal is sent: the modification time triggers the reload.
    let later = fs::metadata(dir.path().join(KEY)).unwrap().modified().unwrap();
    let file = fs::File::options().write(true).open(dir.path().join(CERTIFICATE)).unwrap();
    file.set_modified(later.max(SystemTime::UNIX_EPOCH) + Duration::from_secs(1)).unwrap();
    wait_until("the new certificate is used", || is_trusted(&next.path().join(CA)));
    assert!(!is_trusted(&old_ca));
}

#[test]
fn an_unusable_certificate_is_rejected_at_start() {
    let dir = certificates();
    let run = |cert: &str, key: &str| {
        let upstream = ["--upstream", "http://127.0.0.1:1"];
        let tried =
            Gateway::builder().args(upstream).args(["--tls-cert", cert, "--tls-key", key]).run();
        (tried.status.code(), String::from_utf8(tried.stderr).unwrap())
    };
    let (code, error) = run(&path(&dir, CERTIFICATE), &path(&dir, "missing.key"));
    assert!(code == Some(2) && error.contains("missing.key"), "{error}");
    let (code, error) = run(&path(&dir, KEY), &path(&dir, KEY));
    assert!(code == Some(2) && error.contains("it contains no certificate"), "{error}");
    let (code, error) = run(&path(&dir, CERTIFICATE), &path(&dir, CERTIFICATE));
    assert!(code == Some(2) && error.contains("it contains no private key"), "{error}");
    let (code, error) = run(&path(&dir, CA), &path(&dir, KEY));
    assert!(code == Some(2) && error.contains("does not match"), "{error}");
}

/// Starts an upstream over TLS that responds once on each connection.
async fn secure_upstream(dir: &TempDir) -> u16 {
    let cert = CertificateDer::from_pem_file(dir.path().join(CERTIFICATE)).unwrap();
    let key = PrivateKeyDer::from_pem_file(dir.path().join(KEY)).unwrap();
    let config = ServerConfig::builder_with_provider(provider());
    let config = config.with_safe_default_protocol_versions().unwrap();
    let config = config.with_no_client_auth().with_single_cert(vec![cert], key).unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let Ok(mut stream) = acceptor.accept(stream).await else { continue };
            let mut request = [0; 4096];
            _ = stream.read(&mut request).await;
            let response =
                b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\nConnection: close\r\n\r\nsecret";
            _ = stream.write_all(response).await;
            _ = stream.shutdown().await;
        }
    });
    port
}

#[test]
fn an_upstream_is_trusted_only_with_its_configured_ca() {
    let dir = certificates();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.unwrap();
    let url = format!("https://127.0.0.1:{}", runtime.block_on(secure_upstream(&dir)));
    let trusting = Gateway::start(&["--upstream", &url, "--upstream-ca", &path(&dir, CA)]);
    assert_eq!(trusting.connect().get("/").body, "secret");
    assert_eq!(trusting.connect().get("/").body, "secret");
    let other = certificates();
    let distrusting = Gateway::start(&["--upstream", &url, "--upstream-ca", &path(&other, CA)]);
    let response = distrusting.connect().get("/");
    assert!(response.status() == 502 && !response.body.contains("secret"), "{}", response.body);
}

#[test]
fn a_public_admin_listener_requires_tls_and_tokens() {
    let dir = certificates();
    let tokens = dir.path().join("tokens");
    fs::write(&tokens, "omega\n").unwrap();
    let tokens = tokens.display().to_string();
    let tried = Gateway::builder()
        .args(["--upstream", "http://127.0.0.1:1"])
        .args(["--admin", "0.0.0.0:0", "--admin-tokens", &tokens])
        .run();
    let error = String::from_utf8(tried.stderr).unwrap();
    assert!(tried.status.code() == Some(2) && error.contains("--insecure-public"), "{error}");

    let gateway = secured(&dir, &["--admin", "0.0.0.0:0", "--admin-tokens", &tokens]);
    let port = gateway.admin().port();
    run(async {
        for (header, status) in [("", "401"), ("Authorization: Bearer omega\r\n", "200")] {
            let address = SocketAddr::from(([127, 0, 0, 1], port));
            let ca = dir.path().join(CA);
            let mut stream = connect_to(address, &ca, "http/1.1").await.unwrap();
            let request =
                format!("GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{header}\r\n");
            stream.write_all(request.as_bytes()).await.unwrap();
            let mut response = String::new();
            stream.read_to_string(&mut response).await.unwrap();
            assert!(response.starts_with(&format!("HTTP/1.1 {status}")), "{response}");
        }
    });
}

#[test]
fn clients_need_a_certificate_if_a_client_ca_is_set() {
    let (dir, clients) = (certificates(), certificates());
    let gateway = secured(&dir, &["--tls-client-ca", &path(&clients, CA)]);
    run(async {
        let mut stream = match connect(&gateway, &dir.path().join(CA), "http/1.1").await {
            Ok(stream) => stream,
            Err(_) => return,
        };
        // With TLS 1.3 the client gets the error with the first read.
        _ = stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
        let mut response = String::new();
        assert!(
            stream.read_to_string(&mut response).await.is_err() && response.is_empty(),
            "{response}"
        );
    });
}
