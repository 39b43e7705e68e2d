"""What a study found, as entries: each headline number with its interval, its n, its reason if undefined and its source file.

Every function here takes raw tables only, so that a test recomputes each number from the committed files.
"""

import numpy as np
import pandas as pd

from lad_utils.baselines import METRICS
from lad_utils.cohorts import CONTROLS, FAMILY
from lad_utils.micro import HELD_OUT_PATTERNS
from lad_utils.stats import bca_bootstrap_spearman, lift_ci, loco, seed_reliability, spearman_ci

PERMUTATIONS = 9999
RESAMPLES = 20_000  # fewer leave the BCa end points moving in the second decimal
DUPLICATES = "diversity"  # the family of repeated and paraphrased tasks; results are shown with and without it


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


def cohort_lifts(lifts: pd.DataFrame, questions: pd.DataFrame, *, arm: str, variant: str = "sampled") -> pd.DataFrame:
    """Seed-mean lift of every cohort of `arm`, with a t interval over the shared questions (all seeds pooled by question).

    Columns: cohort, family, lift, ci_low, ci_high, n_seeds, seed_sd. Invalid runs are left out and counted in n_invalid.
    """
    rows = []
    chosen = lifts[(lifts["arm"] == arm) & (lifts["variant"] == variant)]
    for name, group in chosen.groupby("cohort", sort=False):
        good = valid(group)
        mine = questions[questions["run_id"].isin(good["run_id"]) & (questions["variant"] == variant)]
        sums = mine.groupby("task_id", sort=False)[["c_before", "n_before", "c_after", "n_after"]].sum()
        found = lift_ci(sums["c_before"], sums["n_before"], sums["c_after"], sums["n_after"]) if len(good) else None
        rows.append(
            {
                "cohort": name,
                "family": FAMILY[name],
                "lift": found.lift if found else np.nan,
                "ci_low": found.low if found else np.nan,
                "ci_high": found.high if found else np.nan,
                "n_seeds": len(good),
                "n_invalid": len(group) - len(good),
                "seed_sd": good["lift"].std(ddof=1) if len(good) > 1 else np.nan,
            }
        )
    return pd.DataFrame(rows)


def seed_matrix(lifts: pd.DataFrame, *, variant: str = "sampled") -> np.ndarray:
    """Lifts of the validated cohorts, shape (cohorts, seeds); invalid runs are NaN."""
    main = lifts[(lifts["arm"] == "main") & (lifts["variant"] == variant) & ~lifts["cohort"].isin(CONTROLS)]
    main = main.assign(lift=main["lift"].where(main["invalid"] == ""))
    return main.pivot(index="cohort", columns="seed", values="lift").to_numpy()


def validated(scores: pd.DataFrame, lifts: pd.DataFrame, questions: pd.DataFrame, *, variant: str = "sampled") -> pd.DataFrame:
    """One row a validated cohort: lift with interval, family, and every metric in a column of its own."""
    wide = scores[scores["arm"] == "main"].pivot(index="cohort", columns="metric", values="value")
    table = cohort_lifts(lifts, questions, arm="main", variant=variant).merge(wide, left_on="cohort", right_index=True)
    return table[~table["cohort"].isin(CONTROLS)].reset_index(drop=True)


def ceiling_entries(lifts: pd.DataFrame) -> list[dict]:
    """Noise between seeds and what it leaves explainable."""
    entries = []
    for variant in ("sampled", "greedy"):
        r = seed_reliability(seed_matrix(lifts, variant=variant))
        common = {"n": r.n, "source": "lifts.parquet", "reason": r.reason, "note": f"{r.n_seeds} seeds"}
        entries += [
            entry(f"{variant}.noise_ceiling", r.ceiling, low=r.ceiling_low, high=r.ceiling_high, **common),
            entry(f"{variant}.sd_between_cohorts", r.s_u, **common),
            entry(f"{variant}.sd_between_seeds", r.s_e, **common),
        ]
    return entries


def correlation_entries(table: pd.DataFrame, *, prefix: str = "") -> list[dict]:
    """Plain and held-out Spearman of every metric with lift; `table` as `validated` gives it."""
    entries, source = [], "scores.parquet, lifts.parquet"
    for metric in METRICS:
        x, y = table[metric].to_numpy(), table["lift"].to_numpy()
        plain = spearman_ci(x, y)
        boot = bca_bootstrap_spearman(x, y, n_resamples=RESAMPLES, rng=np.random.default_rng(0))
        by_cohort = loco(x, y, n_permutations=PERMUTATIONS, rng=np.random.default_rng(0))
        by_family = loco(x, y, table["family"].tolist(), n_permutations=PERMUTATIONS, rng=np.random.default_rng(0))
        name = f"{prefix}{metric}"
        boot_note = f"{boot.n_undefined} of {boot.n_resamples} resamples undefined"
        entries += [
            entry(f"{name}.rho", plain.rho, low=plain.low, high=plain.high, n=plain.n, source=source, reason=plain.reason),
            entry(f"{name}.rho_p_value", plain.p_value, n=plain.n, source=source, reason=plain.reason, note=plain.p_method),
            entry(
                f"{name}.rho_bca",
                boot.rho,
                low=boot.low,
                high=boot.high,
                n=boot.n,
                source=source,
                reason=boot.reason,
                note=boot_note,
            ),
        ]
        for fold, found in (("cohort", by_cohort), ("family", by_family)):
            common = {"n": found.n, "source": source, "reason": found.reason}
            entries += [
                entry(f"{name}.held_out_{fold}_rho", found.rho, note=f"{found.n_folds} folds", **common),
                entry(f"{name}.held_out_{fold}_q2", found.q2, **common),
                entry(f"{name}.held_out_{fold}_p_value", found.p_value, note=f"{found.n_permutations} permutations", **common),
            ]
    return entries


def lift_entries(lifts: pd.DataFrame, questions: pd.DataFrame, tasks: pd.DataFrame) -> list[dict]:
    """Base accuracy and every cohort's lift: sampled, greedy, and sampled on unseen skill patterns alone."""
    entries = []
    for variant in ("sampled", "greedy"):
        chosen = lifts[lifts["variant"] == variant].iloc[0]
        entries.append(
            entry(f"{variant}.base_accuracy", chosen["acc_before"], n=chosen["n_questions"], source="eval_questions.parquet")
        )
    unseen = set(tasks["task_id"][tasks["operations"].isin(HELD_OUT_PATTERNS)])
    subsets = [
        ("lift", "sampled", questions),
        ("greedy_lift", "greedy", questions),
        ("lift_seen_skills", "sampled", questions[~questions["task_id"].isin(unseen)]),
        ("lift_unseen_skills", "sampled", questions[questions["task_id"].isin(unseen)]),
    ]
    for name, variant, chosen in subsets:
        for row in cohort_lifts(lifts, chosen, arm="main", variant=variant).itertuples():
            reason = "" if row.n_seeds else "every run of this cohort is invalid"
            note = f"{row.n_seeds} seeds, {row.n_invalid} invalid"
            n = chosen["task_id"].nunique()
            args = {
                "low": row.ci_low,
                "high": row.ci_high,
                "n": n,
                "source": "eval_questions.parquet",
                "reason": reason,
                "note": note,
            }
            entries.append(entry(f"{row.cohort}.{name}", row.lift, **args))
    return entries


def run_mechanics(groups: pd.DataFrame, steps: pd.DataFrame, lifts: pd.DataFrame) -> pd.DataFrame:
    """Seed means of what GRPO logged, one row a cohort of the main arm.

    Raw group variance is the unbiased variance of the G rewards of a group, before any advantage scaling.
    """
    p = groups["reward_sum"] / groups["n"]
    g = groups.assign(group_variance=p * (1 - p) * groups["n"] / (groups["n"] - 1))
    early = g[g["step"] <= g["step"].max() // 8].groupby("run_id")["group_variance"].mean()
    table = pd.DataFrame(
        {
            "group_variance": g.groupby("run_id")["group_variance"].mean(),
            "early_group_variance": early,
            "zero_variance_share": steps.groupby("run_id")["zero_variance_share"].mean(),
            "grad_norm": steps.groupby("run_id")["grad_norm"].mean(),
            "entropy_last": steps[steps["step"] > steps["step"].max() * 7 // 8].groupby("run_id")["entropy"].mean(),
        }
    )
    runs = valid(lifts[(lifts["variant"] == "sampled") & (lifts["arm"] == "main")])[["run_id", "cohort"]]
    return (
        runs.merge(table, left_on="run_id", right_index=True)
        .drop(columns="run_id")
        .groupby("cohort", sort=False)
        .mean()
        .reset_index()
    )


def mechanism_entries(table: pd.DataFrame) -> list[dict]:
    """LAD and the trivial predictor, base p(1-p), against what training logged, and what LAD adds once p(1-p) is known.

    `table`: one row a validated cohort with lad, variance and the columns of run_mechanics.
    """
    entries, source = [], "scores.parquet, groups.parquet, steps.parquet"
    for target in ("early_group_variance", "group_variance", "zero_variance_share", "grad_norm"):
        for metric in ("lad", "variance"):
            r = spearman_ci(table[metric], table[target])
            entries.append(
                entry(f"{metric}.{target}_rho", r.rho, low=r.low, high=r.high, n=r.n, source=source, reason=r.reason)
            )
        ranks = table[["lad", "variance", target]].rank().to_numpy()
        constant = (np.ptp(ranks, axis=0) == 0).any() or len(table) < 5
        value = np.nan if constant else _partial(ranks)
        reason = "a column is constant, or fewer than 5 cohorts" if constant else ""
        note = "partial Spearman of LAD given base p(1-p)"
        entries.append(entry(f"lad_given_variance.{target}_rho", value, n=len(table), source=source, reason=reason, note=note))
    return entries


def _partial(ranks: np.ndarray) -> float:
    """Correlation of columns 0 and 2 given column 1."""
    r = np.corrcoef(ranks.T)
    return float((r[0, 2] - r[0, 1] * r[1, 2]) / np.sqrt((1 - r[0, 1] ** 2) * (1 - r[1, 2] ** 2)))


def causal_entries(lifts: pd.DataFrame, questions: pd.DataFrame, scores: pd.DataFrame) -> list[dict]:
    """Lift of each selection arm and the paired differences of top-LAD and random from the others, over shared questions."""
    entries, per_question = [], {}
    for row in cohort_lifts(lifts, questions, arm="causal").itertuples():
        runs = valid(lifts[(lifts["arm"] == "causal") & (lifts["cohort"] == row.cohort)])["run_id"]
        mine = questions[questions["run_id"].isin(runs) & (questions["variant"] == "sampled")]
        sums = mine.groupby("task_id")[["c_after", "n_after"]].sum().sort_index()
        per_question[row.cohort] = sums
        reason = "" if row.n_seeds else "every run of this cohort is invalid"
        args = {"n": len(sums), "source": "eval_questions.parquet", "note": f"{row.n_seeds} seeds", "reason": reason}
        entries.append(entry(f"causal.{row.cohort}.lift", row.lift, low=row.ci_low, high=row.ci_high, **args))
        score = scores[(scores["arm"] == "causal") & (scores["cohort"] == row.cohort) & (scores["metric"] == "lad")].iloc[0]
        args = {"low": score["ci_low"], "high": score["ci_high"], "n": 1, "source": "scores.parquet", "note": "fresh rollouts"}
        entries.append(entry(f"causal.{row.cohort}.lad", score["value"], **args))
    for a, b in (("top_lad", "random_pool"), ("top_lad", "bottom_lad"), ("random_pool", "bottom_lad")):
        if a not in per_question or b not in per_question:
            continue
        x, y = per_question[a], per_question[b]
        d = lift_ci(y["c_after"], y["n_after"], x["c_after"], x["n_after"])
        reason = d.reason
        note = "accuracy after training, paired by question; covers the draw of questions, not of training seeds"
        args = {"n": d.n, "source": "eval_questions.parquet", "reason": reason, "note": note}
        entries.append(entry(f"causal.{a}_minus_{b}", d.lift, low=d.low, high=d.high, **args))
    return entries
