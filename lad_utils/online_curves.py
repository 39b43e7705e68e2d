"""What choosing the next task while training gives: learning curves, accuracy at equal generated tokens, what was visited."""

from collections.abc import Iterator

import numpy as np
import pandas as pd
from scipy import stats

from lad_utils.validation import accuracy_difference, cohort_entries, cohort_lifts, entry, seed_variance, valid

OURS = "online_lad"


def learning_curves(tables: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """Accuracy in the course of every valid run: sampler, seed, step, tokens (generated until then), accuracy.

    It starts at the base model's accuracy and ends with the final evaluation, which asks each question oftener than the rest.
    """
    lifts = tables["lifts"]
    runs = valid(lifts[(lifts["arm"] == "online") & (lifts["variant"] == "sampled")])
    runs = runs.rename(columns={"cohort": "sampler"})
    points = tables["curves"].merge(runs[["run_id", "sampler", "seed", "steps"]], on="run_id")
    points = points.assign(accuracy=points["c"] / points["n"])
    first = runs.assign(step=0, tokens=0, accuracy=runs["acc_before"])
    last = runs.assign(step=runs["steps"], accuracy=runs["acc_after"])
    columns = ["sampler", "seed", "step", "tokens", "accuracy"]
    table = pd.concat([first[columns], points[columns], last[columns]], ignore_index=True).astype({"accuracy": float})
    return table.sort_values(["sampler", "seed", "step"], kind="stable").reset_index(drop=True)


def at_tokens(curves: pd.DataFrame, budget: float) -> pd.Series:
    """Accuracy of every run once it had generated `budget` tokens, linear between points; indexed by (sampler, seed)."""
    by_run = curves.groupby(["sampler", "seed"], sort=False)
    return by_run[["tokens", "accuracy"]].apply(lambda t: np.interp(budget, t["tokens"], t["accuracy"]))


def mean_on_the_way(curves: pd.DataFrame, budget: float) -> pd.Series:
    """Mean accuracy over the first `budget` generated tokens, the area under the learning curve; by (sampler, seed)."""

    def area(run: pd.DataFrame) -> float:
        inside = run[run["tokens"] < budget]
        x = np.append(inside["tokens"], budget)
        y = np.append(inside["accuracy"], np.interp(budget, run["tokens"], run["accuracy"]))
        return np.trapezoid(y, x) / budget

    return curves.groupby(["sampler", "seed"], sort=False)[["tokens", "accuracy"]].apply(area)


def online_entries(tables: dict[str, pd.DataFrame]) -> list[dict]:
    """Entries `online.*` from lifts, eval_questions, curves and groups; none if no sampler was run."""
    lifts, questions = tables["lifts"], tables["eval_questions"]
    runs = lifts[lifts["arm"] == "online"]
    if runs.empty:
        return []
    entries = []
    for variant, name in (("sampled", "lift"), ("greedy", "greedy_lift")):
        entries += cohort_entries(cohort_lifts(runs, questions, arm="online", variant=variant), "online.{cohort}." + name)
    curves = learning_curves(tables)
    return [*entries, *_differences(runs, questions), *_at_equal_tokens(curves), *_visits(runs, tables["groups"])]


def _differences(runs: pd.DataFrame, questions: pd.DataFrame) -> Iterator[dict]:
    """Accuracy after LAD's sampler less that after each other, paired by question."""
    good = valid(runs[runs["variant"] == "sampled"])
    ids, between = good.groupby("cohort", sort=False)["run_id"].agg(list), seed_variance(good)
    for other in ids.index:
        if other == OURS or OURS not in ids:
            continue
        d, low, high = accuracy_difference(questions, ids[OURS], ids[other], between=between)
        args = {"low": low, "high": high, "n": d.n, "source": "eval_questions.parquet", "reason": d.reason}
        note = f"after training, paired by question; {len(ids[OURS])} and {len(ids[other])} seeds"
        yield entry(f"online.{OURS}_minus_{other}", d.lift, note=note, **args)


def _at_equal_tokens(curves: pd.DataFrame) -> Iterator[dict]:
    """Accuracy at the tokens that every run reached, and on the way there: means and LAD's differences, on these questions."""
    budget = curves.groupby(["sampler", "seed"])["tokens"].max().min()
    source = "curves.parquet, lifts.parquet"
    for name, values in (("accuracy", at_tokens(curves, budget)), ("mean_accuracy", mean_on_the_way(curves, budget))):
        groups = {sampler: v.to_numpy() for sampler, v in values.groupby(level=0, sort=False)}
        what = f"at {budget:,.0f} generated tokens" if name == "accuracy" else f"mean over the first {budget:,.0f} tokens"
        for sampler, x in groups.items():
            low, high, note = t_interval(x)
            args = {"low": low, "high": high, "n": len(x), "source": source, "note": f"{what}; {note}"}
            yield entry(f"online.{sampler}.{name}", x.mean(), **args)
            if sampler != OURS and OURS in groups:
                low, high, note = welch_interval(groups[OURS], x)
                args = {"low": low, "high": high, "n": len(x) + len(groups[OURS]), "source": source, "note": f"{what}; {note}"}
                yield entry(f"online.{OURS}_minus_{sampler}.{name}", groups[OURS].mean() - x.mean(), **args)


def t_interval(x: np.ndarray) -> tuple[float, float, str]:
    """(low, high, what it covers): 95% t interval of a mean over seeds; NaN and why with one seed."""
    if len(x) < 2:
        return np.nan, np.nan, "one seed: no interval"
    half = stats.t.ppf(0.975, len(x) - 1) * x.std(ddof=1) / np.sqrt(len(x))
    return x.mean() - half, x.mean() + half, "t over seeds"


def welch_interval(a: np.ndarray, b: np.ndarray) -> tuple[float, float, str]:
    """(low, high, what it covers): 95% interval of mean(a) - mean(b), seeds unpaired; NaN and why with one seed a side."""
    if min(len(a), len(b)) < 2:
        return np.nan, np.nan, "one seed: no interval"
    found = stats.ttest_ind(a, b, equal_var=False).confidence_interval()
    return found.low, found.high, "Welch over seeds"


def _visits(runs: pd.DataFrame, groups: pd.DataFrame) -> Iterator[dict]:
    """What each sampler generated and visited: tokens a run, share of mixed groups, number of tasks ever visited."""
    good = valid(runs[runs["variant"] == "sampled"]).set_index("run_id")["cohort"]
    mine = groups[groups["run_id"].isin(good.index)]
    mine = mine.assign(sampler=mine["run_id"].map(good), mixed=mine["reward_sum"].between(0, mine["n"], inclusive="neither"))
    for sampler, rows in mine.groupby("sampler", sort=False):
        by_run = rows.groupby("run_id")
        told = {"tokens": by_run["tokens"].sum(), "mixed_share": by_run["mixed"].mean(), "tasks": by_run["position"].nunique()}
        for name, values in told.items():
            low, high, note = t_interval(values.to_numpy(dtype=float))
            args = {"low": low, "high": high, "n": len(values), "source": "groups.parquet", "note": note}
            yield entry(f"online.{sampler}.{name}", values.mean(), **args)
