"""What things cost, counted from the runs themselves: tokens, FLOPs, seconds, memory.

Rules: a prompt is counted once a completion, because the engines here compute it so; padding is not counted. A forward token
costs 2N FLOPs, a backward token 4N more (Kaplan et al. 2020), N the number of parameters that multiply: all of them, but for an
input embedding that is no output layer as well. On-policy training with no KL term generates (2N a token), then runs forward
and backward (6N) over prompts and completions: 8N a token.
"""

import threading
import time

import pandas as pd
import psutil

COUNTS = ["generated_tokens", "forward_tokens", "backward_tokens", "flops", "seconds"]
COLUMNS = ["kind", "name", *COUNTS, "peak_bytes", "reason"]
# What of `04_baselines` a metric needs, and the arm whose runs it needs.
SAMPLING, EMBEDDING, GRADIENT = ("rollouts",), ("embedding",), ("rollouts", "target_gradient", "gradients")
WATCHED = dict.fromkeys(
    ("variance", "mean_pass_rate", "headroom", "reward_entropy", "pass_at_k", "majority_correctness"), SAMPLING
)
WATCHED |= dict.fromkeys(("band_filter", "non_zero_variance", "mopps"), SAMPLING) | {"vendi": EMBEDDING}
WATCHED |= dict.fromkeys(("lad", "dots"), SAMPLING + EMBEDDING) | {"log_likelihood": ("likelihood",)}
WATCHED |= {"rho_loss": ("likelihood", "holdout_likelihood", "holdout_training")} | {"gradient_norm": GRADIENT}
WATCHED |= dict.fromkeys(("learnalign", "trak", "cropi"), GRADIENT) | {"less": (*GRADIENT, "warm_up")}
ARM_OF = {"short_grpo": "short", "small_model_lift": "small", "datamodel": "mixture", "full_run": "main"}
SAMPLED_EVERY = 0.02  # seconds between looks at the memory in use


def total(*costs: dict) -> dict:
    """COUNTS added up; nothing costs nothing."""
    return {c: sum(cost[c] for cost in costs) for c in COUNTS}


def scaled(cost: dict, share: float) -> dict:
    """COUNTS times `share`."""
    return {c: cost[c] * share for c in COUNTS}


def multiplying_parameters(model) -> int:
    """Parameters of `model` that take part in a multiplication: all but an input embedding that is not tied to the output."""
    total, table = sum(p.numel() for p in model.parameters()), model.get_input_embeddings()
    output = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    tied = output is not None and output.weight is table.weight
    return total if tied else total - table.weight.numel()


class Meter:
    """Counts what runs through a model between `with` and its end: real tokens forward and backward, seconds, peak memory.

    The input embedding sees every id that goes in, however the model is called, and its output sees the gradient come back:
    hooks on both count. `peak_bytes` is the largest resident memory of the whole process in that time; `memory=False` leaves it
    out (a thread has to look).
    """

    def __init__(self, model, *, memory: bool = False):
        self.model, self.memory = model, memory
        self.forward_tokens = self.backward_tokens = self.peak_bytes = 0
        self.seconds = 0.0

    def __enter__(self):
        self._hook = self.model.get_input_embeddings().register_forward_hook(self._count)
        self._ended, self._started = threading.Event(), time.monotonic()
        if self.memory:
            self._watch = threading.Thread(target=self._look, daemon=True)
            self._watch.start()
        return self

    def __exit__(self, *_):
        self._hook.remove()
        self.seconds += time.monotonic() - self._started
        self._ended.set()
        if self.memory:
            self._watch.join()

    def _count(self, _module, args, output):
        ids, pad = args[0], self.model.config.pad_token_id
        tokens = int(ids.numel() if pad is None else (ids != pad).sum())
        self.forward_tokens += tokens
        if output.requires_grad:
            output.register_hook(lambda _gradient: self._back(tokens))

    def _back(self, tokens: int) -> None:
        self.backward_tokens += tokens

    def _look(self) -> None:
        process = psutil.Process()
        while True:
            self.peak_bytes = max(self.peak_bytes, process.memory_info().rss)
            if self._ended.wait(SAMPLED_EVERY):
                return

    def cost(self) -> dict:
        """COUNTS (nothing generated) and peak_bytes."""
        n = multiplying_parameters(self.model)
        spent = {"generated_tokens": 0, "forward_tokens": self.forward_tokens, "backward_tokens": self.backward_tokens}
        flops = 2 * n * self.forward_tokens + 4 * n * self.backward_tokens
        return spent | {"flops": flops, "seconds": self.seconds, "peak_bytes": self.peak_bytes}


def _row(kind: str, name: str, *, generated: int, forward: int, backward: int, seconds: float, n_parameters: int) -> dict:
    flops = 2 * n_parameters * forward + 4 * n_parameters * backward
    counted = dict(zip(COUNTS, (generated, forward, backward, flops, seconds), strict=True))
    return {"kind": kind, "name": name} | counted


def rollout_cost(totals: pd.DataFrame, *, kind: str, name: str, n_parameters: int) -> dict:
    """Cost of sampling the rollouts that `totals` (see rollouts.totals) sums up."""
    generated, prompts = int(totals["generated_tokens"].sum()), int(totals["prompt_tokens"].sum())
    seconds = float(totals["seconds"].sum())
    return _row(
        kind, name, generated=generated, forward=generated + prompts, backward=0, seconds=seconds, n_parameters=n_parameters
    )


def sampling_counts(totals: pd.DataFrame, n_parameters: int) -> dict:
    """COUNTS of rollout_cost."""
    return total(rollout_cost(totals, kind="", name="", n_parameters=n_parameters))


def training_cost(groups: pd.DataFrame, *, seconds: float, kind: str, name: str, n_parameters: int) -> dict:
    """Cost of GRPO runs from their logged groups (tokens and prompt_tokens of all completions of a group).

    All groups count as trained on, which overstates dynamic sampling, whose dead groups are only generated; the further
    forward pass of zero-variance-aware runs is left out.
    """
    generated, prompts = int(groups["tokens"].sum()), int(groups["prompt_tokens"].sum())
    seen = generated + prompts
    return _row(kind, name, generated=generated, forward=2 * seen, backward=seen, seconds=seconds, n_parameters=n_parameters)


def run_costs(lifts: pd.DataFrame, groups: pd.DataFrame, totals: pd.DataFrame, *, n_parameters: dict) -> dict[str, dict]:
    """run_id -> COUNTS of training and of the evaluation after it, its prompts those of the base model's evaluation.

    n_parameters: of `base`, and of `smaller` where runs of the arm `small` are among them.
    """
    runs = lifts[lifts["variant"] == "sampled"].set_index("run_id")
    prompts = int(totals.loc[totals["split"].isin(["eval", "eval_greedy"]), "prompt_tokens"].sum())
    logged = groups[groups["run_id"].isin(runs.index)].groupby("run_id")[["tokens", "prompt_tokens"]].sum()
    found = {}
    for run_id, row in runs.iterrows():
        n = n_parameters["smaller" if row["arm"] == "small" else "base"]
        generated, read = (int(v) for v in logged.loc[run_id])
        asked = int(row["eval_tokens"])
        trained = _row(
            "", "", generated=generated, forward=2 * (generated + read), backward=generated + read, seconds=0, n_parameters=n
        )
        evaluated = _row(
            "", "", generated=asked, forward=asked + prompts, backward=0, seconds=float(row["seconds"]), n_parameters=n
        )
        found[run_id] = total(trained, evaluated)
    return found


def study_costs(
    totals: pd.DataFrame, groups: pd.DataFrame, lifts: pd.DataFrame, curves: pd.DataFrame, *, n_parameters: dict
) -> pd.DataFrame:
    """The rows of `costs` of kind stage: what sampling each split, training and evaluating took in all.

    A trained model's evaluation is counted with the prompts of the base model's, the same questions. n_parameters: run_costs.
    """
    rows = []
    for split, table in totals.groupby("split", sort=False):
        n = n_parameters["smaller" if split.startswith("smaller_") else "base"]
        rows.append(rollout_cost(table, kind="stage", name=split, n_parameters=n))
    small = run_costs(lifts[lifts["arm"] == "small"], groups, totals, n_parameters=n_parameters)
    lifts = lifts[lifts["arm"] != "small"]
    groups = groups[groups["run_id"].isin(lifts["run_id"])]
    runs = lifts[lifts["variant"] == "sampled"]
    evaluation = totals[totals["split"].isin(["eval", "eval_greedy"])]
    n = {"n_parameters": n_parameters["base"], "kind": "stage"}
    rows.append(training_cost(groups, seconds=float(runs["train_seconds"].sum()), name="training", **n))
    asked_more = totals.loc[totals["split"] == "shift", "prompt_tokens"].sum() * (lifts["variant"] == "shifted").sum()
    asked = totals[totals["split"] == "eval"]
    asked_more += curves["n"].sum() * asked["prompt_tokens"].sum() / asked["n"].sum()
    after, prompts = int(runs["eval_tokens"].sum()), int(evaluation["prompt_tokens"].sum() * len(runs) + asked_more)
    seconds = float((runs["seconds"] - runs["train_seconds"]).sum())
    rows.append(_row(**n, name="evaluation_after", generated=after, forward=after + prompts, backward=0, seconds=seconds))
    rows.append({"kind": "stage", "name": "smaller_runs"} | total(*small.values()))
    return pd.DataFrame(rows).assign(peak_bytes=float("nan"), reason="memory is watched for metrics alone")[COLUMNS]


def metric_costs(scores: pd.DataFrame, lifts: pd.DataFrame, measured: pd.DataFrame) -> pd.DataFrame:
    """The rows of `costs` of kind metric: what a metric of a designed cohort costs on average, and the memory that it takes.

    measured: name, peak_bytes of what `04_baselines` watched; lifts: peak_bytes of each run. Memory is the largest resident
    size of the process; `reason` says why there is none.
    """
    mean = scores[scores["arm"] == "main"].dropna(subset=["value"]).groupby("metric", sort=False)[COUNTS].mean()
    watched = measured.set_index("name")["peak_bytes"]
    runs = lifts.groupby("arm")["peak_bytes"].max()
    rows = []
    for metric, counted in mean.iterrows():
        peaks = [watched[n] for n in WATCHED.get(metric, ()) if n in watched] + [runs.get(ARM_OF.get(metric), float("nan"))]
        peak = pd.Series(peaks, dtype=float).max()
        why = "" if peak == peak else "no model" if not counted["flops"] else "not recorded when these runs were made"
        rows.append({"kind": "metric", "name": metric} | counted.to_dict() | {"peak_bytes": peak, "reason": why})
    return pd.DataFrame(rows)[COLUMNS]
