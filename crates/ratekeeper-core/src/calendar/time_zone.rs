//! Time zones of the compiled-in database, by name.

extern crate std;

use alloc::borrow::ToOwned;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;
use core::hash::{Hash, Hasher};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use jiff::tz;

use super::{CalendarError, UTC};
use crate::suggest::is_one_edit_apart;

/// A time zone of the IANA database: a small handle that is copied.
///
/// ```
/// # use ratekeeper_core as ratekeeper;
/// use ratekeeper::TimeZone;
///
/// let zone = TimeZone::named("europe/berlin")?;
/// assert_eq!(zone.name(), "Europe/Berlin");
/// # Ok::<(), ratekeeper_core::CalendarError>(())
/// ```
#[derive(Clone, Copy)]
pub struct TimeZone(&'static Loaded);

struct Loaded {
    name: &'static str,
    zone: tz::TimeZone,
}

/// The time zones in use. They are never dropped; there are at most as many as the database has names.
static LOADED: Mutex<Vec<&'static Loaded>> = Mutex::new(Vec::new());

/// The most suggestions for an unknown name.
const NEAR_MAX: usize = 3;

impl TimeZone {
    /// Returns the time zone with this name, in any case.
    ///
    /// # Errors
    /// If the database has no such name.
    pub fn named(name: &str) -> Result<Self, CalendarError> {
        if let Some(known) = find(&lock(), name) {
            return Ok(known);
        }
        let unknown =
            || CalendarError::UnknownTimeZone { name: name.to_owned(), near: names_near(name) };
        let zone = tz::TimeZoneDatabase::bundled().get(name).map_err(|_| unknown())?;
        let name = zone.iana_name().filter(|_| !zone.is_unknown()).ok_or_else(unknown)?;
        let mut loaded = lock();
        // Another thread may have been faster.
        if let Some(known) = find(&loaded, name) {
            return Ok(known);
        }
        let name = Box::leak(name.to_owned().into_boxed_str());
        let new = Box::leak(Box::new(Loaded { name, zone }));
        loaded.push(new);
        Ok(Self(new))
    }

    /// Returns the name, as the database spells it.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.0.name
    }

    pub(super) fn get(&self) -> &'static tz::TimeZone {
        &self.0.zone
    }
}

fn lock() -> MutexGuard<'static, Vec<&'static Loaded>> {
    LOADED.lock().unwrap_or_else(PoisonError::into_inner)
}

fn find(loaded: &[&'static Loaded], name: &str) -> Option<TimeZone> {
    loaded.iter().find(|known| known.name.eq_ignore_ascii_case(name)).map(|known| TimeZone(known))
}

/// Returns names that are one typing error away, or else those that end in the name: `Berlin`.
fn names_near(name: &str) -> Vec<&'static str> {
    let name = name.to_lowercase();
    let names = || names().iter().copied();
    let is_misspelt = |known: &&str| is_one_edit_apart(&known.to_lowercase(), &name);
    let misspelt: Vec<_> = names().filter(is_misspelt).take(NEAR_MAX).collect();
    if !misspelt.is_empty() {
        return misspelt;
    }
    let is_city = |known: &&str| {
        let city = known.rsplit('/').next().unwrap_or_default().to_lowercase();
        city == name || is_one_edit_apart(&city, &name)
    };
    match name.len() {
        0..=3 => Vec::new(), // abbreviations such as CET are near many
        _ => names().filter(is_city).take(NEAR_MAX).collect(),
    }
}

fn names() -> &'static [&'static str] {
    static NAMES: LazyLock<Vec<&'static str>> = LazyLock::new(|| {
        let database = tz::TimeZoneDatabase::bundled();
        let leak = |name: tz::TimeZoneName<'_>| &*name.as_str().to_owned().leak();
        let mut names: Vec<_> = database.available().map(leak).collect();
        names.push(UTC);
        names
    });
    &NAMES
}

impl fmt::Debug for TimeZone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TimeZone").field(&self.name()).finish()
    }
}

impl PartialEq for TimeZone {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Eq for TimeZone {}

impl Hash for TimeZone {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name().hash(state);
    }
}
