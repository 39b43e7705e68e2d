"""What each part of LAD is worth: variants of the score made from stored counts and embeddings, beside LAD against lift.

LAD here is the frozen one: gamma=1, beta=1, unbiased energy, MiniLM, Vendi of order 1. Every variant is exploratory; what a
choice among them is worth, `nested_choice` and the mixtures tell.
"""

import warnings
from collections import namedtuple
from collections.abc import Callable, Mapping

import numpy as np
import pandas as pd

from lad_utils import energy
from lad_utils.diversity import vendi
from lad_utils.score import energy_interval, mean_interval
from lad_utils.stats import _row_spearman, bonett_wright_interval, loco, spearman_ci
from lad_utils.validation import entry, validated

ORDERS = {0.5: "vendi_q_half", 2.0: "vendi_q_2", np.inf: "vendi_q_inf"}
ROLLOUTS = (2, 4, 8, 16, 32)
BAND = (0.2, 0.8)  # pass rates of the "hard band"
TAU = 2 * np.log(2)  # the exponential tilt that peaks at p = 1/3, where gamma = 1 does
ARMS = ("main", "mixture")  # designed cohorts, and mixtures
SOURCE = "ablations.parquet, eval_questions.parquet"

# (gamma, beta) -> variant; LAD first, so that a tie goes to it
GRID = {
    (1, 1): "lad",
    (0, 1): "no_headroom",
    (0.5, 1): "gamma_half",
    (2, 1): "gamma_2",
    (1, 0): "no_diversity",
    (0, 0): "gamma_0_beta_0",
    (0.5, 0): "gamma_half_beta_0",
    (2, 0): "gamma_2_beta_0",
    (1, 0.5): "beta_half",
    (0, 0.5): "gamma_0_beta_half",
    (0.5, 0.5): "gamma_half_beta_half",
    (2, 0.5): "gamma_2_beta_half",
}
TEACHES = ("entropy", "hard_band", "smoothed", "plugin", "unscaled_gain", "scaled_gain", "tilt")  # in place of energy
DIVERSE = ("diversity_divisor", "distinct_fraction", *ORDERS.values(), "char_ngrams", "weighted_vendi")
SIMPLEST = ("variance_distinct", "headroom_distinct")  # mean p(1-p), or 1-p, times the share of distinct tasks
VARIANTS = (*GRID.values(), *TEACHES, *DIVERSE, *SIMPLEST, *(f"k_{k}" for k in ROLLOUTS))

SpearmanDifference = namedtuple("SpearmanDifference", "difference low high reason")
NestedChoice = namedtuple("NestedChoice", "rho q2 predictions chosen n reason")
NAN = float("nan")
exact_kl = energy.tilt_divergence  # KL(pi_0 || pi*) = ln(1-p+p e^(1/beta)) - p/beta, without overflow for small beta


def _tried(statistic: Callable[[], float]) -> tuple[float, str, str]:
    """(value, why it is undefined or "", what was warned of or "")."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            value, reason = float(statistic()), ""
        except ValueError as error:  # too few rollouts, or a pool without a Beta prior
            value, reason = NAN, str(error)
    return value, reason, "; ".join(dict.fromkeys(str(w.message) for w in said))


def _entropy_with_headroom(correct, k) -> np.ndarray:
    return energy.reward_entropy(correct, k) * (1 - np.asarray(correct) / np.asarray(k))


def _parts(correct, k, ids, x, *, rng: np.random.Generator) -> dict[str, tuple[float, str, str]]:
    """What a cohort's average task teaches, by every statistic that stands in for LAD's energy: (value, reason, note)."""
    _, first, copies = np.unique(ids, return_index=True, return_inverse=True)

    def mean_energy(gamma: float) -> float:
        return energy_interval(correct, k, gamma, task_ids=ids)[0]

    def prior() -> tuple[float, float]:
        return energy.fit_beta_prior(correct[first], k[first])

    def smoothed() -> float:
        a, b = prior()
        p = (correct + a) / (k + a + b)
        return np.mean(p * (1 - p) ** 2)

    def shape(name: str) -> float:
        a, b = energy.SHAPES[name]
        whole = a == int(a) and (k >= a + b).all()
        values = energy.unbiased_power(correct, k, a, b) if whole else energy.bayes_power(correct, k, a, b, prior=prior())
        return values.mean()

    def weighted() -> float:
        return mean_energy(1) * vendi(x, weights=energy.empirical_bayes_energy(correct, k, 1, prior=prior())) / len(ids)

    def fewer(draws: int) -> float:
        if k.min() < draws:
            raise ValueError(f"{draws} rollouts asked of {k.min()} stored ones")
        c = rng.hypergeometric(correct[first], (k - correct)[first], draws)[copies]
        return energy_interval(c, draws, 1, task_ids=ids)[0]

    statistics = {f"energy_{g:g}": lambda g=g: mean_energy(g) for g, _ in GRID}
    statistics |= {
        "headroom": lambda: 1 - np.mean(correct / k),
        "entropy": lambda: mean_interval(_entropy_with_headroom, correct, k, ids, unbias=True)[0],
        "hard_band": lambda: np.mean((correct / k >= BAND[0]) & (correct / k <= BAND[1])),
        "smoothed": smoothed,
        "plugin": lambda: energy.plugin_energy(correct, k, 1).mean(),
        "unscaled_gain": lambda: shape("unscaled_gain"),
        "scaled_gain": lambda: shape("scaled_gain"),
        "tilt": lambda: energy.tilt_gain(correct, k, TAU, prior=prior()).mean(),
        "weighted_vendi": weighted,
    }
    statistics |= {f"k_{draws}": lambda draws=draws: fewer(draws) for draws in ROLLOUTS}
    return {name: _tried(statistic) for name, statistic in statistics.items()}


def _cohort(correct, k, ids, x, spelling, *, rng: np.random.Generator) -> pd.DataFrame:
    """Every variant of one cohort: columns variant, value, reason, note."""
    n, parts = len(ids), _parts(correct, k, ids, x, rng=rng)
    diversity, distinct = vendi(x) / n, len(set(ids)) / n
    made = {name: (f"energy_{gamma:g}", diversity**beta) for (gamma, beta), name in GRID.items()}
    made |= {name: ("energy_1", vendi(x, q) / n) for q, name in ORDERS.items()}
    made |= {
        "diversity_divisor": ("energy_1", 1 / diversity),
        "distinct_fraction": ("energy_1", distinct),
        "char_ngrams": ("energy_1", vendi(spelling) / n),
        "weighted_vendi": ("weighted_vendi", 1.0),
        "variance_distinct": ("energy_0", distinct),
        "headroom_distinct": ("headroom", distinct),
    }
    made = {name: made.get(name, (name, diversity)) for name in VARIANTS}
    rows = [(name, parts[part][0] * factor, *parts[part][1:]) for name, (part, factor) in made.items()]
    return pd.DataFrame(rows, columns=["variant", "value", "reason", "note"])


def ablation_scores(solved: pd.DataFrame, vectors: Mapping[str, pd.DataFrame], *, rng: np.random.Generator) -> pd.DataFrame:
    """Every variant of LAD for every cohort: columns arm, cohort, variant, value, reason, note.

    `solved`: one row a position with arm, cohort, task_id, correct, k. `vectors`: embeddings indexed by task_id, of `minilm`
    and `char_ngrams`. Exponents that are not whole, and k below what a whole one needs, go through empirical Bayes, its prior
    fitted to the cohort's distinct tasks; so do `smoothed` (posterior mean of p put into p(1-p)^2), `scaled_gain` and `tilt`.
    `entropy` is the mean of H(p)(1-p), jackknifed against bias. `k_m` takes m of a task's stored rollouts without replacement
    (hypergeometric), one draw a cohort, copies of a task together. What a cohort does not allow is NaN with a reason; note
    holds the warnings, such as a pool that no Beta fits.
    """
    tables = []
    for (arm, cohort), rows in solved.groupby(["arm", "cohort"], sort=False):
        ids, correct, k = rows["task_id"].to_numpy(), rows["correct"].to_numpy(np.int64), rows["k"].to_numpy(np.int64)
        x, spelling = (vectors[name].loc[ids].to_numpy() for name in ("minilm", "char_ngrams"))
        tables.append(_cohort(correct, k, ids, x, spelling, rng=rng).assign(arm=arm, cohort=cohort))
    return pd.concat(tables, ignore_index=True)[["arm", "cohort", "variant", "value", "reason", "note"]]


def _zou(r1: float, r2: float, between: float, limits1: tuple, limits2: tuple) -> tuple[float, float]:
    """(low, high) of r1 - r2 from the limits of each and the correlation `between` the two estimates (Zou 2007)."""
    (l1, u1), (l2, u2) = limits1, limits2
    below = (r1 - l1) ** 2 + (u2 - r2) ** 2 - 2 * between * (r1 - l1) * (u2 - r2)
    above = (u1 - r1) ** 2 + (r2 - l2) ** 2 - 2 * between * (u1 - r1) * (r2 - l2)
    return float(r1 - r2 - np.sqrt(max(below, 0))), float(r1 - r2 + np.sqrt(max(above, 0)))


def _correlation_of_correlations(r1: float, r2: float, r12: float) -> float:
    """Asymptotic correlation of two correlations with one variable in common (Pearson and Filon 1898; Steiger 1980, eq. 3)."""
    covariance = r12 * (1 - r1**2 - r2**2) - r1 * r2 * (1 - r1**2 - r2**2 - r12**2) / 2
    return float(np.clip(covariance / ((1 - r1**2) * (1 - r2**2)), -1, 1))


def spearman_difference_ci(r1: float, r2: float, r12: float, n: int, *, level: float = 0.95) -> SpearmanDifference:
    """r1 - r2 with its paired interval: Spearmans of two metrics with one lift over the same n cohorts, r12 their own.

    Zou (2007), Psychological Methods 12, for correlations that overlap, with Bonett-Wright limits of each Spearman and the
    Pearson-Filon correlation between them, which is that of Pearson correlations: approximate for ranks. Since limits lie
    unevenly about a rho, it does not shrink to a point as r12 nears 1: wide for metrics that rank almost alike. Two that rank
    alike differ by exactly 0, without an interval.
    """
    if not all(np.isfinite([r1, r2, r12])) or max(map(abs, (r1, r2, r12))) > 1 + 1e-9:
        return SpearmanDifference(NAN, NAN, NAN, "a correlation is undefined or outside [-1, 1]")
    if r12 >= 1 - 1e-12:
        return SpearmanDifference(0.0, NAN, NAN, "same ranking")
    limits = [bonett_wright_interval(r, n, level=level) for r in (r1, r2)]
    if reason := limits[0][2] or limits[1][2]:
        return SpearmanDifference(r1 - r2, NAN, NAN, reason)
    low, high = _zou(r1, r2, _correlation_of_correlations(r1, r2, r12), limits[0][:2], limits[1][:2])
    return SpearmanDifference(r1 - r2, low, high, "")


def ablation_table(ablations: pd.DataFrame, lifts: pd.DataFrame, questions: pd.DataFrame, *, arm: str) -> pd.DataFrame:
    """One row a cohort of `arm` with lifts, controls left out: cohort, family, lift, and every variant; may be empty."""
    scores = ablations.rename(columns={"variant": "metric"})
    known = (scores["arm"] == arm).any() and (lifts["arm"] == arm).any()
    return validated(scores, lifts, questions, arm=arm) if known else pd.DataFrame()


def _spearman(x: pd.Series, y: pd.Series) -> float:
    """Plain Spearman, NaN below 3 pairs or where one side is constant; without the exact p-value, which takes its time."""
    return float(_row_spearman(x.to_numpy(), y.to_numpy())) if len(x) > 2 else NAN


def _best(table: pd.DataFrame) -> str:
    """The variant of the grid with the highest plain Spearman, of those defined everywhere; "" where none is."""
    rhos = {v: round(_spearman(table[v], table["lift"]), 12) for v in GRID.values() if table[v].notna().all()}
    rhos = {v: r for v, r in rhos.items() if np.isfinite(r)}
    return max(rhos, key=rhos.get) if rhos else ""


def nested_choice(table: pd.DataFrame) -> NestedChoice:
    """Leave one family out with gamma and beta chosen inside: what a tuned LAD is worth on families it was not tuned on.

    `table` as `ablation_table` gives it. For every family the variant of GRID with the highest plain Spearman over the other
    families predicts it by its line (`stats.loco`). chosen: variant a fold, in the order of first appearance.
    """
    table = table[table["lift"].notna()]
    y, families, chosen = table["lift"].to_numpy(), table["family"].to_numpy(), {}
    predictions, means = np.full((2, len(table)), NAN)
    for family in dict.fromkeys(families):
        out = families == family
        chosen[family] = _best(table[~out])
        if not chosen[family] or table.loc[out, chosen[family]].isna().any():
            reason = f"without family {family} no variant of the grid has a Spearman"
            return NestedChoice(NAN, NAN, predictions, chosen, len(y), reason)
        found = loco(table[chosen[family]], y, families.tolist(), n_permutations=0)
        predictions[out], means[out] = found.predictions[out], y[~out].mean()
    held_out = spearman_ci(predictions.round(9), y)
    if held_out.reason and not np.isfinite(held_out.rho):
        return NestedChoice(NAN, NAN, predictions, chosen, len(y), f"held-out predictions: {held_out.reason}")
    q2 = 1 - float(((y - predictions) ** 2).sum() / ((y - means) ** 2).sum())
    return NestedChoice(held_out.rho, q2, predictions, chosen, len(y), "")


def _variant_entries(
    ablations: pd.DataFrame, table: pd.DataFrame, variant: str, *, prefix: str, note: str = "exploratory"
) -> list[dict]:
    """Plain Spearman of one variant with lift, and its difference from LAD's over the same cohorts."""
    rows = ablations[(ablations["variant"] == variant) & ablations["cohort"].isin(table["cohort"])]
    used = table.dropna(subset=[variant, "lad", "lift"])
    x, y, lad = used[variant], used["lift"], used["lad"]
    rho, frozen = spearman_ci(x, y), _spearman(lad, y)
    why = next((r for r in rows["reason"] if r), "")
    if len(used) < 3:
        rho = rho._replace(reason=why or rho.reason)
    elif why:
        note += f"; {int((rows['reason'] != '').sum())} cohorts left out: {why}"
    warned = int((rows["note"] != "").sum())
    note += f"; the estimator warned in {warned} of {len(table)} cohorts" if warned else ""
    args = {"n": rho.n, "source": SOURCE, "note": note}
    entries = [entry(f"{prefix}.rho", rho.rho, low=rho.low, high=rho.high, reason=rho.reason, **args)]
    if not prefix.endswith(".lad"):
        between = _spearman(x, lad)
        d = spearman_difference_ci(rho.rho, frozen, between, rho.n)
        reason = d.reason if np.isfinite(d.difference) else rho.reason or d.reason
        reason_with = "" if np.isfinite(between) else rho.reason or "constant"
        entries.append(entry(f"{prefix}.rho_with_lad", between, reason=reason_with, **args))
        entries.append(entry(f"{prefix}.minus_lad", d.difference, low=d.low, high=d.high, reason=reason, **args))
    return entries


def _tuned_entries(ablations: pd.DataFrame, tables: dict[str, pd.DataFrame]) -> list[dict]:
    """Gamma and beta tuned on the designed cohorts: as seen, held out by family, and carried over to the mixtures."""
    designed, entries = tables["main"], []
    best, nested = _best(designed), nested_choice(designed)
    if best:
        rows, note = ablations[ablations["arm"] == "main"], f"exploratory: the best of {len(GRID)} as seen, {best}"
        entries += _variant_entries(rows, designed, best, prefix="ablation.main.tuned", note=note)
    frozen = loco(designed["lad"], designed["lift"], designed["family"].tolist(), n_permutations=0)
    picked = ", ".join(f"{v} {n}" for v, n in pd.Series(nested.chosen, dtype=object).value_counts().items() if v)
    how = f"nested: chosen on the other families: {picked or 'none'}"
    for name, found, note in (("tuned", nested, how), ("lad", frozen, "")):
        args = {"n": found.n, "source": SOURCE, "reason": "" if np.isfinite(found.rho) else found.reason, "note": note}
        entries.append(entry(f"ablation.main.{name}.held_out_family_rho", found.rho, **args))
        entries.append(entry(f"ablation.main.{name}.held_out_family_q2", found.q2, **args))
    if best and "mixture" in tables:
        rows, note = ablations[ablations["arm"] == "mixture"], f"chosen on the designed cohorts alone: {best}"
        entries += _variant_entries(rows, tables["mixture"], best, prefix="ablation.mixture.tuned", note=note)
    return entries


def ablation_entries(ablations: pd.DataFrame, lifts: pd.DataFrame, questions: pd.DataFrame) -> list[dict]:
    """Every variant's Spearman with lift (`.rho`), with LAD (`.rho_with_lad`) and its difference from LAD's (`.minus_lad`).

    Names are `ablation.<arm>.<variant>`; an arm without scores or lifts has none. `tuned` is a choice of gamma and beta: as
    seen (exploratory), held out by family with the choice made inside (nested), and carried from designed cohorts to mixtures.
    """
    tables = {arm: ablation_table(ablations, lifts, questions, arm=arm) for arm in ARMS}
    tables, entries = {arm: table for arm, table in tables.items() if len(table)}, []
    for arm, table in tables.items():
        rows = ablations[ablations["arm"] == arm]
        for variant in VARIANTS:
            entries += _variant_entries(rows, table, variant, prefix=f"ablation.{arm}.{variant}")
    return entries + (_tuned_entries(ablations, tables) if "main" in tables else [])


def quadratic_kl(p, beta) -> np.ndarray:
    """p(1-p)/(2 beta^2): second order in 1/beta of KL(pi_0 || pi*), often quoted as its lower bound (Bae et al., Prop. 3.1)."""
    if not (np.asarray(beta) > 0).all():
        raise ValueError(f"quadratic_kl: beta={beta}, expected above 0; training without a KL term has no tilted optimum")
    p = np.asarray(p, dtype=float)
    return p * (1 - p) / (2 * np.asarray(beta, dtype=float) ** 2)


def bound_fails(p, beta) -> np.ndarray:
    """Where `quadratic_kl` exceeds the divergence that it is said to bound from below; shapes broadcast.

    The divergence D(t), t = 1/beta, has D(0) = D'(0) = 0 and D''(t) = p_t(1-p_t), p_t = logistic(logit p + t); the quadratic
    has p(1-p) there. So it fails for every beta where 1/2 <= p < 1, and below some beta where p < 1/2.
    """
    return quadratic_kl(p, beta) > exact_kl(p, np.asarray(beta, dtype=float))
