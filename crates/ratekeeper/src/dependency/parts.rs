//! The parts of a dependency under one policy.

use std::sync::Arc;

use ratekeeper_control::adaptive::SampleOutcome;
use ratekeeper_control::{BreakerConfig, BreakerState};
use ratekeeper_core::{Limit, Micros};
use ratekeeper_policy::{ConcurrencyRule, DependencyRule, Permits};
use ratekeeper_stores::{Charge, Op};

use super::error::DependencyRejection;
use super::permit::{DependencyPermit, HeldPermit};
use crate::adaptive_limit::AdaptiveLimit;
use crate::breaker::{BreakerStats, CircuitBreaker};
use crate::bulkhead::{Bulkhead, BulkheadError, BulkheadStats};
use crate::clock::Clock;
use crate::engine::Engine;

/// The clock of the engine, for breakers and controllers.
#[derive(Clone)]
pub(super) struct EngineClock(Arc<Engine>);

impl Clock for EngineClock {
    fn now(&self) -> Micros {
        self.0.now()
    }
}

/// The parts, each with the settings that it was made from.
pub(super) struct Parts {
    rate: Option<Limit>,
    /// What the rate is counted under.
    rate_key: Arc<str>,
    permits: Option<(ConcurrencyRule, PermitPart)>,
    breaker: Option<(BreakerConfig, CircuitBreaker<EngineClock>)>,
}

#[derive(Clone)]
enum PermitPart {
    Fixed(Bulkhead),
    Adaptive(AdaptiveLimit<EngineClock>),
}

impl Parts {
    /// Makes the parts of a rule. Those of `current` whose settings are the same are kept.
    pub(super) fn new(
        rule: &DependencyRule,
        upstream: &str,
        engine: &Arc<Engine>,
        current: Option<&Parts>,
    ) -> Self {
        let clock = EngineClock(Arc::clone(engine));
        let kept = current.and_then(|parts| parts.permits.as_ref());
        let permits = rule.concurrency().map(|settings| match kept {
            Some((same, part)) if *same == settings => (settings, part.clone()),
            _ => (settings, PermitPart::new(&settings, clock.clone())),
        });
        let kept = current.and_then(|parts| parts.breaker.as_ref());
        let breaker = rule.breaker().map(|config| match kept {
            Some((same, breaker)) if *same == config => (config, breaker.clone()),
            _ => (config, breaker(config, rule.name(), upstream, clock)),
        });
        Self { rate: rule.rate().cloned(), rate_key: upstream.into(), permits, breaker }
    }

    pub(super) async fn acquire(
        &self,
        engine: &Engine,
    ) -> Result<DependencyPermit, DependencyRejection> {
        // A call that cannot be made does not wait.
        if let Some((_, breaker)) = &self.breaker
            && breaker.peek().is_err()
        {
            return Err(breaker.reject().into());
        }
        let permit = match &self.permits {
            Some((_, part)) => Some(part.acquire().await?),
            None => None,
        };
        self.charge(engine).await?;
        let call =
            self.breaker.as_ref().map(|(_, breaker)| breaker.try_call_owned()).transpose()?;
        Ok(DependencyPermit::new(permit, call))
    }

    async fn charge(&self, engine: &Engine) -> Result<(), DependencyRejection> {
        let Some(limit) = &self.rate else { return Ok(()) };
        let applied = engine.apply(Op::Check, &[Charge::new(limit, &*self.rate_key)]).await;
        match applied {
            Ok(applied) if !applied.allowed() => {
                let retry_after = applied.retry_after().unwrap_or_default();
                Err(DependencyRejection::RateLimited { retry_after })
            }
            // One charge is never too many.
            Ok(_) | Err(_) => Ok(()),
        }
    }

    pub(super) fn check_breaker(&self) -> Result<(), DependencyRejection> {
        match &self.breaker {
            Some((_, breaker)) => Ok(breaker.peek()?),
            None => Ok(()),
        }
    }

    pub(super) fn probe_succeeded(&self) {
        if let Some((_, breaker)) = &self.breaker {
            breaker.probe_succeeded();
        }
    }

    pub(super) fn breaker_state(&self) -> Option<BreakerState> {
        self.breaker.as_ref().map(|(_, breaker)| breaker.state())
    }

    pub(super) fn breaker_stats(&self) -> Option<BreakerStats> {
        self.breaker.as_ref().map(|(_, breaker)| breaker.stats())
    }

    pub(super) fn permit_stats(&self) -> Option<BulkheadStats> {
        self.permits.as_ref().map(|(_, part)| match part {
            PermitPart::Fixed(bulkhead) => bulkhead.stats(),
            PermitPart::Adaptive(limit) => limit.stats().permits,
        })
    }
}

impl PermitPart {
    fn new(rule: &ConcurrencyRule, clock: EngineClock) -> Self {
        match rule.permits {
            Permits::Fixed(max) => {
                let max = usize::try_from(max).unwrap_or(usize::MAX);
                let bulkhead = Bulkhead::new(max).expect("a policy has at least one permit");
                Self::Fixed(match rule.queue {
                    Some(queue) => {
                        bulkhead.with_queue(queue.max, queue.wait).with_order(queue.order)
                    }
                    None => bulkhead,
                })
            }
            Permits::Adaptive(adaptive) => {
                let limit = AdaptiveLimit::builder(adaptive.config())
                    .expect("a policy is valid")
                    .clock(clock);
                Self::Adaptive(match rule.queue {
                    Some(queue) => limit.queue(queue.max, queue.wait).order(queue.order).build(),
                    None => limit.build(),
                })
            }
        }
    }

    async fn acquire(&self) -> Result<HeldPermit, BulkheadError> {
        match self {
            Self::Fixed(bulkhead) => Ok(HeldPermit::Fixed { _permit: bulkhead.acquire().await? }),
            Self::Adaptive(limit) => Ok(HeldPermit::Adaptive(limit.acquire().await?.into_owned())),
        }
    }
}

fn breaker(
    config: BreakerConfig,
    name: &str,
    upstream: &str,
    clock: EngineClock,
) -> CircuitBreaker<EngineClock> {
    let builder = CircuitBreaker::builder(config).expect("a policy is valid").clock(clock);
    #[cfg(feature = "tower")]
    let builder = {
        let (dependency, upstream) = (name.to_string(), upstream.to_string());
        builder.on_change(move |change| {
            let (from, to) = (change.from, change.to);
            tracing::warn!(dependency, upstream, ?from, ?to, "circuit breaker changed its state");
        })
    };
    #[cfg(not(feature = "tower"))]
    let _ = (name, upstream);
    builder.build()
}

impl HeldPermit {
    /// Reports how the call ended, for the limit that learns from it.
    pub(super) fn sample(&mut self, outcome: SampleOutcome) {
        if let Self::Adaptive(permit) = self {
            permit.sample(outcome);
        }
    }
}
