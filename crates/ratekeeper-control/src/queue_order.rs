//! In which order a queue is served.

/// Which of the requests that wait is served next.
///
/// ```
/// use ratekeeper_control::QueueOrder;
///
/// assert_eq!(QueueOrder::default(), QueueOrder::Fifo);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum QueueOrder {
    /// First come, first served.
    #[default]
    Fifo,
    /// First come, first served, and newest first while the queue has not been empty for 100 ms.
    ///
    /// Under overload, those who have waited longest have often given up, and serving them in order makes
    /// everyone wait for nearly the deadline. While the newest is served first, a request that finds the queue
    /// full takes the place of the oldest.
    AdaptiveLifo,
}
