"""Which labels are wrong, told from how a pool's base-model rollouts vote: one likelihood, fitted to the pool.

`judgements` has one row a rollout, or a `count` of equal rows: arm, cohort, position, task_id, parsed, reward.
"""

from collections import namedtuple

import numpy as np
import pandas as pd
from scipy.optimize import brentq, minimize
from scipy.special import digamma, expit, gammaln
from scipy.stats import chi2

from lad_utils.verifier import parse_number

LabelFaults = namedtuple("LabelFaults", "tasks truth noise_rate low high n model reason note")
NAN = float("nan")
START = (0.5, 0.5, 0.0, 3.0)  # log a, log b, log alpha, log of how many wrong values there are beyond the most seen of a task
BOUNDS = ((-6, 8), (-6, 8), (-6, 5), (-3, 7), (-14, 14))  # of these and of logit pi: wide, yet finite
SPREAD = 2.0  # sd of their weak normal prior around START: a pool of a dozen tasks would fix them at a bound, and be too sure
NODES = 13  # of the average over pi; more move no task's posterior by .01
SINGLED_OUT = 0.6  # share of tasks whose top answer is the likely truth; in simulation intervals cover from there on


def canonical(texts: pd.Series) -> pd.Series:
    """Equal numbers as one text ("24.0" is "24"), other text stripped, missing and empty as missing."""
    values = {t: parse_number(str(t)) for t in texts.dropna().unique()}
    names = {t: (str(t).strip() or None) if value is None else str(value) for t, value in values.items()}
    return texts.map(names).astype(object)


def vote_counts(judgements: pd.DataFrame) -> pd.DataFrame:
    """Votes of one cohort: position, parsed (canonical, or missing), reward, count.

    Rows without a verdict (reward None or NaN) are left out: no verdict is no refusal. Raises ValueError if two cohorts are
    mixed or a reward is neither 0 nor 1.
    """
    if {"arm", "cohort"} <= set(judgements) and len(judgements[["arm", "cohort"]].drop_duplicates()) > 1:
        raise ValueError("vote_counts: judgements of several cohorts, expected those of one")
    votes = judgements[judgements["reward"].notna()]
    strange = votes.index[~votes["reward"].isin([0, 1])]
    if len(strange):
        found = votes["reward"][strange[0]]
        raise ValueError(f"judgements: row {strange[0]} has reward {found}, expected 0, 1 or none")
    counts = votes.get("count", 1)
    votes = votes.assign(parsed=canonical(votes["parsed"]), reward=votes["reward"].astype(int), count=counts)
    return votes.groupby(["position", "parsed", "reward"], dropna=False, sort=False)["count"].sum().reset_index()


def draw_rollouts(judgements: pd.DataFrame, k: int, *, rng: np.random.Generator) -> pd.DataFrame:
    """k rollouts a task, drawn without replacement, with a `count` column; copies of a task in a cohort keep sharing theirs.

    Raises ValueError if a task has fewer than k.
    """
    counted = judgements if "count" in judgements else judgements.assign(count=1)
    drawn, parts = {}, []
    for (arm, cohort, _), group in counted.groupby(["arm", "cohort", "position"], sort=False):
        key, counts = (arm, cohort, group["task_id"].iloc[0]), group["count"].to_numpy()
        if counts.sum() < k:
            raise ValueError(f"draw_rollouts: task {key[2]!r} of {cohort} has {counts.sum()} rollouts, {k} are asked")
        if key not in drawn:
            drawn[key] = rng.multivariate_hypergeometric(counts, k)
        parts.append(group.assign(count=drawn[key]))
    table = pd.concat(parts, ignore_index=True)
    return table[table["count"] > 0].reset_index(drop=True)


def _hypotheses(votes: pd.DataFrame, *, labelled: bool = True) -> dict:
    """Index arrays of the likelihood, one row a hypothesis, sorted by task.

    A task has the hypothesis that its label is true, and, if its label is wrong, one for each other answer seen and one for a
    truth never seen; if not `labelled`, one for each answer seen and one for a truth never seen. v: votes for the truth; w:
    other votes; s, d: the scatter's draws and distinct values (a wrong label counts as one more draw); c: the label's votes if
    it is wrong; row: of `votes`, -1 for a truth never seen.
    """
    task, positions = pd.factorize(votes["position"])
    n, size = votes["count"].to_numpy(), len(positions)
    label = (votes["reward"].to_numpy() == 1) & labelled
    m, distinct, every = np.bincount(task, n, size).astype(int), np.bincount(task, minlength=size), np.arange(size)
    label_row = np.full(size, -1)
    label_row[task[label]] = np.flatnonzero(label)
    right = label_row if labelled else label_row[:0]
    row = np.concatenate([right, np.full(size, -1), np.flatnonzero(~label)])
    of = np.concatenate([every[: len(right)], every, task[~label]])
    order = np.argsort(of, kind="stable")
    wrong = (order >= len(right)) & labelled
    row, of = row[order], of[order]
    v, c = np.where(row >= 0, n[row], 0), np.where(label_row >= 0, n[label_row], 0)[of]
    h = {"task": of, "row": row, "wrong": wrong, "v": v, "w": m[of] - v, "s": m[of] - v + wrong, "c": c, "m": m}
    h |= {"d": distinct[of] - (v > 0) + (wrong & (c == 0)), "first": np.searchsorted(of, every), "positions": positions}
    return h | {"sizes": np.bincount(n, minlength=m.max() + 2)}


def _log_likelihood(x, h: dict, pi: float | None = None) -> tuple[float, np.ndarray, np.ndarray]:
    """(log likelihood, its gradient in x, posterior of every hypothesis); x as START and, unless `pi` is given, logit pi."""
    a, b, alpha = np.exp(x[:3])
    extra, most, p = np.exp(x[3]), h["d"].max(), expit(x[4]) if pi is None else pi
    values, k = most + extra, np.arange(len(h["sizes"]))
    d, wrong = np.minimum(k, most), h["wrong"]

    def log_rising(z):
        return gammaln(z + k) - gammaln(z)

    def slope(z):
        return digamma(z + k) - digamma(z)

    def total(index, weights):
        return np.bincount(index, weights, len(k))

    scatter, scatter_slope = log_rising(alpha), slope(alpha)
    echo, echo_slope = np.diff(scatter, append=0), np.diff(scatter_slope, append=0)
    ways = gammaln(values + 1) - gammaln(values - d + 1)
    with np.errstate(divide="ignore"):
        prior = np.where(wrong, np.log(p) + echo[h["c"]], np.log1p(-p))
    rows = (log_rising(a) - scatter)[h["v"]] + log_rising(b)[h["w"]] - log_rising(values * alpha)[h["s"]] + ways[h["d"]] + prior
    top = np.maximum.reduceat(rows, h["first"])
    r = np.exp(rows - top[h["task"]])
    sums = np.add.reduceat(r, h["first"])
    r /= sums[h["task"]]
    value = np.sum(np.log(sums) + top) - log_rising(a + b)[h["m"]].sum() + h["sizes"] @ scatter
    votes, all_m, draws = total(h["v"], r), np.bincount(h["m"], minlength=len(k)), total(h["s"], r) @ slope(values * alpha)
    gradient = [
        a * (votes @ slope(a) - all_m @ slope(a + b)),
        b * (total(h["w"], r) @ slope(b) - all_m @ slope(a + b)),
        alpha * ((h["sizes"] - votes) @ scatter_slope + total(h["c"], r * wrong) @ echo_slope - values * draws),
        extra * (total(h["d"], r) @ (digamma(values + 1) - digamma(values - d + 1)) - alpha * draws),
        r[wrong].sum() - p * len(h["m"]),
    ]
    return float(value), np.array(gradient[: len(x)]), r


def _fit(h: dict, start, pi: float | None = None) -> tuple[np.ndarray, float]:
    def loss(x):
        value, gradient, _ = _log_likelihood(x, h, pi)
        pull = np.append((x[:4] - START) / SPREAD, np.zeros(len(x) - 4))
        return pull @ pull / 2 - value, pull / SPREAD - gradient

    found = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=BOUNDS[: len(start)], options={"maxiter": 200})
    return found.x, -found.fun


def _unidentified(votes: pd.DataFrame) -> str:
    if votes.empty:
        return "no task has parsed answers and verdicts that agree with one right answer"
    if votes.groupby("position")["count"].sum().max() < 2:
        return "one parsed answer a task: a wrong label and a wrong answer look the same"
    if not votes["reward"].any():
        return "nothing is rewarded: wrong labels, a verifier that accepts nothing and tasks out of reach look the same"
    return ""


def label_fault_posterior(votes: pd.DataFrame, *, level: float = 0.95) -> LabelFaults:
    """Each task's posterior probability that its label is wrong, and the pool's rate of wrong labels, from votes alone.

    `votes`: as vote_counts gives them, one entry a distinct task (copies add no evidence). The label is the rewarded answer,
    or one never seen where nothing is rewarded. Model, fitted to the pool by marginal likelihood (weak prior: SPREAD):
      * a label is wrong with probability pi, independently of difficulty;
      * of a task's m parsed votes, v name its true answer: v ~ Beta-binomial(m, a, b); unparsed votes name none: left out;
      * the others scatter over a finite number of equally likely wrong values: Dirichlet-multinomial(alpha), whose limit for
        many values is the Ewens partition (Chinese restaurant); a wrong label is one more draw of that scatter;
      * the true answer is the label, another answer seen, or one never seen: a sum over these hypotheses.
    noise_rate: maximum likelihood of pi, n tasks; low, high: profile likelihood (chi squared, 1 df), so 0 and 1 can be inside.
    It is the rate of the source that the pool was drawn from, wider than what is known of these n labels alone.
    tasks: position, posterior, reason; averaged over the profile likelihood of pi under Jeffreys' prior, so never quite 0.
    truth: position, parsed (missing: an answer never seen), probability of being the true answer.
    model: a, b, alpha, values, singled_out.

    What is not identified is NaN, in every task, with its reason: no usable votes, one vote a task, no reward at all, or a base
    whose top answer is the likely truth in fewer than 60% of the tasks. Tasks whose verdicts contradict one right answer
    are left out (NaN, reason). A base that errs *systematically*, one wrong answer ahead of the truth, looks like a wrong
    label and counts as one: `note` says so when most labels disagree with the votes.
    """
    answers = votes[votes["parsed"].notna()]
    several = answers[answers["reward"] == 1].groupby("position")["parsed"].nunique()
    verdicts = answers.groupby(["position", "parsed"])["reward"].nunique()
    odd = set(several.index[several > 1]) | set(verdicts.index[verdicts > 1].get_level_values("position"))
    odd |= set(votes["position"][votes["parsed"].isna() & (votes["reward"] == 1)])
    tasks = pd.DataFrame({"position": votes["position"].unique(), "posterior": NAN, "reason": ""})
    tasks.loc[~tasks["position"].isin(answers["position"]), "reason"] = "no parsed answer"
    tasks.loc[tasks["position"].isin(odd), "reason"] = "verdicts contradict one right answer"
    used = answers[~answers["position"].isin(odd)]
    if reason := _unidentified(used):
        return _nothing(tasks, reason)
    h = _hypotheses(used)
    x, best = max((_fit(h, (*START, start)) for start in (-2.0, 2.0)), key=lambda found: found[1])
    angle, drop = np.arcsin(np.sqrt(expit(x[4]))), chi2.ppf(level, 1) / 2

    def profile(u):
        return _fit(h, x[:4], np.sin(u) ** 2)[1] - best + drop

    low, high = (
        edge if abs(edge - angle) < 1e-3 or profile(edge) >= 0 else brentq(profile, *sorted((edge, angle)), xtol=1e-3)
        for edge in (0.0, np.pi / 2)
    )
    # Jeffreys' prior of a share is uniform in this angle; the nodes reach beyond the interval, to where little weight is left.
    reach, weights, probability = 0.3 * (high - low), 0.0, 0.0
    for u in np.linspace(max(low - reach, 0.0), min(high + reach, np.pi / 2), NODES):
        nuisance, value = _fit(h, x[:4], np.sin(u) ** 2)
        weight = np.exp(value - best)
        weights, probability = weights + weight, probability + weight * _log_likelihood(nuisance, h, np.sin(u) ** 2)[2]
    probability = probability / weights
    top = h["v"] == np.maximum.reduceat(h["v"], h["first"])[h["task"]]
    a, b, alpha = np.exp(x[:3])
    singled_out = float(probability[top].sum() / len(h["m"]))
    model = {"a": a, "b": b, "alpha": alpha, "values": h["d"].max() + np.exp(x[3]), "singled_out": singled_out}
    if singled_out < SINGLED_OUT:
        reason = f"the top answer is the likely truth in only {singled_out:.0%} of tasks: hard and mislabelled look the same"
        return _nothing(tasks, reason, model=model)
    wrong = pd.Series(np.add.reduceat(np.where(h["wrong"], probability, 0), h["first"]), h["positions"])
    tasks["posterior"] = tasks["position"].map(wrong)
    low, high, rate = np.sin(low) ** 2, np.sin(high) ** 2, expit(x[4])
    note = "a base that errs systematically would look the same: most labels disagree with its votes" if low > 0.5 else ""
    return LabelFaults(tasks, _truth(h, used, probability), float(rate), float(low), float(high), len(h["m"]), model, "", note)


def likely_truth(votes: pd.DataFrame) -> pd.DataFrame:
    """As `truth` of label_fault_posterior, but blind to all verdicts: what the votes alone say the true answers are."""
    used = votes[votes["parsed"].notna()].groupby(["position", "parsed"], sort=False)["count"].sum().reset_index()
    if used.empty:
        raise ValueError("likely_truth: no parsed answers")
    h = _hypotheses(used.assign(reward=0), labelled=False)
    return _truth(h, used, _log_likelihood(_fit(h, START, 0.0)[0], h, 0.0)[2])


def _truth(h: dict, votes: pd.DataFrame, probability: np.ndarray) -> pd.DataFrame:
    parsed = np.where(h["row"] >= 0, votes["parsed"].to_numpy()[h["row"]], None)
    table = pd.DataFrame({"position": h["positions"][h["task"]], "parsed": parsed, "probability": probability})
    return table.groupby(["position", "parsed"], dropna=False, sort=False)["probability"].sum().reset_index()


def _nothing(tasks: pd.DataFrame, reason: str, *, model: dict | None = None) -> LabelFaults:
    tasks = tasks.assign(reason=tasks["reason"].where(tasks["reason"] != "", reason))
    truth = pd.DataFrame(columns=["position", "parsed", "probability"])
    return LabelFaults(tasks, truth, NAN, NAN, NAN, 0, model or {}, reason, "")
