"""What a dollar buys: expected lift per dollar of task sets on offer, their ranking, and the choice under a budget.

An offer is a task set at a price: so much a distinct task, so much a million tokens generated in training on it, or both. Lifts
are predicted (prediction.calibrate) and uncertain, prices are not. A table of offers has the columns that `calibrate` takes and
n_distinct, tokens (of one training run). Offers are alternatives, trained on for the same number of steps: LAD is per task and
says nothing about the lift of two sets bought together (see size.py for what more distinct tasks add).
"""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from lad_utils.prediction import Calibration, calibrate, predict, prediction_table
from lad_utils.stats import spearman_ci
from lad_utils.validation import entry, valid

DRAWS = 4000
LEVEL = 0.9
PRICES = {"task": {"per_task": 1.0}, "token": {"per_million_tokens": 1.0}}  # a ranking by one price alone needs no amount
RIVALS = {"lad": ("lad",), "variance": ("variance",)}  # whose line predicts the lift


def dollars(offers: pd.DataFrame, *, per_task: float = 0.0, per_million_tokens: float = 0.0) -> pd.Series:
    """The price of every offer; a ValueError if an offer would cost nothing."""
    cost = per_task * offers["n_distinct"] + per_million_tokens * offers["tokens"] / 1e6
    if not (cost > 0).all():
        raise ValueError(
            f"price: offer {offers['cohort'][~(cost > 0)].iloc[0]!r} costs nothing: give a price a task or a token"
        )
    return cost


def lift_draws(calibration: Calibration, offers: pd.DataFrame, *, rng: np.random.Generator) -> np.ndarray:
    """Draws of the offers' lifts, (DRAWS, n): a line of the calibration for all offers, a signed held-out residual for each.

    Lines lie about their mean as held-out ones do, times sqrt(n-1), the jackknife's standard error of a line; offers share this
    error. Residuals are those of jackknife+, noise in the measured lifts included. ValueError if an offer lacks a value.
    """
    lacking = offers[~np.isfinite(offers[list(calibration.features)].to_numpy(dtype=float)).all(axis=1)]
    if len(lacking):
        raise ValueError(f"price: offer {lacking['cohort'].iloc[0]!r} lacks a value of {', '.join(calibration.features)}")
    design = np.column_stack([np.ones(len(offers)), *(offers[name].to_numpy(dtype=float) for name in calibration.features)])
    middle = calibration.held_out.mean(axis=0)
    lines = middle + np.sqrt(calibration.n - 1) * (calibration.held_out[rng.integers(0, calibration.n, DRAWS)] - middle)
    residuals = calibration.residuals[rng.integers(0, calibration.n, (DRAWS, len(offers)))]
    return lines @ design.T + residuals * rng.choice([-1.0, 1.0], residuals.shape)


def per_dollar(calibration: Calibration, offers: pd.DataFrame, cost: pd.Series, *, rng: np.random.Generator) -> pd.DataFrame:
    """One row an offer, best first: cohort, dollars, predicted, low, high (lift, jackknife+), the same a dollar, and ranks.

    rank: by predicted lift per dollar; rank_low, rank_high: 90% of the draws; p_best: share of them in which it is the best.
    `abstain` as `predict` says; such offers are ranked, but no promise is made for them.
    """
    drawn = lift_draws(calibration, offers, rng=rng) / cost.to_numpy()
    found = predict(calibration, offers).assign(dollars=cost.to_numpy())
    for name in ("predicted", "low", "high"):
        found[f"{name}_per_dollar"] = found[name] / found["dollars"]
    ranks = (-drawn).argsort(axis=1).argsort(axis=1) + 1
    found["rank"] = found["predicted_per_dollar"].rank(ascending=False, method="first").astype(int)
    found["rank_low"], found["rank_high"] = np.quantile(ranks, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0, method="nearest")
    found["p_best"] = (ranks == 1).mean(axis=0)
    return found.sort_values("rank", kind="stable").reset_index(drop=True)


def under_budget(
    calibration: Calibration, offers: pd.DataFrame, cost: pd.Series, budget: float, *, rng: np.random.Generator
) -> pd.Series | None:
    """The affordable offer of the highest predicted lift, or None: cohort, dollars, predicted, low, high, p_best, n_affordable.

    p_best: share of draws in which it has the highest lift of all that the budget can buy.
    """
    can = (cost <= budget).to_numpy()
    if not can.any():
        return None
    drawn = lift_draws(calibration, offers[can], rng=rng)
    found = predict(calibration, offers[can]).assign(dollars=cost[can].to_numpy())
    best = int(np.argmax(found["predicted"].to_numpy()))
    chosen = found.iloc[best][["cohort", "dollars", "predicted", "low", "high", "abstain", "reason"]]
    return pd.concat([chosen, pd.Series({"p_best": (drawn.argmax(axis=1) == best).mean(), "n_affordable": int(can.sum())})])


def offers_of(table: pd.DataFrame, cohorts: pd.DataFrame, lifts: pd.DataFrame, *, arm: str) -> pd.DataFrame:
    """Cohorts with a measured lift as offers: `table` as validation.validated gives it, and what a valid run generated, mean.

    A seller's tokens are not known before training; here they are measured, and differ by some percent between cohorts.
    """
    distinct = cohorts[cohorts["arm"] == arm].groupby("cohort")["task_id"].nunique()
    runs = valid(lifts[(lifts["arm"] == arm) & (lifts["variant"] == "sampled")])
    tokens, variance = runs.groupby("cohort")["tokens"].mean(), table["variance"].astype(float)
    offers = (
        prediction_table(table)
        .dropna(subset="lift")
        .assign(variance=variance, ci_low=table["ci_low"], ci_high=table["ci_high"])
    )
    return offers.assign(n_distinct=offers["cohort"].map(distinct), tokens=offers["cohort"].map(tokens)).reset_index(drop=True)


def held_out_lifts(designed: pd.DataFrame, offers: pd.DataFrame, features: tuple[str, ...]) -> pd.DataFrame:
    """Predicted lift with interval of every offer from the designed cohorts but itself, in the order of `offers`."""

    def told(offer: pd.DataFrame) -> pd.DataFrame:
        return predict(calibrate(designed[designed["cohort"] != offer["cohort"].iloc[0]], features=features), offer)

    return pd.concat([told(offers.iloc[[i]]) for i in range(len(offers))], ignore_index=True)


def budget_table(offers: pd.DataFrame, predicted: dict[str, pd.Series], cost: pd.Series) -> pd.DataFrame:
    """What each of `predicted` buys, its first among the affordable, at every budget that affords an offer more.

    Columns: budget, chooser, cohort, lift (measured), random (mean measured lift of all affordable), best (their highest).
    Offers that cost alike become affordable together.
    """
    rows = []
    for budget in sorted(set(cost)):
        can = cost <= budget
        lift = offers["lift"][can]
        for name, values in predicted.items():
            first = values[can].idxmax()
            rows.append((budget, name, offers["cohort"][first], lift[first], lift.mean(), lift.max()))
    return pd.DataFrame(rows, columns=["budget", "chooser", "cohort", "lift", "random", "best"])


def gain_over_random(offers: pd.DataFrame, predicted: pd.Series, cost: pd.Series) -> tuple[float, float, float]:
    """(mean, low, high) over budgets of the lift bought less that of a random affordable offer.

    Linear in the measured lifts once the choices are made: their intervals (ci_low, ci_high) make its own 95% one, for these
    offers, budgets and choices. Lifts share questions, so that taking them as independent errs on the wide side.
    """
    budgets, weights = sorted(set(cost)), np.zeros(len(offers))
    for budget in budgets:
        can = (cost <= budget).to_numpy()
        weights[int(predicted[can].idxmax())] += 1 / len(budgets)
        weights[can] -= 1 / (can.sum() * len(budgets))
    mean = float(weights @ offers["lift"])
    half = float(np.sqrt(weights**2 @ ((offers["ci_high"] - offers["ci_low"]) / 2) ** 2))
    return mean, mean - half, mean + half


def price_entries(sets: dict[str, tuple[pd.DataFrame, pd.DataFrame]]) -> list[dict]:
    """Entries `price.<price>.<set>.*`; `sets`: name -> (designed cohorts to calibrate on, offers), lifts measured in both.

    rho: Spearman of predicted with measured lift per dollar, for LAD's line, for that of p(1-p), and for no score at all, which
    ranks by price alone; gain: lift bought less that of a random affordable offer, see gain_over_random. Predictions are held
    out, which among the designed cohorts pushes weak predictors below zero (agreement.loco_null): mixtures are the fairer test.
    """
    return [e for name, (designed, offers) in sets.items() for e in _set_entries(name, designed, offers)]


def _set_entries(name: str, designed: pd.DataFrame, offers: pd.DataFrame) -> Iterator[dict]:
    source = "scores.parquet, lifts.parquet, cohorts.parquet"
    told, why = {}, "no offer was trained"
    if len(offers):
        try:
            told = {rival: held_out_lifts(designed, offers, f)["predicted"] for rival, f in RIVALS.items()}
        except ValueError as error:
            why = str(error)
    if not told:
        yield entry(f"price.task.{name}.lad.rho", np.nan, n=len(offers), source=source, reason=why)
        return
    for price, amounts in PRICES.items():
        cost = dollars(offers, **amounts)
        for rival, predicted in (told | {"no_score": 1.0}).items():
            r = spearman_ci(predicted / cost, offers["lift"] / cost)
            args = {"low": r.low, "high": r.high, "n": r.n, "source": source, "reason": r.reason}
            yield entry(f"price.{price}.{name}.{rival}.rho", r.rho, note="predicted against measured lift per dollar", **args)
        for rival, predicted in told.items():
            gain, low, high = gain_over_random(offers, predicted, cost)
            bought = budget_table(offers, {rival: predicted}, cost)
            left = 100 * (bought["best"] - bought["lift"]).mean()
            args = {"low": low, "high": high, "n": len(offers), "source": source}
            note = f"mean over {len(bought)} budgets; interval: noise in these lifts; the best would add {left:.1f} points"
            yield entry(f"price.{price}.{name}.{rival}.gain", gain, note=note, **args)
