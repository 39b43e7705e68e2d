"""Tasks that the base model never solved: failures of format or budget, or true ones, how likely, and what it costs to know.

p^ = 0 is not "no lift": published cohorts without a base success gained 8 to 59 points where format or length failed, and
nothing where the tasks were out of reach.
"""

import numpy as np
import pandas as pd
from scipy.special import betaln
from scipy.stats import beta as beta_distribution

from lad_utils.energy import fit_beta_prior
from lad_utils.verifier import verify, verify_strict

KINDS = ("format", "budget", "unsolved")
TRUNCATED_SHARE = 0.5  # of a task's rollouts; from here on its failures are those of the length budget


def verdict_counts(rollouts: pd.DataFrame, tasks: pd.DataFrame) -> pd.DataFrame:
    """One row a task: task_id, strict, flexible, truncated, k, tokens, from its rollouts and its true answer."""
    answers = dict(zip(tasks["task_id"], tasks["answer"], strict=True))
    pairs = [(c, answers[t]) for c, t in zip(rollouts["completion"], rollouts["task_id"], strict=True)]
    judged = rollouts.assign(
        strict=[verify_strict(*p) for p in pairs],
        flexible=[verify(*p) for p in pairs],
        truncated=rollouts["finish_reason"] == "length",
    )
    grouped = judged.groupby("task_id", sort=False)
    return grouped.agg(
        strict=("strict", "sum"),
        flexible=("flexible", "sum"),
        truncated=("truncated", "sum"),
        k=("flexible", "size"),
        tokens=("n_tokens", "sum"),
    ).reset_index()


def classify_zeros(strict, flexible, truncated, k) -> np.ndarray:
    """Why a task has no strict success, shape (n,): "format", "budget", "unsolved", or "" if it has one.

    All arguments are counts a task, shape (n,): right by the strict verdict (marker or box), right by the flexible one,
    truncated, and rollouts. `format`: a flexible verdict is right; `budget`: none is, and half of the rollouts or more were
    cut off at the token limit; `unsolved`: the rest.
    """
    strict, flexible, truncated, k = (np.asarray(v) for v in (strict, flexible, truncated, k))
    if (strict > flexible).any():
        i = int(np.flatnonzero(strict > flexible)[0])
        raise ValueError(
            f"classify_zeros: row {i} has {strict[i]} strict but {flexible[i]} flexible successes, expected no more"
        )
    kinds = np.where(flexible > 0, KINDS[0], np.where(truncated >= TRUNCATED_SHARE * k, KINDS[1], KINDS[2]))
    return np.where(strict > 0, "", kinds)


def pass_rate_bound(k, correct=0, *, level: float = 0.95) -> np.ndarray:
    """One-sided upper bound on p after `correct` of k (Clopper and Pearson 1934); at 0 of k it is 1 - (1-level)^(1/k).

    It holds for a task chosen beforehand. Among tasks picked because they failed, the posterior is the better guide.
    """
    correct, k = np.broadcast_arrays(np.asarray(correct, dtype=float), np.asarray(k, dtype=float))
    return np.where(correct < k, beta_distribution.ppf(level, correct + 1, np.maximum(k - correct, 1e-12)), 1.0)


def chance_of_a_find(k, more: int, *, prior: tuple[float, float]) -> np.ndarray:
    """Posterior chance that a task unsolved in k rollouts is solved at least once in `more`: 1 - B(a,b+k+more)/B(a,b+k)."""
    (a, b), k = prior, np.asarray(k, dtype=float)
    return 1 - np.exp(betaln(a, b + k + more) - betaln(a, b + k))


def posterior_bound(k, *, prior: tuple[float, float], level: float = 0.95) -> np.ndarray:
    """Upper posterior bound on p of a task unsolved in k rollouts, under the pool's Beta prior."""
    return beta_distribution.ppf(level, prior[0], prior[1] + np.asarray(k, dtype=float))


def zeros_table(tasks: pd.DataFrame, *, more: int, level: float = 0.95) -> pd.DataFrame:
    """One row a kind of zero: tasks, bounds on p, and what `more` rollouts each would cost and are expected to find.

    `tasks`: one row a task with strict, flexible, truncated, k and tokens (generated, all its rollouts). The Beta prior is
    fitted to the flexible counts of the whole table, solved tasks included; where that is impossible (no success at all, k=1)
    the posterior columns are NaN and `reason` says why.
    """
    kinds = classify_zeros(tasks["strict"], tasks["flexible"], tasks["truncated"], tasks["k"])
    try:
        prior, reason = fit_beta_prior(tasks["flexible"], tasks["k"]), ""
    except ValueError as error:
        prior, reason = None, str(error)
    rows = []
    for kind in KINDS:
        chosen = tasks[kinds == kind]
        row = {"kind": kind, "tasks": len(chosen), "share": len(chosen) / len(tasks), "reason": reason}
        if len(chosen):
            row["bound"] = float(pass_rate_bound(chosen["k"], level=level).max())
            row["extra_rollouts"] = more * len(chosen)
            row["extra_tokens"] = float(more * (chosen["tokens"] / chosen["k"]).sum())
        if len(chosen) and prior and kind != "format":
            row["posterior_bound"] = float(posterior_bound(chosen["k"], prior=prior, level=level).max())
            row["expected_finds"] = float(chance_of_a_find(chosen["k"], more, prior=prior).sum())
        elif not len(chosen):
            row["reason"] = "no such task"
        elif kind == "format":
            row["reason"] = "solved already by the flexible verdict"
        rows.append(row)
    columns = [
        "kind",
        "tasks",
        "share",
        "bound",
        "posterior_bound",
        "extra_rollouts",
        "extra_tokens",
        "expected_finds",
        "reason",
    ]
    return pd.DataFrame(rows).reindex(columns=columns)
