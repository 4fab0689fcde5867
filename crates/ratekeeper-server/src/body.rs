//! Reads the whole body of a request, bounded in size and time.

use std::mem;
use std::pin::pin;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::FutureExt;
use http_body::Body;
use http_body_util::BodyExt;
use tokio::time::timeout;

/// How long reading a body may take.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// Why a body could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyReadError {
    /// It is too large, or incomplete.
    TooLarge,
    /// It did not come in time.
    TooSlow,
}

/// Returns all of a body, if it is not too large and comes in time.
pub(crate) async fn read_body<B>(body: B, max: usize) -> Result<Bytes, BodyReadError>
where
    B: Body<Data = Bytes>,
{
    let mut reading = pin!(collect(body, max));
    // Most come together with their header, and need no timer.
    let collected = match reading.as_mut().now_or_never() {
        Some(collected) => collected,
        None => timeout(BODY_TIMEOUT, reading).await.map_err(|_| BodyReadError::TooSlow)?,
    };
    collected.ok_or(BodyReadError::TooLarge)
}

async fn collect<B>(body: B, max: usize) -> Option<Bytes>
where
    B: Body<Data = Bytes>,
{
    let mut body = pin!(body);
    // Most have one frame, which is not copied.
    let (mut first, mut more) = (Bytes::new(), BytesMut::new());
    while let Some(frame) = body.frame().await {
        let Ok(piece) = frame.ok()?.into_data() else { continue };
        if first.len() + more.len() + piece.len() > max {
            return None;
        }
        if first.is_empty() && more.is_empty() {
            first = piece;
        } else {
            more.extend_from_slice(&mem::take(&mut first));
            more.extend_from_slice(&piece);
        }
    }
    Some(if more.is_empty() { first } else { more.freeze() })
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures_util::stream::{self, StreamExt};
    use http_body::Frame;
    use http_body_util::StreamBody;

    use super::*;

    async fn read(pieces: Vec<&'static str>, max: usize) -> Result<Bytes, BodyReadError> {
        let frame = |piece: &'static str| Ok::<_, Infallible>(Frame::data(piece.into()));
        read_body(StreamBody::new(stream::iter(pieces).map(frame)), max).await
    }

    #[tokio::test]
    async fn a_body_is_read_whole_or_rejected() {
        assert_eq!(read(vec![], 0).await, Ok(Bytes::new()));
        assert_eq!(read(vec!["abc"], 3).await, Ok("abc".into()));
        assert_eq!(read(vec!["a", "", "b", "c"], 3).await, Ok("abc".into()));
        assert_eq!(read(vec!["ab", "cd"], 3).await, Err(BodyReadError::TooLarge));
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_never_ends_times_out() {
        let frames = stream::iter([Ok::<_, Infallible>(Frame::data(Bytes::from("a")))]);
        let body = StreamBody::new(frames.chain(stream::pending()));
        let begun = tokio::time::Instant::now();
        assert_eq!(read_body(body, 10).await, Err(BodyReadError::TooSlow));
        assert_eq!(begun.elapsed(), BODY_TIMEOUT);
    }
}
