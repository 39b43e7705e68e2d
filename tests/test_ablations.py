"""Ablations: variants by hand, the paired interval by its coverage, a choice that never sees its test, a bound that is none."""

import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot as plt
from scipy import stats as scipy_stats
from scipy.special import beta as beta_function

from lad_utils.ablation_plots import ROWS, ablation_differences, divergence_bound
from lad_utils.ablations import (
    GRID,
    VARIANTS,
    _correlation_of_correlations,
    _zou,
    ablation_entries,
    ablation_scores,
    ablation_table,
    bound_fails,
    exact_kl,
    nested_choice,
    quadratic_kl,
    spearman_difference_ci,
)
from lad_utils.score import lad
from lad_utils.stats import _row_spearman, loco

# The variants


def counted(correct, k, ids=None, *, cohort="c", arm="main"):
    ids = [f"t{i}" for i in range(len(correct))] if ids is None else ids
    return pd.DataFrame({"arm": arm, "cohort": cohort, "task_id": ids, "correct": correct, "k": k})


def embedded(solved, x, spelling=None):
    ids = solved.task_id.to_numpy()
    return {"minilm": pd.DataFrame(x, index=ids), "char_ngrams": pd.DataFrame(x if spelling is None else spelling, index=ids)}


def scores_of(solved, vectors, seed=0):
    return ablation_scores(solved, vectors, rng=np.random.default_rng(seed)).set_index("variant")


def test_every_variant_by_hand_on_two_orthogonal_tasks_twice_each():
    solved = counted([16] * 4, 32, ["a", "a", "b", "b"])
    distinct = pd.DataFrame(np.eye(2), index=["a", "b"])
    found = scores_of(solved, {"minilm": distinct, "char_ngrams": distinct}).value
    variance, energy = 16 * 16 / (32 * 31), 16 * 16 * 15 / (32 * 31 * 30)  # Vendi 2 of 4 rows, so diversity is 1/2
    expected = {
        "lad": energy / 2,
        "no_headroom": variance / 2,
        "no_diversity": energy,
        "gamma_0_beta_0": variance,
        "beta_half": energy / np.sqrt(2),
        "gamma_2": 16 * 16 * 15 * 14 / (32 * 31 * 30 * 29) / 2,
        "diversity_divisor": energy * 2,
        "distinct_fraction": energy / 2,
        "hard_band": 1 / 2,
        "plugin": 1 / 16,
        "unscaled_gain": 16 * 15 * 16 * 15 / (32 * 31 * 30 * 29) / 2,
        "variance_distinct": variance / 2,
        "headroom_distinct": 1 / 4,
        "k_32": energy / 2,
    } | dict.fromkeys(("vendi_q_half", "vendi_q_2", "vendi_q_inf", "char_ngrams", "weighted_vendi"), energy / 2)
    assert found[list(expected)].to_dict() == pytest.approx(expected)
    # pass rates do not spread, so the prior puts all tasks at 1/2; tilt: 1/4 * 3 / (1 + 3/2)
    nearly = {"smoothed": 1 / 16, "scaled_gain": 1 / 16, "gamma_half": 0.5**2.5 / 2, "tilt": 0.3 / 2}
    assert found[list(nearly)].to_dict() == pytest.approx(nearly, rel=1e-3)
    # jackknife: 32 H(1/2)/2 - 31 H(15/31) (16/31 + 15/31)/2
    h = -(15 * np.log(15 / 31) + 16 * np.log(16 / 31)) / 31
    assert found["entropy"] == pytest.approx((32 * np.log(2) / 2 - 31 * h / 2) / 2)


def test_hard_band_counts_the_tasks_within_it_ends_included():
    found = scores_of(solved := counted([6, 7, 28, 29], 35), embedded(solved, np.eye(4))).value
    assert found["hard_band"] == 0.5


@pytest.fixture(scope="module")
def spread():
    """Tasks with p ~ Beta(2, 3), of which expectations are ratios of Beta functions; 8 rollouts each."""
    rng = np.random.default_rng(3)
    solved = counted(rng.binomial(8, rng.beta(2, 3, 6000)), 8)
    return solved, embedded(solved, rng.normal(size=(6000, 3)), rng.normal(size=(6000, 2)))


def test_exponents_that_are_not_whole_come_from_empirical_bayes_without_the_bias_of_plugging_in(spread):
    solved, vectors = spread
    found = scores_of(solved, vectors).value
    diversity = found["lad"] / found["no_diversity"]
    truth = {a: beta_function(2 + a[0], 3 + a[1]) / beta_function(2, 3) for a in ((1, 1.5), (1.5, 1.5), (1, 2), (2, 2))}
    assert found["gamma_half_beta_0"] == pytest.approx(truth[1, 1.5], rel=0.01)
    assert found["scaled_gain"] / diversity == pytest.approx(truth[1.5, 1.5], rel=0.01)
    assert found["unscaled_gain"] / diversity == pytest.approx(truth[2, 2], rel=0.02)
    assert found["no_diversity"] == pytest.approx(truth[1, 2], rel=0.01)
    assert found["plugin"] / diversity < 0.95 * truth[1, 2]
    smooth = (np.arange(9) + 2) / 13  # posterior means of p under that prior
    expected = scipy_stats.betabinom(8, 2, 3).pmf(np.arange(9)) @ (smooth * (1 - smooth) ** 2)
    assert found["smoothed"] / diversity == pytest.approx(expected, rel=0.01)


def test_char_ngrams_use_the_other_embedding_and_vendi_falls_with_its_order(spread):
    found = scores_of(*spread).value
    assert found["lad"] / found["char_ngrams"] == pytest.approx(3 / 2, rel=0.01)  # isotropic in three and in two dimensions
    assert found["vendi_q_half"] >= found["lad"] >= found["vendi_q_2"] >= found["vendi_q_inf"]


def test_tasks_without_energy_count_for_nothing_in_weighted_vendi():
    solved = counted([16] * 20 + [32] * 20, 32)
    found = scores_of(solved, embedded(solved, np.repeat(np.eye(2), 20, axis=0))).value
    assert found["lad"] / found["no_diversity"] == pytest.approx(2 / 40)
    assert found["weighted_vendi"] / found["no_diversity"] == pytest.approx(1 / 40, rel=0.05)


def test_fewer_rollouts_are_on_average_the_whole_and_spread_more_the_fewer():
    solved = counted(np.random.default_rng(0).binomial(32, 0.4, 30), 32)
    vectors = embedded(solved, np.eye(30))
    rng = np.random.default_rng(1)
    draws = pd.DataFrame([ablation_scores(solved, vectors, rng=rng).set_index("variant").value for _ in range(100)])
    for k in ("k_4", "k_8", "k_16"):
        assert draws[k].mean() == pytest.approx(draws.lad.iloc[0], abs=4 * draws[k].std() / 10)
    assert draws.k_4.std() > 1.3 * draws.k_8.std() > 1.3 * draws.k_16.std() > 0 == np.ptp(draws.k_32)


def test_copies_of_a_task_keep_the_same_rollouts():
    solved = counted([16] * 12, 32, ["a"] * 12)
    one = pd.DataFrame([[1.0, 0.0]], index=["a"])
    attainable = [c * (4 - c) * (3 - c) / 24 for c in range(5)]  # of a single task with 4 rollouts
    for seed in range(8):
        found = scores_of(solved, {"minilm": one, "char_ngrams": one}, seed).value
        assert min(abs(found["k_4"] * 12 - e) for e in attainable) < 1e-12


def test_lad_is_the_frozen_score_and_what_cannot_be_told_has_a_reason():
    rng = np.random.default_rng(0)
    x, none = rng.normal(size=(12, 5)), counted([0] * 12, 8, cohort="none")
    some = counted(rng.integers(0, 9, 12), 8, cohort="some")
    vectors = embedded(some, x)
    table = ablation_scores(pd.concat([some, none]), vectors, rng=rng)
    found = table.pivot(index="variant", columns="cohort", values="value")
    assert found.some["lad"] == pytest.approx(lad(some.correct, some.k, x))
    assert found.none["lad"] == 0 and np.isnan(found.none["smoothed"])
    assert table.groupby("cohort").variant.apply(list).map(lambda names: names == list(VARIANTS)).all()
    assert (table.value.isna() == (table.reason != "")).all()
    reasons = table.set_index(["cohort", "variant"]).reason
    assert reasons["some", "k_16"] == "16 rollouts asked of 8 stored ones"
    assert "no successes" in reasons["none", "tilt"]
    once = scores_of(counted([0, 1, 1], 1), embedded(counted([0, 1, 1], 1), np.eye(3)))
    assert (
        "k=1" in once.reason["lad"] and np.isnan(once.value["lad"]) and once.value["headroom_distinct"] == pytest.approx(1 / 3)
    )


# The paired interval


def test_zous_published_example():
    """Zou (2007): r = .396 and .179 with .088 between the two metrics, n = 66, Fisher limits: [-.093, .517]."""
    limits = [np.tanh(np.arctanh(r) + np.array([-1, 1]) * 1.959964 / np.sqrt(63)) for r in (0.396, 0.179)]
    low, high = _zou(0.396, 0.179, _correlation_of_correlations(0.396, 0.179, 0.088), *limits)
    assert (round(low, 3), round(high, 3)) == (-0.093, 0.517)


def test_interval_by_hand_where_the_two_estimates_are_uncorrelated():
    # n=19: atanh .5 -+ 1.95996 sqrt(1.125/16) -> [.02958, .78909]; 0 -+ 1.95996/4 -> -+.45421
    d = spearman_difference_ci(0.5, 0.0, 0.0, 19)
    assert d.difference == 0.5 and d.reason == ""
    assert d.low == pytest.approx(0.5 - np.hypot(0.5 - 0.02958, 0.45421), abs=2e-5)
    assert d.high == pytest.approx(0.5 + np.hypot(0.78909 - 0.5, 0.45421), abs=2e-5)
    # .5 (1 - .72) - .18 (1 - .72 - .25) = .1346, over .64^2
    assert _correlation_of_correlations(0.6, 0.6, 0.5) == pytest.approx(0.1346 / 0.4096)


def simulated(a, b, c, n, *, n_sim, seed):
    """Columns (lift, metric 1), (lift, metric 2), (metric 1, metric 2) of Spearmans, shape (n_sim, 3); Pearsons are a, b, c."""
    root = np.linalg.cholesky([[1, a, b], [a, 1, c], [b, c, 1]])
    z = np.random.default_rng(seed).normal(size=(n_sim, n, 3)) @ root.T
    return np.stack([_row_spearman(z[..., i], z[..., j]) for i, j in ((0, 1), (0, 2), (1, 2))], axis=1)


@pytest.mark.parametrize("n", [19, 48])
@pytest.mark.parametrize("truth", [(0.65, 0.65, 0.9), (0.7, 0.3, 0.4), (0.85, 0.7, 0.8), (0.6, -0.2, -0.3)])
def test_the_paired_interval_covers_the_true_difference(truth, n):
    """Over 2000 draws: 94.7 to 97.8% at n=19, 95.6 to 96.9% at n=48, most where the two rank nearly alike."""
    rows = simulated(*truth, n, n_sim=2000, seed=n)
    difference = 6 / np.pi * (np.arcsin(truth[0] / 2) - np.arcsin(truth[1] / 2))  # Spearman of a normal pair
    found = np.array([spearman_difference_ci(*r, n)[1:3] for r in rows])
    assert 0.935 < ((found[:, 0] <= difference) & (difference <= found[:, 1])).mean() < 0.99


def test_pairing_narrows_the_interval_as_it_narrows_the_truth():
    rows = simulated(0.65, 0.65, 0.9, 48, n_sim=300, seed=0)
    paired = np.array([np.diff(spearman_difference_ci(*r, 48)[1:3])[0] for r in rows])
    unpaired = np.array([np.diff(spearman_difference_ci(r[0], r[1], r[0] * r[1], 48)[1:3])[0] for r in rows])
    assert paired.mean() < 0.6 * unpaired.mean()


def test_swapping_the_two_metrics_mirrors_the_interval():
    one, other = spearman_difference_ci(0.7, 0.2, 0.4, 19), spearman_difference_ci(0.2, 0.7, 0.4, 19)
    assert (one.low, one.high) == pytest.approx((-other.high, -other.low))


@pytest.mark.parametrize(
    ("r", "n", "difference", "reason"),
    [
        ((0.6, 0.6, 1.0), 19, 0, "same ranking"),
        ((np.nan, 0.6, 0.5), 19, np.nan, "a correlation is undefined"),
        ((1.0, 0.6, 0.6), 19, 0.4, "no Bonett-Wright interval unless"),
        ((0.5, 0.3, 0.1), 3, 0.2, "n < 4"),
    ],
)
def test_no_interval_comes_with_its_reason(r, n, difference, reason):
    d = spearman_difference_ci(*r, n)
    assert d.difference == pytest.approx(difference, nan_ok=True) and np.isnan([d.low, d.high]).all()
    assert d.reason.startswith(reason)


# Beside lift

COHORTS = ("very_hard", "hard", "medium", "easy", "very_easy", "bimodal", "unimodal", "repeat_8", "repeat_32", "max_diverse")
COHORTS += ("domain_shift", "random")


def trained(lifts, *, arm="main"):
    """Tables `lifts` and `eval_questions` of one run a cohort, whose lift is the given one."""
    runs = pd.DataFrame({"cohort": list(lifts), "lift": list(lifts.values())})
    runs = runs.assign(arm=arm, seed=0, variant="sampled", invalid="", run_id=[f"{arm}/{c}" for c in lifts])
    questions = runs.loc[np.repeat(runs.index, 4), ["run_id", "variant", "lift"]].reset_index(drop=True)
    after = (1000 * (0.4 + questions.lift)).round().astype(int)
    questions = questions.assign(
        task_id=np.tile(list("abcd"), len(runs)), n_before=1000, c_before=400, n_after=1000, c_after=after
    )
    return runs, questions


def ablated(cohorts, *, arm="main", seed=0):
    """An ablations table of random values, a different ranking for every variant but k_32, which ranks as LAD does."""
    values = np.random.default_rng(seed).normal(size=(len(VARIANTS), len(cohorts)))
    values[VARIANTS.index("k_32")] = 2 * values[0]
    rows = [(arm, c, v, x, "", "") for v, xs in zip(VARIANTS, values, strict=True) for c, x in zip(cohorts, xs, strict=True)]
    return pd.DataFrame(rows, columns=["arm", "cohort", "variant", "value", "reason", "note"])


def lifts_of(cohorts, seed=1):
    return dict(zip(cohorts, np.random.default_rng(seed).uniform(0, 0.3, len(cohorts)).round(3).tolist(), strict=True))


def found_in(*tables):
    return {e["name"]: e for e in ablation_entries(*tables)}


def test_differences_are_of_plain_spearmans_and_an_equal_ranking_is_named():
    table, lifts = ablated(COHORTS), lifts_of(COHORTS)
    found = found_in(table, *trained(lifts))
    wide = table.pivot(index="cohort", columns="variant", values="value").loc[list(COHORTS)]
    rho = {v: scipy_stats.spearmanr(wide[v], list(lifts.values())).statistic for v in VARIANTS}
    for variant in VARIANTS[1:]:
        assert found[f"ablation.main.{variant}.rho"]["value"] == pytest.approx(rho[variant])
        assert found[f"ablation.main.{variant}.minus_lad"]["value"] == pytest.approx(rho[variant] - rho["lad"], abs=1e-12)
        agreement = scipy_stats.spearmanr(wide[variant], wide["lad"]).statistic
        assert found[f"ablation.main.{variant}.rho_with_lad"]["value"] == pytest.approx(agreement)
    same, other = found["ablation.main.k_32.minus_lad"], found["ablation.main.tilt.minus_lad"]
    assert (same["value"], same["ci_low"], same["reason"]) == (0, None, "same ranking")
    assert other["ci_low"] < other["value"] < other["ci_high"] and other["n"] == len(COHORTS)


def test_a_variant_undefined_for_some_cohorts_is_compared_with_lad_over_the_others():
    table, lifts = ablated(COHORTS), lifts_of(COHORTS)
    gone = (table.variant == "tilt") & table.cohort.isin(["hard", "random"])
    table.loc[gone, ["value", "reason"]] = [np.nan, "no prior"]
    table.loc[(table.variant == "lad") & (table.cohort == "easy"), ["value", "reason"]] = [np.nan, "k=1"]
    rest = [c for c in COHORTS if c not in ("hard", "random", "easy")]
    wide = table.pivot(index="cohort", columns="variant", values="value").loc[rest]
    y = [lifts[c] for c in rest]
    found = found_in(table, *trained(lifts))["ablation.main.tilt.minus_lad"]
    expected = scipy_stats.spearmanr(wide.tilt, y).statistic - scipy_stats.spearmanr(wide.lad, y).statistic
    assert (
        found["value"] == pytest.approx(expected)
        and found["n"] == len(COHORTS) - 3
        and "2 cohorts left out: no prior" in found["note"]
    )


def test_mixtures_stand_apart_without_lifts_they_are_skipped_and_controls_never_count():
    mixtures = [f"mixture_{i:02d}" for i in range(12)]
    table = pd.concat([ablated([*COHORTS, "clean_twin"]), ablated(mixtures, arm="mixture", seed=5)])
    main, mixed = trained(lifts_of([*COHORTS, "clean_twin"])), trained(lifts_of(mixtures), arm="mixture")
    alone = found_in(table, *main)
    assert not [name for name in alone if "mixture" in name] and alone["ablation.main.lad.rho"]["n"] == len(COHORTS)
    both = found_in(table, *(pd.concat(pair) for pair in zip(main, mixed, strict=True)))
    assert both["ablation.mixture.lad.rho"]["n"] == 12 and {k: both[k] for k in alone} == alone
    best = max(GRID.values(), key=lambda v: alone[f"ablation.main.{v}.rho"]["value"])
    assert both["ablation.mixture.tuned.rho"]["value"] == both[f"ablation.mixture.{best}.rho"]["value"]
    assert alone["ablation.main.tuned.rho"]["value"] == alone[f"ablation.main.{best}.rho"]["value"]


@pytest.mark.parametrize("cohorts", [COHORTS[:4], COHORTS[:2], ("very_hard", "medium", "repeat_8", "random")])
def test_a_study_of_few_cohorts_leaves_nothing_undefined_without_a_reason(cohorts):
    entries = ablation_entries(ablated(cohorts), *trained(lifts_of(cohorts)))
    assert {e["name"].split(".")[2] for e in entries} >= set(VARIANTS)
    assert all(e["reason"] for e in entries if e["value"] is None)
    plt.close(ablation_differences(entries))


def choice_table(seed=0):
    table = ablation_table(ablated(COHORTS, seed=seed), *trained(lifts_of(COHORTS, seed + 1)), arm="main")
    return table, table["family"].to_numpy()


def test_a_choice_among_copies_of_lad_is_lad_held_out():
    table, families = choice_table()
    for variant in GRID.values():
        table[variant] = table["lad"]
    found, frozen = nested_choice(table), loco(table.lad, table.lift, families.tolist(), n_permutations=0)
    assert (found.rho, found.q2) == pytest.approx((frozen.rho, frozen.q2)) and set(found.chosen.values()) == {"lad"}


@pytest.mark.parametrize("seed", range(3))
def test_neither_choice_nor_line_sees_the_lifts_of_the_family_left_out(seed):
    table, families = choice_table(seed)
    before = nested_choice(table)
    for family in set(families):
        out = families == family
        moved = table.assign(lift=np.where(out, table.lift[::-1].to_numpy() * 7 - 1, table.lift))
        after = nested_choice(moved)
        assert after.chosen[family] == before.chosen[family]
        assert after.predictions[out] == pytest.approx(before.predictions[out])


def test_the_variant_that_tells_lift_is_chosen_in_every_fold():
    table, _ = choice_table()
    table["gamma_2_beta_0"] = table["lift"] * 3
    found = nested_choice(table)
    assert set(found.chosen.values()) == {"gamma_2_beta_0"} and found.rho == found.q2 == pytest.approx(1)


# The bound that is none


def test_the_exact_divergence_is_that_of_two_two_point_distributions_and_does_not_overflow():
    for p, beta in ((0.9, 1.0), (0.5, 0.1), (0.03, 0.4)):
        tilted = np.array([1 - p, p * np.exp(1 / beta)])
        assert exact_kl(p, beta) == pytest.approx(scipy_stats.entropy([1 - p, p], tilted / tilted.sum()))
    p = np.array([0.1, 0.5, 0.99])
    for beta in (0.01, 0.001):  # e^(1/beta) drowns 1-p: ln p + (1-p)/beta
        assert exact_kl(p, beta) == pytest.approx(np.log(p) + (1 - p) / beta, rel=1e-12)
    assert exact_kl(np.array([0.0, 1.0]), 0.01).tolist() == [0, 0]


def test_the_quoted_bound_is_none_at_the_known_points():
    assert (round(float(exact_kl(0.9, 1)), 3), quadratic_kl(0.9, 1)) == (0.035, pytest.approx(0.045))
    assert (round(float(exact_kl(0.5, 0.1)), 1), quadratic_kl(0.5, 0.1)) == (4.3, pytest.approx(12.5))
    assert bound_fails([0.9, 0.5, 0.1], [1, 0.1, 1]).tolist() == [True, True, False]


def test_it_fails_for_every_beta_from_one_half_on_and_for_small_beta_below():
    p, beta = np.linspace(0.5, 0.99, 30), np.geomspace(0.01, 10, 50)[:, None]
    assert bound_fails(p, beta).all()
    rare = bound_fails(np.linspace(0.03, 0.45, 20), beta)
    assert rare[0].all() and not rare[-1].any() and (np.diff(rare.astype(int), axis=0) <= 0).all()


def test_without_a_kl_term_there_is_nothing_to_bound():
    with pytest.raises(ValueError, match="quadratic_kl: beta=0, expected above 0"):
        quadratic_kl(0.5, 0)


# The pictures


def test_every_variant_has_one_place_in_the_figure():
    shown = [v for variants in ROWS.values() for v in variants]
    assert sorted(shown) == sorted(set(VARIANTS) - {"lad"})


def test_a_difference_is_coloured_only_where_its_interval_leaves_zero_out():
    entries = ablation_entries(ablated(COHORTS), *trained(lifts_of(COHORTS)))
    for e in entries:
        if e["name"].endswith("minus_lad"):
            e |= {"value": 0.0, "ci_low": -0.1, "ci_high": 0.1}
        if e["name"] == "ablation.main.tilt.minus_lad":
            e |= {"value": 0.5, "ci_low": 0.2, "ci_high": 0.8}
    figure = ablation_differences(entries)
    colours = [tuple(c.get_color()[0]) for c in figure.axes[0].collections if hasattr(c, "get_segments")]
    assert len(colours) == len(VARIANTS) - 1 and sorted(colours.count(c) for c in set(colours)) == [1, len(VARIANTS) - 2]
    assert "no lifts" in figure.axes[1].texts[0].get_text()
    plt.close(figure)


def test_the_marked_points_of_the_bound_say_both_numbers():
    figure = divergence_bound((1.0, 0.1), marked=((0.9, 1), (0.5, 0.1)))
    assert [t.get_text().splitlines()[1] for t in figure.axes[1].texts] == [
        "exact 0.0347, quoted 0.045",
        "exact 4.31, quoted 12.5",
    ]
    plt.close(figure)
