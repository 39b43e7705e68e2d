"""Claims about lad_utils.adaptive: what it knows of scores, where it spends, when it stops, and what replays say of it."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import beta as beta_function
from scipy.stats import beta, binom, kendalltau, norm, spearmanr

from lad_utils import adaptive, reliability
from lad_utils.energy import unbiased_energy

REFERENCE = Path(__file__).parents[1] / "outputs" / "reference" / "micro"


def rng(seed=0):
    return np.random.default_rng(seed)


def live(p, seed=0):
    """A `draw` from known pass rates, which keeps a log of what was asked."""
    generator, log = rng(seed), []

    def draw(items, counts):
        log.append((items.copy(), counts.copy()))
        return generator.binomial(counts, p[items])

    draw.log = log
    return draw


def blocks(n_cohorts, size):
    """Weights of cohorts that share no item."""
    return np.kron(np.eye(n_cohorts), np.full(size, 1 / size))


def overlapping(n_cohorts, n_items, size, seed):
    """Weights of cohorts of `size` places drawn from common items, some twice or more."""
    drawn = rng(seed).integers(n_items, size=(n_cohorts, size))
    weights = np.stack([np.bincount(row, minlength=n_items) for row in drawn]) / size
    return weights[:, weights.any(axis=0)]


def world(seed, *, n_cohorts=6, size=40):
    """(p (N,), weights, diversity, true scores) of cohorts whose tasks vary, around a level of their own."""
    r = rng(seed)
    level = r.beta(1.2, 1.5, n_cohorts).clip(0.03, 0.97)
    p = np.concatenate([r.beta(3 * m, 3 * (1 - m), size) for m in level])
    weights, diversity = blocks(n_cohorts, size), r.uniform(0.05, 0.08, n_cohorts)
    return p, weights, diversity, diversity * (weights @ (p * (1 - p) ** 2))


def rounds(draw, weights, diversity, **changed):
    none = np.zeros(weights.shape[1], dtype=int)
    given_ = {
        "correct": none,
        "k": none,
        "k_start": 4,
        "max_k": 32,
        "budget": 32 * len(none),
        "indifference": 0.1,
        "rng": rng(1),
    }
    return adaptive.adaptive_rounds(draw, weights, diversity, **(given_ | changed))


def is_right(score, true, width):
    """No cohort is truly more than `width` above one that `score` places before it, pair by pair."""
    return all(true[j] <= true[i] + width for i in range(len(score)) for j in range(len(score)) if score[i] > score[j])


# What is known of a score


def test_with_one_item_and_a_flat_prior_the_score_is_the_closed_form_under_jeffreys_prior(monkeypatch):
    monkeypatch.setattr(adaptive, "EM_PASSES", 0)  # the prior stays at equal weights on the arcsine grid
    c, k = 3, 10
    found = adaptive.cohort_posterior([c], [k], [[1.0]], [0.5])
    moment = [beta_function(c + 0.5 + 1, k - c + 0.5 + 2), beta_function(c + 0.5 + 2, k - c + 0.5 + 4)]
    mean, square = np.array(moment) / beta_function(c + 0.5, k - c + 0.5)  # E p(1-p)^2 and E p^2(1-p)^4
    assert found.score[0] == pytest.approx(0.5 * mean, rel=1e-6)
    assert found.covariance[0, 0] > 0.25 * (square - mean**2)  # the prior is unknown, too


def test_scores_of_large_cohorts_agree_with_the_unbiased_estimate_within_its_noise():
    p, weights, diversity, _ = world(3, n_cohorts=5, size=400)
    correct = rng(4).binomial(8, p)
    found = adaptive.cohort_posterior(correct, np.full(len(p), 8), weights, diversity)
    unbiased = diversity * (weights @ unbiased_energy(correct, 8))
    assert np.abs(found.score - unbiased).max() < 0.5 * np.sqrt(np.diag(found.covariance)).max()


def test_a_cohort_is_not_drawn_to_the_mean_of_the_pool():
    p = np.repeat([0.95, 0.3, 0.3, 0.3], 200)  # energies .0024 and .147; a common prior of k=4 data scores the first .02
    correct = rng().binomial(4, p)
    found = adaptive.cohort_posterior(correct, np.full(800, 4), blocks(4, 200), np.ones(4))
    assert found.score[0] < 0.008
    assert found.score[1:] == pytest.approx(0.147, abs=0.02)


def test_untouched_items_leave_their_cohorts_prior_as_it_was_and_take_its_energy():
    correct, k = rng().binomial(8, 0.1, 50), np.full(50, 8)
    alone = adaptive.cohort_posterior(correct, k, np.full((1, 50), 1 / 50), [1.0])
    more, tiny = np.concatenate([correct, np.zeros(200, dtype=int)]), np.repeat([1 / 50, 1e-9], [50, 200])
    beside = adaptive.cohort_posterior(more, np.repeat([8, 0], [50, 200]), tiny[None], [1.0])
    assert beside.score == pytest.approx(alone.score, rel=1e-6)
    assert beside.covariance[0, 0] == pytest.approx(alone.covariance[0, 0], rel=0.01)
    equal = adaptive.cohort_posterior(more, np.repeat([8, 0], [50, 200]), np.full((1, 250), 1 / 250), [1.0])
    assert equal.score == pytest.approx(alone.score, rel=0.05)
    assert equal.covariance[0, 0] > alone.covariance[0, 0]


def test_identical_cohorts_have_one_score_and_share_all_errors_but_the_pools():
    correct, k = rng().binomial(8, rng(1).random(100)), np.full(100, 8)
    _, covariance, influence = adaptive.cohort_posterior(correct, k, np.full((2, 100), 1 / 100), [1.0, 1.0])
    assert 0.9 < covariance[0, 1] / covariance[0, 0] < 1
    assert influence[0] == pytest.approx(influence[1])


def test_cohorts_without_a_common_item_do_not_covary():
    correct, k = rng().binomial(6, 0.3, 60), np.full(60, 6)
    covariance = adaptive.cohort_posterior(correct, k, blocks(2, 30), [1.0, 1.0]).covariance
    assert covariance[0, 1] == 0 < covariance[0, 0]


@pytest.mark.parametrize(("hits", "of"), [(0, 0), (0, 4), (2, 4), (3, 4), (6, 8)])
def test_influence_is_how_far_more_rollouts_of_an_item_move_the_refitted_score(hits, of):
    """Reference: enumerate the outcomes of item 0's next rollouts, refit everything; E Var' = Var - Var(score')."""
    r, k = rng(5), np.full(60, 8)
    correct = r.binomial(k, r.beta(2, 3, 60))
    correct[0], k[0] = hits, of
    weights = np.full((1, 60), 0.6 / 59)
    weights[0, 0] = 0.4  # heavy, so that both the direct way and the one through the prior count
    influence, step = adaptive.cohort_posterior(correct, k, weights, [1.0]).influence[0, 0], 4 if of == 0 else 1
    chance, later = outcome_chances(correct, k, step), []
    for more in range(step + 1):
        c, m = correct.copy(), k.copy()
        c[0], m[0] = c[0] + more, m[0] + step
        later.append(adaptive.cohort_posterior(c, m, weights, [1.0]).score[0])
    variance = chance @ np.square(later) - (chance @ later) ** 2
    assert step * influence**2 == pytest.approx(variance, rel=0.2)


def outcome_chances(correct, k, step):
    """Predictive chances of 0 to `step` successes of item 0 under the cohort's prior, from the definition."""
    grid, touched = adaptive.P, k > 0
    likelihood = binom.pmf(correct[:, None], k[:, None], grid)
    prior = pool = np.full(len(grid), 1 / len(grid))
    for shape_tasks in (0, adaptive.SHAPE_TASKS):
        for _ in range(adaptive.EM_PASSES):
            mean, variance = prior @ grid, prior @ grid**2 - (prior @ grid) ** 2
            size = mean * (1 - mean) / variance - 1
            shape = beta.pdf(grid, mean * size, (1 - mean) * size) * np.sqrt(grid * (1 - grid))  # on an even arcsine grid
            each = prior * likelihood[touched]
            each = (each / each.sum(axis=1, keepdims=True)).sum(axis=0)
            prior = adaptive.POOL_TASKS * pool + shape_tasks * shape / shape.sum() + each
            prior = prior / prior.sum()
        pool = prior
    posterior = prior * likelihood[0] / (prior @ likelihood[0])
    return np.array([posterior @ binom.pmf(hits, step, grid) for hits in range(step + 1)])


def test_intervals_hold_and_posterior_means_are_unbiased_wherever_adaptive_sampling_stops():
    inside, errors = [], []
    for seed in range(60):
        p, weights, diversity, true = world(seed)
        for last in rounds(live(p, seed), weights, diversity):
            if last.probability >= 0.9 or last.k.sum() > 8 * len(p):
                break
        sd = np.sqrt(np.diag(last.posterior.covariance))
        inside.append(np.abs(last.posterior.score - true) < norm.ppf(0.95) * sd)
        errors.append((last.posterior.score - true) / true.mean())
    assert 0.86 < np.mean(inside) < 0.95  # of 90%, n=360
    assert abs(np.mean(errors)) < 0.03  # of the mean score


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000))
def test_the_order_of_items_and_of_cohorts_does_not_matter(seed):
    r = rng(seed)
    weights = overlapping(4, 30, 20, seed)
    n = weights.shape[1]
    k = r.integers(0, 9, n)
    correct, diversity = r.binomial(k, r.random(n)), r.uniform(0.05, 0.1, 4)
    items, cohorts = r.permutation(n), r.permutation(4)
    a = adaptive.cohort_posterior(correct, k, weights, diversity)
    b = adaptive.cohort_posterior(correct[items], k[items], weights[np.ix_(cohorts, items)], diversity[cohorts])
    assert b.score == pytest.approx(a.score[cohorts])
    assert b.covariance == pytest.approx(a.covariance[np.ix_(cohorts, cohorts)], rel=1e-5, abs=1e-12)
    gains = adaptive.rollout_gain(a, width=0.001), adaptive.rollout_gain(b, width=0.001)
    assert gains[1] == pytest.approx(gains[0][items], rel=1e-4, abs=1e-9 * gains[0].max())


# Whether an order is right


def test_two_cohorts_are_in_order_with_the_normal_chance_of_their_gap_plus_the_width(monkeypatch):
    monkeypatch.setattr(adaptive, "ORDERS", 100_000)
    covariance = np.array([[4.0, 1.0], [1.0, 3.0]])  # the difference has variance 4 + 3 - 2 = 5
    for width in (0.0, 1.5):
        whole, places = adaptive.order_probability(np.array([1.0, 3.0]), covariance, width=width, rng=rng())
        assert whole == pytest.approx(norm.cdf((2 + width) / np.sqrt(5)), abs=0.005)
        assert places == pytest.approx([whole, whole])


def test_a_place_is_right_if_only_the_others_are_out_of_order(monkeypatch):
    monkeypatch.setattr(adaptive, "ORDERS", 100_000)
    score, covariance = np.array([0.0, 10.0, 0.0]), np.diag([1.0, 1e-9, 1.0])
    whole, places = adaptive.order_probability(score, covariance, width=0, rng=rng())
    assert whole == pytest.approx(0.5, abs=0.01)
    assert places == pytest.approx([0.5, 1.0, 0.5], abs=0.01)


@pytest.mark.parametrize("width", [0.0, 0.4])
def test_the_chances_of_an_order_are_those_of_the_pairwise_definition_over_draws(width, monkeypatch):
    monkeypatch.setattr(adaptive, "ORDERS", 20_000)
    root, score = rng(1).normal(size=(5, 5)), 1.5 * rng(2).normal(size=5)
    whole, places = adaptive.order_probability(score, root @ root.T / 5, width=width, rng=rng(3))
    draws = rng(4).multivariate_normal(score, root @ root.T / 5, 4000)
    above = score[:, None] > score
    off = (draws[:, None, :] > draws[:, :, None] + width) & above  # the lower one is higher by more than the width
    assert whole == pytest.approx(1 - off.any(axis=(1, 2)).mean(), abs=0.03)
    assert places == pytest.approx(1 - (off.any(axis=1) | off.any(axis=2)).mean(axis=0), abs=0.03)
    assert 0.1 < whole < min(places) < 0.99


@pytest.mark.parametrize(("confidence", "indifference"), [(0.8, 0.0), (0.9, 0.1)])
def test_decided_orders_are_the_true_ones_at_least_as_often_as_the_confidence_says(confidence, indifference):
    right = []
    for seed in range(100):
        p, weights, diversity, true = world(seed, n_cohorts=4, size=30)
        found = adaptive.rank_cohorts(
            live(p, seed),
            weights,
            diversity,
            confidence=confidence,
            indifference=indifference,
            budget=12 * len(p),
            rng=rng(seed),
        )
        if found.stopped == "decided":
            right.append(is_right(found.table["score"], true, indifference * found.table["score"].mean()))
    assert len(right) > 40
    assert sum(right) >= binom.ppf(0.01, len(right), confidence)


# Where rollouts go


def test_allocation_follows_the_square_root_of_the_gain():
    # k + m is proportional to k sqrt(gain): 4 and 4 with gains 9 and 1 share 16 + 8 in the ratio 3 : 1, so 18 and 6
    assert adaptive.allocate(np.array([9.0, 1.0]), np.array([4, 4]), k_start=4, max_k=32, budget=16).tolist() == [14, 2]


def test_untouched_items_are_opened_with_a_whole_first_batch_and_cut_by_the_budget():
    gain, k = np.array([1.0, 5.0, 5.0, 0.0]), np.array([8, 0, 0, 0])
    assert adaptive.allocate(gain, k, k_start=4, max_k=32, budget=6).tolist() == [0, 4, 2, 0]


def test_items_without_gain_or_room_get_nothing_even_if_the_budget_is_left():
    found = adaptive.allocate(np.array([1.0, 0.0, 9.0]), np.array([30, 4, 32]), k_start=4, max_k=32, budget=100)
    assert found.tolist() == [2, 0, 0]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(0, 400))
def test_allocation_spends_the_budget_never_more_and_never_above_max_k(seed, budget):
    r = rng(seed)
    k, gain = r.integers(0, 17, 20), r.random(20) * (r.random(20) > 0.2)
    found = adaptive.allocate(gain, k, k_start=4, max_k=16, budget=budget)
    room = np.where(gain > 0, np.where(k > 0, 16 - k, 4), 0)
    assert ((found >= 0) & (found <= room)).all()
    assert found.sum() == min(budget, room.sum())


def test_a_heavy_or_uncertain_item_gains_more_than_a_light_or_solved_one():
    weights = np.zeros((2, 40))
    weights[0, :20], weights[1, 20:] = 1 / 38, 1 / 20
    weights[0, 0] = 19 / 38
    correct, k = np.array([1, 1, 0, 0, 2, 3, 4, 5, 6, 7] * 4), np.full(40, 8)
    correct[10:20] = 8  # solved
    gain = adaptive.rollout_gain(adaptive.cohort_posterior(correct, k, weights, [1.0, 1.0]), width=0)
    assert gain[0] > 4 * gain[1]
    assert gain[1] > 4 * gain[10]


def test_cohorts_clearly_apart_get_no_rollouts_while_near_ones_do():
    p = np.concatenate([np.full(60, 0.3), np.full(60, 0.33), np.full(60, 0.97)])
    found = adaptive.rank_cohorts(live(p), blocks(3, 60), np.array([1.0, 0.98, 1.0]), budget=2500, indifference=0.0, rng=rng())
    near, far = found.k[:120].mean(), found.k[120:].mean()
    assert far < 3 < near


def test_an_easy_pair_is_decided_by_the_start_alone():
    p = np.repeat([0.3, 0.97], 80)
    draw = live(p)
    found = adaptive.rank_cohorts(draw, blocks(2, 80), [1.0, 1.0], confidence=0.95, rng=rng())
    assert (len(draw.log), found.k.sum(), found.stopped) == (1, 160, "decided")  # 1/4 of the tasks, 4 rollouts each
    assert set(found.k) == {0, 4}
    assert found.table["rank"].tolist() == [1, 2]
    assert found.table["decided"].all()


def test_cohorts_of_the_same_items_are_never_decided_and_nothing_is_spent_on_them():
    found = adaptive.rank_cohorts(live(np.full(40, 0.3)), np.full((2, 40), 1 / 40), [1.0, 1.0], indifference=0.0, rng=rng())
    assert not found.table["decided"].any()
    assert found.stopped == "no rollout tells the rest apart"
    assert found.k.sum() == 40


def test_equally_good_cohorts_are_decided_only_by_indifference():
    """Two cohorts of p = .4: with no width at most 1 - confidence get a verdict, with a width it soon doesn't matter."""
    weights, p = blocks(2, 30), np.full(60, 0.4)
    decided = {0.0: 0, 0.3: 0}
    for seed in range(40):
        for width in decided:
            options = {"confidence": 0.95, "indifference": width, "max_k": 16, "rng": rng(seed)}
            decided[width] += adaptive.rank_cohorts(live(p, seed), weights, [1.0, 1.0], **options).stopped == "decided"
    assert decided[0.0] <= 10  # looks at every round: more than 5%, but rare
    assert decided[0.3] >= 30


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000))
def test_what_is_asked_is_what_is_reported_and_no_item_exceeds_max_k(seed):
    r, weights = rng(seed), overlapping(5, 60, 30, seed)
    p, budget = r.random(weights.shape[1]), int(r.integers(150, 600))
    draw = live(p, seed)
    found = adaptive.rank_cohorts(
        draw, weights, r.uniform(0.5, 1, 5), max_k=10, budget=budget, indifference=0.0, confidence=0.99, rng=r
    )
    asked = np.zeros(weights.shape[1], dtype=int)
    for items, counts in draw.log:
        assert len(set(items)) == len(items)
        asked[items] += counts
    assert (found.k == asked).all()
    assert found.k.max() <= 10
    assert found.k.sum() <= budget
    assert ((found.correct >= 0) & (found.correct <= found.k)).all()
    assert found.table["rollouts"].tolist() == [found.k[row > 0].sum() for row in weights]


def test_a_stopped_call_goes_on_from_its_counts_and_a_decided_one_asks_nothing():
    p, weights, diversity, _ = world(7)
    first = adaptive.rank_cohorts(live(p), weights, diversity, budget=400, confidence=0.95, rng=rng())
    assert first.stopped == "budget spent"
    assert first.k.sum() == 400
    draw = live(p, 1)
    second = adaptive.rank_cohorts(draw, weights, diversity, known=(first.correct, first.k), confidence=0.95, rng=rng())
    assert second.stopped == "decided"
    assert (second.k >= first.k).all()
    assert (second.correct >= first.correct).all()
    assert sum(counts.sum() for _, counts in draw.log) == second.k.sum() - 400
    third = adaptive.rank_cohorts(no_draw, weights, diversity, known=(second.correct, second.k), confidence=0.9, rng=rng())
    assert third.table["score"].tolist() == second.table["score"].tolist()


def no_draw(items, counts):
    raise AssertionError("asked for rollouts")


def test_known_counts_need_no_first_batch_unless_a_cohort_has_none():
    p, weights = np.full(40, 0.3), blocks(2, 20)
    known = np.repeat([0, 1], [25, 15]), np.repeat([0, 4], [20, 20])
    draw = live(p)
    next(iter(rounds(draw, weights, np.ones(2), correct=known[0], k=known[1])))
    assert [(len(items), items[0] < 20, counts.tolist()) for items, counts in draw.log] == [(1, True, [4])]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"weights": [[0.5, 0.6]]}, "each row summing to 1"),
        ({"diversity": [0.0]}, "diversities > 0"),
        ({"known": ([0, 0, 0], [1, 1, 1])}, "found sizes"),
        ({"known": ([2, 0], [1, 1])}, "item 0 has 2 of 1 correct"),
        ({"k_start": 1}, "k_start=1, expected 2 to max_k=32"),
        ({"budget": 3}, "a budget of 3 rollouts, 4 are needed"),
        ({"draw": lambda items, counts: counts + 1}, "draw must return"),
        ({"draw": lambda items, counts: 1}, "draw must return"),
    ],
)
def test_impossible_input_is_one_clear_error(changed, message):
    args = {"draw": live(np.full(2, 0.5)), "weights": [[0.5, 0.5]], "diversity": [1.0], "rng": rng()} | changed
    with pytest.raises(ValueError, match=message):
        adaptive.rank_cohorts(args.pop("draw"), args.pop("weights"), args.pop("diversity"), **args)


# Replays


def test_a_replay_gives_each_stored_rollout_once_and_refuses_more():
    correct, k = np.array([3, 0, 8]), np.array([8, 8, 8])
    draw = adaptive.replay(correct, k, rng=rng())
    every = np.arange(3)
    total = sum(draw(every, np.full(3, n)) for n in (1, 3, 4))
    assert total.tolist() == [3, 0, 8]
    assert correct.tolist() == [3, 0, 8]
    with pytest.raises(ValueError):
        draw(np.array([0]), np.array([1]))


def test_agreement_equals_scipy_without_ties_and_counts_a_tie_half():
    x, y = rng().random(9), rng(1).random(9)
    spearman, kendall, _ = adaptive.agreement(x, y)
    assert spearman == pytest.approx(spearmanr(x, y).statistic)
    assert kendall == pytest.approx(kendalltau(x, y).statistic)
    # of the pairs (1,2), (1,3), (2,3) one is tied, two right: tau-a 2/3, pairwise 2.5/3
    assert adaptive.agreement(np.array([1.0, 1.0, 2.0]), np.arange(3.0))[1:] == pytest.approx((2 / 3, 2.5 / 3))
    assert adaptive.agreement(np.ones(3), np.arange(3.0)) == (0.0, 0.0, 0.5)


@pytest.fixture(scope="module")
def curves():
    p, weights, diversity, _ = world(11, n_cohorts=8, size=60)
    correct = rng(2).binomial(16, p)
    return {
        clean: adaptive.replay_curve(correct, 16, weights, diversity, clean=clean, n_replays=8, rng=rng()) for clean in (0, 1)
    }


def test_replaying_all_stored_rollouts_gives_their_own_ranking_and_the_clean_replay_less(curves):
    last = {clean: curve[curve["method"] == "uniform"].iloc[-1] for clean, curve in curves.items()}
    assert (last[0]["setting"], last[0]["spearman"], last[0]["pairwise"]) == (16, pytest.approx(1), 1)
    assert last[1]["setting"] == 8
    assert last[1]["spearman"] < 1


def test_a_curve_has_every_method_at_its_cost_with_its_spread(curves):
    for clean, curve in curves.items():
        most = 8 if clean else 16
        stops = {"adaptive_80", "adaptive_90", "adaptive_95"}
        assert set(curve["method"]) == {"adaptive", "uniform", "fewer_tasks_8", f"fewer_tasks_{most}"} | stops
        planned = curve.dropna(subset="setting")
        assert planned["rollouts_per_task"].to_numpy() == pytest.approx(planned["setting"].to_numpy(), rel=0.1)
        assert set(curve.loc[curve["method"].isin(stops), "setting"].isna()) == {True}
        assert (curve["rollouts_per_task"] <= most).all()
        assert (curve["spearman_low"] <= curve["spearman_high"]).all()
        assert curve["kendall"].to_numpy() == pytest.approx(2 * curve["pairwise"].to_numpy() - 1)
        assert set(curve["n_replays"]) == {8}
        assert not curve.duplicated(["method", "setting"]).any()
        costs = curve[curve["method"].isin(stops)]["rollouts_per_task"].to_numpy()
        assert (np.diff(costs) >= 0).all()


def test_fewer_tasks_with_all_tasks_is_uniform_sampling(curves):
    whole = curves[0].set_index(["method", "setting"])["spearman"]
    assert whole["fewer_tasks_16", 16] == pytest.approx(1)


def test_halves_of_equal_totals_rank_cohorts_in_opposite_orders_so_a_clean_replay_shares_no_rollout():
    curve = adaptive.replay_curve(np.full(160, 8), 16, blocks(8, 20), np.ones(8), clean=True, n_replays=6, rng=rng())
    assert curve[curve["method"] == "uniform"].iloc[-1]["spearman"] < -0.4


def test_a_subset_of_tasks_estimates_its_cohorts_mean_so_alike_tasks_rank_right_at_any_size():
    correct, r = np.repeat([5, 8, 9, 10, 11, 12], 30), rng()
    weights = (blocks(6, 30) > 0) * r.dirichlet(np.full(180, 0.5))
    weights /= weights.sum(axis=1, keepdims=True)
    curve = adaptive.replay_curve(correct, 16, weights, np.ones(6), n_replays=3, rng=r)
    assert curve.loc[curve["method"] == "fewer_tasks_16", "spearman_low"].min() == pytest.approx(1)


def hand_made_curve():
    rows = [("uniform", 2, 0.90), ("uniform", 8, 0.94), ("uniform", 32, 1.0), ("adaptive", 2, 0.96), ("adaptive", 8, 0.98)]
    curve = pd.DataFrame(rows, columns=["method", "setting", "spearman"])
    spread = {"spearman_low": 0.8, "spearman_high": 1.0, "pairwise": 0.9, "n_replays": 9, "n_cohorts": 19, "estimator": "x"}
    return curve.assign(rollouts_per_task=curve["setting"].astype(float), **spread)


def test_rollouts_needed_are_read_off_the_curve_log_linearly():
    found = adaptive.rollouts_needed(hand_made_curve(), targets=(0.92, 0.97, 0.99)).set_index(["method", "target"])
    assert found.loc[("uniform", 0.92), "rollouts_per_task"] == pytest.approx(4)  # half way from 2 to 8 in logarithms
    assert found.loc[("uniform", 0.97), "share"] == pytest.approx(16 / 32)
    assert found.loc[("adaptive", 0.92), "rollouts_per_task"] == 2
    assert found.loc[("adaptive", 0.97), "rollouts_per_task"] == pytest.approx(4)
    assert np.isnan(found.loc[("adaptive", 0.99), "share"])
    assert found.loc[("adaptive", 0.99), "reason"] == "not reached with 8 rollouts a task"


def test_entries_name_methods_settings_and_shares_and_give_a_reason_where_undefined():
    found = {e["name"]: e for e in adaptive.curve_entries(hand_made_curve(), prefix="fewer_rollouts.main", source="s")}
    one = found["fewer_rollouts.main.uniform.k8.spearman"]
    assert (one["value"], one["ci_low"], one["ci_high"], one["n"]) == (0.94, 0.8, 1.0, 19)
    assert found["fewer_rollouts.main.adaptive.share_for_95"]["value"] == pytest.approx(2 / 32)
    missing = found["fewer_rollouts.main.adaptive.share_for_99"]
    assert (missing["value"], missing["reason"]) == (None, "not reached with 8 rollouts a task")
    assert len(found) == 3 * 5 + 2 * 3


# Tables of a study


def small_tables():
    """Two cohorts of two places, a shared item, a copy, and one task under two labels; four rollouts a place."""
    cells = [("a", 0, "t1", "5", 1), ("a", 1, "t1", "5", 1), ("b", 0, "t1", "5", 1), ("b", 1, "t1", "6", 3)]
    cohorts = pd.DataFrame([(*cell[:4], "exact", "main") for cell in cells])
    cohorts.columns = ["cohort", "position", "task_id", "answer", "verifier", "arm"]
    rows = [("main", c, i, reward, n) for c, i, _, _, right in cells for reward, n in ((1, right), (0, 4 - right))]
    judgements = pd.DataFrame(rows, columns=["arm", "cohort", "position", "reward", "count"])
    scores = pd.DataFrame({"arm": "main", "metric": "vendi", "cohort": ["a", "b"], "value": [1.0, 1.5]})
    return judgements, cohorts, scores


def test_items_are_distinct_tasks_with_a_label_shared_by_cohorts_and_weighted_by_copies():
    names, correct, k, weights, diversity = reliability.cohort_items(*small_tables(), arm="main")
    assert names == ["a", "b"]
    assert (correct.tolist(), k.tolist(), weights.tolist()) == ([1, 3], [4, 4], [[1, 0], [0.5, 0.5]])
    assert diversity.tolist() == [0.5, 0.75]


def test_copies_with_different_counts_are_an_error():
    judgements, cohorts, scores = small_tables()
    judgements.loc[0, "count"] = 2
    with pytest.raises(ValueError, match="copies of an item that differ in counts"):
        reliability.cohort_items(judgements, cohorts, scores, arm="main")


def test_items_of_the_published_study_give_its_published_lad():
    tables = {name: pd.read_parquet(REFERENCE / f"{name}.parquet") for name in ("judgements", "cohorts", "scores")}
    names, correct, k, weights, diversity = reliability.cohort_items(**tables, arm="main")
    scores = tables["scores"]
    published = scores[(scores["arm"] == "main") & (scores["metric"] == "lad")].set_index("cohort")["value"][names]
    assert len(names) == 19
    assert diversity * (weights @ unbiased_energy(correct, k)) == pytest.approx(published.to_numpy(), rel=1e-9)
