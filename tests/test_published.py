"""The published record: groups follow their rules, the pooled test holds its level, entries are what the raw rows say."""

import numpy as np
import pandas as pd
import pytest

from lad_utils.published import (
    METRICS,
    SATURATED,
    WIDEST_BAND,
    equal_sizes,
    group_rhos,
    pooled_rho,
    published_entries,
    published_groups,
    published_rows,
    short_name,
)
from lad_utils.published_view import forest, group_table, limits, published_findings
from lad_utils.reliability import PUBLISHED_LIFTS
from lad_utils.stats import spearman_ci

RECORD = pd.read_csv(PUBLISHED_LIFTS)


def record(*rows: dict) -> pd.DataFrame:
    """A table of the record's columns: four cohorts of one sound group, each changed by one of `rows`."""
    blank = dict.fromkeys(RECORD.columns, np.nan)
    sound = blank | {
        "paper": "2500.00001 A Paper (Nobody)",
        "base_model": "Base-1B",
        "benchmark": "MATH500",
        "property": "base pass rate",
        "n_tasks": 50,
        "trainer": "GRPO",
        "budget": "100 steps",
        "where": "Table 1 (accuracy); data.json",
        "confidence": "exact from a table",
    }
    return pd.DataFrame(
        [sound | {"cohort": f"c{i}", "lift": float(i), "pass_rate_mean": 0.1 * (i + 1)} | r for i, r in enumerate(rows)]
    )


@pytest.fixture(scope="module")
def found():
    return {e["name"]: e for e in published_entries(RECORD)}


def reasons(table, **options):
    rows, dropped = published_groups(table, **options)
    assert sorted([*rows.line, *dropped.line]) == list(range(2, len(table) + 2))  # every row is used, or dropped aloud
    assert (dropped.reason != "").all()
    return dict(zip(dropped.line, dropped.reason))


def test_four_cohorts_at_one_budget_are_a_group():
    assert reasons(record({}, {}, {}, {})) == {}


@pytest.mark.parametrize("column", ["paper", "base_model", "benchmark", "trainer", "budget", "where"])
def test_four_cohorts_that_differ_in_anything_but_their_tasks_are_two_groups_too_small(column):
    told = reasons(record({}, {}, {column: "another"}, {column: "another"}))
    assert set(told) == {2, 3, 4, 5} and set(told.values()) == {"fewer than 4 in its group"}


def test_three_cohorts_are_dropped_with_their_reason_and_a_blank_lift_costs_its_own_row_only():
    assert set(reasons(record({}, {}, {})).values()) == {"fewer than 4 in its group"}
    assert reasons(record({}, {}, {"lift": np.nan}, {}, {})) == {4: "neither lift nor accuracy after training as a number"}


def test_which_checkpoint_came_out_best_is_no_part_of_the_budget():
    budgets = [{"budget": f"2000 steps, best checkpoint; best step {s} (MATH500)"} for s in (20, 80, 1860, 240)]
    assert reasons(record(*budgets)) == {}


def test_where_steps_scale_with_size_only_cohorts_of_one_size_share_a_budget():
    epochs = {"budget": "5 epochs, so steps scale with size"}
    table = record(*[epochs | {"n_tasks": n} for n in (100, 100, 100, 100, 500, np.nan)])
    assert sorted(reasons(table)) == [6, 7] and "not stated" in reasons(table)[7]


def test_a_budget_that_is_not_stated_is_not_taken_as_equal_unless_asked():
    table = record(*[{"budget": b} for b in ("not stated in the copy read",) * 4])
    assert len(reasons(table)) == 4 and reasons(table, assume_equal_budgets=True) == {}
    assert len(reasons(record(*[{"budget": np.nan}] * 4))) == 4


def test_a_cohort_counts_once_in_a_group_whatever_is_remarked_in_brackets():
    told = reasons(record({"cohort": "p=0 (0.json)"}, {}, {}, {}, {"cohort": "p=0"}))
    assert told == {6: "the group has this cohort already"}


def test_rows_whose_labels_reward_or_order_differ_are_no_choice_of_tasks():
    changed = [
        {"property": "label noise rate"},
        {"cohort": "Format reward on X"},
        {"property": "order"},
        {"property": "ablation"},
    ]
    told = reasons(record({}, {}, {}, {}, *changed, {"property": "single example; label wrong"}))
    assert sorted(told) == [6, 7, 8, 9]


def test_lifts_and_bare_accuracies_are_not_ranked_together():
    bare = {"lift": np.nan, "acc_after": 50.0}
    assert len(reasons(record({}, {}, bare, bare))) == 4 and reasons(record(*[bare | {"acc_after": a} for a in range(4)])) == {}


def test_an_evaluation_setting_belongs_to_the_benchmark_and_shares_the_cluster():
    rows, _ = published_groups(
        record(*[{"base_model": f"R1 ({k} eval)", "cohort": f"c{i}"} for k in ("8k", "32k") for i in range(4)])
    )
    assert rows.group.nunique() == 2 and rows.cluster.nunique() == 1 and set(rows.base) == {"R1"}


def test_energies_are_stated_ones_first_then_from_the_mean_and_say_so():
    stated = {"property": "base pass rate; mean p(1-p)=.1; mean p(1-p)^2=0.05", "pass_rate_mean": 0.5}
    one, zero = {"n_tasks": 1, "pass_rate_mean": 0.25}, {"pass_rate_mean": np.nan, "pass_rate_low": 0, "pass_rate_high": 0}
    narrow, wide = ({"pass_rate_mean": np.nan, "pass_rate_low": 0.2, "pass_rate_high": h} for h in (0.6, 0.9))
    rows = published_rows(record(stated, {"pass_rate_mean": 0.5}, one, zero, narrow, wide))
    assert rows.variance.tolist() == pytest.approx([0.1, 0.25, 0.1875, 0, 0.24, np.nan], nan_ok=True)
    assert rows.energy.tolist() == pytest.approx([0.05, 0.125, 0.140625, 0, 0.144, np.nan], nan_ok=True)
    bases = ["stated", "mean pass rate", "one task", "no task solved", "midpoint of a band", ""]
    assert rows.energy_basis.tolist() == bases
    assert rows.mean_pass_rate.tolist() == pytest.approx([0.5, 0.5, 0.25, 0, 0.4, np.nan], nan_ok=True)


def test_midpoints_of_the_bands_that_are_used_miss_the_stated_means_by_little_and_those_of_wider_ones_by_much():
    given = RECORD.dropna(subset=["pass_rate_low", "pass_rate_high", "pass_rate_mean"])
    error = ((given.pass_rate_low + given.pass_rate_high) / 2 - given.pass_rate_mean).abs()
    narrow = given.pass_rate_high - given.pass_rate_low <= WIDEST_BAND
    assert error[narrow].max() < 0.04 and error[~narrow].max() > 0.2 and narrow.sum() >= 5


def test_equal_sizes_keeps_the_commonest_size_of_each_group():
    rows, _ = published_groups(record(*[{"n_tasks": n} for n in (47, 47, 125, 47, 47, 16)]))
    assert equal_sizes(rows).line.tolist() == [2, 3, 5, 6]
    assert equal_sizes(published_groups(record(*[{"n_tasks": n} for n in (1, 1, 2, 2)]))[0]).empty
    two = [{"n_tasks": n} for n in (125, 125, 125, 125, 47, 47, 47, 47)]
    assert set(equal_sizes(published_groups(record(*two))[0]).n_tasks) == {47}
    assert set(equal_sizes(published_groups(record(*two, two[0]))[0]).n_tasks) == {125}


def test_group_rhos_say_why_a_group_cannot_be_tested():
    rows, _ = published_groups(record({}, {}, {}, {"n_tasks": np.nan}))
    assert "3 of 4 cohorts" in group_rhos(rows, "n_tasks").reason[0]
    assert "constant" in group_rhos(published_groups(record({}, {}, {}, {}))[0], "n_tasks").reason[0]
    assert group_rhos(rows, "mean_pass_rate").rho[0] == 1


def long(*papers, benchmarks=2, n=6, noise=1.0, signal=0.0, rng):
    """Rows of several papers; benchmarks of a paper share their cohorts' luck, so they are all but repeats of one another."""
    rows = []
    for paper in papers:
        x, luck = rng.random(n), rng.normal(size=n)
        for b in range(benchmarks):
            y = signal * x + luck + 0.1 * noise * rng.normal(size=n)
            group = {"study": paper, "cluster": f"{paper} | m", "group": f"{paper} | m | {b}"}
            rows += [group | {"cohort": f"c{i}", "outcome": y[i], "x": x[i]} for i in range(n)]
    return pd.DataFrame(rows)


def test_the_pooled_test_holds_its_level_though_benchmarks_repeat_one_another():
    p = [
        pooled_rho(
            long("a", "b", benchmarks=6, rng=np.random.default_rng(s)), "x", rng=np.random.default_rng(s), n_permutations=199
        )
        for s in range(400)
    ]
    rate = np.mean([r.p_value <= 0.05 for r in p])
    assert 0.02 <= rate <= 0.085  # 0.05 give or take three standard errors


def test_it_holds_its_level_where_groups_share_only_some_cohorts():
    rejected = []
    for seed in range(400):
        rng = np.random.default_rng(seed)
        x, luck, rows = rng.random(9), rng.normal(size=9), []
        for b, members in enumerate((range(9), range(5), range(3, 9), range(2, 7))):  # four base models, shared cohorts
            names = {"study": "a", "cluster": f"a | {b}", "group": f"a | {b} | MATH"}
            rows += [names | {"cohort": f"c{i}", "x": x[i], "outcome": luck[i] + 0.3 * rng.normal()} for i in members]
        rejected.append(pooled_rho(pd.DataFrame(rows), "x", rng=rng, n_permutations=199).p_value <= 0.05)
    assert 0.02 <= np.mean(rejected) <= 0.085


def test_permuting_every_group_by_itself_would_not_hold_the_level():
    rejected = []
    for seed in range(200):
        table = long("a", "b", benchmarks=6, rng=np.random.default_rng(seed))
        table["cohort"] = table["group"] + table["cohort"]  # no cohort is known to be shared
        rejected.append(pooled_rho(table, "x", rng=np.random.default_rng(seed), n_permutations=199).p_value <= 0.05)
    assert np.mean(rejected) > 0.2


def test_it_rejects_a_planted_signal_and_keeps_its_sign():
    table = long("a", "b", "c", n=8, signal=8.0, rng=np.random.default_rng(0))
    r = pooled_rho(table, "x", rng=np.random.default_rng(0), n_permutations=999)
    assert r.rho > 0.7 and r.p_value <= 0.01 and r.low > 0
    assert pooled_rho(table.assign(x=-table.x), "x", rng=np.random.default_rng(0), n_permutations=999).rho == -r.rho


def test_a_paper_of_one_group_gets_nearly_its_exact_permutation_p():
    table = long("a", benchmarks=1, n=6, rng=np.random.default_rng(3))
    exact = spearman_ci(table.x, table.outcome)
    r = pooled_rho(table, "x", rng=np.random.default_rng(0), n_permutations=9999)
    assert r.rho == pytest.approx(exact.rho) and r.p_value == pytest.approx(exact.p_value, abs=0.015)
    assert np.isnan(r.low) and "one cluster" in r.reason


def test_pooling_averages_benchmarks_before_clusters():
    rows = []
    for cluster, benchmarks, y in (("m1", 3, [1, 2, 3, 4]), ("m2", 1, [4, 3, 2, 1])):
        for b in range(benchmarks):
            names = {"study": "a", "cluster": cluster, "group": f"{cluster}{b}"}
            rows += [names | {"cohort": f"{cluster}c{i}", "x": i, "outcome": v} for i, v in enumerate(y)]
    r = pooled_rho(pd.DataFrame(rows), "x", rng=np.random.default_rng(0), n_permutations=99)
    assert r.rho == 0 and (r.n_groups, r.n_clusters, r.n_papers) == (4, 2, 1)
    assert (r.low, r.high) == (-1, 1)  # cut off


def test_the_five_equal_size_subsets_rank_090_by_variance_and_070_by_energy(found):
    # lines 3, 5, 6, 7, 8 of the csv; lift -0.27 < 9.87 < 13.87 < 14.13 < 14.93
    lift = [13.87, 14.13, -0.27, 14.93, 9.87]
    assert RECORD.lift[[1, 3, 4, 5, 6]].tolist() == lift
    variance, energy = [0.1043, 0.2119, 0.0521, 0.1132, 0.103], [0.0805, 0.0915, 0.0079, 0.0515, 0.0511]
    assert spearman_ci(variance, lift).rho == pytest.approx(0.9) and spearman_ci(energy, lift).rho == pytest.approx(0.7)
    name = "group.hard_examples | Qwen3-4B (unsloth 4bit) | BBH tracking-shuffled-objects (7), 125 test"
    assert found[f"published.equal_size.variance.{name}.rho"]["value"] == pytest.approx(0.9)
    assert found[f"published.equal_size.energy.{name}.rho"]["value"] == pytest.approx(0.7)
    # exact: of the 120 orders those with a squared rank distance of at most 2, or at least 38
    assert found[f"published.equal_size.variance.{name}.p_value"]["value"] == pytest.approx(10 / 120)


def test_numbers_of_the_record_are_those_of_its_raw_rows(found):
    value = {name: e["value"] for name, e in found.items()}
    assert value["published.zeros.sets.lift.lowest"] == 8.13 and value["published.zeros.sets.lift.highest"] == 59.49  # 11, 17
    assert found["published.zeros.sets.lift.median"]["n"] == 4  # lines 4, 11, 17, 24; 25 and 26 are another base's zeros
    assert value["published.zeros.sets.share_beaten.lowest"] == pytest.approx(1 / 3)  # line 11 beats 12 alone, not 9, 10
    assert value["published.saturated.sets.lift.highest"] == 3.6 and SATURATED == 0.85  # lines 6, 12, 221
    assert value["published.spurious.random_reward.share.median"] == pytest.approx(21.4 / 29.1)  # lines 295, 291
    assert value["published.spurious.format_reward.share.highest"] == pytest.approx(29.6 / 39.2)  # lines 61, 59
    assert value["published.wrong_labels.one_shot_rlvr.change.lowest"] == pytest.approx(31.8 - 37.6)  # lines 78, 74
    assert value["published.wrong_labels.noisy_data_is_destructive.change.lowest"] == -10  # line 298
    assert value["published.zeros.minus_full.sample_difficulty_in_rlvr.lowest"] == pytest.approx(35.44 - 46.68)  # 235, 233
    assert value["published.size.synthetic_data_rl.gain.highest"] == pytest.approx(29.2 - 20.0)  # lines 192, 180


def test_every_row_of_the_record_is_in_a_group_or_named_with_its_reason(found):
    dropped = [e for name, e in found.items() if name.startswith("published.dropped.")]
    named = [int(n) for e in dropped for n in e["note"].split("lines ")[1].split(", ")]
    rows, _ = published_groups(RECORD)
    assert sorted([*named, *rows.line]) == list(range(2, len(RECORD) + 2))
    assert found["published.rows_in_groups"]["value"] + sum(e["value"] for e in dropped) == len(RECORD) == 432
    assert all(e["value"] == len(e["note"].split("lines ")[1].split(", ")) for e in dropped)


def test_groups_of_the_record_hold_one_base_accuracy_and_each_cohort_once():
    rows, _ = published_groups(RECORD)
    before = RECORD.acc_before[rows.line - 2].fillna(-1).to_numpy()
    assert rows.assign(before=before).groupby("group").before.nunique().max() == 1
    assert not rows.duplicated(["group", "cohort"]).any() and rows.groupby("group").size().min() >= 4


def test_pooled_entries_are_means_over_clusters_of_group_entries(found):
    groups = group_table(found)
    for metric in METRICS:
        mine = groups[groups.metric == metric]
        cluster = mine.group.str.split(" | ", regex=False).str[:2].str.join(" | ")
        pooled = found[f"published.{metric}.pooled.rho"]
        assert pooled["value"] == pytest.approx(mine.rho.groupby(cluster).mean().mean()) and pooled["n"] == len(mine)


def test_words_follow_the_entries_whichever_way_they_fall(found):
    text, told = published_findings(found), limits(found)
    assert "nan" not in (text + told).lower() and "None" not in text + told
    assert "8.1 to 59.5 points" in told and "0.90 and 0.70" in told
    assert "**Contradicts** that sets with no base success gain least" in text
    assert "**Leaves open** that p(1-p) ranks" in text
    flipped = dict(found)
    for name, value in (("rho", 0.8), ("p_value", 0.001)):
        flipped[f"published.variance.pooled.{name}"] = found[f"published.variance.pooled.{name}"] | {"value": value}
    for end in ("lowest", "median", "highest"):
        flipped[f"published.zeros.sets.share_beaten.{end}"] = found[f"published.zeros.sets.share_beaten.{end}"] | {"value": 0.0}
    text = published_findings(flipped)
    assert "**Supports** that p(1-p) ranks lifts 0.80" in text
    assert "**Supports** that sets with no base success gain least" in text
    flipped["published.variance.pooled.rho"] |= {"value": -0.8}
    assert "**Contradicts** that p(1-p) ranks lifts -0.80" in published_findings(flipped)


def test_the_forest_has_a_panel_a_metric_and_a_row_a_testable_group(found):
    import matplotlib.pyplot as plt

    figure = forest(found)
    rows = group_table(found).label.nunique()
    assert len(figure.axes) == len(METRICS) and len(figure.axes[0].get_yticks()) >= rows + 1
    plt.close(figure)


def test_short_names_drop_identifiers_and_brackets():
    assert short_name("2504.20571 One-Shot RLVR") == "one_shot_rlvr"
    assert short_name("2508.14094 Hard Examples (Pikus et al.)") == "hard_examples"
    assert short_name("agi-2026/math-rl (course report)") == "agi_2026_math_rl"
