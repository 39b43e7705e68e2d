"""Transfer-aware LAD (exploratory): how well a cohort's tasks cover what the target benchmark can still learn.

    coverage = mean_e p_e(1-p_e) log(1 + sum over distinct tasks t of K(e,t) sqrt(p_t(1-p_t)))

e runs over target questions, from a split of their own. K is frozen: the cosine of MiniLM embeddings, cut off at 0. Such a
score proves nothing by itself: with K = 1 it knows only how many distinct tasks have how much energy, and with embeddings
shuffled among tasks only how similar prompts are on the whole. It must beat both, so the three are made and shown together.
"""

import numpy as np
import pandas as pd

from lad_utils.energy import bayes_power, fit_beta_prior, variance

VARIANTS = ("coverage", "coverage_flat", "coverage_shuffled")  # the score, and its controls: K = 1, shuffled embeddings
SHUFFLES = 20


def frozen_kernel(targets, tasks) -> np.ndarray:
    """K(e, t) = max(0, cosine), shape (targets, tasks), of unit embeddings (targets, d) and (tasks, d)."""
    return np.maximum(np.asarray(targets) @ np.asarray(tasks).T, 0.0)


def coverage(target_variance, kernel, spread) -> float:
    """The formula: `target_variance` p_e(1-p_e), shape (targets,); `kernel` (targets, tasks); `spread` sqrt(p_t(1-p_t))."""
    return float(np.mean(np.asarray(target_variance) * np.log1p(np.asarray(kernel) @ np.asarray(spread))))


def coverage_scores(
    cohorts: pd.DataFrame, vectors: pd.DataFrame, target_counts: pd.DataFrame, target_vectors, *, rng: np.random.Generator
) -> pd.DataFrame:
    """Coverage and its two controls of every cohort: columns arm, cohort, metric, value.

    `cohorts`: one row a position with arm, cohort, task_id, correct, k; `vectors`: embeddings indexed by task_id;
    `target_counts`: correct, k a target question, in the order of `target_vectors` (targets, d). The square root of p(1-p) is
    a posterior mean under a Beta prior fitted to all tasks. The shuffled control permutes embeddings among all tasks of all
    cohorts and is the mean of 20 shuffles.
    """
    distinct = cohorts.drop_duplicates(["arm", "cohort", "task_id"])
    everything = distinct.drop_duplicates(["task_id", "correct"])
    prior = fit_beta_prior(everything["correct"], everything["k"])
    target_variance = variance(target_counts["correct"], target_counts["k"])
    kernel = frozen_kernel(target_vectors, vectors.to_numpy())
    position = {t: i for i, t in enumerate(vectors.index)}
    shuffles = [rng.permutation(len(vectors)) for _ in range(SHUFFLES)]
    rows = []
    for (arm, name), group in distinct.groupby(["arm", "cohort"], sort=False):
        spread = bayes_power(group["correct"], group["k"], 0.5, 0.5, prior=prior)
        where = np.array([position[t] for t in group["task_id"]])
        shuffled = [coverage(target_variance, kernel[:, order[where]], spread) for order in shuffles]
        flat = coverage(target_variance, np.ones((len(target_variance), 1)), [spread.sum()])
        found = (coverage(target_variance, kernel[:, where], spread), flat, float(np.mean(shuffled)))
        rows += [{"arm": arm, "cohort": name, "metric": m, "value": v} for m, v in zip(VARIANTS, found, strict=True)]
    return pd.DataFrame(rows)
