//! Settings of the refusal log.

/// How many refusals to remember, and what to keep of their keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefusalSettings {
    /// What to keep of the keys.
    pub keys: RefusalKeys,
    /// The maximum number of refusals; 0 for none.
    pub capacity: usize,
}

/// What a refusal log keeps of a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RefusalKeys {
    /// The key.
    #[default]
    Plain,
    /// A keyed hash, whose secret is that of the process: the refusals of a known key can be found, and a key cannot be
    /// found from its refusals.
    Hashed,
    /// Nothing.
    Off,
}

impl RefusalSettings {
    /// The default capacity.
    pub const CAPACITY: usize = 2_048;
    /// The highest capacity.
    pub const CAPACITY_MAX: usize = 65_536;
}

impl Default for RefusalSettings {
    fn default() -> Self {
        Self { keys: RefusalKeys::default(), capacity: Self::CAPACITY }
    }
}
