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
from lad_utils.stats import paired_difference_ci, spearman_ci
from lad_utils.validation import cohort_entries, cohort_lifts, entry, seed_variance, valid, widened

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
    """Runs of every other trainer, and GRPO's on the same cohorts and seeds, with a column `trainer`; none without others.

    The same seeds, so that noise weakens no trainer's correlations more than another's.
    """
    others = lifts[lifts["arm"].isin(TRAINERS)]
    plain = lifts[(lifts["arm"] == "main") & lifts["cohort"].isin(others["cohort"]) & lifts["seed"].isin(others["seed"])]
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
    """Entries `trainer.<name>.*` from lifts, eval_questions, groups, ablations, task_gains; none without other trainers."""
    lifts, questions = tables["lifts"], tables["eval_questions"]
    table = trainer_lifts(lifts, questions)
    if table.empty:
        return []
    shapes = tables["ablations"].query("arm == 'main'").pivot(index="cohort", columns="variant", values="value")
    return [
        *cohort_entries(table, "trainer.{trainer}.{cohort}.lift"),
        *_rank_entries(table, shapes),
        *_beside_grpo(trainer_runs(lifts), questions, tables["groups"]),
        *_shape_entries(tables["task_gains"]),
    ]


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
    """Accuracy after each trainer less that after GRPO, each cohort and their mean, and the tokens that a run generated.

    Paired by question; the interval covers the draw of questions and, by the pooled variance between seeds, that of seeds.
    Cohorts with a valid run of both count alike, however many runs they have.
    """
    good = valid(runs[runs["variant"] == "sampled"])
    tokens, source = groups.groupby("run_id")["tokens"].sum(), "eval_questions.parquet"
    for name in dict.fromkeys(runs["trainer"]):
        mine, plain = (good[good["trainer"] == t] for t in (name, "grpo"))
        reason = "" if len(mine) else "no valid run"
        args = {"n": len(mine), "source": "groups.parquet", "reason": reason, "note": "generated, a run's mean"}
        yield entry(f"trainer.{name}.tokens", tokens.reindex(mine["run_id"]).mean(), **args)
        if name == "grpo":
            continue
        between = seed_variance(good[good["trainer"].isin(["grpo", name])].assign(cohort=lambda t: t["arm"] + t["cohort"]))
        shared = [c for c in dict.fromkeys(mine["cohort"]) if c in set(plain["cohort"])]
        for cohorts, label in ((shared, ""), *(([c], f"{c}.") for c in dict.fromkeys(runs["cohort"][runs["trainer"] == name]))):
            if not set(cohorts) <= set(shared) or not cohorts:
                why = "no cohort has a valid run of both"
                yield entry(f"trainer.{name}.{label}minus_grpo", np.nan, n=0, source=source, reason=why)
                continue
            pair = [t[t["cohort"].isin(cohorts)] for t in (mine, plain)]
            d = paired_difference_ci(*(_mean_rates(questions, p) for p in pair))
            freedom = sum((1 / p["cohort"].value_counts()).sum() for p in pair) / len(cohorts) ** 2
            low, high = widened(d, between * freedom)
            note = f"{len(pair[0])} runs against {len(pair[1])}, paired by question"
            args = {"low": low, "high": high, "n": d.n, "source": source, "reason": d.reason, "note": note}
            yield entry(f"trainer.{name}.{label}minus_grpo", d.mean, **args)


def _mean_rates(questions: pd.DataFrame, runs: pd.DataFrame) -> pd.Series:
    """Rate of right answers after training by question: mean over a cohort's runs, then over cohorts."""
    asked = questions[questions["variant"] == "sampled"].merge(runs[["run_id", "cohort"]], on="run_id")
    rates = asked.assign(rate=asked["c_after"] / asked["n_after"]).groupby(["cohort", "task_id"])["rate"].mean()
    return rates.groupby("task_id").mean()


def task_gains(groups: pd.DataFrame, judgements: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """What the tasks of the difficulty cohorts gained by their last visit: trainer, cohort, task_id, correct, k, gain.

    correct of k: one random half of a task's base rollouts, by which shapes are told; gain: pass rate at the last visit, mean
    over runs, less that of the other half. `judgements`: a row a rollout, or a row a vote with its count. Runs that a coin
    rewarded have no such rate.
    """
    votes = judgements[(judgements["arm"] == "main") & judgements["cohort"].isin(BANDS)]
    weight = votes.get("count", 1)
    votes = votes.assign(k=weight, right=votes["reward"] * weight).groupby(["cohort", "task_id"])[["right", "k"]].sum()
    half = votes["k"] // 2
    correct = np.random.default_rng(0).hypergeometric(votes["right"], votes["k"] - votes["right"], half)
    base = pd.DataFrame({"correct": correct, "k": half, "other": (votes["right"] - correct) / (votes["k"] - half)})
    good = valid(runs[(runs["variant"] == "sampled") & runs["cohort"].isin(BANDS) & (runs["trainer"] != "random_reward")])
    last = groups.merge(good[["run_id", "trainer", "cohort"]], on="run_id").sort_values(["run_id", "step"])
    last = last.drop_duplicates(["run_id", "task_id"], keep="last")
    keys = ["trainer", "cohort", "task_id"]
    last = last.assign(rate=last["reward_sum"] / last["n"]).groupby(keys)["rate"].mean().reset_index()
    table = last.merge(base, left_on=["cohort", "task_id"], right_index=True)
    return table.assign(gain=table["rate"] - table["other"])[[*keys, "correct", "k", "gain"]]


def shape_values(correct, k) -> dict[str, np.ndarray]:
    """Posterior means of every shape under one Beta prior fitted to all tasks: alike in noise, whatever their powers."""
    prior = fit_beta_prior(correct, k)
    return {name: bayes_power(correct, k, a, b, prior=prior) for name, (a, b) in SHAPES.items()}


def _shape_entries(gains: pd.DataFrame) -> Iterator[dict]:
    """Pearson correlation of each shape with the tasks' gains, two fitted parameters each, and its difference from p(1-p)'s.

    `within_r`: the same with each cohort's mean taken off both, since a task also gains by what its cohort teaches. Intervals:
    percentile bootstrap over tasks, for these runs and cohorts.
    """
    for trainer, mine in gains.groupby("trainer", sort=False):
        try:
            shapes = shape_values(mine["correct"].to_numpy(), mine["k"].to_numpy())
        except ValueError as error:
            why = str(error)
            yield entry(f"trainer.{trainer}.task_gain.lad.r", np.nan, n=len(mine), source="task_gains.parquet", reason=why)
            continue
        table = pd.DataFrame(shapes | {"gain": mine["gain"].to_numpy()})
        for name, values in (("r", table), ("within_r", table - table.groupby(mine["cohort"].to_numpy()).transform("mean"))):
            yield from _correlation_entries(f"trainer.{trainer}.task_gain", name, values)


def _correlation_entries(prefix: str, name: str, table: pd.DataFrame) -> Iterator[dict]:
    values, rng = table.to_numpy(), np.random.default_rng(0)
    rows = [np.arange(len(values)), *(rng.integers(0, len(values), len(values)) for _ in range(RESAMPLES))]
    with np.errstate(invalid="ignore", divide="ignore"):
        drawn = np.array([np.corrcoef(values[i].T)[-1, :-1] for i in rows])
    reference = list(table).index("variance")
    for place, shape in enumerate(table.columns[:-1]):
        told = {name: drawn[:, place]}
        if place != reference:
            told[f"{name}_minus_variance"] = drawn[:, place] - drawn[:, reference]
        for what, r in told.items():
            low, high = np.nanquantile(r, [0.025, 0.975]) if np.isfinite(r).any() else (None, None)
            args = {"low": low, "high": high, "n": len(values), "source": "task_gains.parquet"}
            reason = "" if np.isfinite(r[0]) else "gains or rates are constant"
            yield entry(f"{prefix}.{shape}.{what}", r[0], reason=reason, note="over trained tasks of these runs", **args)
