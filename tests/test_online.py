"""Which task comes next: the posterior by its definition, every sampler's choice, learning curves at equal tokens."""

import matplotlib
import numpy as np
import pandas as pd
import pytest
from scipy import stats
from torch.utils.data import DataLoader

from lad_utils import online, online_curves, online_plots

matplotlib.use("agg")
RATES = np.array([0.02, 0.1, 0.34, 0.5, 0.9, 0.98])


def sampler(name, *, n=64, prompts=8, steps=400, seed=0, k=32, gamma=1.0):
    p = np.linspace(0.01, 0.99, n)
    return online.TaskSampler(
        name, np.round(k * p), np.full(n, k), prompts=prompts, generations=4, steps=steps, gamma=gamma, seed=seed
    )


def test_the_posterior_energy_is_the_mean_over_the_beta_it_says():
    found = online.TaskPosterior([1, 4], [8, 8], strength=8).energy(1)
    drawn = [stats.beta(2, 8), stats.beta(5, 5)]
    assert found == pytest.approx([d.expect(lambda p: p * (1 - p) ** 2) for d in drawn])
    assert online.TaskPosterior([1], [8]).energy(0) == pytest.approx(stats.beta(2, 8).expect(lambda p: p * (1 - p)))


def test_base_rollouts_count_as_one_group_at_most():
    many, few = online.TaskPosterior([16], [32]), online.TaskPosterior([2], [4])
    assert (many.right[0], many.wrong[0]) == (4, 4) and (few.right[0], few.wrong[0]) == (2, 2)


def test_evidence_decays_for_all_and_grows_for_what_was_visited():
    posterior = online.TaskPosterior([4, 4], [8, 8], decay=0.5)
    posterior.update([1], [8], 8)
    assert posterior.right.tolist() == [2, 2 + 8] and posterior.wrong.tolist() == [2, 2]
    posterior.update([1, 1], [8, 0], 8)  # a task twice in one step
    assert posterior.right.tolist() == [1, 5 + 8] and posterior.wrong.tolist() == [1, 1 + 8]
    for _ in range(60):
        posterior.update([], [], 8)
    assert posterior.energy(1) == pytest.approx([1 / 12] * 2)  # nothing known: E[p(1-p)^2] of a flat prior


@pytest.mark.parametrize(("correct", "k"), [([9], [8]), ([-1], [8]), ([1, 2], [8])])
def test_impossible_counts_are_refused(correct, k):
    with pytest.raises(ValueError, match="0 <= correct <= k"):
        online.TaskPosterior(correct, k)


def test_the_posterior_follows_a_rate_that_moves():
    rng, posterior = np.random.default_rng(0), online.TaskPosterior([1], [8])
    for _ in range(200):
        posterior.update([0], rng.binomial(8, 0.9, 1), 8)
    assert stats.beta(1 + posterior.right[0], 1 + posterior.wrong[0]).mean() == pytest.approx(0.9, abs=0.05)


@pytest.mark.parametrize("name", online.SAMPLERS[1:])
def test_every_step_has_distinct_tasks_each_a_group(name):
    ours = sampler(name, steps=3)
    indices = [*ours]
    assert len(indices) == len(ours) == 4 * 8 * 4
    for step in np.reshape(indices, (4, 8, 4)):
        assert (step == step[:, :1]).all() and len(set(step[:, 0])) == 8


def test_the_order_of_lad_is_by_base_energy_and_starts_again():
    ours = sampler("lad_order", n=16)
    p = np.linspace(0.01, 0.99, 16)
    assert ours.choose(0)[0] == np.argmax(p * (1 - p) ** 2)
    assert sorted([*ours.choose(0), *ours.choose(1)]) == [*range(16)] and (ours.choose(2) == ours.choose(0)).all()


def test_weights_visit_in_proportion_to_energy():
    ours = sampler("static_lad", prompts=1)
    visits = np.bincount([ours.choose(s)[0] for s in range(20000)], minlength=64)
    expected = 20000 * ours.base / ours.base.sum()
    assert stats.chisquare(visits, expected).pvalue > 1e-3


def test_only_the_re_estimated_weights_leave_a_task_that_was_learned():
    for name, leaves in (("static_lad", False), ("online_lad", True), ("near_half", True)):
        ours = sampler(name, n=12, prompts=4)
        learned = int(np.argmax(ours.base))
        before = np.mean([learned in ours.choose(s) for s in range(500)])
        for _ in range(20):
            ours.update([learned], [8], n=8)
        after = np.mean([learned in ours.choose(s) for s in range(500)])
        assert (after < 0.5 * before) == leaves, name


def test_near_half_picks_rates_near_one_half_and_lad_harder_ones():
    chosen = {n: np.concatenate([sampler(n, seed=s).choose(0) for s in range(200)]) for n in ("near_half", "online_lad")}
    p = np.linspace(0.01, 0.99, 64)
    assert abs(p[chosen["near_half"]].mean() - 0.5) < 0.03
    assert p[chosen["online_lad"]].mean() < 0.44


def test_a_seed_gives_one_order_and_bad_names_and_sizes_are_refused():
    assert [*sampler("online_lad", seed=1, steps=2)] == [*sampler("online_lad", seed=1, steps=2)]
    assert [*sampler("online_lad", seed=1, steps=2)] != [*sampler("online_lad", seed=2, steps=2)]
    with pytest.raises(ValueError, match="'best' is unknown; samplers: lad_order"):
        sampler("best")
    with pytest.raises(ValueError, match="4 tasks, 8 are needed"):
        sampler("online_lad", n=4)


def test_the_next_batch_knows_all_but_the_last_step():
    """The dataloader fetches one batch ahead: what step t earned is known from the choice of step t+2 on."""
    ours, seen = sampler("online_lad", n=16, prompts=2, steps=4), []
    choose = ours.choose
    ours.choose = lambda step: (seen.append(float(ours.posterior.right.sum())), choose(step))[1]
    batches = iter(DataLoader([*range(16)], batch_size=8, sampler=ours))
    next(batches)
    assert len(seen) == 1
    ours.update([0], [8], n=8)
    next(batches)
    assert len(seen) == 2 and seen[1] != seen[0]


def curve_tables(ends, *, tokens=1000):
    """One run a sampler and seed: 40% before, straight to its end at `tokens` (or its own), a point half way."""
    lifts, curves = [], []
    for (name, seed), end in ends.items():
        run_id = f"online/{name}/seed{seed}"
        row = {"arm": "online", "cohort": name, "seed": seed, "variant": "sampled", "run_id": run_id, "invalid": ""}
        lifts.append(row | {"acc_before": 0.4, "acc_after": end, "lift": end - 0.4, "tokens": tokens, "steps": 8})
        half = round(1000 * (0.4 + (end - 0.4) / 2))
        curves.append({"run_id": run_id, "step": 4, "tokens": tokens // 2, "eval_tokens": 1, "n": 1000, "c": half})
    return {"lifts": pd.DataFrame(lifts), "curves": pd.DataFrame(curves)}


def test_curves_begin_at_the_base_and_end_at_the_final_evaluation():
    found = online_curves.learning_curves(curve_tables({("online_lad", 0): 0.6}))
    assert found[["step", "tokens"]].to_numpy().tolist() == [[0, 0], [4, 500], [8, 1000]]
    assert found.accuracy.tolist() == pytest.approx([0.4, 0.5, 0.6])
    assert online_curves.at_tokens(found, 750).tolist() == pytest.approx([0.55])
    assert online_curves.mean_on_the_way(found, 1000).tolist() == pytest.approx([0.5])
    assert online_curves.mean_on_the_way(found, 500).tolist() == pytest.approx([0.45])


def test_samplers_are_compared_at_the_tokens_that_all_reached():
    near, far = ({("online_lad", s): 0.6 + s / 100 for s in (0, 1)}, {("uniform", s): 0.8 + s / 100 for s in (0, 1)})
    parts = [curve_tables(near), curve_tables(far, tokens=2000)]
    curves = pd.concat([online_curves.learning_curves(p) for p in parts])
    found = {e["name"]: e for e in online_curves._at_equal_tokens(curves)}
    assert found["online.uniform.accuracy"]["value"] == pytest.approx(0.4 + (0.805 - 0.4) / 2)
    assert found["online.online_lad_minus_uniform.accuracy"]["value"] == pytest.approx(0.605 - 0.6025)
    e = found["online.online_lad_minus_uniform.accuracy"]
    assert e["ci_low"] < e["value"] < e["ci_high"] and e["n"] == 4


def test_one_seed_has_no_interval_and_says_so():
    curves = online_curves.learning_curves(curve_tables({("online_lad", 0): 0.6, ("uniform", 0): 0.5}))
    e = {e["name"]: e for e in online_curves._at_equal_tokens(curves)}["online.online_lad_minus_uniform.accuracy"]
    assert e["ci_low"] is None and "one seed" in e["note"] and e["value"] == pytest.approx(0.1)


def test_a_study_without_samplers_has_no_entries():
    lifts = curve_tables({("online_lad", 0): 0.6})["lifts"].assign(arm="main")
    assert online_curves.online_entries({"lifts": lifts, "eval_questions": pd.DataFrame()}) == []


def test_the_picture_has_a_line_a_sampler():
    curves = online_curves.learning_curves(
        curve_tables({(n, s): 0.5 + s / 50 for n in ("uniform", "online_lad") for s in (0, 1)})
    )
    figure = online_plots.curves_by_tokens(curves)
    assert [t.get_text() for t in figure.axes[0].get_legend().get_texts()] == ["uniform", "LAD weights, re-estimated"]
