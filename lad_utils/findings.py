"""The words around the numbers: the results table and the findings, written from the entries of results.json."""

import pandas as pd

from lad_utils.baselines import METRICS
from lad_utils.cohorts import CONTROLS
from lad_utils.validation import PRIMARY_RIVALS


def shown(e: dict, digits: int = 2) -> str:
    """An entry as readers see it: the value with its interval, or why there is none."""
    if e["value"] is None:
        return f"undefined ({e['reason']})"
    ends = [e["ci_low"], e["ci_high"]]
    if ends == [None, None]:
        return f"{e['value']:.{digits}f}"
    told = ", ".join("unbounded" if end is None else f"{end:.{digits}f}" for end in ends)
    return f"{e['value']:.{digits}f} [{told}]"


def results_table(found: dict[str, dict]) -> str:
    """The README's table, in Markdown: every metric's agreement with lift, held out by family first, beside the noise ceiling.

    The explained share is that of what seeds leave explainable, rho^2 / R. Mixtures have a column only where some were trained.
    """
    ceilings = {arm: found.get(f"ceiling.{arm}.reml.ceiling", {}).get("value") for arm in ("main", "mixture")}
    titles = {arm: "none" if value is None else f"{value:.2f}" for arm, value in ceilings.items()}
    mixtures = found["mixture.lad.rho"]["value"] is not None
    heads = [
        "metric",
        "held out by family: Spearman",
        "Q²",
        f"Spearman [95%], n={found['lad.rho']['n']}, ceiling {titles['main']}",
        "explained share",
        "without duplicates",
        *([f"mixtures [95%], n={found['mixture.lad.rho']['n']}, ceiling {titles['mixture']}"] if mixtures else []),
    ]
    strength = {m: abs(found[f"{m}.rho"]["value"] or 0.0) for m in METRICS}
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for metric in sorted(METRICS, key=lambda m: (m != "lad", -strength[m])):
        label = METRICS[metric][0]
        cells = [
            f"**{label}**" if metric == "lad" else label,
            _brief(found[f"{metric}.held_out_family_rho"]),
            _brief(found[f"{metric}.held_out_family_q2"]),
            _brief(found[f"{metric}.rho"]),
            _brief(found.get(f"ceiling.main.reml.{metric}.explained_share")),
            _brief(found[f"without_duplicates.{metric}.rho"]),
            *([_brief(found[f"mixture.{metric}.rho"])] if mixtures else []),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _brief(e: dict | None) -> str:
    """An entry in a table's cell: a dash where it is undefined, whose reason is in results.json."""
    return "–" if e is None or e["value"] is None else shown(e)


def overview_rows(found: dict[str, dict]) -> dict[str, tuple[pd.DataFrame, float | None]]:
    """For validation_plots.metric_overview: title -> (label, value, ci_low, ci_high of every metric; noise ceiling)."""
    panels = {}
    for title, prefix, arm in (("designed cohorts", "", "main"), ("mixtures", "mixture.", "mixture")):
        rows = [found[f"{prefix}{m}.rho"] | {"label": label} for m, (label, _) in METRICS.items()]
        if any(r["value"] is not None for r in rows):
            columns = ["value", "ci_low", "ci_high"]
            table = pd.DataFrame(rows)[["label", *columns]].astype(dict.fromkeys(columns, float))
            ceiling = found.get(f"ceiling.{arm}.reml.ceiling", {}).get("value")
            panels[f"{title}, n={found[f'{prefix}lad.rho']['n']}"] = (table, ceiling)
    return panels


def points(e: dict) -> str:
    """A rate in points, with its interval."""
    scaled = {k: None if e[k] is None else 100 * e[k] for k in ("value", "ci_low", "ci_high")}
    return shown(e | scaled, digits=1) + ("" if e["value"] is None else " points")


def _misplaced(found: dict[str, dict], n: int = 4) -> str:
    """The cohorts whose rank by LAD and by lift differ most, ranks counted from the best."""
    names = [e.removesuffix(".lad") for e in found if e.endswith(".lad") and e.count(".") == 1]
    names = [c for c in names if c not in CONTROLS and found[f"{c}.lift"]["value"] is not None]
    values = {c: (found[f"{c}.lad"]["value"], found[f"{c}.lift"]["value"]) for c in names}
    ranks = pd.DataFrame(values, index=["lad", "lift"]).T.rank(ascending=False, method="min").astype(int)
    worst = (ranks["lad"] - ranks["lift"]).abs().sort_values(ascending=False, kind="stable").index[:n]
    placed = [f"{c.replace('_', ' ')} ({ranks['lad'][c]} by LAD, {ranks['lift'][c]} by lift)" for c in worst]
    return ", ".join(placed) + f", of {len(names)}"


def _selection_verdict(differences: dict[str, dict]) -> str:
    """Which selections training on top-LAD beats and which beat it, by intervals of accuracy after training."""
    sides = {"ahead of": [], "behind": [], "not told apart from": []}
    for name, e in differences.items():
        if e["ci_low"] is not None:
            side = "ahead of" if e["ci_low"] > 0 else "behind" if e["ci_high"] < 0 else "not told apart from"
            sides[side].append(name.replace("_lad", "-LAD").replace("_", " "))
    told = [f"{side} {', '.join(names) or 'none'}" for side, names in sides.items()]
    return f"By these intervals, each at 95% by itself, top-LAD is {'; '.join(told)}."


def _selection_lines(found: dict[str, dict]) -> list[str]:
    """Training on top-LAD against other selections, by everything that was measured of them, and the dose-response."""
    lines, names = [], [n.removeprefix("causal.top_lad_minus_") for n in found if n.startswith("causal.top_lad_minus_")]
    for measure, label in (
        ("", "accuracy after training"),
        (".shifted_lift", "accuracy on another domain"),
        (".mastered_lift", "accuracy on questions that the base had mastered"),
    ):
        others = [n for n in names if "." not in n and f"causal.top_lad_minus_{n}{measure}" in found]
        told = [
            f"{n.replace('_lad', '-LAD').replace('_', ' ')} {points(e)} ({e['note'].split('; ')[1]})"
            for n in others
            if (e := found[f"causal.top_lad_minus_{n}{measure}"])["value"] is not None
        ]
        if told:
            lines.append(f"Selection, {label}, paired by question, top-LAD less {'; '.join(told)}.")
        if told and not measure:
            lines.append(_selection_verdict({n: found[f"causal.top_lad_minus_{n}"] for n in others}))
    if e := found.get("causal.dose.decile_rho"):
        lad, best = (shown(found[f"causal.dose.{name}"], digits) for name, digits in (("lad_rho", 2), ("best_decile", 0)))
        lines.append(
            f"Dose and response, {e['n']} deciles of per-task energy, all tasks distinct: Spearman of decile and lift "
            f"{shown(e)}, of LAD and lift {lad}; most in decile {best}."
        )
    return lines


def findings(found: dict[str, dict]) -> str:
    """The README's findings, in Markdown: every sentence is written from the entries, whichever way they fall."""
    once = [m for m in METRICS if m != "headroom"]  # the same ranking as mean pass rate, reversed
    rho = {m: found[f"{m}.rho"]["value"] for m in once if found[f"{m}.rho"]["value"] is not None}
    order = sorted(rho, key=lambda m: -abs(rho[m]))
    ahead = [f"{METRICS[m][0]} ({rho[m]:.2f})" for m in order if "lad" in rho and abs(rho[m]) > rho["lad"] and m != "lad"]
    told = f"LAD is undefined ({found['lad.rho']['reason']})" if "lad" not in rho else f"LAD ({shown(found['lad.rho'])})"
    lines = [
        f"{told} beside {len(order) - ('lad' in rho)} other metrics; ahead of it by absolute Spearman: "
        f"{', '.join(ahead) or 'none'}."
    ]
    held_out = {m: found[f"{m}.held_out_family_rho"]["value"] for m in once}
    if held_out["lad"] is not None:
        above = [f"{METRICS[m][0]} ({v:.2f})" for m, v in held_out.items() if v is not None and v > held_out["lad"]]
        null = shown(found["null.held_out_family_rho"])
        lines.append(
            f"Held out by family LAD reaches {held_out['lad']:.2f}; ahead of it: {', '.join(above) or 'none'}. A metric that "
            f"knows nothing reaches {null} there, mean and 5 to 95% of simulated ones."
        )
    lines.append(
        f"Noise ceiling {shown(found['ceiling.main.reml.ceiling'])}: lifts differ between cohorts with standard deviation "
        f"{points(found['ceiling.main.sd_between_cohorts'])}, between seeds of one cohort by "
        f"{points(found['ceiling.main.sd_between_seeds'])}."
    )
    for rival in PRIMARY_RIVALS:
        p, difference = shown(found[f"lad_minus_{rival}.p_value_holm"], digits=3), shown(found[f"lad_minus_{rival}.rho"])
        lines.append(f"LAD's Spearman minus the absolute one of {METRICS[rival][0]}: {difference}, Holm-adjusted p = {p}.")
    p_values = {m: found[f"lad_minus_{m}.p_value_holm"]["value"] for m in PRIMARY_RIVALS}
    significant = [
        f"{METRICS[m][0]} ({'LAD ahead' if found[f'lad_minus_{m}.rho']['value'] > 0 else 'LAD behind'})"
        for m, p in p_values.items()
        if p is not None and p < 0.05
    ]
    lines.append(f"Significant at 5% among these {len(p_values)} comparisons: {', '.join(significant) or 'none'}.")
    lines.append(
        f"Without the repeated and paraphrased cohorts LAD reaches {shown(found['without_duplicates.lad.rho'])} "
        f"and p(1-p) {shown(found['without_duplicates.variance.rho'])}; "
        f"on greedy lift LAD reaches {shown(found['greedy.lad.rho'])}."
    )
    if (mixed := found["mixture.lad.rho"])["value"] is not None:
        lines.append(
            f"On {mixed['n']} mixtures, reported apart: LAD {shown(mixed)}, p(1-p) {shown(found['mixture.variance.rho'])}, "
            f"mean pass rate {shown(found['mixture.mean_pass_rate.rho'])}; LAD's minus the absolute one of p(1-p) "
            f"{shown(found['mixture.lad_minus_variance.rho'])} (exploratory). Q² held out by cohort: LAD "
            f"{shown(found['mixture.lad.held_out_cohort_q2'])}, p(1-p) {shown(found['mixture.variance.held_out_cohort_q2'])}."
        )
    for arm, label in (("main", "designed cohorts"), ("mixture", "mixtures")):
        parts = {"headroom": "no_headroom", "diversity": "no_diversity", "both": "gamma_0_beta_0"}
        told = [f"{n} {shown(e)}" for n, v in parts.items() if (e := found.get(f"ablation.{arm}.{v}.minus_lad"))]
        if told:
            lines.append(f"What leaving a part out does to LAD's Spearman, {label}: {', '.join(told)}.")
    for prefix, label in (("", "designed cohorts"), ("mixture.", "mixtures")):
        if f"{prefix}lad.group_variance_rho" in found:
            told = [
                f"{when} LAD {shown(found[f'{prefix}lad.{part}_rho'])}, "
                f"base p(1-p) {shown(found[f'{prefix}variance.{part}_rho'])}"
                for when, part in (
                    ("over the whole run", "group_variance"),
                    ("in its first eighth", "early_group_variance"),
                    ("in its last", "late_group_variance"),
                )
            ]
            lines.append(
                f"Mechanism, {label}: Spearman with the raw reward variance within groups {'; '.join(told)}. Given p(1-p), LAD "
                f"adds {shown(found[f'{prefix}lad_given_variance.group_variance_rho'])} over the whole run, "
                f"{shown(found[f'{prefix}lad_given_variance.late_group_variance_rho'])} in the last eighth (partial)."
            )
    lines.append(f"LAD misplaces most: {_misplaced(found)}.")
    lines += _selection_lines(found)
    ratio = found["cost.training_over_scoring"]["value"]
    lines.append(f"Training and evaluating one seed on a cohort cost {ratio:.1f} times the FLOPs of scoring it by LAD.")
    return "\n".join(f"* {line}" for line in lines)


def _percent(e: dict) -> str:
    """A share in percent with its interval, or why there is none."""
    scaled = {k: None if e[k] is None else 100 * e[k] for k in ("value", "ci_low", "ci_high")}
    return shown(e | scaled, digits=0).replace("]", "%]") if e["ci_low"] is not None else shown(e | scaled, digits=0) + "%"


def _method(name: str) -> str:
    """A method of the curves of fewer rollouts, in words."""
    if name.startswith("fewer_tasks_"):
        return f"fewer tasks with k={name.removeprefix('fewer_tasks_')}"
    return {"uniform": "the same k everywhere"}.get(name, name)


def reliability(found: dict[str, dict]) -> str:
    """How far a score can be relied on, in Markdown, each sentence from the entries, whichever way they fall."""
    lines = []
    for arm, label in (("main", "designed cohorts"), ("mixture", "mixtures")):
        for clean, versus in (("", "the ranking by all rollouts"), (".clean", "a ranking by as many others")):
            prefix = f"fewer_rollouts.{arm}{clean}."
            needs = [(name.removeprefix(prefix), e) for name, e in found.items() if name.startswith(prefix)]
            told = [
                f"{_method(name.removesuffix('.share_for_98'))} {'not reached' if e['value'] is None else _percent(e)}"
                for name, e in needs
                if name.endswith(".share_for_98") and not name.startswith("clean.")
            ]
            if told:
                lines.append(
                    f"Share of the rollouts that gives 98% of full agreement with {versus}, {label}: {', '.join(told)}."
                )
    stops = [
        f"{label} after {e['value']:.1f} rollouts a task"
        for arm, label in (("main", "designed cohorts"), ("mixture", "mixtures"))
        if (e := found.get(f"fewer_rollouts.{arm}.adaptive_90.rollouts_per_task")) and e["value"] is not None
    ]
    lines.append(
        f"Adaptive sampling stops by itself, at 90% confidence in the order, or with its rollouts spent: {', '.join(stops)}."
    )
    for name in ("clean_twin", "labels_wrong_30", "labels_wrong_60"):
        if e := found.get(f"faults.{name}.noise_rate"):
            told = f"noise rate from rollouts alone {_percent(e)}"
            for column in ("precision", "recall"):
                if (d := found.get(f"faults.{name}.{column}")) and d["value"] is not None:
                    told += f", {column} of suspected labels {_percent(d)}"
            lines.append(f"{name.replace('_', ' ').capitalize()}: {told}.")
    unsolved = found["zeros.full.unsolved.solved_with_more"]
    if unsolved["value"] is not None and "zeros.full.unsolved.expected_share" in found:
        expected = _percent(found["zeros.full.unsolved.expected_share"])
        lines.append(
            f"Of tasks that no rollout solved, further ones solved {_percent(unsolved)}; expected beforehand {expected}."
        )
    kinds = {k: found[f"zeros.tight.{k}.solved_with_more"] for k in ("format", "budget", "unsolved")}
    told = ", ".join(f"{k} {_percent(e)}" for k, e in kinds.items() if e["value"] is not None)
    lines.append(f"Zeros under a length budget that is too tight, solvable at the full one, by kind: {told or 'no zeros'}.")
    halves = [
        e for name, e in found.items() if name.startswith("size.published.") and not name.startswith("size.published.all")
    ]
    told = ", ".join(f"{e['name'].split('.', 2)[2].rsplit('.', 1)[0].split(' ', 1)[1]} {shown(e, 1)}" for e in halves)
    lines.append(f"Distinct tasks that give half of the attainable lift, published runs: {told}.")
    if found["size.log_distinct"]["value"] is not None:
        which = ("lad", "lad_and_size", "designed.lad", "designed.lad_and_size")
        q2 = {n: shown(found[f"size.held_out_q2.{n}"]) for n in which}
        lines.append(
            "Our runs that vary size alone: e times the visits of each task adds "
            f"{points(found['size.log_visits'])}, e times the distinct tasks at the same number of steps "
            f"{points(found['size.log_distinct_at_fixed_steps'])}. Lift held out by family over these and designed cohorts, "
            f"Q²: {q2['lad']} from LAD alone, {q2['lad_and_size']} with size terms; over the designed ones, all of as many "
            f"steps, {q2['designed.lad']} and {q2['designed.lad_and_size']}."
        )
    names = {"coverage": "coverage", "coverage_flat": "with K=1", "coverage_shuffled": "with shuffled embeddings", "lad": "LAD"}
    told = ", ".join(f"{label} {shown(found[f'transfer.{m}.rho'])}" for m, label in names.items())
    lines.append(f"Transfer-aware coverage (exploratory), Spearman with lift beside its controls: {told}.")
    signed = shown(found["signed.signed.rho"])
    lines.append(
        f"Signed score (exploratory): {signed}; {found['signed.negative_lifts']['value']:.0f} cohorts lost accuracy, "
        f"{found['signed.negative_scores']['value']:.0f} have a negative score."
    )
    return "\n".join(f"* {line}" for line in lines)


def readme_with(text: str, words: dict[str, str]) -> str:
    """README text with the parts that published studies write, each between its two markers, replaced."""
    for name, written in words.items():
        start, end = f"<!-- {name} -->", f"<!-- /{name} -->"
        if start not in text:
            continue
        head, rest = text.split(start)
        text = f"{head}{start}\n{written}\n{end}{rest.split(end)[1]}"
    return text
