"""What one task can teach, estimated from its k rollouts: energies, the shapes of theory, priors and standard errors.

Pure NumPy and SciPy. `correct` and `k` are arrays of shape (n,) of whole numbers, 0 <= correct <= k; k may be a scalar.
Energy at exponent gamma is p(1-p)^m with m = 1+gamma, p a task's true pass rate: p(1-p) is the reward variance inside a GRPO
group, (1-p)^gamma the headroom. Its maximum is at p = 1/(2+gamma): 1/4 at gamma=0, 4/27 at gamma=1.
"""

import warnings
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize
from scipy.special import betaln, gammaln, roots_jacobi
from scipy.stats import chi2

LARGEST_CONCENTRATION = 1e4  # a + b of a fitted prior; beyond it pass rates spread no more than one binomial

# Exponents (a, b) of p^a (1-p)^b. First-order gain of a task under plain SGD, if the score difference between successes and
# failures does not vary with p: `unscaled_gain` for raw advantages (Dr. GRPO), `scaled_gain` for advantages over the group's
# standard deviation (GRPO). Adam and clipping remove gradient scale, so neither is a prediction for them.
SHAPES = {"variance": (1, 1), "lad": (1, 2), "unscaled_gain": (2, 2), "scaled_gain": (1.5, 1.5)}


def counts(correct, k) -> tuple[np.ndarray, np.ndarray]:
    """`correct` and `k` as float arrays of one shape; a ValueError names the first impossible row."""
    correct, k = np.broadcast_arrays(np.asarray(correct), np.asarray(k))
    if correct.size == 0:
        raise ValueError("counts: no tasks")
    if not (np.equal(np.mod(correct, 1), 0).all() and np.equal(np.mod(k, 1), 0).all()):
        raise ValueError("counts: correct and k must be whole numbers")
    bad = np.flatnonzero((correct < 0) | (correct > k) | (k < 1))
    if bad.size:
        i = bad[0]
        raise ValueError(
            f"counts: row {i} has correct={correct.flat[i]} of k={k.flat[i]} rollouts, expected 0 <= correct <= k, k >= 1"
        )
    return correct.astype(float), k.astype(float)


def _falling(x: np.ndarray, m: int) -> np.ndarray:
    """x (x-1) ... (x-m+1)."""
    out = np.ones_like(x)
    for i in range(m):
        out = out * (x - i)
    return out


def plugin_energy(correct, k, gamma: float = 1.0) -> np.ndarray:
    """p(1-p)^(1+gamma) at p = c/k, shape (n,). Biased: at gamma=0 low by exactly (k-1)/k; elsewhere it bends the curve."""
    correct, k = counts(correct, k)
    p = correct / k
    return p * (1 - p) ** (1 + gamma)


def unbiased_power(correct, k, a: int, b: int) -> np.ndarray:
    """Unbiased estimate of p^a (1-p)^b: (c)_a (k-c)_b / (k)_{a+b}, (x)_m the falling factorial; shape (n,).

    A U-statistic (Hoeffding 1948). Needs whole a, b >= 0 and k >= a + b; below that none exists and a ValueError says so.
    """
    if min(a, b) < 0 or a != int(a) or b != int(b):
        raise ValueError(f"unbiased_power: exponents {a} and {b}, expected whole numbers >= 0; for others use bayes_power")
    correct, k = counts(correct, k)
    if (k < a + b).any():
        raise ValueError(f"unbiased_power: k={int(k.min())} rollouts, at least {int(a + b)} are needed for p^{a} (1-p)^{b}")
    return _falling(correct, int(a)) * _falling(k - correct, int(b)) / _falling(k, int(a + b))


def unbiased_energy(correct, k, gamma: int = 1) -> np.ndarray:
    """Unbiased estimate of p(1-p)^m, m = 1+gamma: c (k-c)_m / (k)_{m+1}; shape (n,).

    Needs an integer gamma >= 0 and k >= gamma + 2; below that no unbiased estimate exists and a ValueError says so.
    Single tasks may exceed max p(1-p)^m (2/7 at gamma=0, 5/28 at gamma=1, both k=8); cohort means must not, beyond their
    interval.
    """
    if gamma < 0 or gamma != int(gamma):
        raise ValueError(f"unbiased_energy: gamma={gamma}, expected a whole number >= 0; for others use empirical_bayes_energy")
    _, rollouts = counts(correct, k)
    if (rollouts < gamma + 2).any():
        raise ValueError(
            f"unbiased_energy: k={int(rollouts.min())} rollouts, at least {int(gamma) + 2} are needed at gamma={int(gamma)}"
        )
    return unbiased_power(correct, k, 1, int(gamma) + 1)


def variance(correct, k) -> np.ndarray:
    """Unbiased reward variance p(1-p) a task, shape (n,)."""
    return unbiased_energy(correct, k, 0)


def _pairs(correct: np.ndarray, k: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Distinct (c, k), how often each occurs, and where each task finds its own: a million tasks hold few of them."""
    largest = int(k.max()) + 1
    codes, inverse, n = np.unique((k * largest + correct).astype(np.int64), return_inverse=True, return_counts=True)
    return (codes % largest).astype(float), (codes // largest).astype(float), n, inverse


def _negative_log_likelihood(theta, c: np.ndarray, k: np.ndarray, n: np.ndarray) -> float:
    a, b = np.exp(theta)
    return float(-(n @ (betaln(c + a, k - c + b) - betaln(a, b))))


def fit_beta_prior(correct, k) -> tuple[float, float]:
    """Beta(a, b) fitted to a pool by beta-binomial marginal likelihood.

    Degenerate pools: k=1 everywhere (the spread of p can't be told) and pools of only failures or only successes are a
    ValueError that says which; a pool with no more spread than one binomial gets the prior at the pooled pass rate with
    a + b = 1e4, which treats all tasks alike, and a warning that says so.
    """
    correct, k = counts(correct, k)
    if k.max() < 2:
        raise ValueError("fit_beta_prior: k=1 leaves the spread of p unidentifiable")
    if correct.sum() == 0 or (correct == k).all():
        raise ValueError(f"fit_beta_prior: degenerate pool, every task has {'no' if correct.sum() == 0 else 'only'} successes")
    c, m, n, _ = _pairs(correct, k)
    found = minimize(
        _negative_log_likelihood,
        np.zeros(2),
        args=(c, m, n),
        method="Nelder-Mead",
        options={"xatol": 1e-6, "fatol": 1e-8, "maxiter": 2000},
    )
    a, b = np.exp(found.x)
    if a + b > LARGEST_CONCENTRATION:
        warnings.warn(
            "fit_beta_prior: degenerate pool, pass rates spread no more than one binomial; every task is given the pooled rate",
            stacklevel=2,
        )
        a, b = LARGEST_CONCENTRATION * np.array([correct.sum(), (k - correct).sum()]) / k.sum()
    return float(a), float(b)


def prior_misfit(correct, k, *, prior: tuple[float, float]) -> float:
    """p-value of a chi-square test that the pool's counts follow the fitted beta-binomial; 1 where nothing can be tested.

    Tests tasks of the most frequent k; cells are merged up to an expectation of 5. Empirical Bayes trusts the Beta family: on
    a pool of two pass rates (.08 and .9, k=8, gamma=.5) its 95% interval covers the mean 3 times in 10.
    """
    correct, k = counts(correct, k)
    sizes, n = np.unique(k, return_counts=True)
    size, (a, b) = int(sizes[n.argmax()]), prior
    c = np.arange(size + 1.0)
    log_choose = gammaln(size + 1) - gammaln(c + 1) - gammaln(size - c + 1)
    expected = n.max() * np.exp(log_choose + betaln(c + a, size - c + b) - betaln(a, b))
    seen = np.bincount(correct[k == size].astype(int), minlength=size + 1)
    cell = np.minimum(np.floor(np.concatenate([[0], np.cumsum(expected)[:-1]]) / 5), np.floor(n.max() / 5)).astype(int)
    expected, seen = np.bincount(cell, expected), np.bincount(cell, seen)
    expected, seen = expected[expected > 0], seen[expected > 0]
    freedom = len(seen) - 3
    return float(chi2.sf(np.sum((seen - expected) ** 2 / expected), freedom)) if freedom > 0 else 1.0


def bayes_power(correct, k, a: float, b: float, *, prior: tuple[float, float]) -> np.ndarray:
    """Posterior mean of p^a (1-p)^b, any a, b >= 0, under a Beta prior: a ratio of Beta functions; shape (n,)."""
    correct, k = counts(correct, k)
    c, m, _, inverse = _pairs(correct, k)
    alpha, beta = c + prior[0], m - c + prior[1]
    return np.exp(betaln(alpha + a, beta + b) - betaln(alpha, beta))[inverse]


def empirical_bayes_energy(correct, k, gamma: float = 1.0, *, prior: tuple[float, float]) -> np.ndarray:
    """Posterior mean of p(1-p)^m, m = 1+gamma, under a Beta(a, b) prior: B(c+a+1, k-c+b+m) / B(c+a, k-c+b); shape (n,)."""
    return bayes_power(correct, k, 1, 1 + gamma, prior=prior)


def empirical_bayes_sd(correct, k, gamma: float = 1.0, *, prior: tuple[float, float]) -> np.ndarray:
    """Posterior standard deviation of p(1-p)^m under a Beta prior, shape (n,). Unlike the jackknife's it is not 0 at c=0."""
    second = bayes_power(correct, k, 2, 2 * (1 + gamma), prior=prior)
    return np.sqrt(np.maximum(second - empirical_bayes_energy(correct, k, gamma, prior=prior) ** 2, 0))


def exponential_tilt(p, tau: float) -> np.ndarray:
    """Gain in pass rate when the policy is tilted by exp(tau * reward): p(1-p)(e^tau-1) / (1 + p(e^tau-1)).

    Largest at p = 1/(1+e^(tau/2)); tau = 2 ln 2 puts it at gamma=1's 1/3.
    """
    p, strength = np.asarray(p, dtype=float), np.expm1(tau)
    return p * (1 - p) * strength / (1 + p * strength)


def tilt_gain(correct, k, tau: float, *, prior: tuple[float, float]) -> np.ndarray:
    """Posterior mean of `exponential_tilt` under a Beta prior, by Gauss-Jacobi quadrature; shape (n,)."""
    correct, k = counts(correct, k)
    c, m, _, inverse = _pairs(correct, k)
    values = []
    for alpha, beta in zip(c + prior[0], m - c + prior[1], strict=True):
        x, w = roots_jacobi(64, beta - 1, alpha - 1)
        values.append(w @ exponential_tilt((1 + x) / 2, tau) / w.sum())
    return np.array(values)[inverse]


def tilt_divergence(p, beta: float) -> np.ndarray:
    """KL(pi_0 || pi*) of the exponential tilt with strength 1/beta for a binary reward: ln(1-p+p e^(1/beta)) - p/beta.

    The often-quoted "lower bound" p(1-p)/(2 beta^2) (Bae et al. 2025, Prop. 3.1) is its second-order term in 1/beta and no
    bound: at p=.9, beta=1 the divergence is .035 where that says .045, at p=.5, beta=.1 4.3 against 12.5. It says nothing
    about training with beta=0.
    """
    p = np.asarray(p, dtype=float)
    with np.errstate(divide="ignore"):
        return np.logaddexp(np.log1p(-p), np.log(p) + 1 / beta) - p / beta


def informative_group_rate(correct, k, group_size: int) -> np.ndarray:
    """Unbiased chance that a group of G <= k rollouts holds both rewards: 1 - [C(c,G) + C(k-c,G)] / C(k,G); shape (n,)."""
    correct, rollouts = counts(correct, k)
    some_right = pass_at_k(correct, rollouts, group_size)
    some_wrong = pass_at_k(rollouts - correct, rollouts, group_size)
    return np.maximum(some_right + some_wrong - 1, 0.0)


def pass_at_k(correct, k, draws: int) -> np.ndarray:
    """Unbiased chance that `draws` rollouts hold a success: 1 - C(k-c, draws) / C(k, draws); shape (n,) (Chen et al. 2021)."""
    correct, k = counts(correct, k)
    if (k < draws).any() or draws < 1:
        raise ValueError(f"pass_at_k: {draws} draws asked of k={int(k.min())} rollouts")
    fails = k - correct
    with np.errstate(invalid="ignore"):
        log_miss = gammaln(fails + 1) - gammaln(fails - draws + 1) - gammaln(k + 1) + gammaln(k - draws + 1)
    return np.where(fails < draws, 1.0, 1 - np.exp(np.where(fails < draws, 0.0, log_miss)))


def reward_entropy(correct, k) -> np.ndarray:
    """Entropy in nats of a task's binary reward at p = c/k, shape (n,)."""
    correct, k = counts(correct, k)
    p = correct / k
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.nan_to_num(-p * np.log(p)) + np.nan_to_num(-(1 - p) * np.log1p(-p))


def jackknife(statistic, correct, k, *, unbias: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """(values, variances) a task of a per-task `statistic(correct, k)`, deleting one rollout at a time, in closed form.

    The jackknife variance of a U-statistic is never too small on average (Efron and Stein 1981); at c=0 and c=k it is 0, which
    is true of means over many tasks only. `unbias` takes the jackknife's estimate of bias off the values. `statistic` must be
    defined at k-1 rollouts, too.
    """
    c, m = counts(correct, k)
    values = statistic(c, m)
    without_success = statistic(np.maximum(c - 1, 0), m - 1)
    without_failure = statistic(np.minimum(c, m - 1), m - 1)
    if unbias:
        values = m * values - (m - 1) * (c * without_success + (m - c) * without_failure) / m
    return values, (m - 1) / m * c * (m - c) / m * (without_success - without_failure) ** 2


@lru_cache(maxsize=256)
def _sampling_variance(k: int, gamma: int, prior: tuple[float, float]) -> float:
    """Variance of one task's unbiased energy about its true one, averaged over a Beta prior: E[U^2] - E[energy^2]."""
    c, (a, b), m = np.arange(k + 1.0), prior, gamma + 1
    log_choose = gammaln(k + 1) - gammaln(c + 1) - gammaln(k - c + 1)
    weights = np.exp(log_choose + betaln(c + a, k - c + b) - betaln(a, b))
    return float(weights @ unbiased_energy(c, k, gamma) ** 2 - np.exp(betaln(a + 2, b + 2 * m) - betaln(a, b)))


class Energies(NamedTuple):
    """Per-task energies, shape (n,), their standard errors, and the error that all tasks share through a fitted prior.

    The variance of a weighted mean w @ value is (w^2 @ se^2) + |w @ shared|^2; copies of a task must be summed in w.
    """

    value: np.ndarray
    se: np.ndarray
    shared: np.ndarray  # (n, 2): what one standard deviation of the two fitted prior parameters does; 0 where none was used
    note: str  # which estimator was used for how many tasks, and what was degenerate


def task_energies(correct, k, gamma: float = 1.0, *, distinct=None) -> Energies:
    """Per-task energy as `lad` uses it: unbiased where k >= gamma + 2 and gamma is whole, else empirical Bayes.

    Standard errors: delete-one jackknife where k >= gamma + 3; at k = gamma + 2 the sampling variance averaged over the fitted
    prior; for empirical Bayes the posterior's. The Beta prior is fitted to these tasks (`distinct`: indices of those that are
    no copies). Pools of only failures or only successes where a prior is needed have energy 0, and the note says so; k=1
    everywhere is a ValueError.
    """
    correct, k = counts(correct, k)
    whole = gamma == int(gamma) and gamma >= 0
    unbiased = (k >= gamma + 2) & whole
    simple = (k >= gamma + 3) & whole
    value, se, shared = np.zeros(k.size), np.zeros(k.size), np.zeros((k.size, 2))
    if simple.any():
        value[simple], spread = jackknife(partial(unbiased_energy, gamma=int(gamma)), correct[simple], k[simple])
        se[simple] = np.sqrt(spread)
    note = f"unbiased for {int(unbiased.sum())} of {k.size} tasks"
    if simple.all():
        return Energies(value, se, shared, note)
    if correct.sum() == 0 or (correct == k).all():
        what = "fails every rollout" if correct.sum() == 0 else "passes every rollout"
        return Energies(value, se, shared, f"degenerate pool: every task {what}; energy 0")
    pool = slice(None) if distinct is None else distinct
    prior = fit_beta_prior(correct[pool], k[pool])
    barely, rest = unbiased & ~simple, ~unbiased
    if barely.any():
        value[barely] = unbiased_energy(correct[barely], k[barely], int(gamma))
        se[barely] = np.sqrt(max(_sampling_variance(int(gamma) + 2, int(gamma), prior), 0.0))
    if rest.any():
        c, m = correct[rest], k[rest]
        value[rest] = empirical_bayes_energy(c, m, gamma, prior=prior)
        se[rest] = empirical_bayes_sd(c, m, gamma, prior=prior)
        shared[rest] = _prior_error(c, m, gamma, prior=prior, pool=(correct[pool], k[pool]))
        note += f"; empirical Bayes with prior Beta({prior[0]:.2f}, {prior[1]:.2f}) for {int(rest.sum())}"
        if (misfit := prior_misfit(correct[pool], k[pool], prior=prior)) < 1e-3:
            note += f"; the pool is no Beta (p = {misfit:.1g}): means and intervals may be off, prefer a whole gamma"
            warnings.warn(f"task_energies: {note}", stacklevel=2)
    return Energies(value, se, shared, note)


def _prior_error(correct, k, gamma: float, *, prior: tuple[float, float], pool) -> np.ndarray:
    """Delta method, shape (n, 2): change of each posterior mean for one standard deviation of the fitted (log a, log b).

    The pooled prior of a pool without spread has one parameter, its pass rate, with binomial error.
    """
    a, b = prior
    if a + b >= LARGEST_CONCENTRATION * (1 - 1e-9):
        rate, m = a / (a + b), 1 + gamma
        slope = (1 - rate) ** m - m * rate * (1 - rate) ** (m - 1)
        return np.tile([slope * np.sqrt(rate * (1 - rate) / pool[1].sum()), 0.0], (correct.size, 1))
    c, m, n, _ = _pairs(*pool)
    theta, moves = np.log(prior), 1e-3 * np.eye(2)

    def means(at) -> np.ndarray:
        return empirical_bayes_energy(correct, k, gamma, prior=tuple(np.exp(at)))

    def loss(at) -> float:
        return _negative_log_likelihood(at, c, m, n)

    slopes = np.stack([means(theta + d) - means(theta - d) for d in moves], axis=1) / 2e-3
    curvature = [
        [loss(theta + d + e) - loss(theta + d - e) - loss(theta - d + e) + loss(theta - d - e) for e in moves] for d in moves
    ]
    values, vectors = np.linalg.eigh(np.array(curvature) / 4e-6)
    # A direction that the likelihood hardly bends is bounded at two units of the logarithm.
    return slopes @ vectors * np.where(values > 0.25, np.maximum(values, 0.25) ** -0.5, 2.0)
