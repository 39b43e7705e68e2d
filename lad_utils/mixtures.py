"""Mixture cohorts: task sets whose difficulty, skills, duplication and label noise are drawn from Dirichlet distributions.

Designed families make rank correlations easy, uniform random subsets make them impossible; mixtures lie between. They are
drawn from the whole screened pool, share tasks with one another and with the designed cohorts, and are reported apart.
"""

import numpy as np
import pandas as pd

from lad_utils.cohorts import CohortError, cohort_rows, corrupt_labels

DIFFICULTY_EDGES = (0.0, 0.15, 0.35, 0.55, 0.75, 1.01)  # screened pass rate
COPIES = (1, 4, 16)  # how often a task of each duplication class stands in the cohort
DUPLICATION_ALPHA = (3.0, 1.0, 0.5)  # Dirichlet parameters over COPIES, in slots: mean shares .67, .22, .11
LABEL_ALPHA = (3.0, 1.0)  # over (clean, wrong): a quarter wrong on average


def mixture_names(n: int) -> list[str]:
    return [f"mixture_{index:02d}" for index in range(n)]


def mixture_weights(index: int, *, skills: list[str], world_seed: int) -> tuple[dict[str, np.ndarray], np.random.Generator]:
    """Dirichlet weights of mixture `index` (difficulty, skill, copies, labels) and the generator that goes on drawing."""
    rng = np.random.default_rng([world_seed, 9, index])
    weights = {
        "difficulty": rng.dirichlet(np.ones(len(DIFFICULTY_EDGES) - 1)),
        "skill": rng.dirichlet(np.ones(len(skills))),
        "copies": rng.dirichlet(DUPLICATION_ALPHA),
        "labels": rng.dirichlet(LABEL_ALPHA),
    }
    return weights, rng


def _numbers_of_tasks(shares: np.ndarray, size: int) -> list[int]:
    """Distinct tasks a duplication class, so that slots (tasks x copies) add up to `size`; single tasks take the rest."""
    repeated = [int(share * size // copies) for share, copies in zip(shares[1:], COPIES[1:], strict=True)]
    return [size - sum(n * copies for n, copies in zip(repeated, COPIES[1:], strict=True)), *repeated]


def _draw(
    pool: pd.DataFrame, n: int, weights: dict[str, np.ndarray], skills: list[str], rng: np.random.Generator
) -> pd.DataFrame:
    """n distinct tasks, each of a (difficulty, skill) cell with the product of their weights, spread over the cell's tasks."""
    level = np.digitize(pool["pass_rate"], DIFFICULTY_EDGES[1:-1])
    skill = pool["operations"].map({s: i for i, s in enumerate(skills)}).to_numpy()
    cell = level * len(skills) + skill
    share = weights["difficulty"][level] * weights["skill"][skill] / np.bincount(cell)[cell]
    if (share > 0).sum() < n:
        raise CohortError(f"mixture: the pool holds {int((share > 0).sum())} fitting tasks, {n} are needed")
    return pool.iloc[rng.choice(len(pool), n, replace=False, p=share / share.sum())]


def build_mixtures(n: int, pool: pd.DataFrame, *, size: int, world_seed: int) -> pd.DataFrame:
    """`n` mixture cohorts of `size` positions from the screened `pool`, as rows of the `cohorts` table (arm `mixture`).

    Copies of a task share its label, right or wrong.
    """
    skills, tables = sorted(pool["operations"].unique()), []
    for index, name in enumerate(mixture_names(n)):
        weights, rng = mixture_weights(index, skills=skills, world_seed=world_seed)
        numbers = _numbers_of_tasks(weights["copies"], size)
        members = _draw(pool, sum(numbers), weights, skills, rng)
        answers = corrupt_labels(members, float(weights["labels"][1]), rng=rng)
        times = np.repeat(COPIES, numbers)
        rows = pd.DataFrame({"task_id": members["task_id"].to_numpy(), "answer": answers}).loc[
            np.repeat(np.arange(len(times)), times)
        ]
        rows = rows.iloc[rng.permutation(size)].reset_index(drop=True)
        tables.append(cohort_rows(name, rows["task_id"], rows["answer"], arm="mixture", family="mixture"))
    return pd.concat(tables, ignore_index=True) if tables else cohort_rows("", [], [], arm="mixture", family="mixture")
