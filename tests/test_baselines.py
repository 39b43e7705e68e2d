"""The metrics beside LAD do what their papers say, none looks at a lift it is to tell, and who is dominated is counted."""

import numpy as np
import pandas as pd
import pytest
from scipy.integrate import quad
from scipy.stats import beta

from lad_utils import baseline_words, baselines, cohort_scores, frontier, model_baselines, training_baselines
from lad_utils.costs import COUNTS
from lad_utils.params import load_study
from lad_utils.runs import PUBLISHED, REFERENCE, read_table

MIXTURES = [f"mixture_{i:02d}" for i in range(14)]


@pytest.mark.parametrize(("correct", "k"), [(0, 8), (3, 8), (8, 8), (16, 32), (31, 32)])
def test_closeness_to_one_half_is_its_mean_under_the_posterior(correct, k):
    posterior = beta(1 + correct, 1 + k - correct)
    expected = quad(lambda p: baselines.closeness(p) * posterior.pdf(p), 0, 1, points=[0.5])[0]
    assert baselines.expected_closeness(np.array([correct]), np.array([k]))[0] == pytest.approx(expected, abs=1e-6)


def test_difficulty_told_from_a_reference_set_follows_neighbours_and_is_sharpened_without_the_asked_tasks():
    rng = np.random.default_rng(0)
    centres = np.eye(12)[:2]
    kinds = rng.integers(0, 2, 80)
    vectors = centres[kinds] + 0.05 * rng.normal(size=(80, 12))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    rates = np.where(kinds == 0, 0.1, 0.8) + 0.02 * rng.normal(size=80)
    told = baselines.predicted_difficulty(rates[:60], vectors[:60], vectors[60:])
    assert told == pytest.approx(np.where(kinds[60:] == 0, 0.1, 0.8), abs=0.05)
    noise = baselines.predicted_difficulty(rng.permutation(rates[:60]), vectors[:60], vectors[60:])
    assert np.ptp(noise) < 0.25  # where neighbours say nothing every task is told about the mean


def test_dots_knows_no_rollouts_but_those_of_its_reference_set():
    rng = np.random.default_rng(1)
    ids = [f"t{i}" for i in range(600)]
    counts = pd.DataFrame({"cohort": np.repeat(["a", "b"], 300), "position": [*range(300)] * 2, "task_id": ids, "k": 8})
    counts["correct"] = rng.integers(0, 9, 600)
    vectors = pd.DataFrame(rng.normal(size=(600, 6)), index=ids)
    found, asked = baselines.dots_scores(counts, vectors, seed=0)
    other = counts.assign(correct=counts["correct"].where(counts["task_id"].isin(asked), 0))
    assert len(asked) == baselines.REFERENCE_TASKS and baselines.dots_scores(other, vectors, seed=0)[0].equals(found)


def made_of(lifts=None):
    rng = np.random.default_rng(2)
    index = pd.MultiIndex.from_tuples([("mixture", m) for m in MIXTURES] + [("main", "random")], names=["arm", "cohort"])
    features = pd.DataFrame(rng.random((15, 3)), index=index, columns=[*"abc"])
    features["constant"] = 0.0
    known = features.iloc[:14] @ np.array([0.3, -0.2, 0.1, 0.0]) if lifts is None else lifts
    return features, known


def test_a_datamodel_finds_a_line_and_never_sees_the_lift_that_it_tells():
    features, lifts = made_of()
    told = training_baselines.datamodel(features, lifts)
    assert np.corrcoef(told[lifts.index], lifts)[0, 1] > 0.99
    assert told["main", "random"] == pytest.approx(features.loc[("main", "random")] @ [0.3, -0.2, 0.1, 0.0], abs=0.02)
    changed = lifts.copy()
    changed.iloc[3] = 9.0
    again = training_baselines.datamodel(features, changed)
    assert again.iloc[3] == pytest.approx(told.iloc[3]) and again.iloc[4] != pytest.approx(told.iloc[4])


def test_composition_counts_wrong_labels_copies_skills_and_screened_difficulty():
    tasks = pd.DataFrame(
        {"task_id": ["t", "u", "v"], "answer": ["1", "2", "3"], "operations": ["+-", "+*", "+-"], "split": "pool"}
    )
    tasks["pass_rate"] = [0.1, 0.5, np.nan]
    cohorts = pd.DataFrame({"arm": "main", "cohort": "a", "task_id": ["t", "t", "u", "v"], "answer": ["1", "1", "9", "3"]})
    found = training_baselines.composition(cohorts, tasks).loc[("main", "a")]
    assert (found["wrong"], found["distinct"], found["skill_+-"], found["skill_+*"]) == (0.25, 0.75, 0.75, 0.25)
    assert found[[f"difficulty_{i}" for i in range(5)]].tolist() == [0.5, 0, 0.25, 0, 0]


def test_a_solution_ends_in_the_cohorts_own_label():
    tasks = read_table(REFERENCE / "tasks.parquet").head(2)
    members = pd.DataFrame({"task_id": tasks["task_id"], "answer": [tasks["answer"][0], "77"]})
    found = model_baselines.reference_solutions(members, tasks)
    assert found.solution[0].endswith(f"#### {tasks['answer'][0]}") and found.solution[1].endswith("#### 77")


def entries_of(rows):
    found = {}
    for metric, rho, held in rows:
        found[f"{metric}.rho"] = {"value": rho, "ci_low": None if rho is None else rho - 0.2, "ci_high": rho and rho + 0.2}
        found[f"{metric}.held_out_family_rho"] = {"value": held}
    nothing = {"value": None, "ci_low": None, "ci_high": None}
    for metric in baselines.METRICS:
        found.setdefault(f"{metric}.rho", nothing)
        found.setdefault(f"{metric}.held_out_family_rho", nothing)
    return found


def test_a_metric_is_dominated_by_one_that_costs_no_more_and_agrees_as_well():
    found = entries_of([("lad", 0.6, 0.5), ("variance", 0.3, 0.1), ("mean_pass_rate", -0.7, 0.2), ("vendi", 0.1, None)])
    cost = {"lad": 10.0, "variance": 8.0, "mean_pass_rate": 8.0, "vendi": 2.0}
    costs = pd.DataFrame(
        [{"kind": "metric", "name": m, "flops": f, "seconds": 1.0, "peak_bytes": 1.0} for m, f in cost.items()]
    )
    table = frontier.frontier_table(found, costs).set_index("metric")
    assert table["dominated_by"].to_dict() == {
        "lad": "mean_pass_rate",
        "variance": "mean_pass_rate",
        "mean_pass_rate": "",
        "vendi": "",
    }
    assert table.loc["mean_pass_rate", ["rho", "low", "high"]].tolist() == pytest.approx(
        [0.7, 0.5, 0.9]
    )  # its better direction
    assert np.isnan(table.loc["vendi", "held_out"])


def test_what_a_metric_adds_to_lad_is_held_out_and_nothing_for_noise():
    rng = np.random.default_rng(3)
    table = pd.DataFrame({m: rng.normal(size=48) for m in baselines.METRICS})
    table = table.assign(
        cohort=[f"c{i}" for i in range(48)], family="mixture", headroom=table["variance"] + 0.01 * table["vendi"]
    )
    table["lift"] = table["lad"] + table["variance"] + 0.2 * rng.normal(size=48)
    found = {
        e["name"]: e for e in frontier.addition_entries(table.assign(lift_other_seeds=table["lift"], dots=np.nan, n_steps=2.0))
    }
    assert found["adds.variance.partial_rho"]["ci_low"] > 0.5 and found["adds.variance.q2_gain"]["value"] > 0.2
    assert abs(found["adds.token_length.q2_gain"]["value"]) < 0.1
    assert found["adds.dots.q2_gain"]["value"] is None and found["adds.dots.q2_gain"]["reason"]
    assert found["adds.n_steps.q2_gain"]["reason"] == "x constant"


def test_a_held_out_prediction_knows_nothing_of_its_own_fold():
    rng = np.random.default_rng(4)
    x, y, folds = rng.normal(size=(20, 2)), rng.normal(size=20), np.repeat([*"abcde"], 4)
    told = frontier.held_out_ridge(x, y, folds)
    again = frontier.held_out_ridge(x, np.where(folds == "b", y + 5, y), folds)
    assert again[folds == "b"] == pytest.approx(told[folds == "b"]) and not np.allclose(again, told)
    moved = frontier.held_out_ridge(np.where((np.arange(20) == 5)[:, None], x + 3, x), y, folds)
    assert moved[4] == pytest.approx(told[4]) and moved[5] != pytest.approx(told[5])  # nor is it standardised by its fold


def test_words_name_who_is_ahead_at_what_cost_and_say_what_has_no_value():
    text = baseline_words.baselines({e["name"]: e for e in pd.read_json(REFERENCE / "results.json", typ="series")["entries"]})
    assert "number of steps (" in text and "On the cost frontier" in text


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_metric_of_a_published_cohort_has_a_value_or_a_reason_and_a_cost(name):
    scores = read_table(REFERENCE.parent / PUBLISHED[name] / "scores.parquet")
    mine = scores[scores["arm"].isin(["main", "mixture"])]
    assert set(mine.groupby(["arm", "cohort"])["metric"].apply(frozenset)) == {frozenset(baselines.METRICS)}
    assert not mine.duplicated(["arm", "cohort", "metric"]).any()
    assert (mine.loc[mine["ci_low"].isna(), "reason"] != "").all() and mine[COUNTS].notna().all().all()
    assert list(scores.columns) == cohort_scores.COLUMNS
    free = ("token_length", "distinct_fraction", "n_steps")
    assert (mine.loc[mine["value"].notna() & ~mine["metric"].isin(free), "flops"] > 0).all()
    assert (mine.loc[mine["metric"].isin(free), "flops"] == 0).all()
    assert len(load_study(name).cohorts) == mine[mine["arm"] == "main"]["cohort"].nunique()
