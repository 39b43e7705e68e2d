"""The figures of the mechanism: who tells the signal early, late and over the whole run, and every cohort's learning curve."""

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from lad_utils.mechanism import TARGETS
from lad_utils.plots import COLOURS

LABELS = {
    "early_group_variance": "group variance, first eighth",
    "group_variance": "group variance, whole run",
    "late_group_variance": "group variance, last eighth",
    "zero_variance_share": "zero-variance share (reversed)",
    "grad_norm": "gradient norm",
    "entropy": "policy entropy",
}
PREDICTORS = (("lad", "LAD", "D", "diversity"), ("variance", "base p(1-p)", "o", "difficulty"))
CURVES = (("mean_reward", "mean reward"), ("group_variance", "raw group variance"), ("zero_variance_share", "zero variance"))


def predictors_of_training(panels: dict[str, dict[str, dict]]) -> Figure:
    """Spearman of LAD and of base p(1-p) with what training logged; a panel a set of cohorts.

    `panels`: title -> entries by name without prefix. Zero-variance share is drawn reversed: more signal is to the right.
    """
    figure, grid = plt.subplots(1, len(panels), figsize=(3.4 * len(panels) + 2, 3.4), sharey=True, squeeze=False)
    for axes, (title, found) in zip(grid[0], panels.items(), strict=True):
        for predictor, label, marker, colour in PREDICTORS:
            for place, (target, sign) in enumerate(TARGETS.items()):
                e = found[f"{predictor}.{target}_rho"]
                if e["value"] is None:
                    continue
                height = place + (0.15 if predictor == "lad" else -0.15)
                if e["ci_low"] is not None:
                    ends = [sign * e["ci_low"], sign * e["ci_high"]]
                    axes.plot(ends, [height, height], color=COLOURS[colour], linewidth=2, alpha=0.6)
                name = label if place == 0 else None
                axes.plot(sign * e["value"], height, marker, color=COLOURS[colour], label=name, linestyle="none")
        axes.axvline(0, color="0.3", linewidth=0.8)
        axes.set(xlim=(-1.05, 1.05), xlabel="Spearman, 95%", yticks=range(len(TARGETS)), yticklabels=LABELS.values())
        axes.set_title(title, fontsize=9.5, loc="left")
    grid[0, 0].invert_yaxis()
    grid[0, -1].legend(frameon=False, fontsize=8, loc="center left")
    return figure


def group_variance_scatter(table: pd.DataFrame) -> Figure:
    """LAD and base p(1-p) against the group variance that GRPO logged; `table` has lad, variance, family and run_mechanics."""
    figure, grid = plt.subplots(2, 2, figsize=(10, 7), sharex="col")
    parts = (("early_group_variance", "first eighth"), ("late_group_variance", "last eighth"))
    for row, (target, part) in zip(grid, parts, strict=True):
        for axes, (metric, label, *_) in zip(row, PREDICTORS, strict=True):
            for family, group in table.groupby("family", sort=False):
                axes.scatter(group[metric], group[target], color=COLOURS[family], label=family, s=28)
            axes.set(xlabel=f"{label}, before training", ylabel=f"raw group variance, {part}")
    grid[0, 1].legend(frameon=False, fontsize=8)
    return figure


def learning_curves(by_step: pd.DataFrame, families: dict[str, str]) -> Figure:
    """Mean reward, raw group variance and zero-variance share by step: a column a family, a line a cohort, mean over its seeds.

    `by_step` as mechanism.step_means gives it, smoothed here over an eighth of the run; `families`: cohort -> family. Families
    of one cohort share a column.
    """
    cohorts = pd.Series({c: families[c] for c in by_step["cohort"].unique()})
    columns = cohorts.where(cohorts.map(cohorts.value_counts()) > 1, "others")
    names = sorted(columns.unique(), key=lambda name: name == "others")
    figure, grid = plt.subplots(
        len(CURVES), len(names), figsize=(2.9 * len(names) + 0.6, 8), sharex=True, sharey="row", squeeze=False
    )
    width, shades = max(1, by_step["step"].max() // 8), plt.get_cmap("viridis")
    for panels, name in zip(grid.T, names, strict=True):
        mine = columns.index[columns == name]
        for place, cohort in enumerate(mine):
            curve = by_step[by_step["cohort"] == cohort].groupby("step")[[column for column, _ in CURVES]].mean()
            curve = curve.rolling(width, min_periods=1, center=True).mean()
            for axes, (column, _) in zip(panels, CURVES, strict=True):
                axes.plot(curve.index, curve[column], color=shades(0.9 * place / max(len(mine) - 1, 1)), label=cohort)
        panels[0].set_title(name, fontsize=9.5)
        panels[-1].set_xlabel("step")
        panels[-1].legend(frameon=False, fontsize=7.5, loc="upper center", bbox_to_anchor=(0.5, -0.28))
    for axes, (_, label) in zip(grid[:, 0], CURVES, strict=True):
        axes.set_ylabel(label)
    return figure
