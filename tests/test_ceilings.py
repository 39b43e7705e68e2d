"""Claims about lad_utils.ceilings, against closed forms, brute force, known variances, and the reference study."""

import warnings
from itertools import product
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from scipy import optimize
from scipy import stats as scipy_stats

from lad_utils import ceilings
from lad_utils.ceilings import (
    explained,
    noise_ceiling_entries,
    paired_reliability,
    question_rates,
    reml_reliability,
    split_half_reliability,
    variance_components,
)
from lad_utils.cohorts import CONTROLS
from lad_utils.params import REPOSITORY
from lad_utils.stats import seed_reliability
from lad_utils.validation import valid

S_U, S_E = 2.0, 1.5
DESIGNS = [(19, 2), (19, 6), (48, 2)]  # cohorts, seeds: designed cohorts, and mixtures
REFERENCE = REPOSITORY / "outputs" / "reference" / "micro"


def rng(seed=0):
    return np.random.default_rng(seed)


def truth(s):
    return S_U**2 / (S_U**2 + S_E**2 / s)


def world(sizes, source, *, s_u=S_U, s_e=S_E):
    """One row a run: cohort, lift."""
    cohort = np.repeat(np.arange(len(sizes)), sizes)
    lift = s_u * source.normal(size=len(sizes))[cohort] + s_e * source.normal(size=len(cohort))
    return pd.DataFrame({"cohort": cohort, "lift": lift})


def matrix(table, s):
    return table["lift"].to_numpy().reshape(-1, s)


# REML


@pytest.mark.parametrize(("n", "s", "s_u"), [(19, 2, 2.0), (19, 6, 2.0), (48, 2, 2.0), (19, 4, 0.056), (6, 3, 40.0)])
def test_reml_of_a_balanced_design_is_the_anova_form_with_its_exact_interval(n, s, s_u):
    table = world([s] * n, rng(n + s), s_u=s_u, s_e=0.0087 if s_u < 1 else S_E)
    found, closed = reml_reliability(table), seed_reliability(matrix(table, s))
    assert closed.reliability > 0
    assert found[:8] == pytest.approx(closed[:8], rel=1e-3)
    assert (found.n, found.n_seeds, found.reason) == (n, pytest.approx(s), "")


def reml_by_brute_force(table):
    """(s_u, s_e) that maximise the density of contrasts that sum to zero, with dense covariances."""
    y, cohort = table["lift"].to_numpy(), table["cohort"].to_numpy()
    contrasts = np.linalg.svd(np.ones((1, len(y))))[2][1:]
    same = (cohort[:, None] == cohort).astype(float)

    def loss(logs):
        a, b = np.exp(2 * logs)
        return -scipy_stats.multivariate_normal(cov=contrasts @ (a * same + b * np.eye(len(y))) @ contrasts.T).logpdf(
            contrasts @ y
        )

    return np.exp(optimize.minimize(loss, [0.0, 0.0], method="Nelder-Mead", options={"xatol": 1e-7, "fatol": 1e-10}).x)


def test_reml_of_unequal_numbers_of_seeds_maximises_the_restricted_likelihood():
    table = world([1, 2, 2, 3, 4, 6, 2, 5, 1, 3], rng(3))
    s_u, s_e = reml_by_brute_force(table)
    found = reml_reliability(table)
    assert (found.s_u, found.s_e) == pytest.approx((s_u, s_e), rel=2e-3)
    harmonic = 10 / (2 / 1 + 3 / 2 + 2 / 3 + 1 / 4 + 1 / 6 + 1 / 5)
    assert found.n_seeds == pytest.approx(harmonic)
    assert found.reliability == pytest.approx(s_u**2 / (s_u**2 + s_e**2 / harmonic), rel=2e-3)
    assert found.reliability_low < found.reliability < found.reliability_high


def test_at_the_limits_the_weighted_spread_of_unequal_means_is_the_quantile_of_f():
    table = world([1, 2, 2, 3, 4, 6, 2, 5, 1, 3], rng(3))
    found, by = reml_reliability(table), table.groupby("cohort")["lift"]
    sizes, means, mse = by.size().to_numpy(), by.mean().to_numpy(), by.var(ddof=0).mul(by.size()).sum() / (29 - 10)
    for r, tail in ((found.reliability_low, 0.975), (found.reliability_high, 0.025)):
        ratio = r / (1 - r) / found.n_seeds  # s_u^2 / s_e^2; generalised least squares with these variances of means:
        precision = np.linalg.inv(ratio * np.eye(10) + np.diag(1 / sizes))
        residual = means - precision.sum(axis=0) @ means / precision.sum()
        assert residual @ precision @ residual / (9 * mse) == pytest.approx(scipy_stats.f.ppf(tail, 9, 19))


def test_the_interval_covers_95_percent_with_unequal_numbers_of_seeds(monkeypatch):
    monkeypatch.setattr(ceilings, "_mixed_model", lambda z, code: (1.0, 1.0, ""))  # the interval does not use it
    sizes, source = [1, 1, 2, 2, 2, 2, 2, 3, 3, 3, 4, 4, 6, 6], rng(5)
    r, inside = truth(1 / np.mean(1 / np.array(sizes))), 0
    for _ in range(1000):
        found = reml_reliability(world(sizes, source))
        inside += found.reliability_low <= r <= found.reliability_high
    assert abs(inside / 1000 - 0.95) < 0.024  # 3.5 standard errors


def test_cohorts_that_differ_no_more_than_seeds_sit_on_the_boundary_and_say_so():
    table = pd.DataFrame({"cohort": [*"aabbccdd"], "lift": [1, 5, 5, 1, 2, 4, 4.5, 1.5]})  # all means are 3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = reml_reliability(table)
    assert (found.s_u, found.reliability, found.ceiling) == (0, 0, 0)
    assert found.s_e == pytest.approx(table["lift"].std(ddof=1))
    assert "boundary" in found.reason


def test_the_boundary_is_where_anova_has_it():
    source, seen = rng(11), set()
    for _ in range(30):
        table = world([3] * 8, source, s_u=0.4)
        y = matrix(table, 3)
        on = 3 * y.mean(axis=1).var(ddof=1) <= y.var(axis=1, ddof=1).mean()
        seen.add(on)
        assert (reml_reliability(table).s_u == 0) == on
    assert seen == {True, False}


def test_no_convergence_is_nan_in_the_words_of_mixed_lm(monkeypatch):
    def fit(self, reml):
        warnings.warn("gradient |grad| = 3", stacklevel=2)
        return SimpleNamespace(converged=False)

    monkeypatch.setattr(ceilings.MixedLM, "fit", fit)
    found = reml_reliability(world([2] * 9, rng(2)))
    assert np.isnan(found.reliability)
    assert "gradient |grad| = 3" in found.reason
    assert 0 <= found.reliability_low < found.reliability_high  # Wald's interval needs no fit


@pytest.mark.parametrize(
    "table",
    [
        pd.DataFrame({"cohort": [*"aabb"], "lift": [1.0, 2, 3, 4]}),
        pd.DataFrame({"cohort": [*"abcd"], "lift": [1.0, 2, 3, 4]}),
        pd.DataFrame({"cohort": [*"aabbcc"], "lift": [1.0] * 6}),
        pd.DataFrame({"cohort": [], "lift": np.array([])}),
    ],
)
def test_what_cannot_be_told_is_nan_with_a_reason(table):
    for found in (reml_reliability(table), split_half_reliability(table, rng=rng())):
        assert np.isnan(found.reliability_low)
        assert found.reason


def test_seeds_that_never_differ_give_one_without_an_interval():
    table = pd.DataFrame({"cohort": [*"aabbcc"], "lift": [1.0, 1, 2, 2, 5, 5]})
    for found in (reml_reliability(table), split_half_reliability(table, rng=rng())):
        assert found.reliability == 1
        assert np.isnan(found.reliability_low)
        assert found.reason


# Bias and coverage where the variances are known


def test_two_points_between_cohorts_and_one_and_a_half_between_two_seeds_put_the_ceiling_at_88():
    assert np.sqrt(truth(2)) == pytest.approx(0.883, abs=5e-4)
    assert np.sqrt(truth(6)) == pytest.approx(0.956, abs=5e-4)


@pytest.mark.parametrize(("n", "s"), DESIGNS)
def test_reml_is_nearly_unbiased_and_its_interval_covers_95_percent(n, s):
    source, runs = rng(n * s), 20_000
    y = S_U * source.normal(size=(runs, n, 1)) + S_E * source.normal(size=(runs, n, s))
    f = s * y.mean(axis=2).var(axis=1, ddof=1) / y.var(axis=2, ddof=1).mean(axis=1)
    r = np.maximum(1 - 1 / f, 0)
    # E[1 - 1/F] = 1 - (1-R) (n-1)/(n-3): low by 2 (1-R) / (n-3); truncation at 0 takes a part of it away
    assert -2 * (1 - truth(s)) / (n - 3) - 0.002 < r.mean() - truth(s) < 0
    low, high = (1 - scipy_stats.f.ppf(q, n - 1, n * (s - 1)) / f for q in (0.975, 0.025))
    assert abs(((low <= truth(s)) & (truth(s) <= high)).mean() - 0.95) < 0.006
    for sample in range(3):  # and these closed forms are what the function gives
        found = reml_reliability(world_of(y[sample]))
        assert found.reliability == pytest.approx(r[sample], rel=1e-3)
        assert found.reliability_low == pytest.approx(max(low[sample], 0), abs=1e-9)
        assert found.reliability_high == pytest.approx(high[sample], abs=1e-9)


def world_of(y):
    return pd.DataFrame({"cohort": np.repeat(np.arange(len(y)), y.shape[1]), "lift": y.ravel()})


@pytest.mark.parametrize(("n", "s"), DESIGNS)
def test_split_halves_are_nearly_unbiased_and_their_interval_covers_about_95_percent(n, s):
    source, runs = rng(n + s), 400
    found = [split_half_reliability(world([s] * n, source), rng=source, n_splits=12) for _ in range(runs)]
    assert abs(np.mean([r.reliability for r in found]) - truth(s)) < 0.03
    assert abs(np.median([r.reliability for r in found]) - truth(s)) < 0.02
    assert 0.905 < np.mean([r.reliability_low <= truth(s) <= r.reliability_high for r in found]) < 0.985


@pytest.mark.parametrize(("n", "s"), DESIGNS)
def test_the_explained_share_is_nearly_unbiased_and_its_interval_covers_95_percent(n, s):
    source, runs, found = rng(n - s), 800, []
    for _ in range(runs):
        x = source.normal(size=n)
        y = S_U * (0.6 * x + 0.8 * source.normal(size=n))[:, None] + S_E * source.normal(size=(n, s))
        found.append(explained(np.corrcoef(x, y.mean(axis=1))[0, 1], n, seed_reliability(y), rank=False))
    found = pd.DataFrame(found)
    assert abs(found["rho"].mean() - 0.6) < 0.025
    assert -0.01 < found["share"].mean() - 0.36 < 0.06  # rho^2 is high by about (1 - rho^2)^2 / n
    with_interval = found[found["reason"] == ""]
    assert len(with_interval) > 0.85 * runs  # at n = 19, S = 2 the interval of R starts at 0 in a tenth
    inside = (with_interval["share_low"] <= 0.36) & (with_interval["share_high"] >= 0.36)
    assert 0.93 < inside.mean() < 0.985


# Split halves


def test_split_halves_are_spearman_brown_of_the_mean_pearson_over_all_splits():
    lifts = np.array([[1.0, 2.0], [2.5, 2.0], [4.0, 3.0], [3.5, 6.0]])
    r = [
        np.corrcoef([(row[o], row[1 - o]) for row, o in zip(lifts, way, strict=True)], rowvar=False)[0, 1]
        for way in product((0, 1), repeat=4)
    ]
    found = split_half_reliability(world_of(lifts), rng=rng(), n_splits=20_000)
    assert found.reliability == pytest.approx(2 * np.mean(r) / (1 + np.mean(r)), abs=0.004)


@pytest.mark.parametrize("sizes", [[3], [5], [2, 3, 6], [1, 2, 4]])
def test_odd_and_unequal_numbers_of_seeds_are_stepped_up_to_their_harmonic_mean(sizes):
    sizes = np.tile(sizes, 1200 // len(sizes))
    found = split_half_reliability(world(sizes, rng(1)), rng=rng(2), n_splits=5)
    used = sizes[sizes > 1]
    assert (found.n, found.n_dropped) == (len(used), (sizes == 1).sum())
    assert found.n_seeds == pytest.approx(1 / np.mean(1 / used))
    assert found.reliability == pytest.approx(truth(found.n_seeds), abs=0.025)


def test_halves_that_disagree_are_truncated_at_zero_and_say_so():
    table = pd.DataFrame({"cohort": [*"aabbccdd"], "lift": [1, 5.1, 5, 1, 2, 4, 4.5, 1.5]})
    found = split_half_reliability(table, rng=rng())
    assert found.reliability == 0
    assert "truncated" in found.reason


# Halves of questions as well

PARTS = {"cohort": 1.0, "question": 2.0, "cohort_question": 4.0, "seed": 0.5, "seed_question": 6.0}  # variances


def crossed(sizes, n_questions, source, parts=PARTS):
    """(rates (runs, questions), cohorts) with variances `parts`; seed_question holds the rollouts' noise."""
    sd, n, code = {k: np.sqrt(v) for k, v in parts.items()}, len(sizes), np.repeat(np.arange(len(sizes)), sizes)
    by_cohort = sd["cohort"] * source.normal(size=(n, 1)) + sd["cohort_question"] * source.normal(size=(n, n_questions))
    rates = by_cohort[code] + sd["question"] * source.normal(size=n_questions)
    rates = rates + sd["seed"] * source.normal(size=(len(code), 1)) + sd["seed_question"] * source.normal(size=rates.shape)
    return rates, code


def true_reliability(s, q, parts=PARTS):
    """(same questions, new questions)"""
    a, b, d = parts["cohort_question"] / q, parts["seed"] / s, parts["seed_question"] / (s * q)
    total = parts["cohort"] + a + b + d
    return (parts["cohort"] + a) / total, parts["cohort"] / total


@pytest.mark.parametrize(("s", "q"), [(2, 8), (4, 9), (3, 30)])
def test_pairing_halves_of_seeds_and_questions_recovers_both_reliabilities(s, q):
    rates, cohorts = crossed([s] * 1200, q, rng(7))
    same, new = paired_reliability(rates, cohorts, rng=rng(8), n_splits=10)
    expected = true_reliability(s, q)
    assert (same.reliability, new.reliability) == pytest.approx(expected, abs=0.04)
    assert same.reliability - new.reliability > 0.04  # seeds alone would take the luck of questions for the cohorts'
    seeds_alone = split_half_reliability(pd.DataFrame({"cohort": cohorts, "lift": rates.mean(axis=1)}), rng=rng(8), n_splits=10)
    assert same.reliability == pytest.approx(seeds_alone.reliability, abs=0.01)


def test_spearman_brown_on_doubly_split_halves_would_be_wrong():
    s, q = 2, 8
    both = 1 / (1 + 2 * 4 / q + 2 * 0.5 / s + 4 * 6 / (s * q))  # correlation of quarters that share nothing
    expected = true_reliability(s, q)[1]
    assert abs(2 * both / (1 + both) - expected) > 0.05
    assert abs(4 * both / (1 + 3 * both) - expected) > 0.05


def test_its_interval_for_new_questions_covers_about_95_percent():
    source, expected, inside = rng(9), true_reliability(2, 40)[1], 0
    for _ in range(300):
        rates, cohorts = crossed([2] * 19, 40, source)
        new = paired_reliability(rates, cohorts, rng=source, n_splits=12).new_questions
        inside += new.reliability_low <= expected <= new.reliability_high
    assert 0.9 < inside / 300 < 0.985


def test_questions_that_stretch_every_lift_alike_cost_no_correlation_but_are_counted_as_variance():
    source = rng(4)
    lifts, stretch = source.normal(size=(30, 1)), source.gamma(2, size=40)
    rates = np.repeat(lifts * stretch, 2, axis=0) + 0.01 * source.normal(size=(60, 40))
    cohorts = np.repeat(np.arange(30), 2)
    assert paired_reliability(rates, cohorts, rng=source, n_splits=20).new_questions.reliability > 0.999
    parts = variance_components(rates, np.zeros_like(rates), cohorts).set_index("component")["variance"]
    assert parts["cohort_question"] > 0.2 * parts["cohort"]


# Variance components


def test_variance_components_are_unbiased_with_unequal_numbers_of_seeds():
    source, sizes = rng(6), [1, 2, 2, 3, 5]
    found = []
    for _ in range(500):
        rates, cohorts = crossed(sizes, 6, source)
        found.append(variance_components(rates, np.full_like(rates, 1.5), cohorts).set_index("component")["variance"])
    mean, error = pd.DataFrame(found).mean(), pd.DataFrame(found).std() / np.sqrt(500)
    expected = PARTS | {"rollout": 1.5, "seed_question": PARTS["seed_question"] - 1.5}
    for name, value in expected.items():
        assert abs(mean[name] - value) < 3.5 * error[name] + 1e-9, name


def test_variance_components_add_up_to_the_variance_between_cohorts_and_hold_the_reliability_of_seeds():
    rates, cohorts = crossed([4] * 12, 30, rng(3))
    parts = variance_components(rates, np.full_like(rates, 1.5), cohorts).set_index("component")["in_mean"]
    means = rates.mean(axis=1).reshape(12, 4)
    assert parts.sum() == pytest.approx(means.mean(axis=1).var(ddof=1))
    assert (parts["cohort"] + parts["cohort_question"]) / parts.sum() == pytest.approx(seed_reliability(means).reliability)


def counts(after, before, n=4):
    rows = [
        (f"r{i}", f"q{j}", "sampled", n, before[i][j], n, after[i][j]) for i in range(len(after)) for j in range(len(after[0]))
    ]
    return pd.DataFrame(rows, columns=["run_id", "task_id", "variant", "n_before", "c_before", "n_after", "c_after"])


def test_question_rates_by_hand():
    runs = pd.DataFrame({"run_id": ["r1", "r0"]})
    shared = counts([[2, 4], [1, 3]], [[1, 2], [1, 2]])
    rates, noise = question_rates(shared, runs)
    assert rates.tolist() == [[0.0, 0.25], [0.25, 0.5]]  # rows as in `runs`
    assert noise == pytest.approx(np.array([[1 / 16, 1 / 16], [1 / 12, 0]]))  # .25 x .75 / 3, .5 x .5 / 3
    own = counts([[2, 4], [1, 3]], [[1, 2], [2, 2]])
    assert question_rates(own, runs)[1][0] == pytest.approx([1 / 16 + 1 / 12, 1 / 16 + 1 / 12])


def test_rollout_noise_from_counts_is_the_binomial_variance():
    source = rng(2)
    p = source.beta(1, 1, size=(2, 4000))
    table = counts(source.binomial(8, p), np.zeros((2, 4000), dtype=int), n=8)
    noise = question_rates(table, pd.DataFrame({"run_id": ["r0", "r1"]}))[1]
    assert noise.mean() == pytest.approx((p * (1 - p) / 8).mean(), rel=0.03)


def test_one_rollout_a_question_leaves_its_noise_with_seed_question_and_says_so():
    table = counts([[1, 0], [0, 1], [1, 1], [0, 0]], [[0, 1]] * 4, n=1)
    rates, noise = question_rates(table, pd.DataFrame({"run_id": [f"r{i}" for i in range(4)]}))
    parts = variance_components(rates, noise, [*"aabb"]).set_index("component")
    assert np.isnan(parts["variance"]["rollout"])
    assert parts["reason"]["rollout"]
    assert parts["variance"].drop("rollout").notna().all()


def test_a_run_without_a_question_is_an_error():
    with pytest.raises(ValueError, match="every question"):
        question_rates(counts([[1, 1], [1, 1]], [[1, 1], [1, 1]]).iloc[:-1], pd.DataFrame({"run_id": ["r0", "r1"]}))


# Explained share


def known(r, low=None, high=None):
    return SimpleNamespace(reliability=r, reliability_low=low or r, reliability_high=high or r, reason="")


def test_explained_by_hand():
    e = explained(0.6, 19, known(0.64), rank=False)
    assert (e.rho, e.share) == pytest.approx((0.75, 0.5625))
    # with R known the interval is Fisher's, over the ceiling: tanh(atanh .6 -+ 1.96 / 4) / .8
    ends = np.tanh(np.arctanh(0.6) + np.array([-1, 1]) * 1.959964 / 4) / 0.8
    assert (e.low, e.high) == pytest.approx(tuple(ends))
    assert (e.share_low, e.share_high) == pytest.approx(tuple(ends**2))
    assert explained(0.6, 19, known(0.64)).low == pytest.approx(explained(0.6, 19, known(1.0)).low / 0.8)


def test_a_wider_interval_of_the_reliability_widens_that_of_the_share():
    narrow, wide = explained(0.6, 19, known(0.78)), explained(0.6, 19, known(0.78, 0.43, 0.92))
    assert wide.share_low < narrow.share_low
    assert narrow.share_high < wide.share_high


@pytest.mark.parametrize(
    ("rho", "r"), [(0.6, known(0.78, 0.43, 0.92)), (0.2, known(0.3, 0.02, 0.8)), (0.45, known(0.16, 0.01, 0.64))]
)
def test_limits_solve_the_mover_equation(rho, r):
    e, plain = explained(rho, 19, r), explained(rho, 19, known(1.0))
    top, bottom, roof = np.sqrt([r.reliability, r.reliability_low, r.reliability_high])
    side = roof - top if e.low > 0 else top - bottom
    assert (rho - e.low * top) ** 2 == pytest.approx((rho - plain.low) ** 2 + e.low**2 * side**2)
    assert (e.high * top - rho) ** 2 == pytest.approx((plain.high - rho) ** 2 + e.high**2 * (top - bottom) ** 2)
    assert e.low < e.rho < e.high


def test_a_negative_correlation_is_the_mirror_image_and_nothing_is_capped_at_one():
    up, down = explained(0.95, 19, known(0.7, 0.5, 0.9)), explained(-0.95, 19, known(0.7, 0.5, 0.9))
    assert (down.rho, down.low, down.high) == pytest.approx((-up.rho, -up.high, -up.low))
    assert (down.share, down.share_low, down.share_high) == pytest.approx((up.share, up.share_low, up.share_high))
    assert up.rho > 1 and up.share > 1 and up.share_high > 1


def test_a_share_whose_correlation_may_be_zero_starts_at_zero():
    e = explained(0.1, 19, known(0.8, 0.6, 0.9))
    assert e.low < 0
    assert e.share_low == 0
    assert e.share_high == pytest.approx(max(e.high, -e.low) ** 2)


@pytest.mark.parametrize(
    ("rho", "r", "defined"),
    [
        (np.nan, known(0.8), False),
        (0.5, known(0.0), False),
        (1.0, known(0.8), True),
        (0.5, SimpleNamespace(reliability=0.6, reliability_low=0.0, reliability_high=0.9, reason=""), True),
    ],
)
def test_an_explained_share_that_cannot_be_told_has_a_reason(rho, r, defined):
    for rank in (True, False):
        e = explained(rho, 19, r, rank=rank)
        assert np.isfinite(e.share) == defined
        assert np.isnan([e.low, e.high, e.share_low, e.share_high]).all()
        assert e.reason


# Entries, on the reference study


@pytest.fixture(scope="module")
def study():
    return [pd.read_parquet(REFERENCE / f"{name}.parquet") for name in ("lifts", "eval_questions")]


def test_entries_of_the_reference_agree_with_one_another(study):
    lifts, questions = study
    found = {e["name"]: e for e in noise_ceiling_entries(lifts, questions, {"lad": (0.5, 19)}, arm="main", rng=rng())}
    runs = valid(lifts[(lifts["arm"] == "main") & (lifts["variant"] == "sampled") & ~lifts["cohort"].isin(CONTROLS)])
    closed = seed_reliability(runs.pivot(index="cohort", columns="seed", values="lift"))
    reml, split = found["ceiling.main.reml.reliability"], found["ceiling.main.split_half.reliability"]
    assert (reml["value"], reml["ci_low"], reml["ci_high"]) == pytest.approx(closed[2:5], rel=1e-4)
    assert reml["ci_low"] < split["value"] < reml["ci_high"]
    same, new = (found[f"ceiling.main.{name}_questions.reliability"]["value"] for name in ("same", "new"))
    assert same == pytest.approx(split["value"], abs=1e-3)
    assert new < same
    share = found["ceiling.main.reml.lad.explained_share"]
    assert share["value"] == pytest.approx(0.25 / reml["value"])
    assert "approximate" in share["note"]
    assert all(e["value"] is not None or e["reason"] for e in found.values())


def test_greedy_lifts_have_names_of_their_own(study):
    names = [
        e["name"] for v in ("sampled", "greedy") for e in noise_ceiling_entries(*study, {}, arm="main", variant=v, rng=rng())
    ]
    assert len(set(names)) == len(names)
    assert "ceiling.main.greedy.reml.ceiling" in names


def test_controls_and_invalid_runs_do_not_enter(study):
    lifts, questions = study
    one = lifts["run_id"] == lifts["run_id"].iloc[0]
    kept = lifts[~lifts["cohort"].isin(CONTROLS) & ~one]
    marked = lifts.assign(invalid=np.where(one, "diverged", lifts["invalid"]))
    a, b = (noise_ceiling_entries(table, questions, {}, arm="main", rng=rng()) for table in (kept, marked))
    assert a == b
    assert a[0]["n"] == valid(kept[kept["arm"] == "main"])["cohort"].nunique()


@pytest.mark.parametrize("arm", ["size", "absent"])
def test_an_arm_without_a_second_seed_says_so(study, arm):
    found = noise_ceiling_entries(*study, {"lad": (0.5, 19)}, arm=arm, rng=rng())
    assert f"ceiling.{arm}.reml.ceiling" in [e["name"] for e in found]
    assert all(e["value"] is None and "2 valid runs" in e["reason"] for e in found)
