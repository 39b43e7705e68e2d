"""What training logged, by step and by cohort, and what LAD adds to base p(1-p), on tables that can be worked out by hand."""

import matplotlib
import numpy as np
import pandas as pd
import pytest

from lad_utils import mechanism, mechanism_plots
from lad_utils.stats import spearman_ci

matplotlib.use("agg")


def run(cohort="random", seed=0, *, rewards, invalid="", arm="main"):
    """A run's lifts, groups and steps: `rewards` holds, by step, the sums of two groups of 8."""
    run_id = f"{arm}/{cohort}/seed{seed}"
    lifts = {"arm": arm, "cohort": cohort, "seed": seed, "variant": "sampled", "run_id": run_id, "invalid": invalid}
    groups = [{"run_id": run_id, "step": s + 1, "n": 8, "reward_sum": r} for s, pair in enumerate(rewards) for r in pair]
    steps = [
        {
            "run_id": run_id,
            "step": s + 1,
            "mean_reward": sum(pair) / 16,
            "zero_variance_share": np.mean([r in (0, 8) for r in pair]),
        }
        | {"grad_norm": 1.0 + s, "entropy": 0.5}
        for s, pair in enumerate(rewards)
    ]
    return pd.DataFrame([lifts]), pd.DataFrame(groups), pd.DataFrame(steps)


def tables(*runs):
    lifts, groups, steps = (pd.concat(parts, ignore_index=True) for parts in zip(*runs, strict=True))
    return groups, steps, lifts


def test_group_variance_is_the_unbiased_raw_one():
    found = mechanism.step_means(*tables(run(rewards=[(4, 0), (2, 8)])))
    np.testing.assert_allclose(found.group_variance, [(2 / 7 + 0) / 2, (12 / 64 * 8 / 7 + 0) / 2])
    assert found.zero_variance_share.tolist() == [0.5, 0.5] and found.mean_reward.tolist() == [4 / 16, 10 / 16]


def test_early_and_late_are_the_first_and_the_last_eighth():
    found = mechanism.step_means(*tables(run(rewards=[(4, 4)] * 16)))
    assert found.part.tolist() == ["early"] * 2 + ["middle"] * 12 + ["late"] * 2


def test_seeds_of_a_cohort_count_alike_and_invalid_runs_not_at_all():
    one, two = run(rewards=[(4, 4)] * 8), run(seed=1, rewards=[(0, 0)] * 7 + [(4, 4)])
    broken = run(seed=2, rewards=[(8, 8)] * 8, invalid="no group ever had both rewards")
    found = mechanism.run_mechanics(mechanism.step_means(*tables(one, two, broken))).iloc[0]
    assert found.group_variance == pytest.approx((2 / 7 + 2 / 7 / 8) / 2)
    assert found.early_group_variance == pytest.approx(1 / 7) and found.late_group_variance == pytest.approx(2 / 7)
    assert found.zero_variance_share == pytest.approx(7 / 16) and found.grad_norm == pytest.approx(4.5)


def test_other_arms_do_not_enter():
    found = mechanism.step_means(*tables(run(rewards=[(4, 4)] * 8), run(arm="mixture", rewards=[(0, 0)] * 8)), arm="mixture")
    assert found.run_id.unique().tolist() == ["mixture/random/seed0"]


def cohorts(n=19, *, seed=0, **columns):
    rng = np.random.default_rng(seed)
    variance, headroom = rng.uniform(size=(2, n))
    table = pd.DataFrame({"variance": variance, "lad": variance + headroom, "family": [f"f{i // 3}" for i in range(n)]})
    table["cohort"] = [f"c{i}" for i in range(n)]
    logged = {name: table[columns.get(name, "variance")] for name in mechanism.TARGETS}
    return table.assign(**{n: v + rng.normal(0, 0.05, len(v)) for n, v in logged.items()})


def by_name(table):
    return {e["name"]: e for e in mechanism.mechanism_entries(table)}


def test_what_lad_adds_is_nothing_where_the_target_is_base_variance_itself():
    table = cohorts()
    found = by_name(table)
    assert found["variance.group_variance_rho"]["value"] > 0.9
    assert found["lad.group_variance_rho"]["value"] == pytest.approx(spearman_ci(table.lad, table.group_variance).rho)
    assert found["lad_minus_variance.group_variance_rho"]["ci_high"] < 0
    assert found["lad_given_variance.group_variance_added_q2"]["value"] < 0.02


def test_what_lad_adds_shows_where_the_target_follows_lad():
    found = by_name(cohorts(late_group_variance="lad"))
    assert found["lad_minus_variance.late_group_variance_rho"]["ci_low"] > 0
    assert found["lad_given_variance.late_group_variance_rho"]["ci_low"] > 0.5
    assert found["lad_given_variance.late_group_variance_added_q2"]["value"] > 0.2


def test_a_share_of_zero_variance_is_compared_in_its_own_direction():
    table = cohorts()
    table["zero_variance_share"] = -table.lad
    found = by_name(table)
    assert found["lad.zero_variance_share_rho"]["value"] == -1
    assert found["lad_minus_variance.zero_variance_share_rho"]["value"] > 0


def test_held_out_planes_are_refitted_without_the_fold():
    x = pd.DataFrame({"x": [0.0, 1, 2, 3, 4, 10]})
    y, folds = pd.Series([0.0, 1, 2, 3, 4, 0]), pd.Series([*"abcdef"])
    guesses, means = [], []
    for i in range(6):
        rest = [j for j in range(6) if j != i]
        slope, intercept = np.polyfit(x.x[rest], y[rest], 1)
        guesses.append(intercept + slope * x.x[i])
        means.append(y[rest].mean())
    expected = 1 - ((y - guesses) ** 2).sum() / ((y - means) ** 2).sum()
    assert mechanism.held_out_q2(x, y, folds) == pytest.approx(expected)
    assert np.isnan(mechanism.held_out_q2(x.head(3), y.head(3), folds.head(3)))


def test_too_few_cohorts_give_reasons_and_no_numbers():
    found = by_name(cohorts(3).assign(family="f"))
    assert found["lad_given_variance.group_variance_added_q2"]["value"] is None
    assert all(e["value"] is not None or e["reason"] for e in found.values())


def test_figures_hold_every_cohort_and_every_target():
    by_step = mechanism.step_means(
        *tables(run("hard", rewards=[(4, 4)] * 8), run("easy", rewards=[(8, 4)] * 8), run(rewards=[(2, 0)] * 8))
    )
    figure = mechanism_plots.learning_curves(by_step, {"hard": "difficulty", "easy": "difficulty", "random": "random"})
    assert [len(axes.lines) for axes in figure.axes] == [2, 1] * 3
    assert [axes.get_title() for axes in figure.axes[:2]] == ["difficulty", "others"]
    axes = mechanism_plots.predictors_of_training({"designed": by_name(cohorts())}).axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == [*mechanism_plots.LABELS.values()]
