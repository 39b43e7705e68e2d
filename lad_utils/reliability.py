"""How far scores can be relied on, as tables and entries of results.json: zeros, size, transfer, fewer rollouts, harm."""

import numpy as np
import pandas as pd
from statsmodels.stats.proportion import proportion_confint

from lad_utils.adaptive import curve_entries
from lad_utils.cohorts import CONTROLS
from lad_utils.params import REPOSITORY
from lad_utils.robustness import signed_score
from lad_utils.size import HALVES, half_size, held_out_lift, size_groups, size_of, size_terms
from lad_utils.stats import spearman_ci, williams_test
from lad_utils.transfer import VARIANTS
from lad_utils.validation import DUPLICATES, entry, valid, validated
from lad_utils.zeros import KINDS, zeros_table

SIZE_TERMS = ("log_distinct", "log_visits")
PUBLISHED_LIFTS = REPOSITORY / "data" / "published_lifts.csv"


def zero_entries(zeros: pd.DataFrame) -> list[dict]:
    """Kinds of zeros at the study's length budget and at a tight one, and what further rollouts found.

    `zeros`: one row a task and budget (`full`, `tight`) with the counts of zeros.verdict_counts, `kind`, and `more_k`,
    `more_correct`: rollouts at the full budget that its class was not made from (0 where none were drawn).
    """
    entries, source = [], "zeros.parquet"
    for budget, tasks in zeros.groupby("budget", sort=False):
        more = int(tasks["more_k"].max())
        told = zeros_table(tasks, more=more).set_index("kind")
        for kind in KINDS:
            chosen = tasks[(tasks["kind"] == kind) & (tasks["more_k"] > 0)]
            args = {"n": len(tasks), "source": source}
            entries.append(entry(f"zeros.{budget}.{kind}.tasks", told["tasks"][kind], **args))
            name, args = f"zeros.{budget}.{kind}.solved_with_more", args | {"n": len(chosen)}
            if chosen.empty:
                entries.append(entry(name, np.nan, reason="no such task", **args))
                continue
            solved = (chosen["more_correct"] > 0).mean()
            low, high = proportion_confint(int((chosen["more_correct"] > 0).sum()), len(chosen), method="beta")
            note = f"share solved at least once in {more} further rollouts at the full budget"
            entries.append(entry(name, solved, low=low, high=high, note=note, **args))
            rate = (chosen["more_correct"] / chosen["more_k"]).mean()
            entries.append(entry(f"zeros.{budget}.{kind}.pass_rate_with_more", rate, **args))
            expected = told["expected_finds"][kind]
            if budget == "full" and np.isfinite(expected):
                note = "posterior mean under the pool's Beta prior"
                entries.append(entry(f"zeros.{budget}.{kind}.expected_share", expected / len(chosen), note=note, **args))
    return entries


def size_runs(scores: pd.DataFrame, lifts: pd.DataFrame, families: dict[str, str], *, prompts_per_step: int) -> pd.DataFrame:
    """One row a valid run of the arms main and size: arm, cohort, family, draw, steps, lad, lift, distinct, visits, logs."""
    wide = scores.pivot(index=["arm", "cohort"], columns="metric", values="value")[["lad", "distinct_fraction"]]
    wide["n_tasks"] = scores.groupby(["arm", "cohort"])["n_tasks"].first()
    runs = valid(lifts[(lifts["variant"] == "sampled") & lifts["arm"].isin(["main", "size"])])
    table = runs.merge(wide, left_on=["arm", "cohort"], right_index=True)
    table["family"] = table["cohort"].map(families)
    table["distinct"] = (table["distinct_fraction"] * table["n_tasks"]).round()
    table["visits"] = table["steps"] * prompts_per_step / table["distinct"]
    table["log_distinct"], table["log_visits"] = np.log(table["distinct"]), np.log(table["visits"])
    # runs on one draw of tasks share its luck, whatever their steps
    table["draw"] = [
        f"{d:.0f}/{size_of(c).draw}" if a == "size" else c for a, c, d in table[["arm", "cohort", "distinct"]].values
    ]
    return table


def size_entries(scores: pd.DataFrame, lifts: pd.DataFrame, families: dict[str, str], *, prompts_per_step: int) -> list[dict]:
    """Half size in published lifts, distinct tasks and visits in the arm `size`, and what size adds to LAD held out by family.

    `families`: family of every cohort. Visits are those of one distinct task: steps x prompts a step / distinct tasks.
    """
    groups = size_groups(pd.read_csv(PUBLISHED_LIFTS))
    entries = []
    for paper, rows in [("all", groups), *groups.groupby("study", sort=False)]:
        half, low, high = half_size(rows, rng=np.random.default_rng(0))
        note = f"tasks at which half of the attainable lift is reached, {HALVES[0]:g} or fewer read as that; papers resampled"
        args = {"low": low, "high": high, "n": rows["group"].nunique(), "source": "data/published_lifts.csv", "note": note}
        entries.append(entry(f"size.published.{paper}.half", half, **args))
    table = size_runs(scores, lifts, families, prompts_per_step=prompts_per_step)
    arm, source = table[table["arm"] == "size"], "lifts.parquet, scores.parquet"
    if arm["distinct"].nunique() < 2 or arm["steps"].nunique() < 2:
        reason = "the study does not vary distinct tasks and steps"
        return entries + [entry(f"size.{t}", np.nan, n=len(arm), source=source, reason=reason) for t in SIZE_TERMS]
    note = "lift (as a share) for e times as many, the other term fixed; clustered by draw"
    fixed_steps = size_terms(arm.assign(visits=arm["steps"])).iloc[1:2].assign(term="log_distinct_at_fixed_steps")
    for row in pd.concat([size_terms(arm).iloc[1:], fixed_steps]).itertuples():
        entries.append(entry(f"size.{row.term}", row.value, low=row.low, high=row.high, n=len(arm), source=source, note=note))
    means = table.groupby(["arm", "cohort", "family"], sort=False)[["lad", *SIZE_TERMS, "lift"]].mean().reset_index()
    means = means[~means["cohort"].isin(CONTROLS)]
    designed = means[means["arm"] == "main"]  # all trained for as many steps, so visits say no more than distinct tasks
    for prefix, rows, size in (("", means, SIZE_TERMS), ("designed.", designed, SIZE_TERMS[:1])):
        for name, terms in (("lad", ("lad",)), ("lad_and_size", ("lad", *size))):
            error = rows["lift"] - held_out_lift(rows, terms)
            q2 = 1 - (error**2).sum() / ((rows["lift"] - rows["lift"].mean()) ** 2).sum()
            note = f"lift predicted from the other families by {', '.join(terms)}"
            entries.append(entry(f"size.held_out_q2.{prefix}{name}", q2, n=len(rows), source=source, note=note))
    return entries


def transfer_entries(transfer: pd.DataFrame, scores: pd.DataFrame, lifts: pd.DataFrame, questions: pd.DataFrame) -> list[dict]:
    """Spearman of coverage, its controls and LAD with lift, with and without the duplicates, and coverage against each."""
    wide = transfer[transfer["arm"] == "main"].pivot(index="cohort", columns="metric", values="value")
    table = validated(scores, lifts, questions).merge(wide, left_on="cohort", right_index=True)
    entries, source = [], "transfer.parquet, lifts.parquet"
    for prefix, rows in (("", table), ("without_duplicates.", table[~table["cohort"].isin(DUPLICATES)])):
        for metric in (*VARIANTS, "lad"):
            r = spearman_ci(rows[metric], rows["lift"])
            args = {"low": r.low, "high": r.high, "n": r.n, "source": source, "reason": r.reason}
            entries.append(entry(f"transfer.{prefix}{metric}.rho", r.rho, **args))
        for other in (*VARIANTS[1:], "lad"):
            r = [spearman_ci(a, b).rho for a, b in _pairs(rows, other)]
            test = williams_test(*r, len(rows))
            args = {"n": len(rows), "source": source, "reason": test.reason, "note": "Williams' test, approximate for ranks"}
            entries.append(entry(f"transfer.{prefix}coverage_minus_{other}.rho", r[0] - r[1], **args | {"reason": ""}))
            entries.append(entry(f"transfer.{prefix}coverage_minus_{other}.p_value", test.p_value, **args))
    return entries


def _pairs(rows: pd.DataFrame, other: str):
    return (
        (rows["coverage"], rows["lift"]),
        (rows[other], rows["lift"]),
        (rows["coverage"], rows[other]),
    )


def cohort_items(judgements: pd.DataFrame, cohorts: pd.DataFrame, scores: pd.DataFrame, *, arm: str, beta: float = 1) -> tuple:
    """(names, correct (N,), k (N,), weights (C, N), diversity (C,)) of the cohorts of `arm` but controls, for `adaptive`.

    An item is a distinct (task_id, answer, verifier), whose rollouts all cohorts that hold it share; its copies must hold the
    same counts. `judgements`: one row a rollout, or votes with a `count`.
    """
    rows = cohorts[(cohorts["arm"] == arm) & ~cohorts["cohort"].isin(CONTROLS)]
    judged = judgements[judgements["arm"] == arm]
    judged = judged.assign(count=judged.get("count", 1))
    judged = judged.assign(correct=judged["reward"] * judged["count"])
    judged = judged.groupby(["cohort", "position"])[["correct", "count"]].sum()
    rows = rows.join(judged, on=["cohort", "position"])
    items = rows.groupby(["task_id", "answer", "verifier"], sort=False)
    if rows["count"].isna().any() or (items[["correct", "count"]].nunique() > 1).any(axis=None):
        raise ValueError(f"cohort_items: arm {arm!r} has copies of an item that differ in counts, or none")
    (cohort, names), item, counts = pd.factorize(rows["cohort"]), items.ngroup().to_numpy(), items[["correct", "count"]].first()
    weights = np.zeros((len(names), len(counts)))
    np.add.at(weights, (cohort, item), 1)
    sizes = weights.sum(axis=1)
    vendi = scores[(scores["arm"] == arm) & (scores["metric"] == "vendi")].set_index("cohort")["value"]
    correct, k = counts.to_numpy(dtype=np.int64).T
    return list(names), correct, k, weights / sizes[:, None], (vendi[names].to_numpy() / sizes) ** beta


def fewer_entries(curves: pd.DataFrame) -> list[dict]:
    """Entries of every curve of `fewer_rollouts.parquet`: by arm, and `clean` where no rollout stands on both sides."""
    entries = []
    for (arm, clean), curve in curves.groupby(["arm", "clean"], sort=False):
        prefix = f"fewer_rollouts.{arm}" + (".clean" if clean else "")
        entries += curve_entries(curve, prefix=prefix, source="fewer_rollouts.parquet")
    return entries


def signed_table(judgements: pd.DataFrame, scores: pd.DataFrame, *, gamma: int, beta: float) -> pd.DataFrame:
    """The exploratory signed score of every cohort of the main arm: arm, cohort, value, gain, drift, note."""
    wide = scores[scores["arm"] == "main"].pivot(index="cohort", columns="metric", values="value")
    sizes, rows = scores[scores["arm"] == "main"].groupby("cohort")["n_tasks"].first(), []
    for name, group in judgements[judgements["arm"] == "main"].groupby("cohort", sort=False):
        found = signed_score(group, wide["vendi"][name] / sizes[name], gamma=gamma, beta=beta)
        rows.append({"arm": "main", "cohort": name} | found._asdict())
    return pd.DataFrame(rows)


def signed_entries(signed: pd.DataFrame, scores: pd.DataFrame, lifts: pd.DataFrame, questions: pd.DataFrame) -> list[dict]:
    """Spearman of the signed score, and of its gain alone, with lift, beside LAD's; and how many cohorts lost accuracy."""
    table = validated(scores, lifts, questions).merge(signed[["cohort", "value", "gain"]], on="cohort")
    entries, source = [], "signed.parquet, lifts.parquet"
    for name, column in (("signed", "value"), ("gain", "gain"), ("lad", "lad")):
        r = spearman_ci(table[column], table["lift"])
        args = {"low": r.low, "high": r.high, "n": r.n, "source": source, "reason": r.reason}
        entries.append(entry(f"signed.{name}.rho", r.rho, note="exploratory" if name != "lad" else "", **args))
    for name, column in (("negative_scores", "value"), ("negative_lifts", "lift")):
        entries.append(entry(f"signed.{name}", int((table[column] < 0).sum()), n=len(table), source=source))
    return entries
