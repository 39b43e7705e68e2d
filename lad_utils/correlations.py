"""Every metric against lift, as entries: plain, held out, partial, its errors; and LAD against its rivals on equal cohorts."""

import numpy as np
import pandas as pd

from lad_utils.ablations import spearman_difference_ci
from lad_utils.agreement import agreement, family_swap_test, held_out_error, loco_null, partial_spearman_ci
from lad_utils.baselines import METRICS
from lad_utils.stats import bca_bootstrap_spearman, holm, loco, spearman_ci, williams_test
from lad_utils.validation import PERMUTATIONS, PRIMARY_RIVALS, entry, lift_told

RESAMPLES = 20_000  # fewer leave the BCa end points moving in the second decimal
SIMULATED = 1000
COVARIATES = ("mean_pass_rate", "token_length", "vendi", "share_of_plus", "share_of_minus")
SOURCE = "scores.parquet, eval_questions.parquet"


def with_operation_mix(table: pd.DataFrame, cohorts: pd.DataFrame, tasks: pd.DataFrame, *, arm: str = "main") -> pd.DataFrame:
    """`table` (one row a cohort) with the share of additions and of subtractions among the steps of its tasks."""
    rows = cohorts[cohorts["arm"] == arm].merge(tasks[["task_id", "operations"]], on="task_id")
    steps = rows.groupby("cohort")["operations"].sum()
    shares = {f"share_of_{n}": steps.str.count(f"\\{op}") / steps.str.len() for n, op in (("plus", "+"), ("minus", "-"))}
    return table.merge(pd.DataFrame(shares), left_on="cohort", right_index=True)


def correlation_entries(table: pd.DataFrame, *, prefix: str = "") -> list[dict]:
    """Plain and held-out Spearman of every metric with lift; `table` as `validated` gives it.

    Folds leave out a cohort or a whole family; where all cohorts are of one family (mixtures) only the former exist.
    """
    entries, families = [], table["family"].tolist()
    for metric in METRICS:
        x, y = table[metric].to_numpy(dtype=float), lift_told(table, metric).to_numpy(dtype=float)
        plain = spearman_ci(x, y)
        boot = bca_bootstrap_spearman(x, y, n_resamples=RESAMPLES, rng=np.random.default_rng(0))
        name, common = f"{prefix}{metric}", {"n": plain.n, "source": SOURCE}
        note = f"{boot.n_undefined} of {boot.n_resamples} resamples undefined"
        entries += [
            entry(f"{name}.rho", plain.rho, low=plain.low, high=plain.high, reason=plain.reason, **common),
            entry(f"{name}.rho_p_value", plain.p_value, reason=plain.reason, note=plain.p_method, **common),
            entry(f"{name}.rho_bca", boot.rho, low=boot.low, high=boot.high, reason=boot.reason, note=note, **common),
        ]
        for fold, groups in (("cohort", None), ("family", families)):
            found = loco(x, y, groups, n_permutations=PERMUTATIONS, rng=np.random.default_rng(0))
            error = held_out_error(found.predictions, y, groups)
            common = {"n": found.n, "source": SOURCE, "reason": found.reason}
            entries += [
                entry(f"{name}.held_out_{fold}_rho", found.rho, note=f"{found.n_folds} folds", **common),
                entry(f"{name}.held_out_{fold}_q2", found.q2, **common),
                entry(f"{name}.held_out_{fold}_p_value", found.p_value, note=f"{found.n_permutations} permutations", **common),
            ]
            common = {"n": error.n, "source": SOURCE, "reason": error.reason}
            note = (
                f"always guessing the mean of the others: {error.baseline_rmse:.4f}" if np.isfinite(error.baseline_rmse) else ""
            )
            entries += [
                entry(f"{name}.held_out_{fold}_rmse", error.rmse, note=note, **common),
                entry(f"{name}.held_out_{fold}_mae", error.mae, **common),
                entry(f"{name}.held_out_{fold}_calibration_slope", error.calibration_slope, note="1 is ideal", **common),
            ]
    return entries


def agreement_entries(table: pd.DataFrame, *, prefix: str = "") -> list[dict]:
    """Kendall, Pearson, top-3 precision, pairwise accuracy and the partial Spearman of every metric, each taken as it stands.

    A metric that lower lifts go with, such as mean pass rate, has a pairwise accuracy below one half. Partial: given COVARIATES
    less the metric itself; `table` needs their columns (see with_operation_mix).
    """
    entries = []
    for metric in METRICS:
        y = lift_told(table, metric)
        found = agreement(table[metric], y)
        common = {"n": found.n, "source": SOURCE, "reason": found.reason}
        for name in ("kendall", "pearson", "top_3", "pairwise"):
            entries.append(entry(f"{prefix}{metric}.{name}", getattr(found, name), **common))
        given = [c for c in COVARIATES if c != metric]
        p = partial_spearman_ci(table[metric], y, table[given])
        note = f"given {', '.join(given)}"
        args = {"low": p.low, "high": p.high, "n": p.n, "source": SOURCE, "reason": p.reason, "note": note}
        entries.append(entry(f"{prefix}{metric}.partial_rho", p.rho, **args))
    return entries


def null_entries(table: pd.DataFrame) -> list[dict]:
    """Held-out Spearman of a metric that knows nothing, simulated on these folds: mean, 5 to 95% as interval."""
    entries = []
    for fold, groups in (("cohort", None), ("family", table["family"].tolist())):
        n, reason = len(table), ""
        if n < 5 or (groups and len(set(groups)) < 2):
            reason, low, high, mean = f"{n} cohorts, or one family", None, None, np.nan
        else:
            held_out = loco_null([0.0], n=n, groups=groups, n_simulated=SIMULATED, rng=np.random.default_rng(0))[0].held_out
            mean, (low, high) = np.nanmean(held_out), np.nanquantile(held_out, [0.05, 0.95])
        args = {"n": n, "source": "cohorts.parquet", "reason": reason, "note": f"{SIMULATED} simulated metrics; range 5 to 95%"}
        entries.append(entry(f"null.held_out_{fold}_rho", mean, low=low, high=high, **args))
    return entries


def comparison_entries(table: pd.DataFrame, *, prefix: str = "", primary: bool = True) -> list[dict]:
    """LAD against every other metric on the same cohorts: the difference of Spearman correlations with interval and tests.

    A rival is taken in its better direction, since nothing forbids a buyer to prefer low pass rates: the difference is LAD's
    rho minus the rival's absolute rho. That direction is read off the same lifts, LAD's is not, so the comparison errs against
    LAD: even a useless rival's absolute rho is above 0. The four PRIMARY_RIVALS were fixed beforehand for the designed
    cohorts (`primary`) and are Holm-adjusted together, one that was not measured counting as one; all others are exploratory.
    Tests: Williams' (approximate for ranks) and swaps of whole families. Interval: Zou's, see `ablations`. Both take cohorts
    as independent, which families are not quite.
    """
    tests, entries = {}, []
    for rival in (m for m in METRICS if m != "lad"):
        both = table[["lad", rival, "family"]].assign(lift=lift_told(table, rival)).dropna()
        sign = -1 if spearman_ci(both[rival], both["lift"]).rho < 0 else 1
        pairs = (("lad", "lift"), (rival, "lift"), ("lad", rival))
        r = [spearman_ci(both[a], both[b]).rho * (sign if rival in (a, b) else 1) for a, b in pairs]
        test, swap = williams_test(*r, len(both)), _swapped(both, rival, sign)
        interval = spearman_difference_ci(*r, len(both))
        name, note = f"{prefix}lad_minus_{rival}", "primary" if primary and rival in PRIMARY_RIVALS else "exploratory"
        reason = "" if np.isfinite(r[0] - r[1]) else test.reason or "a correlation is undefined"
        args = {"n": len(both), "source": SOURCE, "note": f"{note}; against the absolute rho"}
        entries.append(
            entry(f"{name}.rho", r[0] - r[1], low=interval.low, high=interval.high, reason=reason or interval.reason, **args)
        )
        entries.append(entry(f"{name}.p_value", test.p_value, reason=test.reason, **args))
        entries.append(entry(f"{name}.p_value_family_swaps", swap.p_value, reason=swap.reason, **args))
        tests[rival] = test, len(both)
    if not primary:
        return entries
    for rival, p in zip(PRIMARY_RIVALS, holm([tests[r][0].p_value for r in PRIMARY_RIVALS]), strict=True):
        test, n = tests[rival]
        args = {"n": n, "source": SOURCE, "reason": test.reason, "note": "Holm over the four primary comparisons"}
        entries.append(entry(f"{prefix}lad_minus_{rival}.p_value_holm", p, **args))
    return entries


def _swapped(both: pd.DataFrame, rival: str, sign: int):
    return family_swap_test(both["lad"], sign * both[rival], both["lift"], both["family"], rng=np.random.default_rng(0))
