"""The figures of the validation: metrics and their ceilings, LOCO on useless metrics, contrasts, predicted lifts."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from lad_utils.agreement import NullLoco
from lad_utils.plots import COLOURS, label_column

LAD, OTHER, MUTED = COLOURS["diversity"], COLOURS["difficulty"], "0.55"


def metric_overview(panels: dict[str, tuple[pd.DataFrame, float | None]]) -> Figure:
    """Spearman of every metric with lift, a panel a set of cohorts, noise ceiling as a line.

    `panels`: title -> (rows with label, value, ci_low, ci_high; ceiling or None). Metrics keep the first panel's order.
    """
    first = next(iter(panels.values()))[0]
    order = first.assign(size=first["value"].abs()).sort_values("size", na_position="first")["label"].tolist()
    figure, axes = plt.subplots(
        1, len(panels), figsize=(3.6 * len(panels) + 1.8, 0.34 * len(order) + 1.4), sharey=True, squeeze=False
    )
    for axis, (title, (rows, ceiling)) in zip(axes[0], panels.items(), strict=True):
        rows = rows.set_index("label").reindex(order)
        for place, (label, row) in enumerate(rows.iterrows()):
            colour = LAD if label == "LAD" else OTHER
            if pd.isna(row["value"]):
                axis.annotate("undefined", (0, place), ha="center", va="center", fontsize=7.5, color=MUTED)
                continue
            axis.plot([row["ci_low"], row["ci_high"]], [place, place], color=colour, linewidth=2, alpha=0.6)
            axis.plot(row["value"], place, "D" if label == "LAD" else "o", color=colour, markersize=6)
        axis.axvline(0, color="0.3", linewidth=0.8)
        if ceiling is not None:
            axis.axvline(ceiling, color="0.4", linestyle="--", linewidth=1)
        axis.set(xlim=(-1.05, 1.05), yticks=range(len(order)), yticklabels=order, xlabel="Spearman with lift, 95%")
        axis.set_title(title + ("" if ceiling is None else f"\nceiling {ceiling:.2f}"), fontsize=9.5, loc="left")
    return figure


def loco_null(nulls: list[NullLoco], *, observed: dict[str, tuple[float, float]], folds: str) -> Figure:
    """Held-out against plain Spearman of simulated metrics of known worth: means with 5 to 95% ranges, and the study's own.

    `observed`: label -> (plain, held out) of measured metrics, drawn at the absolute plain one, since a line takes either sign.
    """
    figure, axes = plt.subplots(figsize=(7.8, 5.6))
    middle = np.array([[np.nanmean(n.plain), np.nanmean(n.held_out)] for n in nulls])
    ranges = np.array([np.nanquantile(n.held_out, [0.05, 0.95]) for n in nulls])
    axes.fill_between(middle[:, 0], ranges[:, 0], ranges[:, 1], color=OTHER, alpha=0.15, label="simulated, 5 to 95%")
    axes.plot(middle[:, 0], middle[:, 1], color=OTHER, marker="o", label="simulated, mean")
    axes.plot([-0.1, 1], [-0.1, 1], color="0.5", linestyle=":", label="no bias")
    known = {
        label: (abs(plain), held_out) for label, (plain, held_out) in observed.items() if np.isfinite([plain, held_out]).all()
    }
    for label, point in known.items():
        axes.plot(*point, "D", color=LAD if label == "LAD" else MUTED, markersize=6)
    axes.axhline(0, color="0.3", linewidth=0.8)
    axes.set(xlabel="plain Spearman", ylabel=f"Spearman held out by {folds}", ylim=(-1.05, 1.05), xlim=(-0.05, 1.05))
    axes.legend(frameon=False, fontsize=8, loc="upper left")
    rows = [{"label": label, "x": x, "y": y, "bold": label == "LAD"} for label, (x, y) in known.items()]
    if rows:
        label_column(axes, pd.DataFrame(rows))
    return figure


def contrasts(rows: pd.DataFrame, *, label: str) -> Figure:
    """Differences with 95% intervals in points, each beside the side that was predicted; rows: label, sign, value, ci_*."""
    rows = rows.dropna(subset="value").iloc[::-1]
    figure, axes = plt.subplots(figsize=(7.4, 0.5 * len(rows) + 1.3))
    reach = 1.15 * 100 * np.nanmax(np.abs(rows[["value", "ci_low", "ci_high"]].to_numpy(dtype=float)))
    for place, row in enumerate(rows.to_dict("records")):
        axes.barh(place, row["sign"] * reach, height=0.86, color="0.93", zorder=0)
        right = row["sign"] * row["value"] > 0
        colour = OTHER if right else LAD
        axes.plot([100 * row["ci_low"], 100 * row["ci_high"]], [place, place], color=colour, linewidth=2)
        axes.plot(100 * row["value"], place, "o" if right else "s", color=colour, markersize=7)
    axes.axvline(0, color="0.3", linewidth=0.8)
    axes.set(
        yticks=range(len(rows)), yticklabels=rows["label"], xlim=(-reach, reach), xlabel=f"{label}; grey: the predicted side"
    )
    return figure


def predicted_lifts(table: pd.DataFrame) -> Figure:
    """Predicted lift with its interval against the measured one; abstentions hollow.

    Columns of `table`, a row a cohort: predicted, low, high, lift (shares), abstain.
    """
    table = table[np.isfinite(table[["predicted", "lift"]]).all(axis=1)]
    figure, axes = plt.subplots(figsize=(6, 5))
    for abstained, rows in table.groupby(table["abstain"].astype(bool)):
        inside = rows["lift"].between(rows["low"], rows["high"])
        bounded = rows[np.isfinite(rows[["low", "high"]]).all(axis=1)]
        axes.vlines(100 * bounded["lift"], 100 * bounded["low"], 100 * bounded["high"], color="0.75", linewidth=1, zorder=1)
        for hit, colour, marker in ((True, OTHER, "o"), (False, LAD, "s")):
            some = rows[inside == hit]
            label = f"{'inside' if hit else 'outside'} the interval{', abstained' if abstained else ''} ({len(some)})"
            face = "none" if abstained else colour
            axes.scatter(
                100 * some["lift"],
                100 * some["predicted"],
                marker=marker,
                edgecolors=colour,
                facecolors=face,
                label=label,
                zorder=3,
            )
    limits = [100 * table[["lift", "predicted"]].min().min() - 2, 100 * table[["lift", "predicted"]].max().max() + 2]
    axes.plot(limits, limits, color="0.5", linestyle=":")
    axes.set(xlabel="measured lift (points)", ylabel="predicted lift, 90% interval (points)")
    axes.legend(frameon=False, fontsize=8)
    return figure
