//! Runs a connection, and ends it at a timeout and when the server drains.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::{Body, Incoming};
use hyper::rt::bounds::Http2ServerConnExec;
use hyper::rt::{Read, Write};
use hyper::server::conn::{http1, http2};
use hyper::service::HttpService;
use tokio::task::unconstrained;
use tokio::time::{Instant, Sleep, sleep};

use super::drain::{Drain, Stage, StageWatch};
use super::timeouts::{Check, ConnState, Timeouts};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// How long an idle client has to close a connection after a graceful shutdown has started.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// Longer than any connection is without a timer.
const FAR: Duration = Duration::from_secs(86_400);

/// The future of a connection that can be shut down gracefully.
pub(crate) trait GracefulShutdown: Future {
    /// The stage in which the connection is shut down. `None` if the connection heeds the drain itself.
    const SHUTDOWN_AT: Option<Stage>;

    /// Lets the connection end after the requests that it has received.
    fn graceful_shutdown(self: Pin<&mut Self>);
}

/// HTTP/1 is shut down late, because a client may have sent its next request before it has seen the
/// response that says `Connection: close`.
impl<I, S, B> GracefulShutdown for http1::Connection<I, S>
where
    S: HttpService<Incoming, ResBody = B>,
    S::Error: Into<BoxError>,
    I: Read + Write + Unpin,
    B: Body + 'static,
    B::Error: Into<BoxError>,
{
    const SHUTDOWN_AT: Option<Stage> = Some(Stage::CloseIdle);

    fn graceful_shutdown(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}

impl<I, S, B> GracefulShutdown for http1::UpgradeableConnection<I, S>
where
    S: HttpService<Incoming, ResBody = B>,
    S::Error: Into<BoxError>,
    I: Read + Write + Unpin + Send + 'static,
    B: Body + 'static,
    B::Error: Into<BoxError>,
{
    const SHUTDOWN_AT: Option<Stage> = Some(Stage::CloseIdle);

    fn graceful_shutdown(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}

/// HTTP/2 is shut down at once: GOAWAY says which requests will not be served.
impl<I, S, E, B> GracefulShutdown for http2::Connection<I, S, E>
where
    S: HttpService<Incoming, ResBody = B>,
    S::Error: Into<BoxError>,
    I: Read + Write + Unpin,
    B: Body + 'static,
    B::Error: Into<BoxError>,
    E: Http2ServerConnExec<S::Future, B>,
{
    const SHUTDOWN_AT: Option<Stage> = Some(Stage::LastResponses);

    fn graceful_shutdown(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}

/// Runs a connection to its end. Returns `None` if it was cut off, at a timeout or because it was not
/// even established when idle connections were closed.
///
/// While no timeout passes and the server does not drain, this costs a few loads of atomics each time the
/// connection is polled: the timer is polled once and then only checked for whether it has elapsed.
pub(crate) async fn drive<C: GracefulShutdown>(
    connection: C,
    conn: &ConnState,
    timeouts: &Timeouts,
    drain: &Drain,
) -> Option<C::Output> {
    let (connection, timer) = (pin!(connection), pin!(sleep(FAR)));
    let stages = StageWatch::new(drain);
    let stage = Stage::Serving;
    let mut driver = Driver { connection, timer, stages, stage, close_at: None, conn, timeouts };
    poll_fn(|cx| driver.poll(cx)).await
}

struct Driver<'d, C> {
    connection: Pin<&'d mut C>,
    timer: Pin<&'d mut Sleep>,
    stages: StageWatch,
    /// The stage that the connection was told of.
    stage: Stage,
    /// When to cut off a connection that was shut down because it was idle.
    close_at: Option<Instant>,
    conn: &'d ConnState,
    timeouts: &'d Timeouts,
}

/// Whether the connection goes on.
#[derive(PartialEq, Eq)]
enum Next {
    Continue,
    CutOff,
}

impl<C: GracefulShutdown> Driver<'_, C> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<C::Output>> {
        if self.follow_drain(cx) == Next::CutOff {
            return Poll::Ready(None);
        }
        if self.timer.is_elapsed() && self.check(cx) == Next::CutOff {
            return Poll::Ready(None);
        }
        if let Poll::Ready(output) = self.connection.as_mut().poll(cx) {
            return Poll::Ready(Some(output));
        }
        // A wait has started for which the timer has to be set.
        if self.conn.needs_check() && self.check(cx) == Next::CutOff {
            return Poll::Ready(None);
        }
        Poll::Pending
    }

    fn follow_drain(&mut self, cx: &mut Context<'_>) -> Next {
        let stage = self.stages.poll_stage(cx);
        if stage == self.stage {
            return Next::Continue;
        }
        self.stage = stage;
        if C::SHUTDOWN_AT.is_some_and(|at| stage >= at) {
            // A connection that has not received its preface does not end by itself.
            if stage == Stage::CloseIdle && !self.conn.is_established() {
                return Next::CutOff;
            }
            self.connection.as_mut().graceful_shutdown();
        }
        Next::Continue
    }

    fn check(&mut self, cx: &mut Context<'_>) -> Next {
        loop {
            let at = match self.conn.check(self.timeouts) {
                Check::OpenUntil(us) => self.conn.ticks().instant(us),
                Check::Idle => match self.close_idle(cx) {
                    Some(at) => at,
                    None => return Next::CutOff,
                },
                Check::Lingered => return Next::CutOff,
                Check::TimedOut(waiting_for) => {
                    tracing::debug!(peer = %self.conn.peer, waiting_for, "connection timed out");
                    return Next::CutOff;
                }
            };
            if at >= self.timer.deadline() && !self.timer.is_elapsed() {
                return Next::Continue;
            }
            self.timer.as_mut().reset(at);
            // A task that has used up its budget could not set its timer otherwise.
            if pin!(unconstrained(self.timer.as_mut())).poll(cx).is_pending() {
                return Next::Continue;
            }
        }
    }

    /// Shuts down an idle connection, and returns when to check it again. `None` if it is to be cut off.
    fn close_idle(&mut self, cx: &Context<'_>) -> Option<Instant> {
        C::SHUTDOWN_AT?;
        let now = Instant::now();
        if self.close_at.is_none() {
            self.connection.as_mut().graceful_shutdown();
            // It has to be polled for that.
            cx.waker().wake_by_ref();
        }
        let close_at = *self.close_at.get_or_insert(now + CLOSE_TIMEOUT);
        (now < close_at).then_some(close_at)
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;

    use futures_util::FutureExt;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    use super::*;
    use crate::listener::stream::ClientStream;
    use crate::listener::ticks::Ticks;
    use crate::listener::timeouts::LINGER;

    const HTTP1: Timeouts = Timeouts {
        idle: Some(Duration::from_secs(120)),
        header: Duration::from_secs(15),
        first_request: Duration::MAX,
        write: Duration::from_secs(30),
        unread_response: Some(Duration::from_secs(40)),
    };
    const GRPC: Timeouts = Timeouts {
        idle: None,
        first_request: Duration::from_secs(60),
        unread_response: None,
        ..HTTP1
    };

    /// A connection that is cut off when it is idle.
    struct Cut<F>(Pin<Box<F>>);

    impl<F: Future> Future for Cut<F> {
        type Output = F::Output;

        fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
            self.0.as_mut().poll(cx)
        }
    }

    impl<F: Future> GracefulShutdown for Cut<F> {
        const SHUTDOWN_AT: Option<Stage> = None;

        fn graceful_shutdown(self: Pin<&mut Self>) {}
    }

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
        let driven = drive(Cut(Box::pin(connection)), conn, timeouts, &drain);
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
                if let Some(drip) = drip {
                    if client.write_all(drip).await.is_err() {
                        return;
                    }
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

    /// A connection that ends a second after it was asked to, if at all.
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

    impl GracefulShutdown for Graceful {
        const SHUTDOWN_AT: Option<Stage> = Some(Stage::CloseIdle);

        fn graceful_shutdown(mut self: Pin<&mut Self>) {
            if self.1 {
                self.0 = Some(Box::pin(sleep(Duration::from_secs(1))));
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_connection_is_shut_down_before_it_is_cut_off() {
        let (drain, started) = (Drain::default(), Instant::now());
        let (conn, ends) = (http1(), Graceful(None, true));
        assert!(drive(ends, &conn, &HTTP1, &drain).await.is_some());
        assert!(is_about(Some(started.elapsed() - Duration::from_secs(1)), 120));
        let (conn, stays) = (http1(), Graceful(None, false));
        assert!(drive(stays, &conn, &HTTP1, &drain).await.is_none());
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
            drive(Graceful(None, true), &http1, &HTTP1, &drain),
            drive(Graceful(None, true), &grpc, &GRPC, &drain),
            enter,
        );
        assert!(ended.is_some() && cut.is_none());
        assert_eq!(started.elapsed(), Duration::from_secs(6));
    }
}
