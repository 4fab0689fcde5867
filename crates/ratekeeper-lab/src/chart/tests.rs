use proptest::prelude::*;

use super::*;

const PLAIN: TextOptions = TextOptions { width: 80, color: false };

fn decided(bars: &[(u64, u64)]) -> Panel {
    let bars = bars.iter().map(|&(admitted, denied)| Decided { admitted, denied }).collect();
    Panel { heading: "token_bucket".to_string(), bars: Bars::Decisions(bars) }
}

fn chart(panels: Vec<Panel>) -> Chart {
    Chart { column_us: 500_000, legend: Legend::DECISIONS, panels }
}

#[test]
fn labels_stand_at_the_edges_of_their_values() {
    let chart = chart(vec![decided(&[
        (0, 0),
        (1, 0),
        (50, 0),
        (100, 0),
        (100, 100),
        (0, 50),
        (25, 175),
        (200, 0),
    ])]);
    let expected = "\
requests per 500ms: █ admitted  ░ denied
token_bucket
 200 ┤            ░░░   ░░░███
     │            ░░░   ░░░███
     │            ░░░   ░░░███
     │            ░░░   ░░░███
 100 ┤         ██████   ░░░███
     │         ██████   ░░░███
     │      █████████░░░░░░███
     │   ▁▁▁█████████░░░██████
   0 └┬─────┬─────┬─────┬─────
      0s    1s    2s    3s    4s
";
    assert_eq!(chart.to_text(PLAIN), expected);
}

#[test]
fn releases_take_half_a_panel_if_that_is_enough() {
    let released = |max| Panel { heading: String::new(), bars: Bars::Released(vec![1, max]) };
    let lines = |max| chart(vec![decided(&[(8, 0), (8, 0)]), released(max)]).to_text(PLAIN);
    assert_eq!(lines(5).lines().count() - lines(4).lines().count(), 4);
    assert!(lines(4).contains("   4 ┤   ███\n"), "{}", lines(4));
}

#[test]
fn the_time_axis_has_usual_units() {
    let bars = vec![(1, 0); 60];
    let legend = Legend::DECISIONS;
    let text = |column_us| Chart { column_us, legend, panels: vec![decided(&bars)] }.to_text(PLAIN);
    let labels = |column_us| {
        let text: String = text(column_us);
        text.lines().last().unwrap().split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(labels(10_000_000), "0s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m");
    assert_eq!(labels(20), "0s 200µs 400µs 600µs 800µs 1ms 1.2ms");
    assert_eq!(labels(3_600_000_000), "0s 8h 16h 1d 1d 8h 1d 16h 2d 2d 8h");
}

#[test]
fn denied_requests_are_visible_beside_many_admitted_ones() {
    let text = chart(vec![decided(&[(9_999, 1), (1, 9_999), (1, 1)])]).to_text(PLAIN);
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines[2], " 10k ┤░░░░░░");
    assert_eq!(lines[8], "     │███░░░░░░");
    assert_eq!(lines[9], "     │███▁▁▁▁▁▁");
}

fn any_panel(bars: usize) -> impl Strategy<Value = Panel> {
    let value = prop_oneof![0..3u64, 0..1_000u64, 0..u64::MAX / 4];
    let bar = (value.clone(), prop_oneof![Just(0), value.clone()]);
    let decided_panel = prop::collection::vec(bar, bars).prop_map(|bars| decided(&bars));
    let released = prop::collection::vec(value, bars).prop_map(|bars| Panel {
        heading: "a heading of so many words that it does not fit into a narrow line".to_string(),
        bars: Bars::Released(bars),
    });
    prop_oneof![decided_panel, released]
}

fn any_chart() -> impl Strategy<Value = (Chart, usize)> {
    let steps: Vec<_> = round::durations_us().take_while(|us| *us < 1 << 47).collect();
    (prop::sample::select(steps), 40..300usize).prop_flat_map(|(column_us, width)| {
        let bars_max = TextOptions { width, color: false }.bars_max();
        let panels =
            (1..=bars_max).prop_flat_map(|bars| prop::collection::vec(any_panel(bars), 1..6));
        panels
            .prop_map(move |panels| (Chart { column_us, legend: Legend::DECISIONS, panels }, width))
    })
}

proptest! {
    #[test]
    fn no_line_is_longer_than_the_width((chart, width) in any_chart()) {
        let text = chart.to_text(TextOptions { width, color: false });
        for line in text.lines() {
            prop_assert!(line.chars().count() <= width, "{width}: {line}");
            prop_assert_eq!(line.trim_end(), line);
        }
    }

    #[test]
    fn without_its_escape_codes_coloured_text_is_the_plain_text((chart, width) in any_chart()) {
        let colored = chart.to_text(TextOptions { width, color: true });
        let plain = chart.to_text(TextOptions { width, color: false });
        prop_assert!(colored.contains("\x1b["));
        prop_assert!(!plain.contains('\x1b'));
        prop_assert_eq!(anstream::adapter::strip_str(&colored).to_string(), plain);
    }

    #[test]
    fn a_bars_height_is_proportional(admitted in 0..5_000u64, denied in 0..5_000u64) {
        let panels = [decided(&[(admitted, denied), (10_000, 0)])];
        let scale = Scale::new(&panels);
        let bar: Vec<_> = (0..scale.lines).map(|line| scale.cells(&panels[0].bars, line)[0]).collect();
        let eighths = |cell: &Cell| BLOCKS.iter().position(|block| *block == cell.0).unwrap_or(0);
        let height = bar.iter().map(eighths).sum::<usize>() as f64;
        let exact = |n: u64| n as f64 / 10_000.0 * (LEVELS * scale.lines) as f64;
        prop_assert!((height - exact(admitted)).abs() <= 1.0, "{height} for {admitted}");
        if denied > 0 {
            let top = 8 * (1 + bar.iter().rposition(|cell| cell.0 == SHADE).unwrap());
            let is_near = (top as f64 - exact(admitted + denied)).abs() <= LEVELS as f64;
            prop_assert!(is_near || top as f64 - exact(admitted) <= 2.0 * LEVELS as f64, "{bar:?}");
        }
    }

    #[test]
    fn admitted_and_denied_requests_are_never_invisible(admitted in 1..1_000u64, denied in 1..1_000_000u64) {
        let panels = [decided(&[(admitted, denied)])];
        let scale = Scale::new(&panels);
        let bar: Vec<_> = (0..scale.lines).map(|line| scale.cells(&panels[0].bars, line)[0].0).collect();
        prop_assert!(bar.contains(&SHADE), "{bar:?}");
        prop_assert!(bar.iter().any(|c| BLOCKS[1..].contains(c)), "{bar:?}");
    }
}
