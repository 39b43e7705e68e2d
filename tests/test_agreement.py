"""Agreement beyond rank correlation: hand-worked values, known truth, and what LOCO does to useless metrics."""

import numpy as np
import pytest
from scipy import stats

from lad_utils.agreement import agreement, family_swap_test, held_out_error, loco_null, partial_spearman_ci
from lad_utils.stats import loco


def test_agreement_of_a_small_table_worked_by_hand():
    # pairs (1,2) (1,3) (1,4) (2,3) (2,4) (3,4): five of six in order
    a = agreement([1, 2, 4, 3], [10, 20, 30, 40])
    assert a.kendall == pytest.approx(4 / 6) and a.pairwise == pytest.approx(5 / 6)
    assert a.top_3 == 1.0 and a.pearson == pytest.approx(np.corrcoef([1, 2, 4, 3], [10, 20, 30, 40])[0, 1])


def test_top_3_counts_ties_by_their_chance():
    # 9 and 8 are picked for sure, one of the two 7s by a coin; the best lifts are those of items 0, 1, 2
    assert agreement([9, 8, 7, 7, 1], [5, 4, 3, 2, 1]).top_3 == pytest.approx((1 + 1 + 0.5) / 3)


def test_a_tie_of_the_metric_counts_half_a_pair_and_a_tie_of_lifts_none():
    assert agreement([1, 1, 2], [1, 2, 3]).pairwise == pytest.approx(2.5 / 3)
    assert agreement([1, 2, 3], [1, 1, 2]).pairwise == pytest.approx(1.0)


@pytest.mark.parametrize(("x", "y", "told"), [([1, 2], [1, 2], "n = 2 < 3"), ([1, 1, 1], [1, 2, 3], "x constant")])
def test_undefined_agreement_says_why(x, y, told):
    a = agreement(x, y)
    assert np.isnan([a.kendall, a.pearson, a.top_3, a.pairwise]).all() and a.reason == told


def test_held_out_errors_worked_by_hand():
    e = held_out_error([1.0, 2.0, 3.0], [1.0, 3.0, 5.0])
    assert e.rmse == pytest.approx(np.sqrt(5 / 3)) and e.mae == pytest.approx(1.0) and e.calibration_slope == pytest.approx(2.0)
    assert e.baseline_rmse == pytest.approx(np.sqrt((3**2 + 0 + 3**2) / 3))  # the others' means are 4, 3, 2


def test_held_out_baseline_leaves_whole_groups_out():
    e = held_out_error([0.0, 0, 1, 1], [0.0, 2, 4, 6], ["a", "a", "b", "b"])
    assert e.baseline_rmse == pytest.approx(np.sqrt(np.mean([25, 9, 9, 25])))


def test_constant_predictions_have_errors_but_no_slope():
    e = held_out_error([1.0, 1.0, 1.0], [1.0, 2.0, 3.0])
    assert np.isfinite([e.rmse, e.mae]).all() and np.isnan(e.calibration_slope) and "constant" in e.reason


def test_partial_spearman_given_one_column_is_the_textbook_formula():
    rng = np.random.default_rng(3)
    x, y, z = rng.standard_normal((3, 20))
    y = y + x + z
    r = np.corrcoef([stats.rankdata(v) for v in (x, y, z)])
    expected = (r[0, 1] - r[0, 2] * r[1, 2]) / np.sqrt((1 - r[0, 2] ** 2) * (1 - r[1, 2] ** 2))
    p = partial_spearman_ci(x, y, z[:, None])
    assert p.rho == pytest.approx(expected) and p.low < p.rho < p.high and p.n_given == 1


def test_partial_spearman_counts_only_covariates_that_say_something_new():
    rng = np.random.default_rng(4)
    x, y, z = rng.standard_normal((3, 20))
    once = partial_spearman_ci(x, y, z[:, None])
    assert partial_spearman_ci(x, y, np.column_stack([z, 2 * z, np.ones(20)]))[:5] == pytest.approx(once[:5])


def test_partial_spearman_interval_covers_zero_for_a_metric_that_only_repeats_the_covariates():
    rng = np.random.default_rng(5)
    hits = 0
    for _ in range(300):
        z = rng.standard_normal((19, 3))
        x, y = (z @ rng.random(3) + rng.standard_normal(19) for _ in range(2))
        p = partial_spearman_ci(x, y, z)
        hits += p.low <= 0 <= p.high
    assert hits / 300 > 0.91


def test_partial_spearman_without_freedom_or_spread_says_why():
    rng = np.random.default_rng(6)
    x, y = rng.standard_normal((2, 8))
    assert "fewer than 5 degrees" in partial_spearman_ci(x, y, rng.standard_normal((8, 4))).reason
    assert "just as" in partial_spearman_ci(x, rng.standard_normal(8), x[:, None]).reason


def test_swapping_families_has_the_exact_p_of_its_enumeration():
    # two families: of the four swaps two give |difference| as large as observed
    y = np.arange(6)
    test = family_swap_test(y, -y, y, [*"aaabbb"], rng=np.random.default_rng(0))
    assert test.difference == pytest.approx(2.0) and test.n_swaps == 4 and test.p_value == pytest.approx(0.5)


def test_swap_test_holds_its_level_under_family_effects_and_finds_a_better_metric():
    rng = np.random.default_rng(7)
    families, null, power = np.repeat(np.arange(9), 2), [], []
    for _ in range(300):
        y = rng.standard_normal(18)
        shared = rng.standard_normal((2, 9))[:, families]  # each metric errs by family
        a, b = (y + s + 0.3 * rng.standard_normal(18) for s in shared)
        null.append(family_swap_test(a, b, y, families, rng=rng).p_value)
        power.append(family_swap_test(y + 0.1 * rng.standard_normal(18), shared[0], y, families, rng=rng).p_value)
    assert np.mean(np.array(null) <= 0.05) < 0.085 and np.mean(np.array(power) <= 0.05) > 0.7


def test_one_family_cannot_be_tested_and_says_so():
    test = family_swap_test([1, 2, 3], [3, 1, 2], [1, 2, 3], [*"aaa"], rng=np.random.default_rng(0))
    assert np.isnan(test.p_value) and "one family" in test.reason


def test_many_families_are_sampled_and_never_give_p_zero():
    rng = np.random.default_rng(8)
    y = np.arange(20.0)
    test = family_swap_test(y, rng.standard_normal(20), y, np.arange(20), n_swaps=199, rng=rng)
    assert test.n_swaps == 199 and test.p_value >= 1 / 200


def test_loco_is_biased_for_a_useless_metric_as_published():
    # at n = 19 its mean is about -.38, and true r = .3 gives plain .28, LOCO about -.06
    useless, weak = loco_null([0.0, 0.3], n=19, n_simulated=1500, rng=np.random.default_rng(9))
    assert np.nanmean(useless.held_out) == pytest.approx(-0.38, abs=0.03) and np.nanmean(useless.plain) == pytest.approx(
        0, abs=0.02
    )
    assert np.nanmean(weak.held_out) == pytest.approx(-0.06, abs=0.04) and np.nanmean(weak.plain) == pytest.approx(
        0.28, abs=0.02
    )


def test_loco_null_uses_the_folds_it_is_given():
    groups = [*"aaabbbcccdddeee"]
    found = loco_null([0.5], n=15, groups=groups, n_simulated=5, rng=np.random.default_rng(1))[0]
    rng = np.random.default_rng(1)
    x, noise = rng.standard_normal((2, 5, 15))
    y = 0.5 * x + np.sqrt(0.75) * noise
    assert found.held_out[0] == pytest.approx(loco(x[0], y[0], groups, n_permutations=0).rho)
