//! A minimal Redis client to manage servers. Unlike with `redis-cli`, keys may be any bytes, and a server
//! that does not respond is an error.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(crate) enum Reply {
    Data(Vec<u8>),
    Array(Vec<Reply>),
    Nil,
}

impl Reply {
    pub(crate) fn text(&self) -> String {
        match self {
            Reply::Data(data) => String::from_utf8_lossy(data).into_owned(),
            Reply::Array(items) => items.iter().map(Reply::text).collect::<Vec<_>>().join("\n"),
            Reply::Nil => String::new(),
        }
    }

    pub(crate) fn into_data(self) -> Option<Vec<u8>> {
        match self {
            Reply::Data(data) => Some(data),
            _ => None,
        }
    }

    pub(crate) fn into_items(self) -> Vec<Reply> {
        match self {
            Reply::Array(items) => items,
            _ => Vec::new(),
        }
    }
}

pub(crate) struct RedisConnection(BufReader<TcpStream>);

impl RedisConnection {
    pub(crate) fn open(port: u16) -> io::Result<RedisConnection> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let stream = TcpStream::connect_timeout(&address, RESPONSE_TIMEOUT)?;
        stream.set_read_timeout(Some(RESPONSE_TIMEOUT))?;
        stream.set_nodelay(true)?;
        Ok(RedisConnection(BufReader::new(stream)))
    }

    pub(crate) fn call(&mut self, args: &[impl AsRef<[u8]>]) -> io::Result<Reply> {
        let mut request = format!("*{}\r\n", args.len()).into_bytes();
        for arg in args.iter().map(AsRef::as_ref) {
            request.extend(format!("${}\r\n", arg.len()).bytes());
            request.extend(arg);
            request.extend(b"\r\n");
        }
        self.0.get_mut().write_all(&request)?;
        self.reply()
    }

    fn reply(&mut self) -> io::Result<Reply> {
        let mut line = String::new();
        self.0.read_line(&mut line)?;
        let line = line.trim_end();
        let (kind, rest) = line.split_at_checked(1).ok_or(io::ErrorKind::UnexpectedEof)?;
        match kind {
            "-" => Err(io::Error::other(rest)),
            "$" | "*" if rest == "-1" => Ok(Reply::Nil),
            "$" => self.bulk(count(rest)?),
            "*" => Ok(Reply::Array(
                (0..count(rest)?).map(|_| self.reply()).collect::<io::Result<_>>()?,
            )),
            _ => Ok(Reply::Data(rest.into())),
        }
    }

    fn bulk(&mut self, length: usize) -> io::Result<Reply> {
        let mut data = vec![0; length + 2];
        self.0.read_exact(&mut data)?;
        data.truncate(length);
        Ok(Reply::Data(data))
    }
}

fn count(text: &str) -> io::Result<usize> {
    text.parse().map_err(io::Error::other)
}
