"""Other trainers: whose runs are compared with whose, what a task gained, and which shape tells it; on tables made by hand."""

import matplotlib
import numpy as np
import pandas as pd
import pytest

from lad_utils import trainer_plots, trainer_ranking
from lad_utils.cohorts import BANDS

matplotlib.use("agg")
NAMES = [*BANDS]


def runs_of(after, *, n=8, before=4):
    """(lifts, questions) of runs named (arm, cohort, seed): right answers of n on q0, q1, ..."""
    lifts, questions = [], []
    for (arm, cohort, seed), right in after.items():
        run_id = f"{arm}/{cohort}/seed{seed}"
        pairs = {
            "task_id": [f"q{i}" for i in range(len(right))],
            "n_before": n,
            "c_before": before,
            "n_after": n,
            "c_after": right,
        }
        questions.append(pd.DataFrame(pairs).assign(run_id=run_id, variant="sampled"))
        row = {"arm": arm, "cohort": cohort, "seed": seed, "variant": "sampled", "run_id": run_id, "invalid": ""}
        lifts.append(row | {"lift": np.mean(np.array(right) - before) / n})
    return pd.DataFrame(lifts), pd.concat(questions, ignore_index=True)


def study(trainer="sgd", *, order=1, shift=0):
    """Six cohorts under GRPO and under `trainer`, lifts in the same order or the reverse; LAD ranks them as GRPO does."""
    levels = {name: i for i, name in enumerate(NAMES[:6])}
    rng, after = np.random.default_rng(0), {}
    for name, level in levels.items():
        for arm, place in (("main", level), (trainer, order * (level - 2.5) + 2.5 + shift)):
            for seed in (0, 1):
                after[arm, name, seed] = np.clip(rng.binomial(8, 0.4 + 0.09 * place, 60), 0, 8)
    lifts, questions = runs_of(after)
    ablations = [
        {"arm": "main", "cohort": name, "variant": v, "value": sign * level}
        for name, level in levels.items()
        for v, sign in (("lad", 1), ("no_headroom", -1), ("scaled_gain", 1), ("unscaled_gain", 1))
    ]
    groups = pd.DataFrame({"run_id": lifts.run_id, "tokens": 10})
    gains = pd.DataFrame(columns=["trainer", "cohort", "task_id", "correct", "k", "gain"])
    tables = {"lifts": lifts, "eval_questions": questions, "groups": groups, "ablations": pd.DataFrame(ablations)}
    return tables | {"task_gains": gains}


def by_name(tables):
    return {e["name"]: e for e in trainer_ranking.trainer_entries(tables)}


def test_a_ranking_that_survives_and_one_that_turns():
    same, turned = by_name(study()), by_name(study(order=-1))
    assert same["trainer.grpo.lad.rho"]["value"] == same["trainer.sgd.lad.rho"]["value"] == 1
    assert same["trainer.sgd.variance.rho"]["value"] == -1 and same["trainer.sgd.grpo_lift.rho"]["value"] == 1
    assert turned["trainer.sgd.lad.rho"]["value"] == turned["trainer.sgd.grpo_lift.rho"]["value"] == -1
    assert "trainer.grpo.grpo_lift.rho" not in same


def test_grpo_is_compared_on_the_same_cohorts_only():
    tables = study(shift=1)
    more, asked = runs_of({("main", "random", 0): [8] * 60})
    tables["lifts"] = pd.concat([tables["lifts"], more], ignore_index=True)
    tables["eval_questions"] = pd.concat([tables["eval_questions"], asked], ignore_index=True)
    found, q = by_name(tables), tables["eval_questions"]
    after = q.assign(rate=q.c_after / q.n_after, arm=q.run_id.str.split("/").str[0], cohort=q.run_id.str.split("/").str[1])
    after = after[after.cohort != "random"].groupby("arm").rate.mean()
    e = found["trainer.sgd.minus_grpo"]
    assert e["value"] == pytest.approx(after["sgd"] - after["main"]) and e["ci_low"] < e["value"] < e["ci_high"]
    assert e["note"] == "12 runs against 12, paired by question" and "trainer.grpo.random.lift" not in found
    assert found["trainer.sgd.hard.minus_grpo"]["note"].startswith("2 runs against 2,")


def test_cohorts_count_alike_however_many_runs_are_valid():
    tables = study(shift=1)
    before = by_name(tables)["trainer.sgd.minus_grpo"]["value"]
    lost = (tables["lifts"].run_id == "sgd/easy/seed1") | (tables["lifts"].run_id == "main/hard/seed0")
    tables["lifts"].loc[lost, "invalid"] = "broken"
    found = by_name(tables)
    each = [
        e["value"] for n, e in found.items() if n.startswith("trainer.sgd.") and n.count(".") == 3 and n.endswith("minus_grpo")
    ]
    assert found["trainer.sgd.minus_grpo"]["value"] == pytest.approx(np.mean(each)) and len(each) == 6
    assert found["trainer.sgd.minus_grpo"]["value"] != before


def test_a_cohort_without_a_valid_run_on_one_side_is_left_out_with_a_reason():
    tables = study()
    tables["lifts"].loc[tables["lifts"].run_id.str.startswith("main/hard/"), "invalid"] = "no group ever had both rewards"
    found = by_name(tables)
    assert found["trainer.sgd.hard.minus_grpo"]["reason"] == "no cohort has a valid run of both"
    assert found["trainer.sgd.minus_grpo"]["note"].startswith("10 runs against 10")
    tables["lifts"].loc[tables["lifts"].arm == "sgd", "invalid"] = "broken"
    found = by_name(tables)
    assert found["trainer.sgd.minus_grpo"]["value"] is None and found["trainer.sgd.tokens"]["reason"] == "no valid run"


def test_grpo_gives_as_many_seeds_as_the_others_have():
    tables = study()
    more, asked = runs_of({("main", name, 5): [8] * 60 for name in NAMES[:6]})
    before = by_name(tables)
    tables["lifts"] = pd.concat([tables["lifts"], more], ignore_index=True)
    tables["eval_questions"] = pd.concat([tables["eval_questions"], asked], ignore_index=True)
    assert by_name(tables) == before


def test_a_study_without_other_trainers_has_no_entries():
    tables = study()
    tables["lifts"] = tables["lifts"][tables["lifts"].arm == "main"]
    assert trainer_ranking.trainer_entries(tables) == []


def votes(rates, *, k=32, cohort="hard"):
    rows = []
    for i, rate in enumerate(rates):
        right = round(rate * k)
        rows += [(f"t{i}", 1, right), (f"t{i}", 0, k - right)]
    table = pd.DataFrame(rows, columns=["task_id", "reward", "count"])
    return table[table["count"] > 0].assign(arm="main", cohort=cohort)


def test_gains_are_of_the_last_visit_over_the_half_that_shapes_do_not_see():
    lifts, _ = runs_of({("sgd", "hard", 0): [4], ("main", "hard", 0): [4]})
    runs = trainer_ranking.trainer_runs(lifts)
    groups = pd.DataFrame(
        [("sgd/hard/seed0", 1, "t0", 8, 0.0), ("sgd/hard/seed0", 9, "t0", 8, 6.0), ("main/hard/seed0", 3, "t0", 8, 4.0)],
        columns=["run_id", "step", "task_id", "n", "reward_sum"],
    )
    table = trainer_ranking.task_gains(groups, votes([0.5]), runs).set_index("trainer")
    c, k = table.correct["sgd"], table.k["sgd"]
    assert k == 16 and table.gain["sgd"] == pytest.approx(6 / 8 - (16 - c) / 16)
    assert table.gain["grpo"] == pytest.approx(4 / 8 - (16 - c) / 16)
    single = votes([0.5]).loc[lambda t: t.index.repeat(t["count"])].drop(columns="count")  # a row a rollout
    pd.testing.assert_frame_equal(trainer_ranking.task_gains(groups, single, runs).set_index("trainer"), table)
    assert trainer_ranking.task_gains(groups, votes([0.5], cohort="random"), runs).empty  # no difficulty cohort


@pytest.mark.parametrize(("power", "best"), [((2, 2), "unscaled_gain"), ((1, 2), "lad"), ((1, 1), "variance")])
def test_the_shape_that_made_the_gains_is_found(power, best):
    rng = np.random.default_rng(1)
    p = rng.uniform(0, 1, 3000)
    correct, gain = rng.binomial(16, p), 2 * p ** power[0] * (1 - p) ** power[1] + rng.normal(0, 0.02, 3000)
    gains = pd.DataFrame({"trainer": "sgd", "cohort": "c", "task_id": "t", "correct": correct, "k": 16, "gain": gain})
    found = {e["name"]: e for e in trainer_ranking._shape_entries(gains)}
    r = {shape: found[f"trainer.sgd.task_gain.{shape}.r"]["value"] for shape in trainer_ranking.LABELS}
    assert max(r, key=r.get) == best
    if best != "variance":
        assert found[f"trainer.sgd.task_gain.{best}.r_minus_variance"]["ci_low"] > 0


def test_pictures_have_a_panel_a_trainer():
    tables = study()
    table = trainer_ranking.trainer_lifts(tables["lifts"], tables["eval_questions"])
    figure = trainer_plots.lift_by_trainer(table, pd.Series({n: i for i, n in enumerate(NAMES)}))
    assert [a.get_title("left") for a in figure.axes if a.get_visible()] == ["GRPO, Adam", "GRPO, SGD"]
    rows = trainer_plots.ranks_by_trainer(by_name(tables)).axes[0].get_yticklabels()
    assert [t.get_text() for t in rows] == ["GRPO, Adam", "GRPO, SGD"]
