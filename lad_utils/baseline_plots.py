"""The figures of the baselines: what a task's gradient tells, agreement against cost, and what a metric adds to LAD."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from lad_utils.plots import COLOURS, label_column

NEEDS = {  # what a metric needs -> (colour, marker)
    "prompts": (COLOURS["random"], "s"),
    "embeddings": (COLOURS["verifier"], "^"),
    "rollouts": (COLOURS["difficulty"], "o"),
    "rollouts and embeddings": (COLOURS["diversity"], "D"),
    "forward passes": (COLOURS["labels"], "v"),
    "gradients": (COLOURS["domain"], "P"),
    "training": (COLOURS["adversarial"], "X"),
}
LOWEST = -0.65  # of what a panel shows
SIGNALS = {"gradient_norm": "norm", "less": "cosine of Adam's step\nwith the target's gradient", "trak": "TRAK's influence"}


def gradients_by_pass_rate(tasks: pd.DataFrame) -> Figure:
    """What every task's gradient says, by its pass rate: a point a task, and the mean of tenths of the range."""
    figure, axes = plt.subplots(1, len(SIGNALS), figsize=(11, 3.2), sharex=True)
    middle = (np.clip(tasks["pass_rate"] // 0.1, 0, 9) + 0.5) / 10
    for axis, (name, label) in zip(axes, SIGNALS.items(), strict=True):
        axis.plot(tasks["pass_rate"], tasks[name], ".", color=COLOURS["random"], alpha=0.15, markersize=4, rasterized=True)
        means = tasks[name].groupby(middle).mean()
        axis.plot(means.index, means, "o-", color=COLOURS["diversity"], label="mean")
        axis.set(xlabel="pass rate p of a task", ylabel=label)
    axes[0].legend(frameon=False)
    return figure


def cost_frontier(panels: dict[str, tuple[pd.DataFrame, float | None]]) -> Figure:
    """Absolute Spearman against FLOPs a cohort (log), a panel a set; hollow: held out; dashed: noise ceiling; line: frontier.

    `panels`: title -> (frontier.frontier_table, ceiling or None). Metrics without a model stand left of the scale, those of one
    cost side by side.
    """
    figure, axes = plt.subplots(1, len(panels), figsize=(8 * len(panels), 6.6), sharey=True, squeeze=False)
    for axis, (title, (table, ceiling)) in zip(axes[0], panels.items(), strict=True):
        left = table.loc[table["flops"] > 0, "flops"].min() / 12
        rows = table.assign(x=table["flops"].where(table["flops"] > 0, left)).sort_values("rho")
        beside = rows.groupby("flops").cumcount() - (rows.groupby("flops")["flops"].transform("size") - 1) / 2
        rows["x"] *= 1.07**beside
        for needs, (colour, marker) in NEEDS.items():
            mine = rows[rows["needs"] == needs]
            axis.vlines(mine["x"], mine["low"].clip(lower=LOWEST), mine["high"], color=colour, alpha=0.35, linewidth=1)
            axis.plot(mine["x"], mine["rho"], marker, color=colour, linestyle="none", markersize=6.5, label=needs)
            axis.plot(mine["x"], mine["held_out"], marker, color=colour, linestyle="none", markersize=4, markerfacecolor="none")
        best = rows[rows["dominated_by"] == ""].sort_values("x")
        axis.step(best["x"], best["rho"], where="post", color="0.3", linewidth=1.2, zorder=1)
        if ceiling is not None:
            axis.axhline(ceiling, color="0.4", linestyle="--", linewidth=1)
        axis.axvline(left * 3, color="0.3", linewidth=0.8)
        axis.set(xscale="log", ylim=(LOWEST, 1.05), xlabel="FLOPs a cohort (left of the line: no model)")
        axis.set_title(title + ("" if ceiling is None else f", ceiling {ceiling:.2f}"), fontsize=10, loc="left")
        label_column(axis, rows.assign(y=rows["rho"], bold=rows["metric"] == "lad"))
    axes[0, 0].set_ylabel("absolute Spearman with lift; hollow: held out")
    axes[0, 0].legend(frameon=True, fontsize=8, loc="lower left")
    return figure


def additions(rows: pd.DataFrame, *, title: str) -> Figure:
    """Partial Spearman given LAD with 95% intervals, and the change of held-out Q²; rows: label, rho, low, high, gain."""
    rows = rows.sort_values("rho", na_position="first").reset_index(drop=True)
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 0.27 * len(rows) + 1.4), sharey=True)
    colour = COLOURS["difficulty"]
    left.hlines(rows.index, rows["low"], rows["high"], color=colour, alpha=0.5, linewidth=2)
    left.plot(rows["rho"], rows.index, "o", color=colour, linestyle="none")
    right.plot(rows["gain"], rows.index, "o", color=colour, linestyle="none")
    for axis, label in ((left, "partial Spearman with lift, given LAD"), (right, "held-out Q², LAD and it less LAD alone")):
        axis.axvline(0, color="0.3", linewidth=0.8)
        axis.set(yticks=rows.index, yticklabels=rows["label"], xlabel=label)
    left.set_title(title, fontsize=10, loc="left")
    return figure
