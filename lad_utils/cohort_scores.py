"""The `scores` table: every metric of every cohort with its interval or the reason why there is none, and what it cost.

Columns: arm, cohort, metric, value, ci_low, ci_high, reason (of a missing value or interval), n_tasks, and costs.COUNTS.
A cohort's cost is that of its own rollouts and passes through a model, and an equal share of what all scored cohorts share: the
target's gradients, a holdout model, a reference set, the runs that a datamodel is fitted on.
"""

import numpy as np
import pandas as pd

from lad_utils.baselines import METRICS, SCORED, dots_scores, score_cohort
from lad_utils.cohorts import score_split
from lad_utils.costs import COUNTS, Meter, sampling_counts, scaled, total
from lad_utils.embeddings import embed, encoder_of
from lad_utils.params import Study
from lad_utils.rollouts import counts

COLUMNS = ["arm", "cohort", "metric", "value", "ci_low", "ci_high", "reason", "n_tasks", *COUNTS]


def embedded(prompts: list[str], *, embedder: str) -> tuple[np.ndarray, dict]:
    """(embeddings of distinct prompts, what they cost)."""
    encoder = encoder_of(embedder)
    if encoder is None:
        return embed(prompts, embedder=embedder), dict.fromkeys(COUNTS, 0)
    with Meter(encoder) as meter:
        vectors = embed(prompts, embedder=embedder)
    return vectors, meter.cost()


def score_study(
    study: Study, tasks: pd.DataFrame, judgements: pd.DataFrame, totals: pd.DataFrame, *, n_parameters: int
) -> pd.DataFrame:
    """The rows of SCORED, of every arm that has rollouts.

    `judgements` has a row a rollout (arm, cohort, position, task_id, parsed, reward); `totals` is rollouts.totals;
    `n_parameters` those of the base model. Embedding is shared out by the number of distinct prompts.
    """
    about = tasks.set_index("task_id")
    used = judgements["task_id"].unique()
    found, embedding = embedded(about.loc[used, "prompt"].tolist(), embedder=study.embedder)
    vectors = pd.DataFrame(found, index=used)
    spent = {split: t.set_index("task_id") for split, t in totals.groupby("split")}
    tables = []
    for arm, rows in judgements.groupby("arm", sort=False):
        mine, solved = spent[score_split(arm)], counts(rows)
        close, asked = dots_scores(solved, vectors, seed=study.world_seed)
        of_asked = sampling_counts(mine.loc[asked], n_parameters)
        for name, group in rows.groupby("cohort", sort=False):
            ids = group.groupby("position", sort=True)["task_id"].first()
            length = (mine["prompt_tokens"] / mine["n"])[ids].to_numpy()
            steps = about["n_steps"].reindex(ids).to_numpy() if "n_steps" in about else np.full(len(ids), np.nan)
            table = score_cohort(study, group, vectors.loc[ids].to_numpy(), length, steps).assign(reason="")
            table.loc[table["value"].isna(), "reason"] = "the tasks have no worked solutions"
            dots = {"metric": "dots", "value": close[name], "reason": "no interval: all cohorts share the reference set"}
            table = pd.concat([table, pd.DataFrame([dots])], ignore_index=True).set_index("metric").loc[SCORED].reset_index()
            sampled = sampling_counts(mine.loc[ids.unique()], n_parameters)
            shown = scaled(embedding, ids.nunique() / len(used))
            costs = [_cost(m, sampled, shown, scaled(of_asked, 1 / rows["cohort"].nunique())) for m in SCORED]
            tables.append(pd.concat([table, pd.DataFrame(costs)], axis=1).assign(arm=arm, cohort=name, n_tasks=len(ids)))
    return pd.concat(tables, ignore_index=True)[COLUMNS]


def _cost(metric: str, sampled: dict, shown: dict, asked: dict) -> dict:
    """What a cohort's metric costs: its rollouts, its embeddings, or its share of DOTS's reference set."""
    needs = METRICS[metric][1]
    parts = [asked if metric == "dots" else sampled] if "rollouts" in needs else []
    return total(*parts, *([shown] if "embeddings" in needs else []))


def undefined(cohorts: pd.DataFrame, metric: str, reason: str) -> pd.DataFrame:
    """Rows without a value, one a cohort of `cohorts` (arm, cohort, position), each with `reason`."""
    rows = cohorts.groupby(["arm", "cohort"], sort=False).size().rename("n_tasks").reset_index()
    return rows.assign(metric=metric, value=np.nan, ci_low=np.nan, ci_high=np.nan, reason=reason, **dict.fromkeys(COUNTS, 0.0))[
        COLUMNS
    ]
