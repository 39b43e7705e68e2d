"""Selection: what training on chosen tasks gives, against other choices from the same pool, on what else, and at what loss."""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from lad_utils.stats import spearman_ci
from lad_utils.validation import accuracy_difference, cohort_lifts, entry, lifts_over, seed_variance, valid

ARMS = ("causal", "selection")
MASTERED = 0.9  # base pass rate from which a question counts as mastered, by a base draw that no lift uses
MEASURES = {
    "lift": "lift on the held-out questions",
    "greedy_lift": "greedy lift on them",
    "shifted_lift": "lift on another domain",
    "mastered_lift": "change on mastered questions",
}


def selections(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of both arms of selections, as one arm `causal`: they differ only in whose rollouts score them."""
    return table[table["arm"].isin(ARMS)].assign(arm="causal")


def mastered_questions(problem_counts: pd.DataFrame) -> list[str]:
    """task_ids of evaluation questions that the first independent base draw solved MASTERED of the time or more."""
    first = problem_counts[(problem_counts["draw"] == 1) & (problem_counts["split"] == "eval")]
    return first.loc[first["c"] >= MASTERED * first["n"], "task_id"].tolist()


def measured(lifts: pd.DataFrame, questions: pd.DataFrame, problem_counts: pd.DataFrame) -> dict[str, tuple]:
    """measure -> (runs, questions, variant) of the selections; a measure that no run has is left out."""
    chosen = selections(lifts)
    asked = questions[questions["run_id"].isin(chosen["run_id"])]
    kept = asked[asked["task_id"].isin(mastered_questions(problem_counts))]
    found = {"lift": (chosen, asked, "sampled"), "greedy_lift": (chosen, asked, "greedy")}
    if (chosen["variant"] == "shifted").any():
        found["shifted_lift"] = (chosen, asked, "shifted")
    if kept["task_id"].nunique() >= 3:
        found["mastered_lift"] = (lifts_over(kept, chosen, variant="sampled"), kept, "sampled")
    return found


def selection_lifts(lifts: pd.DataFrame, questions: pd.DataFrame, problem_counts: pd.DataFrame) -> pd.DataFrame:
    """Every selection's change by every measure: the columns of cohort_lifts and `measure`."""
    tables = [
        cohort_lifts(runs, asked, arm="causal", variant=variant).assign(measure=measure)
        for measure, (runs, asked, variant) in measured(lifts, questions, problem_counts).items()
    ]
    return pd.concat(tables, ignore_index=True)


def selection_entries(
    lifts: pd.DataFrame, questions: pd.DataFrame, scores: pd.DataFrame, problem_counts: pd.DataFrame
) -> list[dict]:
    """Change and fresh LAD of each selection, top-LAD against every other, paired by question, and the dose-response."""
    entries, source = [], "eval_questions.parquet"
    table = selection_lifts(lifts, questions, problem_counts)
    for row in table.itertuples():
        args = {"low": row.ci_low, "high": row.ci_high, "n": row.n, "source": source, "reason": row.reason}
        entries.append(entry(f"causal.{row.cohort}.{row.measure}", row.lift, note=f"{row.n_seeds} seeds", **args))
    lad = selections(scores[scores["metric"] == "lad"])
    for row in lad[lad["cohort"].isin(table["cohort"])].itertuples():
        args = {"low": row.ci_low, "high": row.ci_high, "n": row.n_tasks, "source": "scores.parquet", "note": "fresh rollouts"}
        entries.append(entry(f"causal.{row.cohort}.lad", row.value, **args))
    for measure, (runs, asked, variant) in measured(lifts, questions, problem_counts).items():
        suffix = "" if measure == "lift" else f".{measure}"
        entries += _difference_entries(runs, asked, variant, suffix)
    return [*entries, *_dose_entries(table, lad)]


def _difference_entries(lifts: pd.DataFrame, questions: pd.DataFrame, variant: str, suffix: str) -> Iterator[dict]:
    """Accuracy after training on one selection less that on another, over the same questions; several seeds where both have."""
    runs = valid(lifts[lifts["variant"] == variant]).groupby("cohort", sort=False)["run_id"].agg(list)
    names = [*dict.fromkeys(lifts["cohort"])]
    others = [n for n in names if not n.startswith("decile_") or n == "decile_10"]  # random among what LAD likes best
    pairs = [("top_lad", n) for n in others if n != "top_lad"] if "top_lad" in names else []
    if {"random_pool", "bottom_lad"} <= set(names):
        pairs.append(("random_pool", "bottom_lad"))
    between = seed_variance(lifts[lifts["variant"] == variant])
    for a, b in pairs:
        name, source = f"causal.{a}_minus_{b}{suffix}", "eval_questions.parquet"
        if a not in runs or b not in runs:
            yield entry(name, np.nan, n=0, source=source, reason="one of the two has no valid run")
            continue
        d, low, high = accuracy_difference(questions, runs[a], runs[b], between=between, variant=variant)
        sizes = f"; {d.lift / np.sqrt(between):.1f} standard deviations between seeds" if between > 0 else ""
        note = f"accuracy after training, paired by question; {len(runs[a])} and {len(runs[b])} seeds{sizes}"
        yield entry(name, d.lift, low=low, high=high, n=d.n, source=source, reason=d.reason, note=note)


def _dose_entries(table: pd.DataFrame, lad: pd.DataFrame) -> Iterator[dict]:
    """Spearman, over deciles of screened energy, of the decile and of fresh LAD with lift; the decile of the highest lift."""
    dose = table[(table["measure"] == "lift") & table["cohort"].str.startswith("decile_")]
    if len(dose) < 3:
        return
    place = dose["cohort"].str.removeprefix("decile_").astype(int)
    score = dose["cohort"].map(lad.set_index("cohort")["value"])
    source = "scores.parquet, eval_questions.parquet"
    for name, x in (("decile", place), ("lad", score)):
        r = spearman_ci(x, dose["lift"])
        args = {"low": r.low, "high": r.high, "n": r.n, "source": source, "reason": r.reason, "note": f"p = {r.p_value:.3g}"}
        yield entry(f"causal.dose.{name}_rho", r.rho, **args)
    best = dose["lift"].idxmax() if dose["lift"].notna().any() else None
    reason = "" if best is not None else "no valid run"
    value = np.nan if best is None else place[best]
    yield entry("causal.dose.best_decile", value, n=len(dose), source=source, reason=reason, note="10 is the highest energy")
