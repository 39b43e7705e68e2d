"""The figures: matplotlib and seaborn, one style, each drawn from the study's own tables."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from lad_utils.runs import write_bytes
from lad_utils.stats import fit_line

# Okabe-Ito: told apart by colour-blind readers too
COLOURS = {
    "difficulty": "#0072B2",
    "shape": "#56B4E9",
    "diversity": "#D55E00",
    "labels": "#CC79A7",
    "verifier": "#E69F00",
    "adversarial": "#000000",
    "domain": "#009E73",
    "random": "#7F7F7F",
    "selection": "#0072B2",
    "mixture": "#0072B2",
}
MOST_NAMES = 25  # points with names in one scatter


def style() -> None:
    sns.set_theme(context="notebook", style="whitegrid", font_scale=0.9)
    plt.rcParams.update({"figure.dpi": 110, "savefig.dpi": 160, "axes.spines.top": False, "axes.spines.right": False})
    plt.rcParams.update({"svg.hashsalt": "lad", "figure.constrained_layout.use": True})


def show(figure: Figure, path: Path | None = None) -> None:
    """Display a figure, and save it as `path`.png and `path`.svg."""
    from io import BytesIO

    from IPython.display import display

    if path is not None:
        for kind in ("png", "svg"):
            buffer = BytesIO()
            figure.savefig(buffer, format=kind, metadata={"Date": None} if kind == "svg" else None)
            write_bytes(Path(path).with_suffix(f".{kind}"), buffer.getvalue())
    display(figure)
    plt.close(figure)


def label_column(axis, points: pd.DataFrame) -> None:
    """Labels in a column right of the axes, in the order of y, none on another, each tied to its point.

    points: label, x, y and bold, one row a point; the y limits of `axis` are final.
    """
    rows, (low, high) = points.sort_values("y", kind="stable"), axis.get_ylim()
    room = (high - low) / max(len(rows) + 1, 45)
    heights = rows["y"].to_numpy().copy()
    for i in range(1, len(heights)):
        heights[i] = max(heights[i], heights[i - 1] + room)
    for i in range(len(heights) - 1, -1, -1):  # pushed down again where the column ends
        heights[i] = min(heights[i], high - room / 3 if i == len(heights) - 1 else heights[i + 1] - room)
    tie = {"arrowstyle": "-", "color": "0.75", "linewidth": 0.6, "shrinkA": 0, "shrinkB": 3}
    for row, height in zip(rows.itertuples(), heights, strict=True):
        place = {"xytext": (1.02, height), "textcoords": axis.get_yaxis_transform(), "annotation_clip": False}
        weight = "bold" if row.bold else "normal"
        axis.annotate(
            row.label, (row.x, row.y), fontsize=7.5, va="center", fontweight=weight, zorder=0, arrowprops=tie, **place
        )


def pass_rate_histogram(pass_rates, *, title: str) -> Figure:
    figure, axes = plt.subplots(figsize=(6, 3))
    axes.hist(pass_rates, bins=np.linspace(0, 1, 17), color=COLOURS["difficulty"], edgecolor="white")
    axes.set(xlabel="pass rate p of a task", ylabel="tasks", title=title, xlim=(0, 1))
    return figure


def cohort_histograms(cohorts: pd.DataFrame, pool: pd.DataFrame) -> Figure:
    """Screened pass rates of each cohort's pool tasks, one small panel a cohort; cohorts of new tasks have none."""
    rates = pool.set_index("task_id")["pass_rate"]
    names = list(dict.fromkeys(cohorts["cohort"]))
    columns = 5
    height = -(-len(names) // columns)
    figure, grid = plt.subplots(height, columns, figsize=(11, 1.7 * height), sharex=True, squeeze=False)
    for axes in grid.flat[len(names) :]:
        axes.set_visible(False)
    for axes, name in zip(grid.flat, names, strict=False):
        group = cohorts[cohorts["cohort"] == name]
        values = rates.reindex(group["task_id"]).dropna()
        if len(values):
            axes.hist(values, bins=np.linspace(0, 1, 17), color=COLOURS[group["family"].iloc[0]])
        else:
            axes.text(0.5, 0.5, "new tasks", ha="center", va="center", transform=axes.transAxes, color="0.4")
        axes.set_title(name, fontsize=9)
        axes.set(yticks=[], xlim=(0, 1))
    figure.supxlabel("screened pass rate")
    return figure


def pass_rates_by_cohort(pass_rates: pd.DataFrame) -> Figure:
    """Distribution of scored pass rates by each cohort's own labels, a box a cohort."""
    order = list(dict.fromkeys(pass_rates["cohort"]))
    figure, axes = plt.subplots(figsize=(8, 0.3 * len(order) + 1.2))
    sns.boxplot(pass_rates, x="pass_rate", y="cohort", order=order, color="#9ecae1", fliersize=1, linewidth=0.8, ax=axes)
    axes.set(xlabel="pass rate by the cohort's own labels and verifier (fresh rollouts)", ylabel="", xlim=(0, 1))
    return figure


def energy_curve(*, gamma: float) -> Figure:
    p = np.linspace(0, 1, 401)
    figure, axes = plt.subplots(figsize=(6, 3.2))
    for g, line in ((0, ":"), (gamma, "-"), (2, "--")):
        axes.plot(
            p,
            p * (1 - p) ** (1 + g),
            line,
            label=f"gamma={g:g}" + (" (LAD)" if g == gamma else ""),
            color=COLOURS["difficulty"],
        )
    peak = 1 / (2 + gamma)
    axes.axvline(peak, color="0.6", linewidth=0.8)
    axes.annotate(f"peak at p={peak:.2f}", (peak, 0.01), xytext=(4, 0), textcoords="offset points", fontsize=8)
    axes.set(xlabel="pass rate p", ylabel="energy p(1-p)(1-p)^gamma", xlim=(0, 1), ylim=(0, None))
    axes.legend(frameon=False)
    return figure


def score_intervals(scores: pd.DataFrame, *, label: str) -> Figure:
    """One metric by cohort with its intervals; `scores` has cohort, value, ci_low, ci_high."""
    ordered = scores.sort_values("value")
    figure, axes = plt.subplots(figsize=(7, 0.27 * len(ordered) + 1))
    errors = np.maximum([ordered["value"] - ordered["ci_low"], ordered["ci_high"] - ordered["value"]], 0)
    axes.errorbar(
        ordered["value"], ordered["cohort"], xerr=errors, fmt="o", color=COLOURS["difficulty"], markersize=4, capsize=2
    )
    axes.set(xlabel=f"{label} with 95% interval")
    return figure


def training_curves(steps: pd.DataFrame, *, title: str) -> Figure:
    figure, grid = plt.subplots(1, 3, figsize=(10, 2.6))
    for axes, (column, label) in zip(
        grid,
        (("mean_reward", "mean reward"), ("zero_variance_share", "zero-variance groups"), ("entropy", "policy entropy")),
        strict=True,
    ):
        for _, run in steps.groupby("run_id"):
            axes.plot(run["step"], run[column].rolling(5, min_periods=1).mean(), linewidth=1.2)
        axes.set(xlabel="step", title=label)
    figure.suptitle(title)
    return figure


def lift_scatter(table: pd.DataFrame, *, metric: str, label: str, subtitle: str) -> Figure:
    """A metric against lift, a point a cohort with its interval, the fitted line, names beside the points if there is room."""
    figure, axes = plt.subplots(figsize=(8, 5))
    line = fit_line(table[metric], table["lift"])
    if np.isfinite(line.slope):
        x = np.array([table[metric].min(), table[metric].max()])
        axes.plot(x, 100 * (line.intercept + line.slope * x), color="0.6", linewidth=1, zorder=0)
    for family, group in table.groupby("family", sort=False):
        errors = 100 * np.maximum([group["lift"] - group["ci_low"], group["ci_high"] - group["lift"]], 0)
        style = {"color": COLOURS[family], "markersize": 6, "capsize": 2, "elinewidth": 1}
        axes.errorbar(group[metric], 100 * group["lift"], yerr=errors, fmt="o", label=family, **style)
    named = table if len(table) <= MOST_NAMES else table.head(0)
    for i, row in enumerate(named.sort_values(metric).to_dict("records")):  # neighbours' names go above and below in turn
        place = {"xytext": (5, 5 if i % 2 else -11), "textcoords": "offset points", "fontsize": 7.5, "color": "0.25"}
        axes.annotate(row["cohort"].replace("_", " "), (row[metric], 100 * row["lift"]), **place)
    axes.axhline(0, color="0.3", linewidth=0.8)
    axes.margins(x=0.1)
    axes.set(xlabel=label, ylabel="measured lift on held-out tasks (points)")
    axes.set_title(subtitle, fontsize=10, loc="left")
    axes.legend(frameon=False, fontsize=8, ncols=2)
    return figure


def metric_ranking(entries: pd.DataFrame, *, ceiling: float | None) -> Figure:
    """Plain Spearman of every metric with lift, noise ceiling as a line; `entries` has label, value, ci_low, ci_high."""
    ordered = entries.dropna(subset="value").iloc[::-1]
    figure, axes = plt.subplots(figsize=(7, 0.33 * len(ordered) + 1.2))
    errors = np.maximum([ordered["value"] - ordered["ci_low"], ordered["ci_high"] - ordered["value"]], 0)
    colours = [COLOURS["diversity"] if label == "LAD" else COLOURS["difficulty"] for label in ordered["label"]]
    axes.hlines(ordered["label"], ordered["value"] - errors[0], ordered["value"] + errors[1], color=colours, linewidth=1.5)
    axes.scatter(ordered["value"], ordered["label"], color=colours, zorder=3)
    axes.axvline(0, color="0.3", linewidth=0.8)
    if ceiling is not None:
        axes.axvline(ceiling, color="0.5", linestyle="--", linewidth=1)
        axes.annotate(
            "noise ceiling", (ceiling, 0), xytext=(-4, -2), textcoords="offset points", ha="right", fontsize=8, color="0.35"
        )
    axes.set(xlabel="Spearman correlation with measured lift, 95% interval", xlim=(-1.03, 1.03))
    return figure


def zero_kinds(zeros: pd.DataFrame) -> Figure:
    """How many tasks have no strict success, by kind and budget, and the share that further rollouts solved.

    `zeros`: one row a task with budget, kind ("" where solved), more_k, more_correct.
    """
    figure, grid = plt.subplots(1, 2, figsize=(9, 3))
    failed = zeros[(zeros["kind"] != "") & (zeros["more_k"] > 0)]
    failed = failed.assign(solved=failed["more_correct"] > 0, label=failed["budget"] + " budget: " + failed["kind"])
    by_kind = failed.groupby("label")["solved"].agg(["size", "mean"])
    by_kind["size"] /= zeros.groupby("budget").size()[[label.split()[0] for label in by_kind.index]].to_numpy()
    for axes, column, label in zip(
        grid, ("size", "mean"), ("share of tasks with no success", "of these, solved with more"), strict=True
    ):
        axes.barh(by_kind.index, by_kind[column], color=COLOURS["difficulty"], height=0.6)
        axes.set(xlabel=label, xlim=(0, 1))
    grid[1].set_yticklabels([])
    return figure


def size_curves(groups: pd.DataFrame, *, x: str, by: str, line: str) -> Figure:
    """Lift over the largest lift of its `line`, against `x` on a log axis, one panel a value of `by`."""
    names = list(dict.fromkeys(groups[by]))
    figure, grid = plt.subplots(1, len(names), figsize=(3.4 * len(names), 3), sharey=True, squeeze=False)
    for axes, name in zip(grid[0], names, strict=True):
        for _, rows in groups[groups[by] == name].groupby(line):
            rows = rows.groupby(x)["lift"].mean().reset_index()
            axes.plot(rows[x], rows["lift"] / rows["lift"].max(), marker="o", markersize=3, linewidth=0.9, alpha=0.7)
        axes.set(xscale="log", xlabel="tasks", ylim=(-0.6, 1.1))
        axes.set_title(name, fontsize=9)
    grid[0][0].set(ylabel="lift, largest = 1")
    return figure


def size_lifts(runs: pd.DataFrame) -> Figure:
    """Measured lift against the number of distinct tasks, one line a number of steps; `runs`: distinct, steps, lift."""
    figure, axes = plt.subplots(figsize=(6, 3.6))
    shades = plt.cm.viridis(np.linspace(0.1, 0.8, runs["steps"].nunique()))
    for shade, (steps, rows) in zip(shades, runs.groupby("steps"), strict=True):
        means = rows.groupby("distinct")["lift"].mean()
        axes.plot(means.index, 100 * means, color=shade, marker="o", label=f"{steps} steps")
        axes.scatter(rows["distinct"], 100 * rows["lift"], color=shade, s=12, alpha=0.6)
    axes.axhline(0, color="0.3", linewidth=0.8)
    axes.set(xscale="log", xlabel="distinct tasks", ylabel="measured lift (points)")
    distinct = sorted(runs["distinct"].unique())
    axes.set_xticks(distinct, [f"{d:.0f}" for d in distinct], minor=False)
    axes.legend(frameon=False, fontsize=8, loc="upper left", ncols=3)
    axes.margins(y=0.15)
    return figure


def fewer_rollouts(curves: pd.DataFrame) -> Figure:
    """Agreement with the ranking by all rollouts against rollouts a task, a panel an arm, clean ones below.

    `curves`: rows of adaptive.replay_curve with arm and clean. Points without a line are where the adaptive rule stops itself.
    """
    arms = list(dict.fromkeys(curves["arm"]))
    figure, grid = plt.subplots(2, len(arms), figsize=(5 * len(arms), 6.4), squeeze=False, sharex=True)
    names = [m for m in dict.fromkeys(curves["method"]) if curves[curves["method"] == m]["setting"].notna().all()]
    colours = dict(zip(names, sns.color_palette("colorblind", len(names)), strict=True))
    for column, arm in enumerate(arms):
        for row, clean in enumerate((False, True)):
            axes, mine = grid[row][column], curves[(curves["arm"] == arm) & (curves["clean"] == clean)]
            for name in names:
                line = mine[mine["method"] == name]
                axes.plot(
                    line["rollouts_per_task"], line["spearman"], marker="o", markersize=3, color=colours[name], label=name
                )
                axes.fill_between(
                    line["rollouts_per_task"], line["spearman_low"], line["spearman_high"], color=colours[name], alpha=0.12
                )
            stops = mine[mine["setting"].isna()]
            axes.scatter(
                stops["rollouts_per_task"], stops["spearman"], marker="*", s=70, color="black", zorder=4, label="stops itself"
            )
            axes.set(xscale="log", ylim=(max(0.4, mine["spearman_low"].min() - 0.02), 1.005))
            axes.set_xticks([1, 2, 4, 8, 16, 32], ["1", "2", "4", "8", "16", "32"], minor=False)
            axes.set_title(
                f"{arm}: {'one half against the other' if clean else 'against all rollouts'}", fontsize=9, loc="left"
            )
        grid[1][column].set(xlabel="rollouts a task, on average")
    for row in grid:
        row[0].set(ylabel="Spearman with the full ranking")
    grid[0][0].legend(frameon=False, fontsize=7.5)
    return figure


def fault_detection(points: pd.DataFrame, reliability: pd.DataFrame) -> Figure:
    """Precision against recall of suspected labels by cohort, and the share of wrong labels at each posterior."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8))
    for name, curve in points.groupby("cohort", sort=False):
        left.step(curve["recall"], curve["precision"], where="post", label=name.replace("_", " "))
    left.set(xlabel="recall of wrong labels", ylabel="precision", xlim=(0, 1.02), ylim=(0, 1.02))
    if len(points):
        left.legend(frameon=False, fontsize=8)
    right.plot([0, 1], [0, 1], color="0.6", linewidth=1)
    errors = np.maximum([reliability["wrong_share"] - reliability["low"], reliability["high"] - reliability["wrong_share"]], 0)
    right.errorbar(
        reliability["posterior"], reliability["wrong_share"], yerr=errors, fmt="o", capsize=2, color=COLOURS["labels"]
    )
    right.set(xlabel="posterior that the label is wrong", ylabel="share that is wrong", xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    return figure


def task_pull(report: pd.DataFrame) -> Figure:
    """Every task of a set by its pull, most first, coloured by verdict; the line at 1 is the average task."""
    figure, axes = plt.subplots(figsize=(8, 3.2))
    for (verdict, rows), colour in zip(report.groupby("verdict", sort=False), sns.color_palette("colorblind"), strict=False):
        axes.scatter(rows.index, rows["pull"], s=9, color=colour, label=f"{verdict} ({len(rows)})")
    axes.axhline(1, color="0.4", linewidth=0.8)
    axes.set(xlabel="tasks, most pull first", ylabel="pull (average task = 1)")
    axes.legend(frameon=False, fontsize=8)
    return figure
