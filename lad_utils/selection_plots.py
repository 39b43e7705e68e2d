"""The figures of the selections: each by what it changed, and lift by decile of energy."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from lad_utils.cohorts import COMPARED
from lad_utils.plots import COLOURS
from lad_utils.selection import MEASURES

LAD, OTHER = COLOURS["diversity"], COLOURS["difficulty"]


def compared(names) -> list[str]:
    """The selections that were trained with every seed first, in a fixed order, then the others; deciles left out."""
    rest = [n for n in names if n not in COMPARED and not n.startswith("decile_")]
    return [n for n in COMPARED if n in set(names)] + rest


def selection_bars(table: pd.DataFrame) -> Figure:
    """Change in points with its interval, a panel a measure, a row a selection; `table` as selection_lifts gives it."""
    names = compared(table["cohort"].unique())[::-1]
    measures = [m for m in MEASURES if m in set(table["measure"])]
    figure, grid = plt.subplots(
        1, len(measures), figsize=(3.1 * len(measures) + 1.2, 0.36 * len(names) + 1.5), sharey=True, squeeze=False
    )
    for axes, measure in zip(grid[0], measures, strict=True):
        rows = table[table["measure"] == measure].set_index("cohort").reindex(names)
        for place, (name, row) in enumerate(rows.iterrows()):
            colour = LAD if name == "top_lad" else OTHER
            axes.plot([100 * row["ci_low"], 100 * row["ci_high"]], [place, place], color=colour, linewidth=2, alpha=0.6)
            axes.plot(100 * row["lift"], place, "D" if name == "top_lad" else "o", color=colour)
        axes.axvline(0, color="0.3", linewidth=0.8)
        axes.set(yticks=range(len(names)), yticklabels=[n.replace("_", " ") for n in names], xlabel="points, 95%")
        axes.set_title(MEASURES[measure], fontsize=9, loc="left")
    return figure


def dose_response(table: pd.DataFrame, lad: pd.Series) -> Figure:
    """Lift in points and fresh LAD by decile of screened energy; `lad`: cohort -> value."""
    rows = table[(table["measure"] == "lift") & table["cohort"].str.startswith("decile_")]
    place = rows["cohort"].str.removeprefix("decile_").astype(int)
    figure, grid = plt.subplots(1, 2, figsize=(9, 3.3))
    errors = 100 * np.maximum([rows["lift"] - rows["ci_low"], rows["ci_high"] - rows["lift"]], 0)
    for axes, x, label in (
        (grid[0], place, "decile of screened energy"),
        (grid[1], rows["cohort"].map(lad), "LAD, fresh rollouts"),
    ):
        axes.errorbar(x, 100 * rows["lift"], yerr=errors, fmt="o", color=OTHER, capsize=3)
        axes.set(xlabel=label, ylabel="lift (points), 95%")
    for n, x, y in zip(place, rows["cohort"].map(lad), 100 * rows["lift"], strict=True):
        grid[1].annotate(str(n), (x, y), xytext=(5, 4), textcoords="offset points", fontsize=8)
    grid[0].set_xticks(range(1, 11))
    return figure
