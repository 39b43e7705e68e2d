"""The figures of prices: lift per dollar of what is on offer, and what a budget buys."""

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from lad_utils.plots import COLOURS

CHOOSERS = {"lad": ("first by LAD", COLOURS["diversity"], "-"), "variance": ("first by p(1-p)", COLOURS["difficulty"], "--")}
MOST = 20  # offers in one picture


def lift_per_dollar(ranked: pd.DataFrame, measured: pd.Series, *, unit: str) -> Figure:
    """The first offers by predicted lift per dollar with 90% intervals, and what was measured; `measured`: cohort -> lift."""
    rows = ranked.head(MOST).iloc[::-1].reset_index(drop=True)
    figure, axes = plt.subplots(figsize=(7.5, 0.28 * len(rows) + 1.3))
    for row in rows.itertuples():
        ends = [100 * row.low_per_dollar, 100 * row.high_per_dollar]
        axes.plot(ends, [row.Index, row.Index], color=COLOURS["difficulty"], linewidth=2, alpha=0.5)
    label = "predicted, 90%"
    axes.plot(100 * rows["predicted_per_dollar"], rows.index, "o", color=COLOURS["difficulty"], linestyle="none", label=label)
    found = 100 * rows["cohort"].map(measured) / rows["dollars"]
    axes.plot(found, rows.index, "x", color=COLOURS["diversity"], linestyle="none", label="measured")
    names = [f"{r.cohort.replace('_', ' ')}{' (abstains)' if r.abstain else ''}" for r in rows.itertuples()]
    axes.set(yticks=rows.index, yticklabels=names, xlabel=f"lift in points per dollar, at {unit}")
    axes.legend(frameon=False, fontsize=8.5)
    return figure


def bought_under_budget(bought: pd.DataFrame) -> Figure:
    """Measured lift of what each chooser buys at every budget; `bought` as budget_table gives it."""
    figure, axes = plt.subplots(figsize=(7, 3.6))
    any_of = bought[bought["chooser"] == bought["chooser"].iloc[0]]
    for column, label, style in (("best", "best affordable", ":"), ("random", "mean affordable", "-.")):
        axes.step(any_of["budget"], 100 * any_of[column], style, where="post", color="0.4", label=label)
    for chooser, (label, colour, style) in CHOOSERS.items():
        rows = bought[bought["chooser"] == chooser]
        axes.step(rows["budget"], 100 * rows["lift"], style, where="post", color=colour, label=label)
    axes.set(xlabel="budget (dollars)", ylabel="measured lift (points)")
    axes.legend(frameon=False, fontsize=8)
    return figure
