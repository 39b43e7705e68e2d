"""Tasks never solved: their kinds, bounds on p and the price of finding out, by hand and by simulation."""

import numpy as np
import pandas as pd
import pytest

from lad_utils import zeros


def test_kinds_of_zeros_by_hand():
    strict, flexible, truncated, k = [0, 0, 0, 0, 1], [1, 0, 0, 0, 1], [8, 8, 4, 3, 0], [8] * 5
    assert zeros.classify_zeros(strict, flexible, truncated, k).tolist() == ["format", "budget", "budget", "unsolved", ""]


def test_more_strict_than_flexible_successes_is_an_error_naming_the_row():
    with pytest.raises(ValueError, match="row 1 has 3 strict but 2 flexible"):
        zeros.classify_zeros([0, 3], [1, 2], [0, 0], [8, 8])


def test_the_bound_after_no_success_is_the_closed_form():
    assert zeros.pass_rate_bound([8, 32]) == pytest.approx([1 - 0.05 ** (1 / 8), 1 - 0.05 ** (1 / 32)])
    assert zeros.pass_rate_bound(8, 8) == 1.0
    assert zeros.pass_rate_bound(8, [0, 1, 4]).tolist() == sorted(zeros.pass_rate_bound(8, [0, 1, 4]))


def test_a_fixed_tasks_bound_covers_and_a_picked_ones_posterior_is_calibrated():
    rng, k, more = np.random.default_rng(0), 16, 48
    p = rng.beta(0.4, 2.0, 40_000)
    correct = rng.binomial(k, p)
    assert np.mean(p <= zeros.pass_rate_bound(k, correct)) >= 0.95
    picked = p[correct == 0]
    found = rng.binomial(more, picked) > 0
    assert zeros.chance_of_a_find(k, more, prior=(0.4, 2.0)) == pytest.approx(found.mean(), abs=0.02)
    assert np.mean(picked <= zeros.posterior_bound(k, prior=(0.4, 2.0))) == pytest.approx(0.95, abs=0.01)


def tasks(n=400, k=16, seed=1):
    rng = np.random.default_rng(seed)
    p = rng.beta(0.4, 2.0, n)
    flexible = rng.binomial(k, p)
    columns = {"strict": rng.binomial(flexible, 0.5), "flexible": flexible, "truncated": rng.integers(0, k + 1, n), "k": k}
    return pd.DataFrame(columns | {"tokens": 20 * k})


def test_the_table_adds_up_and_prices_the_extra_rollouts():
    table = tasks()
    found = zeros.zeros_table(table, more=48).set_index("kind")
    assert found.tasks.sum() == (table.strict == 0).sum() and list(found.index) == list(zeros.KINDS)
    assert found.extra_rollouts["unsolved"] == 48 * found.tasks["unsolved"]
    assert found.extra_tokens["unsolved"] == pytest.approx(20 * found.extra_rollouts["unsolved"])
    assert 0 < found.expected_finds["unsolved"] < found.tasks["unsolved"]
    undefined = found.loc["format", ["posterior_bound", "expected_finds"]]
    assert undefined.isna().all() and found.reason["format"]


def test_where_no_prior_can_be_fitted_the_reason_stands_beside_the_gap():
    none = tasks().assign(strict=0, flexible=0)
    found = zeros.zeros_table(none, more=48)
    assert found.expected_finds.isna().all() and found.reason.str.len().gt(0).all()
    assert found.bound.dropna().between(0, 1).all()
