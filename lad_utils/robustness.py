"""How far LAD moves if some tasks are replaced or are not what they claim: a bound, its worst adversary, a signed score."""

from collections import namedtuple

import numpy as np
import pandas as pd
from scipy.special import poch, xlogy

from lad_utils.diversity import normalise_rows
from lad_utils.energy import unbiased_energy
from lad_utils.faults import verifier_faults
from lad_utils.votes import label_fault_posterior, likely_truth, vote_counts

LadBounds = namedtuple("LadBounds", "low high energy_low energy_high diversity_low diversity_high replaced")
SignedScore = namedtuple("SignedScore", "value gain drift note")


def largest_energy(k, gamma: int = 1) -> float:
    """The most that the unbiased energy of one task can be: the maximum over c (and over the values of `k`, if several).

    Above 4/27, the maximum of the true energy at gamma=1, and falling to it as k grows: 5/28 at k=8. Raises ValueError where
    no unbiased energy exists (k < gamma + 2): empirical Bayes pools tasks, so that one replaced task moves all others.
    """
    return max(float(unbiased_energy(np.arange(size + 1), size, gamma).max()) for size in np.unique(k).tolist())


def entropy_bound(n: int, eps: float) -> float:
    """Most that ln Vendi (q=1) of n tasks moves if eps n of them are replaced, by trace distance: eps ln(n-1) + h(eps) nats.

    h is the binary entropy. The spectra of K/n before and after are within total variation eps, since a replaced task moves
    the density sum x x'/n by trace norm 2/n, and sorted spectra are no farther apart (Mirsky). Entropies of two distributions
    on n points within eps differ by no more than this (Audenaert 2007, J. Phys. A 40, theorem 1). x1.61 at eps=.05, n=256.
    """
    _check(n, eps)
    return np.log(n) if eps >= 1 - 1 / n else float(eps * np.log(n - 1) + _binary_entropy(eps))


def replacement_bound(n: int, eps: float) -> float:
    """As entropy_bound, sharper as it uses how many tasks are replaced: eps ln(eps n) + h(eps) nats (x1.38 at .05, n=256).

    With m = eps n replaced tasks the density is (1-eps) kept + eps replaced, and replaced has rank m at most. Entropy is
    concave, and mixing adds no more than h(eps), so (1-eps) S(kept) <= S <= (1-eps) S(kept) + eps ln m + h(eps), before and
    after alike.
    """
    _check(n, eps)
    m = _replaced(n, eps)
    return float(m / n * np.log(max(m, 1)) + _binary_entropy(m / n))


def lad_bounds(
    mean_energy: float, effective_diversity: float, n: int, eps: float, *, k, gamma: int = 1, beta: float = 1
) -> LadBounds:
    """Where the LAD of n tasks can be after any floor(eps n) of them are replaced by any others.

    mean_energy and effective_diversity (Vendi/n, q=1) are those of the set before. Per-task energy is in [0, e_max], e_max the
    estimator's own maximum at `k` rollouts, so the mean moves by eps e_max at most; Vendi by a factor within exp(+-b), b of
    replacement_bound, and stays in [1, n]. It bounds the replaced set's *measured* LAD, not sampling error.
    """
    _check(n, eps)
    most, m = largest_energy(k, gamma), _replaced(n, eps)
    if not (0 <= mean_energy <= most + 1e-12 and 1 / n - 1e-9 <= effective_diversity <= 1 + 1e-9):
        found = f"mean_energy={mean_energy}, effective_diversity={effective_diversity}"
        raise ValueError(f"lad_bounds: {found}, expected [0, {most:.4f}] and [1/{n}, 1]")
    factor = np.exp(replacement_bound(n, eps))
    low, high = max(0.0, mean_energy - m / n * most), min(most, mean_energy + m / n * most)
    diverse = max(1 / n, effective_diversity / factor), min(1.0, effective_diversity * factor)
    ends = sorted(x**beta for x in diverse)
    return LadBounds(low * ends[0], high * ends[1], low, high, *diverse, m)


def worst_replacement(
    energies, embeddings, n_replaced: int, *, sign: int, largest: float, beta: float = 1
) -> tuple[np.ndarray, np.ndarray]:
    """(energies, embeddings) after a greedy adversary replaced tasks to move LAD up (sign=1) or down (sign=-1).

    Up, it writes tasks of energy `largest` in directions of their own (n_replaced columns are added); down, tasks of no energy
    along the set's main direction. Each step replaces the task that moves LAD most, by the first-order change of the entropy
    (as in cohorts.greedy_lad). energies: (n,); embeddings: (n, d), returned as unit rows (n, d + n_replaced).
    """
    e = np.array(energies, dtype=float)
    x = np.hstack([normalise_rows(embeddings), np.zeros((len(e), n_replaced))])
    n, free = len(e), np.ones(len(e), dtype=bool)
    if not 0 <= n_replaced <= n:
        raise ValueError(f"worst_replacement: {n_replaced} of {n} tasks, expected 0 to {n}")
    for step in range(n_replaced):
        values, vectors = np.linalg.eigh(x.T @ x / n)
        logs = np.log(np.maximum(values, 1e-12))
        surprise = -((x @ vectors) ** 2 @ logs)
        new = largest if sign > 0 else 0.0
        after = (e.mean() + (new - e) / n) * np.exp(-beta * surprise / n)
        chosen = int(np.argmax(np.where(free, sign * after, -np.inf)))
        e[chosen], free[chosen] = new, False
        x[chosen] = np.eye(x.shape[1])[x.shape[1] - 1 - step] if sign > 0 else vectors[:, -1]
    return e, x


def signed_score(judgements: pd.DataFrame, effective_diversity: float, *, gamma: int = 1, beta: float = 1) -> SignedScore:
    """EXPLORATORY: a score that wrong labels, broken verifiers and repetition can take below zero; no constant is fitted.

    Gain: tilting a task's policy by its reward r moves the chance of its *true* answer by Cov(r, true) to first order. With a
    right label that is p(1-p); with a wrong one -p_true p_label; with any verifier it follows from the votes. So LAD's energy
    becomes E[Cov(r, true) (1-p_true)^gamma], the mean over the posterior of which answer is true, unbiased in the votes
    (falling factorials, as score.unbiased_energy, to which it reduces where the label is surely right). It multiplies
    (Vendi/|C|)^beta as ever.
    Drift: of a task's push only the part shared with other tasks transfers; its own parts are orthogonal between tasks and
    add up over copies, so their squared length is the sum over distinct tasks of (copies/|C|)^2 energy. value = gain - drift;
    the weight 1 between them is a convention, which no argument fixes.

    `judgements` of one cohort, copies included and sharing their rollouts. Where the verifier is flagged the truth is judged
    from votes alone; where the posterior is undefined, labels are taken at their word: `note` says so.
    """
    copies = judgements.drop_duplicates("position")["task_id"].value_counts()
    firsts = judgements.drop_duplicates("task_id").set_index("task_id")["position"]
    votes = vote_counts(judgements[judgements["position"].isin(firsts)])
    found, flag = label_fault_posterior(votes), verifier_faults(votes)["flag"]
    if flag and flag != "no reward":
        truth, note = likely_truth(votes), f"truth from votes alone: verifier flagged {flag}"
    else:
        truth, note = found.truth, f"labels taken at their word: {found.reason}" if found.reason else ""
    own = _own_energies(votes, gamma)
    gains = signed_energies(votes, truth, gamma=gamma).reindex(own.index).fillna(own)
    share, order = (copies / copies.sum()).loc[firsts.index].to_numpy(), firsts.to_numpy()
    gain = float(share @ gains.loc[order]) * effective_diversity**beta
    drift = float(share**2 @ own.loc[order])
    return SignedScore(gain - drift, gain, drift, note)


def _own_energies(votes: pd.DataFrame, gamma: int) -> pd.Series:
    sums = votes.assign(good=votes["count"] * votes["reward"]).groupby("position")[["good", "count"]].sum()
    return pd.Series(unbiased_energy(sums["good"], sums["count"], gamma), sums.index)


def signed_energies(votes: pd.DataFrame, truth: pd.DataFrame, *, gamma: int = 1) -> pd.Series:
    """E[Cov(r, true) (1-p_true)^gamma] by position (see signed_score); positions without an entry in `truth` have none.

    `votes` as by vote_counts; `truth`: position, parsed, probability, as by label_fault_posterior. An answer never seen
    contributes 0. Of a task's k votes, v name the answer taken for true, `passed` of them rewarded; `good` are rewarded in all.
    """
    named = votes.pivot_table(index=["position", "parsed"], columns="reward", values="count", aggfunc="sum", fill_value=0)
    named = named.reindex(columns=[0, 1], fill_value=0).set_axis(["failed", "passed"], axis=1).reset_index()
    totals = votes.assign(good=votes["count"] * votes["reward"]).groupby("position")[["good", "count"]].sum()
    t = truth.merge(named, on=["position", "parsed"]).merge(totals, left_on="position", right_index=True)
    k, v = t["count"], t["failed"] + t["passed"]
    covariance = t["passed"] * (k - t["good"]) - t["failed"] * t["good"]  # times k(k-1), unbiased
    signed = t["probability"] * covariance * poch(k - v - gamma, gamma) / poch(k - gamma - 1, gamma + 2)
    return signed.groupby(t["position"]).sum().reindex(truth["position"].unique(), fill_value=0.0)


def _binary_entropy(p: float) -> float:
    return float(-xlogy(p, p) - xlogy(1 - p, 1 - p))


def _replaced(n: int, eps: float) -> int:
    return int(np.floor(eps * n + 1e-9))


def _check(n: int, eps: float) -> None:
    if n < 2 or not 0 <= eps <= 1:
        raise ValueError(f"robustness: n={n} tasks, eps={eps}; expected n >= 2 and a share eps in [0, 1]")
