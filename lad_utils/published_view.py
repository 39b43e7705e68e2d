"""The published record as readers see it: the forest plot, what it supports and contradicts, and LAD's limits, from entries."""

import re

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from lad_utils.findings import shown
from lad_utils.plots import COLOURS
from lad_utils.published import METRICS, MIN_COHORTS, SATURATED

STUDY_STYLES = [("difficulty", "o"), ("diversity", "s"), ("domain", "^"), ("labels", "D"), ("verifier", "v")]  # colour, marker
MIN_GROUPS = 3  # sets or groups below which nothing is said to support or contradict
VARIANTS = {
    "equal_size.": "cohorts of one size",
    "exact_figures.": "no figures from notes or abstracts",
    "exact_energy.": "no p(1-p) from a mean that hides spread",
    "assumed_budgets.": "budgets not stated taken as equal",
}


def group_table(found: dict[str, dict], *, prefix: str = "") -> pd.DataFrame:
    """One row a metric and testable group of `found`: metric, study, group, label, rho, low, high, p_value, n."""
    rows, pattern = [], re.compile(rf"published\.{re.escape(prefix)}(\w+)\.group\.((.+?) \| (.+))\.rho")
    for name, e in found.items():
        if (match := pattern.fullmatch(name)) and e["value"] is not None:
            metric, group, study, rest = match.groups()
            rest = re.sub(
                r" \((?![^)]*eval\))[^)]*\)", "", rest
            )  # brackets crowd the labels, but for settings of the evaluation
            label = f"{study.replace('_', ' ')}: {rest.replace(' | ', ', ')}"
            row = {"metric": metric, "study": study, "group": group, "label": label, "rho": e["value"], "low": e["ci_low"]}
            p_value = found[name.removesuffix("rho") + "p_value"]["value"]
            rows.append(row | {"high": e["ci_high"], "p_value": p_value, "n": e["n"]})
    return pd.DataFrame(rows, columns=["metric", "study", "group", "label", "rho", "low", "high", "p_value", "n"])


def forest(found: dict[str, dict]) -> Figure:
    """Spearman with lift, a row a group and a panel a metric, its interval where there is one, the pooled value as a diamond.

    Below the pooled diamond, hollow ones without one paper each, a cross where one cluster is left, which has no interval.
    Papers differ by colour and by marker; the number of cohorts stands beside.
    """
    table = group_table(found)
    labels, studies = list(dict.fromkeys(table["label"])), list(dict.fromkeys(table["study"]))
    summaries = ["pooled"] + [f"without.{s}" for s in studies]
    names = labels + ["pooled"] + [f"without {s.replace('_', ' ')}" for s in studies]
    figure, grid = plt.subplots(1, len(METRICS), figsize=(13, 0.29 * len(names) + 1.3), sharey=True)
    for axes, (metric, title) in zip(grid, METRICS.items(), strict=True):
        for r in table[table["metric"] == metric].itertuples():
            colour, marker = STUDY_STYLES[studies.index(r.study) % len(STUDY_STYLES)]
            y, colour = labels.index(r.label), COLOURS[colour]
            if r.low is not None and np.isfinite(r.low):
                axes.hlines(y, r.low, r.high, color=colour, linewidth=1.4)
            axes.plot(r.rho, y, marker, color=colour, markersize=5.5)
            axes.annotate(f"{r.n}", (1.12, y), fontsize=7.5, color="0.35", va="center", annotation_clip=False)
        for y, summary in enumerate(summaries, start=len(labels)):
            e = found.get(f"published.{metric}.{summary}.rho")
            if e is None or e["value"] is None:
                continue
            if e["ci_low"] is None:  # one cluster: a narrow diamond would claim a precision that nobody knows
                axes.plot(e["value"], y, "x", color="0.15", markersize=6)
                continue
            corners = [(e["ci_low"], y), (e["value"], y - 0.33), (e["ci_high"], y), (e["value"], y + 0.33)]
            fill = "0.15" if summary == "pooled" else "none"
            axes.add_patch(plt.Polygon(corners, facecolor=fill, edgecolor="0.15", linewidth=1, zorder=3))
        axes.axvline(0, color="0.3", linewidth=0.8)
        axes.axhline(len(labels) - 0.5, color="0.6", linewidth=0.8)
        axes.set(xlim=(-1.05, 1.05), xlabel="Spearman", yticks=range(len(names)), ylim=(len(names) - 0.4, -0.6))
        axes.set_title(f"{title}\npooled p {shown(found[f'published.{metric}.pooled.p_value'], 3)}", fontsize=10)
        axes.grid(axis="y", visible=False)
    grid[0].set_yticklabels(names, fontsize=8)
    return figure


def _result(found: dict[str, dict], name: str) -> str:
    """A pooled Spearman with its interval and p-value, or why there is none."""
    rho, p = found[f"{name}.rho"], found[f"{name}.p_value"]
    return shown(rho) + ("" if rho["value"] is None else f" (p = {shown(p, 3)}, {rho['n']} groups)")


def _range(found: dict[str, dict], name: str, *, digits: int = 1, scale: float = 1) -> str:
    """The lowest and the highest of some numbers, or the one that there is."""
    low, high = (found[f"{name}.{end}"]["value"] for end in ("lowest", "highest"))
    if low is None:
        return f"undefined ({found[f'{name}.lowest']['reason']})"
    ends = [f"{scale * v:.{digits}f}" for v in (low, high)]
    return ends[0] if ends[0] == ends[1] else f"{ends[0]} to {ends[1]}"


def _papers(found: dict[str, dict], start: str, end: str) -> list[str]:
    """The papers that have entries `start`<paper>`end`."""
    return [n[len(start) :].removesuffix(end) for n in found if n.startswith(start) and n.endswith(end)]


def _verdict(found: dict[str, dict], name: str, *, wanted: int) -> str:
    """Whether a pooled Spearman with p < 0.05 has the sign that LAD wants: Supports, Contradicts or Leaves open."""
    rho, p = found[f"{name}.rho"]["value"], found[f"{name}.p_value"]["value"]
    if rho is None or p >= 0.05:
        return "Leaves open"
    return "Supports" if np.sign(rho) == wanted else "Contradicts"


def _beaten(found: dict[str, dict], spot: str) -> tuple[str, str]:
    """(verdict, words) on sets that LAD puts last: whether they gained less than every other cohort of their group."""
    name = f"published.{spot}.sets.share_beaten"
    middle, most = (found[f"{name}.{end}"]["value"] for end in ("median", "highest"))
    if middle is None:
        return "Leaves open", "no group holds such a set"
    n = found[f"{name}.median"]["n"]
    verdict = "Leaves open" if n < MIN_GROUPS else "Supports" if most == 0 else "Contradicts" if middle > 0 else "Leaves open"
    words = f"{n} such sets, they out-gained {_range(found, name, digits=0, scale=100)}% of the others"
    return verdict, words


def published_findings(found: dict[str, dict]) -> str:
    """What the published record supports and what it contradicts about LAD, in Markdown, whichever way the entries fall."""
    count = {n: found[f"published.{n}"]["value"] for n in ("rows", "rows_in_groups", "groups")}
    groups, same = group_table(found), group_table(found, prefix="equal_size.")
    n_testable = {m: int((groups["metric"] == m).sum()) for m in METRICS}
    lines = [
        f"**Thin**: {count['rows_in_groups']:.0f} of {count['rows']:.0f} published rows form {count['groups']:.0f} groups of "
        f"{MIN_COHORTS} or more cohorts at an equal, stated budget; p(1-p) can be tested in {n_testable['variance']} of these, "
        f"size in {n_testable['n_tasks']}. No row gives diversity, so LAD as a whole cannot be. No p allows for many tests.",
    ]
    for metric, wanted in (("variance", 1), ("energy", 1)):
        name = f"published.{metric}.pooled"
        others = [
            f"{label} {_result(found, f'published.{v}{metric}.pooled')}"
            for v, label in VARIANTS.items()
            if f"published.{v}{metric}.pooled.rho" in found
        ]
        told = f"ranks lifts {_result(found, name)}; {'; '.join(others)}"
        lines.append(f"**{_verdict(found, name, wanted=wanted)}** that {METRICS[metric]} {told}.")
    both = [
        t.pivot(index="label", columns="metric", values="rho").dropna(subset=["variance", "energy"]) for t in (groups, same)
    ]
    ahead = [(int((t["variance"] > t["energy"]).sum()), int((t["energy"] > t["variance"]).sum()), len(t)) for t in both]
    (v, e, n), (v_same, e_same, n_same) = ahead
    verdict = "Supports" if e and not v + v_same else "Contradicts" if v and not e + e_same else "Leaves open"
    verdict = "Leaves open" if n < MIN_GROUPS else verdict
    lines.append(
        f"**{verdict}** the headroom factor: p(1-p)² is ahead of p(1-p) in {e} and behind in {v} of {n} groups, with cohorts "
        f"of one size in {e_same} and {v_same} of {n_same}; pooled Spearman of p(1-p) minus that of p(1-p)² "
        f"{shown(found['published.variance_minus_energy.rho'])}."
    )
    lines.append(
        f"**{_verdict(found, 'published.mean_pass_rate.pooled', wanted=-1)}** that lower pass rates gain more: "
        f"{_result(found, 'published.mean_pass_rate.pooled')}."
    )
    told = ", ".join(
        f"without {s.replace('_', ' ')} {_result(found, f'published.n_tasks.without.{s}')}"
        for s in _papers(found, "published.n_tasks.without.", ".rho")
    )
    verdict = {"Supports": "Contradicts"}.get(_verdict(found, "published.n_tasks.pooled", wanted=1), "Leaves open")
    lines.append(
        f"**{verdict}** leaving size out: the number of tasks ranks lifts {_result(found, 'published.n_tasks.pooled')}; {told}."
    )
    for spot, what in (("zeros", "no base success"), ("saturated", f"a mean pass rate of {SATURATED:g} or more")):
        verdict, words = _beaten(found, spot)
        lines.append(f"**{verdict}** that sets with {what} gain least, as their score says: {words}.")
    return "\n".join(f"* {line}" for line in lines)


def limits(found: dict[str, dict]) -> str:
    """LAD's blind spots with the published numbers behind each, in Markdown, for the README's limits."""
    lifts = {f"{s}.{k}": _range(found, f"published.{s}.{k}.lift") for s in ("zeros", "saturated") for k in ("sets", "examples")}
    full = [
        f"{s.replace('_', ' ')} {_range(found, f'published.zeros.minus_full.{s}')}"
        for s in _papers(found, "published.zeros.minus_full.", ".median")
    ]
    sizes = [
        f"{s.replace('_', ' ')} {_range(found, name := f'published.size.{s}.gain')} ({found[f'{name}.median']['note']})"
        for s in _papers(found, "published.size.", ".gain.median")
    ]
    wrong = [
        f"{s.replace('_', ' ')} {_range(found, name := f'published.wrong_labels.{s}.change')} "
        f"({found[f'{name}.median']['note']})"
        for s in _papers(found, "published.wrong_labels.", ".change.median")
    ]
    shares = [
        f"{s.replace('_', ' ')} {_range(found, f'published.spurious.{s}.share', digits=0, scale=100)}% "
        f"({found[f'published.spurious.{s}.share.median']['note'].split('; ')[-1]})"
        for s in _papers(found, "published.spurious.", ".share.median")
    ]
    same = group_table(found, prefix="equal_size.").pivot(index="label", columns="metric", values="rho")
    pairs = [f"{i} {r['variance']:.2f} and {r['energy']:.2f}" for i, r in same.dropna(subset=["variance", "energy"]).iterrows()]
    lines = [
        f'**p^=0 is not "no lift"**: published sets without one base success gained {lifts["zeros.sets"]} points, single '
        f"examples {lifts['zeros.examples']}; minus the full set: {'; '.join(full)}. Their score is 0.",
        f"**Size**: LAD is per task. Lift at the most minus at the fewest tasks, in points: {'; '.join(sizes)}.",
        f"**Wrong labels** are seen only through the cohort's own labels. Change from the fewest to the most, in points: "
        f"{'; '.join(wrong)}.",
        f"**Headroom** is mixed evidence: among cohorts of one size p(1-p) and p(1-p)² rank {'; '.join(pairs) or 'nothing'}.",
        f"**Nearly solved sets** (mean pass rate {SATURATED:g} or more) gained {lifts['saturated.sets']} points, "
        f"single examples {lifts['saturated.examples']}.",
        f"**Spurious lifts**: without a correct reward a run still gave, of the lift with one, {', '.join(shares)}: "
        "there a cohort's quality can hardly be tested.",
    ]
    return "\n".join(f"* {line}" for line in lines)
