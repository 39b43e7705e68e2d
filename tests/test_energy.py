"""Per-task estimators against hand-worked constants, exact enumeration over all counts, and simulation."""

from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import beta as beta_distribution

from lad_utils import energy

GRID = [0.0, 0.02, 0.1, 1 / 3, 0.5, 0.9, 0.98, 1.0]


def expectation(values, k, p):
    return np.array([comb(k, i) * p**i * (1 - p) ** (k - i) for i in range(k + 1)]) @ values


@pytest.mark.parametrize(("gamma", "expected"), [(0, 2 / 7), (1, 1 / 7)])
def test_four_of_eight_right_gives_the_hand_worked_energies(gamma, expected):  # C08
    assert energy.unbiased_energy(4, 8, gamma) == pytest.approx(expected)


@pytest.mark.parametrize("gamma", [0, 1, 2])
@pytest.mark.parametrize("p", GRID)
def test_energy_is_unbiased_by_exact_enumeration_for_every_k_from_2_to_32(gamma, p):
    for k in range(gamma + 2, 33):
        found = expectation(energy.unbiased_energy(np.arange(k + 1), k, gamma), k, p)
        assert found == pytest.approx(p * (1 - p) ** (1 + gamma), abs=1e-12)


@given(a=st.integers(0, 3), b=st.integers(0, 3), extra=st.integers(0, 10), p=st.sampled_from(GRID))
def test_every_whole_power_is_unbiased(a, b, extra, p):
    k = max(a + b + extra, 1)
    found = expectation(energy.unbiased_power(np.arange(k + 1), k, a, b), k, p)
    assert found == pytest.approx(p**a * (1 - p) ** b, abs=1e-12)


def test_all_right_and_all_wrong_have_no_energy():
    for k in (3, 8, 32):
        assert energy.unbiased_energy([0, k], k).tolist() == [0, 0]
        assert energy.plugin_energy([0, k], k).tolist() == [0, 0]
        assert energy.informative_group_rate([0, k], k, 2).tolist() == [0, 0]


def test_plugin_variance_is_low_by_exactly_k_minus_one_over_k_and_headroom_bends_it():
    assert expectation(energy.plugin_energy(np.arange(9), 8, 0), 8, 0.3) == pytest.approx(0.3 * 0.7 * 7 / 8)
    bent = [expectation(energy.plugin_energy(np.arange(9), 8, 1), 8, p) / (p * (1 - p) ** 2) for p in (0.05, 0.3, 0.7)]
    assert bent == pytest.approx([0.77, 0.81, 1.02], abs=0.005)


def test_single_tasks_may_exceed_the_formulas_maximum_by_known_amounts():
    assert energy.unbiased_energy(np.arange(9), 8, 0).max() == pytest.approx(2 / 7)
    assert energy.unbiased_energy(np.arange(9), 8, 1).max() == pytest.approx(5 / 28)


def test_too_few_rollouts_are_refused_with_the_number_needed():  # C08
    with pytest.raises(ValueError, match="at least 3 are needed"):
        energy.unbiased_energy([0, 1], 2, 1)
    with pytest.raises(ValueError, match="at least 4 are needed"):
        energy.unbiased_power([0, 1], 3, 2, 2)
    with pytest.raises(ValueError, match="unidentifiable"):
        energy.fit_beta_prior([0, 1, 1], 1)
    with pytest.raises(ValueError, match="whole number"):
        energy.unbiased_energy([1], 8, 0.5)


@pytest.mark.parametrize("counts", [([5], 4), ([-1], 4), ([1.5], 4), ([0], 0), ([np.nan], 4)])
def test_impossible_counts_are_refused(counts):
    with pytest.raises(ValueError, match="counts"):
        energy.unbiased_energy(*counts)


@given(c=st.integers(0, 12), a=st.floats(0.3, 5), b=st.floats(0.3, 5), gamma=st.sampled_from([0, 0.5, 1, 1.7]))
def test_empirical_bayes_is_the_posterior_mean_and_its_sd_the_posteriors(c, a, b, gamma):
    posterior, f = beta_distribution(a + c, b + 12 - c), lambda p: p * (1 - p) ** (1 + gamma)
    mean = quad(lambda p: f(p) * posterior.pdf(p), 0, 1)[0]
    second = quad(lambda p: f(p) ** 2 * posterior.pdf(p), 0, 1)[0]
    assert energy.empirical_bayes_energy(c, 12, gamma, prior=(a, b)) == pytest.approx(mean, rel=1e-5)
    assert energy.empirical_bayes_sd(c, 12, gamma, prior=(a, b)) == pytest.approx(np.sqrt(second - mean**2), rel=1e-3)


def test_empirical_bayes_meets_the_unbiased_estimate_at_large_k():
    c, k = np.array([100, 400, 700]), 1000
    bayes = energy.empirical_bayes_energy(c, k, 1.0, prior=(1.0, 1.0))
    assert bayes == pytest.approx(energy.unbiased_energy(c, k, 1), rel=0.02)


def test_beta_prior_recovers_the_pool_that_it_was_drawn_from():
    rng = np.random.default_rng(0)
    c = rng.binomial(8, rng.beta(2, 5, 20_000))
    assert energy.fit_beta_prior(c, 8) == pytest.approx((2, 5), rel=0.05)


@pytest.mark.parametrize("correct", [[0, 0, 0], [4, 4, 4]])
def test_a_pool_of_only_failures_or_only_successes_is_degenerate(correct):
    with pytest.raises(ValueError, match="degenerate"):
        energy.fit_beta_prior(correct, 4)
    assert "degenerate pool" in energy.task_energies(correct, 4, 0.5).note
    assert energy.task_energies(correct, 4, 0.5).value.tolist() == [0, 0, 0]


def test_a_pool_with_no_spread_of_its_own_is_given_the_pooled_rate_aloud():
    correct = np.tile([1, 3], 100)  # of 4: less spread than a binomial at one half
    with pytest.warns(UserWarning, match="no more than one binomial"):
        a, b = energy.fit_beta_prior(correct, 4)
    assert a / (a + b) == pytest.approx(0.5) and a + b == pytest.approx(1e4)
    with pytest.warns(UserWarning):
        found = energy.task_energies(correct, 4, 0.5)
    assert found.value == pytest.approx(0.5 * 0.5**1.5, rel=0.01)
    # Its standard error is that of the pooled rate: |d energy / dp| sqrt(p(1-p)/rollouts).
    assert np.abs(found.shared[0, 0]) == pytest.approx(abs(0.5**1.5 - 1.5 * 0.5 * 0.5**0.5) * np.sqrt(0.25 / 800), rel=0.01)


def test_two_pass_rates_are_no_beta_and_that_is_said():
    rng = np.random.default_rng(1)
    correct = rng.binomial(8, np.repeat([0.08, 0.9], 128))
    assert energy.prior_misfit(correct, 8, prior=energy.fit_beta_prior(correct, 8)) < 1e-6
    with pytest.warns(UserWarning, match="no Beta"):
        energy.task_energies(correct, 8, 0.5)
    drawn = rng.binomial(8, rng.beta(1, 2, 256))
    assert energy.prior_misfit(drawn, 8, prior=energy.fit_beta_prior(drawn, 8)) > 1e-3


def test_standard_errors_match_the_spread_of_repeated_draws():
    rng, p = np.random.default_rng(2), rng_rates()
    for k in (3, 8):  # the sampling variance over a prior, and the jackknife
        drawn = [energy.task_energies(rng.binomial(k, p), k, 1) for _ in range(300)]
        spread = np.var([d.value for d in drawn], axis=0, ddof=1).mean()
        told = np.mean([(d.se**2).mean() for d in drawn])
        assert 0.95 < told / spread < 1.6, k  # never too small on average (Efron and Stein), and at k=8 not far off


def rng_rates():
    return np.random.default_rng(3).beta(1, 1.5, 400)


def test_few_rollouts_mix_with_many_task_by_task():
    found = energy.task_energies([4, 1, 0, 1, *[0, 2, 7, 8] * 5], [8, 2, 2, 3, *[8] * 20], 1)
    assert found.value[[0, 3]] == pytest.approx([1 / 7, 2 / 6])
    assert 0 < found.value[2] < found.value[1] and "unbiased for 22 of 24" in found.note
    assert (found.se[:4] > 0).all() and (found.shared[[0, 3]] == 0).all() and (found.shared[1] != 0).any()


def test_informative_groups_are_those_with_both_rewards():
    # c=2 of k=4, G=2: of 6 pairs 1 is all right and 1 all wrong
    assert energy.informative_group_rate(2, 4, 2) == pytest.approx(1 - 2 / 6)
    for p in GRID:
        rate = expectation(energy.informative_group_rate(np.arange(9), 8, 4), 8, p)
        assert rate == pytest.approx(1 - p**4 - (1 - p) ** 4, abs=1e-12)


def test_the_often_quoted_divergence_bound_is_none():
    assert energy.tilt_divergence([0.9, 0.5], np.array([1, 0.1])) == pytest.approx([0.0347, 4.307], abs=5e-4)
    assert energy.tilt_divergence(0.9, 1) < 0.9 * 0.1 / 2
    assert energy.tilt_divergence([0.0, 1.0], 0.5) == pytest.approx([0, 0])
    assert energy.tilt_divergence(0.3, 50) == pytest.approx(0.3 * 0.7 / (2 * 50**2), rel=0.02)  # to second order in 1/beta


def test_the_tilts_peak_is_where_theory_puts_it():
    p = np.linspace(0, 1, 100_001)
    for tau in (0.5, 2 * np.log(2), 4):
        assert p[np.argmax(energy.exponential_tilt(p, tau))] == pytest.approx(1 / (1 + np.exp(tau / 2)), abs=1e-4)
    assert 1 / (1 + np.exp(np.log(2))) == pytest.approx(1 / 3)


def test_the_posterior_tilt_is_an_integral():
    posterior = beta_distribution(1.5 + 3, 2.5 + 5)
    expected = quad(lambda p: energy.exponential_tilt(p, 2.0) * posterior.pdf(p), 0, 1)[0]
    assert energy.tilt_gain([3, 3], 8, 2.0, prior=(1.5, 2.5)) == pytest.approx([expected] * 2, rel=1e-6)


def test_shapes_of_theory_peak_at_one_half_and_the_score_at_a_third():
    p = np.linspace(0, 1, 3001)
    peaks = {name: p[np.argmax(p**a * (1 - p) ** b)] for name, (a, b) in energy.SHAPES.items()}
    assert peaks == pytest.approx({"variance": 0.5, "lad": 1 / 3, "unscaled_gain": 0.5, "scaled_gain": 0.5}, abs=1e-3)


def test_pass_at_k_of_more_draws_than_rollouts_is_an_error():  # C10
    with pytest.raises(ValueError, match="5 draws asked of k=2"):
        energy.pass_at_k([0], 2, 5)
    assert energy.pass_at_k([0, 1, 4], 4, 2) == pytest.approx([0, 1 - 3 / 6, 1])


def test_a_million_tasks_need_no_more_than_their_distinct_counts():
    rng = np.random.default_rng(4)
    few = rng.binomial(4, rng.beta(1, 2, 1000))
    many = np.tile(few, 1000)
    assert energy.fit_beta_prior(many, 4) == pytest.approx(energy.fit_beta_prior(few, 4), rel=1e-3)
    prior = energy.fit_beta_prior(few, 4)
    tiled = energy.empirical_bayes_energy(many, 4, 0.5, prior=prior)
    assert np.array_equal(tiled[:1000], energy.empirical_bayes_energy(few, 4, 0.5, prior=prior))
