"""What a study found, as entries: each headline number with its interval, its n, its reason if undefined and its source file.

Every function here takes raw tables only, so that a test recomputes each number from the committed files.
"""

import numpy as np
import pandas as pd

from lad_utils.baselines import METRICS
from lad_utils.cohorts import CONTROLS, FAMILY
from lad_utils.micro import HELD_OUT_PATTERNS
from lad_utils.stats import lift_ci

PERMUTATIONS = 9999
DUPLICATES = ("one_problem", "repeat_8", "repeat_32")  # results are shown with and without these
NOISY = ("labels_wrong_30", "labels_wrong_60", "broken_verifier")  # and these: their rewards are wrong
LIFT_COLUMNS = ("cohort", "family", "lift", "ci_low", "ci_high", "n", "n_seeds", "n_invalid", "reason")
OWN_SEED = 0  # the seed whose lift is the metric full_run
PRIMARY_RIVALS = ("variance", "mean_pass_rate", "distinct_fraction", "short_grpo")


def entry(name: str, value, *, n: int, source: str, low=None, high=None, reason: str = "", note: str = "") -> dict:
    """One number of results.json; a missing value must carry a reason."""

    def clean(v):
        return None if v is None or not np.isfinite(v) else float(v)

    if clean(value) is None and not reason:
        raise ValueError(f"{name}: undefined without a reason")
    return {
        "name": name,
        "value": clean(value),
        "ci_low": clean(low),
        "ci_high": clean(high),
        "n": int(n),
        "source": source,
        "reason": reason,
        "note": note,
    }


def valid(lifts: pd.DataFrame) -> pd.DataFrame:
    return lifts[lifts["invalid"] == ""]


def seed_variance(lifts: pd.DataFrame) -> float:
    """Variance of a run's lift between seeds of one cohort, pooled over cohorts; NaN when no cohort has two valid runs."""
    by_cohort = valid(lifts).groupby("cohort")["lift"]
    freedom = by_cohort.size() - 1
    return float((by_cohort.var(ddof=1) * freedom).sum() / freedom.sum()) if freedom.sum() else np.nan


def widened(found, variance: float) -> tuple[float, float]:
    """A question-paired interval (mean, low, high, se) widened by `variance`, that of training seeds; NaN adds nothing."""
    scale = np.sqrt(1 + np.nan_to_num(variance) / found.se**2) if found.se else np.nan
    middle = (found.low + found.high) / 2
    return middle - (middle - found.low) * scale, middle + (found.high - middle) * scale


def cohort_lifts(lifts: pd.DataFrame, questions: pd.DataFrame, *, arm: str, variant: str = "sampled") -> pd.DataFrame:
    """Seed-mean lift of every cohort of `arm`; its interval covers the draw of questions and, from two seeds on, of seeds.

    All seeds are pooled by question for a t interval over the shared questions, widened by the pooled variance between
    seeds over S. Evaluation noise enters both parts, so the interval errs on the wide side. Columns: cohort, family, lift,
    ci_low, ci_high, n, n_seeds, n_invalid, reason. Invalid runs are left out and counted.
    """
    chosen = lifts[(lifts["arm"] == arm) & (lifts["variant"] == variant)]
    between, rows = seed_variance(chosen), []
    for name, group in chosen.groupby("cohort", sort=False):
        good = valid(group)
        row = {"cohort": name, "family": FAMILY.get(name, "mixture"), "n_seeds": len(good), "n_invalid": len(group) - len(good)}
        if good.empty:
            reason = "every run of this cohort is invalid"
            rows.append(row | {"lift": np.nan, "ci_low": np.nan, "ci_high": np.nan, "n": 0, "reason": reason})
            continue
        sums = question_sums(questions, good["run_id"], variant=variant)
        found = lift_ci(sums["c_before"], sums["n_before"], sums["c_after"], sums["n_after"])
        low, high = widened(found, between / len(good))
        rows.append(row | {"lift": found.lift, "ci_low": low, "ci_high": high, "n": found.n, "reason": found.reason})
    return pd.DataFrame(rows, columns=[*LIFT_COLUMNS])


def lifts_over(questions: pd.DataFrame, lifts: pd.DataFrame, *, variant: str) -> pd.DataFrame:
    """`lifts` with every run's lift over `questions` alone, which vary more from seed to seed the fewer they are."""
    mine = questions[questions["variant"] == variant]
    gains = mine["c_after"] / mine["n_after"] - mine["c_before"] / mine["n_before"]
    runs = lifts[lifts["variant"] == variant]
    return runs.assign(lift=runs["run_id"].map(gains.groupby(mine["run_id"]).mean()))


def question_sums(questions: pd.DataFrame, run_ids, *, variant: str = "sampled") -> pd.DataFrame:
    """Counts before and after of some runs, summed by question, in the order of task_id."""
    mine = questions[questions["run_id"].isin(run_ids) & (questions["variant"] == variant)]
    return mine.groupby("task_id")[["c_before", "n_before", "c_after", "n_after"]].sum().sort_index()


def accuracy_difference(questions: pd.DataFrame, a, b, *, between: float, variant: str = "sampled") -> tuple:
    """Accuracy after the runs `a` less that after the runs `b`, paired by question: (stats.Lift, low, high).

    `between`: variance of one run's lift between seeds, by which the interval is widened for the seeds of either side.
    """
    x, y = (question_sums(questions, runs, variant=variant) for runs in (a, b))
    d = lift_ci(y["c_after"], y["n_after"], x["c_after"], x["n_after"])
    return d, *widened(d, between * (1 / len(a) + 1 / len(b)))


def validated(
    scores: pd.DataFrame, lifts: pd.DataFrame, questions: pd.DataFrame, *, arm: str = "main", variant: str = "sampled"
) -> pd.DataFrame:
    """One row a validated cohort of `arm`: lift with interval, family, and every metric in a column of its own.

    `lift_other_seeds` is the mean lift of all seeds but OWN_SEED, whose lift is the metric full_run; NaN where there are none.
    """
    wide = scores[scores["arm"] == arm].pivot(index="cohort", columns="metric", values="value")
    wide = wide.reindex(columns=[*dict.fromkeys([*wide.columns, *METRICS])])
    table = cohort_lifts(lifts, questions, arm=arm, variant=variant).merge(wide, left_on="cohort", right_index=True)
    others = valid(lifts[(lifts["arm"] == arm) & (lifts["variant"] == variant) & (lifts["seed"] != OWN_SEED)])
    table["lift_other_seeds"] = table["cohort"].map(others.groupby("cohort")["lift"].mean())
    return table[~table["cohort"].isin(CONTROLS)].reset_index(drop=True)


def lift_told(table: pd.DataFrame, metric: str) -> pd.Series:
    """The lift that `metric` is to tell, of a table as `validated` gives it: full_run does not count towards its own."""
    return table["lift_other_seeds" if metric == "full_run" else "lift"]


def cohort_entries(table: pd.DataFrame, name: str) -> list[dict]:
    """An entry a row of `table`, as cohort_lifts gives it; `name` holds {cohort}, or other columns of the table."""
    return [
        entry(
            name.format(**row),
            row["lift"],
            low=row["ci_low"],
            high=row["ci_high"],
            n=row["n"],
            source="eval_questions.parquet",
            reason=row["reason"],
            note=f"{row['n_seeds']} seeds, {row['n_invalid']} invalid",
        )
        for row in table.to_dict("records")
    ]


def lift_entries(lifts: pd.DataFrame, questions: pd.DataFrame, tasks: pd.DataFrame) -> list[dict]:
    """Base accuracy and every cohort's lift: sampled, greedy, and sampled on seen and on unseen skill patterns alone."""
    entries, source = [], "eval_questions.parquet"
    for variant in ("sampled", "greedy"):
        first = question_sums(questions, [lifts["run_id"].iloc[0]], variant=variant)
        rates, half = (
            first["c_before"] / first["n_before"],
            1.96 * np.sqrt(np.var(first["c_before"] / first["n_before"]) / len(first)),
        )
        args = {"low": rates.mean() - half, "high": rates.mean() + half, "n": len(first), "source": source}
        entries.append(entry(f"{variant}.base_accuracy", rates.mean(), **args))
    unseen = set(tasks["task_id"][tasks["operations"].isin(HELD_OUT_PATTERNS)])
    subsets = [
        ("lift", "sampled", questions),
        ("greedy_lift", "greedy", questions),
        ("lift_seen_skills", "sampled", questions[~questions["task_id"].isin(unseen)]),
        ("lift_unseen_skills", "sampled", questions[questions["task_id"].isin(unseen)]),
    ]
    for name, variant, chosen in subsets:
        runs = lifts if chosen is questions else lifts_over(chosen, lifts, variant=variant)
        entries += cohort_entries(cohort_lifts(runs, chosen, arm="main", variant=variant), "{cohort}." + name)
    return entries


def score_entries(scores: pd.DataFrame) -> list[dict]:
    """LAD of every cohort of the main arm."""
    rows = scores[(scores["arm"] == "main") & (scores["metric"] == "lad")].itertuples()
    return [
        entry(f"{row.cohort}.lad", row.value, low=row.ci_low, high=row.ci_high, n=row.n_tasks, source="scores.parquet")
        for row in rows
    ]
