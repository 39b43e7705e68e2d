"""Figures of the ablations: how much better or worse each variant of LAD ranks, and where a quoted bound is none."""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MultipleLocator

from lad_utils.ablations import ARMS, bound_fails, exact_kl, quadratic_kl
from lad_utils.plots import COLOURS

# what is changed -> {variant: how a reader is told}; top to bottom of the figure
ROWS = {
    "a part left out": {
        "no_headroom": "no headroom (gamma = 0)",
        "no_diversity": "no diversity (beta = 0)",
        "gamma_0_beta_0": "neither: p(1-p) alone",
        "diversity_divisor": "divided by diversity (beta = -1)",
    },
    "how strong the parts are": {
        "gamma_half": "gamma = 0.5",
        "gamma_2": "gamma = 2",
        "beta_half": "beta = 0.5",
        "gamma_0_beta_half": "gamma = 0, beta = 0.5",
        "gamma_half_beta_half": "gamma = 0.5, beta = 0.5",
        "gamma_2_beta_half": "gamma = 2, beta = 0.5",
        "gamma_half_beta_0": "gamma = 0.5, beta = 0",
        "gamma_2_beta_0": "gamma = 2, beta = 0",
    },
    "what a task can teach": {
        "entropy": "entropy of the reward, times 1-p",
        "hard_band": "share of tasks with p in .2 to .8",
        "smoothed": "p smoothed by a Beta prior",
        "plugin": "p = c/k put in",
        "unscaled_gain": "[p(1-p)]^2",
        "scaled_gain": "[p(1-p)]^1.5",
        "tilt": "exponential tilt, peak at 1/3",
    },
    "how diversity is told": {
        "distinct_fraction": "share of distinct tasks",
        "vendi_q_half": "Vendi of order 0.5",
        "vendi_q_2": "Vendi of order 2",
        "vendi_q_inf": "Vendi of order infinity",
        "char_ngrams": "prompts embedded by spelling",
        "weighted_vendi": "Vendi weighted by energy",
    },
    "the simplest products": {
        "variance_distinct": "p(1-p) x share of distinct tasks",
        "headroom_distinct": "(1-p) x share of distinct tasks",
    },
    "rollouts a task": {f"k_{k}": f"{k} rollouts" for k in (2, 4, 8, 16, 32)},
}
TITLES = {"main": "designed cohorts", "mixture": "mixtures"}
BETTER, WORSE, UNCLEAR = COLOURS["domain"], COLOURS["diversity"], "0.45"


def _differences(axes, found: dict[str, dict], places: dict[str, int]) -> None:
    """One arm's differences from LAD: a dot and an interval a variant, coloured where the interval leaves 0 out."""
    for variant, y in places.items():
        e = found[variant]
        if e["value"] is None:
            says, place = f"undefined: {e['reason']}"[:40], {"va": "center", "ha": "center", "backgroundcolor": "white"}
            axes.text(0, y, says, fontsize=7, color="0.4", **place)
            continue
        told = e["ci_low"] is not None
        colour = UNCLEAR if not told or e["ci_low"] <= 0 <= e["ci_high"] else BETTER if e["value"] > 0 else WORSE
        if told:
            axes.hlines(y, e["ci_low"], e["ci_high"], color=colour, linewidth=1.6)
        axes.scatter(e["value"], y, s=26, color=colour if told else "white", edgecolor=colour, zorder=3)
        if not told:
            says = e["reason"] if e["reason"] == "same ranking" else "no interval"
            axes.annotate(says, (e["value"], y), (6, 0), textcoords="offset points", fontsize=7, va="center")


def ablation_differences(entries: list[dict]) -> Figure:
    """Spearman of every variant minus LAD's with its paired interval, designed cohorts and mixtures side by side.

    `entries` as `ablations.ablation_entries` gives them; an arm without entries says so.
    """
    differences = {e["name"]: e for e in entries if e["name"].endswith(".minus_lad")}
    frozen = {e["name"]: e for e in entries if e["name"].endswith(".lad.rho")}
    ends = [abs(e[end]) for e in differences.values() for end in ("value", "ci_low", "ci_high") if e[end] is not None]
    widest = 1.05 * max([1.0, *ends])
    places, headings, y = {}, {}, 0
    for heading, variants in ROWS.items():
        headings[heading] = y
        places |= {variant: y + 1 + i for i, variant in enumerate(variants)}
        y += len(variants) + 2
    figure, grid = plt.subplots(1, 2, figsize=(10, 0.21 * y + 1.4), sharey=True, sharex=True)
    for axes, arm in zip(grid, ARMS, strict=True):
        axes.axvline(0, color="0.3", linewidth=0.9)
        axes.grid(axis="y", visible=False)
        title, lad = TITLES[arm], frozen.get(f"ablation.{arm}.lad.rho")
        if lad is None:
            axes.text(
                0.5, 0.6, "no lifts in this study", transform=axes.transAxes, ha="center", color="0.4", backgroundcolor="white"
            )
        else:
            value = "undefined" if lad["value"] is None else f"{lad['value']:.2f}"
            title += f": LAD itself {value}, {lad['n']} cohorts"
            _differences(axes, {v: differences[f"ablation.{arm}.{v}.minus_lad"] for v in places}, places)
        axes.set_title(title, fontsize=10, loc="left")
        axes.set(xlabel="ranks worse than LAD  <  0  >  ranks better", xlim=(-widest, widest))
        axes.xaxis.set_major_locator(MultipleLocator(0.5))
    grid[0].set_yticks(list(places.values()), [label for variants in ROWS.values() for label in variants.values()], fontsize=8)
    for heading, at in headings.items():
        grid[0].text(
            -0.02, at, heading, transform=grid[0].get_yaxis_transform(), ha="right", va="center", fontsize=9, weight="bold"
        )
    grid[0].set_ylim(y - 1.5, -0.8)
    figure.suptitle(
        "What changes when a part of LAD is changed: Spearman with lift, minus LAD's\n"
        "dot: measured; line: 95% interval, grey where it holds 0, so that the data cannot tell the two apart",
        fontsize=10,
        x=0.01,
        ha="left",
    )
    return figure


def divergence_bound(betas: tuple[float, ...], *, marked: tuple[tuple[float, float], ...]) -> Figure:
    """The exact KL(pi_0 || pi*) beside p(1-p)/(2 beta^2) over p, and where in (p, beta) the latter is no lower bound.

    Left: both times 2 beta^2, so that the quadratic is one curve. `marked`: points (p, beta) to name on the right.
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4))
    p = np.linspace(0.001, 0.999, 999)
    left.plot(p, p * (1 - p), "--", color="black", linewidth=1.4, label="quoted as a lower bound")
    for shade, beta in zip(plt.cm.viridis(np.linspace(0.1, 0.85, len(betas))), betas, strict=True):
        curve, fails = exact_kl(p, beta) * 2 * beta**2, bound_fails(p, beta)
        left.plot(p, curve, color=shade, linewidth=1.3, label=f"exact, beta = {beta:g}")
        left.plot(p, np.where(fails, curve, np.nan), color=shade, linewidth=4, alpha=0.35)
    left.set(xlabel="pass rate p", ylabel="KL(pi_0 || pi*) x 2 beta^2", xlim=(0, 1), ylim=(0, 0.33))
    left.set_title("thick: below the dashed curve, which is no bound there", fontsize=9, loc="left")
    left.legend(frameon=False, fontsize=8, ncols=2, loc="upper center")
    beta = np.geomspace(0.01, 10, 301)
    fails = bound_fails(p, beta[:, None]).astype(float)
    right.contourf(p, beta, fails, levels=[0.5, 1.5], colors=[COLOURS["diversity"]], alpha=0.35)
    for x, y in marked:
        exact, quadratic = exact_kl(x, y), quadratic_kl(x, y)
        right.scatter(x, y, color="black", marker="x" if bound_fails(x, y) else "o", zorder=3)
        says = f"p={x:g}, beta={y:g}\nexact {exact:.3g}, quoted {quadratic:.3g}"
        side = 1 if x < 0.6 else -1  # names stay inside the panel
        place = {"textcoords": "offset points", "fontsize": 8, "va": "center", "ha": "left" if side > 0 else "right"}
        right.annotate(says, (x, y), (8 * side, 0), **place)
    right.set(xlabel="pass rate p", ylabel="beta, the weight of the KL term", yscale="log", xlim=(0, 1))
    right.set_title("coloured: p(1-p)/(2 beta^2) is no lower bound", fontsize=9, loc="left")
    return figure
