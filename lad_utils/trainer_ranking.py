"""Does LAD's ranking hold under other trainers than GRPO with Adam, and which shape of p tells what a task gains there?

Cohorts: Spearman of LAD and of other shapes, each times diversity, with lift. Tasks: what each trained task gained by its last
visit, against its base pass rate, over the difficulty cohorts; base rollouts are split in two, so that the rate a gain is told
from is not the one it is counted from.
"""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from lad_utils.cohorts import BANDS
from lad_utils.energy import SHAPES, bayes_power, fit_beta_prior
from lad_utils.params import TRAINERS
from lad_utils.stats import spearman_ci
from lad_utils.validation import accuracy_difference, cohort_lifts, entry, seed_variance, valid

# Shapes of STATISTICS 2 by their names in the ablations, where each is a mean over tasks, times diversity.
VARIANTS = {"variance": "no_headroom", "lad": "lad", "scaled_gain": "scaled_gain", "unscaled_gain": "unscaled_gain"}
TITLES = {
    "grpo": "GRPO, Adam",
    "dr_grpo": "Dr. GRPO, Adam",
    "dynamic_sampling": "dynamic sampling",
    "zero_variance_aware": "zero-variance aware",
    "sgd": "GRPO, SGD",
    "sgd_unscaled": "Dr. GRPO, SGD",
    "random_reward": "random reward",
}
LABELS = {"variance": "p(1-p)", "lad": "p(1-p)²", "scaled_gain": "[p(1-p)]^1.5", "unscaled_gain": "[p(1-p)]²"}
RESAMPLES = 1000


def trainer_runs(lifts: pd.DataFrame) -> pd.DataFrame:
    """Runs of every other trainer, and GRPO's on the same cohorts, with a column `trainer`; none if no other was run."""
    others = lifts[lifts["arm"].isin(TRAINERS)]
    plain = lifts[(lifts["arm"] == "main") & lifts["cohort"].isin(others["cohort"])]
    return pd.concat([plain.assign(trainer="grpo"), others.assign(trainer=others["arm"])], ignore_index=True)


def trainer_lifts(lifts: pd.DataFrame, questions: pd.DataFrame) -> pd.DataFrame:
    """Lift of every cohort under every trainer: the columns of cohort_lifts and `trainer`."""
    runs = trainer_runs(lifts)
    tables = [
        cohort_lifts(mine, questions, arm=mine["arm"].iloc[0]).assign(trainer=name)
        for name, mine in runs.groupby("trainer", sort=False)
    ]
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()


def trainer_entries(tables: dict[str, pd.DataFrame]) -> list[dict]:
    """Entries `trainer.<name>.*` from lifts, eval_questions, groups, judgements (votes with or without count) and ablations."""
    lifts, questions = tables["lifts"], tables["eval_questions"]
    table = trainer_lifts(lifts, questions)
    if table.empty:
        return []
    shapes = tables["ablations"].query("arm == 'main'").pivot(index="cohort", columns="variant", values="value")
    gains = task_gains(tables["groups"], tables["judgements"], trainer_runs(lifts))
    return [
        *_lift_entries(table),
        *_rank_entries(table, shapes),
        *_beside_grpo(trainer_runs(lifts), questions, tables["groups"]),
        *_shape_entries(gains),
    ]


def _lift_entries(table: pd.DataFrame) -> Iterator[dict]:
    for row in table.itertuples():
        args = {"low": row.ci_low, "high": row.ci_high, "n": row.n, "source": "eval_questions.parquet", "reason": row.reason}
        yield entry(f"trainer.{row.trainer}.{row.cohort}.lift", row.lift, note=f"{row.n_seeds} seeds", **args)


def _rank_entries(table: pd.DataFrame, shapes: pd.DataFrame) -> Iterator[dict]:
    """Spearman with lift of every shape, and of the lifts under GRPO, over the cohorts of each trainer."""
    plain = table[table["trainer"] == "grpo"].set_index("cohort")["lift"]
    for name, mine in table.groupby("trainer", sort=False):
        lift = mine.set_index("cohort")["lift"]
        told = {shape: shapes[variant].reindex(lift.index) for shape, variant in VARIANTS.items()}
        if name != "grpo":
            told["grpo_lift"] = plain.reindex(lift.index)
        for what, x in told.items():
            r = spearman_ci(x, lift)
            source = "ablations.parquet, eval_questions.parquet" if what in VARIANTS else "eval_questions.parquet"
            args = {"low": r.low, "high": r.high, "n": r.n, "source": source, "reason": r.reason}
            yield entry(f"trainer.{name}.{what}.rho", r.rho, **args)


def _beside_grpo(runs: pd.DataFrame, questions: pd.DataFrame, groups: pd.DataFrame) -> Iterator[dict]:
    """Accuracy after each trainer less that after GRPO, all cohorts together and each, and the tokens that a run generated.

    All together, every cohort counts alike: its seeds are pooled and the seeds' variance divided by the number of runs.
    """
    good = valid(runs[runs["variant"] == "sampled"])
    tokens = groups.groupby("run_id")["tokens"].sum()
    for name, mine in good.groupby("trainer", sort=False):
        spent = mine["run_id"].map(tokens).mean()
        yield entry(f"trainer.{name}.tokens", spent, n=len(mine), source="groups.parquet", note="generated, a run's mean")
        if name == "grpo":
            continue
        plain = good[(good["trainer"] == "grpo") & good["cohort"].isin(mine["cohort"])]
        between = seed_variance(good[good["trainer"].isin(["grpo", name])].assign(cohort=lambda t: t["arm"] + t["cohort"]))
        for cohort in ("", *dict.fromkeys(mine["cohort"])):
            pair = [t if not cohort else t[t["cohort"] == cohort] for t in (mine, plain)]
            d, low, high = accuracy_difference(questions, *(p["run_id"] for p in pair), between=between)
            args = {"low": low, "high": high, "n": d.n, "source": "eval_questions.parquet", "reason": d.reason}
            note = f"{len(pair[0])} runs against {len(pair[1])}"
            yield entry(f"trainer.{name}.{cohort + '.' if cohort else ''}minus_grpo", d.lift, note=note, **args)


def task_gains(groups: pd.DataFrame, judgements: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """What the tasks of the difficulty cohorts gained by their last visit: trainer, task_id, correct, k, gain (mean over runs).

    correct of k: one random half of a task's base rollouts, by which shapes are told; gain: pass rate at the last visit less
    that of the other half.
    """
    votes = judgements[(judgements["arm"] == "main") & judgements["cohort"].isin(BANDS)]
    weight = votes.get("count", 1)
    votes = votes.assign(k=weight, right=votes["reward"] * weight).groupby("task_id")[["right", "k"]].sum()
    half = votes["k"] // 2
    correct = np.random.default_rng(0).hypergeometric(votes["right"], votes["k"] - votes["right"], half)
    base = pd.DataFrame({"correct": correct, "k": half, "other": (votes["right"] - correct) / (votes["k"] - half)})
    good = valid(runs[(runs["variant"] == "sampled") & runs["cohort"].isin(BANDS)])[["run_id", "trainer"]]
    last = groups.merge(good, on="run_id").sort_values(["run_id", "step"]).drop_duplicates(["run_id", "task_id"], keep="last")
    last = last.assign(rate=last["reward_sum"] / last["n"]).groupby(["trainer", "task_id"])["rate"].mean().reset_index()
    table = last.merge(base, left_on="task_id", right_index=True)
    return table.assign(gain=table["rate"] - table["other"])[["trainer", "task_id", "correct", "k", "gain"]]


def shape_values(correct, k) -> dict[str, np.ndarray]:
    """Posterior means of every shape under one Beta prior fitted to all tasks: alike in noise, whatever their powers."""
    prior = fit_beta_prior(correct, k)
    return {name: bayes_power(correct, k, a, b, prior=prior) for name, (a, b) in SHAPES.items()}


def _shape_entries(gains: pd.DataFrame) -> Iterator[dict]:
    """Pearson correlation of each shape with the tasks' gains, two fitted parameters each, and its difference from p(1-p)'s.

    Intervals: percentile bootstrap over tasks, for these runs. The random reward's "rate" is that of a coin, so it has none.
    """
    source = "groups.parquet, judgements.parquet"
    for trainer, mine in gains[gains["trainer"] != "random_reward"].groupby("trainer", sort=False):
        x, y = shape_values(mine["correct"].to_numpy(), mine["k"].to_numpy()), mine["gain"].to_numpy()
        rng = np.random.default_rng(0)
        rows = [np.arange(len(y)), *(rng.integers(0, len(y), len(y)) for _ in range(RESAMPLES))]
        r = {name: np.array([np.corrcoef(values[i], y[i])[0, 1] for i in rows]) for name, values in x.items()}
        for name, drawn in r.items():
            for what, values in (("r", drawn), ("r_minus_variance", drawn - r["variance"])):
                if (name, what) == ("variance", "r_minus_variance"):
                    continue
                low, high = np.quantile(values[1:], [0.025, 0.975])
                reason = "" if np.isfinite(values[0]) else "gains or rates are constant"
                args = {"low": low, "high": high, "n": len(y), "source": source, "reason": reason}
                yield entry(f"trainer.{trainer}.task_gain.{name}.{what}", values[0], note="Pearson over trained tasks", **args)
