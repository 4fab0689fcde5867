//! State in Redis or Valkey, shared by a fleet.
//!
//! One script call is one decision, also for several limits at once. The server's clock decides, so
//! it does not matter what time the callers think it is.

mod key;
mod link;
mod nodes;
mod permits;
mod script;
mod url;
mod wire;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ::redis::{Cmd, ErrorKind, RedisError, ServerErrorKind, Value};
use tollgate_core::{Limit, Micros, Rule};

use crate::charge::{Charge, ChargesError, LIMITS_MAX, Verdict, first_of, merge};
use crate::snapshot::Snapshot;
use crate::store::{Op, Store, StoreError};
use key::key_of;
use link::{Link, error_of};
use script::Lua;
use wire::Outcome;

pub use link::LinkStats;
pub use permits::{PermitAnswer, PermitName};
pub use url::RedisUrlError;

/// How long a decision may take unless told otherwise.
const DEADLINE: Duration = Duration::from_millis(5);
/// How often a state is read again when somebody else was faster.
const SWAPS_MAX: usize = 100;
/// States are kept until the next whole number of these, as the scripts do.
const KEEP_STEP_US: u64 = 1 << 22;
/// How long a state is kept beyond its time when the time is given and not the server's.
const GIVEN_EXTRA_MS: u64 = 86_400_000;

/// How to reach the servers, and how to use them.
///
/// # Rights
///
/// A user needs these rights and no others (with the prefix `tollgate`):
///
/// ```text
/// ACL SETUSER limiter on >PASSWORD resetkeys resetchannels -@all ~tollgate:*
///     +evalsha +eval +time +get +mget +set +del +ping
/// ```
///
/// For permits and leases also `+zadd +zcard +zrange +zrem +zremrangebyscore +zscore +pexpire`; in a
/// cluster also `+cluster|slots +asking`; with Sentinel also `+role`; for a database other than 0
/// also `+select`.
#[derive(Clone, Debug)]
pub struct RedisConfig {
    url: String,
    ca_pem: Option<Vec<u8>>,
    prefix: String,
    deadline: Duration,
    is_time_given: bool,
}

impl RedisConfig {
    /// The address: `redis://HOST:PORT/DB`, `rediss://…` for TLS,
    /// `redis+sentinel://HOST:PORT,HOST:PORT/SERVICE`, `redis+cluster://HOST:PORT,HOST:PORT`; each
    /// with an optional `USER:PASSWORD@` before the hosts.
    pub fn new(url: &str) -> Self {
        Self {
            url: url.to_string(),
            ca_pem: None,
            prefix: "tollgate".to_string(),
            deadline: DEADLINE,
            is_time_given: false,
        }
    }

    /// Trusts the servers that this authority has signed, instead of those that the system trusts.
    #[must_use]
    pub fn with_ca_pem(self, pem: impl Into<Vec<u8>>) -> Self {
        Self { ca_pem: Some(pem.into()), ..self }
    }

    /// What all keys begin with; `tollgate` unless told otherwise. Fleets of different prefixes
    /// share a server without sharing a limit.
    #[must_use]
    pub fn with_prefix(self, prefix: &str) -> Self {
        Self { prefix: prefix.to_string(), ..self }
    }

    /// How long a decision may take; 5 ms unless told otherwise.
    #[must_use]
    pub fn with_deadline(self, deadline: Duration) -> Self {
        Self { deadline, ..self }
    }

    /// Goes by the time that callers give instead of the server's: for simulators and tests only.
    /// Callers whose clocks differ would admit more than the limit.
    #[must_use]
    pub fn with_given_time(self) -> Self {
        Self { is_time_given: true, ..self }
    }

    /// The store. Nothing is connected yet; that happens at the first call, and goes on in the
    /// background if it takes longer than the deadline.
    pub fn open(self) -> Result<RedisStore, RedisUrlError> {
        let prefix_error = self.prefix.contains(['{', '}']);
        if prefix_error {
            return Err(RedisUrlError::new(&self.url, "a prefix may not contain { or }"));
        }
        let target = url::target_of(&self.url, self.ca_pem.as_deref())?;
        Ok(RedisStore { link: Link::new(target), config: Arc::new(self) })
    }
}

/// State in Redis or Valkey, shared by a fleet. Clones share their connection.
///
/// ```no_run
/// # async fn f() -> Result<(), Box<dyn std::error::Error>> {
/// use tollgate_core::{Limit, Micros};
/// use tollgate_stores::{Charge, Op, RedisConfig, Store};
///
/// let store = RedisConfig::new("redis://127.0.0.1:6379").open()?;
/// let limit = Limit::token_bucket("5/s burst 10")?;
/// // The server's clock decides; the time given here is not used.
/// let verdict = store.apply(Op::Check, &[Charge::new(&limit, "ann")], Micros::new(0)).await?;
/// assert_eq!(verdict.remaining(), 9);
/// # Ok(())
/// # }
/// ```
///
/// # In a cluster
///
/// All limits of one key live in one slot and are decided in one atomic step. Where one request is
/// charged to different keys, no script can reach all of them. Then all are asked first, charged one
/// after the other if all said yes, and what was charged is given back if one says no after all. A
/// denial leaves no charge behind. What is weaker: another request may be denied because of a charge
/// that is about to be given back; and if this process dies in between, what it had charged stays
/// charged until it runs out; and a log that counts rejected attempts does not see those that are
/// denied at the first question. It never lets more pass than the limits allow.
#[derive(Clone)]
pub struct RedisStore {
    link: Arc<Link>,
    config: Arc<RedisConfig>,
}

impl std::fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedisStore").field("url", &self.address()).finish()
    }
}

impl RedisStore {
    /// Where it is, without the password.
    pub fn address(&self) -> String {
        url::without_password(&self.config.url)
    }

    /// Is it a cluster? Only elsewhere are calls carried out in the order in which they were begun.
    pub fn is_cluster(&self) -> bool {
        self.link.is_cluster()
    }

    /// What has happened to the connection so far.
    pub fn link_stats(&self) -> LinkStats {
        self.link.stats()
    }

    /// Asks for a sign of life.
    pub async fn ping(&self) -> Result<(), StoreError> {
        let mut cmd = Cmd::new();
        cmd.arg("PING");
        self.command(&cmd).await.map(drop)
    }

    async fn command(&self, cmd: &Cmd) -> Result<Value, StoreError> {
        let answer = self.link.call(cmd, self.config.deadline).await?;
        answer.map_err(|error| error_of(&error))
    }

    /// Calls a script by its name, and once more with its source if the server has forgotten it.
    async fn script(
        &self,
        script: &Lua,
        keys: &[Vec<u8>],
        args: &[Vec<u8>],
    ) -> Result<Value, StoreError> {
        let by_name = script.call(true, keys, args);
        match self.link.call(&by_name, self.config.deadline).await? {
            Err(error) if is_unknown_script(&error) => {
                self.link.scripts_loaded.fetch_add(1, Ordering::Relaxed);
                self.command(&script.call(false, keys, args)).await
            }
            answer => answer.map_err(|error| error_of(&error)),
        }
    }

    /// The time for a script: the server's own if it is empty.
    fn time(&self, now: Micros) -> Vec<u8> {
        match self.config.is_time_given {
            true => now.get().to_string().into_bytes(),
            false => Vec::new(),
        }
    }

    fn key(&self, charge: &Charge<'_>) -> Vec<u8> {
        key_of(&self.config.prefix, charge)
    }

    /// One step for charges whose keys are in one place.
    async fn together(
        &self,
        op: Op,
        charges: &[Charge<'_>],
        now: Micros,
    ) -> Result<Verdict, StoreError> {
        match op {
            // Debts and refunds of a log are rare, and not in the script.
            Op::Charge | Op::Refund { .. } if charges.iter().any(|c| is_log(c.limit)) => {
                self.by_swap(op, charges, now).await
            }
            _ => self.by_script(op, charges, now).await,
        }
    }

    async fn by_script(
        &self,
        op: Op,
        charges: &[Charge<'_>],
        now: Micros,
    ) -> Result<Verdict, StoreError> {
        let letter = match op {
            Op::Peek => b"p",
            Op::Charge => b"f",
            Op::Refund { .. } => b"r",
            Op::Check => b"c",
        };
        let mut terms = Vec::new();
        let mut keys = Vec::with_capacity(charges.len());
        for i in written(charges) {
            let charge = merge(charges, i);
            let packed = wire::pack_terms(&charge);
            if charges.len() > 1 {
                terms.push(packed.len() as u8);
            }
            terms.extend(packed);
            keys.push(self.key(&charge));
        }
        let mut args = vec![self.time(now), letter.to_vec(), terms];
        if let Op::Refund { charged_at } = op {
            args.push(charged_at.get().to_string().into_bytes());
        }
        let script = match charges {
            [one] => Lua::for_one(&one.limit.terms(one.cost)),
            [one, two] if keys.len() == 2 => {
                Lua::for_two(&one.limit.terms(one.cost), &two.limit.terms(two.cost))
            }
            _ => Lua::for_several(charges.iter().map(|charge| charge.limit.terms(charge.cost))),
        };
        let reply = self.script(script, &keys, &args).await?;
        let Value::BulkString(reply) = reply else { return Err(nonsense(&reply)) };
        let no_sense = || StoreError::Nonsense(format!("{reply:?}"));
        let (outcome, at, told) = wire::unpack_reply(&reply).ok_or_else(no_sense)?;
        if outcome == Outcome::Foreign {
            return self.by_swap(op, charges, now).await;
        }
        let verdict = read_verdict(op, charges, outcome, at, told).ok_or_else(no_sense)?;
        // The script and this code must agree; if they do not, neither may be believed.
        let is_question = matches!(op, Op::Check | Op::Peek);
        match is_question && verdict.allowed() != (outcome == Outcome::Fits) {
            true => Err(no_sense()),
            false => Ok(verdict),
        }
    }

    /// Reads the states, works out here what they become, and writes that if nothing has changed
    /// meanwhile: for what the scripts leave out.
    async fn by_swap(
        &self,
        op: Op,
        charges: &[Charge<'_>],
        now: Micros,
    ) -> Result<Verdict, StoreError> {
        let written = written(charges);
        let keys: Vec<_> = written.iter().map(|i| self.key(&charges[*i])).collect();
        for _ in 0..SWAPS_MAX {
            let reply = self.script(&script::READ, &keys, &[self.time(now)]).await?;
            let (at, before) = read_states(&reply).ok_or_else(|| nonsense(&reply))?;
            let unpacked = written.iter().zip(&before).map(|(i, bytes)| {
                wire::unpack_state(bytes, charges[*i].limit).ok_or_else(|| nonsense(&reply))
            });
            let mut states = unpacked.collect::<Result<Vec<_>, _>>()?;
            let verdict = Verdict::of_all(op, charges, at, |i, op, charge| {
                let state = written.iter().position(|w| *w == i).expect("the first is written");
                states[state].act(op, charge.limit, charge.cost, at)
            });
            let mut args = Vec::with_capacity(4 * keys.len());
            for ((i, before), state) in written.iter().zip(before).zip(&states) {
                let after = match *state == Snapshot::fresh(charges[*i].limit) {
                    true => Vec::new(),
                    false => wire::pack_state(state, charges[*i].limit),
                };
                let (command, ms) = self.expiry(state, charges[*i].limit, at);
                args.extend([before, after, command.to_vec(), ms.to_string().into_bytes()]);
            }
            let is_same = args.chunks(4).all(|states| states[0] == states[1]);
            if is_same || self.script(&script::SWAP, &keys, &args).await? == Value::Int(1) {
                return Ok(verdict);
            }
        }
        Err(StoreError::Refused("the key is changed too often by others".to_string()))
    }

    /// How long to keep a state: until it equals none.
    fn expiry(&self, state: &Snapshot, limit: &Limit, now: Micros) -> (&'static [u8], u64) {
        let fresh_by = match (state, limit.rule()) {
            (Snapshot::Cell(cell), _) => cell.fresh_by(),
            (Snapshot::Log(log), Rule::Log(rule)) => rule.fresh_by(log),
            (Snapshot::Log(_), Rule::Cell(_)) => now.get(),
        };
        match self.config.is_time_given {
            true => (b"PX", fresh_by.saturating_sub(now.get()) / 1_000 + 1 + GIVEN_EXTRA_MS),
            false => (b"PXAT", (fresh_by | (KEEP_STEP_US - 1)) / 1_000 + 1),
        }
    }

    /// One step after the other, for charges that no single step can reach.
    async fn apart(
        &self,
        op: Op,
        charges: &[Charge<'_>],
        now: Micros,
    ) -> Result<Verdict, StoreError> {
        if op == Op::Check {
            let peeked = self.each(Op::Peek, charges, now).await?;
            if !peeked.allowed() {
                return Ok(peeked);
            }
        }
        self.each(op, charges, now).await
    }

    /// Does `op` place by place. A check that is denied at one gives back what it has charged.
    async fn each(
        &self,
        op: Op,
        charges: &[Charge<'_>],
        now: Micros,
    ) -> Result<Verdict, StoreError> {
        let mut done: Vec<(Vec<Charge<'_>>, Verdict)> = Vec::new();
        for place in places(charges) {
            let verdict = self.together(op, &place, now).await;
            let is_refused = op == Op::Check && !verdict.as_ref().is_ok_and(|v| v.allowed());
            if is_refused {
                self.give_back(&done, now).await;
                done.clear();
            }
            done.push((place, verdict?));
            if is_refused {
                break;
            }
        }
        let decided_at = done.iter().map(|(_, verdict)| verdict.at()).max().unwrap_or(now);
        let find = |charge: &Charge<'_>| {
            done.iter().find_map(|(place, verdict)| {
                let i = place.iter().position(|other| other.shares_with(charge))?;
                Some(verdict.decisions()[i])
            })
        };
        let mut others = Vec::new();
        for charge in charges.iter().filter(|charge| find(charge).is_none()) {
            // Not asked any more, since another has denied: as it is now.
            others.push((charge, self.together(Op::Peek, &[*charge], now).await?));
        }
        Ok(Verdict::build(charges, decided_at, |_, charge| {
            find(charge).unwrap_or_else(|| {
                let other = others.iter().find(|(other, _)| other.shares_with(charge));
                *other.expect("every charge was asked").1
            })
        }))
    }

    /// Gives back what was charged. What cannot be given back runs out by itself.
    async fn give_back(&self, done: &[(Vec<Charge<'_>>, Verdict)], now: Micros) {
        for (place, verdict) in done {
            let refund = Op::Refund { charged_at: verdict.at() };
            let _ = self.together(refund, place, now).await;
        }
    }
}

impl Store for RedisStore {
    async fn apply(
        &self,
        op: Op,
        charges: &[Charge<'_>],
        now: Micros,
    ) -> Result<Verdict, StoreError> {
        ChargesError::check(charges)?;
        let is_one_place = charges.iter().all(|charge| charge.key == charges[0].key);
        match is_one_place || !self.link.is_cluster() {
            true => self.together(op, charges, now).await,
            false => self.apart(op, charges, now).await,
        }
    }

    async fn reset(&self, charge: &Charge<'_>) -> Result<(), StoreError> {
        let mut cmd = Cmd::new();
        cmd.arg("DEL").arg(self.key(charge));
        self.command(&cmd).await.map(drop)
    }
}

/// The charges that stand for all charges to the same usage.
fn written(charges: &[Charge<'_>]) -> Vec<usize> {
    (0..charges.len()).filter(|i| first_of(charges, *i) == *i).collect()
}

/// The charges, by the place in a cluster where their keys are.
fn places<'c>(charges: &[Charge<'c>]) -> Vec<Vec<Charge<'c>>> {
    let mut places: Vec<Vec<Charge<'c>>> = Vec::with_capacity(LIMITS_MAX);
    for charge in charges {
        match places.iter_mut().find(|place| place[0].key == charge.key) {
            Some(place) => place.push(*charge),
            None => places.push(vec![*charge]),
        }
    }
    places
}

fn is_log(limit: &Limit) -> bool {
    matches!(limit.rule(), Rule::Log(_))
}

/// The decisions, from the states as they were.
fn read_verdict(
    op: Op,
    charges: &[Charge<'_>],
    outcome: Outcome,
    at: Micros,
    mut told: &[u8],
) -> Option<Verdict> {
    let is_charged = op != Op::Peek && outcome == Outcome::Fits;
    let mut is_sound = true;
    let verdict = Verdict::build(charges, at, |_, charge| {
        let mut next = || {
            let (own, rest) = match charges.len() {
                1 => (told, &[][..]),
                _ => wire::split_told(told)?,
            };
            told = rest;
            wire::decide(own, charge, op, is_charged, at)
        };
        next().unwrap_or_else(|| {
            is_sound = false;
            Snapshot::fresh(charge.limit).act(Op::Peek, charge.limit, charge.cost, at)
        })
    });
    is_sound.then_some(verdict)
}

/// The time and the states that `read.lua` tells.
fn read_states(reply: &Value) -> Option<(Micros, Vec<Vec<u8>>)> {
    let Value::Array(parts) = reply else { return None };
    let [Value::BulkString(now), Value::Array(states)] = &parts[..] else { return None };
    let now = std::str::from_utf8(now).ok()?.parse().ok()?;
    let states = states.iter().map(|state| match state {
        Value::BulkString(bytes) => Some(bytes.clone()),
        Value::Nil => Some(Vec::new()),
        _ => None,
    });
    Some((Micros::new(now), states.collect::<Option<_>>()?))
}

fn nonsense(reply: &Value) -> StoreError {
    StoreError::Nonsense(format!("{reply:?}"))
}

fn is_unknown_script(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}
