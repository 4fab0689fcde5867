//! Cache lines of their own.

use std::ops::Deref;

/// A value on cache lines of its own, so that threads that write it do not slow down those that read its neighbours.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Padded<T>(pub(crate) T);

impl<T> Deref for Padded<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.0
    }
}
