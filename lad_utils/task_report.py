"""Which tasks pull their weight: energy, headroom, redundancy and suspicion of every task of a set, and a verdict in words."""

import numpy as np
import pandas as pd

from lad_utils.diversity import near_duplicates, normalise_rows
from lad_utils.energy import empirical_bayes_energy, empirical_bayes_sd, fit_beta_prior, task_energies
from lad_utils.tasks import fold_prompt

VERDICTS = {  # in the order in which they are given
    "check the label": "rollouts agree on another answer",
    "repeated": "an earlier task has the same prompt, up to case and spacing",
    "never solved": "no rollout was right: out of reach, or a format or length failure",
    "always solved": "every rollout was right",
    "keep": "",
}
SUSPICION = 0.5  # posterior probability of a wrong label


def surprise(embeddings, *, chunk_rows: int = 65_536) -> np.ndarray:
    """-x' log(rho) x - S of every row, shape (n,), rho = X'X/n, S its entropy: mean 0; how much rarer a task is than the mean.

    It is the derivative of log Vendi (q=1) when the weight of a task grows at the cost of all.
    """
    x = np.asarray(embeddings)
    n, d = x.shape
    gram = np.zeros((d, d))
    for start in range(0, n, chunk_rows):
        part = normalise_rows(x[start : start + chunk_rows])
        gram += part.T @ part
    values, vectors = np.linalg.eigh(gram / n)
    logs = np.log(np.maximum(values, 1e-12))
    entropy = -np.sum(np.where(values > 1e-12, values * logs, 0.0))
    parts = [
        -((normalise_rows(x[start : start + chunk_rows]) @ vectors) ** 2 @ logs) - entropy for start in range(0, n, chunk_rows)
    ]
    return np.concatenate(parts)


def pull(correct, k, embeddings, gamma: float = 1, beta: float = 1) -> np.ndarray:
    """What a task adds to its set's LAD relative to the average task, shape (n,), mean 1: e/mean(e) + beta * surprise.

    First order: giving a task a share eps more of the set moves log LAD by eps * (pull - 1). Of a set without any energy only
    the diversity part is left.
    """
    energies = task_energies(correct, k, gamma).value
    relative = energies / energies.mean() if energies.mean() > 0 else np.ones_like(energies)
    return relative + beta * surprise(embeddings)


def task_report(tasks: pd.DataFrame, embeddings, *, gamma: float = 1, beta: float = 1, suspicion=None) -> pd.DataFrame:
    """One row a task, most pull first.

    `tasks`: task_id, prompt, correct, k (and `line` if it came from a file); `embeddings`: (n, d) in the same order;
    `suspicion`: posterior probability that a label is wrong, shape (n,), NaN where nothing could be told, or None. Columns:
    task_id, line, pull, pass_rate, energy and energy_se (posterior mean and sd, which do not claim certainty after k failures),
    headroom, copies, repeats (the task_id of the first task with that prompt), similar_to and similarity (the earlier task
    nearest in wording: near_duplicates; no ground for a verdict, since templates differ in a number alone), suspicion, verdict,
    why.
    """
    correct, k = tasks["correct"].to_numpy(), tasks["k"].to_numpy()
    prompts = tasks["prompt"].map(fold_prompt)
    report = tasks[[c for c in ("task_id", "line") if c in tasks]].reset_index(drop=True)
    report["pull"] = pull(correct, k, embeddings, gamma, beta)
    report["pass_rate"] = correct / k
    try:
        prior = fit_beta_prior(correct, k)
    except ValueError:
        prior = (0.5, 0.5)  # Jeffreys: a pool of only failures, or only successes, tells nothing better
    report["energy"] = empirical_bayes_energy(correct, k, gamma, prior=prior)
    report["energy_se"] = empirical_bayes_sd(correct, k, gamma, prior=prior)
    report["headroom"] = (1 - report["pass_rate"]) ** gamma
    report["copies"] = prompts.groupby(prompts).transform("size").to_numpy()
    first = tasks["task_id"].groupby(prompts).transform("first").to_numpy()
    repeated = prompts.duplicated().to_numpy()
    report["repeats"] = np.where(repeated, first, "")
    near = near_duplicates(tasks["prompt"].tolist())
    report["similar_to"] = np.where(near["earlier"] >= 0, tasks["task_id"].to_numpy()[near["earlier"]], "")
    report["similarity"] = near["similarity"].to_numpy()
    report["suspicion"] = 0.0 if suspicion is None else np.asarray(suspicion, dtype=float)
    untold = report["suspicion"].isna()
    report["suspicion"] = report["suspicion"].fillna(0.0)
    cases = [report["suspicion"] > SUSPICION, repeated, correct == 0, correct == k]
    report["verdict"] = np.select(cases, list(VERDICTS)[:-1], default="keep")
    report["why"] = report["verdict"].map(VERDICTS) + np.where(untold, " (label not judged: too few votes)", "")
    return report.sort_values("pull", ascending=False, kind="stable", ignore_index=True)
