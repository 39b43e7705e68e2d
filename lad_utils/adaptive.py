"""Rank cohorts with few rollouts: spend them where they change the order, stop once it is decided, replay to see what it saves.

An item is a distinct (task, label). Cohorts are rows of `weights`, (C, N): an item's share of each cohort, copies included
(rows sum to 1), so that a rollout of a shared item serves all its cohorts. `diversity`, (C,): each cohort's (Vendi/|C|)^beta,
known without rollouts. A cohort's score is diversity * sum_i weights_i p_i (1-p_i)^2, which is LAD at gamma=1.
"""

from collections import namedtuple
from collections.abc import Callable, Iterator
from itertools import pairwise, product

import numpy as np
import pandas as pd
from scipy.special import comb
from scipy.stats import norm, rankdata

from lad_utils.energy import unbiased_energy
from lad_utils.validation import entry

POOL_TASKS = 1.0  # tasks of its own that the pool's prior counts for in a cohort; many would draw cohorts together
SHAPE_TASKS = 10.0  # tasks that the Beta of a cohort's own mean and variance counts for
EM_PASSES = 40
GROWTH = 0.25  # a round adds this share of what was spent before
ORDERS = 1000  # posterior draws for the chance that an order is right
INDIFFERENCE = 0.1  # cohorts may change places while their scores differ by less than this share of the mean score
COSTS, CONFIDENCES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32), (0.8, 0.9, 0.95)  # rollouts a task, and levels, that a replay looks at
P = np.sin(np.pi / 2 * (np.arange(40) + 0.5) / 40) ** 2  # the grid of pass rates: equal weights on it are Jeffreys' prior
ENERGY = P * (1 - P) ** 2

Posterior = namedtuple("Posterior", "score covariance influence")
Round = namedtuple("Round", "correct k posterior probability decided")
Ranking = namedtuple("Ranking", "table correct k probability stopped")


def cohort_posterior(correct, k, weights, diversity, *, k_start: int = 4) -> Posterior:
    """Scores given `correct` of `k` >= 0 rollouts, both (N,): mean (C,), covariance (C, C) and influence (C, N).

    Each cohort has its own prior over p, since one prior for the whole pool drags all cohorts to one mean: the nonparametric
    maximum likelihood on a grid (EM; Laird 1978) of its items, of POOL_TASKS pseudo-items of the pool's prior, and of
    SHAPE_TASKS of the Beta that has the prior's own mean and variance: they say nothing on these two, but steady what few
    rollouts leave open. A posterior does not mind where rollouts went. Its covariance is what is unknown about p given the
    prior plus what is unknown about the prior, h' H^-1 h: H the observed information of the log prior (Louis 1982), which is
    the scatter of the items' posteriors on the grid, h the score's gradient. Cohorts covary through the items they share.
    influence^2 is the fall in a score's variance by one more rollout of an item: Cov(s, p)^2 / (E p (1 - E p)), s the score as
    a function of the item's p, directly and through the prior; for an untouched item, by one of its first `k_start`, averaged.
    """
    correct, k, weights, diversity = _checked(correct, k, weights, diversity)
    cells, cell = np.unique(k * (k.max() + 1) + correct, return_inverse=True)  # items of equal counts share a cell
    hits, seen = (cells % (k.max() + 1))[:, None], cells > 0
    likelihood = hits * np.log(P) + (cells[:, None] // (k.max() + 1) - hits) * np.log1p(-P)  # (cells, grid)
    likelihood = np.exp(likelihood - likelihood.max(axis=1, keepdims=True))
    (cohort, item), counts, mass = np.nonzero(weights), *np.zeros((2, len(weights), len(cells)))
    at, share, scale = (cohort, cell[item]), weights[cohort, item], diversity[cohort]
    np.add.at(counts, at, seen[cell[item]])
    np.add.at(mass, at, share)
    pool = _fit_prior(np.bincount(cell)[None] * seen, likelihood, base=np.full(len(P), 1 / len(P)), shape_tasks=0)[0]
    prior = _fit_prior(counts, likelihood, base=pool, shape_tasks=SHAPE_TASKS)
    marginal = prior @ likelihood.T

    def mean(function) -> np.ndarray:  # posterior, (C, cells), of a function on the grid or of one a cohort
        return (prior * function) @ likelihood.T / marginal

    energy, rate, total = mean(ENERGY), mean(P), POOL_TASKS + counts.sum(axis=1, keepdims=True)
    h = prior * (ENERGY * (mass / marginal @ likelihood) - mass * energy / marginal @ likelihood)
    centre = (POOL_TASKS * pool + prior * (counts / marginal @ likelihood)) / total
    points = (np.sqrt(counts) / marginal)[:, :, None] * likelihood * prior[:, None, :]
    information = points.transpose(0, 2, 1) @ points - (total * centre)[:, :, None] * centre[:, None, :]
    information += np.diag(POOL_TASKS * pool + 1e-9) + 1 / len(P)  # 1/len: a log prior is free up to a constant
    shape = _beta_shape(prior)
    scatter = shape[:, :, None] * (np.eye(len(P)) - shape[:, None, :])
    moments = scatter @ np.column_stack([P, P**2])  # its mean and variance are the cohort's own: no information on them
    of_moments = np.linalg.solve(np.column_stack([P, P**2]).T @ moments, moments.transpose(0, 2, 1))
    information += SHAPE_TASKS * (scatter - moments @ of_moments)
    u = np.linalg.solve(information, h[:, :, None])[:, :, 0]  # the score's response to an item's posterior, through the prior
    pull = mean(u) - (centre * u).sum(axis=1, keepdims=True)
    by_pool = np.maximum((h * u).sum(axis=1) - (counts * pull**2).sum(axis=1), 0)
    deviation, spread = np.sqrt(np.maximum(mean(ENERGY**2) - energy**2, 0)), np.sqrt(rate * (1 - rate))
    direct, indirect = (mean(ENERGY * P) - energy * rate) / spread, (mean(u * P) - mean(u) * rate) / spread

    influence, from_p, from_prior = np.zeros((3, *weights.shape))
    influence[cohort, item] = scale * (share * direct[at] + indirect[at])
    from_p[cohort, item] = scale * share * deviation[at]
    from_prior[cohort, item] = scale * pull[at]
    hits, new = np.arange(k_start + 1)[:, None], k[item] == 0
    chance = comb(k_start, hits) * P**hits * (1 - P) ** (k_start - hits)  # (k_start + 1, grid)
    root = np.sqrt(prior @ chance.T)
    direct, indirect = ((prior * f) @ chance.T / root - (prior * f).sum(axis=1, keepdims=True) * root for f in (ENERGY, u))
    change = share[new, None] * direct[cohort[new]] + indirect[cohort[new]]
    influence[cohort[new], item[new]] = scale[new] * np.sqrt((change**2).sum(axis=1) / k_start)
    covariance = from_p @ from_p.T + from_prior @ from_prior.T + np.diag(diversity**2 * by_pool)
    return Posterior(diversity * (mass * energy).sum(axis=1), covariance, influence)


def _fit_prior(counts, likelihood, *, base, shape_tasks: float) -> np.ndarray:
    """Priors on the grid by EM, one a row of `counts` (rows, cells), with pseudo-items spread as `base` and as a Beta."""
    prior, total = np.tile(base, (len(counts), 1)), POOL_TASKS + shape_tasks + counts.sum(axis=1, keepdims=True)
    for _ in range(EM_PASSES):
        pseudo = POOL_TASKS * base + shape_tasks * _beta_shape(prior)
        prior = (pseudo + prior * (counts / (prior @ likelihood.T) @ likelihood)) / total
    return prior


def _beta_shape(prior) -> np.ndarray:
    """The Beta with each prior's mean and variance, on the grid; both (rows, grid)."""
    mean = prior @ P
    size = np.clip(mean * (1 - mean) / np.maximum(prior @ P**2 - mean**2, 1e-9) - 1, 0.02, 1000)
    log_density = np.outer(mean * size - 0.5, np.log(P)) + np.outer((1 - mean) * size - 0.5, np.log1p(-P))
    shape = np.exp(log_density - log_density.max(axis=1, keepdims=True))
    return shape / shape.sum(axis=1, keepdims=True)


def _checked(correct, k, weights, diversity) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    correct, k = np.asarray(correct, dtype=np.int64), np.asarray(k, dtype=np.int64)
    weights, diversity = np.asarray(weights, dtype=float), np.asarray(diversity, dtype=float)
    if weights.ndim != 2 or not (weights >= 0).all() or not np.allclose(weights.sum(axis=1), 1):
        raise ValueError("adaptive: weights must be (cohorts, items), none negative, each row summing to 1")
    shapes = diversity.shape + correct.shape + k.shape
    if shapes != (*weights.shape, weights.shape[1]) or not (diversity > 0).all():
        raise ValueError(f"adaptive: diversities > 0, correct and k for weights {weights.shape} expected, found sizes {shapes}")
    if (bad := np.flatnonzero((correct < 0) | (correct > k))).size:
        raise ValueError(f"adaptive: item {bad[0]} has {correct[bad[0]]} of {k[bad[0]]} correct, expected 0 <= correct <= k")
    return correct, k, weights, diversity


def order_probability(score, covariance, *, width: float, rng: np.random.Generator) -> tuple[float, np.ndarray]:
    """(chance that the order of `score` is right, chance that each cohort's place is), from normal draws of the posterior.

    An order is right if no cohort scores more than `width` above one placed before it: near-ties may stand either way.
    """
    order = np.argsort(-score, kind="stable")
    values, vectors = np.linalg.eigh(covariance[np.ix_(order, order)])
    draws = score[order] + rng.standard_normal((ORDERS, len(order))) @ (vectors * np.sqrt(np.maximum(values, 0))).T
    right, places = np.ones(draws.shape, dtype=bool), np.empty(len(order))
    right[:, 1:] = draws[:, 1:] <= np.minimum.accumulate(draws, axis=1)[:, :-1] + width
    whole = right.all(axis=1).mean()
    right[:, :-1] &= draws[:, :-1] + width >= np.maximum.accumulate(draws[:, ::-1], axis=1)[:, -2::-1]
    places[order] = right.mean(axis=0)
    return float(whole), places


def rollout_gain(posterior: Posterior, *, width: float) -> np.ndarray:
    """Fall in the expected misordering by one more rollout of each item, (N,), up to a common factor.

    Misordering is the sum over pairs of E[(true score of the lower - that of the higher - width)+]; its derivative by the
    variance s^2 of a pair's difference is phi((gap + width) / s) / 2s, so that pairs clearly apart ask for nothing.
    """
    score, covariance, influence = posterior
    own = np.diag(covariance)
    s = np.sqrt(np.maximum(own[:, None] + own - 2 * covariance, 1e-12 * own.max()))
    urgency = norm.pdf((np.abs(score[:, None] - score) + width) / s) / s
    np.fill_diagonal(urgency, 0)
    squares = urgency.sum(axis=1) @ influence**2
    gain = squares - ((urgency @ influence) * influence).sum(axis=0)
    return np.where(gain > 1e-9 * squares, gain, 0)  # an item of equal weight in equal cohorts leaves rounding alone


def allocate(gain, k, *, k_start: int, max_k: int, budget: int) -> np.ndarray:
    """Rollouts for each item, (N,): `budget` in all, fewer if items with a gain have less room under `max_k`.

    The m-th further rollout of an item gains gain * (k / (k + m - 1))^2; an untouched item gets `k_start` at once, of equal
    items the first ones.
    """
    further = np.arange(max_k)
    worth = gain[:, None] * np.where(k[:, None] > 0, (k / np.maximum(k + further[:, None], 1)).T ** 2, further < k_start)
    worth[further >= (max_k - k)[:, None]] = 0
    best = np.argsort(-worth, axis=None, kind="stable")[: max(budget, 0)]
    return np.bincount(best[worth.flat[best] > 0] // max_k, minlength=len(k))


def _mixed(weights, rng: np.random.Generator) -> np.ndarray:
    """Items in a random order, (N,), of which every beginning holds a like share of each cohort (of an item's first cohort)."""
    home = pd.Series(np.argmax(weights > 0, axis=0)).iloc[rng.permutation(weights.shape[1])]
    cohort = home.groupby(home)
    return ((cohort.cumcount() + rng.random(len(home))) / cohort.transform("size")).sort_values().index.to_numpy()


def adaptive_rounds(
    draw: Callable, weights, diversity, *, correct, k, k_start, max_k, budget, indifference, rng, looks=()
) -> Iterator[Round]:
    """Rounds of drawing, yielded with all counts so far, until `budget` or `max_k` an item is reached or nothing can be gained.

    The first gives k_start rollouts to a random 1/k_start of each cohort's items, one at least, unless `correct` and `k`, (N,),
    hold counts already. Rounds also end at each total in `looks`.
    """
    correct, k, weights, diversity = _checked(correct, k, weights, diversity)
    if not 2 <= k_start <= max_k:
        raise ValueError(f"adaptive: k_start={k_start}, expected 2 to max_k={max_k}")
    order, counts = _mixed(weights, rng), np.zeros(len(k), dtype=np.int64)
    counts[order[: 0 if k.any() else len(k) // k_start]] = k_start
    bare = (weights > 0) @ (k + counts) == 0
    counts[order[np.argmax(weights[bare][:, order] > 0, axis=1)]] = k_start
    if counts.any() and k.sum() + counts.sum() > budget:
        raise ValueError(f"adaptive: a budget of {budget} rollouts, {k.sum() + counts.sum()} are needed to start")
    while True:
        if (items := np.flatnonzero(counts)).size:
            successes = np.asarray(draw(items, counts[items]))
            if successes.shape != items.shape or ((successes < 0) | (successes > counts[items])).any():
                raise ValueError("adaptive: draw must return, for each item, 0 to its asked number of successes")
            correct, k = correct.copy(), k + counts
            correct[items] += successes
        score, covariance, _ = posterior = cohort_posterior(correct, k, weights, diversity, k_start=k_start)
        width, spent = indifference * score.mean(), k.sum()
        yield Round(correct, k, posterior, *order_probability(score, covariance, width=width, rng=rng))
        size = min([int(np.ceil(GROWTH * spent)), budget - spent] + [look - spent for look in looks if look > spent])
        gain, counts = rollout_gain(posterior, width=width)[order], np.zeros(len(k), dtype=np.int64)
        counts[order] = allocate(gain, k[order], k_start=k_start, max_k=max_k, budget=size)
        if not counts.any():
            break


def rank_cohorts(
    draw, weights, diversity, *, k_start=4, max_k=32, confidence=0.9, budget=None, indifference=INDIFFERENCE, known=None, rng
) -> Ranking:
    """Rank cohorts by the successes, (m,), that `draw(items, counts)` returns, until the order is right at `confidence`.

    Right: cohorts out of place differ by less than `indifference` times the mean score. `k_start`: rollouts when an item is
    first touched; two don't tell p(1-p)^2 from p(1-p). `known`: (correct, k) drawn before, (N,) each; they count towards
    `budget`, all rollouts (None: max_k an item), so that a stopped call can go on. Returns table (cohort, score, low and high
    at level 0.9, rank, decided: its place holds at `confidence`, rollouts on its items), every item's correct and k, the
    chance that the order is right, and why it stopped.
    """
    none = np.zeros(np.shape(weights)[1], dtype=np.int64)
    correct, k = (none, none) if known is None else known
    budget = max_k * len(none) if budget is None else budget
    settings = {"k_start": k_start, "max_k": max_k, "budget": budget, "indifference": indifference, "rng": rng}
    for last in adaptive_rounds(draw, weights, diversity, correct=correct, k=k, **settings):
        if last.probability >= confidence:
            break
    score, sd = last.posterior.score, np.sqrt(np.diag(last.posterior.covariance))
    low, high = norm.interval(0.9, score, sd)
    table = pd.DataFrame({"cohort": range(len(score)), "score": score, "low": np.maximum(low, 0), "high": high})
    table["rank"] = rankdata(-score, method="ordinal")
    table["decided"], table["rollouts"] = last.decided >= confidence, (np.asarray(weights) > 0) @ last.k
    full = last.k.sum() >= budget or (last.k >= max_k).all()
    stopped = "decided" if last.probability >= confidence else "budget spent" if full else "no rollout tells the rest apart"
    return Ranking(table, last.correct, last.k, last.probability, stopped)


def replay(correct, k, *, rng: np.random.Generator) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """Stored rollouts as a `draw`: each once, in random order; asking for more than are left is a ValueError."""
    left = np.array([correct, k - np.asarray(correct)])

    def draw(items, counts) -> np.ndarray:
        found = rng.hypergeometric(*left[:, items], counts)
        left[:, items] -= found, counts - found
        return found

    return draw


def replay_curve(
    correct, k: int, weights, diversity, *, clean: bool = False, n_replays: int = 50, rng: np.random.Generator
) -> pd.DataFrame:
    """Agreement with the unbiased ranking by `k` stored rollouts an item, against how many of them are drawn again.

    clean: each replay splits the k in halves, replays one and ranks by the other, which shares no rollout; uniform with its
    whole half is then the ceiling. Rows, one a method and setting (rollouts a task aimed at): adaptive; adaptive_80, _90 and
    _95, stopped at that confidence; uniform, by the better estimator; fewer_tasks_8 and _k, random tasks with 8 or all rollouts
    each, at the cohort's diversity. Columns: method, setting, estimator, rollouts_per_task (over all items), the means of
    spearman, kendall (tau-a) and pairwise (share of pairs in the same order), spearman_low and _high (5% and 95% of replays),
    n_replays, n_cohorts.
    """
    correct, _, weights, diversity = _checked(correct, np.full(np.shape(correct), k), weights, diversity)
    most, rows = k // 2 if clean else k, []
    for _ in range(n_replays):
        stored = rng.hypergeometric(correct, k - correct, most)
        rest = unbiased_energy(correct - stored, k - most) if clean else unbiased_energy(correct, k)
        for *labels, score in _replayed(stored, most, weights, diversity, rng=rng):
            rows.append((*labels, *agreement(score, diversity * (weights @ rest))))
    columns = ["method", "setting", "estimator", "rollouts_per_task", "spearman", "kendall", "pairwise"]
    groups = pd.DataFrame(rows, columns=columns).groupby(columns[:3], sort=False, dropna=False)
    ends = [groups["spearman"].quantile(q).rename(f"spearman_{end}") for q, end in ((0.05, "low"), (0.95, "high"))]
    table = pd.concat([groups.mean(), *ends, groups.size().rename("n_replays")], axis=1).reset_index()
    better = table.sort_values("spearman", ascending=False, kind="stable").drop_duplicates(["method", "setting"])
    return better.sort_index().reset_index(drop=True).assign(n_cohorts=len(weights))


def _replayed(correct, k: int, weights, diversity, *, rng: np.random.Generator) -> Iterator[tuple]:
    """(method, setting, estimator, rollouts a task, score (C,)) of every method, each from the same k stored rollouts."""
    n, every, none = len(correct), np.arange(len(correct)), np.zeros(len(correct), dtype=np.int64)
    costs = [cost for cost in COSTS if cost <= k]
    settings = {"k_start": 4, "max_k": k, "budget": n * k, "indifference": INDIFFERENCE, "rng": rng}
    settings["looks"] = [n * cost for cost in costs]
    rounds = list(adaptive_rounds(replay(correct, k, rng=rng), weights, diversity, correct=none, k=none, **settings))
    stops = [("adaptive", cost, [r.k.sum() >= n * cost for r in rounds]) for cost in costs]
    stops += [(f"adaptive_{100 * level:g}", np.nan, [r.probability >= level for r in rounds]) for level in CONFIDENCES]
    for method, setting, reached in stops:
        now = rounds[reached.index(True) if any(reached) else -1]
        yield method, setting, "cohort prior", now.k.sum() / n, now.posterior.score
    draw, found, order = replay(correct, k, rng=rng), none, _mixed(weights, rng)
    for last, cost in pairwise([0, *costs]):
        found = found + draw(every, np.full(n, cost - last))
        if cost >= 2:
            yield "uniform", cost, "cohort prior", cost, cohort_posterior(found, np.full(n, cost), weights, diversity).score
        if cost >= 3:
            yield "uniform", cost, "unbiased", cost, diversity * (weights @ unbiased_energy(found, cost))
    for each in sorted({min(8, k), k}):
        energy = unbiased_energy(replay(correct, k, rng=rng)(every, np.full(n, each)), each)
        for cost in (cost for cost in costs if cost <= each):
            taken = np.isin(every, order[: n * cost // each])
            taken[order[np.argmax(weights[:, order] > 0, axis=1)]] = True  # at least one task of each cohort
            score = diversity * (weights[:, taken] @ energy[taken]) / weights[:, taken].sum(axis=1)
            yield f"fewer_tasks_{each}", cost, "unbiased", taken.sum() * each / n, score


def agreement(score, reference) -> tuple[float, float, float]:
    """(Spearman, Kendall's tau-a, share of pairs in the same order); a tie is half right, a constant score agrees by 0."""
    alike = np.sign(np.subtract.outer(score, score)) * np.sign(np.subtract.outer(reference, reference))
    kendall = alike.sum() / (len(score) * (len(score) - 1))
    spearman = np.corrcoef(rankdata(score), rankdata(reference))[0, 1] if np.ptp(score) > 0 else 0.0
    return float(spearman), float(kendall), float((1 + kendall) / 2)


def rollouts_needed(curve: pd.DataFrame, *, targets=(0.95, 0.98, 0.99)) -> pd.DataFrame:
    """Rollouts a task at which each method's mean Spearman first is `target` times what uniform reaches with all rollouts.

    Columns: method, target, rollouts_per_task (log-linear between points, the first included), share of all, reason.
    """
    full, rows = curve[curve["method"] == "uniform"].iloc[-1], []
    for (method, points), target in product(curve.dropna(subset="setting").groupby("method", sort=False), targets):
        cost, reached = points["rollouts_per_task"], np.maximum.accumulate(points["spearman"])
        found, reason = np.exp(np.interp(target * full["spearman"], reached, np.log(cost))), ""
        if reached.max() < target * full["spearman"]:
            found, reason = np.nan, f"not reached with {cost.max():.3g} rollouts a task"
        rows.append((method, target, found, found / full["setting"], reason))
    return pd.DataFrame(rows, columns=["method", "target", "rollouts_per_task", "share", "reason"])


def curve_entries(curve: pd.DataFrame, *, prefix: str, source: str) -> list[dict]:
    """The curve and the shares of all rollouts that suffice, as entries such as `<prefix>.adaptive_90.spearman`."""
    entries, common = [], {"n": curve["n_cohorts"].iloc[0], "source": source}
    for row in curve.itertuples():
        name = f"{prefix}.{row.method}" + ("" if np.isnan(row.setting) else f".k{row.setting:g}")
        note, ends = f"{row.estimator}; {row.n_replays} replays, 5-95%", (row.spearman_low, row.spearman_high)
        entries.append(entry(f"{name}.spearman", row.spearman, low=ends[0], high=ends[1], note=note, **common))
        entries += [entry(f"{name}.{column}", getattr(row, column), **common) for column in ("pairwise", "rollouts_per_task")]
    for row in rollouts_needed(curve).itertuples():
        entries.append(entry(f"{prefix}.{row.method}.share_for_{100 * row.target:g}", row.share, reason=row.reason, **common))
    return entries
