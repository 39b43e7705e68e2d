"""A run that taught nothing is invalid with its reason, never "lift 0"; rewards are logged raw."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from lad_utils import grpo, oracle
from lad_utils.params import load_study


def run_tables(*, rewards, visits=(1, 1, 1, 1), loss=0.1, grad_norm=1.0, clipped=0.0):
    positions = np.repeat(range(len(visits)), visits)
    groups = pd.DataFrame({"step": 1, "position": positions, "n": 8, "reward_sum": np.resize(rewards, len(positions))})
    mixed = groups.reward_sum.between(0, 8, inclusive="neither").mean()
    columns = {
        "step": [1],
        "loss": [loss],
        "grad_norm": [grad_norm],
        "zero_variance_share": [1 - mixed],
        "clipped_share": [clipped],
    }
    return groups, pd.DataFrame(columns)


@pytest.mark.parametrize(
    ("tables", "reason"),
    [
        (run_tables(rewards=[3, 8, 0, 1]), ""),
        (run_tables(rewards=[3], clipped=1.0), "truncated"),  # D12
        (run_tables(rewards=[0, 8]), "no group ever had both rewards"),
        (run_tables(rewards=[3], loss=np.nan), "not finite, first at step 1"),  # D02
        (run_tables(rewards=[3], grad_norm=np.nan), "not finite, first at step 1"),
        (run_tables(rewards=[3], visits=(3, 1, 1, 1)), "visited unequally: 1 to 3 times"),
        (run_tables(rewards=[3], visits=(2, 2, 2)), "visited unequally: 0 to 2 times"),
        (run_tables(rewards=[3], visits=(2, 2, 1, 2)), ""),
    ],
)
def test_a_run_that_says_nothing_is_invalid_with_its_reason(tables, reason):
    found = oracle.invalid_reason(*tables, cohort_size=4)
    assert (reason in found) if reason else found == ""


def record(completions, answers, **columns):
    recorder = grpo.Recorder(verifier="exact", generations=2)
    n = len(completions)
    defaults = {"task_id": ["a"] * n, "position": [0] * n, "completion_ids": [[1, 2]] * n, "prompts": [""] * n}
    state = SimpleNamespace(global_step=0)
    return recorder(completions=completions, answer=answers, trainer_state=state, **(defaults | columns)), recorder.rows


def test_raw_rewards_are_logged_by_group_before_any_scaling():
    rewards, rows = record(
        ["#### 5", "#### 6", "#### 5", "#### 5"], ["5"] * 4, task_id=["a", "a", "b", "b"], position=[0, 0, 1, 1]
    )
    assert rewards == [1.0, 0.0, 1.0, 1.0]
    assert [(r["step"], r["group"], r["task_id"], r["reward_sum"], r["n"], r["tokens"]) for r in rows] == [
        (1, 0, "a", 1.0, 2, 4),
        (1, 1, "b", 2.0, 2, 4),
    ]


def test_text_and_chat_completions_get_the_same_reward():  # D09
    chat = [{"role": "assistant", "content": "#### 5"}]
    assert record(["#### 5", chat], ["5", "5"])[0] == [1.0, 1.0]


def test_a_missing_column_or_unusable_gold_ends_the_run_instead_of_scoring_zero():  # D10, A10
    with pytest.raises(TypeError, match="position"):
        grpo.Recorder(verifier="exact", generations=2)(
            prompts=[""], completions=["#### 5"], completion_ids=[[1]], answer=["5"], task_id=["a"], trainer_state=None
        )
    with pytest.raises(ValueError, match="see figure"):
        record(["#### 5", "#### 5"], ["see figure"] * 2)


def test_a_reward_never_abstains():  # D01: no None can reach TRL's mean
    assert record(["", "nothing"], ["5", "5"])[0] == [0.0, 0.0]


def test_before_and_after_must_be_the_same_questions():
    before = pd.DataFrame({"task_id": ["a", "b"], "n": 8, "c": [1, 2]})
    with pytest.raises(ValueError, match="2 questions before, 1 after"):
        oracle.pair(before, before.head(1), run_id="r", variant="sampled")


def test_an_invalid_run_stays_in_the_lifts_with_its_reason():
    pairs = pd.DataFrame(
        {"task_id": list("abcd"), "n_before": 8, "c_before": [1, 2, 3, 4], "n_after": 8, "c_after": [2, 4, 3, 5]}
    )
    pairs = pd.concat([pairs.assign(run_id="r", variant=v) for v in oracle.VARIANTS])
    fields = {
        "arm": "main",
        "cohort": "c",
        "seed": 0,
        "steps": 4,
        "tokens": 9,
        "eval_tokens": 9,
        "seconds": 1.0,
        "train_seconds": 0.5,
        "commit": "abc",
    }
    lifts = oracle.lift_table([fields | {"run_id": "r", "invalid": "why"}], pairs, k_eval=8)
    assert lifts.invalid.tolist() == ["why"] * 3 and lifts.lift.tolist() == pytest.approx([4 / 32] * 3)
    asked = pairs[pairs.variant != "shifted"]  # only selections are asked the questions of another domain
    assert oracle.lift_table([fields | {"run_id": "r", "invalid": ""}], asked, k_eval=8).variant.tolist() == [
        "sampled",
        "greedy",
    ]


def test_runs_are_seeded_apart_and_alike_every_time():
    study = load_study("smoke")
    seeds = [
        oracle.run_seed(study, f"{a}/{c}/seed{s}") for a in ("main", "causal") for c in ("random", "medium") for s in (0, 1)
    ]
    assert len(set(seeds)) == 8 and all(0 <= s < 2**31 for s in seeds)
    assert seeds[0] == oracle.run_seed(study, "main/random/seed0")


def test_a_finished_run_is_reused_only_for_what_it_was_made_with(monkeypatch):
    monkeypatch.setattr(oracle, "base_digest", lambda study, name: name)
    study = load_study("smoke")
    cohort = pd.DataFrame({"prompt": ["p"], "answer": ["1"], "verifier": ["exact"]})
    questions = pd.DataFrame({"task_id": ["q"], "prompt": ["p"], "answer": ["1"]})
    first = oracle.run_recipe(study, cohort, questions)
    assert first == oracle.run_recipe(study.model_copy(update={"seeds": [5]}), cohort, questions)
    assert first != oracle.run_recipe(study.model_copy(update={"grpo_learning_rate": 0.5}), cohort, questions)
    assert first != oracle.run_recipe(study, cohort.assign(answer="2"), questions)
    assert first != oracle.run_recipe(study, cohort, questions.assign(prompt="other"))


def test_an_arm_that_visits_unequally_or_learns_from_dead_groups_is_not_invalid_for_it():
    unequal, dead = run_tables(rewards=[3], visits=(3, 1, 1, 1)), run_tables(rewards=[0, 8])
    assert oracle.invalid_reason(*unequal, cohort_size=4, arm="online") == ""
    assert oracle.invalid_reason(*unequal, cohort_size=4, arm="dynamic_sampling") == ""
    assert oracle.invalid_reason(*dead, cohort_size=4, arm="zero_variance_aware") == ""
    assert "no group" in oracle.invalid_reason(*dead, cohort_size=4, arm="dynamic_sampling")
    assert "unequally" in oracle.invalid_reason(*unequal, cohort_size=4, arm="zero_variance_aware")
