"""What the baselines showed, in Markdown, each sentence from the entries: who beats LAD at what cost, and what adds to it."""

from lad_utils.baselines import METRICS
from lad_utils.findings import shown

SETS = (("", "designed cohorts", "family"), ("mixture.", "mixtures", "cohort"))


def baselines(found: dict[str, dict]) -> str:
    """Which metrics agree better than LAD and at what cost, which LAD beats for less, who is dominated, and what helps LAD."""
    lines, lad_cost = [], found["cost.lad.flops"]["value"]
    for prefix, where, fold in SETS:
        rho = {m: found[f"{prefix}{m}.rho"]["value"] for m in METRICS}
        rho = {m: abs(v) for m, v in rho.items() if v is not None and _cost(found, m) is not None}
        if "lad" not in rho:
            continue
        told = {m: f"{METRICS[m][0]} ({rho[m]:.2f}, {_times(found[f'cost.{m}.flops']['value'] / lad_cost)})" for m in rho}
        order = sorted(rho, key=lambda m: -rho[m])
        ahead = [told[m] for m in order if rho[m] > rho["lad"]]
        clear = [METRICS[m][0] for m in order if m != "lad" and _ahead(found.get(f"{prefix}lad_minus_{m}.rho")) > 0]
        worse = [METRICS[m][0] for m in order if m != "lad" and _ahead(found.get(f"{prefix}lad_minus_{m}.rho")) < 0]
        lines.append(
            f"{where.capitalize()}: of {len(rho)} metrics by absolute Spearman (in brackets, with the FLOPs over LAD's) ahead "
            f"of LAD ({rho['lad']:.2f}): {', '.join(ahead) or 'none'}. LAD is ahead with an interval that leaves out 0 of "
            f"{', '.join(clear) or 'none'}; behind with one of {', '.join(worse) or 'none'}."
        )
        held = {m: found[f"{prefix}{m}.held_out_{fold}_rho"]["value"] for m in rho}
        held = {m: v for m, v in held.items() if v is not None}
        above = [f"{METRICS[m][0]} ({v:.2f})" for m, v in held.items() if "lad" in held and v > held["lad"]]
        best = [METRICS[m][0] for m in rho if found[f"{prefix}frontier.{m}.dominated"]["value"] == 0]
        lines.append(
            f"{where.capitalize()}, held out by {fold}, ahead of LAD: {', '.join(above) or 'none'}. On the cost frontier, no "
            f"other metric being both as cheap and as good: {', '.join(best)}."
        )
        helps = {m: e for m in METRICS if (e := found.get(f"{prefix}adds.{m}.partial_rho"))}
        clear = [m for m, e in helps.items() if _ahead(e) != 0]
        added = [f"{METRICS[m][0]} {shown(helps[m])}, Q² {_signed(found[f'{prefix}adds.{m}.q2_gain']['value'])}" for m in clear]
        n = sum(e["value"] is not None for e in helps.values())
        lines.append(
            f"Given LAD, {where}: partial Spearman whose interval leaves out 0, of {n} metrics and unadjusted, with the change "
            f"of held-out Q²: {'; '.join(added) or 'none'}."
        )
    undefined = {m: found[f"{m}.rho"]["reason"] for m in METRICS if found[f"{m}.rho"]["value"] is None}
    told = [f"{METRICS[m][0]} ({why})" for m, why in undefined.items()]
    lines.append(f"Without a value on designed cohorts: {'; '.join(told) or 'none'}.")
    return "\n".join(f"* {line}" for line in lines)


def _cost(found: dict[str, dict], metric: str) -> float | None:
    """FLOPs of a metric for one cohort; None where no cohort has it."""
    return found.get(f"cost.{metric}.flops", {"value": None})["value"]


def _times(ratio: float) -> str:
    return "no model" if ratio == 0 else f"{ratio:.2g}x"


def _signed(value: float | None) -> str:
    return "undefined" if value is None else f"{value:+.2f}"


def _ahead(e: dict | None) -> int:
    """1 where an interval lies above 0, -1 below, else 0."""
    if e is None or e["ci_low"] is None or e["ci_high"] is None:
        return 0
    return int(e["ci_low"] > 0) - int(e["ci_high"] < 0)


def cost_table(found: dict[str, dict]) -> str:
    """Every metric's cost for one designed cohort, in Markdown: FLOPs over LAD's, backward tokens, seconds, peak memory."""
    lines = [
        "| metric | needs | FLOPs over LAD's | backward tokens | seconds | peak memory (MB) |",
        "|---|---|---|---|---|---|",
    ]
    lad = found["cost.lad.flops"]["value"]
    for metric, (label, needs) in METRICS.items():
        if _cost(found, metric) is None:
            continue
        flops = found[f"cost.{metric}.flops"]
        peak, back, seconds = (found[f"cost.{metric}.{c}"] for c in ("peak_bytes", "backward_tokens", "seconds"))
        memory = f"– ({peak['reason']})" if peak["value"] is None else f"{peak['value'] / 1e6:.0f}"
        cells = [label, needs, f"{flops['value'] / lad:.2g}", f"{back['value']:,.0f}", f"{seconds['value']:.1f}", memory]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)
