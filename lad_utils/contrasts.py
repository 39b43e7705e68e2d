"""Failure modes: pairs of cohorts and properties of mixtures for which the sign of the lift's difference was written down.

The signs are LAD's own predictions, put here before any mixture and any run on the second base was trained. Of the
designed cohorts on the first base, four of the six seeds had been seen.
"""

from typing import NamedTuple

import numpy as np
import pandas as pd
import statsmodels.api as sm

from lad_utils.stats import lift_ci
from lad_utils.validation import cohort_lifts, entry, question_sums, seed_variance, valid, widened


class Contrast(NamedTuple):
    """The lift of cohort `a` minus that of cohort `b`, predicted to have `sign`."""

    name: str
    a: str
    b: str
    sign: int
    because: str


CONTRASTS = (
    Contrast("bimodal_unimodal", "bimodal", "unimodal", -1, "equal mean pass rate, but p(1-p) is small at both ends"),
    Contrast("noisy_clean_30", "labels_wrong_30", "clean_twin", -1, "wrong labels are solved by chance alone"),
    Contrast("noisy_clean_60", "labels_wrong_60", "clean_twin", -1, "wrong labels are solved by chance alone"),
    Contrast("duplicate_diverse_8", "repeat_8", "max_diverse", -1, "eight tasks stand for 256"),
    Contrast("duplicate_diverse_32", "repeat_32", "max_diverse", -1, "32 tasks stand for 256"),
    Contrast("low_high", "medium_hard", "medium_easy", 1, "p near .3 has more headroom than p near .7"),
)
# Of the regression of a mixture's lift on these four at once, standardised: property -> sign of its slope.
MIXTURE_SLOPES = {
    "wrong_label_share": -1,
    "distinct_fraction": 1,
    "pass_rate_sd": -1,  # bimodal against unimodal: at equal mean, spread lowers mean p(1-p)
    "clean_pass_rate": -1,  # by the clean labels; LAD's energy falls from p = 1/3 on
}


def contrast_entries(lifts: pd.DataFrame, questions: pd.DataFrame) -> list[dict]:
    """Lift of `a` minus lift of `b` for every contrast: accuracy after training, paired by question, widened by seeds.

    The note says whether the predicted sign came, came the other way, or is undecided (interval over zero).
    """
    runs, entries = valid(lifts[(lifts["arm"] == "main") & (lifts["variant"] == "sampled")]), []
    between = seed_variance(runs)
    for c in CONTRASTS:
        ids = [runs.loc[runs["cohort"] == name, "run_id"].tolist() for name in (c.a, c.b)]
        name, source = f"contrast.{c.name}", "eval_questions.parquet"
        if not all(ids):
            entries.append(entry(name, np.nan, n=0, source=source, reason="one of the two cohorts has no valid run here"))
            continue
        x, y = (question_sums(questions, chosen) for chosen in ids)
        d = lift_ci(y["c_after"], y["n_after"], x["c_after"], x["n_after"])
        low, high = widened(d, between * sum(1 / len(chosen) for chosen in ids))
        note = (
            f"{c.a} minus {c.b}; predicted {'above' if c.sign > 0 else 'below'} zero: {c.because}; {verdict(c.sign, low, high)}"
        )
        entries.append(entry(name, d.lift, low=low, high=high, n=d.n, source=source, reason=d.reason, note=note))
    return entries


def verdict(sign: int, low: float, high: float) -> str:
    """Whether an interval bears the predicted sign out."""
    if low > 0 or high < 0:
        return "as predicted" if (low > 0) == (sign > 0) else "the other way"
    return "undecided" if np.isfinite([low, high]).all() else "no interval"


def mixture_properties(cohorts: pd.DataFrame, tasks: pd.DataFrame) -> pd.DataFrame:
    """One row a mixture: wrong_label_share, distinct_fraction, mean and SD over positions of the screened pass rate.

    The SD is that of the true rates, binomial noise subtracted. The rollouts are those that the mixtures were drawn by.
    """
    rows = cohorts[cohorts["arm"] == "mixture"].merge(
        tasks[["task_id", "answer", "pass_rate", "k"]], on="task_id", suffixes=("", "_true")
    )
    rows["wrong"] = rows["answer"] != rows["answer_true"]
    rows["noise"] = rows["pass_rate"] * (1 - rows["pass_rate"]) / (rows["k"] - 1)  # binomial, of k screening rollouts
    grouped = rows.groupby("cohort", sort=False)
    return pd.DataFrame(
        {
            "wrong_label_share": grouped["wrong"].mean(),
            "distinct_fraction": grouped["task_id"].nunique() / grouped.size(),
            "pass_rate_sd": np.sqrt((grouped["pass_rate"].var() - grouped["noise"].mean()).clip(lower=0)),
            "clean_pass_rate": grouped["pass_rate"].mean(),
        }
    ).reset_index()


def slope_entries(lifts: pd.DataFrame, questions: pd.DataFrame, cohorts: pd.DataFrame, tasks: pd.DataFrame) -> list[dict]:
    """Slopes of a mixture's lift on all MIXTURE_SLOPES at once, for a standard deviation of each; HC3 errors, t interval."""
    source, arm = "eval_questions.parquet, cohorts.parquet, tasks.parquet", lifts[lifts["arm"] == "mixture"]
    if valid(arm).empty:
        return [entry(f"slope.{name}", np.nan, n=0, source=source, reason="no mixture was trained") for name in MIXTURE_SLOPES]
    table = (
        cohort_lifts(arm, questions, arm="mixture").merge(mixture_properties(cohorts, tasks), on="cohort").dropna(subset="lift")
    )
    x = table[[*MIXTURE_SLOPES]]
    if len(table) < len(MIXTURE_SLOPES) + 3 or (x.std() == 0).any():
        reason = f"{len(table)} mixtures, or one of the properties is constant"
        return [entry(f"slope.{name}", np.nan, n=len(table), source=source, reason=reason) for name in MIXTURE_SLOPES]
    fit = sm.OLS(table["lift"], sm.add_constant((x - x.mean()) / x.std())).fit(cov_type="HC3", use_t=True)
    intervals, entries = fit.conf_int(), []
    for name, sign in MIXTURE_SLOPES.items():
        low, high = intervals.loc[name]
        note = f"lift a standard deviation, the other three fixed; predicted {'above' if sign > 0 else 'below'} zero; "
        args = {"low": low, "high": high, "n": len(table), "source": source, "note": note + verdict(sign, low, high)}
        entries.append(entry(f"slope.{name}", fit.params[name], **args))
    return entries
