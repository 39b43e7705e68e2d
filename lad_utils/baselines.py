"""The metrics that LAD is compared with, and those of them that need no more than prompts, embeddings and LAD's own rollouts.

Those that need the model's likelihoods or gradients are in `model_baselines`, those that need training in `training_baselines`.
None has a parameter that was tuned on lifts. `variance` is the score of sampling for learnability (Rutherford et al. 2024),
`non_zero_variance` what DAPO's dynamic sampling keeps (Yu et al. 2025), `pass_at_k` is Chen et al. (2021), eq. 1; the others'
functions say whose idea they are.
"""

from functools import partial

import numpy as np
import pandas as pd
from scipy.special import betainc

from lad_utils.diversity import vendi
from lad_utils.embeddings import embed
from lad_utils.energy import (
    empirical_bayes_energy,
    fit_beta_prior,
    informative_group_rate,
    pass_at_k,
    reward_entropy,
    variance,
)
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
    "band_filter": ("share with p in [.25, .75]", "rollouts"),
    "non_zero_variance": ("mixed groups (DAPO)", "rollouts"),
    "mopps": ("posterior near 1/2 (MoPPS)", "rollouts"),
    "dots": ("predicted difficulty (DOTS)", "rollouts and embeddings"),
    "vendi": ("Vendi", "embeddings"),
    "distinct_fraction": ("distinct-task fraction", "prompts"),
    "token_length": ("prompt length (tokens)", "prompts"),
    "n_steps": ("number of steps", "prompts"),
    "log_likelihood": ("likelihood of solutions", "forward passes"),
    "rho_loss": ("RHO-LOSS", "forward passes"),
    "gradient_norm": ("policy-gradient norm", "gradients"),
    "learnalign": ("LearnAlign", "gradients"),
    "less": ("LESS, with the RL loss", "gradients"),
    "trak": ("TRAK, with the RL loss", "gradients"),
    "cropi": ("CROPI's offline core", "gradients"),
    "short_grpo": ("short GRPO run", "training"),
    "small_model_lift": ("smaller model's lift", "training"),
    "datamodel": ("datamodel on mixtures", "training"),
    "full_run": ("full run, another seed", "training"),
}
SCORED = [m for m, (_, needs) in METRICS.items() if needs.split()[0] in ("rollouts", "embeddings", "prompts")]
BAND = (0.25, 0.75)
TARGET = 0.5  # the pass rate that MoPPS and DOTS look for
REFERENCE_TASKS = 256  # of DOTS
SHARPNESS = np.geomspace(1, 300, 30)  # candidates for 1/temperature of DOTS's attention
PASS_AT = 4
ORDERS = (0.5, 1.0, 2.0, np.inf)
BOOTSTRAPS = 200


def _pass_rate(correct, k) -> np.ndarray:
    return np.asarray(correct) / np.asarray(k)


def _headroom(correct, k) -> np.ndarray:
    return 1 - _pass_rate(correct, k)


def _pass_at_4(correct, k) -> np.ndarray:
    return pass_at_k(correct, k, PASS_AT)


def _in_band(correct, k) -> np.ndarray:
    """1 where the pass rate is neither low nor high: balanced difficulty filtering (Bae et al. 2025), whose thresholds vary."""
    p = _pass_rate(correct, k)
    return ((p >= BAND[0]) & (p <= BAND[1])).astype(float)


def closeness(p) -> np.ndarray:
    """1 at a pass rate of TARGET, 0 at 0 and 1."""
    return 1 - 2 * np.abs(np.asarray(p) - TARGET)


def expected_closeness(correct, k) -> np.ndarray:
    """Mean of closeness(p) under a Beta(1+c, 1+k-c) posterior, (n,): what MoPPS (Qu et al. 2025) ranks by.

    MoPPS draws p from the posterior and takes the prompts nearest to TARGET; a cohort that is scored once has no use for the
    exploration, so the mean stands for the draw.
    """
    a, b = 1.0 + np.asarray(correct), 1.0 + np.asarray(k) - np.asarray(correct)
    mean, below, below_next = a / (a + b), betainc(a, b, TARGET), betainc(a + 1, b, TARGET)
    return 1 - 2 * (mean - TARGET + 2 * (TARGET * below - mean * below_next))


def predicted_difficulty(rates: np.ndarray, vectors: np.ndarray, asked: np.ndarray) -> np.ndarray:
    """Pass rates of tasks told from a reference set, (m,): attention over its tasks by similarity (DOTS, Sun et al. 2025).

    rates (r,), vectors (r, d) of the reference tasks, `asked` (m, d). DOTS trains an adapter on top of a frozen embedder; here
    the embedder is LAD's own and the attention's one number, its sharpness, is chosen by leaving out reference tasks in turn.
    """
    similar = vectors @ vectors.T

    def attended(logits) -> np.ndarray:
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        return weights @ rates / weights.sum(axis=1)

    def left_out_error(sharpness) -> float:
        return float(np.mean((attended(np.where(np.eye(len(rates)), -np.inf, sharpness * similar)) - rates) ** 2))

    best = min(SHARPNESS, key=left_out_error) if len(rates) > 1 else SHARPNESS[0]
    return attended(best * (asked @ vectors.T))


def dots_scores(counts: pd.DataFrame, vectors: pd.DataFrame, *, seed: int) -> tuple[pd.Series, pd.Index]:
    """(mean closeness of predicted pass rates by cohort, task_ids of the reference set) of one set of cohorts.

    counts: cohort, position, task_id, correct, k; vectors: unit embeddings by task_id. REFERENCE_TASKS places are drawn from
    all cohorts together; their rates, by their own cohorts' labels, are all that is known of the pass rates.
    """
    chosen = counts.iloc[np.random.default_rng([seed, 16]).permutation(len(counts))[:REFERENCE_TASKS]]
    rates = (chosen["correct"] / chosen["k"]).to_numpy()
    distinct = counts["task_id"].unique()
    told = predicted_difficulty(rates, vectors.loc[chosen["task_id"]].to_numpy(), vectors.loc[distinct].to_numpy())
    close = counts["task_id"].map(dict(zip(distinct, closeness(told), strict=True)))
    return close.groupby(counts["cohort"], sort=False).mean(), pd.Index(chosen["task_id"].unique())


def majority_is_right(votes: np.ndarray, rewarded: np.ndarray) -> np.ndarray:
    """1 where the most frequent answer of a task is rewarded, ties shared: votes (..., A), rewarded (A,); 0 without votes."""
    top = votes.max(axis=-1, keepdims=True, initial=0)
    leaders = (votes == top) & (top > 0)
    return (leaders & rewarded.astype(bool)).sum(axis=-1) / np.maximum(leaders.sum(axis=-1), 1)


def majority_interval(
    tasks: list[tuple[list, np.ndarray]], weights: np.ndarray, *, rng, level: float = 0.95
) -> tuple[float, float, float]:
    """(mean, low, high) of majority correctness; rollouts resampled within tasks, percentile interval, copies share theirs.

    tasks: (parsed answers, rewards) of each. Resampled votes agree with the original ones more often than fresh votes would, so
    the interval is approximate.
    """
    values, draws = [], []
    for parsed, rewards in tasks:
        rewards_of = {p: False for p in sorted({p for p in parsed if isinstance(p, str)})}  # in an order that no draw decides
        rewards_of |= {p: True for p, r in zip(parsed, rewards, strict=True) if r and isinstance(p, str)}
        votes = np.array([sum(p == a for p in parsed) for a in rewards_of])
        rewarded, silent = np.array([*rewards_of.values()], dtype=bool), len(parsed) - int(votes.sum())
        resampled = rng.multinomial(len(parsed), np.append(votes, silent) / len(parsed), size=BOOTSTRAPS)[:, :-1]
        values.append(majority_is_right(votes, rewarded))
        draws.append(majority_is_right(resampled, rewarded))
    value, means = float(np.average(values, weights=weights)), np.average(draws, axis=0, weights=weights)
    low, high = np.quantile(means, [0.5 - level / 2, 0.5 + level / 2])
    return value, min(value, float(low)), max(value, float(high))


def score_cohort(
    study: Study, judgements: pd.DataFrame, embeddings: np.ndarray, prompt_tokens: np.ndarray, n_steps: np.ndarray
) -> pd.DataFrame:
    """Metrics of one cohort: columns metric, value, ci_low, ci_high, in the order of SCORED, without `dots` (see dots_scores).

    `judgements` are the cohort's rows; `embeddings` (n, d), `prompt_tokens` and `n_steps` (n,) are in the order of positions.
    An interval answers what the metric would be with infinitely many rollouts; metrics that use none have low = high = value.
    """
    grouped = judgements.groupby("position", sort=True)
    correct, k = grouped["reward"].sum().to_numpy(), grouped.size().to_numpy()
    ids = grouped["task_id"].first().to_numpy()
    distinct = judgements[judgements["position"].isin(pd.Series(ids).drop_duplicates().index)]
    copies = pd.Series(ids).value_counts().reindex(pd.Series(ids).drop_duplicates()).to_numpy()
    votes = [(g["parsed"].tolist(), g["reward"].to_numpy()) for _, g in distinct.groupby("position", sort=True)]
    diversity, fraction = vendi(embeddings, study.vendi_order), len(set(ids)) / len(ids)
    group = min(study.grpo_generations, int(k.min()) - 1)  # the interval looks at k-1 rollouts
    found = {
        "lad": lad_interval(correct, k, embeddings, study.gamma, study.beta, q=study.vendi_order, task_ids=ids),
        "variance": mean_interval(variance, correct, k, ids),
        "mean_pass_rate": mean_interval(_pass_rate, correct, k, ids),
        "headroom": mean_interval(_headroom, correct, k, ids),
        "reward_entropy": mean_interval(reward_entropy, correct, k, ids, unbias=True),
        "pass_at_k": mean_interval(_pass_at_4, correct, k, ids),
        "majority_correctness": majority_interval(votes, copies, rng=np.random.default_rng([study.world_seed, 8])),
        "band_filter": mean_interval(_in_band, correct, k, ids),
        "non_zero_variance": mean_interval(partial(informative_group_rate, group_size=group), correct, k, ids),
        "mopps": mean_interval(expected_closeness, correct, k, ids),
        "vendi": (diversity,) * 3,
        "distinct_fraction": (fraction,) * 3,
        "token_length": (float(np.mean(prompt_tokens)),) * 3,
        "n_steps": (float(np.mean(n_steps)),) * 3,
    }
    return pd.DataFrame([(m, *found[m]) for m in SCORED if m in found], columns=["metric", "value", "ci_low", "ci_high"])


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
