"""The formula's parts against hand-worked constants, exact enumeration and properties."""

from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lad_utils import score


@pytest.mark.parametrize(("gamma", "expected"), [(0, 2 / 7), (1, 1 / 7)])
def test_four_of_eight_right_gives_the_hand_worked_energies(gamma, expected):  # C08
    assert score.unbiased_energy(4, 8, gamma) == pytest.approx(expected)


@pytest.mark.parametrize("gamma", [0, 1, 2])
@pytest.mark.parametrize("k", [4, 5, 8, 16, 32])
@pytest.mark.parametrize("p", [0.0, 0.02, 0.1, 1 / 3, 0.5, 0.9, 1.0])
def test_energy_is_unbiased_by_exact_enumeration(gamma, k, p):
    c = np.arange(k + 1)
    weights = np.array([comb(k, i) * p**i * (1 - p) ** (k - i) for i in c])
    assert weights @ score.unbiased_energy(c, k, gamma) == pytest.approx(p * (1 - p) ** (1 + gamma), abs=1e-12)


def test_plugin_variance_is_low_by_exactly_k_minus_one_over_k():
    c, k, p = np.arange(9), 8, 0.3
    weights = np.array([comb(k, i) * p**i * (1 - p) ** (k - i) for i in c])
    assert weights @ score.plugin_energy(c, k, 0) == pytest.approx(p * (1 - p) * 7 / 8)


def test_too_few_rollouts_are_refused_with_the_number_needed():  # C08
    with pytest.raises(ValueError, match="at least 3 are needed"):
        score.unbiased_energy([0, 1], 2, 1)
    with pytest.raises(ValueError, match="unidentifiable"):
        score.fit_beta_prior([0, 1, 1], 1)


@pytest.mark.parametrize("counts", [([5], 4), ([-1], 4), ([1.5], 4)])
def test_impossible_counts_are_refused(counts):
    with pytest.raises(ValueError, match="counts"):
        score.unbiased_energy(*counts)


def test_empirical_bayes_meets_the_unbiased_estimate_at_large_k():
    c, k = np.array([100, 400, 700]), 1000
    bayes = score.empirical_bayes_energy(c, k, 1.0, prior=(1.0, 1.0))
    assert bayes == pytest.approx(score.unbiased_energy(c, k, 1), rel=0.02)


def test_beta_prior_recovers_the_pool_that_it_was_drawn_from():
    rng = np.random.default_rng(0)
    c = rng.binomial(8, rng.beta(2, 5, 20_000))
    assert score.fit_beta_prior(c, 8) == pytest.approx((2, 5), rel=0.05)


@pytest.mark.parametrize("correct", [[0, 0, 0], [4, 4, 4]])
def test_a_pool_of_only_failures_or_only_successes_is_degenerate(correct):
    with pytest.raises(ValueError, match="degenerate"):
        score.fit_beta_prior(correct, 4)


def test_pass_at_k_of_more_draws_than_rollouts_is_an_error():  # C10
    with pytest.raises(ValueError, match="5 draws asked of k=2"):
        score.pass_at_k([0], 2, 5)
    assert score.pass_at_k([0, 1, 4], 4, 2) == pytest.approx([0, 1 - 3 / 6, 1])


@given(m=st.integers(1, 12), d=st.integers(1, 10), q=st.sampled_from([0.5, 1, 2, np.inf]))
def test_vendi_of_m_copies_of_d_orthogonal_items_is_d(m, d, q):  # B02, B03
    assert score.vendi(np.tile(np.eye(12)[:d], (m, 1)), q) == pytest.approx(d)


def test_vendi_counts_256_copies_of_one_long_vector_as_one():  # B03
    assert score.vendi(np.tile(np.random.default_rng(0).normal(size=384), (256, 1))) == pytest.approx(1.0)


def test_vendi_ignores_scale_and_sign_of_a_direction():  # B07
    assert score.vendi([[10, 0], [0, 10]]) == pytest.approx(2)
    assert score.vendi([[1, 0], [-1, 0]]) == pytest.approx(1)
    assert score.vendi([[3, 4]]) == pytest.approx(1)


def test_zero_or_nan_embeddings_are_rejected_by_row():  # B04
    with pytest.raises(ValueError, match="row 2"):
        score.vendi([[1, 0], [0, 1], [0, 0]])
    with pytest.raises(ValueError, match="row 1"):
        score.vendi([[1, 0], [np.nan, 1]])


def test_resampling_with_replacement_lowers_vendi():  # B06
    assert score.vendi(np.eye(4)[[0, 0, 1, 2]]) == pytest.approx(2.8284, abs=1e-4)


def test_both_sides_of_the_vendi_duality_agree():
    x = np.random.default_rng(1).normal(size=(40, 30))
    kernel = score.normalise_rows(x)
    eigenvalues = np.linalg.eigvalsh(kernel @ kernel.T / 40)
    eigenvalues = eigenvalues[eigenvalues > 1e-12]
    assert score.vendi(x) == pytest.approx(np.exp(-np.sum(eigenvalues * np.log(eigenvalues))))


def test_lad_of_two_orthogonal_tasks_is_their_mean_energy():
    assert score.lad([4, 4], 8, np.eye(2)) == pytest.approx(1 / 7)
    assert score.lad([4, 4], 8, [[1, 0], [1, 0]]) == pytest.approx(1 / 14)
    assert score.lad([4, 4], 8, [[1, 0], [1, 0]], beta=0) == pytest.approx(1 / 7)


def test_copied_prompts_scale_lad_by_their_share():  # G08
    once, often = np.eye(3), np.tile(np.eye(3), (100, 1))
    assert score.vendi(often) == pytest.approx(3)
    assert score.lad(np.full(300, 4), 8, often) == pytest.approx(score.lad([4, 4, 4], 8, once) / 100)


def test_a_cohort_mean_stays_under_the_formulas_maximum():
    c = np.random.default_rng(2).binomial(32, 1 / 3, 4000)
    assert score.unbiased_energy(c, 32, 1).mean() == pytest.approx(4 / 27, abs=0.002)


def test_the_interval_of_a_pass_rate_is_the_textbook_one():
    c, k = np.array([3, 5, 8]), 8
    value, low, high = score.mean_interval(lambda c, k: c / k, c, k)
    p = c / k
    half = 1.959964 * np.sqrt(np.sum(p * (1 - p) / (k - 1))) / 3
    assert (value, low, high) == pytest.approx((p.mean(), p.mean() - half, p.mean() + half), abs=1e-6)


def test_copies_of_a_task_do_not_narrow_its_interval():
    one = score.lad_interval([3, 5], 8, np.eye(2), task_ids=["a", "b"])
    four = score.lad_interval([3, 5, 3, 5], 8, np.tile(np.eye(2), (2, 1)), task_ids=["a", "b", "a", "b"])
    assert np.array(four) * 2 == pytest.approx(one)


def test_copies_with_different_counts_are_refused():
    with pytest.raises(ValueError, match="copies must share rollouts"):
        score.mean_interval(score.variance, [1, 2], 8, ["a", "a"])


@pytest.mark.parametrize("k", [4, 8, 32])
def test_intervals_cover_the_true_score_from_the_smallest_k_on(k):
    rng, p = np.random.default_rng(3), np.linspace(0.02, 0.98, 128)
    truth = np.mean(p * (1 - p) ** 2)
    intervals = [score.lad_interval(rng.binomial(k, p), k, np.eye(128), beta=0) for _ in range(400)]
    assert np.mean([low <= truth <= high for _, low, high in intervals]) >= 0.93


def test_an_interval_from_too_few_rollouts_is_refused_but_the_value_is_not():
    with pytest.raises(ValueError, match="an interval needs 4"):
        score.lad_interval([1, 2], 3, np.eye(2))
    assert score.lad([1, 2], 3, np.eye(2)) == pytest.approx((2 / 6 + 0) / 2)


def test_the_intervals_of_entropy_cover_it_though_its_plug_in_is_low():
    rng, p, k = np.random.default_rng(4), np.linspace(0.05, 0.95, 128), 32
    truth = -np.mean(p * np.log(p) + (1 - p) * np.log1p(-p))
    covered = {unbias: 0 for unbias in (True, False)}
    for _ in range(200):
        c = rng.binomial(k, p)
        for unbias in covered:
            _, low, high = score.mean_interval(score.reward_entropy, c, k, unbias=unbias)
            covered[unbias] += low <= truth <= high
    assert covered[True] >= 180 > 100 > covered[False]


def test_twenty_tasks_never_solved_do_not_make_zero_certain():
    value, low, high = score.lad_interval(np.zeros(20), 8, np.eye(20), beta=0)
    assert value == low == 0 and high == pytest.approx(-np.log(0.025) / 160)
    assert score.lad_interval(np.full(20, 8), 8, np.eye(20), beta=0)[2] == pytest.approx(high)
    copies = score.lad_interval(np.zeros(20), 8, np.ones((20, 1)), beta=0, task_ids=["a"] * 20)
    assert copies[2] == pytest.approx(-np.log(0.025) / 8)
