"""What other trainers, task samplers and prices showed, in Markdown, each sentence from the entries."""

from lad_utils.findings import points, shown
from lad_utils.online_plots import LABELS as SAMPLERS
from lad_utils.price import RIVALS
from lad_utils.trainer_ranking import LABELS as SHAPES
from lad_utils.trainer_ranking import TITLES

NONE = "* Not tried in this study."
NOTHING = {"value": None}


def other_trainers(found: dict[str, dict]) -> str:
    """A line a trainer: who ranks its cohorts, and accuracy less GRPO's; then which shape tells what tasks gain under it."""
    lines = []
    for name, title in TITLES.items():
        if (lad := found.get(f"trainer.{name}.lad.rho")) is None:
            continue
        told = f"{title}: Spearman with lift of LAD {shown(lad)}, of p(1-p) times diversity "
        told += shown(found[f"trainer.{name}.variance.rho"])
        if beside := found.get(f"trainer.{name}.minus_grpo"):
            told += f", of the lifts under GRPO {shown(found[f'trainer.{name}.grpo_lift.rho'])}"
            told += f"; accuracy less GRPO's {points(beside)}"
        lines.append(f"{told}; n={lad['n']}.")
    for name, title in TITLES.items():
        r = {s: e for s in SHAPES if (e := found.get(f"trainer.{name}.task_gain.{s}.r")) and e["value"] is not None}
        if not r:
            continue
        each = ", ".join(
            f"{SHAPES[s]} {e['value']:.3f} ({found[f'trainer.{name}.task_gain.{s}.within_r']['value']:.3f})"
            for s, e in r.items()
        )
        beside = {s: found[f"trainer.{name}.task_gain.{s}.r_minus_variance"] for s in r if s != "variance"}
        clear = [
            f"{SHAPES[s]} {'ahead' if e['value'] > 0 else 'behind'} {shown(e, 3)}"
            for s, e in beside.items()
            if e["ci_low"] is not None and e["ci_low"] * e["ci_high"] > 0
        ]
        n = next(iter(r.values()))["n"]
        what = f"What a trained task gains, {title}, Pearson over {n:,} tasks of these runs (within cohorts)"
        lines.append(f"{what}: {each}; clearly beside p(1-p): {', '.join(clear) or 'none'}.")
    return "\n".join(f"* {line}" for line in lines) or NONE


def online_sampling(found: dict[str, dict]) -> str:
    """LAD's sampler against each other: after training, at equal tokens, on the way; and what each visited."""
    names, lines = [s for s in SAMPLERS if f"online.{s}.lift" in found], []
    if not names:
        return NONE
    lifts = [f"{SAMPLERS[s]} {points(found[f'online.{s}.lift'])}" for s in names]
    lines.append(f"Lift: {'; '.join(lifts)}.")
    for suffix, when in (
        ("", "Accuracy after training, paired by question"),
        (".accuracy", "Accuracy at equal generated tokens"),
        (".mean_accuracy", "Mean accuracy over the run, at equal generated tokens"),
    ):
        told = [f"{SAMPLERS[s]} {points(e)}" for s in names if (e := found.get(f"online.online_lad_minus_{s}{suffix}"))]
        if told:
            lines.append(f"{when}, LAD re-estimated less {'; '.join(told)}.")
    groups = [
        f"{SAMPLERS[s]} {share['value']:.0%} and {tasks['value']:.0f}"
        for s in names
        if (share := found.get(f"online.{s}.mixed_share", NOTHING))["value"] is not None
        and (tasks := found.get(f"online.{s}.tasks", NOTHING))["value"] is not None
    ]
    if groups:
        lines.append(f"Share of groups with both rewards, and tasks ever visited: {', '.join(groups)}.")
    return "\n".join(f"* {line}" for line in lines)


def prices(found: dict[str, dict]) -> str:
    """How well predicted lift per dollar ranks offers, by price, and what choosing by it under a budget gained."""
    lines, labels = [], {"lad": "LAD", "variance": "p(1-p)"}
    for price, unit in (("task", "a price a distinct task"), ("token", "a price a generated token")):
        for name, offers in (("designed", "designed cohorts"), ("mixtures", "mixtures")):
            told = {r: e for r in (*RIVALS, "no_score") if (e := found.get(f"price.{price}.{name}.{r}.rho"))}
            if not told or told["lad"]["value"] is None or "no_score" not in told:
                continue
            gains = [f"{labels[r]} {points(found[f'price.{price}.{name}.{r}.gain'])}" for r in RIVALS]
            ranks = f"LAD {shown(told['lad'])}, p(1-p) {shown(told['variance'])}, the price alone {shown(told['no_score'])}"
            lines.append(
                f"{offers.capitalize()} at {unit}, predicted against measured lift per dollar, Spearman: {ranks}. Lift bought "
                f"under a budget less that of a random affordable offer, mean over budgets: {', '.join(gains)}."
            )
    return "\n".join(f"* {line}" for line in lines) or "* No offer was trained that a prediction could be compared with."
