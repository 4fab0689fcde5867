//! Timeouts and graceful shutdown of a connection, in paused time.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::FutureExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::time::{Instant, Sleep, sleep};

use super::timeouts::LINGER;
use super::{ClientStream, ConnState, Drain, GracefulShutdown, Stage, Ticks, Timeouts, drive};

const HTTP1: Timeouts = Timeouts {
    idle: Some(Duration::from_secs(120)),
    header: Duration::from_secs(15),
    first_request: Duration::MAX,
    write: Duration::from_secs(30),
    unread_response: Some(Duration::from_secs(40)),
};
const GRPC: Timeouts =
    Timeouts { idle: None, first_request: Duration::from_secs(60), unread_response: None, ..HTTP1 };

fn http1() -> Arc<ConnState> {
    ConnState::new(([127, 0, 0, 1], 1).into(), Ticks::start())
}

fn grpc() -> Arc<ConnState> {
    let conn = ConnState::http2(([127, 0, 0, 1], 1).into(), Ticks::start());
    conn.expect_first_request();
    conn
}

fn connect(conn: &Arc<ConnState>) -> (DuplexStream, ClientStream<DuplexStream>) {
    let (client, server) = duplex(64);
    let stream = ClientStream::new(server, Arc::clone(conn));
    (client, stream)
}

/// Runs this for at most an hour. Returns whether it was cut off, and when.
async fn cut_off<F: Future>(
    conn: &ConnState,
    timeouts: &Timeouts,
    connection: F,
) -> Option<Duration> {
    let started = Instant::now();
    let drain = Drain::default();
    let driven = drive(connection, None, conn, timeouts, &drain);
    let driven = tokio::time::timeout(Duration::from_secs(3_600), driven).await;
    matches!(driven, Ok(None)).then(|| started.elapsed())
}

/// How long a client is served that sends this once a second.
async fn served(
    conn: &Arc<ConnState>,
    timeouts: &Timeouts,
    drip: Option<&'static [u8]>,
) -> Option<Duration> {
    let (mut client, stream) = connect(conn);
    // The preface is the header of HTTP/2.
    let is_http1 = timeouts.idle.is_some();
    let mut stream = if is_http1 { stream.tracking_headers() } else { stream };
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(Duration::from_secs(1)).await;
            if let Some(drip) = drip
                && client.write_all(drip).await.is_err()
            {
                return;
            }
        }
    });
    let read = async {
        let mut byte = [0];
        while stream.read_exact(&mut byte).await.is_ok() {}
    };
    cut_off(conn, timeouts, read).await
}

fn is_about(waited: Option<Duration>, seconds: u64) -> bool {
    let exact = Duration::from_secs(seconds);
    waited.is_some_and(|waited| waited >= exact && waited <= exact * 5 / 4)
}

#[tokio::test(start_paused = true)]
async fn a_header_that_comes_slowly_is_cut_off_in_time() {
    let waited = served(&http1(), &HTTP1, Some(b"x")).await.unwrap();
    assert_eq!(waited.as_secs(), 16, "from the first byte on");
}

#[tokio::test(start_paused = true)]
async fn an_idle_connection_is_closed() {
    assert!(is_about(served(&http1(), &HTTP1, None).await, 120));
}

#[tokio::test(start_paused = true)]
async fn requests_keep_a_connection_open() {
    let conn = http1();
    let requests = async {
        for _ in 0..20 {
            tokio::time::sleep(Duration::from_secs(100)).await;
            conn.begin_request();
            tokio::time::sleep(Duration::from_secs(50)).await;
            conn.end_request();
        }
        std::future::pending::<()>().await;
    };
    assert!(is_about(
        cut_off(&conn, &HTTP1, requests).await.map(|at| at - Duration::from_secs(3_000)),
        120
    ));
}

#[tokio::test(start_paused = true)]
async fn a_request_may_take_its_time() {
    let conn = http1();
    conn.begin_request();
    assert_eq!(served(&conn, &HTTP1, None).await, None);
}

#[tokio::test(start_paused = true)]
async fn a_response_that_is_left_unread_is_cut_off() {
    let conn = http1();
    conn.begin_request();
    let unread = async {
        tokio::time::sleep(Duration::from_secs(300)).await;
        conn.begin_unread();
        std::future::pending::<()>().await;
    };
    let waited = cut_off(&conn, &HTTP1, unread).await;
    assert!(is_about(waited.map(|at| at - Duration::from_secs(300)), 40), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn a_grpc_connection_stays_open_after_its_first_request() {
    assert!(is_about(served(&grpc(), &GRPC, Some(b"x")).await, 15), "a slow preface");
    assert!(is_about(served(&grpc(), &GRPC, None).await, 15), "no preface");
    let waited = served(&grpc(), &GRPC, Some(b"much of a preface")).await;
    assert!(is_about(waited, 60), "no request: {waited:?}");
    let confirmed = grpc();
    confirmed.note_preface(33);
    confirmed.confirm();
    assert_eq!(served(&confirmed, &GRPC, Some(b"x")).await, None);
}

#[tokio::test(start_paused = true)]
async fn a_preface_without_settings_is_cut_off() {
    let conn = grpc();
    conn.note_preface(24);
    assert!(is_about(served(&conn, &GRPC, None).await, 15));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_reads_nothing_is_cut_off() {
    let conn = http1();
    let (_client, mut stream) = connect(&conn);
    conn.begin_request();
    let write = async move { stream.write_all(&[0; 1_000]).await };
    let waited = cut_off(&conn, &HTTP1, write).await.unwrap();
    assert_eq!(waited.as_secs(), 30);
}

#[tokio::test(start_paused = true)]
async fn the_timer_of_a_task_without_budget_is_set() {
    let conn = http1();
    let busy = async {
        while tokio::task::consume_budget().now_or_never().is_some() {}
        conn.set_in_header(true);
        std::future::pending::<()>().await;
    };
    let waited = cut_off(&conn, &HTTP1, busy).await.unwrap();
    assert_eq!(waited.as_secs(), 15);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_reads_slowly_is_served() {
    let conn = http1();
    let (mut client, mut stream) = connect(&conn);
    conn.begin_request();
    tokio::spawn(async move {
        let mut bytes = [0; 10];
        while client.read_exact(&mut bytes).await.is_ok() {
            tokio::time::sleep(Duration::from_secs(20)).await;
        }
    });
    let write = async move { stream.write_all(&[0; 1_000]).await };
    assert_eq!(cut_off(&conn, &HTTP1, write).await, None);
}

#[tokio::test(start_paused = true)]
async fn a_close_waits_for_the_client_but_not_for_long() {
    let conn = http1();
    let (mut client, mut stream) = connect(&conn);
    client.write_all(b"more").await.unwrap();
    let close = async move { stream.shutdown().await };
    let waited = cut_off(&conn, &HTTP1, close).await.unwrap();
    assert_eq!(waited.as_secs(), LINGER.as_secs());
    let conn = http1();
    let (client, mut stream) = connect(&conn);
    drop(client);
    let close = async move { stream.shutdown().await };
    assert_eq!(cut_off(&conn, &HTTP1, close).await, None, "closed at once");
}

/// A connection that ends a second after its graceful shutdown has started, if at all.
struct Graceful(Option<Pin<Box<Sleep>>>, bool);

impl Future for Graceful {
    type Output = io::Result<()>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.0 {
            Some(end) => end.as_mut().poll(cx).map(Ok),
            None => Poll::Pending,
        }
    }
}

fn shutdown() -> Option<GracefulShutdown<Graceful>> {
    Some(GracefulShutdown::http1(|mut connection| {
        if connection.1 {
            connection.0 = Some(Box::pin(sleep(Duration::from_secs(1))));
        }
    }))
}

#[tokio::test(start_paused = true)]
async fn an_idle_connection_is_shut_down_before_it_is_cut_off() {
    let (drain, started) = (Drain::default(), Instant::now());
    let (conn, ends) = (http1(), Graceful(None, true));
    assert!(drive(ends, shutdown(), &conn, &HTTP1, &drain).await.is_some());
    assert!(is_about(Some(started.elapsed() - Duration::from_secs(1)), 120));
    let (conn, stays) = (http1(), Graceful(None, false));
    assert!(drive(stays, shutdown(), &conn, &HTTP1, &drain).await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_drain_shuts_connections_down_and_cuts_off_those_without_a_preface() {
    let (drain, started) = (Drain::default(), Instant::now());
    let (http1, grpc) = (http1(), grpc());
    let enter = async {
        drain.enter(Stage::LastResponses);
        tokio::time::sleep(Duration::from_secs(5)).await;
        drain.enter(Stage::CloseIdle);
    };
    let (ended, cut, ()) = tokio::join!(
        drive(Graceful(None, true), shutdown(), &http1, &HTTP1, &drain),
        drive(Graceful(None, true), shutdown(), &grpc, &GRPC, &drain),
        enter,
    );
    assert!(ended.is_some() && cut.is_none());
    assert_eq!(started.elapsed(), Duration::from_secs(6));
}
