//! What usage is counted by.

/// The key of a request: text or bytes, such as a user's name or an address.
///
/// Everything that is `AsRef<[u8]>` is a key. A number is not, because it could be written in several ways:
///
/// ```
/// # fn check<K: ratekeeper_core::Key + ?Sized>(_: &K) {}
/// let id = 42u64;
/// check(&id.to_string()); // the same key as "42", also for other programs that share the store
/// check(&id.to_be_bytes()); // without an allocation
/// ```
///
/// ```compile_fail
/// # fn check<K: ratekeeper_core::Key + ?Sized>(_: &K) {}
/// check(&42u64);
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a key",
    label = "a key is text or bytes",
    note = "for a number, use `&id.to_string()`, or `&id.to_be_bytes()` to avoid an allocation"
)]
pub trait Key {
    /// Returns the bytes that identify the key.
    fn key_bytes(&self) -> &[u8];
}

#[diagnostic::do_not_recommend]
impl<T: AsRef<[u8]> + ?Sized> Key for T {
    #[inline(always)]
    fn key_bytes(&self) -> &[u8] {
        self.as_ref()
    }
}
