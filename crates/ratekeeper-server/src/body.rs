//! Reads a request's body whole: bounded in size and in time.

use std::mem;
use std::pin::pin;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::FutureExt;
use http_body::Body;
use http_body_util::BodyExt;
use tokio::time::timeout;

/// A body has to be here in this time.
const WITHIN: Duration = Duration::from_secs(10);

/// Why there is no whole body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoBody {
    /// It is larger than it may be, or broke off.
    TooLarge,
    /// It did not come in time.
    TooSlow,
}

/// All of a body, if it is not too large and comes in time.
pub(crate) async fn whole<B>(body: B, max: usize) -> Result<Bytes, NoBody>
where
    B: Body<Data = Bytes>,
{
    let mut gathering = pin!(gather(body, max));
    // Most come in one piece with their head, and need no timer.
    let gathered = match gathering.as_mut().now_or_never() {
        Some(gathered) => gathered,
        None => timeout(WITHIN, gathering).await.map_err(|_| NoBody::TooSlow)?,
    };
    gathered.ok_or(NoBody::TooLarge)
}

async fn gather<B>(body: B, max: usize) -> Option<Bytes>
where
    B: Body<Data = Bytes>,
{
    let mut body = pin!(body);
    // Most have one piece, which is not copied.
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

    async fn read(pieces: Vec<&'static str>, max: usize) -> Result<Bytes, NoBody> {
        let frame = |piece: &'static str| Ok::<_, Infallible>(Frame::data(piece.into()));
        whole(StreamBody::new(stream::iter(pieces).map(frame)), max).await
    }

    #[tokio::test]
    async fn a_body_is_whole_or_refused() {
        assert_eq!(read(vec![], 0).await, Ok(Bytes::new()));
        assert_eq!(read(vec!["abc"], 3).await, Ok("abc".into()));
        assert_eq!(read(vec!["a", "", "b", "c"], 3).await, Ok("abc".into()));
        assert_eq!(read(vec!["ab", "cd"], 3).await, Err(NoBody::TooLarge));
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_never_ends_is_given_up() {
        let frames = stream::iter([Ok::<_, Infallible>(Frame::data(Bytes::from("a")))]);
        let body = StreamBody::new(frames.chain(stream::pending()));
        let begun = tokio::time::Instant::now();
        assert_eq!(whole(body, 10).await, Err(NoBody::TooSlow));
        assert_eq!(begun.elapsed(), WITHIN);
    }
}
