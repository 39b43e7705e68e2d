"""Predicted lift of a cohort with an interval, from calibration cohorts, and abstention where they do not reach.

A table has one row a cohort: cohort, family, lad, energy (lad / diversity), diversity, mean_pass_rate, and lift where known.
"""

from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import stats
from statsmodels.stats.proportion import proportion_confint

from lad_utils.stats import REL_TOL
from lad_utils.validation import entry

RANGE = ("energy", "diversity", "mean_pass_rate")  # what says whether a cohort is like those of the calibration
FEATURES = ("lad",)
INSIDE = 0.99  # share of cohorts like the calibration's that the abstention rule leaves alone


class Calibration(NamedTuple):
    """Least squares of lift on `features` by calibration cohorts, n of them, and the region in which it may be asked.

    coefficients: (1 + p,), intercept first, of all cohorts; held_out: (n, 1 + p), without each cohort (or its family);
    residuals: (n,), absolute, of each cohort under its held-out line. centre (3,), precision (3, 3): of RANGE, and max_leverage
    the threshold on 1/n + D^2/(n-1). rank: the interval's ends are the rank-th of n lower and upper ends, 0 if n is too small.
    """

    features: tuple[str, ...]
    coefficients: np.ndarray
    held_out: np.ndarray
    residuals: np.ndarray
    centre: np.ndarray
    precision: np.ndarray
    max_leverage: float
    rank: int
    n: int
    n_dropped: int


def prediction_table(table: pd.DataFrame) -> pd.DataFrame:
    """The columns above from a table as validation.validated gives it, for cohorts of equal size.

    diversity is Vendi and energy LAD / Vendi, that is, both up to the size |C|, which neither the line nor leverage feels.
    """
    table = table.reindex(columns=["cohort", "family", "lad", "vendi", "mean_pass_rate", "lift"])
    table = table.astype({name: float for name in table.columns[2:]}).rename(columns={"vendi": "diversity"})
    return table.assign(energy=table["lad"] / table["diversity"])


def calibrate(
    table: pd.DataFrame, *, features: tuple[str, ...] = FEATURES, level: float = 0.9, by_family: bool = False
) -> Calibration:
    """Jackknife+ of a linear model of lift, Barber, Candes, Ramdas & Tibshirani (2021), Annals of Statistics 49, 486-507.

    For a new cohort exchangeable with the n calibration cohorts the interval at `level` 1 - alpha covers with probability
    1 - 2 alpha at least (80% at level .9), whatever the noise, and about 1 - alpha where the model is stable. Its ends are the
    k-th smallest of mu_-i(x) - r_i and the k-th largest of mu_-i(x) + r_i, k = floor(alpha (n+1)): k = 2 at n = 19. Below
    n = 1/alpha - 1 cohorts (9) k = 0: the interval is infinite, and `predict` abstains.

    by_family: mu_-i leaves i's family out whole (their CV+ with families as folds), so residuals are those of families not
    seen. No guarantee for a new family: with F families the one of Lee, Barber & Willett (2023, hierarchical jackknife+) is
    finite from F = 1/alpha - 1 = 9 on only.

    Abstention was decided without lifts: a new cohort of the normal distribution that calibration cohorts follow over RANGE is
    within Hotelling's prediction region D^2 <= 3 (n-1)(n+1) / (n (n-3)) F_.99(3, n-3), D Mahalanobis, 99% of the time at any n.
    The usual 2p/n on leverage would turn 18% of them away at n = 19. Rows with a missing value are dropped and counted. Raises
    ValueError if too few cohorts or families are left, or if RANGE does not vary in three directions.
    """
    columns = [*dict.fromkeys((*features, *RANGE)), "lift"]
    used = table[np.isfinite(table[columns].to_numpy(dtype=float)).all(axis=1)]
    n, width = len(used), 1 + len(features)
    folds = pd.factorize(used["family"])[0] if by_family else np.arange(n)
    smallest = n - np.bincount(folds).max() if n else 0
    if smallest <= width or n < len(RANGE) + 2:
        raise ValueError(
            f"calibrate: {n} cohorts, {smallest} of them left with one held out, are too few for {width} coefficients"
        )
    x, y = _design(used, features), used["lift"].to_numpy(dtype=float)
    held_out = np.empty((n, width))
    for fold in np.unique(folds):
        held_out[folds == fold] = np.linalg.lstsq(x[folds != fold], y[folds != fold])[0]
    points = used[list(RANGE)].to_numpy(dtype=float)
    scale = points.std(axis=0, ddof=1)
    if not (scale > REL_TOL * np.abs(points).max(axis=0)).all() or np.linalg.cond(np.corrcoef(points.T)) > 1e10:
        raise ValueError(f"calibrate: {', '.join(RANGE)} of the calibration cohorts do not vary in three directions")
    d = len(RANGE)
    farthest = d * (n - 1) * (n + 1) / (n * (n - d)) * stats.f.ppf(INSIDE, d, n - d)
    return Calibration(
        features=tuple(features),
        coefficients=np.linalg.lstsq(x, y)[0],
        held_out=held_out,
        residuals=np.abs(y - (x * held_out).sum(axis=1)),
        centre=points.mean(axis=0),
        precision=np.linalg.inv(np.corrcoef(points.T)) / np.outer(scale, scale),
        max_leverage=float(1 / n + farthest / (n - 1)),
        rank=int((1 - level) * (n + 1) + 1e-9),  # .1 x 20 is 1.99... in floating point
        n=n,
        n_dropped=len(table) - n,
    )


def predict(calibration: Calibration, table: pd.DataFrame) -> pd.DataFrame:
    """One row a cohort of `table`: cohort, predicted, low, high, nominal, leverage, abstain, reason ("" unless it abstains).

    nominal: the level that the interval's ends stand for at this n, 1 - rank / (n+1), at least the level asked for.

    leverage: 1/n + D^2/(n-1) over RANGE, in which 1/n is the calibration's centre. Where it abstains the numbers stand, so that
    what abstention spares can be measured; they are not predictions. Missing values give NaN and abstain.
    """
    c = calibration
    x, deviations = _design(table, c.features), table[list(RANGE)].to_numpy(dtype=float) - c.centre
    centres = x @ c.held_out.T  # (rows, n)
    low, high = np.full(len(x), -np.inf), np.full(len(x), np.inf)
    if c.rank:
        low = np.sort(centres - c.residuals, axis=1)[:, c.rank - 1]
        high = np.sort(centres + c.residuals, axis=1)[:, c.n - c.rank]
    leverage = 1 / c.n + np.einsum("ij,jk,ik->i", deviations, c.precision, deviations) / (c.n - 1)
    missing = ~np.isfinite(x).all(axis=1) | ~np.isfinite(leverage)
    outside = f"outside the calibration cohorts: leverage over {c.max_leverage:.2f}"
    few = f"{c.n} calibration cohorts are too few for a finite interval"
    reasons = np.select([missing, c.rank == 0, leverage > c.max_leverage], ["a value is missing", few, outside], "")
    columns = {
        "predicted": x @ c.coefficients,
        "low": low,
        "high": high,
        "nominal": 1 - c.rank / (c.n + 1),
        "leverage": leverage,
    }
    columns = {name: np.where(missing, np.nan, values) for name, values in columns.items()}
    return pd.DataFrame({"cohort": table["cohort"].to_numpy()} | columns | {"abstain": reasons != "", "reason": reasons})


def held_out_predictions(table: pd.DataFrame, *, by_family: bool = False, **options) -> pd.DataFrame:
    """`predict` for every cohort from the others (by_family: from the other families), in the order of `table`, with its lift.

    `options` go to calibrate, which raises ValueError where a family leaves too few others.
    """
    labels, parts = table["family" if by_family else "cohort"], []
    for label in labels.unique():
        out = labels == label
        found = predict(calibrate(table[~out], by_family=by_family, **options), table[out])
        parts.append(found.set_index(table.index[out]).assign(lift=table["lift"][out]))
    return pd.concat(parts).loc[table.index]


def coverage_entries(designed: pd.DataFrame, mixtures: pd.DataFrame, *, level: float = 0.9) -> list[dict]:
    """Entries `prediction.<test>.*`: coverage of lifts the calibration has not seen, mean width, share abstained.

    Tests: leave_cohort_out and leave_family_out within the designed cohorts; mixtures and mixtures_by_family, calibrated on the
    designed cohorts, with jackknife+ over cohorts and over families. Coverage and width are of the cohorts answered, n of them,
    the interval Clopper-Pearson's, which takes them as independent though they share calibration cohorts. `coverage_of_all`
    ignores abstention; `width_without_lad` is that of an interval round the mean lift alone, for the same cohorts.
    """
    entries, source = [], "scores.parquet, lifts.parquet"
    for by_family in (False, True):
        within = "leave_family_out" if by_family else "leave_cohort_out"
        across = "mixtures_by_family" if by_family else "mixtures"
        for test, rows in ((within, designed), (across, mixtures)):
            try:
                found, plain = (_tested(designed, rows, by_family, level, features) for features in (FEATURES, ()))
            except ValueError as error:
                found, why = None, str(error)
            if found is None or found.empty:
                why = why if found is None else "no cohort with a known lift to test on"
                entries.append(entry(f"prediction.{test}.coverage", np.nan, n=0, source=source, reason=why))
                continue
            answered = ~found["abstain"]
            for name, chosen in (("coverage", found[answered]), ("coverage_of_all", found)):
                inside, n = int(_covered(chosen).sum()), len(chosen)
                low, high = proportion_confint(inside, n, method="beta") if n else (None, None)
                args = {"n": n, "source": source, "reason": "" if n else "every cohort was abstained from"}
                promise = "none promised for a new family" if by_family else f"at least {2 * level - 1:.0%} if exchangeable"
                nominal = chosen["nominal"].mean() if n else np.nan
                note = f"{inside} of {n} in intervals that at their sizes stand for {nominal:.0%}, {promise}"
                entries.append(
                    entry(f"prediction.{test}.{name}", inside / n if n else np.nan, low=low, high=high, note=note, **args)
                )
            args = {
                "n": int(answered.sum()),
                "source": source,
                "reason": "" if answered.any() else "every cohort was abstained from",
            }
            for name, table in (("mean_width", found), ("width_without_lad", plain)):
                width = (table["high"] - table["low"])[answered].mean()
                entries.append(entry(f"prediction.{test}.{name}", width, **args))
            low, high = proportion_confint(int((~answered).sum()), len(found), method="beta")
            entries.append(
                entry(f"prediction.{test}.abstained", (~answered).mean(), low=low, high=high, n=len(found), source=source)
            )
    return entries


def _tested(designed: pd.DataFrame, rows: pd.DataFrame, by_family: bool, level: float, features) -> pd.DataFrame:
    rows = rows[np.isfinite(rows["lift"])]
    if rows.empty or rows["cohort"].isin(designed["cohort"]).all():
        return held_out_predictions(rows, by_family=by_family, level=level, features=features) if len(rows) else rows
    found = predict(calibrate(designed, features=features, level=level, by_family=by_family), rows)
    return found.assign(lift=rows["lift"].to_numpy())


def _covered(found: pd.DataFrame) -> pd.Series:
    return (found["low"] <= found["lift"]) & (found["lift"] <= found["high"])


def _design(table: pd.DataFrame, features: tuple[str, ...]) -> np.ndarray:
    return np.column_stack([np.ones(len(table)), *(table[name].to_numpy(dtype=float) for name in features)])
