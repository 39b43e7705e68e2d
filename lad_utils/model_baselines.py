"""Metrics that need the base model itself: how likely it finds reference solutions, and its policy gradients (`influence`).

Reference solutions are the cohort's own: worked out right, ending in the cohort's label, which may be wrong. RHO-LOSS's paper
takes a smaller model fitted to held-out data for the irreducible loss; here it is the base model itself, fitted on.
"""

import json
from pathlib import Path

import numpy as np
import pandas as pd

from lad_utils import micro
from lad_utils.base_model import fit
from lad_utils.cohort_scores import COLUMNS
from lad_utils.cohorts import score_split
from lad_utils.costs import Meter, sampling_counts, scaled, total
from lad_utils.gradients import KEY
from lad_utils.influence import GRADIENT_METRICS, SPENT
from lad_utils.params import Study
from lad_utils.rollouts import load_model
from lad_utils.runs import base_folder, move_base, write_json

HOLDOUT_TASKS, HOLDOUT_STEPS, HOLDOUT_RATE = 2000, 100, 1e-3
ARMS = ("main", "mixture")  # whose cohorts get these metrics


def members_of(cohorts: pd.DataFrame) -> pd.DataFrame:
    """The places of cohorts of ARMS with the split that scores them: the columns of `cohorts` and split."""
    mine = cohorts[cohorts["arm"].isin(ARMS)]
    return mine.assign(split=mine["arm"].map(score_split)).reset_index(drop=True)


def reference_solutions(members: pd.DataFrame, tasks: pd.DataFrame) -> pd.DataFrame:
    """task_id, answer, prompt, solution of each distinct (task_id, answer): the worked solution with `answer` at its end."""
    rows = members[["task_id", "answer"]].drop_duplicates().merge(tasks.drop(columns="answer"), on="task_id")
    worked = [micro.solution_of(row).rpartition(" ")[0] for _, row in rows.iterrows()]
    return rows[["task_id", "answer", "prompt"]].assign(
        solution=[f"{w} {a}" for w, a in zip(worked, rows["answer"], strict=True)]
    )


def holdout_model(study: Study, folder: Path) -> tuple[object, object, dict]:
    """(model, tokenizer, cost) of RHO-LOSS: the base model fitted to right solutions of tasks that nothing else uses.

    The tasks are of the target's split, drawn after the target's own. `folder` keeps the model and its cost (costs.COUNTS).
    """
    if not (folder / "model.safetensors").is_file():
        n = study.n_target
        tasks = micro.make_tasks(n + HOLDOUT_TASKS, split="target", world_seed=study.world_seed).iloc[n:]
        pairs = [(t["prompt"], micro.solution_of(t)) for _, t in tasks.iterrows()]
        rng, (model, tokenizer) = np.random.default_rng([study.world_seed, 18]), load_model(base_folder(study))

        def draw():
            return [pairs[i] for i in rng.integers(0, len(pairs), study.pretrain_batch_size)]

        with Meter(model.train(), memory=True) as meter:
            fit(model, tokenizer, draw, steps=HOLDOUT_STEPS, learning_rate=HOLDOUT_RATE)
        partial = folder.with_name(f"{folder.name}.partial")
        model.save_pretrained(partial)
        tokenizer.save_pretrained(partial)
        write_json(partial / "cost.json", meter.cost())
        move_base(partial, folder)
    return *load_model(folder), json.loads((folder / "cost.json").read_text())


def solution_log_likelihood(model, tokenizer, prompts: list[str], solutions: list[str], *, batch_size: int = 250) -> np.ndarray:
    """Mean log-likelihood a token (nats) of each solution, its end included, given its prompt; shape (n,)."""
    import torch

    values = []
    for start in range(0, len(prompts), batch_size):
        pairs = zip(prompts[start : start + batch_size], solutions[start : start + batch_size], strict=True)
        rows = [
            (tokenizer(p).input_ids, [*tokenizer(s, add_special_tokens=False).input_ids, tokenizer.eos_token_id])
            for p, s in pairs
        ]
        width = max(len(p) + len(s) for p, s in rows)
        ids = torch.full((len(rows), width), tokenizer.pad_token_id)
        mask = torch.zeros((len(rows), width - 1))
        for i, (p, s) in enumerate(rows):
            ids[i, : len(p) + len(s)] = torch.tensor(p + s)
            mask[i, len(p) - 1 : len(p) + len(s) - 1] = 1
        with torch.inference_mode():  # padded on the right, so that no real token sees a pad
            logits = model(input_ids=ids).logits[:, :-1].float()
        told = torch.log_softmax(logits, -1).gather(-1, ids[:, 1:, None])[..., 0]
        values.append(((told * mask).sum(1) / mask.sum(1)).numpy())
    return np.concatenate(values)


def signal_scores(
    cohorts: pd.DataFrame, signals: pd.DataFrame, spent: pd.DataFrame, totals: pd.DataFrame, *, n_parameters: int
) -> pd.DataFrame:
    """Rows of `scores`: log_likelihood, rho_loss and GRADIENT_METRICS of every cohort of ARMS, each a mean over its places.

    signals: one row a KEY with pass_rate, log_likelihood, holdout_log_likelihood (nats a token), GRADIENT_METRICS, and what the
    gradient cost. spent: name, n, COUNTS of `likelihood` and `holdout_likelihood` (over n solutions), `holdout_training`,
    `target_gradient` and `warm_up`. totals: rollouts.totals. rho_loss is loss - irreducible loss (RHO-LOSS, Mindermann et al.
    2022, eq. 3), the irreducible one a holdout model's.
    """
    members = members_of(cohorts)
    rows = members.merge(signals, on=KEY, validate="many_to_one")
    if len(rows) < len(members):
        raise ValueError(f"signal_scores: {len(members) - len(rows)} of {len(members)} places have no signals")
    rows = rows.assign(rho_loss=rows["holdout_log_likelihood"] - rows["log_likelihood"])
    cost, n_cohorts = spent.set_index("name"), members.groupby(["arm", "cohort"]).ngroups
    shared = {name: scaled(cost.loc[name], 1 / n_cohorts) for name in ("holdout_training", "target_gradient", "warm_up")}
    target = sampling_counts(totals[totals["split"] == "target"], n_parameters)
    shared["target_gradient"] = total(shared["target_gradient"], scaled(target, 1 / n_cohorts))
    tables = []
    for (arm, name), group in rows.groupby(["arm", "cohort"], sort=False):
        own, solutions = group.drop_duplicates(KEY), len(group[["task_id", "answer"]].drop_duplicates())
        drawn = totals[(totals["split"] == own["split"].iloc[0]) & totals["task_id"].isin(own["task_id"])]
        told, held_out = (scaled(cost.loc[n], solutions / cost.loc[n, "n"]) for n in ("likelihood", "holdout_likelihood"))
        gradient = total(own[[*SPENT]].sum().to_dict() | {"generated_tokens": 0}, sampling_counts(drawn, n_parameters))
        costs = {
            "log_likelihood": told,
            "rho_loss": total(told, held_out, shared["holdout_training"]),
            "gradient_norm": gradient,
        }
        aligned = total(gradient, shared["target_gradient"])
        costs |= {m: aligned for m in ("learnalign", "trak", "cropi")} | {"less": total(aligned, shared["warm_up"])}
        found = [{"metric": m, "value": group[m].mean()} | spent for m, spent in costs.items()]
        tables.append(pd.DataFrame(found).assign(arm=arm, cohort=name, n_tasks=len(group)))
    table = pd.concat(tables, ignore_index=True).assign(ci_low=np.nan, ci_high=np.nan)
    gradients = table["metric"].isin(GRADIENT_METRICS)
    why = np.where(gradients, "no interval: gradients were taken once, over all rollouts", "no interval: no rollout enters")
    return table.assign(reason=why)[COLUMNS]
