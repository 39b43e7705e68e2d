"""The replacement bound holds against every adversary tried, is not vacuous, and the signed score reduces to LAD."""

from fractions import Fraction
from itertools import combinations, product
from math import comb, exp, log

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lad_utils import robustness
from lad_utils.diversity import vendi
from lad_utils.energy import unbiased_energy

seeds = st.integers(0, 2**32 - 1)


def random_set(n, d, *, rng, k=8):
    """Energies as k rollouts give them, and directions from nearly one to fully spread."""
    spread = rng.choice([0.05, 0.5, 5.0])
    return unbiased_energy(rng.integers(0, k + 1, n), k), rng.normal(size=d) + spread * rng.normal(size=(n, d))


def measured(energies, embeddings, beta=1.0):
    return float(np.mean(energies)) * (vendi(embeddings) / len(energies)) ** beta


@pytest.mark.parametrize(("k", "gamma", "expected"), [(8, 0, Fraction(2, 7)), (8, 1, Fraction(5, 28)), (3, 1, Fraction(1, 3))])
def test_the_largest_energy_is_the_estimators_own_and_not_that_of_the_truth(k, gamma, expected):
    assert robustness.largest_energy(k, gamma) == pytest.approx(float(expected))
    assert robustness.largest_energy([k, 64], gamma) == robustness.largest_energy(k, gamma)
    assert 4 / 27 < robustness.largest_energy(512) < 4 / 27 + 1e-3
    with pytest.raises(ValueError, match="at least 3 are needed"):
        robustness.largest_energy([2, 8])


def test_five_per_cent_of_256_tasks_move_vendi_by_the_published_factor_at_most():
    assert exp(robustness.entropy_bound(256, 0.05)) == pytest.approx(1.61, abs=0.005)
    eps = 12 / 256  # whole tasks
    by_hand = eps * log(12) - eps * log(eps) - (1 - eps) * log(1 - eps)
    assert robustness.replacement_bound(256, 0.05) == pytest.approx(by_hand) and exp(by_hand) == pytest.approx(1.357, abs=1e-3)


@given(st.integers(2, 400), st.floats(0, 1))
def test_the_bound_with_the_number_of_tasks_is_never_looser_and_grows_with_eps(n, eps):
    sharp = robustness.replacement_bound(n, eps)
    assert 0 <= sharp <= robustness.entropy_bound(n, eps) + 1e-12 <= log(n) + 1e-9
    assert sharp <= robustness.replacement_bound(n, min(1.0, eps + 1 / n)) + 1e-12


@settings(max_examples=60, deadline=None)
@given(seeds, st.integers(2, 24), st.floats(0, 1), st.sampled_from([0.5, 1.0, 2.0]))
def test_no_random_replacement_leaves_the_bounds(seed, n, eps, beta):
    rng = np.random.default_rng(seed)
    energies, embeddings = random_set(n, 6, rng=rng)
    bounds = robustness.lad_bounds(energies.mean(), vendi(embeddings) / n, n, eps, k=8, beta=beta)
    for _ in range(5):
        out = rng.permutation(n)[: bounds.replaced]
        e, x = energies.copy(), np.hstack([embeddings, np.zeros((n, n))])
        e[out] = rng.choice([0.0, robustness.largest_energy(8)], len(out))
        x[out] = rng.choice([1.0, 0.0]) * np.eye(n + 6)[6 + np.arange(len(out))] + 1e-3 * rng.normal(size=(len(out), n + 6))
        assert bounds.diversity_low - 1e-9 <= vendi(x) / n <= bounds.diversity_high + 1e-9
        assert bounds.low - 1e-12 <= measured(e, x, beta) <= bounds.high + 1e-12


def exhaustive(energies, embeddings, m, *, largest):
    """(lowest, highest) LAD over every choice of m tasks and of their energies and directions from a small grid."""
    n, d = embeddings.shape
    x = np.hstack([embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True), np.zeros((n, m))])
    main = np.linalg.eigh(x.T @ x)[1][:, -1]
    grid = [main, *x, *np.eye(d + m)[d:]]
    found = []
    for out in combinations(range(n), m):
        for directions in product(grid, repeat=m):
            y = x.copy()
            y[list(out)] = directions
            diversity, kept = vendi(y) / n, energies.sum() - energies[list(out)].sum()
            found += [kept / n * diversity, (kept + m * largest) / n * diversity]
    return min(found), max(found)


@pytest.mark.parametrize("m", [1, 2])
@pytest.mark.parametrize("seed", range(4))
def test_the_worst_of_all_replacements_of_a_small_set_stays_inside_and_greedy_nearly_finds_it(seed, m):
    energies, embeddings = random_set(6, 4, rng=np.random.default_rng(seed))
    energies[0], largest = 1 / 7, robustness.largest_energy(8)
    bounds = robustness.lad_bounds(energies.mean(), vendi(embeddings) / 6, 6, m / 6, k=8)
    low, high = exhaustive(energies, embeddings, m, largest=largest)
    assert bounds.replaced == m and bounds.low <= low and high <= bounds.high
    up, down = (measured(*robustness.worst_replacement(energies, embeddings, m, sign=s, largest=largest)) for s in (1, -1))
    before = measured(energies, embeddings)
    assert high - before <= (up - before) * 1.1 + 1e-12 and before - low <= (before - down) * 1.1 + 1e-12


def test_the_bounds_are_attained_so_no_tighter_ones_exist_for_these_inputs():
    n, m, largest = 40, 4, robustness.largest_energy(8)
    one, spread = np.tile(np.eye(m + 1)[0], (n, 1)), np.eye(m + 1)[np.r_[np.zeros(n - m, int), 1 : m + 1]]
    low, high = np.zeros(n), np.r_[np.zeros(n - m), np.full(m, largest)]
    up = robustness.lad_bounds(0.0, vendi(one) / n, n, m / n, k=8)
    assert up.low == 0 and measured(high, spread) == pytest.approx(up.high, rel=1e-9)
    attack = robustness.worst_replacement(low, one, m, sign=1, largest=largest)
    assert measured(*attack) == pytest.approx(up.high, rel=1e-9)
    rich = np.r_[np.full(n - m, 0.1), np.full(m, largest)]
    down = robustness.lad_bounds(rich.mean(), vendi(spread) / n, n, m / n, k=8)
    attack = robustness.worst_replacement(rich, spread, m, sign=-1, largest=largest)
    assert measured(*attack) == pytest.approx(down.low, rel=1e-9) and down.low > 0


@pytest.mark.parametrize("spread", [0.3, 3.0])
def test_the_bound_is_not_vacuous_at_256_tasks_of_no_special_kind(spread):
    rng, n = np.random.default_rng(0), 256
    energies = unbiased_energy(rng.binomial(32, rng.beta(1, 1.3, n)), 32)
    embeddings = rng.normal(size=24) + spread * rng.normal(size=(n, 24))
    largest, before = robustness.largest_energy(32), measured(energies, embeddings)
    bounds = robustness.lad_bounds(energies.mean(), vendi(embeddings) / n, n, 0.05, k=32)
    for sign, end, least in ((1, bounds.high, 0.6), (-1, bounds.low, 0.2)):
        e, x = robustness.worst_replacement(energies, embeddings, bounds.replaced, sign=sign, largest=largest)
        kept = np.isclose(x[:, :24], embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)).all(1) & (e == energies)
        assert (~kept).sum() <= bounds.replaced
        after = measured(e, x)
        print(f"spread {spread}, sign {sign}: {log(after / before) / log(end / before):.2f} of the room, in logarithms")
        assert bounds.low <= after <= bounds.high and log(after / before) / log(end / before) > least


def test_impossible_bounds_are_refused_with_what_was_expected():
    for args in ((0.5, 0.5, 10, 0.1), (0.1, 0.05, 10, 0.1), (0.1, 0.5, 10, 1.5), (0.1, 0.5, 1, 0.5)):
        with pytest.raises(ValueError, match="expected"):
            robustness.lad_bounds(*args, k=8)
    with pytest.raises(ValueError, match="7 of 6 tasks"):
        robustness.worst_replacement(np.ones(6), np.eye(6), 7, sign=1, largest=1.0)


def judgements(n, *, rng, labels=None, k=8, copies=1):
    """k rollouts of n tasks whose true answer is 0, judged by `labels` (0 if none), each task `copies` times in the cohort."""
    parsed = np.where(rng.random((n, k)) < rng.beta(2, 2, (n, 1)), 0, rng.integers(1, 30, (n, k)))
    reward = parsed == (np.zeros(n) if labels is None else np.asarray(labels))[:, None]
    one = [
        pd.DataFrame({"task_id": f"t{i}", "parsed": p.astype(str), "reward": r * 1})
        for i, (p, r) in enumerate(zip(parsed, reward))
    ]
    parts = [part.assign(position=i + n * c) for c in range(copies) for i, part in enumerate(one)]
    return pd.concat(parts, ignore_index=True)


def own_energy(table):
    counts = table.groupby("position").reward.agg(["sum", "size"])
    return float(unbiased_energy(counts["sum"], counts["size"]).mean())


def test_gain_is_lad_where_labels_are_right_and_drift_is_small_without_copies():
    table = judgements(200, rng=np.random.default_rng(0), k=16)
    found = robustness.signed_score(table, 0.5)
    assert found.gain == pytest.approx(0.5 * own_energy(table), rel=0.01) and found.note == ""
    assert found.drift == pytest.approx(own_energy(table) / 200)
    assert found.value == found.gain - found.drift


def test_wrong_labels_turn_the_gain_negative_and_copies_the_score():
    wrong = judgements(200, rng=np.random.default_rng(0), labels=np.arange(200) % 29 + 1, k=16)
    found = robustness.signed_score(wrong, 0.5)
    k, counts = 16, wrong.assign(v=wrong.parsed == "0", c=wrong.reward).groupby("position")[["v", "c"]].sum()
    known = (-counts.v * counts.c * (k - counts.v - 1) / (k * (k - 1) * (k - 2))).mean()  # -p_true p_label (1 - p_true)
    assert own_energy(wrong) > 0 > found.gain == pytest.approx(0.5 * known, rel=0.2)
    repeated = judgements(8, rng=np.random.default_rng(1), k=16, copies=32)
    found = robustness.signed_score(repeated, 5 / 256)
    assert found.drift == pytest.approx(own_energy(repeated) / 8) and found.value < 0 < found.gain


def test_a_verifier_that_rewards_all_but_the_truth_scores_below_zero():
    inverted = judgements(100, rng=np.random.default_rng(2), k=16).assign(reward=lambda t: 1 - t.reward)
    found = robustness.signed_score(inverted, 0.5)
    assert found.gain < 0 and "truth from votes alone: verifier flagged inverted" in found.note


def test_signed_energy_is_unbiased_whichever_answer_is_true():
    """Over every split of k=5 votes: mean of +-v x (k-v-1) / (k)_3 is +-p_true p_x (1-p_true)."""
    p_true, p_label, k, mean = 0.5, 0.3, 5, 0.0
    for v in range(k + 1):
        for c in range(k - v + 1):
            weight = comb(k, v) * comb(k - v, c) * p_true**v * p_label**c * 0.2 ** (k - v - c)
            rows = [(0, "t", 0, v), (0, "l", 1, c), (0, "o", 0, k - v - c)]
            votes = pd.DataFrame(rows, columns=["position", "parsed", "reward", "count"]).query("count > 0")
            truth = pd.DataFrame({"position": [0], "parsed": ["t"], "probability": [1.0]})[: int(v > 0)]
            mean += weight * robustness.signed_energies(votes, truth).sum()
    assert mean == pytest.approx(-p_true * p_label * (1 - p_true))


def test_where_faults_cannot_be_told_labels_are_taken_at_their_word():
    table = judgements(30, rng=np.random.default_rng(3), labels=np.full(30, 99), k=16)
    found = robustness.signed_score(table, 0.5)
    assert found.value == 0 and "taken at their word: nothing is rewarded" in found.note
