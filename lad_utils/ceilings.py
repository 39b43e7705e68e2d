"""Noise ceilings of cohort lifts by REML, by halves of seeds, and by halves of seeds and questions; the share explained.

Model: run s of cohort c has the lift y_cs = mu + u_c + e_cs, with SD s_u between cohorts, s_e between runs. A mean over S runs
has the reliability R = s_u^2 / (s_u^2 + s_e^2 / S); a metric that knew every u_c would correlate sqrt(R), the ceiling, with it.
S is the harmonic mean of the cohorts' runs where they differ. All cohorts answer the same questions, so there are two R:

* the same questions again, new runs: a cohort's luck with the questions recurs from seed to seed and counts as u_c;
* new questions as well: that luck, cohort x question over the number of questions, is noise. This is the ceiling of a metric
  that has not seen the questions; it lies below the other but for chance.
"""

import warnings
from collections import namedtuple

import numpy as np
import pandas as pd
from numpy.random import Generator
from scipy import optimize, special, stats
from statsmodels.regression.mixed_linear_model import MixedLM

from lad_utils.cohorts import CONTROLS
from lad_utils.stats import NAN, REL_TOL, SeedReliability, bonett_wright_interval
from lad_utils.validation import entry, valid

Reliability = namedtuple(
    "Reliability", "reliability reliability_low reliability_high ceiling ceiling_low ceiling_high n n_seeds n_dropped reason"
)
Explained = namedtuple("Explained", "rho low high share share_low share_high n reason")
PairedReliability = namedtuple("PairedReliability", "same_questions new_questions")
SPLITS = 200


def reml_reliability(table: pd.DataFrame, *, level: float = 0.95) -> SeedReliability:
    """s_u, s_e, R and the ceiling by REML (statsmodels' MixedLM), from one row a run: cohort, lift. Cohorts may differ in runs.

    R's interval is exact under the normal model, balanced or not: with w_c = S_c / (1 + S_c s_u^2/s_e^2), the statistic
    sum w_c (ybar_c - ybar_w)^2 / ((n-1) MSE) falls in the ratio and is F with n-1, N-n df at the true one (Wald 1940, Annals of
    Mathematical Statistics 11). Balanced it is stats.seed_reliability's, as R is where MSB >= MSE. `n_dropped`: rows without a
    lift. Where the REML score at s_u = 0 is not positive, R = 0 with a reason; no convergence is NaN with MixedLM's own words.
    """
    used = table[np.isfinite(table["lift"])]
    code, y = pd.factorize(used["cohort"])[0], used["lift"].to_numpy(dtype=float)
    sizes = np.bincount(code)
    n, total, n_dropped, s = len(sizes), len(y), len(table) - len(used), len(sizes) / max((1 / sizes).sum(), 1e-300)
    if n < 3 or total == n or np.ptp(y) <= REL_TOL * np.abs(y).max():
        return SeedReliability(*[NAN] * 8, n, s, n_dropped, "fewer than 3 cohorts, none with 2 runs, or all lifts are equal")
    scale = y.std(ddof=1)
    z = (y - y.mean()) / scale  # lifts are shares of about .1: MixedLM's optimisers want unit variance
    means = np.bincount(code, z) / sizes
    mse = float(((z - means[code]) ** 2).sum() / (total - n))
    if mse <= REL_TOL:
        reason = "runs of a cohort never differ (were seeds varied?): no interval"
        return SeedReliability(float(scale * means.std(ddof=1)), 0.0, 1.0, NAN, NAN, 1.0, NAN, NAN, n, s, n_dropped, reason)
    ends = [_wald_limit(means, sizes, mse, s, tail) for tail in ((1 + level) / 2, (1 - level) / 2)]
    # the score of the REML likelihood at s_u = 0, where MixedLM itself stops short of the maximum and warns
    if ((sizes * means) ** 2).sum() <= total - (sizes**2).sum() / total:
        s_u, s_e, reason = 0.0, scale, "cohorts differ no more than runs do: REML puts s_u at its boundary, 0"
    else:
        s_u, s_e, reason = _mixed_model(z, code)
        s_u, s_e = scale * s_u, scale * s_e
    r = np.array([s_u**2 / (s_u**2 + s_e**2 / s), *ends])
    return SeedReliability(float(s_u), float(s_e), *r.tolist(), *np.sqrt(r).tolist(), n, s, n_dropped, reason)


def _mixed_model(z: np.ndarray, code: np.ndarray) -> tuple[float, float, str]:
    with warnings.catch_warnings(record=True) as said:  # retries are MixedLM's business: what counts is how it ended
        warnings.simplefilter("always")
        try:
            fit = MixedLM(z, np.ones((len(z), 1)), groups=code).fit(reml=True)
        except np.linalg.LinAlgError as error:
            return NAN, NAN, f"MixedLM: {error}"
    if not fit.converged:
        return NAN, NAN, f"MixedLM did not converge: {said[-1].message}"
    return float(np.sqrt(max(np.asarray(fit.cov_re)[0, 0], 0))), float(np.sqrt(fit.scale)), ""


def _wald_limit(means: np.ndarray, sizes: np.ndarray, mse: float, s: float, tail: float) -> float:
    """The R at which Wald's statistic is the `tail` quantile of F; 0 where it lies below that even at R = 0."""
    n, target = len(sizes), stats.f.ppf(tail, len(sizes) - 1, sizes.sum() - len(sizes))

    def excess(r):
        w = sizes * (1 - r) / (1 - r + sizes * r / s)
        return (w * (means - (w @ means) / max(w.sum(), 1e-300)) ** 2).sum() / ((n - 1) * mse) - target

    return 0.0 if excess(0.0) <= 0 else float(optimize.brentq(excess, 0.0, 1.0, xtol=1e-12))


def split_half_reliability(table: pd.DataFrame, *, rng: Generator, n_splits: int = SPLITS, level: float = 0.95) -> Reliability:
    """R by split halves, from one row a run (cohort, lift): Pearson over cohorts of half means, averaged over random splits,
    stepped up to S runs by Spearman-Brown, R = k r / (1 + (k-1) r), k = S / h.

    Each half holds h = floor(smallest S_c / 2) runs of every cohort, drawn for each cohort anew: a seed's number means nothing
    across cohorts. Cohorts with one run are dropped and counted. R < 0 is truncated, with a reason. Interval: see _jackknife.
    """
    table = table[np.isfinite(table["lift"])]
    rates = table["lift"].to_numpy()[:, None]
    return paired_reliability(rates, table["cohort"], rng=rng, n_splits=n_splits, level=level).same_questions


def paired_reliability(
    rates: np.ndarray, cohorts, *, rng: Generator, n_splits: int = SPLITS, level: float = 0.95
) -> PairedReliability:
    """R of cohort means for the same questions again and for new ones, from halves of seeds and of questions at once.

    rates: (runs, questions), each question's lift; cohorts: (runs,). Halves of h runs and of g questions out of Q (random, see
    split_half_reliability) make four means a cohort. Over cohorts these correlate r_b (nothing shared), r_q (questions shared),
    r_s (runs shared). With a = g/Q, b = h/S the full mean has the variance, in those of a quarter,
    V = (1-a)(1-b) r_b + a(1-b) r_q + (1-a)b r_s + ab. New questions: R = r_b / V. The same: R = ((1-a) r_b + a r_q) / V.
    This is Spearman-Brown for two facets (Brennan 2001, Generalizability Theory, ch. 4); on r_b alone it would not do, since
    doubling both halves quarters the residual. R outside [0, 1] is truncated; intervals: see _jackknife. Questions that stretch
    the lifts of all cohorts alike cost no correlation: this forgives them, variance_components counts them.
    """
    rates, code = np.asarray(rates, dtype=float), pd.factorize(np.asarray(cohorts))[0]
    kept = np.bincount(code)[code] > 1
    n_dropped, rates, code = len(set(code[~kept])), rates[kept], pd.factorize(code[kept])[0]
    sizes, n_questions = np.bincount(code), rates.shape[1]
    n, s = len(sizes), float(len(sizes) / (1 / sizes).sum()) if len(sizes) else NAN
    if n < 3:
        return PairedReliability(*[Reliability(*[NAN] * 6, n, s, n_dropped, "fewer than 3 cohorts with 2 runs")] * 2)
    h, g = sizes.min() // 2, max(n_questions // 2, 1)
    # runs in random order, cohort by cohort: the first h of a cohort make one half, the next h the other
    order = np.argsort(rng.random((n_splits, len(code))) + code, axis=1)
    first = (np.cumsum(sizes) - sizes)[:, None] + np.arange(h)
    halves = [order[:, (first + j * h).ravel()] for j in (0, 1)]
    asked = np.argsort(rng.random((n_splits, n_questions)), axis=1)
    cells = np.empty((2, 2, n_splits, n))  # seed half, question half
    for j, half in enumerate((asked[:, :g], asked[:, -g:])):
        mask = np.zeros((n_splits, n_questions))
        np.put_along_axis(mask, half, 1 / g, axis=1)
        means = mask @ rates.T
        for i in (0, 1):
            cells[i, j] = np.take_along_axis(means, halves[i], axis=1).reshape(n_splits, n, h).mean(-1)
    a, b = (g / n_questions if n_questions > 1 else 1.0), h / s
    (m00, m01), (m10, m11) = (cells - cells.mean()) / max(cells.std(), 1e-300)
    pairs = [((m00, m11), (m01, m10)), ((m00, m10), (m01, m11)), ((m00, m01), (m10, m11))]  # of r_b, r_q, r_s

    def both(weights):
        r_b, r_q, r_s = (sum(_correlation(weights, x, y) for x, y in two) / 2 for two in pairs)
        full = (1 - a) * (1 - b) * r_b + a * (1 - b) * r_q + (1 - a) * b * r_s + a * b
        return np.array([(1 - a) * r_b + a * r_q, r_b]) / np.where(full > 0, full, np.nan)

    same, new = [
        Reliability(*found[:3], *np.sqrt(found[:3]), n, s, n_dropped, found[3]) for found in _jackknife(both, n, level)
    ]
    if n_questions == 1:
        new = Reliability(*[NAN] * 6, n, s, n_dropped, "one question only: nothing to split")
    return PairedReliability(same, new)


def _correlation(weights: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Pearson over cohorts for each row of weights (B, n), averaged over splits; x, y: (splits, n). NaN if constant."""
    w = weights / weights.sum(axis=1, keepdims=True)
    mx, my = w @ x.T, w @ y.T
    vx, vy = w @ (x**2).T - mx**2, w @ (y**2).T - my**2
    with np.errstate(divide="ignore", invalid="ignore"):
        r = np.where((vx > REL_TOL) & (vy > REL_TOL), (w @ (x * y).T - mx * my) / np.sqrt(vx * vy), np.nan)
    return r.mean(axis=1)


def _jackknife(statistic, n: int, level: float) -> list[tuple[float, float, float, str]]:
    """(R, low, high, reason) for each row of statistic(weights (B, n)) -> (m, B), within [0, 1].

    Jackknife over cohorts of log(1 - R), whose spread hardly hangs on R (Feldt 1965, Psychometrika 30), with Student's t at n-1
    df. A bootstrap over cohorts covered less at n = 19; the tests simulate the coverage of this one.
    """
    values, found = statistic(np.ones((1, n)))[:, 0].round(12), []  # a 1 but for rounding is 1
    with np.errstate(divide="ignore", invalid="ignore"):
        logs, without = np.log1p(-values), np.log1p(-statistic(1 - np.eye(n)).round(12))
        spread = np.sqrt((n - 1) / n * ((without - without.mean(axis=1, keepdims=True)) ** 2).sum(axis=1))
    for value, log, se in zip(values, logs, spread, strict=True):
        ends = -np.expm1(log + stats.t.ppf((1 + level) / 2, n - 1) * se * np.array([1, -1]))
        reason = "" if np.isfinite(ends).all() else "no interval: R, with all cohorts or with all but one, is undefined or 1"
        reason = "halves disagree: R truncated at 0" if value < 0 else reason
        found.append((*np.clip([value, *ends], 0, 1).tolist(), reason))
    return found


def question_rates(questions: pd.DataFrame, runs: pd.DataFrame, *, variant: str = "sampled") -> tuple[np.ndarray, np.ndarray]:
    """(lift, rollout variance) of every question in every run, both (runs, questions), rows in the order of `runs` (run_id).

    Variance: p^(1-p^)/(n-1) after training, unbiased; NaN where n = 1. That of rollouts before training is added only if runs
    have their own: shared ones shift all lifts alike. Raises ValueError unless each run has rollouts of every question.
    """
    mine = questions[(questions["variant"] == variant) & questions["run_id"].isin(runs["run_id"])]
    wide = mine.pivot(index="run_id", columns="task_id", values=["c_before", "n_before", "c_after", "n_after"]).reindex(
        runs["run_id"]
    )
    c_before, n_before, c_after, n_after = (wide[name].to_numpy(dtype=float) for name in wide.columns.unique(0))
    if not ((n_before > 0) & (n_after > 0)).all():
        raise ValueError("question_rates: every run must have rollouts of every question, before and after")
    before, after = c_before / n_before, c_after / n_after
    with np.errstate(divide="ignore", invalid="ignore"):
        noise = after * (1 - after) / np.where(n_after > 1, n_after - 1, np.nan)
        if (np.ptp(c_before, axis=0) > 0).any() or (np.ptp(n_before, axis=0) > 0).any():
            noise = noise + before * (1 - before) / np.where(n_before > 1, n_before - 1, np.nan)
    return after - before, noise


def variance_components(rates: np.ndarray, noise: np.ndarray, cohorts) -> pd.DataFrame:
    """Unbiased variance components of a question's lift in a run, and what each adds to the variance of a cohort's mean.

    rates, noise: as question_rates gives them; cohorts: (runs,). Cohorts and questions cross; runs, nested in cohorts, may
    differ in number; cohorts weigh alike. Rows: cohort, cohort_question, seed, seed_question, rollout, and question, which
    moves all cohorts alike and adds nothing. Columns: component, variance (as it falls: below 0 is no sign of that component),
    in_mean, reason. Moments: Searle, Casella & McCulloch (1992), Variance Components, ch. 4. Raises ValueError if too few.
    """
    rates, code = np.asarray(rates, dtype=float), pd.factorize(np.asarray(cohorts))[0]
    sizes, n_questions = np.bincount(code), rates.shape[1]
    n, spare = len(sizes), len(code) - len(sizes)
    if n < 2 or spare < 1 or n_questions < 2:
        raise ValueError("variance_components: needs 2 cohorts, 2 questions, and 2 runs of some cohort")
    cells = np.stack([rates[code == c].mean(axis=0) for c in range(n)])
    within = rates - cells[code]
    run_means = within.mean(axis=1)
    residual = ((within - run_means[:, None]) ** 2).sum() / (spare * (n_questions - 1))
    seed = ((run_means**2).sum() / spare) - residual / n_questions
    means, by_question, inverse = cells.mean(axis=1), cells.mean(axis=0), (1 / sizes).mean()
    crossed = cells - means[:, None] - by_question + cells.mean()
    crossed = (crossed**2).sum() / ((n - 1) * (n_questions - 1))
    rollout = float(np.mean(noise))
    rows = [
        ("cohort", means.var(ddof=1) - crossed / n_questions - seed * inverse, 1.0),
        ("cohort_question", crossed - residual * inverse, 1 / n_questions),
        ("seed", seed, inverse),
        ("seed_question", residual - np.nan_to_num(rollout), inverse / n_questions),
        ("rollout", rollout, inverse / n_questions),
        ("question", by_question.var(ddof=1) - crossed / n, 0.0),
    ]
    table = pd.DataFrame(rows, columns=["component", "variance", "in_mean"])
    reason = np.where(np.isfinite(table["variance"]), "", "one rollout a question: part of seed_question")
    return table.assign(in_mean=table["variance"] * table["in_mean"], reason=reason)


def explained(rho: float, n: int, reliability, *, rank: bool = True, level: float = 0.95) -> Explained:
    """A metric's correlation with lifts free of noise, rho / sqrt(R), and the share of the explainable it explains, rho^2 / R.

    `reliability`: of the means that rho was measured on, by any function here. Pearson algebra (Spearman 1904), approximate for
    a rank correlation (`rank`). The intervals of rho (Fisher's, or Bonett-Wright's) and of sqrt(R), taken as independent,
    combine by MOVER for a ratio (Donner & Zou 2012, Statistical Methods in Medical Research 21). Nothing is capped at 1. The
    share's interval squares the other's, from 0 where that holds 0. Where R's starts at 0 there is none, with a reason.
    """
    r = float(reliability.reliability)
    if not (np.isfinite(rho) and r > 0):
        return Explained(*[NAN] * 6, n, f"rho is undefined, or R is not above 0 {reliability.reason}".strip())
    value, top = abs(rho), np.sqrt(r)
    bottom, roof = np.sqrt([reliability.reliability_low, reliability.reliability_high])
    if rank:
        low, high, reason = bonett_wright_interval(value, n, level=level)
    else:
        reason = "" if value <= 1 - REL_TOL and n >= 4 else "no interval of rho unless n >= 4 and |rho| < 1"
        half = NAN if reason else special.ndtri((1 + level) / 2) / np.sqrt(n - 3)
        low, high = np.tanh(np.arctanh(min(value, 1 - REL_TOL)) + half * np.array([-1, 1]))
    if not (bottom > 0 and np.isfinite(roof)):
        reason = reason or f"the interval of R starts at 0 or is undefined: none of the ratio {reliability.reason}".strip()
    if reason:
        return Explained(rho / top, NAN, NAN, value**2 / r, NAN, NAN, n, reason)
    # limits L < value/top < U: |value - L top|^2 = (value - low)^2 + L^2 (roof - top)^2, with `bottom` for `roof` where L < 0
    (a, b), cross = [(v * (2 * top - v)) for v in (roof if low > 0 else bottom, bottom)], value * top
    c, d = low * (2 * value - low), high * (2 * value - high)
    low, high = c / (cross + np.sqrt(cross**2 - a * c)), (cross + np.sqrt(cross**2 - b * d)) / b
    share = (max(low, 0.0) ** 2, max(high, -low) ** 2)
    return Explained(rho / top, *((low, high) if rho >= 0 else (-high, -low)), value**2 / r, *share, n, "")


def noise_ceiling_entries(
    lifts: pd.DataFrame,
    questions: pd.DataFrame,
    rhos: dict[str, tuple[float, int]],
    *,
    arm: str,
    rng: Generator,
    variant: str = "sampled",
) -> list[dict]:
    """Entries `ceiling.<arm>.*` (or `ceiling.<arm>.greedy.*`): reliabilities, variances, shares. Valid runs, controls left out.

    `rhos`: Spearman with the cohorts' mean lifts and its n, by metric; each read against REML's R and that for new questions.
    """
    runs = valid(lifts[(lifts["arm"] == arm) & (lifts["variant"] == variant) & ~lifts["cohort"].isin(CONTROLS)])
    entries, n_runs, prefix = [], len(runs), f"ceiling.{arm}" + ("" if variant == "sampled" else f".{variant}")

    def add(name, value, low=None, high=None, *, n=n_runs, **why):
        source = "lifts.parquet, eval_questions.parquet"
        entries.append(entry(f"{prefix}.{name}", value, low=low, high=high, n=n, source=source, **why))

    if runs["cohort"].nunique() < 3 or not runs["cohort"].duplicated().any():
        for name in ("reml.reliability", "reml.ceiling", "sd_between_cohorts", "sd_between_seeds"):
            add(name, NAN, reason="fewer than 3 cohorts, or none with 2 valid runs", note="n runs")
        return entries
    rates, noise = question_rates(questions, runs, variant=variant)
    reml, split = reml_reliability(runs), split_half_reliability(runs, rng=rng)
    found = {"reml": reml, "split_half": split} | paired_reliability(rates, runs["cohort"], rng=rng)._asdict()
    for name, r in found.items():
        args = {"n": r.n, "reason": r.reason, "note": f"mean of {r.n_seeds:.3g} seeds, {r.n_dropped} dropped"}
        add(f"{name}.reliability", r.reliability, r.reliability_low, r.reliability_high, **args)
        add(f"{name}.ceiling", r.ceiling, r.ceiling_low, r.ceiling_high, **args)
    for name, sd in (("cohorts", reml.s_u), ("seeds", reml.s_e)):
        add(f"sd_between_{name}", sd, n=reml.n, reason=reml.reason, note="REML")
    for row in variance_components(rates, noise, runs["cohort"]).itertuples():
        add(f"variance.{row.component}", row.in_mean, reason=row.reason, note="in the variance of a cohort's mean; n runs")
    for metric, (rho, n_cohorts) in rhos.items():
        for name in ("reml", "new_questions"):
            e = explained(rho, n_cohorts, found[name])
            args = {"n": e.n, "reason": e.reason, "note": "approximate: Pearson algebra on rank correlations"}
            add(f"{name}.{metric}.disattenuated", e.rho, e.low, e.high, **args)
            add(f"{name}.{metric}.explained_share", e.share, e.share_low, e.share_high, **args)
    return entries
