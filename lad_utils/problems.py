"""Which single problems improve under training: noise ceilings of their gains, and what predictors made beforehand reach.

Three independent base draws of every problem keep noise apart: signals are made from b1; gains of one half of the runs are
after - b2, of the other half after - b3. A base draw on both sides correlates with itself (what b1 failed by bad luck looks
hard, and "gains" over b1), so that coupled number stands beside the clean one and is never used.

The ceiling is the reliability R = corr(gain_A, gain_B) over problems, mean over random halves of the runs; the explained share
of a signal is corr(signal, gain)^2 / R with the gains of the same halves: the share of what is not noise. R bounds squared
correlations and rises with the runs averaged: shares compare across studies, ceilings only at equal numbers of runs.
"""

from collections import namedtuple

import numpy as np
import pandas as pd
from scipy import stats

from lad_utils.energy import SHAPES, bayes_power, fit_beta_prior, tilt_gain, unbiased_power, variance
from lad_utils.params import TRAINERS
from lad_utils.transfer import frozen_kernel

RARE = 0.25  # rarely solved: b1 pass rate at most this. Gains do not use b1, so choosing by it adds no regression to the mean
SPLITS = 20  # random halves of the runs
RESAMPLES = 1000
FOLDS = 10
FEWEST = 10  # problems; below that nothing is reported
TILT = 2 * np.log(2)  # puts the peak of the exponential tilt where that of p(1-p)^2 is, at p = 1/3
MEASURES = ("rho", "coupled_rho", "explained_share", "explained_share_rank", "rho_minus_variance", "share_minus_variance")

Problems = namedtuple("Problems", "signals after draws")  # DataFrames indexed alike by task_id: (n, P), rates (n, M), (n, 3)
Gains = namedtuple("Gains", "a b clean coupled")  # of S halves over b2, over b3, (n, S); of all runs over b2, over b1, (n,)


def after_rates(questions: pd.DataFrame, *, arm: str, runs=None) -> pd.DataFrame:
    """Pass rates after training, a row a problem, a column a run of `arm`; a problem that a run lacks is dropped.

    `questions`: eval_questions (its sampled rows count) or fresh_questions. `runs`: the run_ids that count; None for all.
    """
    if "variant" in questions:
        questions = questions[questions["variant"] == "sampled"].rename(columns={"n_after": "n", "c_after": "c"})
    wanted = questions["run_id"].unique() if runs is None else runs
    mine = questions[questions["run_id"].isin([r for r in wanted if r.startswith(f"{arm}/")]) & (questions["n"] > 0)]
    return mine.assign(rate=mine["c"] / mine["n"]).pivot(index="task_id", columns="run_id", values="rate").dropna()


def deal_runs(run_ids, *, n_splits: int, rng: np.random.Generator, per_half: int | None = None) -> np.ndarray:
    """Random halves A, B of the runs '<arm>/<cohort>/seed<k>', as weights that average them: (n_splits, 2, runs).

    Runs are dealt in turn, cohort after cohort in random order, so seeds of a cohort differ by at most one between the halves,
    which are of equal size (an odd run stays out); `per_half` keeps only so many of each. Where every cohort has one seed, the
    halves hold different cohorts: R is then about cohorts like these. Raises ValueError where runs do not suffice.
    """
    size = len(run_ids) // 2 if per_half is None else per_half
    if not 1 <= size <= len(run_ids) // 2:
        raise ValueError(f"deal_runs: {len(run_ids)} runs make no two halves of {max(size, 1)}")
    cohorts, halves = _cohorts(run_ids), np.zeros((n_splits, 2, len(run_ids)))
    for split in halves:
        order = np.lexsort((rng.random(len(run_ids)), rng.permutation(len(run_ids))[cohorts]))
        for side in (0, 1):
            split[side, order[side::2][:size]] = 1 / size
    return halves


def problem_gains(after, draws, halves) -> Gains:
    """Gains of every problem from rates `after` training (n, M), base rates `draws` b1, b2, b3 (n, 3) and weights `halves`."""
    after, (b1, b2, b3) = np.asarray(after, dtype=float), np.asarray(draws, dtype=float).T
    a, b = (after @ halves[:, side].T - base[:, None] for side, base in ((0, b2), (1, b3)))
    return Gains(a, b, after.mean(axis=1) - b2, after.mean(axis=1) - b1)


def reliability_of(gains: Gains) -> float:
    """The ceiling R: Pearson correlation of the two halves' gains, mean over splits; NaN where some are constant."""
    return _agreement(gains.a, gains.b)


def base_signals(correct, k) -> dict[str, np.ndarray]:
    """What b1 alone, `correct` of `k`, says of each problem, (n,) each: p, 1-p, the shapes of `energy`, the exponential tilt.

    Whole exponents are unbiased (k >= 4), other shapes and the tilt posterior means under a Beta prior fitted to all problems.
    """
    prior, rate = fit_beta_prior(correct, k), np.asarray(correct, dtype=float) / np.asarray(k)
    found = {"pass_rate": rate, "headroom": 1 - rate}
    for name, (a, b) in SHAPES.items():
        whole = a == int(a) and b == int(b)
        found[name] = unbiased_power(correct, k, a, b) if whole else bayes_power(correct, k, a, b, prior=prior)
    return found | {"exponential_tilt": tilt_gain(correct, k, TILT, prior=prior)}


def transfer_energy(correct, k, vectors, tasks: pd.DataFrame, task_vectors) -> pd.DataFrame:
    """p_e(1-p_e) times the mean over trained tasks t of K(e,t) sqrt(p_t(1-p_t)), and with embeddings shuffled among tasks.

    correct, k, vectors: b1 counts and embeddings of questions. `tasks`: a row a place in a trained cohort with task_id,
    correct, k, in the order of `task_vectors`. K as in `transfer`; the shuffled control is the exact mean over all shuffles,
    the control K = 1 is the signal `variance`. Returns columns transfer, transfer_shuffled.
    """
    prior = fit_beta_prior(*tasks.drop_duplicates(["task_id", "correct"])[["correct", "k"]].to_numpy().T)
    spread = bayes_power(tasks["correct"], tasks["k"], 0.5, 0.5, prior=prior)
    kernel, own = frozen_kernel(vectors, task_vectors), variance(correct, k)
    shuffled = kernel.mean(axis=1) * spread.mean()
    return pd.DataFrame({"transfer": own * (kernel @ spread) / len(tasks), "transfer_shuffled": own * shuffled})


def study_problems(
    counts: pd.DataFrame, features: pd.DataFrame, transfer: pd.DataFrame, questions: pd.DataFrame, *, split: str, runs=None
) -> Problems | None:
    """Signals of the problems of `split`, rates after the main arm's runs, base rates; None if no run was evaluated there.

    counts: split, draw, task_id, n, c; features: split, task_id, log_likelihood, larger_n, larger_c; transfer: split, task_id,
    transfer, transfer_shuffled; questions, runs: as `after_rates` takes them. Each other arm of plain GRPO adds a signal
    `gains_of_<arm>`: mean rate after its runs - b1, gains of existing checkpoints over a draw that those to predict do not use.
    """
    after, mine = after_rates(questions, arm="main", runs=runs), counts[counts["split"] == split]
    correct, k = (mine.pivot(index="task_id", columns="draw", values=v).reindex(columns=[1, 2, 3]).dropna() for v in "cn")
    ids = after.index.intersection(correct.index)
    if ids.empty:
        return None
    correct, k = correct.loc[ids], k.loc[ids]
    signals = pd.DataFrame(base_signals(correct[1], k[1]), index=ids)
    told, relevance = (t[t["split"] == split].set_index("task_id").reindex(ids) for t in (features, transfer))
    signals["log_likelihood"] = told["log_likelihood"]
    signals["larger_pass_rate"] = told["larger_c"] / told["larger_n"].where(told["larger_n"] > 0)
    signals["larger_minus_own"] = signals["larger_pass_rate"] - signals["pass_rate"]
    signals[["transfer", "transfer_shuffled"]] = relevance[["transfer", "transfer_shuffled"]]
    for arm in dict.fromkeys(r.split("/")[0] for r in questions["run_id"].unique()):
        if arm not in ("main", "online", "small", *TRAINERS) and len(found := after_rates(questions, arm=arm, runs=runs)):
            signals[f"gains_of_{arm}"] = found.mean(axis=1).reindex(ids) - signals["pass_rate"]
    return Problems(signals.astype(float), after.loc[ids], correct / k)


def subsets(evaluation: Problems | None, fresh: Problems | None) -> dict[str, Problems | None]:
    """All problems of the evaluation, those of them that b1 rarely solved, and the fresh draw of problems."""
    rare = None if evaluation is None else Problems(*(t[evaluation.draws[1] <= RARE] for t in evaluation))
    return {"all": evaluation, "rare": rare, "fresh": fresh}


def combination(signals: pd.DataFrame, gain, *, rng: np.random.Generator) -> np.ndarray:
    """Ridge regression of `gain` (n,) on the standardised signals (n, P), predicted out of fold; NaN below FEWEST problems.

    Folds are over problems, the penalty is chosen within the training folds: no prediction has seen its own problem's gain.
    They err low: of pure noise they correlate a little below 0, for training folds lean away from what the held-out one holds;
    with an intercept they would do so more, so it is left out. Signals that are constant or lack a
    value are left out.
    """
    from sklearn.linear_model import RidgeCV

    x, gain = _standard(signals.to_numpy(dtype=float)), np.asarray(gain, dtype=float)
    x, predicted = x[:, np.isfinite(x).all(axis=0)], np.full(len(gain), np.nan)
    if len(gain) >= FEWEST and x.shape[1]:
        for fold in np.array_split(rng.permutation(len(gain)), FOLDS):
            train = np.setdiff1d(np.arange(len(gain)), fold)
            predicted[fold] = x[fold] @ RidgeCV(alphas=np.logspace(-1, 4, 11)).fit(x[train], gain[train]).coef_
    return predicted


def with_combination(problems: Problems, *, rng: np.random.Generator) -> Problems:
    """`problems` with the signal `combination`: of all signals but other runs' gains, against all runs - mean of b2 and b3."""
    signals, gain = problems.signals, problems.after.mean(axis=1) - problems.draws[[2, 3]].mean(axis=1)
    known = [s for s in signals if not s.startswith("gains_of_")]
    predicted = signals[known].assign(combination=combination(signals[known], gain, rng=rng))
    return problems._replace(signals=predicted.join(signals.drop(columns=known)))


def predictor_table(signals: pd.DataFrame, gains: Gains, *, rng: np.random.Generator, n_resamples: int) -> pd.DataFrame:
    """How every signal correlates with gains: columns name, measure, value, low, high, n, reason (if undefined, else "").

    Measures: rho and coupled_rho, Spearman with the gains of all runs over b2, and over b1; explained_share, see the module
    (Pearson), and explained_share_rank, the same on ranks (approximate); rho_minus_variance and share_minus_variance, |rho| and
    share less those of p(1-p). Even pure noise has a share of about 1/(nR). low, high: 95% percentile interval over problems
    and splits drawn with replacement, for these runs and for the combination's predictions as fitted. Signs are the whole
    sample's, of `combination` positive, since a fitted prediction has a direction: what has the other sign counts as negative,
    so a share whose interval reaches 0 shows nothing. A resample with R <= 0 counts as infinite (no upper end).
    """
    x, reference = signals.to_numpy(dtype=float), list(signals).index("variance")
    missing, constant = np.isnan(x).sum(axis=0), len(x) > 0 and np.ptp(x, axis=0) == 0
    why = np.where(missing, [f"missing for {m} of {len(x)} problems" for m in missing], np.where(constant, "constant", ""))
    if len(x) >= FEWEST:
        signs = _measures(x, gains, reference)[1]
        signs[:, np.array(list(signals)) == "combination"] = 1

    def measure(rows, splits):
        return _measures(x[rows], _resampled(gains, rows, splits), reference, signs)[0].T.ravel()

    table = _bootstrapped(measure, *gains.a.shape, [""] * x.shape[1] * len(MEASURES), rng=rng, n_resamples=n_resamples)
    table.insert(0, "name", np.repeat(list(signals), len(MEASURES)))
    table.insert(1, "measure", list(MEASURES) * x.shape[1])
    why = np.repeat(why, len(MEASURES)) if len(x) >= FEWEST else ""
    return table.assign(reason=np.where(table["value"].isna() & (why != ""), why, table["reason"]))


def ceiling_table(after: pd.DataFrame, draws, halves, *, rng: np.random.Generator, n_resamples: int) -> pd.DataFrame:
    """Reliability R of gains by how many runs they average: columns name, value, low, high, n, reason, as in predictor_table.

    ceiling, ceiling_rank: of the halves, the R of the shares. ceiling_one_run, ceiling_one_run_same_cohort: of single runs of
    two cohorts, of one cohort, mean over pairs. ceiling_all_runs: of all runs over one draw, cov(gain_A, gain_B) / variance.
    after: (n, M), columns run_ids.
    """
    rates, base, cohorts = after.to_numpy(), np.asarray(draws, dtype=float), _cohorts(after.columns)
    same = cohorts[:, None] == cohorts
    other, twin = ~same, same & ~np.eye(len(same), dtype=bool)

    def measure(rows, splits):
        now, gains = rates[rows], _resampled(problem_gains(rates[rows], base[rows], halves), slice(None), splits)
        one, two = (_standard(now - base[rows, i : i + 1]) for i in (1, 2))
        each = one.T @ two / len(rows)
        pairs = [each[mask].mean() if mask.any() else np.nan for mask in (other, twin)]
        covariance = np.mean((gains.a - gains.a.mean(axis=0)) * (gains.b - gains.b.mean(axis=0)))
        spread = np.mean([np.var(now.mean(axis=1) - base[rows, i]) for i in (1, 2)])
        ranked = _agreement(_ranks(gains.a), _ranks(gains.b))
        return np.array([_agreement(gains.a, gains.b), ranked, *pairs, covariance / spread if spread else np.nan])

    lacking = ["", "", "" if other.any() else "one cohort only", "" if twin.any() else "no cohort has two runs", ""]
    table = _bootstrapped(measure, len(rates), len(halves), lacking, rng=rng, n_resamples=n_resamples)
    table.insert(0, "name", ["ceiling", *(f"ceiling_{k}" for k in ("rank", "one_run", "one_run_same_cohort", "all_runs"))])
    return table


def between_bases(first: Problems, second: Problems, *, rng: np.random.Generator, n_resamples: int) -> pd.DataFrame:
    """Do the same problems gain whichever base model is trained? Columns name, value, low, high, n, reason.

    ceiling: correlation of the gains of one base's runs with the other's on shared problems, each over its own base draws, as
    many runs a half on either side. within_first, within_second: the ceilings within one base at that number of runs.
    over_within: ceiling / sqrt(within_first within_second), 1 where noise alone tells the bases apart.
    """
    ids, size = first.after.index.intersection(second.after.index), min(p.after.shape[1] // 2 for p in (first, second))
    dealt = [deal_runs(p.after.columns, n_splits=SPLITS, rng=rng, per_half=size) for p in (first, second)]
    gains = [problem_gains(p.after.loc[ids], p.draws.loc[ids], d) for p, d in zip((first, second), dealt, strict=True)]

    def measure(rows, splits):
        (a1, b1, *_), (a2, b2, *_) = (_resampled(g, rows, splits) for g in gains)
        across = np.mean([_agreement(x, y) for x in (a1, b1) for y in (a2, b2)])
        within = _agreement(a1, b1), _agreement(a2, b2)
        return np.array([across, *within, across / np.sqrt(np.prod(within)) if min(within) > 0 else np.nan])

    table = _bootstrapped(measure, len(ids), SPLITS, [""] * 4, rng=rng, n_resamples=n_resamples)
    table.insert(0, "name", ["ceiling", "within_first", "within_second", "over_within"])
    return table


def _cohorts(run_ids) -> np.ndarray:
    """The number of each run's cohort, from run_ids '<arm>/<cohort>/seed<k>'."""
    return pd.factorize(pd.Series([r.rsplit("/", 1)[0] for r in run_ids]))[0]


def _ranks(values: np.ndarray) -> np.ndarray:
    """Average ranks down each column. Gains are sums of rates: rounded, equal ones tie on every machine."""
    return stats.rankdata(np.round(values, 9), axis=0)


def _standard(values: np.ndarray) -> np.ndarray:
    """Columns with mean 0 and variance 1; NaN where constant or where a value is missing."""
    centred = values - values.mean(axis=0)
    return centred / np.where(np.ptp(values, axis=0) <= 1e-12, np.nan, np.sqrt((centred**2).mean(axis=0)))


def _agreement(a: np.ndarray, b: np.ndarray) -> float:
    """Mean over splits of the correlation of the halves' gains, both (n, S)."""
    return float((_standard(a) * _standard(b)).mean(axis=0).mean())


def _resampled(gains: Gains, rows, splits) -> Gains:
    return Gains(gains.a[rows][:, splits], gains.b[rows][:, splits], gains.clean[rows], gains.coupled[rows])


def _measures(x: np.ndarray, gains: Gains, reference: int, signs=None) -> tuple[np.ndarray, np.ndarray]:
    """MEASURES of the signals x (n, P), shape (MEASURES, P), and the signs of rho and of the two correlations with halves."""
    ranks, ranked = _ranks(x), Gains(*map(_ranks, gains))
    rho, coupled = (_standard(ranks).T @ _standard(np.stack(ranked[2:], axis=1)) / len(x)).T
    values, shares = (_shares(x, gains), _shares(ranks, ranked))
    signs = np.sign([rho, values[0], shares[0]]) if signs is None else signs
    rho_signed, share, rank_share = signs[0] * rho, signs[1] * values[1], signs[2] * shares[1]
    with np.errstate(invalid="ignore"):  # infinite shares less one another
        minus = rho_signed - rho_signed[reference], share - share[reference]
    return np.array([rho, coupled, share, rank_share, *minus]), signs


def _shares(x: np.ndarray, gains: Gains) -> tuple[np.ndarray, np.ndarray]:
    """Correlations r of the signals with halves' gains, mean over both halves and all splits, and r|r| / R; (P,) each."""
    r = (_standard(x).T @ (_standard(gains.a) + _standard(gains.b))).mean(axis=1) / (2 * len(x))
    ceiling = _agreement(gains.a, gains.b)
    with np.errstate(invalid="ignore"):
        return r, r * np.abs(r) * (1 / ceiling if ceiling > 0 else np.inf)


def _bootstrapped(measure, n: int, n_splits: int, lacking: list[str], *, rng, n_resamples: int) -> pd.DataFrame:
    """value, low, high, n, reason of each number of measure(rows, splits); `lacking`: why some are undefined, else "".

    An infinite value or end is NaN; a resample where a number is undefined does not count for it.
    """
    table = pd.DataFrame({"value": np.nan, "low": np.nan, "high": np.nan, "n": n, "reason": lacking})
    if n < FEWEST:
        return table.assign(reason=f"{n} problems, at least {FEWEST} are needed")
    table["value"] = measure(np.arange(n), np.arange(n_splits))
    drawn = [measure(rng.integers(0, n, n), rng.integers(0, n_splits, n_splits)) for _ in range(n_resamples)]
    for i, column in enumerate(np.transpose(drawn)):
        if np.isfinite(table["value"][i]) and (defined := column[~np.isnan(column)]).size:
            table.loc[i, ["low", "high"]] = np.quantile(defined, [0.025, 0.975], method="nearest")
    table = table.replace([np.inf, -np.inf], np.nan)
    unclear = table["value"].isna() & (table["reason"] == "")
    return table.assign(reason=table["reason"].mask(unclear, "halves do not agree, or gains are constant"))
