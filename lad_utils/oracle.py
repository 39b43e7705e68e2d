"""The oracle: train the base model on one cohort with TRL's GRPO and measure the lift on held-out questions."""

import hashlib
import json
import resource
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd

from lad_utils.cohorts import COMPARED
from lad_utils.grpo import ENTROPY_SCALE, MAX_ROUNDS, train, trainer_options
from lad_utils.online import DECAY, STRENGTH
from lad_utils.params import TRAINERS, Study
from lad_utils.progress import oracle_jobs
from lad_utils.rollouts import load_model, sampler_of, transformers_engine
from lad_utils.runs import base_digest, base_folder, environment, read_table, write_json, write_params, write_table
from lad_utils.size import size_of
from lad_utils.stats import lift_ci
from lad_utils.verifier import verify

VARIANTS = ("sampled", "greedy", "shifted")  # the last: sampled, on the questions of another domain
UNEQUAL = ("online", "dynamic_sampling")  # arms that visit tasks unequally, on purpose
CURVE_K = 2  # completions of each question at a point of a learning curve
# What a run depends on, besides the weights it starts from, its cohort, the questions and its seed.
SHAPING = {
    "world_seed",
    "base_model",
    "retrain_base",
    "pretrain_steps",
    "pretrain_batch_size",
    "pretrain_learning_rate",
    "gamma",
    "beta",
    "vendi_order",
    "embedder",
    "pool_size",
    "k_screen",
    "cohort_size",
    "prompt_template",
    "stop",
    "max_new_tokens",
    "temperature",
    "k_score",
    "n_eval",
    "k_eval",
    "grpo_steps",
    "grpo_prompts_per_step",
    "grpo_generations",
    "grpo_learning_rate",
    "grpo_warmup_steps",
    "grpo_kl_beta",
}


def invalid_reason(groups: pd.DataFrame, steps: pd.DataFrame, *, cohort_size: int, arm: str = "main") -> str:
    """Why a run says nothing about its cohort, or an empty string. Some arms visit unequally, or learn without mixed groups."""
    broken = ~np.isfinite(steps[["loss", "grad_norm"]].astype(float)).all(axis=1)
    if broken.any():
        return f"loss or gradient not finite, first at step {steps['step'][broken].min()}"
    if (steps["clipped_share"] == 1).all():
        return "every completion of every step was truncated"
    if (steps["zero_variance_share"] == 1).all() and arm != "zero_variance_aware":
        return "no group ever had both rewards, so no gradient ever flowed"
    if arm in UNEQUAL:
        return ""
    visits = groups["position"].value_counts().reindex(range(cohort_size), fill_value=0)
    if visits.max() - visits.min() > 1:
        return f"tasks were visited unequally: {visits.min()} to {visits.max()} times"
    return ""


def evaluate(engine, questions: pd.DataFrame, *, k: int, seed: int, greedy: bool = False) -> pd.DataFrame:
    """n, c (right answers) and completion tokens of each question: task_id, n, c, tokens."""
    return count_correct(engine(questions, k=1 if greedy else k, seed=seed, greedy=greedy), questions)


def count_correct(rollouts: pd.DataFrame, questions: pd.DataFrame) -> pd.DataFrame:
    answers = dict(zip(questions["task_id"], questions["answer"], strict=True))
    right = [verify(c, answers[t]) for c, t in zip(rollouts["completion"], rollouts["task_id"], strict=True)]
    grouped = rollouts.assign(right=right).groupby("task_id", sort=False)
    return grouped.agg(n=("right", "size"), c=("right", "sum"), tokens=("n_tokens", "sum")).reset_index()


def pair(before: pd.DataFrame, after: pd.DataFrame, *, run_id: str, variant: str) -> pd.DataFrame:
    """The `eval_questions` rows of a run: before and after of the very same questions."""
    both = before[["task_id", "n", "c"]].merge(after[["task_id", "n", "c"]], on="task_id", suffixes=("_before", "_after"))
    if not len(both) == len(before) == len(after):
        raise ValueError(
            f"{run_id}: {len(before)} questions before, {len(after)} after, {len(both)} in common: they must be the same"
        )
    return both.assign(run_id=run_id, variant=variant)


def run_seed(study: Study, run_id: str) -> int:
    """The seed of one run. Runs of one study are independent: no two share an order of tasks or a stream of samples."""
    return int.from_bytes(hashlib.blake2b(f"{study.world_seed}/{run_id}".encode(), digest_size=4).digest(), "big") >> 1


def started_from(arm: str) -> str:
    """The model that runs of an arm start from, as runs.base_folder calls it."""
    return "smaller" if arm == "small" else "base"


def run_recipe(study: Study, cohort: pd.DataFrame, questions: pd.DataFrame, *, arm: str = "main") -> str:
    """Digest of all that a run's result depends on, besides its seed."""
    settings = [study.model_dump(include=SHAPING), base_digest(study, started_from(arm))]
    if arm in TRAINERS:
        settings += [arm, trainer_options(study, arm), MAX_ROUNDS, ENTROPY_SCALE]
    given = ["prompt", "answer", "verifier"]
    if arm == "online":
        settings += [cohort["sampler"].iloc[0], STRENGTH, DECAY]
        given += ["correct", "k"]
    rows = cohort[given].to_numpy().tolist()
    asked = questions[["task_id", "prompt", "answer"]].to_numpy().tolist()
    return hashlib.blake2b(json.dumps([settings, rows, asked]).encode(), digest_size=8).hexdigest()


def run(
    study: Study,
    cohort: pd.DataFrame,
    questions: pd.DataFrame,
    base: dict[str, pd.DataFrame],
    *,
    seed: int,
    folder: Path,
    fresh: pd.DataFrame,
    shifted: pd.DataFrame,
) -> dict:
    """Train and evaluate one (arm, cohort, seed); files go to `folder`, run.json last.

    `fresh` are further questions, which no lift counts: their right answers go to `fresh_questions` where there are any.
    `shifted` are questions of another domain, whose lift is one of its own; `base` holds what the base model answered.
    The arm `online` trains on `cohort` by the sampler of its column `sampler`, from base rollouts (columns correct, k).
    A finished run is read, not repeated, unless parameters, base model, cohort or questions differ from those it was made with.
    """
    arm, name = cohort["arm"].iloc[0], cohort["cohort"].iloc[0]
    done, recipe = Path(folder) / "run.json", run_recipe(study, cohort, pd.concat([questions, shifted]), arm=arm)
    if done.is_file() and (summary := json.loads(done.read_text()))["recipe"] == recipe:
        return summary
    done.unlink(missing_ok=True)
    run_id, started = f"{arm}/{name}/seed{seed}", time.monotonic()
    trained_with = run_seed(study, run_id)
    model, tokenizer = load_model(base_folder(study, started_from(arm)))
    engine, curve, looking = transformers_engine(model, tokenizer, sampler_of(study)), [], [0.0]

    def look(step: int, groups: pd.DataFrame) -> None:
        began = time.monotonic()
        asked = evaluate(engine, questions, k=CURVE_K, seed=trained_with + 3 + step)
        spent = {"tokens": int(groups["tokens"].sum()), "eval_tokens": int(asked["tokens"].sum())}
        curve.append({"step": step} | spent | {"n": int(asked["n"].sum()), "c": int(asked["c"].sum())})
        looking.append(time.monotonic() - began)

    how = {"sampler": cohort["sampler"].iloc[0], "look": look} if arm == "online" else {}
    if arm in TRAINERS:
        how["trainer"] = arm
    where = {"folder": Path(folder), "model": model, "tokenizer": tokenizer}
    groups, steps, config = train(study, cohort, seed=trained_with, **where, **how)
    trained = time.monotonic() - sum(looking)
    model.eval()
    after = {
        v: evaluate(engine, questions, k=study.k_eval, seed=trained_with + 1, greedy=v == "greedy")
        for v in ("sampled", "greedy")
    }
    if len(shifted):
        after["shifted"] = evaluate(engine, shifted, k=study.k_eval, seed=trained_with + 3)
    if len(fresh):
        again = evaluate(engine, fresh, k=study.k_eval, seed=trained_with + 2)
        write_table(Path(folder) / "fresh_questions.parquet", again.drop(columns="tokens").assign(run_id=run_id))
    if curve:
        write_table(Path(folder) / "curves.parquet", pd.DataFrame(curve).assign(run_id=run_id))
    pairs = pd.concat([pair(base[v], after[v], run_id=run_id, variant=v) for v in after], ignore_index=True)
    for table_name, table in (("groups", groups), ("steps", steps), ("eval_questions", pairs)):
        write_table(Path(folder) / f"{table_name}.parquet", table.assign(run_id=run_id))
    write_params(
        Path(folder) / "params.yaml", study.model_dump() | {"arm": arm, "cohort": name, "seed": seed, "grpo_config": config}
    )
    machine = environment()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    write_json(Path(folder) / "environment.json", machine)
    summary = {
        "run_id": run_id,
        "arm": arm,
        "cohort": name,
        "seed": seed,
        "invalid": invalid_reason(groups, steps, cohort_size=len(cohort), arm=arm),
        "steps": len(steps),
        "tokens": int(groups["tokens"].sum()),
        "recipe": recipe,
        "commit": machine["commit"],
        "eval_tokens": int(sum(t["tokens"].sum() for t in after.values()) + sum(c["eval_tokens"] for c in curve)),
        "seconds": round(time.monotonic() - started, 1),
        "train_seconds": round(trained - started, 1),
        "peak_bytes": peak,  # of the process, evaluation included
    }
    write_json(done, summary)
    return summary


def lift_table(runs: list[dict], pairs: pd.DataFrame, *, k_eval: int) -> pd.DataFrame:
    """The `lifts` table: one row a run and variant, interval over the paired questions, invalid runs kept with their reason."""
    rows = []
    for record in runs:
        for variant in VARIANTS:
            p = pairs[(pairs["run_id"] == record["run_id"]) & (pairs["variant"] == variant)]
            if p.empty:  # not asked
                continue
            found = lift_ci(p["c_before"], p["n_before"], p["c_after"], p["n_after"])
            rows.append(
                {name: record[name] for name in ("arm", "cohort", "seed")}
                | {"variant": variant, "acc_before": found.before, "acc_after": found.after, "lift": found.lift}
                | {"ci_low": found.low, "ci_high": found.high, "n_questions": found.n}
                | {"k_eval": 1 if variant == "greedy" else k_eval}
                | {
                    name: record[name]
                    for name in ("steps", "tokens", "eval_tokens", "seconds", "train_seconds", "run_id", "invalid", "commit")
                }
                | {"peak_bytes": record.get("peak_bytes", np.nan)}  # not recorded by the first runs of the published studies
            )
    return pd.DataFrame(rows)


def arm_recipe(study: Study, arm: str, cohort: str) -> tuple[Study, list[int]]:
    """(the study whose recipe a cohort is trained with, its seeds): the arms size, short and online have steps of their own.

    The arm small has the study's own recipe, on the smaller model.
    """
    if arm == "size":
        return study.model_copy(update={"grpo_steps": size_of(cohort).steps}), [0]
    if arm == "short":
        return study.model_copy(update={"grpo_steps": study.short_steps}), [0]
    if arm == "small":
        return study, [0]
    if arm in ("causal", "selection"):
        return study, study.causal_seeds if cohort in COMPARED else study.causal_seeds[:2]
    if arm == "online":
        return study.model_copy(update={"grpo_steps": study.sampler_steps}), study.sampler_seeds
    if arm in TRAINERS:
        return study, study.trainer_seeds
    return study, {"main": study.seeds, "mixture": study.mixture_seeds}[arm]


def collect(study: Study, folder: Path) -> dict[str, pd.DataFrame]:
    """Every finished run of the study in six tables: lifts, groups, steps, eval_questions, fresh_questions, curves.

    fresh_questions holds what runs answered to fresh questions, curves the accuracy in the course of a run: the last two only
    for those runs that were asked.
    """
    parts = {"groups": [], "steps": [], "eval_questions": []}
    some = {"fresh_questions": ["run_id", "task_id", "n", "c"], "curves": ["run_id", "step", "tokens", "eval_tokens", "n", "c"]}
    asked = {name: [] for name in some}
    runs = []
    for home in [
        folder / "runs" / arm / cohort / f"seed{seed}"
        for arm, cohort in oracle_jobs(study)
        for seed in arm_recipe(study, arm, cohort)[1]
    ]:
        if not (home / "run.json").is_file():
            raise FileNotFoundError(f"{home.relative_to(folder)}/run.json is missing: run 05_grpo_oracle for this cohort first")
        runs.append(json.loads((home / "run.json").read_text()))
        for name, tables in parts.items():
            tables.append(read_table(home / f"{name}.parquet"))
        for name, tables in asked.items():
            if (home / f"{name}.parquet").is_file():
                tables.append(read_table(home / f"{name}.parquet")[some[name]])
    tables = {name: pd.concat(frames, ignore_index=True) for name, frames in parts.items()}
    tables |= {n: pd.concat(t, ignore_index=True) if t else pd.DataFrame(columns=some[n]) for n, t in asked.items()}
    return {"lifts": lift_table(runs, tables["eval_questions"], k_eval=study.k_eval)} | tables
