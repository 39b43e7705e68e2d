"""What LAD leaves out, being per task: how lift grows with the number of distinct tasks and with visits, as fitted."""

from typing import NamedTuple

import numpy as np
import pandas as pd

from lad_utils.cohorts import cohort_rows, draw_balanced
from lad_utils.params import Study

EQUAL_DIFFICULTY = (0.31, 0.69)  # screened pass rate of the tasks of this arm, so that size alone varies
HALVES = np.geomspace(0.1, 5000, 400)  # candidates for the size at which half of the attainable lift is reached


class Size(NamedTuple):
    distinct: int
    steps: int
    draw: int


def size_cohort_names(study: Study) -> list[str]:
    """Cohorts of the arm `size`: every number of distinct tasks at every number of steps, drawn `size_draws` times."""
    return [
        f"distinct_{d}_steps_{s}_draw_{j}"
        for j in range(study.size_draws)
        for d in study.size_distinct
        for s in study.size_steps
    ]


def size_of(cohort: str) -> Size:
    """What the name of a cohort of the arm `size` says."""
    return Size(*(int(part) for part in cohort.split("_")[1::2]))


def build_size_cohorts(study: Study, pool: pd.DataFrame) -> pd.DataFrame:
    """Rows of the `cohorts` table for the arm `size`: the same tasks whatever the steps, other ones each draw.

    Every cohort fills cohort_size positions, so that each step trains on as much; a task's visits are positions x epochs.
    """
    low, high = EQUAL_DIFFICULTY
    middle, tables = pool[pool["pass_rate"].between(low, high, inclusive="left")], []
    for name in size_cohort_names(study):
        distinct, _, draw = size_of(name)
        members = draw_balanced(middle, distinct, name=name, rng=np.random.default_rng([study.world_seed, 10, distinct, draw]))
        rows = members.iloc[np.arange(study.cohort_size) % distinct]
        tables.append(cohort_rows(name, rows["task_id"], rows["answer"], arm="size", family="size"))
    return pd.concat(tables, ignore_index=True) if tables else cohort_rows("", [], [], arm="size", family="size")


def size_groups(published: pd.DataFrame) -> pd.DataFrame:
    """Rows of published lifts where one study varied the number of tasks: columns study, group, n_tasks, lift, with >= 3 sizes.

    A group is one paper, base model, benchmark and recipe: the cohort's name less its number, but for One-Shot RLVR, whose
    cohorts are named after examples and share one recipe. `study` is the paper, since groups of a paper share runs.
    """
    rows = published[published["property"].str.contains(r"\bsize\b", na=False)].copy()
    rows["n_tasks"], rows["lift"] = (pd.to_numeric(rows[c], errors="coerce") for c in ("n_tasks", "lift"))
    rows = rows.dropna(subset=["n_tasks", "lift"])
    recipe = rows["cohort"].str.replace(r"[0-9,.]+k?", "", regex=True).where(~rows["paper"].str.contains("One-Shot"), "")
    rows["group"] = rows["paper"] + " | " + rows["base_model"] + " | " + rows["benchmark"] + " | " + recipe
    several = rows.groupby("group")["n_tasks"].transform("nunique") >= 3
    return rows[several].rename(columns={"paper": "study"})[["study", "group", "n_tasks", "lift"]].reset_index(drop=True)


def _saturating_losses(n_tasks: np.ndarray, lift: np.ndarray) -> np.ndarray:
    """Squared error of lift = A n/(n+half) over the mean square of lift, at each of HALVES; A by least squares."""
    shape = n_tasks[:, None] / (n_tasks[:, None] + HALVES)
    amplitude = lift @ shape / np.sum(shape**2, axis=0)
    return np.sum((lift[:, None] - amplitude * shape) ** 2, axis=0) / np.mean(lift**2)


def half_size(
    table: pd.DataFrame, *, rng: np.random.Generator, n_boot: int = 200, level: float = 0.95
) -> tuple[float, float, float]:
    """(half, low, high) of lift = A_g n/(n+half): the number of tasks that gives half of what infinitely many would.

    `half` is shared by all groups, each with an amplitude of its own; the interval resamples studies (papers), and groups
    within each, with replacement. With three or four papers such an interval is too narrow: read it as a lower bound on doubt.
    """
    by_group = [g for _, g in table.groupby("group")]
    losses = np.array([_saturating_losses(g["n_tasks"].to_numpy(float), g["lift"].to_numpy(float)) for g in by_group])
    groups = np.array([g["study"].iloc[0] for g in by_group])
    by_study = [np.flatnonzero(groups == s) for s in dict.fromkeys(groups)]
    draws = []
    for _ in range(n_boot):
        chosen = [rng.choice(by_study[i], len(by_study[i])) for i in rng.integers(0, len(by_study), len(by_study))]
        draws.append(HALVES[losses[np.concatenate(chosen)].sum(axis=0).argmin()])
    low, high = np.quantile(draws, [0.5 - level / 2, 0.5 + level / 2])
    return float(HALVES[losses.sum(axis=0).argmin()]), float(low), float(high)


def size_terms(table: pd.DataFrame) -> pd.DataFrame:
    """Least squares of lift on log distinct tasks and log visits a task: columns term, value, se, low, high.

    `table`: one row a run with distinct, visits, lift. Standard errors are clustered by cohort draw (`draw`), since runs on
    one draw of tasks share its luck.
    """
    import statsmodels.api as sm

    x = pd.DataFrame({"log_distinct": np.log(table["distinct"]), "log_visits": np.log(table["visits"])})
    fit = sm.OLS(table["lift"].to_numpy(), sm.add_constant(x)).fit(cov_type="cluster", cov_kwds={"groups": table["draw"]})
    interval = np.asarray(fit.conf_int())
    return pd.DataFrame({"term": ["constant", *x.columns], "value": np.asarray(fit.params), "se": np.asarray(fit.bse)}).assign(
        low=interval[:, 0], high=interval[:, 1]
    )


def held_out_lift(table: pd.DataFrame, terms: tuple[str, ...]) -> np.ndarray:
    """Lift of every cohort predicted by least squares on `terms` from the other families alone, shape (n,).

    `table`: one row a cohort with family, lift and the terms as columns.
    """
    x, y = np.column_stack([np.ones(len(table)), table[list(terms)]]), table["lift"].to_numpy()
    families, predicted = table["family"].to_numpy(), np.empty(len(table))
    for family in dict.fromkeys(families):
        out = families == family
        predicted[out] = x[out] @ np.linalg.lstsq(x[~out], y[~out], rcond=None)[0]
    return predicted
