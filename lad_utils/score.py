"""The formula: LAD(C) = mean_T[ p(1-p) * (1-p)^gamma ] * (Vendi(C) / |C|)^beta, its parts and their intervals.

Pure NumPy. A task has k rollouts, `correct` of them right; `correct` and `k` are arrays of shape (n,) (k may be a
scalar), `embeddings` is (n, d), one row a task of the cohort, copies included.
"""

from functools import partial

import numpy as np
from scipy.special import betaln, gammaln
from scipy.stats import norm


def _counts(correct, k) -> tuple[np.ndarray, np.ndarray]:
    correct, k = np.broadcast_arrays(np.asarray(correct), np.asarray(k))
    if correct.size == 0:
        raise ValueError("counts: no tasks")
    if not (np.equal(np.mod(correct, 1), 0).all() and np.equal(np.mod(k, 1), 0).all()):
        raise ValueError("counts: correct and k must be whole numbers")
    bad = np.flatnonzero((correct < 0) | (correct > k))
    if bad.size:
        i = bad[0]
        raise ValueError(f"counts: row {i} has correct={correct.flat[i]} of k={k.flat[i]} rollouts, expected 0 <= correct <= k")
    return correct.astype(float), k.astype(float)


def _falling(x: np.ndarray, m: int) -> np.ndarray:
    """x (x-1) ... (x-m+1)."""
    out = np.ones_like(x)
    for i in range(m):
        out = out * (x - i)
    return out


def plugin_energy(correct, k, gamma: float = 1.0) -> np.ndarray:
    """p(1-p)^(1+gamma) at p = c/k, shape (n,). Biased: at gamma=0 low by exactly (k-1)/k."""
    correct, k = _counts(correct, k)
    p = correct / k
    return p * (1 - p) ** (1 + gamma)


def unbiased_energy(correct, k, gamma: int = 1) -> np.ndarray:
    """Unbiased estimate of p(1-p)^m, m = 1+gamma: c (k-c)_m / (k)_{m+1}, (x)_m the falling factorial; shape (n,).

    Needs an integer gamma >= 0 and k >= gamma + 2; below that no unbiased estimate exists and a ValueError says so.
    Single tasks may exceed max p(1-p)^m (2/7 at gamma=0, k=8), cohort means must not, beyond their interval.
    """
    if gamma < 0 or gamma != int(gamma):
        raise ValueError(f"unbiased_energy: gamma={gamma}, expected a whole number >= 0; for others use empirical_bayes_energy")
    correct, k = _counts(correct, k)
    m = int(gamma) + 1
    if (k < m + 1).any():
        raise ValueError(f"unbiased_energy: k={int(k.min())} rollouts, at least {m + 1} are needed at gamma={int(gamma)}")
    return correct * _falling(k - correct, m) / _falling(k, m + 1)


def fit_beta_prior(correct, k) -> tuple[float, float]:
    """Beta(a, b) fitted to a pool by beta-binomial marginal likelihood; a ValueError names a degenerate pool."""
    from scipy.optimize import minimize

    correct, k = _counts(correct, k)
    if k.max() < 2:
        raise ValueError("fit_beta_prior: k=1 leaves the spread of p unidentifiable")
    if correct.sum() == 0 or (correct == k).all():
        raise ValueError(f"fit_beta_prior: degenerate pool, every task has {'no' if correct.sum() == 0 else 'only'} successes")

    def loss(theta):
        a, b = np.exp(theta)
        return -np.sum(betaln(correct + a, k - correct + b) - betaln(a, b))

    found = minimize(loss, np.zeros(2), method="Nelder-Mead", options={"xatol": 1e-6, "fatol": 1e-8, "maxiter": 2000})
    a, b = np.exp(found.x)
    if a + b > 1e4:
        raise ValueError("fit_beta_prior: degenerate pool, pass rates spread no more than one binomial")
    return float(a), float(b)


def empirical_bayes_energy(correct, k, gamma: float = 1.0, *, prior: tuple[float, float]) -> np.ndarray:
    """Posterior mean of p(1-p)^m, m = 1+gamma, under a Beta(a, b) prior: B(c+a+1, k-c+b+m) / B(c+a, k-c+b); shape (n,)."""
    correct, k = _counts(correct, k)
    a, b = prior
    return np.exp(betaln(correct + a + 1, k - correct + b + 1 + gamma) - betaln(correct + a, k - correct + b))


def energy(correct, k, gamma: float = 1.0) -> np.ndarray:
    """Per-task energy as `lad` uses it: unbiased where k allows, else empirical Bayes with a prior fitted to these tasks."""
    correct, k = _counts(correct, k)
    if gamma == int(gamma) and (k >= gamma + 2).all():
        return unbiased_energy(correct, k, int(gamma))
    return empirical_bayes_energy(correct, k, gamma, prior=fit_beta_prior(correct, k))


def pass_at_k(correct, k, draws: int) -> np.ndarray:
    """Unbiased chance that `draws` rollouts hold a success: 1 - C(k-c, draws) / C(k, draws); shape (n,) (Chen et al. 2021)."""
    correct, k = _counts(correct, k)
    if (k < draws).any():
        raise ValueError(f"pass_at_k: {draws} draws asked of k={int(k.min())} rollouts")
    fails = k - correct
    with np.errstate(invalid="ignore"):
        log_miss = gammaln(fails + 1) - gammaln(fails - draws + 1) - gammaln(k + 1) + gammaln(k - draws + 1)
    return np.where(fails < draws, 1.0, 1 - np.exp(np.where(fails < draws, 0.0, log_miss)))


def reward_entropy(correct, k) -> np.ndarray:
    """Entropy in nats of a task's binary reward at p = c/k, shape (n,)."""
    correct, k = _counts(correct, k)
    p = correct / k
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.nan_to_num(-p * np.log(p)) + np.nan_to_num(-(1 - p) * np.log1p(-p))


def variance(correct, k) -> np.ndarray:
    """Unbiased reward variance p(1-p) a task, shape (n,)."""
    return unbiased_energy(correct, k, 0)


def mean_interval(
    statistic, correct, k, task_ids=None, *, level: float = 0.95, unbias: bool = False
) -> tuple[float, float, float]:
    """(mean, low, high) of a per-task `statistic(correct, k)`: where the mean would be with infinitely many rollouts.

    Rollouts are resampled within tasks (delete-one jackknife, in closed form), never tasks; copies (equal task_ids)
    share their rollouts, so a task seen m times weighs m squared. The jackknife variance of a U-statistic is never too
    small on average (Efron and Stein 1981). `unbias` takes the jackknife's estimate of bias off the mean, for statistics
    that are no U-statistic. `statistic` must be defined at k-1 rollouts, too.
    """
    correct, k = _counts(correct, k)
    n = correct.size
    ids = np.arange(n) if task_ids is None else np.asarray(task_ids)
    _, first, inverse = np.unique(ids, return_index=True, return_inverse=True)
    if not (np.array_equal(correct, correct[first][inverse]) and np.array_equal(k, k[first][inverse])):
        raise ValueError("mean_interval: copies of a task differ in their counts; copies must share rollouts")
    c, m, weights = correct[first], k[first], np.bincount(inverse) / n
    values = statistic(c, m)
    without_success = statistic(np.maximum(c - 1, 0), m - 1)
    without_failure = statistic(np.minimum(c, m - 1), m - 1)
    if unbias:
        values = m * values - (m - 1) * (c * without_success + (m - c) * without_failure) / m
    task_variance = (m - 1) / m * c * (m - c) / m * (without_success - without_failure) ** 2
    value = float(weights @ values)
    half = float(norm.ppf(0.5 + level / 2) * np.sqrt(weights**2 @ task_variance))
    return value, value - half, value + half


def normalise_rows(embeddings) -> np.ndarray:
    """Unit rows, float64; a zero or non-finite row is an error that names it."""
    x = np.asarray(embeddings, dtype=np.float64)
    if x.ndim != 2 or x.shape[0] == 0:
        raise ValueError(f"embeddings: shape {x.shape}, expected (n, d) with n >= 1")
    norms = np.linalg.norm(x, axis=1)
    bad = np.flatnonzero(~np.isfinite(norms) | (norms == 0))
    if bad.size:
        raise ValueError(f"embeddings: row {bad[0]} is zero or not finite ({bad.size} such rows); remove it or embed it again")
    return x / norms[:, None]


def vendi(embeddings, q: float = 1) -> float:
    """Vendi score of order q: exp of the Renyi entropy of the eigenvalues of K/n, K the cosine kernel; in [1, min(n, d)].

    Friedman and Dieng 2023, eq. 2; orders q after Pasarkar and Dieng 2023. The smaller of K/n (n x n) and its dual
    X'X/n (d x d) is solved; eigenvalues below 1e-12 are dropped.
    """
    if not q > 0:
        raise ValueError(f"vendi: order q={q}, expected q > 0 (may be inf)")
    x = normalise_rows(embeddings)
    n, d = x.shape
    eigenvalues = np.linalg.eigvalsh((x @ x.T if n <= d else x.T @ x) / n)
    eigenvalues = eigenvalues[eigenvalues > 1e-12]
    if q == 1:
        return float(np.exp(-np.sum(eigenvalues * np.log(eigenvalues))))
    if np.isinf(q):
        return float(1 / eigenvalues.max())
    return float(np.sum(eigenvalues**q) ** (1 / (1 - q)))


def lad(correct, k, embeddings, gamma: float = 1, beta: float = 1, *, q: float = 1) -> float:
    """Learnable Advantage Density of a cohort: mean energy times effective diversity (Vendi/n)^beta."""
    energies = energy(correct, k, gamma)
    if energies.shape[:1] != np.asarray(embeddings).shape[:1]:
        raise ValueError(f"lad: {energies.shape[0]} tasks but {np.asarray(embeddings).shape[0]} embeddings")
    return float(energies.mean()) * (vendi(embeddings, q) / energies.shape[0]) ** beta


def lad_interval(
    correct, k, embeddings, gamma: float = 1, beta: float = 1, *, q: float = 1, task_ids=None, level: float = 0.95
) -> tuple[float, float, float]:
    """(lad, low, high); the interval answers what the score would be with infinitely many rollouts (see mean_interval)."""
    correct, k = _counts(correct, k)
    if correct.shape[:1] != np.asarray(embeddings).shape[:1]:
        raise ValueError(f"lad: {correct.shape[0]} tasks but {np.asarray(embeddings).shape[0]} embeddings")
    if gamma == int(gamma) and k.min() < gamma + 3:
        raise ValueError(
            f"lad_interval: k={int(k.min())} rollouts, an interval needs {int(gamma) + 3}; `lad` gives the value alone"
        )
    diversity = (vendi(embeddings, q) / correct.shape[0]) ** beta
    if gamma == int(gamma):
        statistic = partial(unbiased_energy, gamma=int(gamma))
    else:
        statistic = partial(empirical_bayes_energy, gamma=gamma, prior=fit_beta_prior(correct, k))
    mean, low, high = mean_interval(statistic, correct, k, task_ids, level=level)
    if correct.sum() == 0 or (correct == k).all():
        high = max(high, _most_after_none(k, task_ids, level=level))
    return mean * diversity, max(low, 0.0) * diversity, high * diversity


def _most_after_none(k: np.ndarray, task_ids, *, level: float) -> float:
    """Upper end for the mean energy of a pool in which every rollout failed (or every one succeeded).

    The chance of that is prod (1-p_t)^k <= exp(-k sum p_t), which bounds sum p_t, and no task's energy exceeds its p
    (or its 1-p).
    """
    copies = np.ones(1) if task_ids is None else np.unique(np.asarray(task_ids), return_counts=True)[1]
    return float(min(1.0, -np.log((1 - level) / 2) / k.min() * copies.max() / k.size))
