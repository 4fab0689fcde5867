//! The shed level: how much of which classes is shed.

use super::class::Class;

/// One whole class, in the unit of levels and shares: a hundredth of a per cent.
pub(super) const WHOLE: u32 = 10_000;

/// Under full overload, this share of all that is admitted is shed in one interval.
const RISE_RATIO: f64 = 0.1;

/// With full headroom, this share of all that is admitted is admitted in addition in one interval;
/// and up to [`SPEED_MAX`] times that after a longer time without overload.
const FALL_RATIO: f64 = 0.01;
pub(super) const SPEED_MAX: u32 = 8;

/// The least and the most by which the level moves in one interval, if the signal is full.
const STEP_MIN: f64 = 0.002;
pub(super) const STEP_MAX: f64 = 0.4;

/// The traffic of the last intervals.
#[derive(Clone, Copy, Debug)]
pub(super) struct Traffic {
    /// The requests of all classes that were admitted.
    pub(super) admitted: u64,
    /// The requests of the class that is shed in part, whether they were admitted or not.
    pub(super) of_class: u64,
}

impl Traffic {
    /// Returns the share of the class that makes up this share of all that is admitted.
    fn share_of_class(self, ratio: f64) -> f64 {
        // Where little is admitted, a share of the class itself.
        let admitted = self.admitted.max(self.of_class / 10).max(1);
        let share = ratio * admitted as f64 / self.of_class.max(1) as f64;
        share.clamp(STEP_MIN, STEP_MAX)
    }
}

/// How much is shed: whole classes from the lowest upwards, and a part of the next one.
///
/// A step is a share of all that is admitted. So it has about the same effect on the load whether
/// the class has few requests or nearly all of them, and a class without requests is passed
/// quickly.
#[derive(Clone, Copy, Debug)]
pub(super) struct Level {
    level: u32,
    classes: u8,
}

impl Level {
    pub(super) fn new(classes: u8) -> Self {
        Self { level: 0, classes }
    }

    pub(super) fn get(self) -> u32 {
        self.level
    }

    pub(super) fn is_zero(self) -> bool {
        self.level == 0
    }

    /// Returns how much of a class is shed.
    pub(super) fn shed_of(self, class: Class) -> u32 {
        let lower_classes = u32::from(self.classes - 1 - class.rank());
        self.level.saturating_sub(lower_classes * WHOLE).min(WHOLE)
    }

    /// Returns the class of which more is shed when the level rises.
    pub(super) fn rising_class(self) -> Class {
        let shed_classes = (self.level / WHOLE) as u8;
        Class::new((self.classes - 1).saturating_sub(shed_classes))
    }

    /// Returns the class of which less is shed when the level falls.
    pub(super) fn falling_class(self) -> Class {
        let shed_classes = (self.level.saturating_sub(1) / WHOLE) as u8;
        Class::new(self.classes - 1 - shed_classes)
    }

    /// Sheds more, by an overload above 0 and up to 1. `traffic` is that of the rising class. A
    /// step ends where the next class begins.
    pub(super) fn rise(&mut self, overload: f64, traffic: Traffic) {
        let step = steps(overload * traffic.share_of_class(RISE_RATIO));
        let admitted = WHOLE - self.level % WHOLE;
        self.level = (self.level + step.min(admitted)).min(u32::from(self.classes) * WHOLE);
    }

    /// Sheds less, by a headroom above 0 and up to 1, and a speed from 1 to [`SPEED_MAX`].
    /// `traffic` is that of the falling class. A step ends where the next class begins.
    pub(super) fn fall(&mut self, headroom: f64, speed: u32, traffic: Traffic) {
        let Some(below) = self.level.checked_sub(1) else { return };
        let step = steps(headroom * traffic.share_of_class(FALL_RATIO * f64::from(speed)));
        let shed = below % WHOLE + 1;
        self.level -= step.min(shed);
    }

    /// Returns a number of intervals with full headroom after which the level is 0.
    pub(super) fn fall_intervals_max(self) -> u64 {
        u64::from(self.level / steps(STEP_MIN)) + u64::from(self.classes)
    }
}

/// Returns a share of a class in the unit of levels, rounded up.
fn steps(share: f64) -> u32 {
    (share * f64::from(WHOLE)).ceil() as u32
}
