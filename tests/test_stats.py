"""Claims about lad_utils.stats, against hand-worked constants, explicit loops, scipy and statsmodels."""

from itertools import permutations

import numpy as np
import pandas as pd
import pytest
from scipy import stats as scipy_stats

from lad_utils import stats

NAN = float("nan")


def ceiling_from_sd(s_u, s_e, n_seeds):
    """sqrt(R), R = s_u^2 / (s_u^2 + s_e^2 / S)."""
    return np.sqrt(s_u**2 / (s_u**2 + s_e**2 / n_seeds))


def rng(seed=0):
    return np.random.default_rng(seed)


def correlated_cohorts(n=19, noise=1.0, seed=0):
    x = rng(seed).normal(size=n)
    return x, x + noise * rng(seed + 1).normal(size=n)


def loco_by_refitting(x, y, folds):
    """(predictions, training means), one np.polyfit a fold; a fold with constant training x predicts its mean."""
    predictions, means = np.empty(len(x)), np.empty(len(x))
    for fold in np.unique(folds):
        test, train = folds == fold, folds != fold
        means[test] = y[train].mean()
        slope, intercept = (0, y[train].mean()) if np.ptp(x[train]) == 0 else np.polyfit(x[train], y[train], 1)
        predictions[test] = intercept + slope * x[test]
    return predictions, means


# Leave-one-cohort-out and leave-one-family-out


@pytest.mark.parametrize("groups", [None, list("aaabbbccddddeeffggh"), [0] * 9 + [1] * 10])
def test_loco_equals_an_explicit_refit_of_every_fold(groups):
    x, y = correlated_cohorts()
    folds = np.arange(19) if groups is None else np.array(groups)
    predictions, means = loco_by_refitting(x, y, folds)
    result = stats.loco(x, y, groups, n_permutations=9)
    assert result.predictions == pytest.approx(predictions)
    assert result.rho == pytest.approx(scipy_stats.spearmanr(predictions, y).statistic)
    assert result.q2 == pytest.approx(1 - ((y - predictions) ** 2).sum() / ((y - means) ** 2).sum())
    assert result.plain_rho == pytest.approx(scipy_stats.spearmanr(x, y).statistic)
    assert (result.n, result.n_dropped, result.n_folds, result.reason) == (19, 0, len(set(folds)), "")


def test_loco_of_single_cohorts_is_the_leverage_formula():
    x, y = correlated_cohorts()
    design = np.column_stack([np.ones(19), x])
    hat = design @ np.linalg.pinv(design)
    residual = y - hat @ y
    assert stats.loco(x, y, n_permutations=9).predictions == pytest.approx(y - residual / (1 - np.diag(hat)))


def test_loco_by_hand_on_three_cohorts():
    # Lines through the other two: (1,1),(2,3) -> 2x-1 at 0; (0,0),(2,3) -> 1.5x at 1; (0,0),(1,1) -> x at 2.
    result = stats.loco([0, 1, 2], [0, 1, 3], n_permutations=9)
    assert result.predictions == pytest.approx([-1, 1.5, 2])
    assert result.rho == 1
    # Errors 1, -.5, 1; deviations from the mean of the others -2, -.5, 2.5.
    assert result.q2 == pytest.approx(1 - 2.25 / 10.5)


@pytest.mark.parametrize("groups", [None, list("aaabbccddd")])
def test_loco_permutation_p_is_the_whole_loop_rerun_on_each_permuted_y(groups):
    x, y = correlated_cohorts(n=10, noise=1.5, seed=4)
    y[:4] = y[:4].round()  # some ties
    folds = np.arange(10) if groups is None else np.array(groups)
    result = stats.loco(x, y, groups, n_permutations=199, rng=rng(7))
    shuffled = rng(7).permuted(np.tile(y, (199, 1)), axis=1)
    null = [scipy_stats.spearmanr(loco_by_refitting(x, row, folds)[0], row).statistic for row in shuffled]
    assert result.p_value == (1 + sum(rho >= result.rho - 1e-9 for rho in null)) / 200
    assert 0.01 < result.p_value < 0.9


def test_loco_p_is_uniform_under_the_null_and_small_for_a_real_signal():
    draws = rng(3).normal(size=(300, 2, 19))
    p = np.array([stats.loco(x, y, n_permutations=199, rng=rng(i)).p_value for i, (x, y) in enumerate(draws)])
    assert scipy_stats.kstest(p, "uniform").pvalue > 0.01
    assert (p <= 0.05).mean() == pytest.approx(0.05, abs=0.035)
    assert stats.loco(*correlated_cohorts(noise=0.3)).p_value == 1 / 10_000


def test_loco_of_an_uninformative_metric_averages_minus_38_at_19_cohorts():
    """The bias that makes plain_rho the headline: LOCO flatters strong metrics against weak ones."""
    results = [stats.loco(x, y, n_permutations=0) for x, y in rng(1).normal(size=(1000, 2, 19))]
    rho = np.array([result.rho for result in results])
    assert rho.mean() == pytest.approx(-0.38, abs=0.03)
    assert np.quantile(rho, [0.05, 0.95]) == pytest.approx([-0.94, 0.30], abs=0.05)
    assert np.mean([result.plain_rho for result in results]) == pytest.approx(0, abs=0.02)


def test_a_fold_whose_training_x_is_constant_predicts_the_training_mean():
    x, y = [0, 0, 0, 0, 1], [1.0, 2, 3, 4, 9]
    assert stats.loco(x, y, n_permutations=9).predictions[4] == 2.5


def test_cohorts_with_equal_metric_and_lift_get_tied_predictions():
    """Their training folds hold the same numbers in another order, so only rounding could tell the predictions apart."""
    for seed in range(20):
        x, y = (np.append(v, v[:4]) for v in correlated_cohorts(n=9, seed=seed))
        result = stats.loco(x, y, n_permutations=0)
        tied = scipy_stats.spearmanr(loco_by_refitting(x, y, np.arange(13))[0].round(8), y).statistic
        assert result.rho == pytest.approx(tied, abs=1e-12)


def test_a_family_is_not_predicted_from_its_own_members():
    """Within families the metric orders nothing; between them it is reversed once a family is held out."""
    family = np.repeat([0, 1, 2], 4)
    x = family + np.tile([0.0, 0.1, 0.2, 0.3], 3)
    y = np.array([0.0, 5, 0])[family] + np.tile([0.3, 0.2, 0.1, 0.0], 3)
    assert stats.loco(x, y, family, n_permutations=9).q2 < stats.loco(x, y, n_permutations=9).q2


def test_loco_drops_and_counts_missing_cohorts_and_keeps_positions():
    x, y = correlated_cohorts(n=8)
    with_gaps = stats.loco([*x[:3], NAN, *x[3:], 1.0], [*y[:3], 1.0, *y[3:], None], n_permutations=99)
    without = stats.loco(x, y, n_permutations=99)
    assert (with_gaps.n, with_gaps.n_dropped) == (8, 2)
    assert np.isnan(with_gaps.predictions).nonzero()[0].tolist() == [3, 9]
    assert with_gaps.predictions[~np.isnan(with_gaps.predictions)] == pytest.approx(without.predictions)
    assert (with_gaps.rho, with_gaps.p_value) == (without.rho, without.p_value)


@pytest.mark.parametrize(
    ("x", "y", "groups", "reason"),
    [
        ([1, 2], [1, 2], None, "n = 2 < 3"),
        ([], [], None, "n = 0 < 3"),
        ([1, 1, 1, 1], [1, 2, 3, 4], None, "x constant"),
        ([1, 2, 3, 4], [5, 5, 5, 5], None, "y constant"),
        ([1, 1, 1, 2], [1, 2, 3, NAN], None, "x constant"),
        ([0.1 + 0.2, 0.3, 0.3, 0.3], [1, 2, 3, 4], None, "x constant"),  # equal but for rounding
        ([1, 2, 3, 4], [1, 2, 3, 5], list("aaaa"), "one group only"),
    ],
)
def test_an_undefined_loco_is_nan_with_a_reason(x, y, groups, reason):
    result = stats.loco(x, y, groups)
    assert np.isnan([result.rho, result.q2, result.p_value]).all()
    assert result.reason.startswith(reason)


def test_loco_is_reproducible_and_says_when_no_p_was_asked_for():
    x, y = correlated_cohorts(noise=3)
    assert stats.loco(x, y, n_permutations=99).p_value == stats.loco(x, y, n_permutations=99).p_value
    bare = stats.loco(x, y, n_permutations=0)
    assert np.isnan(bare.p_value) and "no permutations" in bare.reason and np.isfinite(bare.rho)


def test_loco_rejects_unequal_lengths_and_unlabelled_cohorts():
    with pytest.raises(ValueError, match="equal length"):
        stats.loco([1, 2, 3], [1, 2])
    with pytest.raises(ValueError, match="no group label"):
        stats.loco([1, 2, 3], [1, 2, 4], ["a", "b", None])
    with pytest.raises(IndexError):
        stats.loco([1, 2, 3], [1, 2, 4], ["a", "b"])


def test_pandas_columns_with_any_index_are_read_by_position():
    x, y = correlated_cohorts(n=6)
    frame = pd.DataFrame({"x": x, "y": y, "family": list("aabbcc")}, index=[5, 3, 1, 0, 2, 4])
    from_frame = stats.loco(frame["x"], frame["y"], frame["family"], n_permutations=9)
    assert from_frame.rho == stats.loco(x, y, list("aabbcc"), n_permutations=9).rho


# Spearman, its interval and its p-value


def test_c01_spearman_with_ties_is_not_the_d_squared_shortcut():
    assert stats.spearman_ci([1, 2, 2, 4], [1, 2, 3, 4]).rho == pytest.approx(0.94868, abs=5e-6)
    constant = stats.spearman_ci([1, 1, 1, 1], [1, 2, 3, 4])
    assert np.isnan(constant.rho) and np.isnan(constant.p_value) and constant.reason == "x constant"


def test_c04_p_with_ties_is_exact():
    result = stats.spearman_ci([10, 10, 20, 30, 30], [1, 2, 3, 4, 5])
    assert result.rho == pytest.approx(0.94868, abs=5e-6)
    assert result.p_value == pytest.approx(8 / 120)
    assert result.p_method == "exact permutation"
    assert scipy_stats.spearmanr([10, 10, 20, 30, 30], range(5)).pvalue == pytest.approx(0.0138, abs=5e-5)  # what it is not


def with_squared_rank_distance(total, n=19):
    """A permutation of 0..n-1 whose sum d^2 is `total` (even), by seeded swaps that approach it."""
    y, x, generator = np.arange(n), np.arange(n), rng(0)
    while (distance := ((x - y) ** 2).sum()) != total:
        i, j = generator.integers(0, n, 2)
        swapped = y.copy()
        swapped[[i, j]] = swapped[[j, i]]
        if abs(((x - swapped) ** 2).sum() - total) <= abs(distance - total) + 4:
            y = swapped
    return x, y


def test_c06_rho_45_at_19_cohorts_is_not_significant():
    # rho = 1 - sum d^2 / 1140: .45 lies between 626 and 628, the 5% threshold .456 between 620 (.4561) and 622 (.4544).
    p = {total: stats.spearman_ci(*with_squared_rank_distance(total)).p_value for total in (618, 622, 626, 628)}
    assert p[626] < 0.0535 and p[628] > 0.053 and p[626] == pytest.approx(p[628], abs=0.0012)
    assert p[618] < 0.05 < p[622]


def test_bonett_wright_intervals_at_19_cohorts():
    assert np.round(stats.bonett_wright_interval(0.89, 19)[:2], 2).tolist() == [0.69, 0.96]
    assert np.round(stats.bonett_wright_interval(0.45, 19)[:2], 2).tolist() == [-0.03, 0.76]
    narrow, wide = (stats.bonett_wright_interval(0.45, 19, level=level) for level in (0.8, 0.99))
    assert wide[0] < narrow[0] < 0.45 < narrow[1] < wide[1]


def test_spearman_agrees_with_scipy_with_and_without_ties():
    for seed, n in [(0, 12), (1, 19), (2, 40)]:
        x, y = correlated_cohorts(n=n, seed=seed)
        for a, b in [(x, y), (x.round(1), y.round(1))]:
            ours, theirs = stats.spearman_ci(a, b), scipy_stats.spearmanr(a, b)
            assert (ours.rho, ours.p_value) == pytest.approx((theirs.statistic, theirs.pvalue))
            assert ours.p_method == "t approximation"


@pytest.mark.parametrize("decimals", [0, 5])
@pytest.mark.parametrize("n", [3, 4, 6])
def test_exact_p_equals_full_enumeration(n, decimals):
    for seed in range(2):
        x, y = (v.round(decimals) for v in correlated_cohorts(n=n, seed=10 * seed))
        result = stats.spearman_ci(x, y)
        if result.reason.endswith("constant"):
            continue
        null = np.abs([scipy_stats.spearmanr(x, p).statistic for p in permutations(y)])
        assert result.p_value == pytest.approx((null >= abs(result.rho) - 1e-9).mean())


def test_exact_p_at_19_cohorts_when_most_of_a_metric_is_tied():
    """One cohort of 19 with duplicates, which also has the lowest lift: 1/19, or 2/19 with the mirror image."""
    result = stats.spearman_ci([0.5] + [1.0] * 18, np.arange(19))
    assert result.p_value == pytest.approx(2 / 19)
    assert result.p_method == "exact permutation"


def test_a_perfect_rho_has_no_interval_and_never_p_zero():
    perfect = stats.spearman_ci(np.arange(19), np.arange(19))
    assert perfect.rho == 1 and np.isnan([perfect.low, perfect.high]).all() and "|rho| < 1" in perfect.reason
    assert perfect.p_value > 0
    assert stats.spearman_ci([1, 2, 3, 4], [1, 2, 3, 4]).p_value == pytest.approx(2 / 24)


def test_spearman_counts_missing_pairs_and_names_what_became_constant():
    result = stats.spearman_ci([1, 2, NAN, 4, 5], [2, 1, 3, None, 9])
    assert (result.n, result.n_dropped, result.rho) == (3, 2, 0.5)
    assert "n < 4" in result.reason
    assert stats.spearman_ci([1, 1, 1, 7], [1, 2, 3, NAN]).reason == "x constant"


# Bootstrap


def test_bca_equals_scipys_on_the_same_resamples():
    x, y = correlated_cohorts()
    ours = stats.bca_bootstrap_spearman(x, y, n_resamples=4000, rng=rng())

    def spearman(a, b, axis):
        a, b = (scipy_stats.rankdata(v, axis=axis) for v in (a, b))
        a, b = (v - v.mean(axis=axis, keepdims=True) for v in (a, b))
        return (a * b).sum(axis=axis) / np.sqrt((a**2).sum(axis=axis) * (b**2).sum(axis=axis))

    theirs = scipy_stats.bootstrap((x, y), spearman, paired=True, n_resamples=4000, rng=rng(0)).confidence_interval
    assert (ours.low, ours.high) == pytest.approx(tuple(theirs), abs=1e-9)
    assert (ours.n_undefined, ours.n_resamples, ours.reason) == (0, 4000, "")
    assert ours.low < ours.rho < ours.high


def test_c07_a_constant_input_has_no_bootstrap_interval():
    result = stats.bca_bootstrap_spearman([7.0] * 35, np.arange(35), rng=rng())
    assert np.isnan([result.rho, result.low, result.high]).all() and result.reason == "x constant"


def test_c07_four_of_the_256_resamples_of_four_pairs_have_no_rho():
    result = stats.bca_bootstrap_spearman([1, 2, 3, 4], [1, 3, 2, 4], rng=rng())
    assert (result.n_undefined, result.n_resamples) == (4, 256)
    sampled = stats.bca_bootstrap_spearman([1, 2, 3, 4], [1, 3, 2, 4], n_resamples=255, rng=rng())
    assert sampled.n_resamples == 255 and sampled.n_undefined > 0


def test_undefined_resamples_are_left_out_not_read_as_zero():
    result = stats.bca_bootstrap_spearman([1, 1, 1, 1, 1, 2], [1, 2, 3, 4, 5, 6], rng=rng())
    assert result.n_undefined > 0.3 * result.n_resamples  # (5/6)^6 never draw the one different cohort
    assert result.percentile_low > 0
    assert np.isnan(result.low) and "no acceleration" in result.reason


def test_bca_of_a_perfect_rho_is_undefined_and_its_percentile_interval_degenerate():
    result = stats.bca_bootstrap_spearman(np.arange(35), np.arange(35), rng=rng())
    assert np.isnan([result.low, result.high]).all() and "|rho| = 1" in result.reason
    assert (result.percentile_low, result.percentile_high) == (1, 1)


def test_bootstrap_depends_on_its_generator_only():
    x, y = correlated_cohorts()
    first, second, other = (stats.bca_bootstrap_spearman(x, y, n_resamples=300, rng=rng(s)) for s in (1, 1, 2))
    assert first == second != other


# Comparing metrics


@pytest.mark.parametrize(("r_between", "p"), [(0, 0.014), (0.28, 0.009), (0.5, 0.0025)])
def test_williams_of_89_against_45_at_19_cohorts(r_between, p):
    assert stats.williams_test(0.89, 0.45, r_between, 19).p_value == pytest.approx(p, rel=0.05)


def test_williams_is_antisymmetric_and_needs_close_metrics_for_89_against_84():
    assert stats.williams_test(0.45, 0.89, 0.28, 19).t == -stats.williams_test(0.89, 0.45, 0.28, 19).t
    assert stats.williams_test(0.89, 0.84, 0.75, 19).p_value > 0.05
    assert stats.williams_test(0.89, 0.84, 0.99, 19).p_value < 0.05


def test_williams_holds_its_level_under_the_null():
    """Two metrics with the same true correlation .6 to lift and .5 to one another."""
    root = np.linalg.cholesky([[1, 0.6, 0.6], [0.6, 1, 0.5], [0.6, 0.5, 1]])
    r = [np.corrcoef(root @ z) for z in rng(5).normal(size=(1000, 3, 19))]
    p = np.array([stats.williams_test(c[0, 1], c[0, 2], c[1, 2], 19).p_value for c in r])
    assert (p < 0.05).mean() == pytest.approx(0.05, abs=0.02)


@pytest.mark.parametrize(
    ("r", "n", "reason"),
    [
        ((0.9, 0.5, 0.3), 3, "n < 4"),
        ((NAN, 0.5, 0.3), 19, "undefined"),
        ((0.9, -0.9, 0.9), 19, "no three variables"),
        ((0.5, 0.5, 1), 19, "the same up to scale"),
    ],
)
def test_an_undefined_williams_test_is_nan_with_a_reason(r, n, reason):
    result = stats.williams_test(*r, n)
    assert np.isnan(result.p_value) and reason in result.reason


def test_holm_by_hand_and_against_statsmodels():
    from statsmodels.stats.multitest import multipletests

    # Sorted .005, .01, .03, .04 times 4, 3, 2, 1 is .02, .03, .06, .04; never below the one before, so the last is .06.
    assert stats.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    p = rng().uniform(size=20) ** 3
    assert stats.holm(p) == pytest.approx(multipletests(p, method="holm")[1])


def test_an_undefined_comparison_does_not_cheapen_the_others():
    assert stats.holm([0.01, NAN])[0] == 0.02 and np.isnan(stats.holm([0.01, NAN])[1])
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        stats.holm([0.5, 1.5])


# Noise ceilings


def simulated_lifts(generator, n=19, n_seeds=2, s_u=2.0, s_e=1.5):
    return s_u * generator.normal(size=(n, 1)) + s_e * generator.normal(size=(n, n_seeds))


def test_ceiling_of_2_points_between_and_1_5_within_at_two_seeds_is_88():
    assert ceiling_from_sd(2, 1.5, 2) == pytest.approx(np.sqrt(4 / 5.125))
    assert round(ceiling_from_sd(2, 1.5, 2), 2) == 0.88


def test_reliability_by_hand():
    # Cohort means 1, 4, 7: MSB = 2 * 9 = 18; every pair differs by 2: MSE = 2; s_u^2 = 8, s_e^2 = 2, R = 8/9.
    result = stats.seed_reliability([[0, 2], [3, 5], [6, 8]])
    assert (result.s_u, result.s_e) == pytest.approx((np.sqrt(8), np.sqrt(2)))
    assert (result.reliability, result.ceiling) == pytest.approx((8 / 9, np.sqrt(8 / 9)))
    assert result.ceiling == pytest.approx(ceiling_from_sd(result.s_u, result.s_e, 2))
    # F(2, 3) quantiles from tables: 16.044 at 97.5%, and 1/39.165 at 2.5%.
    assert result.reliability_low == 0 and result.reliability_high == pytest.approx(1 - 1 / 39.165 / 9, abs=1e-4)


@pytest.mark.filterwarnings("ignore")
def test_reliability_equals_reml_on_a_balanced_layout():
    from statsmodels.regression.mixed_linear_model import MixedLM

    lifts = simulated_lifts(rng(2), n=12, n_seeds=3)
    cohort = np.repeat(np.arange(12), 3)
    fit = MixedLM(lifts.ravel(), np.ones(36), groups=cohort).fit(reml=True)
    s_u2, s_e2 = float(np.squeeze(fit.cov_re)), fit.scale
    result = stats.seed_reliability(lifts)
    assert (result.s_u**2, result.s_e**2) == pytest.approx((s_u2, s_e2), rel=1e-3)
    assert result.reliability == pytest.approx(s_u2 / (s_u2 + s_e2 / 3), rel=1e-3)


@pytest.mark.parametrize(("n_seeds", "s_e"), [(2, 1.5), (2, 4.0), (4, 2.0)])
def test_reliability_interval_covers_95_percent(n_seeds, s_e):
    truth, generator = ceiling_from_sd(2, s_e, n_seeds), rng(11)
    results = [stats.seed_reliability(simulated_lifts(generator, n_seeds=n_seeds, s_e=s_e)) for _ in range(600)]
    covered = np.mean([r.ceiling_low <= truth <= r.ceiling_high for r in results])
    assert covered == pytest.approx(0.95, abs=0.027)  # three binomial standard errors
    assert all(r.ceiling_low <= r.ceiling <= r.ceiling_high for r in results)


def test_cohorts_that_differ_less_than_their_seeds_have_reliability_zero_and_a_reason():
    result = stats.seed_reliability([[0, 4], [4, 0], [1, 3]])
    assert (result.s_u, result.reliability, result.ceiling) == (0, 0, 0) and "truncated at 0" in result.reason


@pytest.mark.parametrize(
    ("lifts", "reason"),
    [
        ([[1], [2], [3]], "fewer than 2 seeds"),
        ([[1, 2], [2, 3], [3, NAN]], "fewer than 3 complete cohorts"),
        ([[2, 2], [2, 2], [2, 2]], "all lifts are equal"),
    ],
)
def test_an_undefined_reliability_is_nan_with_a_reason(lifts, reason):
    result = stats.seed_reliability(lifts)
    assert np.isnan(result[:8]).all() and result.reason == reason


def test_identical_seeds_are_flagged_and_incomplete_cohorts_counted():
    same = stats.seed_reliability([[0.1, 0.1, 0.1], [0.7, 0.7, 0.7], [0.3, 0.3, 0.3]])
    assert same.ceiling == 1 and np.isnan(same.ceiling_low) and "never differ" in same.reason
    partial = stats.seed_reliability([[0, 2], [3, 5], [NAN, 1], [6, 8]])
    assert (partial.n, partial.n_dropped, partial.n_seeds) == (3, 1, 2)
    with pytest.raises(ValueError):
        stats.seed_reliability([1.0, 2.0, 3.0])


# Paired questions


def test_paired_difference_is_scipys_one_sample_t_interval():
    a, b = correlated_cohorts(n=30)
    result, theirs = stats.paired_difference_ci(a, b, level=0.9), scipy_stats.ttest_rel(a, b).confidence_interval(0.9)
    assert (result.low, result.high) == pytest.approx((theirs.low, theirs.high))
    assert result.mean == pytest.approx((a - b).mean())


def test_pairing_by_question_beats_two_separate_samples():
    difficulty = rng().normal(size=100)
    a, b = (difficulty + 0.1 * rng(s).normal(size=100) for s in (1, 2))
    assert stats.paired_difference_ci(a, b).se < 0.2 * np.sqrt((a.var() + b.var()) / 100)


def test_paired_difference_without_an_interval_says_why():
    assert stats.paired_difference_ci([1, 2], [0, 0]).reason == "n = 2 < 3"
    same = stats.paired_difference_ci([0.1, 0.2, 0.3], [0.0, 0.1, 0.2])
    assert same.mean == pytest.approx(0.1) and np.isnan(same.low) and "equal" in same.reason


def test_lift_by_hand_with_an_unsampled_question():
    # Rates 0, .5, 1 -> .5, .5, 1: differences .5, 0, 0; mean 1/6, SD sqrt(1/12), se 1/6; t(.975, 2) = 4.3027.
    result = stats.lift_ci([0, 2, 4, 0], [4, 4, 4, 0], [1, 1, 2, 2], 2)
    assert (result.lift, result.se) == pytest.approx((1 / 6, 1 / 6))
    assert result.high == pytest.approx(1 / 6 + 4.3027 / 6, abs=1e-5)
    assert (result.before, result.after) == pytest.approx((0.5, 2 / 3))
    assert (result.n, result.n_dropped, result.reason) == (3, 1, "")


def test_lift_weighs_questions_equally_whatever_their_sample_sizes():
    result = stats.lift_ci([0, 0, 0], [8, 8, 8], [8, 1, 0], [8, 2, 800])
    assert result.lift == pytest.approx(0.5)


def test_lift_refuses_impossible_counts_and_explains_an_unchanged_model():
    with pytest.raises(ValueError, match="correct <= sampled"):
        stats.lift_ci([5, 1, 1], 4, [1, 1, 1], 4)
    unchanged = stats.lift_ci([1, 2, 3], 4, [1, 2, 3], 4)
    assert unchanged.lift == 0 and np.isnan(unchanged.low) and "equal" in unchanged.reason


def test_lift_interval_covers_95_percent_over_questions_and_rollouts():
    generator, covered = rng(8), []
    for _ in range(500):
        p = generator.beta(1, 2, size=100)  # after = p + (1 - p) / 10, so the true lift is (1 - 1/3) / 10
        counts = generator.binomial(8, p), 8, generator.binomial(8, p + (1 - p) / 10), 8
        result = stats.lift_ci(*counts)
        covered.append(result.low <= 1 / 15 <= result.high)
    assert np.mean(covered) == pytest.approx(0.95, abs=0.03)


def test_fit_line_by_hand_and_its_undefined_case():
    # x deviations -1, 0, 1; y 0, 1, 5: slope 5/2, intercept 2 - 2.5.
    assert stats.fit_line([0, 1, 2, NAN], [0, 1, 5, 9])[:4] == pytest.approx((2.5, -0.5, 3, 1))
    assert stats.fit_line([0, 1, 2], [4, 4, 4])[:2] == (0, 4)
    vertical = stats.fit_line([3, 3, 3], [0, 1, 2])
    assert np.isnan(vertical.slope) and vertical.reason == "x is constant"
