"""Every headline number of a study, as entries of results.json, from its raw tables."""

import numpy as np
import pandas as pd

from lad_utils.ablations import ablation_entries
from lad_utils.baselines import METRICS
from lad_utils.ceilings import noise_ceiling_entries
from lad_utils.contrasts import contrast_entries, slope_entries
from lad_utils.correlations import (
    agreement_entries,
    comparison_entries,
    correlation_entries,
    null_entries,
    with_operation_mix,
)
from lad_utils.elicitation import cooling_entries, elicitation_entries
from lad_utils.faults import fault_entries
from lad_utils.frontier import addition_entries, cost_entries, frontier_entries
from lad_utils.mechanism import mechanism_entries, run_mechanics, step_means
from lad_utils.online_curves import online_entries
from lad_utils.params import REPOSITORY, Study
from lad_utils.prediction import coverage_entries, prediction_table
from lad_utils.price import offers_of, price_entries
from lad_utils.problem_entries import between_entries, history_entries, problem_entries
from lad_utils.problems import Problems, study_problems, subsets
from lad_utils.published import published_entries
from lad_utils.reliability import PUBLISHED_LIFTS, fewer_entries, signed_entries, size_entries, transfer_entries, zero_entries
from lad_utils.runs import REFERENCE, read_table
from lad_utils.selection import selection_entries
from lad_utils.trainer_ranking import trainer_entries
from lad_utils.validation import (
    DUPLICATES,
    NOISY,
    lift_entries,
    score_entries,
    valid,
    validated,
)

HISTORY_FILE = "acc_step_500.json"


def all_entries(study: Study, tables: dict[str, pd.DataFrame]) -> list[dict]:
    """Every headline number of a study from its raw tables (see TABLES)."""
    scores, lifts, questions = tables["scores"], tables["lifts"], tables["eval_questions"]
    entries = lift_entries(lifts, questions, tables["tasks"]) + score_entries(scores)
    table = validated(scores, lifts, questions)
    entries += validation_entries(tables, table) + failure_entries(tables)
    entries += prediction_entries(table, validated(scores, lifts, questions, arm="mixture"))
    entries += ablation_entries(tables["ablations"], lifts, questions)
    entries += problem_level_entries(study, tables) + published_entries(pd.read_csv(PUBLISHED_LIFTS))
    entries += training_entries(tables) + trainer_entries(tables) + online_entries(tables)
    if study.selections:
        entries += selection_entries(lifts, questions, scores, tables["problem_counts"])
    entries += frontier_entries({e["name"]: e for e in entries}, tables["costs"])
    entries += cost_entries(tables["costs"]) + price_entries(price_sets(tables))
    return entries + reliability_entries(study, tables)


def validation_entries(tables: dict[str, pd.DataFrame], table: pd.DataFrame) -> list[dict]:
    """Every metric against lift with its ceilings: designed cohorts (`table`), parts of them, greedy lifts, and mixtures."""
    scores, lifts, questions = tables["scores"], tables["lifts"], tables["eval_questions"]
    sets = {
        "": table,
        "without_duplicates.": table[~table["cohort"].isin(DUPLICATES)],
        "without_noisy.": table[~table["cohort"].isin(NOISY)],
        "greedy.": validated(scores, lifts, questions, variant="greedy"),
        "mixture.": validated(scores, lifts, questions, arm="mixture"),
    }
    entries = [e for prefix, rows in sets.items() for e in correlation_entries(rows, prefix=prefix)] + null_entries(table)
    for prefix, arm in (("", "main"), ("mixture.", "mixture")):
        mixed = with_operation_mix(sets[prefix], tables["cohorts"], tables["tasks"], arm=arm)
        entries += agreement_entries(mixed, prefix=prefix) + comparison_entries(mixed, prefix=prefix, primary=not prefix)
        entries += addition_entries(mixed, prefix=prefix)
    found = {e["name"]: e for e in entries}
    for prefix, arm, variant in (("", "main", "sampled"), ("greedy.", "main", "greedy"), ("mixture.", "mixture", "sampled")):
        rhos = {m: (e["value"], e["n"]) for m in METRICS if (e := found[f"{prefix}{m}.rho"])["value"] is not None}
        entries += noise_ceiling_entries(lifts, questions, rhos, arm=arm, variant=variant, rng=np.random.default_rng(0))
    return entries


def failure_entries(tables: dict[str, pd.DataFrame]) -> list[dict]:
    """Contrasts whose signs were written down beforehand, the same over the mixtures, and what needs no training at all."""
    lifts, questions = tables["lifts"], tables["eval_questions"]
    entries = contrast_entries(lifts, questions) + slope_entries(lifts, questions, tables["cohorts"], tables["tasks"])
    return entries + elicitation_entries(lifts, questions) + cooling_entries(tables["problem_counts"], tables["cool_counts"])


def problem_level_entries(study: Study, tables: dict[str, pd.DataFrame]) -> list[dict]:
    """The problem level: all, rare and fresh problems, between base models, and a real run's history where it is at hand."""
    evaluation = problems_of(tables, split="eval")
    entries = problem_entries(subsets(evaluation, problems_of(tables, split="fresh")))
    if study.other_study and evaluation is not None:
        names = ("problem_counts", "problem_features", "problem_transfer", "eval_questions", "lifts")
        other = {name: read_table(REFERENCE.parent / study.other_study / f"{name}.parquet") for name in names}
        source = f"problem_counts.parquet, eval_questions.parquet; and those of {study.other_study}"
        entries += between_entries(evaluation, problems_of(other, split="eval"), source=source)
    history = REPOSITORY / study.history / HISTORY_FILE
    return entries + (history_entries(history) if history.is_file() else [])


def problems_of(tables: dict[str, pd.DataFrame], *, split: str) -> Problems | None:
    """What `problems` needs of a study's tables, invalid runs left out."""
    runs = valid(tables["lifts"][tables["lifts"]["variant"] == "sampled"])["run_id"]
    asked = tables["eval_questions" if split == "eval" else "fresh_questions"]
    base = (tables["problem_counts"], tables["problem_features"], tables["problem_transfer"])
    return study_problems(*base, asked, split=split, runs=runs)


def training_entries(tables: dict[str, pd.DataFrame]) -> list[dict]:
    """What training logged against LAD and base p(1-p): designed cohorts, and mixtures where some were trained."""
    entries = []
    for prefix, arm in (("", "main"), ("mixture.", "mixture")):
        by_step = step_means(tables["groups"], tables["steps"], tables["lifts"], arm=arm)
        if len(by_step):
            table = validated(tables["scores"], tables["lifts"], tables["eval_questions"], arm=arm)
            entries += mechanism_entries(table.merge(run_mechanics(by_step), on="cohort"), prefix=prefix)
    return entries


def price_sets(tables: dict[str, pd.DataFrame]) -> dict[str, tuple[pd.DataFrame, pd.DataFrame]]:
    """name -> (designed cohorts to calibrate on, offers), as price_entries takes them: those with a measured lift."""
    scores, lifts, questions = tables["scores"], tables["lifts"], tables["eval_questions"]
    made = {
        arm: offers_of(validated(scores, lifts, questions, arm=arm), tables["cohorts"], lifts, arm=arm)
        for arm in ("main", "mixture")
    }
    sets = {"designed": (made["main"], made["main"]), "mixtures": (made["main"], made["mixture"])}
    return {name: pair for name, pair in sets.items() if pair[1]["lift"].notna().any()}


def prediction_entries(designed: pd.DataFrame, mixtures: pd.DataFrame) -> list[dict]:
    """Coverage of predicted lifts' intervals."""
    return coverage_entries(prediction_table(designed), prediction_table(mixtures))


def reliability_entries(study: Study, tables: dict[str, pd.DataFrame]) -> list[dict]:
    """How far the scores can be relied on: fewer rollouts, faults, zeros, size, transfer."""
    scores, lifts, questions = tables["scores"], tables["lifts"], tables["eval_questions"]
    families = dict(zip(tables["cohorts"]["cohort"], tables["cohorts"]["family"], strict=True))
    entries = fewer_entries(tables["fewer_rollouts"]) + fault_entries(tables["faults"])
    entries += signed_entries(tables["signed"], scores, lifts, questions) + zero_entries(tables["zeros"])
    entries += size_entries(scores, lifts, families, prompts_per_step=study.grpo_prompts_per_step)
    return entries + transfer_entries(tables["transfer"], scores, lifts, questions)
