"""What things cost, counted from the runs themselves: tokens, FLOPs, seconds.

Rules: a prompt is counted once a completion, because the engines here compute it so. A forward token costs 2N FLOPs, a
backward token 4N more, N the number of parameters (Kaplan et al. 2020). On-policy training with no KL term generates
(2N a token), then runs forward and backward (6N) over prompts and completions: 8N a token.
"""

import pandas as pd

COLUMNS = ["kind", "name", "generated_tokens", "forward_tokens", "backward_tokens", "flops", "seconds"]


def _row(kind: str, name: str, *, generated: int, forward: int, backward: int, seconds: float, n_parameters: int) -> dict:
    flops = 2 * n_parameters * forward + 4 * n_parameters * backward
    return dict(zip(COLUMNS, (kind, name, generated, forward, backward, flops, seconds), strict=True))


def rollout_cost(totals: pd.DataFrame, *, kind: str, name: str, n_parameters: int) -> dict:
    """Cost of sampling the rollouts that `totals` (see rollouts.totals) sums up."""
    generated, prompts = int(totals["generated_tokens"].sum()), int(totals["prompt_tokens"].sum())
    seconds = float(totals["seconds"].sum())
    return _row(
        kind, name, generated=generated, forward=generated + prompts, backward=0, seconds=seconds, n_parameters=n_parameters
    )


def training_cost(groups: pd.DataFrame, *, seconds: float, kind: str, name: str, n_parameters: int) -> dict:
    """Cost of GRPO runs from their logged groups (tokens and prompt_tokens of all completions of a group).

    All groups count as trained on, which overstates dynamic sampling, whose dead groups are only generated; the further
    forward pass of zero-variance-aware runs is left out.
    """
    generated, prompts = int(groups["tokens"].sum()), int(groups["prompt_tokens"].sum())
    seen = generated + prompts
    return _row(kind, name, generated=generated, forward=2 * seen, backward=seen, seconds=seconds, n_parameters=n_parameters)


def study_costs(
    cohorts: pd.DataFrame,
    totals: pd.DataFrame,
    groups: pd.DataFrame,
    lifts: pd.DataFrame,
    curves: pd.DataFrame,
    *,
    n_parameters: int,
) -> pd.DataFrame:
    """The `costs` table of a study's stages, of scoring a mean cohort of the main arm, and of a mean training run.

    A trained model's evaluation is counted with the prompts of the base model's, the same questions.
    """
    rows = [
        rollout_cost(t, kind="stage", name=split, n_parameters=n_parameters) for split, t in totals.groupby("split", sort=False)
    ]
    runs = lifts[lifts["variant"] == "sampled"]
    evaluation = totals[totals["split"].isin(["eval", "eval_greedy"])]
    n = {"n_parameters": n_parameters, "kind": "stage"}
    rows.append(training_cost(groups, seconds=float(runs["train_seconds"].sum()), name="training", **n))
    asked_more = totals.loc[totals["split"] == "shift", "prompt_tokens"].sum() * (lifts["variant"] == "shifted").sum()
    asked = totals[totals["split"] == "eval"]
    asked_more += curves["n"].sum() * asked["prompt_tokens"].sum() / asked["n"].sum()
    after, prompts = int(runs["eval_tokens"].sum()), int(evaluation["prompt_tokens"].sum() * len(runs) + asked_more)
    seconds = float((runs["seconds"] - runs["train_seconds"]).sum())
    rows.append(_row(**n, name="evaluation_after", generated=after, forward=after + prompts, backward=0, seconds=seconds))
    main = cohorts[cohorts["arm"] == "main"].drop_duplicates(["cohort", "task_id"])
    scored = main.merge(totals[totals["split"] == "score"], on="task_id")
    mean_score = rollout_cost(scored, name="score_a_cohort", **n)
    alike = runs[runs["arm"].isin(["main", "mixture"])]  # the others have steps or questions of their own
    trained = training_cost(
        groups[groups["run_id"].isin(alike["run_id"])],
        seconds=float(alike["seconds"].sum()),
        name="train_and_evaluate_a_cohort",
        **n,
    )
    after, prompts = int(alike["eval_tokens"].sum()), int(evaluation["prompt_tokens"].sum()) * len(alike)
    evaluated = _row(**n, name="", generated=after, forward=after + prompts, backward=0, seconds=0.0)
    table = [_divided(mean_score, main["cohort"].nunique())]
    table.append(_divided(trained | {c: trained[c] + evaluated[c] for c in COLUMNS[2:]}, len(alike)))
    return pd.DataFrame(rows + table)[COLUMNS]


def _divided(row: dict, n: int) -> dict:
    return row | {c: row[c] / n for c in COLUMNS[2:]}
