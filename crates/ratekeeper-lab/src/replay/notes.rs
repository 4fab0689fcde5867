//! What a policy reads and the logs lack.

use ratekeeper_policy::{AttributeUse, Policy, ReadAttribute, WithoutAttribute};

use crate::access_log::LogFields;

/// Returns a line for each attribute that the policy reads and the logs lack: what that means.
///
/// ```
/// use ratekeeper_lab::access_log::LogFields;
/// use ratekeeper_lab::replay::missing_attributes;
/// use ratekeeper_policy::Policy;
///
/// let policy = Policy::one_line("10/s per ip")?;
/// let notes = missing_attributes(&policy, &LogFields::default());
/// assert!(notes[0].starts_with("the log does not have the client's address"), "{notes:?}");
/// # Ok::<(), ratekeeper_policy::PolicyErrors>(())
/// ```
#[must_use]
pub fn missing_attributes(policy: &Policy, fields: &LogFields) -> Vec<String> {
    let reads = policy.reads();
    let missing = reads.iter().filter(|(read, _)| !fields.have(read));
    let missing = missing.flat_map(|(read, uses)| note(read, uses));
    let is_limited = fields.have(&ReadAttribute::Duration);
    missing.chain(concurrency(policy).filter(|_| is_limited)).collect()
}

/// Says how concurrency limits are replayed, if there are any.
fn concurrency(policy: &Policy) -> impl Iterator<Item = String> {
    let limits = policy.limits().iter().filter(|limit| limit.is_concurrency());
    limits.map(|limit| {
        format!(
            "limit {} counts a request as in flight for as long as the log says; nothing waits in its queue, and an \
             adaptive limit has its highest value",
            limit.name()
        )
    })
}

fn note(read: &ReadAttribute, uses: &[AttributeUse]) -> Option<String> {
    let mut by_meaning: Vec<(WithoutAttribute, Vec<&str>)> = Vec::new();
    for AttributeUse { part, without, .. } in uses {
        match by_meaning.iter_mut().find(|(known, _)| known == without) {
            Some((_, parts)) => parts.push(part),
            None => by_meaning.push((*without, vec![part])),
        }
    }
    let meanings = by_meaning.iter().map(|(without, parts)| {
        let shown = parts.iter().take(3).copied().collect::<Vec<_>>().join(", ");
        match parts.len() {
            0..=3 => format!("{shown} {without}"),
            more => format!("{shown} and {} more: {without}", more - 3),
        }
    });
    let meanings = meanings.collect::<Vec<_>>().join("; ");
    (!meanings.is_empty()).then(|| format!("the log does not have {read}: {meanings}"))
}
