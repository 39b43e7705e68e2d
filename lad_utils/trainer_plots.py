"""The figures of other trainers: LAD against lift under each, who ranks the cohorts, and gains by base pass rate."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from lad_utils.plots import COLOURS
from lad_utils.trainer_ranking import LABELS, TITLES, shape_values

SHAPE_COLOURS = dict(zip(LABELS, ("#0072B2", "#D55E00", "#009E73", "#CC79A7"), strict=True))
STYLES = dict(zip(LABELS, ("-", "--", "-.", ":"), strict=True))
BINS = 10


def _panels(names):
    columns = min(len(names), 4)
    rows = -(-len(names) // columns)
    figure, grid = plt.subplots(rows, columns, figsize=(3.1 * columns, 2.9 * rows), sharex=True, sharey=True, squeeze=False)
    for axes in grid.ravel()[len(names) :]:
        axes.set_visible(False)
    return figure, dict(zip(names, grid.ravel(), strict=False))


def lift_by_trainer(table: pd.DataFrame, lad: pd.Series) -> Figure:
    """LAD before training against lift, a panel a trainer; `table` as trainer_lifts gives it, `lad`: cohort -> value."""
    figure, panels = _panels([t for t in TITLES if (table["trainer"] == t).any()])
    for name, axes in panels.items():
        rows = table[table["trainer"] == name]
        errors = 100 * np.maximum([rows["lift"] - rows["ci_low"], rows["ci_high"] - rows["lift"]], 0)
        axes.errorbar(rows["cohort"].map(lad), 100 * rows["lift"], yerr=errors, fmt="o", color=COLOURS["difficulty"], capsize=2)
        ordered = rows.assign(place=rows["cohort"].map(lad)).sort_values(["place", "cohort"])
        for n, row in enumerate(ordered.itertuples()):
            label = {"xytext": (4, 4 if n % 2 else -9), "textcoords": "offset points", "fontsize": 6.5}
            axes.annotate(row.cohort.replace("_", " "), (lad[row.cohort], 100 * row.lift), **label)
        axes.axhline(0, color="0.3", linewidth=0.8)
        axes.set_title(TITLES[name], fontsize=9.5, loc="left")
        axes.set(xlabel="LAD before training", ylabel="lift (points), 95%")
        axes.margins(x=0.16)
    return figure


def gains_by_rate(gains: pd.DataFrame) -> Figure:
    """Mean gain of trained tasks by base pass rate, 95% intervals, and each shape's least-squares fit; a panel a trainer."""
    figure, panels = _panels([t for t in TITLES if (gains["trainer"] == t).any()])
    for name, axes in panels.items():
        rows = gains[gains["trainer"] == name].reset_index(drop=True)
        rate = rows["correct"] / rows["k"]
        place = rows.groupby(pd.cut(rate, np.linspace(0, 1, BINS + 1), include_lowest=True), observed=True)["gain"]
        middle = rate.groupby(pd.cut(rate, np.linspace(0, 1, BINS + 1), include_lowest=True), observed=True).mean()
        half = 100 * 1.96 * place.std() / np.sqrt(place.size())
        axes.errorbar(middle, 100 * place.mean(), yerr=half, fmt="o", color="0.2", capsize=2, zorder=3)
        order = np.argsort(rate.to_numpy(), kind="stable")
        for shape, values in shape_values(rows["correct"].to_numpy(), rows["k"].to_numpy()).items():
            slope, intercept = np.polyfit(values, rows["gain"], 1)
            fit = 100 * (intercept + slope * values)
            axes.plot(rate.to_numpy()[order], fit[order], STYLES[shape], color=SHAPE_COLOURS[shape], label=LABELS[shape])
        axes.axhline(0, color="0.3", linewidth=0.8)
        axes.set_title(TITLES[name], fontsize=9.5, loc="left")
        axes.set(xlabel="base pass rate, half of the rollouts", ylabel="gain by the last visit (points)")
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False, fontsize=9)
    return figure


def ranks_by_trainer(found: dict[str, dict]) -> Figure:
    """Spearman with lift over the cohorts: LAD, other shapes, and the lifts under GRPO; a row a trainer, from the entries."""
    names = [t for t in TITLES if f"trainer.{t}.lad.rho" in found]
    told = [("lad", "LAD", "D"), ("variance", "p(1-p) x diversity", "o"), ("grpo_lift", "lift under GRPO", "s")]
    colours = (COLOURS["diversity"], COLOURS["difficulty"], "0.4")
    figure, axes = plt.subplots(figsize=(7.5, 0.55 * len(names) + 1.4))
    for shift, ((what, label, marker), colour) in enumerate(zip(told, colours, strict=True)):
        for place, name in enumerate(names):
            e = found.get(f"trainer.{name}.{what}.rho")
            if e is None or e["value"] is None:
                continue
            height = place + 0.22 * (shift - 1)
            if e["ci_low"] is not None:
                axes.plot([e["ci_low"], e["ci_high"]], [height, height], color=colour, linewidth=2, alpha=0.5)
            axes.plot(e["value"], height, marker, color=colour, linestyle="none")
        axes.plot([], [], marker, color=colour, linestyle="none", label=label)
    axes.axvline(0, color="0.3", linewidth=0.8)
    axes.set(
        xlim=(-1.03, 1.03), ylim=(-0.6, len(names) - 0.4), yticks=range(len(names)), yticklabels=[TITLES[n] for n in names]
    )
    axes.set_xlabel("Spearman with lift, 95%")
    axes.invert_yaxis()
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False, fontsize=8)
    return figure
