"""Mechanism: what GRPO logged while it ran, against LAD and against base p(1-p), which early variance is by definition."""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from lad_utils.ablations import spearman_difference_ci
from lad_utils.agreement import partial_spearman_ci
from lad_utils.stats import spearman_ci
from lad_utils.validation import entry, valid

# What is predicted -> the sign a useful predictor of learning signal has with it.
TARGETS = {
    "early_group_variance": 1,
    "group_variance": 1,
    "late_group_variance": 1,
    "zero_variance_share": -1,
    "grad_norm": 1,
    "entropy": 1,
}
EDGE = 8  # early and late are the first and the last eighth of a run
SOURCE = "scores.parquet, groups.parquet, steps.parquet"


def step_means(groups: pd.DataFrame, steps: pd.DataFrame, lifts: pd.DataFrame, *, arm: str = "main") -> pd.DataFrame:
    """What every valid run of `arm` logged by step: run_id, cohort, step, part (early, middle, late) and the columns below.

    group_variance is the unbiased variance of the G raw rewards of a group, mean over the step's groups, before any advantage
    scaling; beside it zero_variance_share, mean_reward, grad_norm (before clipping) and policy entropy (nats a token).
    """
    runs = valid(lifts[(lifts["variant"] == "sampled") & (lifts["arm"] == arm)])[["run_id", "cohort"]]
    p = groups["reward_sum"] / groups["n"]
    raw = groups.assign(group_variance=p * (1 - p) * groups["n"] / (groups["n"] - 1))
    raw = raw.groupby(["run_id", "step"], sort=False)["group_variance"].mean().reset_index()
    logged = ["run_id", "step", "mean_reward", "zero_variance_share", "grad_norm", "entropy"]
    table = runs.merge(steps[logged], on="run_id").merge(raw, on=["run_id", "step"])
    last = table.groupby("run_id")["step"].transform("max")
    part = np.select([table["step"] <= last // EDGE, table["step"] > last - last // EDGE], ["early", "late"], "middle")
    return table.assign(part=part)


def run_mechanics(by_step: pd.DataFrame) -> pd.DataFrame:
    """Means over steps, then over seeds: one row a cohort, with the columns of TARGETS (`by_step` as step_means gives it)."""
    logged = ["group_variance", "zero_variance_share", "grad_norm", "entropy"]
    by_run = by_step.groupby(["cohort", "run_id"], sort=False)[logged].mean()
    for part in ("early", "late"):
        some = by_step[by_step["part"] == part].groupby(["cohort", "run_id"])["group_variance"]
        by_run[f"{part}_group_variance"] = some.mean()
    return by_run.groupby("cohort", sort=False).mean()[[*TARGETS]].reset_index()


def mechanism_entries(table: pd.DataFrame, *, prefix: str = "") -> list[dict]:
    """LAD and the trivial predictor, base p(1-p), against what training logged, and what LAD adds to it, three ways.

    `table`: one row a cohort with lad, variance, family and the columns of run_mechanics. lad_minus_variance: difference of the
    two Spearmans, each in the direction of TARGETS, with Zou's paired interval; lad_given_variance: partial Spearman;
    added_q2: held-out Q² of the line on both, less that of p(1-p) alone, families left out (cohorts, if there is one family).
    """
    return [e for target, sign in TARGETS.items() for e in _target_entries(table, target, sign, prefix)]


def _target_entries(table: pd.DataFrame, target: str, sign: int, prefix: str) -> Iterator[dict]:
    found = {metric: spearman_ci(table[metric], table[target]) for metric in ("lad", "variance")}
    for metric, r in found.items():
        args = {"low": r.low, "high": r.high, "n": r.n, "source": SOURCE, "reason": r.reason}
        yield entry(f"{prefix}{metric}.{target}_rho", r.rho, **args)
    n = found["lad"].n
    between = spearman_ci(table["lad"], table["variance"]).rho
    d = spearman_difference_ci(sign * found["lad"].rho, sign * found["variance"].rho, between, n)
    note = "difference of Spearmans" + (", signs turned" if sign < 0 else "")
    args = {"low": d.low, "high": d.high, "n": n, "source": SOURCE, "reason": d.reason, "note": note}
    yield entry(f"{prefix}lad_minus_variance.{target}_rho", d.difference, **args)
    p = partial_spearman_ci(table["lad"], table[target], table[["variance"]])
    args = {"low": p.low, "high": p.high, "n": p.n, "source": SOURCE, "reason": p.reason}
    yield entry(f"{prefix}lad_given_variance.{target}_rho", p.rho, note="partial Spearman of LAD given base p(1-p)", **args)
    folds = table["family"] if table["family"].nunique() > 1 else table["cohort"]
    alone, both = (held_out_q2(table[[*x]], table[target], folds) for x in (("variance",), ("variance", "lad")))
    args = {"n": n, "source": SOURCE, "reason": "" if np.isfinite(both - alone) else "too few cohorts to leave any out"}
    note = f"held out, p(1-p) alone {alone:.3f}" if np.isfinite(alone) else ""
    yield entry(f"{prefix}lad_given_variance.{target}_added_q2", both - alone, note=note, **args)


def held_out_q2(x: pd.DataFrame, y: pd.Series, folds: pd.Series) -> float:
    """1 - sum (y - yhat)² / sum (y - ybar)², yhat the least-squares plane and ybar the mean of all folds but y's own.

    x (n, m), y (n,), folds (n,). NaN where a training set has no more rows than the plane has coefficients, or y is constant.
    """
    design, y, folds = np.column_stack([np.ones(len(x)), x]), y.to_numpy(dtype=float), folds.to_numpy()
    planes, means = np.full((2, len(y)), np.nan)
    for fold in np.unique(folds):
        train, test = folds != fold, folds == fold
        if train.sum() <= design.shape[1]:
            return float("nan")
        planes[test] = design[test] @ np.linalg.lstsq(design[train], y[train], rcond=None)[0]
        means[test] = y[train].mean()
    spread = ((y - means) ** 2).sum()
    return float(1 - ((y - planes) ** 2).sum() / spread) if spread > 0 else float("nan")
