//! The slot of a key in a cluster.

use redis::{Arg, Cmd};

/// How many slots a cluster has.
pub(super) const SLOTS: usize = 16_384;

/// The slot of all keys that are made for a caller's key, which is their hash tag (`keys.rs`).
pub(super) fn slot_of_caller(key: &[u8]) -> usize {
    let end = key.iter().position(|byte| *byte == b'}').unwrap_or(key.len());
    let crc = key[..end].iter().fold(crc16(b"="), |crc, byte| crc16_next(crc, *byte));
    usize::from(crc) % SLOTS
}

/// The slot of a command's first key.
pub(super) fn slot_of(cmd: &Cmd) -> usize {
    let args = || {
        cmd.args_iter().map(|arg| match arg {
            Arg::Simple(bytes) => bytes,
            _ => &[],
        })
    };
    let is_script = args().next().is_some_and(|name| name.starts_with(b"EVAL"));
    let key = args().nth(if is_script { 3 } else { 1 });
    key.map_or(0, |key| usize::from(crc16(hash_tag(key))) % SLOTS)
}

/// The part of a key that determines its slot.
fn hash_tag(key: &[u8]) -> &[u8] {
    let tag = key.iter().position(|byte| *byte == b'{').map(|open| &key[open + 1..]);
    let end = tag.and_then(|tag| tag.iter().position(|byte| *byte == b'}'));
    match (tag, end) {
        (Some(tag), Some(end @ 1..)) => &tag[..end],
        _ => key,
    }
}

/// The checksum that clusters use (CRC-16/XMODEM).
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| crc16_next(crc, *byte))
}

fn crc16_next(crc: u16, byte: u8) -> u16 {
    (0..8).fold(crc ^ u16::from(byte) << 8, |crc, _| match crc & 0x8000 {
        0 => crc << 1,
        _ => crc << 1 ^ 0x1021,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_the_cluster_specification() {
        assert_eq!(crc16(b"123456789"), 0x31C3);
        let slot = |key: &str| slot_of(redis::cmd("DEL").arg(key));
        assert_eq!(slot("foo"), 12182);
        assert_eq!(slot("a{foo}b"), 12182);
        assert_eq!(slot("{}foo"), usize::from(crc16(b"{}foo")) % SLOTS);
        let mut script = redis::cmd("EVALSHA");
        script.arg("abc").arg(1).arg("x{foo}").arg("bar");
        assert_eq!(slot_of(&script), 12182);
        assert_eq!(slot_of(&redis::cmd("PING")), 0);
    }

    #[test]
    fn a_callers_key_has_the_slot_of_the_keys_that_are_made_for_it() {
        for key in ["ann", "", "}", "a}b", "{a", "{a}b", "=}"] {
            let made = super::super::keys::permits_key("prefix", "name", key.as_bytes());
            assert_eq!(
                slot_of_caller(key.as_bytes()),
                slot_of(redis::cmd("DEL").arg(made)),
                "{key}"
            );
        }
    }
}
