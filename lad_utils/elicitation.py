"""How much of a lift the base model gives without any training: at lower temperatures, and greedily."""

import pandas as pd

from lad_utils.cohorts import CONTROLS
from lad_utils.stats import lift_ci
from lad_utils.validation import cohort_lifts, entry


def cooling_entries(counts: pd.DataFrame, cooled: pd.DataFrame) -> list[dict]:
    """Accuracy of the untrained base at lower temperatures minus that at the study's own, paired by evaluation question.

    `counts`: draws of base rollouts (split, draw, task_id, n, c), all draws pooled; `cooled`: temperature, task_id, n, c.
    """
    own = counts[counts["split"] == "eval"].groupby("task_id")[["n", "c"]].sum()
    entries = []
    for temperature, rows in cooled.groupby("temperature", sort=False):
        both = own.merge(rows, on="task_id", suffixes=("", "_cool"))
        gain = lift_ci(both["c"], both["n"], both["c_cool"], both["n_cool"])
        note = f"base accuracy {gain.before:.3f} at the study's temperature, {gain.after:.3f} at {temperature:g}"
        args = {"low": gain.low, "high": gain.high, "n": gain.n, "source": "problem_counts.parquet, cool_counts.parquet"}
        entries.append(entry(f"cooling.{temperature:g}.gain", gain.lift, reason=gain.reason, note=note, **args))
    return entries


def elicitation_entries(lifts: pd.DataFrame, questions: pd.DataFrame, *, arm: str = "main") -> list[dict]:
    """Mean lift over cohorts, sampled and greedy, each with its range, and greedy accuracy of the base minus sampled.

    Where greedy decoding of the untrained base gives more than training does for samples, training elicits what is there.
    """
    entries, source = [], "eval_questions.parquet"
    for variant in ("sampled", "greedy"):
        table = cohort_lifts(lifts, questions, arm=arm, variant=variant).dropna(subset="lift")
        table = table[~table["cohort"].isin(CONTROLS)]
        note = f"mean over cohorts; from {100 * table['lift'].min():.1f} to {100 * table['lift'].max():.1f}"
        name = f"elicitation.{arm}.mean_{variant}_lift"
        reason = "" if len(table) else "no valid run"
        entries.append(
            entry(name, table["lift"].mean(), n=len(table), source=source, note=note if len(table) else "", reason=reason)
        )
    first = questions[questions["run_id"] == questions["run_id"].iloc[0]]
    base = {v: t.set_index("task_id").sort_index() for v, t in first.groupby("variant")}
    gain = lift_ci(*[base[v][c] for v in ("sampled", "greedy") for c in ("c_before", "n_before")])
    note = "base model, no training: greedy minus sampled accuracy"
    entries.append(
        entry(
            "elicitation.greedy_decoding",
            gain.lift,
            low=gain.low,
            high=gain.high,
            n=gain.n,
            source=source,
            reason=gain.reason,
            note=note,
        )
    )
    return entries
