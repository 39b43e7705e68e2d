"""The metrics that LAD is compared with, each computed from the same rollouts and embeddings, each with an interval."""

from collections import Counter

import numpy as np
import pandas as pd

from lad_utils.diversity import vendi
from lad_utils.embeddings import embed
from lad_utils.energy import empirical_bayes_energy, fit_beta_prior, pass_at_k, reward_entropy, variance
from lad_utils.params import Study
from lad_utils.score import lad_interval, mean_interval

# name -> (label, what it needs). Order is the order of tables and figures.
METRICS = {
    "lad": ("LAD", "rollouts and embeddings"),
    "variance": ("variance p(1-p)", "rollouts"),
    "mean_pass_rate": ("mean pass rate", "rollouts"),
    "headroom": ("headroom 1-p", "rollouts"),
    "reward_entropy": ("reward entropy", "rollouts"),
    "pass_at_k": ("pass@4", "rollouts"),
    "majority_correctness": ("majority correctness", "rollouts"),
    "vendi": ("Vendi", "embeddings"),
    "distinct_fraction": ("distinct-task fraction", "prompts"),
    "token_length": ("prompt length (tokens)", "prompts"),
}
PASS_AT = 4
ORDERS = (0.5, 1.0, 2.0, np.inf)
BOOTSTRAPS = 200


def _pass_rate(correct, k) -> np.ndarray:
    return np.asarray(correct) / np.asarray(k)


def _headroom(correct, k) -> np.ndarray:
    return 1 - _pass_rate(correct, k)


def _pass_at_4(correct, k) -> np.ndarray:
    return pass_at_k(correct, k, PASS_AT)


def majority_is_right(parsed: list, rewards: np.ndarray) -> float:
    """1 where the most frequent parsed answer of a task is rewarded, ties shared; no parsed answer at all counts as wrong."""
    votes = Counter(p for p in parsed if isinstance(p, str))
    if not votes:
        return 0.0
    top = max(votes.values())
    leaders = [a for a, v in votes.items() if v == top]
    rewarded = {p for p, r in zip(parsed, rewards, strict=True) if r and isinstance(p, str)}
    return sum(a in rewarded for a in leaders) / len(leaders)


def majority_interval(
    tasks: list[tuple[list, np.ndarray]], weights: np.ndarray, *, rng, level: float = 0.95
) -> tuple[float, float, float]:
    """(mean, low, high) of majority correctness; rollouts resampled within tasks, percentile interval, copies share theirs.

    Resampled votes agree with the original ones more often than fresh votes would, so the interval is approximate.
    """

    def mean(resample) -> float:
        verdicts = []
        for parsed, rewards in tasks:
            index = rng.integers(0, len(parsed), len(parsed)) if resample else np.arange(len(parsed))
            verdicts.append(majority_is_right([parsed[i] for i in index], rewards[index]))
        return float(np.average(verdicts, weights=weights))

    draws = [mean(True) for _ in range(BOOTSTRAPS)]
    low, high = np.quantile(draws, [0.5 - level / 2, 0.5 + level / 2])
    value = mean(False)
    return value, min(value, float(low)), max(value, float(high))


def score_cohort(study: Study, judgements: pd.DataFrame, embeddings: np.ndarray, prompt_tokens: np.ndarray) -> pd.DataFrame:
    """Every metric of one cohort: columns metric, value, ci_low, ci_high; none is ever undefined.

    `judgements` are the cohort's rows; `embeddings` (n, d) and `prompt_tokens` (n,) are in the order of its positions.
    An interval answers what the metric would be with infinitely many rollouts; metrics that use none have low = high = value.
    """
    grouped = judgements.groupby("position", sort=True)
    correct, k = grouped["reward"].sum().to_numpy(), grouped.size().to_numpy()
    ids = grouped["task_id"].first().to_numpy()
    distinct = judgements[judgements["position"].isin(pd.Series(ids).drop_duplicates().index)]
    copies = pd.Series(ids).value_counts().reindex(pd.Series(ids).drop_duplicates()).to_numpy()
    votes = [(g["parsed"].tolist(), g["reward"].to_numpy()) for _, g in distinct.groupby("position", sort=True)]
    diversity, fraction, length = vendi(embeddings, study.vendi_order), len(set(ids)) / len(ids), float(np.mean(prompt_tokens))
    found = {
        "lad": lad_interval(correct, k, embeddings, study.gamma, study.beta, q=study.vendi_order, task_ids=ids),
        "variance": mean_interval(variance, correct, k, ids),
        "mean_pass_rate": mean_interval(_pass_rate, correct, k, ids),
        "headroom": mean_interval(_headroom, correct, k, ids),
        "reward_entropy": mean_interval(reward_entropy, correct, k, ids, unbias=True),
        "pass_at_k": mean_interval(_pass_at_4, correct, k, ids),
        "majority_correctness": majority_interval(votes, copies, rng=np.random.default_rng([study.world_seed, 8])),
        "vendi": (diversity,) * 3,
        "distinct_fraction": (fraction,) * 3,
        "token_length": (length,) * 3,
    }
    table = pd.DataFrame([(m, *found[m]) for m in METRICS], columns=["metric", "value", "ci_low", "ci_high"])
    return table


def diversity_table(tasks: pd.DataFrame, counts: pd.DataFrame, *, gamma: float, embedders: tuple[str, ...]) -> pd.DataFrame:
    """Vendi of every cohort by embedder and order, plain and energy-weighted: arm, cohort, embedder, order, weighted, vendi.

    `counts`: one row a position with arm, cohort, task_id, correct, k. Weights are posterior mean energies under a Beta prior
    fitted to the cohort; a cohort that has none, since every rollout failed or every one succeeded, has no weighted row.
    """
    prompts, rows = tasks.set_index("task_id")["prompt"], []
    used = counts["task_id"].unique()
    for embedder in embedders:
        vectors = pd.DataFrame(embed(prompts[used].tolist(), embedder=embedder), index=used)
        for (arm, name), group in counts.groupby(["arm", "cohort"], sort=False):
            x, correct, k = vectors.loc[group["task_id"]].to_numpy(), group["correct"], group["k"]
            weightings = {False: None}
            if 0 < correct.sum() < k.sum():
                weightings[True] = empirical_bayes_energy(correct, k, gamma, prior=fit_beta_prior(correct, k))
            key = {"arm": arm, "cohort": name, "embedder": embedder}
            rows += [
                key | {"order": q, "weighted": weighted, "vendi": vendi(x, q, weights=w)}
                for weighted, w in weightings.items()
                for q in ORDERS
            ]
    return pd.DataFrame(rows)


def solution_log_likelihood(model, tokenizer, prompts: list[str], solutions: list[str], *, batch_size: int = 250) -> np.ndarray:
    """Mean log-likelihood a token (nats) of each solution, its end included, given its prompt; shape (n,)."""
    import torch

    values = []
    for start in range(0, len(prompts), batch_size):
        pairs = zip(prompts[start : start + batch_size], solutions[start : start + batch_size], strict=True)
        rows = [
            (tokenizer(p).input_ids, [*tokenizer(s, add_special_tokens=False).input_ids, tokenizer.eos_token_id])
            for p, s in pairs
        ]
        width = max(len(p) + len(s) for p, s in rows)
        ids = torch.full((len(rows), width), tokenizer.pad_token_id)
        mask = torch.zeros((len(rows), width - 1))
        for i, (p, s) in enumerate(rows):
            ids[i, : len(p) + len(s)] = torch.tensor(p + s)
            mask[i, len(p) - 1 : len(p) + len(s) - 1] = 1
        with torch.inference_mode():  # padded on the right, so that no real token sees a pad
            logits = model(input_ids=ids).logits[:, :-1].float()
        told = torch.log_softmax(logits, -1).gather(-1, ids[:, 1:, None])[..., 0]
        values.append(((told * mask).sum(1) / mask.sum(1)).numpy())
    return np.concatenate(values)
