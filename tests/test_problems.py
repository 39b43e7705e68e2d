"""Gains of single problems: planted reliability, shares and couplings are found again, and a real run's known numbers."""

import json

import numpy as np
import pandas as pd
import pytest

from lad_utils import problem_entries, problem_plots, problems
from lad_utils.energy import unbiased_energy, variance
from lad_utils.params import REPOSITORY

HISTORY = REPOSITORY.parent / "shared" / "data" / "dsr_sub_history" / "acc_step_500.json"
RUNS = [f"main/c{i}/seed{s}" for i in range(4) for s in range(2)]


def found_by_name(entries):
    return {e["name"]: e for e in entries}


def world(rng, *, n=4000, sd_gain=0.3, sd_run=0.4, sd_base=0.2, sd_cohort=0.0, runs=RUNS, coupling=0.0):
    """Normal gains with known variances: rates after (n, runs), base draws (n, 3), true gain (n,), ability (n,).

    `coupling`: the part of the true gain that hangs on ability; 0 leaves gains that nothing measured beforehand can tell.
    """
    ability = rng.normal(0, 0.3, n)
    gain = coupling * ability + np.sqrt(max(sd_gain**2 - (0.3 * coupling) ** 2, 0)) * rng.normal(size=n)
    draws = ability[:, None] + rng.normal(0, sd_base, (n, 3))
    cohorts = [r.split("/")[1] for r in runs]
    own = pd.DataFrame({c: rng.normal(0, sd_cohort, n) for c in dict.fromkeys(cohorts)})[cohorts].to_numpy()
    after = (ability + gain)[:, None] + own + rng.normal(0, sd_run, (n, len(runs)))
    return pd.DataFrame(after, columns=runs), pd.DataFrame(draws, columns=[1, 2, 3]), gain, ability


def table_of(signals, after, draws, *, n_resamples=0, n_splits=10, seed=0):
    halves = problems.deal_runs(after.columns, n_splits=n_splits, rng=np.random.default_rng(seed))
    gains = problems.problem_gains(after, draws, halves)
    found = problems.predictor_table(signals, gains, rng=np.random.default_rng(seed), n_resamples=n_resamples)
    return found.pivot(index="name", columns="measure", values="value"), found


def test_gains_by_hand():
    after, draws = [[0.5, 0.75, 1.0, 0.25]], [[0.1, 0.2, 0.3]]
    halves = np.array([[[0.5, 0.5, 0, 0], [0, 0, 0.5, 0.5]]])
    gains = problems.problem_gains(after, draws, halves)
    assert gains.a == pytest.approx(np.array([[0.625 - 0.2]])) and gains.b == pytest.approx(np.array([[0.625 - 0.3]]))
    assert gains.clean == pytest.approx([0.625 - 0.2]) and gains.coupled == pytest.approx([0.625 - 0.1])


def test_halves_hold_the_same_number_of_different_runs_and_each_cohorts_seeds_evenly():
    halves = problems.deal_runs(RUNS, n_splits=50, rng=np.random.default_rng(0))
    assert halves.sum(axis=2) == pytest.approx(1) and not (halves.prod(axis=1) > 0).any()
    by_cohort = (halves > 0).reshape(50, 2, 4, 2).sum(axis=3)
    assert (by_cohort == 1).all()
    assert len({tuple(h[0]) for h in halves}) > 8  # and they are random: 16 ways to choose a seed of each cohort


def test_an_odd_run_stays_out_and_one_run_is_an_error():
    halves = problems.deal_runs(RUNS[:5], n_splits=20, rng=np.random.default_rng(0))
    assert ((halves > 0).sum(axis=2) == 2).all()
    assert (halves > 0).any(axis=(0, 1)).all()
    with pytest.raises(ValueError, match="1 runs make no two halves"):
        problems.deal_runs(RUNS[:1], n_splits=2, rng=np.random.default_rng(0))


def test_planted_reliabilities_of_halves_single_runs_and_all_runs_are_found_again():
    after, draws, _, _ = world(np.random.default_rng(1), n=20_000, sd_cohort=0.2)
    halves = problems.deal_runs(after.columns, n_splits=10, rng=np.random.default_rng(0))
    table = problems.ceiling_table(after, draws, halves, rng=np.random.default_rng(0), n_resamples=0).set_index("name").value
    gain, cohort, run, base = 0.3**2, 0.2**2, 0.4**2, 0.2**2  # halves share their cohorts: 4 of them, 8 runs
    assert table.ceiling == pytest.approx((gain + cohort / 4) / (gain + cohort / 4 + run / 4 + base), abs=0.015)
    assert table.ceiling_one_run == pytest.approx(gain / (gain + cohort + run + base), abs=0.015)
    assert table.ceiling_one_run_same_cohort == pytest.approx((gain + cohort) / (gain + cohort + run + base), abs=0.015)
    assert table.ceiling_all_runs == pytest.approx((gain + cohort / 4) / (gain + cohort / 4 + run / 8 + base), abs=0.015)


def test_a_planted_explained_share_is_found_whatever_the_number_of_runs():
    for runs in (RUNS[:2], RUNS):
        rng = np.random.default_rng(2)
        after, draws, gain, _ = world(rng, n=10_000, runs=runs)
        signals = pd.DataFrame({"variance": gain + rng.normal(0, 0.3, len(gain)), "noise": rng.normal(size=len(gain))})
        wide, _ = table_of(signals, after, draws)
        assert wide.explained_share["variance"] == pytest.approx(0.5, abs=0.04)
        assert wide.explained_share_rank["variance"] == pytest.approx(0.5, abs=0.05)
        assert wide.explained_share["noise"] == pytest.approx(0, abs=0.005)


def test_a_shared_base_draw_couples_what_is_unrelated_and_separate_draws_do_not():
    after, draws, _, _ = world(np.random.default_rng(3), n=10_000)
    signals = pd.DataFrame({"variance": draws[1], "pass_rate": draws[1], "headroom": -draws[1]})
    wide, _ = table_of(signals, after, draws)
    assert abs(wide.rho["pass_rate"]) < 0.03 and wide.explained_share["pass_rate"] < 0.005
    sd = np.sqrt(0.3**2 + 0.2**2), np.sqrt(0.3**2 + 0.4**2 / 8 + 0.2**2)
    pearson = -(0.2**2) / np.prod(sd)
    assert wide.coupled_rho["pass_rate"] == pytest.approx(6 / np.pi * np.arcsin(pearson / 2), abs=0.03)
    assert wide.coupled_rho["headroom"] == -wide.coupled_rho["pass_rate"]


def test_choosing_rarely_solved_problems_by_b1_brings_no_regression_to_the_mean():
    rng = np.random.default_rng(4)
    p = rng.beta(1, 2, 20_000)
    draws = pd.DataFrame(rng.binomial(8, p[:, None], (len(p), 3)) / 8, columns=[1, 2, 3])
    after = pd.DataFrame(rng.binomial(8, p[:, None], (len(p), 4)) / 8, columns=RUNS[:4])  # training does nothing
    signals = pd.DataFrame({"variance": draws[1] * (1 - draws[1])})
    rare = problems.subsets(problems.Problems(signals, after, draws), None)["rare"]
    assert 0 < len(rare.after) < len(p) and rare.draws[1].max() == problems.RARE
    gain = rare.after.mean(axis=1)
    assert abs((gain - rare.draws[2]).mean()) < 0.005
    assert (gain - rare.draws[1]).mean() > 0.03


def test_intervals_of_rho_and_share_cover_the_truth_nineteen_times_in_twenty_or_nearly():
    hits = np.zeros(2)
    for seed in range(40):
        rng = np.random.default_rng([5, seed])
        after, draws, gain, _ = world(rng, n=150, sd_run=0.2, sd_base=0.1)
        signals = pd.DataFrame({"variance": gain + rng.normal(0, 0.3, len(gain))})
        found = table_of(signals, after, draws, n_splits=2, n_resamples=80, seed=seed)[1].set_index("measure")
        whole = 0.5 * 0.3**2 / (0.3**2 + 0.2**2 / 8 + 0.1**2)  # squared correlation with the gain of all runs
        truths = 6 / np.pi * np.arcsin(np.sqrt(whole) / 2), 0.5
        hits += [found.low[m] <= t <= found.high[m] for m, t in zip(("rho", "explained_share"), truths, strict=True)]
    assert (hits >= 33).all(), hits  # of 40; at 95% fewer happen once in 300, at 80% every second time


def test_a_share_without_reliability_is_undefined_and_says_why():
    rng = np.random.default_rng(6)
    noise = pd.DataFrame(rng.normal(size=(40, 4)), columns=RUNS[:4])
    draws = pd.DataFrame(rng.normal(size=(40, 3)), columns=[1, 2, 3])
    signals = pd.DataFrame({"variance": rng.normal(size=40), "same": 1.0, "gappy": [np.nan, *range(39)]})
    seeds = (s for s in range(50) if np.isnan(table_of(signals, noise, draws, seed=s)[0].explained_share["variance"]))
    found = table_of(signals, noise, draws, seed=next(seeds), n_resamples=20)[1]
    shares = found[found.measure == "explained_share"].set_index("name")
    assert "halves do not agree" in shares.reason["variance"]
    assert shares.reason["same"] == "constant" and shares.reason["gappy"] == "missing for 1 of 40 problems"
    assert (found["value"].isna() == (found["reason"] != "")).all()
    assert found[found["value"].isna()][["low", "high"]].isna().all(axis=None)


def test_out_of_fold_predictions_of_pure_noise_err_low_and_a_planted_line_is_found():
    null, planted = [], []
    for seed in range(30):
        rng = np.random.default_rng([7, seed])
        x, noise = pd.DataFrame(rng.normal(size=(60, 5))), rng.normal(size=60)
        line = 2 * x[0] - x[1] + noise
        null.append(np.corrcoef(problems.combination(x, noise, rng=rng), noise)[0, 1])
        planted.append(np.corrcoef(problems.combination(x, line, rng=rng), line)[0, 1])
    assert -0.25 < np.mean(null) < 0  # with the intercepts of training folds it is -.31
    assert np.mean(planted) == pytest.approx(np.sqrt(5 / 6), abs=0.05)


def test_a_combination_that_predicts_the_wrong_way_explains_less_than_nothing():
    after, draws, gain, _ = world(np.random.default_rng(12), n=2000)
    wide, _ = table_of(pd.DataFrame({"variance": -gain, "combination": -gain}), after, draws)
    assert wide.explained_share["combination"] == pytest.approx(-1, abs=0.1)
    assert wide.explained_share["variance"] == pytest.approx(1, abs=0.1)
    assert wide.rho_minus_variance["combination"] == pytest.approx(-2 * abs(wide.rho["variance"]))


def test_the_combination_never_sees_its_own_problems_gain():
    rng = np.random.default_rng(8)
    x, gain = pd.DataFrame(rng.normal(size=(50, 3))), rng.normal(size=50)
    first = problems.combination(x, gain, rng=np.random.default_rng(0))
    changed = gain.copy()
    changed[7] += 1000
    again = problems.combination(x, changed, rng=np.random.default_rng(0))
    assert again[7] == first[7] and (again != first).sum() >= 44  # its fold of 5 alone stays


def test_bases_that_share_half_of_their_gains_variance_are_told_from_noise():
    rng = np.random.default_rng(9)
    n, sides = 8000, []
    common = rng.normal(0, 0.3 * np.sqrt(0.5), n)
    for runs in (RUNS, RUNS[:4]):
        after, draws, _, _ = world(rng, n=n, sd_gain=0.3 * np.sqrt(0.5), runs=runs)
        sides.append(problems.Problems(None, after.add(common, axis=0), draws))
    found = problems.between_bases(*sides, rng=np.random.default_rng(0), n_resamples=20).set_index("name")
    within = 0.09 / (0.09 + 0.16 / 2 + 0.04)  # two runs a half on either side, though one base has four to give
    assert found.value["within_first"] == pytest.approx(within, abs=0.03)
    assert found.value["within_second"] == pytest.approx(within, abs=0.03)
    assert found.value["ceiling"] == pytest.approx(within / 2, abs=0.03)
    assert found.low["over_within"] < 0.5 < found.high["over_within"]


def test_transfer_energy_by_hand_and_its_shuffled_control_is_the_mean_of_shuffles():
    rng = np.random.default_rng(10)
    tasks = pd.DataFrame({"task_id": list("abcdef"), "correct": [1, 4, 6, 7, 2, 0], "k": 8})
    vectors, task_vectors = np.eye(2), np.abs(rng.normal(size=(6, 2)))
    task_vectors /= np.linalg.norm(task_vectors, axis=1, keepdims=True)
    found = problems.transfer_energy([4, 2], [8, 8], vectors, tasks, task_vectors)
    turned = [
        task_vectors[np.roll(np.arange(6), i)] for i in range(6)
    ]  # every task meets every vector once, as in all shuffles
    shuffled = np.mean([problems.transfer_energy([4, 2], 8, vectors, tasks, v).transfer for v in turned], axis=0)
    assert found.transfer_shuffled.to_numpy() == pytest.approx(shuffled)
    one = problems.transfer_energy([4, 2], [8, 8], vectors, tasks, np.tile([1.0, 0.0], (6, 1)))
    assert one.transfer[1] == 0 and one.transfer[0] > 0  # a question at right angles to every task gets nothing
    flat = problems.transfer_energy([4, 2], [8, 8], np.tile([1.0, 0.0], (2, 1)), tasks, np.tile([1.0, 0.0], (6, 1)))
    assert flat.transfer[0] / flat.transfer[1] == pytest.approx(variance(4, 8) / variance(2, 8))  # K = 1 leaves p(1-p)


@pytest.fixture(scope="module")
def tables():
    """A study's tables, simulated: two cohorts of two seeds, two mixtures; larger model and likelihood know the pass rate."""
    rng = np.random.default_rng(11)
    rows, features, questions, fresh, relevance = [], [], [], [], []
    for split, n in (("eval", 120), ("fresh", 30)):
        p = rng.beta(1, 1.5, n)
        ids = [f"{split}-{i:03d}" for i in range(n)]
        after = np.clip(p + 1.2 * p * (1 - p) + rng.normal(0, 0.1, n), 0, 1)
        for draw in (1, 2, 3):
            rows.append(pd.DataFrame({"split": split, "draw": draw, "task_id": ids, "n": 8, "c": rng.binomial(8, p)}))
        larger = rng.binomial(16, after)
        told = {"split": split, "task_id": ids, "log_likelihood": np.log(p + 0.01), "larger_n": 16, "larger_c": larger}
        features.append(pd.DataFrame(told))
        relevance.append(pd.DataFrame({"split": split, "task_id": ids, "transfer": p * (1 - p), "transfer_shuffled": np.nan}))
        for run in [*RUNS[:4], "mixture/mixture_00/seed0", "mixture/mixture_01/seed0"]:
            c = rng.binomial(8, after)
            if split == "fresh":
                fresh.append(pd.DataFrame({"run_id": run, "task_id": ids, "n": 8, "c": c}))
                continue
            for variant in ("sampled", "greedy"):
                told = {
                    "run_id": run,
                    "task_id": ids,
                    "variant": variant,
                    "n_after": 8,
                    "c_after": c if variant == "sampled" else 0,
                }
                questions.append(pd.DataFrame(told))
    return [pd.concat(t, ignore_index=True) for t in (rows, features, relevance, questions, fresh)]


def sets_of(tables, **changes):
    counts, features, transfer, questions, fresh = tables
    whole = problems.study_problems(counts, features, transfer, questions, split="eval", **changes)
    return problems.subsets(whole, problems.study_problems(counts, features, transfer, fresh, split="fresh", **changes))


def test_a_study_gives_every_signal_on_every_subset_with_a_value_or_a_reason(tables):
    found = found_by_name(problem_entries.problem_entries(sets_of(tables), n_resamples=20))
    signals = {n.split(".")[2] for n in found if n.count(".") == 3}
    assert signals == {*problem_plots.LABELS, "gains_of_mixture"}
    for subset, n in (("all", 120), ("fresh", 30)):
        assert found[f"problems.{subset}.ceiling"]["n"] == n
        share = found[f"problems.{subset}.variance.explained_share"]
        assert share["value"] > 0 and share["ci_low"] < share["value"]
    assert found["problems.all.transfer_shuffled.rho"]["reason"] == "missing for 120 of 120 problems"
    assert all(bool(e["reason"]) == (e["value"] is None) for e in found.values())
    assert found["problems.all.larger_minus_own.rho"]["value"] > 0.2
    assert found == found_by_name(problem_entries.problem_entries(sets_of(tables), n_resamples=20))


def test_signals_come_from_b1_alone_and_gains_never_touch_it(tables):
    counts = tables[0].copy()
    counts.loc[counts.draw != 1, "c"] = 0
    first, other = (sets_of([c, *tables[1:]])["all"] for c in (tables[0], counts))
    pd.testing.assert_frame_equal(first.signals, other.signals)
    b1 = first.draws[1]
    assert first.signals["lad"].to_numpy() == pytest.approx(unbiased_energy((8 * b1).round(), 8, 1))
    mixture = problems.after_rates(tables[3], arm="mixture").mean(axis=1)
    assert first.signals["gains_of_mixture"].to_numpy() == pytest.approx((mixture - b1).to_numpy())
    halves = problems.deal_runs(first.after.columns, n_splits=5, rng=np.random.default_rng(0))
    changed = first.draws.assign(**{"1": 0})[["1", 2, 3]]
    for one, two in zip(*(problems.problem_gains(first.after, d, halves)[:3] for d in (first.draws, changed)), strict=True):
        assert one == pytest.approx(two)


def test_invalid_runs_and_greedy_answers_do_not_count(tables):
    valid = [r for r in RUNS[:4] if r != RUNS[0]]
    kept = sets_of(tables, runs=valid)["all"]
    assert list(kept.after) == sorted(valid) and "gains_of_mixture" not in kept.signals
    assert kept.after.to_numpy().max() > 0


def test_missing_runs_and_few_problems_are_reasons_not_failures(tables):
    empty = problem_entries.problem_entries(problems.subsets(None, None), n_resamples=2)
    assert [e["reason"] for e in empty] == ["0 runs were evaluated on such problems, 2 are needed"] * 3
    none = sets_of([*tables[:4], tables[4].iloc[:0]])
    assert none["fresh"] is None and none["all"] is not None
    one = sets_of(tables, runs=RUNS[:1])
    assert problem_entries.problem_entries({"all": one["all"]})[0]["reason"].startswith("1 runs")
    few = problems.Problems(*(t.iloc[:9] for t in sets_of(tables)["all"]))
    entries = problem_entries.problem_entries({"all": few}, n_resamples=2)
    assert {e["reason"] for e in entries} == {"9 problems, at least 10 are needed"}


def test_pictures_and_tables_draw_what_there_is(tables):
    sets = sets_of(tables)
    entries = problem_entries.problem_entries(sets, n_resamples=0)
    figure = problem_plots.explained_shares(entries)
    assert [a.get_title(loc="left") for a in figure.axes] == ["all problems", "rarely solved ones", "fresh problems"]
    curve = problem_plots.ceiling_curve(sets["all"], rng=np.random.default_rng(0))
    assert curve.per_half.tolist() == [1, 2] and curve.ceiling[1] > curve.ceiling[0]
    clean, coupled = (c.lines[0].get_ydata() for c in problem_plots.gains_by_pass_rate(sets["all"]).axes[0].containers)
    assert coupled[0] > clean[0] and coupled[-1] < clean[-1]
    table = problem_plots.history_table([], entries, study="micro")
    assert table.loc["gains of mixture runs: rho", "micro"] != "-"
    assert list(table) == ["history", "micro", "published"]


needs_history = pytest.mark.skipif(
    not HISTORY.is_file(), reason="the history of a real run is not here: shared/data/dsr_sub_history"
)


@needs_history
def test_known_numbers_of_a_real_run_come_out():
    found = found_by_name(problem_entries.history_entries(HISTORY, n_resamples=0))
    for signal, rho, coupled in (
        ("variance", 0.409, 0.362),
        ("lad", 0.393, 0.320),
        ("pass_rate", 0.195, 0.024),
        ("headroom", -0.195, -0.024),
    ):
        assert found[f"problems.history.{signal}.rho"]["value"] == pytest.approx(rho, abs=5e-4)
        assert found[f"problems.history.{signal}.coupled_rho"]["value"] == pytest.approx(coupled, abs=5e-4)
    assert found["problems.history.ceiling_rank"]["value"] == pytest.approx(0.45, abs=5e-3)
    assert found["problems.history.ceiling"]["value"] == pytest.approx(0.538, abs=5e-4)
    assert found["problems.history.variance.explained_share"]["value"] == pytest.approx(0.375**2 / 0.538, abs=2e-3)
    assert found["problems.history.variance.rho"]["n"] == 1209


def test_a_history_cut_short_is_an_error_that_names_the_problem(tmp_path):
    path = tmp_path / "short.json"
    path.write_text(json.dumps({"a": [0.5] * 44, "b": [0.5] * 43}))
    with pytest.raises(ValueError, match="problem b has 43 visits, 44 are needed"):
        problem_entries.history_problems(path)
