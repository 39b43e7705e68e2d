"""Claims beside what was measured, in Markdown: the prototype's, our own signs and predictions, single problems."""

from lad_utils.contrasts import CONTRASTS, MIXTURE_SLOPES
from lad_utils.findings import points, shown

NOT_HERE = "not measured in this study"


def _told(found: dict[str, dict], name: str, *, as_points: bool = False) -> str:
    e = found.get(name)
    return NOT_HERE if e is None else points(e) if as_points else shown(e)


def prototype_claims(found: dict[str, dict]) -> str:
    """The figures that a public prototype printed, none of which can be recomputed, each beside its measured counterpart."""
    selections = ("top_lad", "random_pool", "bottom_lad")
    rows = [
        (
            "LAD's held-out rank correlation with lift",
            ".89",
            f"held out by family {_told(found, 'lad.held_out_family_rho')}, "
            f"by cohort {_told(found, 'lad.held_out_cohort_rho')}, "
            f"plain {_told(found, 'lad.rho')}; mixtures, plain {_told(found, 'mixture.lad.rho')}",
        ),
        (
            "8 rollouts rank cohorts as 32 do",
            ".96",
            f"designed cohorts {_told(found, 'ablation.main.k_8.rho_with_lad')}, "
            f"mixtures {_told(found, 'ablation.mixture.k_8.rho_with_lad')}; the 8 are among the 32, so this is an upper bound",
        ),
        (
            "mechanism: LAD against reward variance in training",
            ".86",
            f"{_told(found, 'lad.group_variance_rho')}; base p(1-p) alone {_told(found, 'variance.group_variance_rho')}",
        ),
        (
            "lift of top-LAD, random, bottom-LAD tasks",
            "+12.6, +6.0, +0.9 points",
            "; ".join(_told(found, f"causal.{name}.lift", as_points=True) for name in selections),
        ),
        (
            "what a full run costs, over LAD",
            "125 times",
            f"{_told(found, 'cost.training_over_scoring')} times, in FLOPs by counted tokens: one seed, trained and evaluated, "
            "over the rollouts and embeddings of a cohort",
        ),
    ]
    lines = ["| claim | prototype | measured here |", "|---|---|---|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def failure_modes(found: dict[str, dict]) -> str:
    """Every contrast and every slope with its interval, and whether the sign that was written down came."""
    lines = []
    for c in CONTRASTS:
        e = found[f"contrast.{c.name}"]
        names = f"{c.a} minus {c.b}".replace("_", " ")
        sign = "above" if c.sign > 0 else "below"
        lines.append(f"{names}: {points(e)}; predicted {sign} zero: {_verdict(e)}.")
    slopes = {name: found[f"slope.{name}"] for name in MIXTURE_SLOPES}
    if any(e["value"] is not None for e in slopes.values()):
        told = [f"{name.replace('_', ' ')} {points(e)} ({_verdict(e)})" for name, e in slopes.items()]
        lines.append(f"Mixtures, lift a standard deviation of each, the others fixed: {'; '.join(told)}.")
    lifts = [
        f"{v} {points(e)} ({e['note'].split('; ', 1)[-1]})"
        for v in ("sampled", "greedy")
        if (e := found[f"elicitation.main.mean_{v}_lift"])
    ]
    cooled = [
        f"{points(e)} at temperature {name.split('.', 1)[1].rsplit('.', 1)[0]}"
        for name, e in found.items()
        if name.startswith("cooling.")
    ]
    greedy = points(found["elicitation.greedy_decoding"])
    lines.append(
        f"Mean lift over cohorts: {', '.join(lifts)}. What the untrained base gains without training: "
        f"{', '.join([*cooled, f'{greedy} when it decodes greedily'])}."
    )
    return "\n".join(f"* {line}" for line in lines)


def _verdict(e: dict) -> str:
    return e["note"].rsplit("; ", 1)[-1] if e["value"] is not None else "undefined"


def predictions(found: dict[str, dict]) -> str:
    """Coverage of the predicted lift's interval, by test."""
    lines = []
    labels = {
        "leave_cohort_out": "Designed cohorts, one left out",
        "leave_family_out": "Designed cohorts, a family left out",
        "mixtures": "Mixtures, from the designed cohorts",
        "mixtures_by_family": "Mixtures, from the designed cohorts, residuals by family",
    }
    for test, label in labels.items():
        e = found[f"prediction.{test}.coverage"]
        if e["value"] is None:
            lines.append(f"{label}: {e['reason']}.")
            continue
        width, plain = (found[f"prediction.{test}.{n}"] for n in ("mean_width", "width_without_lad"))
        lines.append(
            f"{label}: {shown(e)} of the intervals held the lift ({e['note']}), mean width {points(width)} "
            f"({points(plain)} without LAD); abstained from {found[f'prediction.{test}.abstained']['value']:.0%}."
        )
    return "\n".join(f"* {line}" for line in lines)


def single_problems(found: dict[str, dict]) -> str:
    """The problem level: ceilings, and what each signal explains of the explainable, on all, rare and fresh problems."""
    subsets = [s for s in ("all", "rare", "fresh") if (found.get(f"problems.{s}.ceiling") or {}).get("value") is not None]
    if not subsets:
        return "No problem-level numbers in this study."
    signals = [n.split(".")[2] for n in found if n.startswith("problems.all.") and n.endswith(".explained_share")]
    heads = [f"{s}: explained share (Spearman, coupled)" for s in subsets]
    lines = ["| signal | " + " | ".join(heads) + " |", "|---" * (len(heads) + 1) + "|"]
    ceilings = [f"ceiling {shown(found[f'problems.{s}.ceiling'])}, n={found[f'problems.{s}.ceiling']['n']}" for s in subsets]
    lines.append("| *halves of the runs against each other* | " + " | ".join(ceilings) + " |")
    for signal in signals:
        cells = []
        for s in subsets:
            share, rho, coupled = (found.get(f"problems.{s}.{signal}.{m}") for m in ("explained_share", "rho", "coupled_rho"))
            if share is None or share["value"] is None:
                cells.append("–")
                continue
            cells.append(f"{shown(share)} ({rho['value']:.2f}, {coupled['value']:.2f})")
        lines.append(f"| {signal.replace('_', ' ')} | " + " | ".join(cells) + " |")
    return "\n".join(lines)
