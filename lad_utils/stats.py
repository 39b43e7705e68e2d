"""Held-out validation and noise ceilings for small sets of cohorts (n about 19).

Arrays in, a named tuple out (``._asdict()`` makes a table row). Inputs are 1-D, one entry per cohort or question; a pair with a
non-finite member is dropped and counted (``n`` used, ``n_dropped`` not); unequal lengths raise ValueError. What is undefined is
NaN and ``reason`` says why; it is "" when all is defined and nothing was truncated. Intervals are (low, high) at ``level``.
"""

from collections import namedtuple
from itertools import compress
from math import factorial, prod
from typing import Any

import numpy as np
import pandas as pd
from numpy.random import Generator
from numpy.typing import ArrayLike
from scipy import special, stats

Loco = namedtuple("Loco", "rho plain_rho q2 p_value predictions n n_dropped n_folds n_permutations reason")
SpearmanInterval = namedtuple("SpearmanInterval", "rho low high p_value p_method n n_dropped reason")
BootstrapInterval = namedtuple(
    "BootstrapInterval", "rho low high percentile_low percentile_high n_resamples n_undefined n n_dropped reason"
)
WilliamsTest = namedtuple("WilliamsTest", "t df p_value reason")
SeedReliability = namedtuple(
    "SeedReliability",
    "s_u s_e reliability reliability_low reliability_high ceiling ceiling_low ceiling_high n n_seeds n_dropped reason",
)
PairedDifference = namedtuple("PairedDifference", "mean low high se n n_dropped reason")
Lift = namedtuple("Lift", "lift low high se before after n n_dropped reason")
Line = namedtuple("Line", "slope intercept n n_dropped reason")

NAN = float("nan")
REL_TOL = 1e-12  # a spread below this share of the magnitude is rounding, not signal
MAX_EXACT_STATES = 2048  # 2^11: exact p untied up to n = 11, and with many ties at n = 19, in about 0.1 s


def loco(x: ArrayLike, y: ArrayLike, groups: Any = None, *, n_permutations: int = 9999, rng: Generator | None = None) -> Loco:
    """Leave-one-cohort-out, or leave-one-family-out, validation of the line y = a + b x.

    x, y: shape (n,), metric and lift per cohort. groups: shape (n,) family labels, each held out whole; None: single cohorts.
    rho: Spearman of held-out predictions with y. Biased (mean about -.38 at n = 19 for an uninformative x): read it with
    plain_rho, the Spearman of x with y, and q2 = 1 - sum (y - yhat_-i)^2 / sum (y - ybar_-i)^2. predictions: shape (n,), NaN
    where dropped. A fold whose *training* x is constant has no slope and predicts its training mean of y.

    yhat = H y with H fixed by x and the folds (for single cohorts the leverage form y_i - e_i / (1 - h_ii)), so re-running the
    whole loop on permuted y is one matrix product. p_value = (1 + #{rho* >= rho}) / (1 + B), one-sided, a permutation without
    rho counted as >=. The null is lifts exchangeable over *all* cohorts: a strong family effect makes p optimistic. Without
    `rng` a fixed stream (seed 0) keeps p reproducible. Raises ValueError if a used cohort has no group label.
    """
    x, y, n, n_dropped, kept = _paired(x, y)
    predictions, p_value, reason = np.full(len(kept), NAN), NAN, _undefined(x, y)
    labels = np.arange(len(kept)) if groups is None else np.array([*groups], dtype=object)
    folds = pd.factorize(labels[kept])[0]
    if (folds < 0).any():
        raise ValueError("a cohort has no group label, so no fold can leave its family out")
    n_folds, plain_rho = len(np.unique(folds)), NAN if reason else float(_row_spearman(x, y))
    if reason := reason or ("one group only: nothing to train on" if n_folds < 2 else ""):
        return Loco(NAN, plain_rho, NAN, NAN, predictions, n, n_dropped, n_folds, 0, reason)
    line, mean = _held_out_operators(x, folds)
    z = (y - y.mean()) / y.std()  # rows of H sum to 1, so standardising changes nothing but the rounding
    held_out = line @ z
    predictions[kept] = y.mean() + y.std() * held_out
    q2 = 1 - float(((z - held_out) ** 2).sum() / ((z - mean @ z) ** 2).sum())
    rho = float(_row_spearman(held_out.round(9), z))  # rounded so that predictions equal but for rounding are ties
    if np.isnan(rho):
        reason = "held-out predictions are constant"
    elif n_permutations < 1:
        reason = "no permutations asked for, so no p-value"
    else:
        shuffled = (np.random.default_rng(0) if rng is None else rng).permuted(np.tile(z, (n_permutations, 1)), axis=1)
        null = _row_spearman((shuffled @ line.T).round(9), shuffled)
        p_value = float((1 + (~(null < rho - 1e-9)).sum()) / (1 + n_permutations))
    return Loco(rho, plain_rho, q2, p_value, predictions, n, n_dropped, n_folds, n_permutations, reason)


def spearman_ci(x: ArrayLike, y: ArrayLike, *, level: float = 0.95) -> SpearmanInterval:
    """Tie-correct Spearman of two (n,) arrays, its Bonett-Wright interval and a two-sided p-value.

    p is exact under permutation where cheap: untied up to n = 11, with ties if one side has few arrangements (a
    distinct-task fraction that is 1 for most of 19 cohorts). Else by t = rho sqrt((n-2) / (1-rho^2)), never below 2/n!, the
    least a permutation can give. The interval is NaN for n < 4 and for |rho| = 1, where the formula would claim certainty.
    """
    x, y, n, n_dropped, _ = _paired(x, y)
    if reason := _undefined(x, y):
        return SpearmanInterval(NAN, NAN, NAN, NAN, "", n, n_dropped, reason)
    rho = float(_row_spearman(x, y))
    p_value, method = _exact_spearman_p(x, y), "exact permutation"
    if p_value is None:
        t = abs(rho) * np.sqrt((n - 2) / max(1 - rho**2, 1e-300))
        p_value, method = float(max(2 * stats.t.sf(t, n - 2), 2 / factorial(n))), "t approximation"
    low, high, reason = bonett_wright_interval(rho, n, level=level)
    return SpearmanInterval(rho, low, high, p_value, method, n, n_dropped, reason)


def bonett_wright_interval(rho: float, n: int, *, level: float = 0.95) -> tuple[float, float, str]:
    """(low, high, reason): tanh(atanh rho -+ z sqrt((1 + rho^2/2) / (n - 3))), Bonett & Wright (2000), Psychometrika 65."""
    if not abs(rho) <= 1 - REL_TOL or n < 4:
        return NAN, NAN, "n < 4: no Bonett-Wright interval" if n < 4 else "no Bonett-Wright interval unless |rho| < 1"
    half = special.ndtri((1 + level) / 2) * np.sqrt((1 + rho**2 / 2) / (n - 3))
    return float(np.tanh(np.arctanh(rho) - half)), float(np.tanh(np.arctanh(rho) + half)), ""


def bca_bootstrap_spearman(
    x: ArrayLike, y: ArrayLike, *, n_resamples: int = 2000, rng: Generator, level: float = 0.95
) -> BootstrapInterval:
    """BCa (low, high) and percentile intervals of the plain Spearman of two (n,) arrays, resampling cohorts with replacement.

    All n^n resamples are enumerated if they are no more than `n_resamples` (n <= 4 by default). A resample that is constant on
    either side has no rho: counted in n_undefined and left out, never read as 0. Where BCa is undefined the percentile interval
    stays. Source: Efron (1987), JASA 82, "Better bootstrap confidence intervals"; z0 splits ties at rho in half.
    """
    x, y, n, n_dropped, _ = _paired(x, y)
    if reason := _undefined(x, y):
        return BootstrapInterval(*[NAN] * 5, 0, 0, n, n_dropped, reason)
    rho = float(_row_spearman(x, y))
    rows = np.indices((n,) * n).reshape(n, -1).T if n**n <= n_resamples else rng.integers(0, n, (n_resamples, n))
    boot = _row_spearman(x[rows], y[rows]).round(12)  # rounded so that equal rhos compare equal
    n_undefined, boot = int(np.isnan(boot).sum()), boot[~np.isnan(boot)]
    tails = np.array([(1 - level) / 2, (1 + level) / 2])
    percentile, bca = np.quantile(boot, tails) if len(boot) else np.full(2, NAN), np.full(2, NAN)
    one_out = np.array([np.delete(np.arange(n), i) for i in range(n)])
    pull = _row_spearman(x[one_out], y[one_out])
    pull = pull.mean() - pull  # the jackknife's influence of each cohort
    z0 = special.ndtri(((boot < round(rho, 12)).mean() + (boot <= round(rho, 12)).mean()) / 2) if len(boot) else NAN
    if abs(rho) > 1 - REL_TOL:
        reason = "|rho| = 1: the resamples agree, so BCa is undefined"
    elif n < 4 or np.isnan(pull).any() or pull @ pull < 1e-20:
        reason = "no acceleration: leaving one cohort out leaves n < 3 or a constant input, or never changes rho"
    elif not np.isfinite(z0):
        reason = "rho lies outside its bootstrap distribution"
    else:
        acceleration = (pull**3).sum() / (6 * (pull @ pull) ** 1.5)
        z = z0 + special.ndtri(tails)
        bca = np.quantile(boot, special.ndtr(z0 + z / (1 - acceleration * z)))
    return BootstrapInterval(rho, *bca.tolist(), *percentile.tolist(), len(rows), n_undefined, n, n_dropped, reason)


def williams_test(r_yx1: float, r_yx2: float, r_x1x2: float, n: int) -> WilliamsTest:
    """Two-sided test that metrics x1 and x2 correlate equally with y on the same n cohorts; needs their own correlation.
    Source: Williams (1959) as in Steiger (1980), Psychological Bulletin 87, eq. 7. For Pearson; approximate for Spearman.
    """
    r = np.array([r_yx1, r_yx2, r_x1x2], dtype=float)
    determinant = 1 - (r**2).sum() + 2 * r.prod()
    spread = 2 * (n - 1) / max(n - 3, 1) * max(determinant, 0) + ((r_yx1 + r_yx2) / 2) ** 2 * (1 - r_x1x2) ** 3
    undefined = {
        "n < 4": n < 4,
        "a correlation is undefined or outside [-1, 1]": not (np.abs(r) <= 1).all(),
        "no three variables have these correlations": determinant < -REL_TOL,
        "no residual variance (are the two metrics the same up to scale?)": spread <= REL_TOL,
    }
    if any(undefined.values()):
        return WilliamsTest(NAN, n - 3, NAN, next(compress(undefined, undefined.values())))
    t = float((r_yx1 - r_yx2) * np.sqrt((n - 1) * (1 + r_x1x2) / spread))
    return WilliamsTest(t, n - 3, float(2 * stats.t.sf(abs(t), n - 3)), "")


def holm(p_values: ArrayLike) -> np.ndarray:
    """Holm (1979) step-down adjusted p-values, shape (m,), in the order given. Raises ValueError outside [0, 1].
    A NaN p (its reason is with its test) stays NaN but still counts in m: an undefined comparison does not cheapen the others.
    """
    p = np.asarray(p_values, dtype=float)
    if ((p < 0) | (p > 1)).any():
        raise ValueError("p-values must lie in [0, 1]")
    order, adjusted = np.argsort(p), np.empty_like(p)  # NaN sorts last
    adjusted[order] = np.minimum(np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)), 1)
    return adjusted


def seed_reliability(lifts: ArrayLike, *, level: float = 0.95) -> SeedReliability:
    """Reliability R of the S-seed mean lift, and the ceiling sqrt(R), from lifts of shape (n cohorts, S seeds).

    Balanced one-way random effects y_cs = mu + u_c + e_cs: s_e^2 = MSE, s_u^2 = (MSB - MSE)/S, R = 1 - MSE/MSB = 1 - 1/F, which
    is REML where MSB >= MSE. F (1 - R_true) is F with n-1, n(S-1) df, hence the exact normal-theory interval 1 - f/F: Shrout &
    Fleiss (1979), Psychological Bulletin 86, ICC(1,k). Negative values are truncated at 0, with a reason if the estimate is
    (s_e stays sqrt(MSE)). Cohorts with a missing seed are dropped and counted. Raises ValueError unless 2-D.
    """
    lifts = np.asarray(lifts, dtype=float)
    n_all, s = lifts.shape
    used = lifts[np.isfinite(lifts).all(axis=1)]
    n, n_dropped = len(used), n_all - len(used)
    if s < 2 or n < 3 or _constant(used):
        reason = "fewer than 2 seeds" if s < 2 else "fewer than 3 complete cohorts" if n < 3 else "all lifts are equal"
        return SeedReliability(*[NAN] * 8, n, s, n_dropped, reason)
    between, within = s * used.mean(axis=1).var(ddof=1), used.var(axis=1, ddof=1).mean()
    s_u, s_e = float(np.sqrt(max(between - within, 0) / s)), float(np.sqrt(within))
    if all(_constant(row) for row in used):
        reason = "seeds of a cohort never differ (were they varied?): no interval"
        return SeedReliability(s_u, 0.0, 1.0, NAN, NAN, 1.0, NAN, NAN, n, s, n_dropped, reason)
    reason = "cohorts differ no more than seeds do: between-cohort variance truncated at 0" if between <= within else ""
    f = np.array([1, *stats.f.ppf([(1 + level) / 2, (1 - level) / 2], n - 1, n * (s - 1))])
    r = np.maximum(1 - f * within / max(between, 1e-300), 0)
    return SeedReliability(s_u, s_e, *r.tolist(), *np.sqrt(r).tolist(), n, s, n_dropped, reason)


def paired_difference_ci(a: ArrayLike, b: ArrayLike, *, level: float = 0.95) -> PairedDifference:
    """Mean of a - b over questions paired by position, shape (n,), with its t interval (NaN if all differences are equal)."""
    a, b, n, n_dropped, _ = _paired(a, b)
    d = a - b
    if n < 3:
        return PairedDifference(NAN, NAN, NAN, NAN, n, n_dropped, f"n = {n} < 3")
    mean, se = float(d.mean()), float(d.std(ddof=1) / np.sqrt(n))
    if np.ptp(d) <= REL_TOL * np.abs([a, b]).max():
        return PairedDifference(mean, NAN, NAN, NAN, n, n_dropped, "all differences are equal: no interval")
    half = float(stats.t.ppf((1 + level) / 2, n - 1)) * se
    return PairedDifference(mean, mean - half, mean + half, se, n, n_dropped, "")


def lift_ci(before_c: ArrayLike, before_n: ArrayLike, after_c: ArrayLike, after_n: ArrayLike, *, level: float = 0.95) -> Lift:
    """Lift (a rate: .02 is 2 points), the mean over paired questions of after-rate - before-rate, with a t interval over them.

    *_c, *_n: shape (n,) correct and sampled counts per question, *_n may be a scalar. A question unsampled on either side is
    dropped and counted. The interval covers the draw of questions and rollouts for this trained model, not its training seed.
    """
    c = np.array([before_c, after_c], dtype=float)
    n = np.array([np.broadcast_to(np.asarray(v, dtype=float), c[0].shape) for v in (before_n, after_n)])
    if ((c < 0) | (c > n) | (n < 0)).any():
        raise ValueError("counts must satisfy 0 <= correct <= sampled")
    before, after = np.divide(c, n, out=np.full(c.shape, NAN), where=n > 0)
    mean, low, high, se, n_used, n_dropped, reason = paired_difference_ci(after, before, level=level)
    before, after, *_ = _paired(before, after)
    rates = [float(v.mean()) if n_used >= 3 else NAN for v in (before, after)]
    return Lift(mean, low, high, se, *rates, n_used, n_dropped, reason)


def fit_line(x: ArrayLike, y: ArrayLike) -> Line:
    """Least-squares line through two (n,) arrays, for plots. A constant y is a fine line (slope 0); a constant x has none."""
    x, y, n, n_dropped, _ = _paired(x, y)
    if n < 3 or _constant(x):
        return Line(NAN, NAN, n, n_dropped, f"n = {n} < 3" if n < 3 else "x is constant")
    slope = float((x - x.mean()) @ (y - y.mean()) / ((x - x.mean()) @ (x - x.mean())))
    return Line(slope, float(y.mean() - slope * x.mean()), n, n_dropped, "")


def _paired(x: ArrayLike, y: ArrayLike) -> tuple[np.ndarray, np.ndarray, int, int, np.ndarray]:
    """(x, y) of the complete pairs, their number, the number dropped, and the mask over the input of what was kept."""
    x, y = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    if x.ndim != 1 or x.shape != y.shape:
        raise ValueError(f"need two 1-D arrays of equal length, got shapes {x.shape} and {y.shape}")
    kept = np.isfinite(x) & np.isfinite(y)
    return x[kept], y[kept], int(kept.sum()), int((~kept).sum()), kept


def _constant(values: np.ndarray) -> bool:
    return bool(np.ptp(values) <= REL_TOL * np.abs(values).max())


def _undefined(x: np.ndarray, y: np.ndarray) -> str:
    """Why the correlation of complete pairs is undefined; "" if it is not."""
    constant = [name for name, values in (("x", x), ("y", y)) if len(x) and _constant(values)]
    return f"n = {len(x)} < 3" if len(x) < 3 else f"{' and '.join(constant)} constant" if constant else ""


def _row_spearman(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Spearman along the last axis with average ranks for ties; NaN (exactly: ranks are halves) where a row is constant."""
    x, y = (r - r.mean(axis=-1, keepdims=True) for r in (stats.rankdata(x, axis=-1), stats.rankdata(y, axis=-1)))
    norm = np.sqrt((x**2).sum(axis=-1) * (y**2).sum(axis=-1))
    return np.divide((x * y).sum(axis=-1), norm, out=np.full(np.shape(norm), NAN), where=norm > 0)


def _held_out_operators(x: np.ndarray, folds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(n, n) matrices taking y to the held-out predictions of its line, and to the means of the training folds."""
    mean, slope = np.zeros((2, len(x), len(x)))
    for fold in np.unique(folds):
        test, train = folds == fold, folds != fold
        mean[np.ix_(test, train)] = 1 / train.sum()
        if not _constant(x[train]):
            d = x[train] - x[train].mean()
            slope[np.ix_(test, train)] = np.outer(x[test] - x[train].mean(), d) / (d @ d)
    return mean + slope, mean


def _exact_spearman_p(x: np.ndarray, y: np.ndarray) -> float | None:
    """Exact permutation P(|S| >= |S_obs|), S the inner product of centred ranks; None beyond MAX_EXACT_STATES.

    Deals the tied classes of the more tied side out to the other side's items one by one; for each multiset of classes left it
    keeps the number of ways to reach every S. Doubled centred ranks are integers, so S has no rounding.
    """
    sides = [(2 * stats.rankdata(v) - len(v) - 1).astype(int) for v in (x, y)]
    a, b = sorted(sides, key=lambda v: prod((np.unique(v, return_counts=True)[1] + 1).tolist()))
    classes, counts = (v.tolist() for v in np.unique(a, return_counts=True))
    if prod(c + 1 for c in counts) > MAX_EXACT_STATES:
        return None
    bound = int(np.sort(np.abs(a)) @ np.sort(np.abs(b)))  # no partial S exceeds it, so rolling never wraps
    sums = np.arange(-bound, bound + 1)
    ways = {tuple(counts): (sums == 0).astype(float)}
    for rank in b.tolist():
        reached: dict[tuple[int, ...], np.ndarray] = {}
        for left, count in ways.items():
            for i in np.flatnonzero(left).tolist():
                key = (*left[:i], left[i] - 1, *left[i + 1 :])
                reached[key] = reached.get(key, 0) + np.roll(count, classes[i] * rank)
        ways = reached
    (count,) = ways.values()
    return float(count[np.abs(sums) >= abs(int(a @ b))].sum() / count.sum())
