"""Pictures and tables of the problem level: shares explained, gains by base pass rate, ceilings by number of runs."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from lad_utils.findings import shown
from lad_utils.plots import COLOURS
from lad_utils.problems import SPLITS, Problems, deal_runs, problem_gains, reliability_of

LABELS = {
    "pass_rate": "base pass rate p",
    "headroom": "headroom 1-p",
    "variance": "p(1-p)",
    "lad": "p(1-p)²",
    "scaled_gain": "[p(1-p)]^1.5",
    "unscaled_gain": "[p(1-p)]²",
    "exponential_tilt": "exponential tilt",
    "log_likelihood": "log-likelihood of a solution",
    "larger_pass_rate": "larger model's pass rate",
    "larger_minus_own": "larger model's minus own",
    "transfer": "p(1-p) x relevance of tasks",
    "transfer_shuffled": "the same, embeddings shuffled",
    "combination": "all above combined, cross-validated",
}
SUBSETS = {"all": "all problems", "rare": "rarely solved ones", "fresh": "fresh problems"}
PUBLISHED = {  # gains of a checkpoint of another run family against the best of what the base tells, as a paper reports them
    "gains of other runs: rho": "0.52 against 0.33; 0.34 against 0.17",
    "gains of other runs: explained share": "0.30; 0.24",
}


def label(signal: str) -> str:
    return LABELS.get(signal) or f"{signal.replace('_', ' ')} runs"


def signal_table(entries: list[dict], subset: str) -> pd.DataFrame:
    """The entries of a subset's signals as readers see them, a row a signal, a column a measure."""
    parts = [(e["name"].split("."), e) for e in entries if e["name"].startswith(f"problems.{subset}.")]
    rows = {}
    for name, e in parts:
        if len(name) == 4:
            rows.setdefault(label(name[2]), {})[name[3].replace("_", " ")] = shown(e)
    return pd.DataFrame(rows).T


def explained_shares(entries: list[dict]) -> Figure:
    """Share of the explainable variance by signal, a panel a subset that has any; an interval that reaches 0 shows nothing."""
    found = [(e["name"].split("."), e) for e in entries if e["name"].endswith(".explained_share") and e["value"] is not None]
    names = [s for s in SUBSETS if any(n[1] == s for n, _ in found)] or [next(iter(SUBSETS))]
    signals = list(dict.fromkeys(n[2] for n, _ in found))[::-1]
    size = (2.2 + 2.8 * len(names), 0.28 * len(signals) + 1.3)
    figure, grid = plt.subplots(1, len(names), figsize=size, sharey=True, squeeze=False)
    for axes, subset in zip(grid[0], names, strict=True):
        for n, e in found:
            if n[1] == subset:
                low, high = (e["value"] if e[c] is None else e[c] for c in ("ci_low", "ci_high"))
                colour = COLOURS["diversity" if n[2] == "variance" else "difficulty"]
                axes.plot([low, high], [signals.index(n[2])] * 2, color=colour, linewidth=1.5)
                axes.plot(e["value"], signals.index(n[2]), "o", color=colour, markersize=5)
        axes.axvline(0, color="0.3", linewidth=0.8)
        axes.axvline(1, color="0.5", linestyle="--", linewidth=1)
        axes.set(xlim=(-0.15, 1.15), yticks=range(len(signals)), yticklabels=[label(s) for s in signals])
        axes.set_title(SUBSETS[subset], fontsize=10, loc="left")
    figure.supxlabel("share of explainable variance of gains, 95% interval (1: all that is not noise)", fontsize=9)
    return figure


def gains_by_pass_rate(problems: Problems) -> Figure:
    """Mean gain by what b1 says of a problem, over b2 and b3, and over b1 itself; bars are two standard errors."""
    b1, after = problems.draws[1], problems.after.mean(axis=1)
    figure, axes = plt.subplots(figsize=(6, 3.4))
    kinds = {
        "over other base draws: clean": (after - problems.draws[[2, 3]].mean(axis=1), COLOURS["difficulty"], "-"),
        "over the same base draw: coupled": (after - b1, COLOURS["diversity"], "--"),
    }
    for name, (gain, colour, line) in kinds.items():
        by = (100 * gain).groupby(b1.round(6)).agg(["mean", "sem"])
        axes.errorbar(
            by.index, by["mean"], 2 * by["sem"].fillna(0), color=colour, ls=line, marker="o", ms=4, capsize=2, label=name
        )
    axes.axhline(0, color="0.3", linewidth=0.8)
    axes.set(xlabel="pass rate in the base draw b1", ylabel="mean gain (points)")
    axes.legend(frameon=False, fontsize=8)
    return figure


def ceiling_curve(problems: Problems, *, rng: np.random.Generator) -> pd.DataFrame:
    """The ceiling by how many runs each half averages (1, 2, 4, ... and half of them): columns per_half, ceiling."""
    most, rows = problems.after.shape[1] // 2, []
    for size in sorted({most} | {2**i for i in range(most.bit_length())}) if most else []:
        halves = deal_runs(problems.after.columns, n_splits=SPLITS, rng=rng, per_half=size)
        rows.append({"per_half": size, "ceiling": reliability_of(problem_gains(problems.after, problems.draws, halves))})
    return pd.DataFrame(rows, columns=["per_half", "ceiling"])


def ceilings_by_runs(curves: dict[str, pd.DataFrame]) -> Figure:
    """`ceiling_curve` of several subsets."""
    figure, axes = plt.subplots(figsize=(5, 3.2))
    for (name, curve), colour in zip(curves.items(), ("difficulty", "diversity", "domain"), strict=False):
        axes.plot(curve["per_half"], curve["ceiling"], marker="o", markersize=4, color=COLOURS[colour], label=SUBSETS[name])
    sizes = sorted({int(s) for c in curves.values() for s in c["per_half"]})
    axes.set(xscale="log", xlabel="runs averaged in each half", ylabel="ceiling: reliability of gains", ylim=(None, 1.02))
    axes.set_xticks(sizes, [str(s) for s in sizes])
    axes.minorticks_off()
    axes.legend(frameon=False, fontsize=8)
    return figure


def history_table(history: list[dict], entries: list[dict], *, study: str) -> pd.DataFrame:
    """The history of a real run, this study and published values; compare the order of signals, not values: ceilings differ."""
    rows = {
        "ceiling (Pearson)": "ceiling",
        "ceiling (ranks)": "ceiling_rank",
        **{f"{label(s)}: rho": f"{s}.rho" for s in ("variance", "lad", "pass_rate", "headroom")},
        **{f"{label(s)}: coupled rho": f"{s}.coupled_rho" for s in ("variance", "lad", "pass_rate", "headroom")},
        **{f"{label(s)}: explained share": f"{s}.explained_share" for s in ("variance", "lad", "pass_rate", "combination")},
    }
    columns = {}
    for column, subset, source in (("history", "history", history), (study, "all", entries)):
        found = {e["name"].removeprefix(f"problems.{subset}."): shown(e) for e in source}
        columns[column] = {row: found.get(name, "-") for row, name in rows.items()}
        for arm in (n for n in found if n.startswith("gains_of_") and n.endswith((".rho", ".explained_share"))):
            signal, measure = arm.split(".")
            columns[column][f"{label(signal)}: {measure.replace('_', ' ')}"] = found[arm]
    return (
        pd.DataFrame(columns | {"published": PUBLISHED})
        .reindex(list(dict.fromkeys(row for c in (*columns.values(), PUBLISHED) for row in c)))
        .fillna("-")
    )
