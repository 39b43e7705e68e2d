"""How well a metric agrees with lift beyond one rank correlation: error, calibration, top picks, partial and paired tests."""

from collections import namedtuple
from itertools import product

import numpy as np
import pandas as pd
from numpy.random import Generator
from numpy.typing import ArrayLike
from scipy import stats

from lad_utils.stats import NAN, _paired, _row_spearman, _undefined, bonett_wright_interval, loco

Agreement = namedtuple("Agreement", "kendall pearson top_3 pairwise n n_dropped reason")
HeldOutError = namedtuple("HeldOutError", "rmse mae calibration_slope baseline_rmse n reason")
Partial = namedtuple("Partial", "rho low high n n_given reason")
SwapTest = namedtuple("SwapTest", "difference p_value n_swaps reason")
NullLoco = namedtuple("NullLoco", "truth plain held_out")
EXACT_SWAPS = 4096  # enumerated up to this many, sampled beyond


def agreement(x: ArrayLike, y: ArrayLike) -> Agreement:
    """Agreement of metric x with lift y, shape (n,): Kendall's tau-b, Pearson's r, top-3 precision and pairwise accuracy.

    top_3: share of the three cohorts with the highest x that are among the three with the highest y; ties at the edge of x
    count by the chance that they are picked, ties at the edge of y are all right. pairwise: share of the pairs of cohorts with
    different lifts that x orders rightly, ties of x counting half (the AUC of choosing the better of two).
    """
    x, y, n, n_dropped, _ = _paired(x, y)
    if reason := _undefined(x, y):
        return Agreement(*[NAN] * 4, n, n_dropped, reason)
    sign_x, sign_y = (np.sign(v[:, None] - v)[np.triu_indices(n, 1)] for v in (x, y))
    differing = sign_y != 0
    pairwise = float(((sign_x * sign_y)[differing] + 1).mean() / 2)
    picked = _edge_shares(x, 3)
    top = float(picked[y >= np.sort(y)[-3]].sum() / 3)
    return Agreement(float(stats.kendalltau(x, y).statistic), float(np.corrcoef(x, y)[0, 1]), top, pairwise, n, n_dropped, "")


def _edge_shares(x: np.ndarray, top: int) -> np.ndarray:
    """Chance of each item to be among the `top` highest x when ties at the edge are broken at random, shape (n,)."""
    edge = np.sort(x)[-top]
    above, tied = x > edge, x == edge
    return above + tied * (top - above.sum()) / tied.sum()


def held_out_error(predictions: ArrayLike, y: ArrayLike, groups: ArrayLike | None = None) -> HeldOutError:
    """Errors of held-out predictions, shape (n,): RMSE, MAE (units of y), and the slope of y on the predictions (1 is ideal).

    baseline_rmse is that of predicting every held-out lift by the mean of the other groups' (None: of the other cohorts').
    """
    predictions, y = np.asarray(predictions, float), np.asarray(y, float)
    labels = np.arange(len(y)) if groups is None else pd.factorize(np.asarray(groups, dtype=object))[0]
    kept = np.isfinite(predictions) & np.isfinite(y)
    p, y, labels = predictions[kept], y[kept], labels[kept]
    if len(y) < 3 or len(np.unique(labels)) < 2:
        return HeldOutError(*[NAN] * 4, len(y), f"n = {len(y)} < 3" if len(y) < 3 else "one group only: nothing to train on")
    means = np.array([y[labels != g].mean() for g in labels])
    constant = np.ptp(p) <= 1e-12 * np.abs(p).max()
    slope = NAN if constant else float(np.cov(p, y)[0, 1] / p.var(ddof=1))
    rmse, baseline = (float(np.sqrt(np.mean((y - v) ** 2))) for v in (p, means))
    mae = float(np.abs(y - p).mean())
    return HeldOutError(rmse, mae, slope, baseline, len(y), "held-out predictions are constant: no slope" if constant else "")


def partial_spearman_ci(x: ArrayLike, y: ArrayLike, given: ArrayLike, *, level: float = 0.95) -> Partial:
    """Rank correlation of x and y, shape (n,), given the columns of `given`, shape (n, m): residuals of ranks on ranks.

    The interval is Bonett-Wright's with n - m in place of n. Columns of `given` that are constant or repeat others are
    left out, and n_given counts those that remain.
    """
    table = np.column_stack([x, y, given]).astype(float)
    table = table[np.isfinite(table).all(axis=1)]
    if len(table) < 5:
        return Partial(NAN, NAN, NAN, len(table), 0, f"n = {len(table)} < 5")
    ranks = stats.rankdata(table, axis=0)
    ranks -= ranks.mean(axis=0)
    u, s, _ = np.linalg.svd(ranks[:, 2:], full_matrices=False)
    basis = u[:, s > 1e-9 * max(s.max(initial=0), 1e-300)]
    n, m = len(table), basis.shape[1]
    if n - m < 5:
        return Partial(NAN, NAN, NAN, n, m, f"{n} cohorts leave fewer than 5 degrees of freedom beside {m} covariates")
    rest = ranks[:, :2] - basis @ (basis.T @ ranks[:, :2])
    norms = np.sqrt((rest**2).sum(axis=0))
    if (norms <= 1e-6 * np.sqrt((ranks[:, :2] ** 2).sum(axis=0))).any():
        return Partial(NAN, NAN, NAN, n, m, "the covariates rank the cohorts just as the metric or the lift does")
    rho = float(rest[:, 0] @ rest[:, 1] / norms.prod())
    low, high, reason = bonett_wright_interval(rho, n - m, level=level)
    return Partial(rho, low, high, n, m, reason)


def family_swap_test(
    a: ArrayLike, b: ArrayLike, y: ArrayLike, families: ArrayLike, *, n_swaps: int = 9999, rng: Generator
) -> SwapTest:
    """Two-sided paired permutation test that metrics a and b rank lift y equally well; all of shape (n,).

    Under the null the ranks that a and b give are exchangeable; they are swapped a whole family at a time, since cohorts of a
    family share construction. Enumerated where there are at most EXACT_SWAPS ways, so p is never below 2 / 2^families.
    """
    table = np.column_stack([a, b, y]).astype(float)
    kept = np.isfinite(table).all(axis=1)
    a, b, y = stats.rankdata(table[kept], axis=0).T
    folds = pd.factorize(np.asarray(families, dtype=object)[kept])[0]
    n_families = int(folds.max(initial=-1)) + 1
    one = "one family only: swapping it whole changes nothing" if n_families < 2 else ""
    if reason := _undefined(a, y) or _undefined(b, y) or one:
        return SwapTest(NAN, NAN, 0, reason)
    exact = 2**n_families <= EXACT_SWAPS
    ways = np.array([*product((0, 1), repeat=n_families)]) if exact else rng.integers(0, 2, (n_swaps, n_families))
    swap = ways[:, folds].astype(bool)
    observed = float(_row_spearman(a, y) - _row_spearman(b, y))
    null = _row_spearman(np.where(swap, b, a), y) - _row_spearman(np.where(swap, a, b), y)
    extreme = int((np.abs(null) >= abs(observed) - 1e-12).sum() + np.isnan(null).sum())  # an undefined swap counts against us
    p = extreme / len(null) if exact else (1 + extreme) / (1 + len(null))
    return SwapTest(observed, float(p), len(null), "")


def loco_null(
    truths: ArrayLike, *, n: int, groups: ArrayLike | None = None, n_simulated: int = 2000, rng: Generator
) -> list[NullLoco]:
    """LOCO's Spearman for metrics of known worth: (true r, plain rhos, held-out rhos), the latter two of shape (n_simulated,).

    x and y are bivariate normal with correlation r, n cohorts, folds by `groups` as in `stats.loco`. Simulated draws without a
    held-out rho are NaN.
    """
    found = []
    for truth in np.asarray(truths, dtype=float):
        x, noise = rng.standard_normal((2, n_simulated, n))
        y = truth * x + np.sqrt(1 - truth**2) * noise
        runs = [loco(a, b, groups, n_permutations=0) for a, b in zip(x, y, strict=True)]
        found.append(NullLoco(float(truth), np.array([r.plain_rho for r in runs]), np.array([r.rho for r in runs])))
    return found
