"""How few rollouts rank cohorts: replays of a study's stored rollouts, priors compared, and calibration with known pass rates.

    python benchmarks/adaptive.py [replay | priors | calibration | all] [study folder] [repetitions]

By default all three, on outputs/reference/micro, with 50 repetitions. They run on its designed cohorts (arm `main`), on its
mixtures (arm `mixture`, if it has them) and on 48 mixtures drawn here from the items of `main`: they overlap and lie close.

replay       the curve of every method, and the rollouts each needs for .95, .98 and .99 of what all stored rollouts reach, by
             the ranking of all of them and ("clean") by halves that share none.
priors       error and rank agreement of cohort scores from k rollouts on every task, replayed from one half, against unbiased
             scores of the other: the prior of the pool (Beta, or on a grid), of each cohort (Beta, or on a grid: what adaptive
             ranking uses), and none (unbiased). "all" is the other half's own noise.
calibration  pass rates drawn around the stored ones, then known: at each confidence, where adaptive ranking stops, how often
             its order is right (up to its width), how many 90% intervals hold, and the mean error as a share of the mean score.
"""

import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import binom, norm

from lad_utils import adaptive, reliability
from lad_utils.energy import empirical_bayes_energy, fit_beta_prior, unbiased_energy


def studied(folder: Path) -> dict[str, tuple]:
    """(correct, k, weights, diversity) by name."""
    tables = [pd.read_parquet(folder / f"{name}.parquet") for name in ("judgements", "cohorts", "scores")]
    found = {
        arm: reliability.cohort_items(*tables, arm=arm)[1:] for arm in ("main", "mixture") if (tables[1]["arm"] == arm).any()
    }
    return found | {"drawn mixtures": drawn_mixtures(*found["main"], n_cohorts=48, rng=np.random.default_rng(0))}


def drawn_mixtures(correct, k, weights, diversity, *, n_cohorts: int, size: int = 256, rng: np.random.Generator) -> tuple:
    """Cohorts of `size` places whose sources, the cohorts given, are mixed by Dirichlet weights; some places are copies."""
    sources = np.flatnonzero((weights > 0).sum(axis=1) == size)
    out, spread = np.zeros((n_cohorts, len(correct))), np.empty(n_cohorts)
    for row in range(n_cohorts):
        shares = rng.multinomial(size, rng.dirichlet(np.full(len(sources), 0.5)))
        items = np.concatenate([rng.permutation(np.flatnonzero(weights[s]))[:n] for s, n in zip(sources, shares, strict=True)])
        items = np.unique(items)
        items = rng.permutation(items)[: max(32, int(len(items) * (1 - 0.8 * rng.beta(1, 3))))]
        out[row] = np.bincount(np.concatenate([items, rng.choice(items, size - len(items))]), minlength=len(correct)) / size
        spread[row] = np.median(diversity) * (len(items) / size) ** 0.2
    used = out.any(axis=0)
    return correct[used], k[used], out[:, used], spread


def replay(correct, k, weights, diversity, *, repetitions: int) -> None:
    for clean in (False, True):
        started = time.process_time()
        curve = adaptive.replay_curve(
            correct, int(k[0]), weights, diversity, clean=clean, n_replays=repetitions, rng=np.random.default_rng(0)
        )
        print(f"\n{'clean' if clean else 'by all rollouts'}, {time.process_time() - started:.0f} s of CPU")
        print(curve.drop(columns=["n_replays", "n_cohorts"]).round(4).to_string(index=False))
        print(adaptive.rollouts_needed(curve).round(3).to_string(index=False))


def priors(correct, k, weights, diversity, *, repetitions: int) -> None:
    rng, half, rows = np.random.default_rng(0), int(k[0]) // 2, []
    for _ in range(repetitions // 2):
        stored = rng.hypergeometric(correct, k - correct, half)
        truth = diversity * (weights @ unbiased_energy(correct - stored, k - half))
        found = {("all", half): diversity * (weights @ unbiased_energy(stored, half))}
        for few in (2, 3, 4, 8):
            c = rng.hypergeometric(stored, half - stored, few)
            pool, m = fit_beta_prior(c, few), np.full(len(c), few)
            own = np.empty(len(weights))
            for i, row in enumerate(weights):
                mine = row > 0
                try:
                    prior = fit_beta_prior(c[mine], few)
                except ValueError:  # no success or only successes among its tasks
                    prior = pool
                own[i] = row[mine] @ empirical_bayes_energy(c[mine], few, prior=prior)
            likelihood = binom.pmf(np.arange(few + 1)[:, None], few, adaptive.P)
            counts, flat = np.bincount(c, minlength=few + 1)[None], np.full(len(adaptive.P), 1 / len(adaptive.P))
            grid = adaptive._fit_prior(counts, likelihood, base=flat, shape_tasks=0)[0]
            energy = likelihood @ (grid * adaptive.ENERGY) / (likelihood @ grid)
            found |= {
                ("Beta, pool", few): diversity * (weights @ empirical_bayes_energy(c, few, prior=pool)),
                ("grid, pool", few): diversity * (weights @ energy[c]),
                ("Beta, cohort", few): diversity * own,
                ("grid, cohort", few): adaptive.cohort_posterior(c, m, weights, diversity).score,
            }
            if few >= 3:
                found["unbiased", few] = diversity * (weights @ unbiased_energy(c, few))
        for (name, few), score in found.items():
            error = np.sqrt(np.mean((score - truth) ** 2)) / truth.mean()
            rows.append((name, few, error, adaptive.agreement(score, truth)[0]))
    table = pd.DataFrame(rows, columns=["prior", "k", "relative rmse", "spearman"])
    print(table.pivot_table(index="prior", columns="k", values=["relative rmse", "spearman"], sort=False).round(3).to_string())


def calibration(correct, k, weights, diversity, *, repetitions: int) -> None:
    rng, rows = np.random.default_rng(0), []
    none, limit = np.zeros(len(correct), dtype=int), {"k_start": 4, "max_k": 32, "budget": 32 * len(correct)}
    for _ in range(repetitions):
        p = rng.beta(correct + 0.5, k - correct + 0.5)
        true = diversity * (weights @ (p * (1 - p) ** 2))

        def draw(items, counts, p=p):
            return rng.binomial(counts, p[items])

        waiting = [0.8, 0.9, 0.95]
        for now in adaptive.adaptive_rounds(
            draw, weights, diversity, correct=none, k=none, indifference=adaptive.INDIFFERENCE, rng=rng, **limit
        ):
            score, sd = now.posterior.score, np.sqrt(np.diag(now.posterior.covariance))
            inside, bias = (np.abs(score - true) < norm.ppf(0.95) * sd).mean(), (score - true).mean() / true.mean()
            ranked = true[np.argsort(-score)]
            right = (ranked[1:] <= np.minimum.accumulate(ranked)[:-1] + adaptive.INDIFFERENCE * score.mean()).all()
            while waiting and now.probability >= waiting[0]:
                rows.append((waiting.pop(0), now.k.mean(), right, inside, bias))
            if not waiting:
                break
    table = pd.DataFrame(rows, columns=["confidence", "rollouts a task", "order right", "intervals hold", "bias"])
    decided = table.groupby("confidence").size().rename("decided") / repetitions
    print(table.groupby("confidence").mean().join(decided).round(3).to_string())


if __name__ == "__main__":
    part = sys.argv[1] if sys.argv[1:] else "all"
    folder = Path(sys.argv[2] if sys.argv[2:] else "outputs/reference/micro")
    repetitions = int(sys.argv[3]) if sys.argv[3:] else 50
    for name, cohorts in studied(folder).items():
        print(f"\n## {name}: {len(cohorts[2])} cohorts, {len(cohorts[0])} items")
        for each in (replay, priors, calibration):
            if part in (each.__name__, "all"):
                each(*cohorts, repetitions=repetitions)
