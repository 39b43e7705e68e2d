"""What a metric's agreement with lift costs: the cost frontier, and what adding a metric to LAD would give."""

import numpy as np
import pandas as pd

from lad_utils.agreement import partial_spearman_ci
from lad_utils.baselines import METRICS
from lad_utils.stats import spearman_ci
from lad_utils.validation import entry, lift_told

SETS = (("", "main"), ("mixture.", "mixture"))
PENALTIES = np.logspace(-3, 3, 13)  # of the ridge on LAD and another metric, chosen within each training fold
SOURCE = "scores.parquet, eval_questions.parquet"


def frontier_table(found: dict[str, dict], costs: pd.DataFrame, *, prefix: str = "") -> pd.DataFrame:
    """One row a metric whose agreement is defined: metric, label, needs, its cost, rho, low, high, held_out, dominated_by.

    found: entries by name. `rho`, `low`, `high`: absolute Spearman and interval, of a metric in its better direction.
    `dominated_by`: the cheapest metric that costs no more FLOPs and agrees as well, better in one of the two; "" if none.
    """
    cost, rows = costs[costs["kind"] == "metric"].set_index("name"), []
    for metric, (label, needs) in METRICS.items():
        e, held_out = found[f"{prefix}{metric}.rho"], found[f"{prefix}{metric}.held_out_{'cohort' if prefix else 'family'}_rho"]
        if e["value"] is None or metric not in cost.index:
            continue
        ends = sorted(np.sign(e["value"] or 1) * np.array([e["ci_low"], e["ci_high"]], dtype=float))
        spent = cost.loc[metric, ["flops", "seconds", "peak_bytes"]].to_dict()
        row = {"metric": metric, "label": label, "needs": needs} | spent
        held = np.nan if held_out["value"] is None else held_out["value"]
        rows.append(row | {"rho": abs(e["value"]), "low": ends[0], "high": ends[1], "held_out": held})
    table = pd.DataFrame(rows)
    by = [_dominating(row, table) for row in table.itertuples()]
    return table.assign(dominated_by=by)


def _dominating(row, table: pd.DataFrame) -> str:
    as_good = table[(table["flops"] <= row.flops) & (table["rho"] >= row.rho)]
    better = as_good[(as_good["flops"] < row.flops) | (as_good["rho"] > row.rho)]
    return "" if better.empty else better.sort_values(["flops", "rho"], ascending=[True, False])["metric"].iloc[0]


def addition_entries(table: pd.DataFrame, *, prefix: str = "") -> list[dict]:
    """Does another metric help LAD? Partial Spearman given LAD, and what it adds to the Q² of LAD alone, held out.

    Q² is that of ridge regression on both, standardised, its penalty chosen within the training fold; folds leave out a family
    where there are several, else a cohort. `table` as `validated` gives it.
    """
    groups = table["family"] if table["family"].nunique() > 1 else table["cohort"]
    entries = []
    for metric in (m for m in METRICS if m != "lad"):
        both = table.assign(told=lift_told(table, metric), fold=groups).dropna(subset=["lad", metric, "told"])
        given = partial_spearman_ci(both[metric], both["told"], both[["lad"]])
        args = {"n": len(both), "source": SOURCE}
        note = "exploratory, given LAD"
        low_high = {"low": given.low, "high": given.high}
        entries.append(
            entry(f"{prefix}adds.{metric}.partial_rho", given.rho, reason=given.reason, note=note, **low_high, **args)
        )
        gain, reason = _gain(both, metric)
        entries.append(entry(f"{prefix}adds.{metric}.q2_gain", gain, reason=reason, note="exploratory, held out", **args))
    return entries


def _gain(both: pd.DataFrame, metric: str) -> tuple[float, str]:
    if len(both) < 6 or both["fold"].nunique() < 3:
        return np.nan, f"{len(both)} cohorts in {both['fold'].nunique()} folds"
    reason = spearman_ci(both[metric], both["told"]).reason
    if reason:
        return np.nan, reason
    y, folds = both["told"].to_numpy(), both["fold"].to_numpy()
    errors = [np.sum((y - held_out_ridge(both[c].to_numpy(dtype=float), y, folds)) ** 2) for c in (["lad"], ["lad", metric])]
    means = np.array([y[folds != f].mean() for f in folds])
    return float((errors[0] - errors[1]) / np.sum((y - means) ** 2)), ""


def held_out_ridge(x: np.ndarray, y: np.ndarray, folds: np.ndarray) -> np.ndarray:
    """y (n,) told from x (n, m), standardised within each training fold, by ridge without the fold's own rows; (n,)."""
    from sklearn.linear_model import RidgeCV

    told = np.empty(len(y))
    for fold in np.unique(folds):
        out = folds == fold
        mean, sd = x[~out].mean(axis=0), x[~out].std(axis=0)
        z = (x - mean) / np.where(sd > 0, sd, 1)
        told[out] = RidgeCV(alphas=PENALTIES).fit(z[~out], y[~out]).predict(z[out])
    return told


def cost_entries(costs: pd.DataFrame) -> list[dict]:
    """What each metric of a designed cohort costs (FLOPs, seconds, memory), and a full run's FLOPs over LAD's."""
    metrics, args = (
        costs[costs["kind"] == "metric"].set_index("name"),
        {"n": 1, "source": "costs.parquet", "note": "one cohort on average"},
    )
    entries = []
    for name, row in metrics.iterrows():
        entries += [entry(f"cost.{name}.{c}", row[c], **args) for c in ("flops", "seconds", "backward_tokens")]
        entries.append(entry(f"cost.{name}.peak_bytes", row["peak_bytes"], reason=row["reason"], **args))
    lad, run = metrics.loc["lad", "flops"], metrics.loc["full_run", "flops"]
    note = "one seed, trained and evaluated, over rollouts and embeddings of one cohort"
    return [*entries, entry("cost.training_over_scoring", run / lad, **args | {"note": note})]


def frontier_entries(found: dict[str, dict], costs: pd.DataFrame) -> list[dict]:
    """How many metrics cost no more than each and agree at least as well, designed cohorts and mixtures: 0 is the frontier."""
    entries = []
    for prefix, _ in SETS:
        for row in frontier_table(found, costs, prefix=prefix).itertuples():
            args = {"n": found[f"{prefix}{row.metric}.rho"]["n"], "source": f"{SOURCE}, costs.parquet"}
            note = f"by {row.dominated_by}" if row.dominated_by else "on the frontier"
            entries.append(entry(f"{prefix}frontier.{row.metric}.dominated", float(bool(row.dominated_by)), note=note, **args))
    return entries
