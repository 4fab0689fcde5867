//! Quota mode: a request is denied if all its descriptors in quota mode are over their limits. Those that are
//! over are left out, and the others are charged together with the limits that are not in quota mode.

use smallvec::SmallVec;

use super::descriptors::{DescriptorCheck, Indices};

/// The checks that are charged in one step, all of them or none.
pub(super) struct Enforced {
    indices: Indices,
    /// Whether the request is denied without a quota that is left.
    needs_quota: bool,
}

impl Enforced {
    /// Returns these checks, without quotas that allow nothing. `has_open_quota` is whether a descriptor in
    /// quota mode cannot be over its limit.
    pub(super) fn new(
        checks: &[DescriptorCheck<'_>],
        indices: Indices,
        has_open_quota: bool,
    ) -> Self {
        let needs_quota = !has_open_quota && indices.iter().any(|index| checks[*index].is_quota);
        let mut enforced = Self { indices, needs_quota };
        enforced.leave_out_quotas(checks);
        enforced
    }

    pub(super) fn indices(&self) -> &[usize] {
        &self.indices
    }

    fn checks<'c, 'm>(
        &self,
        checks: &'c [DescriptorCheck<'m>],
    ) -> impl Iterator<Item = &'c DescriptorCheck<'m>> {
        self.indices.iter().map(|index| &checks[*index])
    }

    /// Returns whether the request is denied whatever the store says: no quota is left, or a limit allows
    /// nothing.
    pub(super) fn is_denied(&self, checks: &[DescriptorCheck<'_>]) -> bool {
        let is_out_of_quota = self.needs_quota && !self.checks(checks).any(|check| check.is_quota);
        is_out_of_quota || self.checks(checks).any(DescriptorCheck::denies_all)
    }

    /// After a denial, which has charged nothing: if only quotas are over, leaves them out and returns true.
    /// The others are then to be charged without them.
    pub(super) fn retry(&mut self, checks: &[DescriptorCheck<'_>]) -> bool {
        let is_denied = self.checks(checks).any(|check| !check.is_quota && check.is_over_limit());
        !is_denied && self.leave_out_quotas(checks)
    }

    /// Leaves out the descriptors in quota mode of which a limit is over. Returns whether there are any.
    fn leave_out_quotas(&mut self, checks: &[DescriptorCheck<'_>]) -> bool {
        let over = self.checks(checks).filter(|check| check.is_quota && check.is_over_limit());
        let over: SmallVec<[usize; 4]> = over.map(|check| check.descriptor).collect();
        if !over.is_empty() {
            self.indices.retain(|index| !over.contains(&checks[*index].descriptor));
        }
        !over.is_empty()
    }
}
