"""The figures of task samplers: learning curves over generated tokens, and LAD's sampler against each other one."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from lad_utils.online_curves import OURS, at_tokens, t_interval

LABELS = {
    "uniform": "uniform",
    "lad_order": "LAD order",
    "static_lad": "LAD weights, fixed",
    "online_lad": "LAD weights, re-estimated",
    "near_half": "p near one half",
}
COLOURS = dict(zip(LABELS, ("#7F7F7F", "#E69F00", "#0072B2", "#D55E00", "#009E73"), strict=True))
STYLES = dict(zip(LABELS, (":", "-.", "--", "-", (0, (5, 1, 1, 1))), strict=True))


def curves_by_tokens(curves: pd.DataFrame) -> Figure:
    """Mean accuracy of each sampler's runs against generated tokens, with 95% t intervals over seeds as bands."""
    budget = curves.groupby(["sampler", "seed"])["tokens"].max().min()
    at = np.linspace(0, budget, 33)
    figure, (axes, late) = plt.subplots(1, 2, figsize=(10.5, 4), width_ratios=(3, 2))
    for sampler, label in LABELS.items():
        mine = curves[curves["sampler"] == sampler]
        if mine.empty:
            continue
        values = np.array([at_tokens(mine, tokens).to_numpy() for tokens in at])
        low, high = np.transpose([t_interval(row)[:2] for row in values])
        for panel in (axes, late):
            panel.plot(at / 1000, 100 * values.mean(axis=1), linestyle=STYLES[sampler], color=COLOURS[sampler], label=label)
            panel.fill_between(at / 1000, 100 * low, 100 * high, color=COLOURS[sampler], alpha=0.12, linewidth=0)
    axes.set(xlabel="generated tokens (thousands)", ylabel="accuracy (%), 95% over seeds")
    axes.legend(frameon=False, fontsize=8.5)
    late.set(xlim=(0.5 * budget / 1000, budget / 1000), xlabel="generated tokens (thousands), second half")
    shown = [line.get_ydata()[len(at) // 2 :] for line in late.get_lines()]
    if shown:
        margin = 3 if len(curves["seed"].unique()) > 1 else 1
        late.set_ylim(np.min(shown) - margin, np.max(shown) + margin)
    return figure


def differences(found: dict[str, dict]) -> Figure:
    """LAD's sampler less each other: final accuracy, and mean accuracy on the way, in points with 95% intervals."""
    others = [s for s in LABELS if f"online.{OURS}_minus_{s}" in found][::-1]
    panels = (("", "after training, paired by question"), (".mean_accuracy", "mean over the run, at equal tokens; over seeds"))
    figure, grid = plt.subplots(1, 2, figsize=(9.5, 0.5 * len(others) + 1.3), sharey=True)
    for axes, (suffix, title) in zip(grid, panels, strict=True):
        for place, other in enumerate(others):
            e = found[f"online.{OURS}_minus_{other}{suffix}"]
            if e["value"] is None:
                continue
            if e["ci_low"] is not None:
                ends = [100 * e["ci_low"], 100 * e["ci_high"]]
                axes.plot(ends, [place, place], color=COLOURS[other], linewidth=2, alpha=0.6)
            axes.plot(100 * e["value"], place, "o", color=COLOURS[other])
        axes.axvline(0, color="0.3", linewidth=0.8)
        axes.set(
            ylim=(-0.6, len(others) - 0.4),
            yticks=range(len(others)),
            yticklabels=[LABELS[o] for o in others],
            xlabel="points, 95%",
        )
        axes.set_title(title, fontsize=9.5, loc="left")
    return figure
