"""From raw tables to headline numbers, on tables small enough to work out by hand."""

import numpy as np
import pandas as pd
import pytest

from lad_utils import costs, validation
from lad_utils.baselines import majority_interval


def lifts(*rows):
    columns = ["arm", "cohort", "seed", "lift", "invalid"]
    table = pd.DataFrame(rows, columns=columns)
    return table.assign(variant="sampled", run_id=table.arm + "/" + table.cohort + "/seed" + table.seed.astype(str))


def questions(run_id, before, after, n=8):
    ids = [f"q{i}" for i in range(len(before))]
    counts = {"n_before": n, "c_before": before, "n_after": n, "c_after": after}
    return pd.DataFrame({"task_id": ids, **counts, "run_id": run_id, "variant": "sampled"})


def test_a_number_without_value_needs_a_reason():
    with pytest.raises(ValueError, match="undefined without a reason"):
        validation.entry("x", np.nan, n=3, source="s")
    assert validation.entry("x", np.nan, n=3, source="s", reason="why")["value"] is None


def test_a_cohorts_lift_pools_its_seeds_by_question():
    table = lifts(("main", "random", 0, 0.25, ""), ("main", "random", 1, 0.0, ""))
    pairs = pd.concat(
        [questions("main/random/seed0", [0, 4, 4], [2, 8, 4]), questions("main/random/seed1", [0, 4, 4], [2, 4, 2])]
    )
    found = validation.cohort_lifts(table, pairs, arm="main").iloc[0]
    per_question = np.array([(2 + 2) / 16, (12 - 8) / 16, (6 - 8) / 16])
    assert found.lift == pytest.approx(per_question.mean())
    between_seeds = np.var([0.25, 0.0], ddof=1) / 2
    half = 4.302653 * np.sqrt(per_question.var(ddof=1) / 3 + between_seeds)
    assert (found.ci_low, found.ci_high) == pytest.approx((found.lift - half, found.lift + half), abs=1e-6)
    assert (found.n_seeds, found.n_invalid) == (2, 0)


def test_invalid_runs_are_counted_and_never_averaged_as_zero_lift():
    table = lifts(("main", "random", 0, 0.25, ""), ("main", "random", 1, 0.0, "no group ever had both rewards"))
    pairs = pd.concat(
        [questions("main/random/seed0", [0, 4, 4], [2, 8, 4]), questions("main/random/seed1", [0, 4, 4], [0, 4, 4])]
    )
    found = validation.cohort_lifts(table, pairs, arm="main").iloc[0]
    assert found.lift == pytest.approx(0.25) and (found.n_seeds, found.n_invalid) == (1, 1)


def test_the_control_is_not_among_the_validated_cohorts():
    names = ["random", "medium", "clean_twin"]
    table = lifts(*[("main", n, 0, 0.1, "") for n in names])
    pairs = pd.concat([questions(f"main/{n}/seed0", [1, 2, 3], [2, 3, 5]) for n in names])
    scores = pd.DataFrame({"arm": "main", "cohort": names, "metric": "lad", "value": [1.0, 2.0, 3.0]})
    assert validation.validated(scores, table, pairs).cohort.tolist() == ["random", "medium"]


@pytest.mark.parametrize(
    ("parsed", "rewards", "expected"),
    [
        (["5", "5", "4"], [1, 1, 0], 1.0),
        (["4", "4", "5"], [0, 0, 1], 0.0),
        (["4", "5"], [0, 1], 0.5),
        ([None, None, np.nan, "5"], [0, 0, 0, 1], 1.0),
        ([None, np.nan], [0, 0], 0.0),
    ],
)
def test_majority_correctness_counts_votes_and_never_missing_answers(parsed, rewards, expected):
    found = majority_interval([(parsed, np.array(rewards))], np.ones(1), rng=np.random.default_rng(0))
    assert found[0] == expected and found[1] <= expected <= found[2]


def test_a_planted_workload_costs_what_the_rules_say():
    totals = pd.DataFrame(
        {"split": "score", "task_id": ["a", "b"], "generated_tokens": [10, 20], "prompt_tokens": [3, 7], "seconds": [1.0, 2.0]}
    )
    row = costs.rollout_cost(totals, kind="stage", name="score", n_parameters=100)
    assert (row["generated_tokens"], row["forward_tokens"], row["backward_tokens"], row["seconds"]) == (30, 40, 0, 3.0)
    assert row["flops"] == 2 * 100 * 40
    groups = pd.DataFrame({"tokens": [30], "prompt_tokens": [10]})
    trained = costs.training_cost(groups, seconds=5.0, kind="stage", name="training", n_parameters=100)
    assert trained["flops"] == 8 * 100 * 40  # generation 2N, forward 2N, backward 4N a token


def test_an_arm_without_runs_gives_an_empty_table_with_every_column():
    table = lifts(("main", "random", 0, 0.1, ""))
    pairs = questions("main/random/seed0", [1, 2, 3], [2, 3, 5])
    scores = pd.DataFrame(
        {"arm": ["main", "mixture"], "cohort": ["random", "mixture_00"], "metric": "lad", "value": [1.0, 2.0]}
    )
    empty = validation.validated(scores, table, pairs, arm="mixture")
    assert empty.empty and {"cohort", "family", "lift", "lift_other_seeds", "lad", "short_grpo"} <= set(empty.columns)


def test_seed_noise_on_a_part_of_the_questions_is_that_of_the_part():
    table = lifts(("main", "random", 0, 0.0, ""), ("main", "random", 1, 0.0, ""))
    pairs = pd.concat(
        [questions("main/random/seed0", [4, 4, 4, 4], [8, 8, 0, 0]), questions("main/random/seed1", [4, 4, 4, 4], [0, 0, 8, 8])]
    )
    part = validation.lifts_over(pairs[pairs.task_id.isin(["q0", "q1"])], table, variant="sampled")
    assert part.lift.tolist() == [0.5, -0.5] and validation.seed_variance(part) == pytest.approx(0.5)
