//! Server-sent events: the status once a second, to a bounded number of viewers.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::Stream;
use futures_util::stream::unfold;
use http_body::{Body, Frame};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

/// How many pages can be open at once.
pub(super) const VIEWERS_MAX: usize = 32;

/// Sends each event to all viewers.
pub(super) struct Events {
    last: watch::Sender<Bytes>,
    viewers: Arc<Semaphore>,
}

/// The body of a response: events until the viewer leaves. A viewer that reads too slowly misses events, and what
/// waits for it is never more than one.
pub(crate) struct EventStream(Pin<Box<dyn Stream<Item = Bytes> + Send>>);

impl Default for Events {
    fn default() -> Self {
        let viewers = Arc::new(Semaphore::new(VIEWERS_MAX));
        Self { last: watch::Sender::new(Bytes::new()), viewers }
    }
}

impl Events {
    pub(super) fn has_viewers(&self) -> bool {
        self.viewers.available_permits() < VIEWERS_MAX
    }

    /// Sends an event, which must be one line.
    pub(super) fn send(&self, data: &str) {
        self.last.send_replace(event(data));
    }

    /// Returns a stream that begins with `first`, or `None` if there are too many viewers.
    pub(super) fn subscribe(&self, first: &str) -> Option<EventStream> {
        let viewer = Arc::clone(&self.viewers).try_acquire_owned().ok()?;
        let receiver = self.last.subscribe();
        let state = (Some(event(first)), receiver, viewer);
        Some(EventStream(Box::pin(unfold(state, next))))
    }
}

type ViewerState = (Option<Bytes>, watch::Receiver<Bytes>, OwnedSemaphorePermit);

async fn next((first, mut receiver, viewer): ViewerState) -> Option<(Bytes, ViewerState)> {
    if let Some(first) = first {
        return Some((first, (None, receiver, viewer)));
    }
    receiver.changed().await.ok()?;
    let event = receiver.borrow_and_update().clone();
    Some((event, (None, receiver, viewer)))
}

fn event(data: &str) -> Bytes {
    format!("data: {data}\n\n").into()
}

impl Body for EventStream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.as_mut().poll_next(cx).map(|event| event.map(|event| Ok(Frame::data(event))))
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    async fn read(stream: &mut EventStream) -> Bytes {
        stream.frame().await.unwrap().unwrap().into_data().unwrap()
    }

    #[tokio::test]
    async fn a_slow_viewer_misses_events_and_gets_the_last() {
        let events = Events::default();
        let mut stream = events.subscribe("0").unwrap();
        (1..=100).for_each(|n| events.send(&n.to_string()));
        assert_eq!(read(&mut stream).await, "data: 0\n\n");
        assert_eq!(read(&mut stream).await, "data: 100\n\n");
    }

    #[test]
    fn viewers_are_bounded_and_leave_room_when_they_go() {
        let events = Events::default();
        let viewers: Vec<_> = (0..VIEWERS_MAX).filter_map(|_| events.subscribe("")).collect();
        assert_eq!(viewers.len(), VIEWERS_MAX);
        assert!(events.subscribe("").is_none());
        drop(viewers);
        assert!(events.subscribe("").is_some() && !events.has_viewers());
    }
}
