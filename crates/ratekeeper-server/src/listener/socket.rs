//! Listening sockets: TCP, and Unix domain sockets for clients on the same machine.

use std::fs;
use std::future::Future;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener as StdTcpListener};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener as StdUnixListener, UnixStream as StdUnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

use crate::failure::Failure;

/// A client that is gone without closing its connection is noticed after a few of these probes.
pub(crate) const KEEP_ALIVE: TcpKeepalive =
    TcpKeepalive::new().with_time(Duration::from_secs(30)).with_interval(Duration::from_secs(10));

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 4096;

/// The address of clients over a Unix domain socket: they are on this machine.
const LOCAL_PEER: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// A listening socket that does not block. Each worker has a clone.
pub(crate) trait ListeningSocket: Send + Sized + 'static {
    /// The socket in a runtime.
    type Acceptor: Send + Sync;
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    fn try_clone(&self) -> io::Result<Self>;

    fn into_acceptor(self) -> io::Result<Self::Acceptor>;

    /// Waits for a connection.
    fn accept(
        acceptor: &Self::Acceptor,
    ) -> impl Future<Output = io::Result<(Self::Stream, SocketAddr)>> + Send;

    /// Returns the connections that are established already, and stops listening.
    fn accept_rest(acceptor: Self::Acceptor) -> io::Result<Vec<(Self::Stream, SocketAddr)>>;

    /// Sets the options of a connection.
    fn configure(_: &Self::Stream) {}
}

impl ListeningSocket for StdTcpListener {
    type Acceptor = TcpListener;
    type Stream = TcpStream;

    fn try_clone(&self) -> io::Result<Self> {
        Self::try_clone(self)
    }

    fn into_acceptor(self) -> io::Result<TcpListener> {
        TcpListener::from_std(self)
    }

    async fn accept(acceptor: &TcpListener) -> io::Result<(TcpStream, SocketAddr)> {
        acceptor.accept().await
    }

    fn accept_rest(acceptor: TcpListener) -> io::Result<Vec<(TcpStream, SocketAddr)>> {
        let (listener, mut rest) = (acceptor.into_std()?, Vec::new());
        while let Ok((stream, peer)) = listener.accept() {
            stream.set_nonblocking(true)?;
            rest.push((TcpStream::from_std(stream)?, peer));
        }
        Ok(rest)
    }

    /// If these fail, responses are delayed, or a client that is gone is noticed later.
    fn configure(stream: &TcpStream) {
        let _ = stream.set_nodelay(true);
        let _ = SockRef::from(stream).set_tcp_keepalive(&KEEP_ALIVE);
    }
}

impl ListeningSocket for StdUnixListener {
    type Acceptor = UnixListener;
    type Stream = UnixStream;

    fn try_clone(&self) -> io::Result<Self> {
        Self::try_clone(self)
    }

    fn into_acceptor(self) -> io::Result<UnixListener> {
        UnixListener::from_std(self)
    }

    async fn accept(acceptor: &UnixListener) -> io::Result<(UnixStream, SocketAddr)> {
        acceptor.accept().await.map(|(stream, _)| (stream, LOCAL_PEER))
    }

    fn accept_rest(acceptor: UnixListener) -> io::Result<Vec<(UnixStream, SocketAddr)>> {
        let (listener, mut rest) = (acceptor.into_std()?, Vec::new());
        while let Ok((stream, _)) = listener.accept() {
            stream.set_nonblocking(true)?;
            rest.push((UnixStream::from_std(stream)?, LOCAL_PEER));
        }
        Ok(rest)
    }
}

/// Binds and listens, so that an address in use is reported before anything else starts.
pub(crate) fn bind(address: SocketAddr) -> io::Result<StdTcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Returns the failure of [`bind`], with what to do about it.
pub(crate) fn listen_failure(address: SocketAddr, error: &io::Error, remedy: &str) -> Failure {
    let cause = match error.kind() {
        io::ErrorKind::AddrInUse => format!("port {} is in use", address.port()),
        _ => error.to_string(),
    };
    Failure::io(format!("cannot listen on {address}: {cause}; {remedy}"))
}

/// The file of a Unix domain socket. It is removed when this is dropped, unless another process has replaced
/// it.
pub(crate) struct SocketFile {
    path: PathBuf,
    inode: u64,
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if fs::symlink_metadata(&self.path).is_ok_and(|about| about.ino() == self.inode) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Binds a Unix domain socket and listens. A socket that a process has left behind is replaced.
pub(crate) fn bind_unix(path: &Path) -> io::Result<(StdUnixListener, SocketFile)> {
    let listener = match StdUnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse && is_left_behind(path) => {
            fs::remove_file(path)?;
            StdUnixListener::bind(path)?
        }
        bound => bound?,
    };
    listener.set_nonblocking(true)?;
    let inode = fs::symlink_metadata(path)?.ino();
    Ok((listener, SocketFile { path: path.to_path_buf(), inode }))
}

fn is_left_behind(path: &Path) -> bool {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|about| about.file_type().is_socket());
    let refuses = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
    is_socket && StdUnixStream::connect(path).is_err_and(refuses)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_that_is_left_behind_is_replaced_and_others_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("grpc.sock");
        drop(StdUnixListener::bind(&path).unwrap());
        let (listener, file) = bind_unix(&path).unwrap();
        let error = bind_unix(&path).err().expect("a process listens");
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        drop((listener, file));
        assert!(!path.exists());
        fs::write(&path, "not a socket").unwrap();
        assert!(bind_unix(&path).is_err() && path.exists());
    }
}
