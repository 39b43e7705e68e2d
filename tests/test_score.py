"""The cohort score against hand-worked constants, and its intervals against simulation."""

import warnings

import numpy as np
import pytest

from lad_utils import score
from lad_utils.diversity import vendi
from lad_utils.energy import reward_entropy, unbiased_energy, variance


def test_lad_of_two_orthogonal_tasks_is_their_mean_energy():
    assert score.lad([4, 4], 8, np.eye(2)) == pytest.approx(1 / 7)
    assert score.lad([4, 4], 8, [[1, 0], [1, 0]]) == pytest.approx(1 / 14)
    assert score.lad([4, 4], 8, [[1, 0], [1, 0]], beta=0) == pytest.approx(1 / 7)


def test_copied_prompts_scale_lad_by_their_share():  # G08
    once, often = np.eye(3), np.tile(np.eye(3), (100, 1))
    assert vendi(often) == pytest.approx(3)
    assert score.lad(np.full(300, 4), 8, often) == pytest.approx(score.lad([4, 4, 4], 8, once) / 100)


def test_a_cohort_mean_stays_under_the_formulas_maximum():
    c = np.random.default_rng(2).binomial(32, 1 / 3, 4000)
    assert unbiased_energy(c, 32, 1).mean() == pytest.approx(4 / 27, abs=0.002)


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
        score.mean_interval(variance, [1, 2], 8, ["a", "a"])


@pytest.mark.parametrize("k", [4, 8, 32])
def test_intervals_cover_the_true_score_from_the_smallest_k_on(k):
    rng, p = np.random.default_rng(3), np.linspace(0.02, 0.98, 128)
    truth = np.mean(p * (1 - p) ** 2)
    intervals = [score.lad_interval(rng.binomial(k, p), k, np.eye(128), beta=0) for _ in range(400)]
    assert np.mean([low <= truth <= high for _, low, high in intervals]) >= 0.93


def test_the_intervals_of_entropy_cover_it_though_its_plug_in_is_low():
    rng, p, k = np.random.default_rng(4), np.linspace(0.05, 0.95, 128), 32
    truth = -np.mean(p * np.log(p) + (1 - p) * np.log1p(-p))
    covered = {unbias: 0 for unbias in (True, False)}
    for _ in range(200):
        c = rng.binomial(k, p)
        for unbias in covered:
            _, low, high = score.mean_interval(reward_entropy, c, k, unbias=unbias)
            covered[unbias] += low <= truth <= high
    assert covered[True] >= 180 > 100 > covered[False]


@pytest.mark.filterwarnings("ignore:every task has")
def test_twenty_tasks_never_solved_do_not_make_zero_certain():
    value, low, high = score.lad_interval(np.zeros(20), 8, np.eye(20), beta=0)
    assert value == low == 0 and high == pytest.approx(-np.log(0.025) / 160)
    assert score.lad_interval(np.full(20, 8), 8, np.eye(20), beta=0)[2] == pytest.approx(high)
    copies = score.lad_interval(np.zeros(20), 8, np.ones((20, 1)), beta=0, task_ids=["a"] * 20)
    assert copies[2] == pytest.approx(-np.log(0.025) / 8)


@pytest.mark.parametrize(("k", "gamma", "at_least"), [(2, 1, 0.87), (3, 1, 0.9), (4, 1, 0.93), (8, 1, 0.93), (8, 0.5, 0.9)])
@pytest.mark.parametrize("pool", ["uniform", "hard", "same"])
def test_intervals_cover_the_mean_energy_from_two_rollouts_on(k, gamma, at_least, pool):
    """At k=2 the third moment of p can't be told from the counts, so there the interval leans on the Beta family."""
    rng = np.random.default_rng(5)
    p = {"uniform": np.linspace(0.02, 0.98, 256), "hard": rng.beta(0.5, 6, 256), "same": np.full(256, 0.4)}[pool]
    truth, covered = np.mean(p * (1 - p) ** (1 + gamma)), []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a pool of equal tasks says so
        for _ in range(200):
            _, low, high = score.energy_interval(rng.binomial(k, p), k, gamma)
            covered.append(low <= truth <= high)
    assert np.mean(covered) >= at_least


def test_a_pool_never_solved_says_so_aloud():
    with pytest.warns(UserWarning, match="none was seen"):
        assert score.energy_interval(np.zeros(20), 8)[0] == 0


def test_value_and_interval_tell_the_same_value_from_two_rollouts_on():
    for k in (2, 3, 8):
        correct = np.arange(k + 1)
        value, low, high = score.lad_interval(correct, k, np.eye(k + 1))
        assert low < value == score.lad(correct, k, np.eye(k + 1)) < high
    assert score.lad([1, 2], 3, np.eye(2)) == pytest.approx((2 / 6 + 0) / 2)


def test_the_energy_interval_is_the_jackknifes_where_the_estimate_is_unbiased():
    correct, ids = np.array([3, 5, 2, 5, 7]), list("abcbd")
    expected = score.mean_interval(unbiased_energy, correct, 8, ids)
    assert score.energy_interval(correct, 8, task_ids=ids) == pytest.approx(expected)


@pytest.mark.parametrize(("k", "gamma"), [(2, 1), (3, 1), (8, 1), (8, 0.5)])
def test_intervals_are_as_wide_as_the_estimate_scatters_and_not_much_wider(k, gamma):
    rng, p = np.random.default_rng(6), np.random.default_rng(7).beta(1, 1.5, 256)
    drawn = np.array([score.energy_interval(rng.binomial(k, p), k, gamma) for _ in range(200)])
    half, scatter = np.mean(drawn[:, 2] - drawn[:, 1]) / 2, 1.96 * drawn[:, 0].std()
    assert 0.85 < half / scatter < 1.5  # the jackknife errs on the wide side
