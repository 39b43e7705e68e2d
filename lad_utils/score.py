"""The formula: LAD(C) = mean_T[ p(1-p) * (1-p)^gamma ] * (Vendi(C) / |C|)^beta, with its interval.

Pure NumPy. A task has k rollouts, `correct` of them right; `correct` and `k` are arrays of shape (n,) (k may be a
scalar), `embeddings` is (n, d), one row a task of the cohort, copies included.
"""

import warnings

import numpy as np
from scipy.stats import norm

from lad_utils.diversity import vendi
from lad_utils.energy import counts, jackknife, task_energies


def _distinct(correct, k, task_ids) -> tuple[np.ndarray, np.ndarray]:
    """(index of the first row of every distinct task, its share of the rows); copies must share their rollouts."""
    n = correct.size
    if task_ids is None:
        return np.arange(n), np.full(n, 1 / n)
    _, first, inverse = np.unique(np.asarray(task_ids), return_index=True, return_inverse=True)
    if inverse.size != n:
        raise ValueError(f"task_ids: found {inverse.size} ids, expected {n}, one a task")
    if not (np.array_equal(correct, correct[first][inverse]) and np.array_equal(k, k[first][inverse])):
        raise ValueError("task_ids: copies of a task differ in their counts; copies must share rollouts")
    return first, np.bincount(inverse) / n


def mean_interval(
    statistic, correct, k, task_ids=None, *, level: float = 0.95, unbias: bool = False
) -> tuple[float, float, float]:
    """(mean, low, high) of a per-task `statistic(correct, k)`: where the mean would be with infinitely many rollouts.

    Rollouts are resampled within tasks (delete-one jackknife, in closed form), never tasks; copies (equal task_ids)
    share their rollouts, so a task seen m times weighs m squared. See `energy.jackknife` for `unbias` and for what it needs.
    """
    correct, k = counts(correct, k)
    first, weights = _distinct(correct, k, task_ids)
    values, variances = jackknife(statistic, correct[first], k[first], unbias=unbias)
    value = float(weights @ values)
    half = float(norm.ppf(0.5 + level / 2) * np.sqrt(weights**2 @ variances))
    return value, value - half, value + half


def energy_interval(correct, k, gamma: float = 1, *, task_ids=None, level: float = 0.95) -> tuple[float, float, float]:
    """(mean energy, low, high) of a cohort, for any k >= 2: where it would be with infinitely many rollouts.

    Tasks with k >= gamma + 3 enter by the unbiased estimate and its jackknife variance; see `energy.task_energies` for fewer
    rollouts. A degenerate pool is said aloud in a warning, and in a pool of only failures (or successes) the upper end is what
    so many failures still allow.
    """
    correct, k = counts(correct, k)
    first, weights = _distinct(correct, k, task_ids)
    found = task_energies(correct[first], k[first], gamma)
    mean = float(weights @ found.value)
    half = norm.ppf(0.5 + level / 2) * np.sqrt(weights**2 @ found.se**2 + np.sum((weights @ found.shared) ** 2))
    low, high = mean - half, mean + half
    if correct.sum() == 0 or (correct == k).all():
        warnings.warn(
            f"every task has {'no' if correct.sum() == 0 else 'only'} successes: energy 0 here means that none was seen; "
            "read the upper end",
            stacklevel=2,
        )
        high = max(high, _most_after_none(k[first], weights, level=level))
    return mean, max(low, 0.0), float(high)


def _most_after_none(k: np.ndarray, weights: np.ndarray, *, level: float) -> float:
    """Upper end for the mean energy of a pool in which every rollout failed (or every one succeeded).

    The chance of that is prod (1-p_t)^k <= exp(-sum k_t p_t), which bounds sum p_t, and no task's energy exceeds its p
    (or its 1-p).
    """
    return float(min(1.0, -np.log((1 - level) / 2) * np.max(weights / k)))


def lad(correct, k, embeddings, gamma: float = 1, beta: float = 1, *, q: float = 1) -> float:
    """Learnable Advantage Density of a cohort: mean energy times effective diversity (Vendi/n)^beta."""
    return lad_interval(correct, k, embeddings, gamma, beta, q=q)[0]


def lad_interval(
    correct, k, embeddings, gamma: float = 1, beta: float = 1, *, q: float = 1, task_ids=None, level: float = 0.95
) -> tuple[float, float, float]:
    """(lad, low, high); the interval answers what the score would be with infinitely many rollouts (see energy_interval)."""
    n, rows = counts(correct, k)[0].size, np.shape(embeddings)[0]
    if n != rows:
        raise ValueError(f"lad: {n} tasks but {rows} embeddings")
    diversity = (vendi(embeddings, q) / n) ** beta
    mean, low, high = energy_interval(correct, k, gamma, task_ids=task_ids, level=level)
    return mean * diversity, low * diversity, high * diversity
