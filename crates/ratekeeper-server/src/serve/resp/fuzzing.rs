//! A connection of the Redis protocol.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex, split};

use super::connection::RespHandler;
use super::{Passwords, RespServer, timeouts};
use crate::listener::{ConnectionLimit, Drain};
use crate::serve::fuzzing::block_on;

/// Sends bytes in two parts and closes the sending half: the server closes the connection.
pub fn resp(bytes: &[u8]) {
    static WORKER: LazyLock<RespHandler> = LazyLock::new(|| {
        let long = Duration::from_secs(3_600);
        let (limiter, connections) = (crate::fuzzing::limiter(), ConnectionLimit::new(1));
        let server =
            RespServer::new(limiter, Passwords::default(), timeouts(long, long), connections);
        RespHandler::new(Arc::new(server), Drain::default())
    });
    let (client, server) = duplex(4 << 10);
    let (mut reader, mut writer) = split(client);
    block_on(async {
        let (first, second) = bytes.split_at(bytes.len() / 2);
        let send = async {
            // The server may have closed the connection.
            let _ = writer.write_all(first).await;
            tokio::task::yield_now().await;
            let _ = writer.write_all(second).await;
            let _ = writer.shutdown().await;
        };
        let receive = async {
            let mut buffer = [0; 4 << 10];
            while reader.read(&mut buffer).await.is_ok_and(|length| length > 0) {}
        };
        let (_, (), ()) =
            tokio::join!(WORKER.run(server, ([127, 0, 0, 1], 1).into()), send, receive);
    });
}
