"""What LAD and the oracle cost on paper: tokens, FLOPs, GPU-hours and dollars at any model size, and where one node ends.

FLOPs follow the rules of `lad_utils.costs`: 2N a sampled or read token, 8N a token that GRPO generates and trains on. They are
checked against the micro study's meter (`against_micro`). Speeds, prices and lengths of text are assumptions with a name.
`python -m lad_utils.scaling` writes `docs/scaling.md`.
"""

import math
from dataclasses import dataclass, replace

import pandas as pd
import yaml

from lad_utils.costs import multiplying_parameters
from lad_utils.params import REPOSITORY
from lad_utils.rollouts import load_model
from lad_utils.runs import read_table, write_text

PAGE = REPOSITORY / "docs" / "scaling.md"
# All parameters, from the cards of Qwen2.5-1.5B, Llama-3.2-3B, Qwen2.5-7B and Llama-3.1-70B.
SIZES = {"1.5B": 1.54e9, "3B": 3.21e9, "7B": 7.61e9, "70B": 70.6e9}
MARKET = 10_000  # cohorts
NODE = 8  # GPUs


@dataclass(frozen=True)
class Plan:
    """A study's sizes; `prompt_tokens` and `completion_tokens` are means over completions."""

    cohorts: int = 19
    tasks: int = 256
    k: int = 32
    seeds: int = 2
    steps: int = 70
    completions_per_step: int = 128
    questions: int = 500
    samples_a_question: int = 8
    prompt_tokens: float = 150.0
    completion_tokens: float = 250.0

    @property
    def tokens(self) -> float:
        """Prompt and completion, a completion."""
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True)
class Machine:
    """A GPU: bytes, peak FLOP/s in bf16 without sparsity, the shares that sampling and training reach, dollars an hour."""

    memory: float = 80e9
    peak: float = 989e12
    sampling: float = 0.10
    training: float = 0.35
    dollars: float = 3.0


PLAN, MACHINE = Plan(), Machine()


def scoring_flops(plan: Plan, parameters: float) -> float:
    """FLOPs of one cohort's rollouts. Its embeddings are left out: the embedder's size does not grow with the model's."""
    return 2 * parameters * plan.tasks * plan.k * plan.tokens


def training_flops(plan: Plan, parameters: float) -> tuple[float, float]:
    """FLOPs of one GRPO run without a KL term, (sampling, forward and backward)."""
    seen = plan.steps * plan.completions_per_step * plan.tokens
    return 2 * parameters * seen, 6 * parameters * seen


def evaluation_flops(plan: Plan, parameters: float) -> float:
    """FLOPs of one model's evaluation, each question sampled and answered greedily once."""
    return 2 * parameters * plan.questions * (plan.samples_a_question + 1) * plan.tokens


def hours(machine: Machine, *, sampling: float, training: float = 0.0) -> float:
    """GPU-hours of FLOPs sampled and trained."""
    return (sampling / machine.sampling + training / machine.training) / machine.peak / 3600


def gpus(parameters: float, machine: Machine, *, training: bool) -> int:
    """Fewest GPUs that hold it: powers of two within a node, then whole nodes.

    Sampling: bf16 weights (2 bytes a parameter) and a fifth more for the cache. Training, all parameters by AdamW in mixed
    precision: 16 bytes (Rajbhandari et al. 2020, arXiv 1910.02054, section 3.1), and a quarter more for activations.
    """
    needed = parameters * (16 * 1.25 if training else 2 * 1.2) / machine.memory
    return 2 ** math.ceil(math.log2(max(needed, 1))) if needed <= NODE else NODE * math.ceil(needed / NODE)


def cost_table(plan: Plan, machine: Machine) -> pd.DataFrame:
    """A row a model size: tokens, FLOPs, GPU-hours and dollars of LAD and of the oracle, and the GPUs that each needs."""
    rows = []
    for name, parameters in SIZES.items():
        score = plan.cohorts * scoring_flops(plan, parameters)
        runs, (sampled, trained) = plan.cohorts * plan.seeds, training_flops(plan, parameters)
        after = (runs + 1) * evaluation_flops(plan, parameters)
        for what, sampling, training in (("LAD", score, 0.0), ("oracle", runs * sampled + after, runs * trained)):
            spent = hours(machine, sampling=sampling, training=training)
            row = {"model": name, "what": what, "tokens": sampling / 2 / parameters, "flops": sampling + training}
            row |= {"gpu_hours": spent, "dollars": spent * machine.dollars}
            rows.append(row | {"gpus": gpus(parameters, machine, training=what == "oracle")})
    return pd.DataFrame(rows)


def largest_in_a_node(machine: Machine) -> float:
    """Parameters of the largest model that one node samples from."""
    return NODE * machine.memory / (2 * 1.2)


def against_micro() -> pd.DataFrame:
    """Predicted over metered FLOPs in the published micro study: what, predicted, measured, ratio.

    Predicted from `params.yaml` and the lengths seen in screening alone, as one would before buying a run.
    """
    folder = REPOSITORY / "outputs" / "reference" / "micro"
    study = yaml.safe_load((folder / "params.yaml").read_text(encoding="utf-8"))
    seen = read_table(folder / "rollout_totals.parquet").groupby("split").sum(numeric_only=True).loc["screen"]
    plan = Plan(
        tasks=study["cohort_size"],
        k=study["k_score"],
        steps=study["grpo_steps"],
        completions_per_step=study["grpo_prompts_per_step"] * study["grpo_generations"],
        questions=study["n_eval"],
        samples_a_question=study["k_eval"],
        prompt_tokens=seen["prompt_tokens"] / seen["n"],
        completion_tokens=seen["generated_tokens"] / seen["n"],
    )
    parameters = multiplying_parameters(load_model(folder / "base")[0])
    costs = read_table(folder / "costs.parquet").set_index("name")["flops"]
    scores = read_table(folder / "scores.parquet")
    rollouts = scores[(scores["arm"] == "main") & (scores["metric"] == "variance")].set_index("cohort")["flops"]
    run = sum(training_flops(plan, parameters)) + evaluation_flops(plan, parameters)
    rows = [
        ("rollouts of the cohort `random`", scoring_flops(plan, parameters), rollouts["random"]),
        ("rollouts, mean of the designed cohorts", scoring_flops(plan, parameters), costs["variance"]),
        ("a run with its evaluation, mean", run, costs["full_run"]),
        ("evaluation of the base", evaluation_flops(plan, parameters), costs["eval"] + costs["eval_greedy"]),
    ]
    table = pd.DataFrame(rows, columns=["what", "predicted", "measured"])
    return table.assign(ratio=table["predicted"] / table["measured"])


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def _rows(table: pd.DataFrame) -> str:
    lines = ["| model | what | tokens sampled | FLOPs | GPU-hours | dollars | fewest GPUs |", "|" + "---|" * 7]
    for r in table.itertuples():
        spent = f"{_number(r.gpu_hours)} | {_number(r.dollars)}"
        lines.append(f"| {r.model} | {r.what} | {r.tokens:.2g} | {r.flops:.2g} | {spent} | {r.gpus} |")
    return "\n".join(lines)


def _checks(table: pd.DataFrame) -> str:
    lines = ["| what | predicted FLOPs | measured FLOPs | ratio |", "|---|---|---|---|"]
    lines += [f"| {r.what} | {r.predicted:.3g} | {r.measured:.3g} | {r.ratio:.2f} |" for r in table.itertuples()]
    return "\n".join(lines)


def page(plan: Plan = PLAN, machine: Machine = MACHINE) -> str:
    """The text of `docs/scaling.md`."""
    study, market = cost_table(plan, machine), cost_table(replace(plan, cohorts=MARKET), machine)
    market = market[market["what"] == "LAD"]
    sums = study.groupby("what")[["flops", "gpu_hours"]].sum()
    dearer = sums.loc["oracle"] / sums.loc["LAD"]
    days = ", ".join(f"{row.gpu_hours / NODE / 24:.1f} days at {row.model}" for row in market.itertuples())
    speed = {name: machine.peak * machine.sampling / 2 / n for name, n in SIZES.items()}
    train = {name: gpus(n, machine, training=True) for name, n in SIZES.items()}
    return f"""# What a study costs, on paper

Made by `python -m lad_utils.scaling`. **Nothing here has run on a GPU**: FLOPs are counted by rules that the micro study's
meter checks (below), while hours and dollars hang on the assumptions named here. Put in your own with
`lad_utils.scaling.cost_table(Plan(...), Machine(...))`.

## The model

* A token sampled or read costs 2N FLOPs, one that GRPO generates and trains on 8N (no KL term; N parameters that multiply).
  A prompt counts once a completion, which prefix caching improves on.
* LAD of a cohort: {plan.tasks} tasks x {plan.k} rollouts.
* The oracle of a cohort: {plan.seeds} runs of {plan.steps} steps x {plan.completions_per_step} completions, each
  evaluated on {plan.questions} questions, {plan.samples_a_question} sampled and one greedy answer each; the base once.
* Assumed mean lengths: {plan.prompt_tokens:.0f} tokens of prompt with its template, {plan.completion_tokens:.0f} of
  completion. Hours grow in proportion.
* Assumed GPU: {machine.memory / 1e9:.0f} GB, {machine.peak / 1e12:.0f} TFLOP/s in bf16 (an H100's data sheet), of which
  sampling reaches {machine.sampling:.0%} ({speed["1.5B"]:,.0f} tokens/s at 1.5B, {speed["7B"]:,.0f} at 7B) and training
  {machine.training:.0%}; {machine.dollars:.2f} dollars an hour. No overhead for start-up or for runs waiting on one another.

## A study of {plan.cohorts} cohorts

{_rows(study)}

The oracle costs {dearer["flops"]:.1f} times LAD's FLOPs and {dearer["gpu_hours"]:.1f} times its GPU-hours at every size.
LAD's embeddings are left out: the embedder does not grow with the model. `26_cost_frontier` has what each metric cost in the
micro world, embeddings included, and `13_fewer_rollouts` how few rollouts would do there.

## A market of {MARKET:,} cohorts, scored once

{_rows(market)}

On one node of {NODE} GPUs: {days}. Cohorts are independent, so a cluster divides the days by its nodes, one vLLM engine a
GPU or a group of GPUs.

## Where one node ends

* **Sampling**: bf16 weights and a fifth more fit one node up to {largest_in_a_node(machine) / 1e9:.0f}B parameters. Below
  that, no market needs multi-node vLLM (a pipeline across nodes): more replicas are simpler than wider ones. Above it, a
  replica spans nodes.
* **Training** all parameters by AdamW takes 16 bytes a parameter and a quarter more: {train["7B"]} GPUs at 7B,
  {train["70B"]} at 70B ({train["70B"] // NODE} nodes), where rollouts belong on nodes of their own.

## Checked against what was measured

Predicted from the published micro study's parameters and the mean lengths in screening, against its meter:

{_checks(against_micro())}

Cohorts with repeated tasks sample each distinct task once, so the mean over designed cohorts lies below the prediction. Seconds
are not checked: a CPU's share of its peak says nothing of a GPU's. The rehearsal on a real LM has not been run, so there is no
check against it yet.
"""


if __name__ == "__main__":
    PAGE.parent.mkdir(exist_ok=True)
    write_text(PAGE, page())
