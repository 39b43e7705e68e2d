"""Metrics that cost training: a short run, a smaller model's run, a datamodel fitted on mixtures, another full run.

Each is told from runs that the study has anyway; what a cohort is charged is what a buyer would have to run for it. A smaller
model's run as a proxy is the idea of Xie et al. (2023), DoReMi, and Coleman et al. (2020), Selection via proxy.
"""

import numpy as np
import pandas as pd

from lad_utils.cohort_scores import COLUMNS, undefined
from lad_utils.costs import COUNTS, run_costs, scaled, total
from lad_utils.mixtures import DIFFICULTY_EDGES
from lad_utils.validation import OWN_SEED, valid

TRAINED = {"short_grpo": "short", "small_model_lift": "small"}  # metric -> the arm whose lift it is
PENALTIES = np.logspace(-3, 3, 13)  # of the datamodel's ridge, chosen within its training mixtures


def composition(cohorts: pd.DataFrame, tasks: pd.DataFrame) -> pd.DataFrame:
    """What each cohort is made of, indexed by arm and cohort: shares by difficulty, skill, wrong label; distinct fraction.

    Difficulty is the screened pass rate; a task that was not screened counts in none of its shares.
    """
    rows = cohorts.merge(tasks[["task_id", "pass_rate", "operations", "answer"]], on="task_id", suffixes=("", "_right"))
    level = pd.cut(rows["pass_rate"], DIFFICULTY_EDGES, right=False, labels=False)
    parts = {f"difficulty_{i}": level == i for i in range(len(DIFFICULTY_EDGES) - 1)}
    parts |= {f"skill_{s}": rows["operations"] == s for s in sorted(tasks.loc[tasks["split"] == "pool", "operations"].unique())}
    parts["wrong"] = rows["answer"] != rows["answer_right"]
    grouped = pd.DataFrame(parts).astype(float).groupby([rows["arm"], rows["cohort"]], sort=False)
    distinct = rows.groupby(["arm", "cohort"], sort=False)["task_id"].nunique() / grouped.size()
    return grouped.mean().assign(distinct=distinct)


def datamodel(features: pd.DataFrame, lifts: pd.Series) -> pd.Series:
    """Lift of every cohort of `features` by ridge on the mixtures' measured `lifts` (indexed alike), each left out in turn.

    A linear datamodel (Ilyas et al. 2022) on groups of tasks instead of single ones. The penalty is chosen by generalised
    cross-validation within the mixtures at hand, never with the lift that is told.
    """
    from sklearn.linear_model import RidgeCV

    known, scale = lifts.index, features.loc[lifts.index].std().replace(0, 1)
    x = (features - features.loc[known].mean()) / scale
    told = pd.Series(RidgeCV(alphas=PENALTIES).fit(x.loc[known], lifts).predict(x), index=features.index)
    for left_out in known:
        others = known.drop(left_out)
        told[left_out] = RidgeCV(alphas=PENALTIES).fit(x.loc[others], lifts[others]).predict(x.loc[[left_out]])[0]
    return told


def training_scores(
    cohorts: pd.DataFrame,
    tasks: pd.DataFrame,
    lifts: pd.DataFrame,
    groups: pd.DataFrame,
    totals: pd.DataFrame,
    *,
    n_parameters: dict,
) -> pd.DataFrame:
    """Rows of `scores` for short_grpo, small_model_lift, datamodel and full_run, of every cohort of the arms main and mixture.

    n_parameters: of `base` and, where the study has one, of `smaller`. Intervals are those of the run's lift over questions.
    """
    mine = cohorts[cohorts["arm"].isin(["main", "mixture"])]
    of_run = run_costs(valid(lifts), groups, totals, n_parameters=n_parameters)
    sampled = valid(lifts[lifts["variant"] == "sampled"])
    by_cohort = {arm: t.set_index("cohort") for arm, t in sampled.groupby("arm")}
    tables = []
    for metric, arm in TRAINED.items():
        told = by_cohort.get(arm, pd.DataFrame(columns=["lift", "ci_low", "ci_high", "run_id"]))
        tables.append(_of_runs(mine, metric, told, of_run, reason="no valid run of this kind"))
    full = pd.concat([sampled[(sampled["arm"] == a) & (sampled["seed"] == OWN_SEED)] for a in ("main", "mixture")]).set_index(
        "cohort"
    )
    tables.append(_of_runs(mine, "full_run", full, of_run, reason="no run of this cohort is valid"))
    tables.append(_datamodel_rows(mine, tasks, sampled, of_run))
    return pd.concat(tables, ignore_index=True)[COLUMNS]


def _of_runs(cohorts: pd.DataFrame, metric: str, told: pd.DataFrame, of_run: dict, *, reason: str) -> pd.DataFrame:
    table = undefined(cohorts, metric, reason).set_index("cohort")
    for row in told[told.index.isin(table.index)].itertuples():
        values = {"value": row.lift, "ci_low": row.ci_low, "ci_high": row.ci_high, "reason": ""} | of_run[row.run_id]
        table.loc[row.Index, list(values)] = list(values.values())
    return table.reset_index()


def _datamodel_rows(cohorts: pd.DataFrame, tasks: pd.DataFrame, sampled: pd.DataFrame, of_run: dict) -> pd.DataFrame:
    runs = sampled[sampled["arm"] == "mixture"]
    table = undefined(cohorts, "datamodel", "fewer than 10 mixtures were trained")
    lifts = runs.groupby(["arm", "cohort"])["lift"].mean()
    if len(lifts) < 10:
        return table
    told = datamodel(composition(cohorts, tasks), lifts)
    table["value"] = told.loc[pd.MultiIndex.from_frame(table[["arm", "cohort"]])].to_numpy()
    shared = scaled(total(*(of_run[r] for r in runs["run_id"])), 1 / len(table))
    return table.assign(reason="no interval: a fitted prediction", **{c: shared[c] for c in COUNTS})
