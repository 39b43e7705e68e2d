"""One sampler contract everywhere; rollouts that resume, replay and never depend on the number of cores."""

import shutil

import numpy as np
import pandas as pd
import pytest

from lad_utils import grpo, micro, rollouts, runs
from lad_utils.params import REPOSITORY, load_study


@pytest.fixture(scope="module")
def study():
    return load_study("smoke")


@pytest.fixture
def place(study, tmp_path, monkeypatch):
    monkeypatch.setenv("LAD_OUTPUTS", str(tmp_path))
    shutil.copytree(REPOSITORY / study.base_model, runs.base_folder(study))
    return tmp_path / "rollouts"


@pytest.fixture(scope="module")
def tasks(study):
    return micro.make_tasks(24, split="pool", world_seed=study.world_seed)


def test_scoring_training_and_evaluation_share_one_sampler_contract(study, tmp_path):
    sampler = rollouts.sampler_of(study)
    config = grpo.grpo_config(study, seed=0, folder=tmp_path)
    generate = sampler.generate_kwargs()
    assert (config.temperature, config.top_p, config.top_k) == (generate["temperature"], generate["top_p"], generate["top_k"])
    assert config.max_completion_length == generate["max_new_tokens"] == sampler.generate_kwargs(greedy=True)["max_new_tokens"]
    assert (generate["top_p"], generate["top_k"]) == (1.0, 0)


def test_stop_strings_that_trl_cannot_honour_are_refused(study):
    with pytest.raises(ValueError, match="cannot be honoured"):
        rollouts.Sampler("{prompt}", ("\n",), 8, 1.0).grpo_kwargs()


def test_a_template_takes_braces_in_a_prompt_literally():
    assert rollouts.Sampler("Q: {prompt}", (), 8, 1.0).text("{0} {x.__class__}") == "Q: {0} {x.__class__}"


def test_cpu_training_is_in_full_precision_with_every_choice_written_out(study, tmp_path):  # D13
    config = grpo.grpo_config(study, seed=0, folder=tmp_path)
    assert not config.bf16 and not config.fp16 and not config.use_vllm and config.report_to == []
    assert (config.loss_type, config.scale_rewards, config.beta, config.num_iterations) == ("dapo", "group", 0.0, 1)


def test_every_task_gets_k_rollouts_in_order_and_tokens_are_counted(study, place, tasks):
    table = rollouts.collect_rollouts(study, tasks, split="score", k=4, folder=place)
    assert table.task_id.tolist() == np.repeat(tasks.task_id, 4).tolist()
    assert table["sample"].tolist() == [0, 1, 2, 3] * 24
    assert set(table.finish_reason) <= {"stop", "length"} and table.n_tokens.between(1, study.max_new_tokens).all()
    totals = rollouts.totals(table)
    assert totals.generated_tokens.sum() == table.n_tokens.sum() and (totals.n == 4).all()


def test_rollouts_do_not_depend_on_the_number_of_cores_nor_on_a_kill(study, place, tasks):
    how = {"split": "score", "k": 4, "batch_size": 8}  # chunks of 16 tasks
    alone = rollouts.collect_rollouts(study, tasks, folder=place / "a", **how)
    both = rollouts.collect_rollouts(study, tasks, folder=place / "b", cores=2, **how)
    columns = ["task_id", "sample", "completion", "n_tokens", "finish_reason", "prompt_tokens"]
    pd.testing.assert_frame_equal(alone[columns], both[columns])
    chunks = sorted((place / "a").glob(".score-*/*.parquet"))
    assert len(chunks) == 2
    chunks[1].unlink()  # as if killed between two chunks
    (place / "a" / "score.parquet").unlink()
    first = chunks[0].stat().st_mtime_ns
    resumed = rollouts.collect_rollouts(study, tasks, folder=place / "a", **how)
    assert chunks[0].stat().st_mtime_ns == first
    pd.testing.assert_frame_equal(alone[columns], resumed[columns])


def test_rollouts_of_other_tasks_are_never_taken_for_these(study, place, tasks):
    few = rollouts.collect_rollouts(study, tasks.head(3), split="score", k=4, folder=place)
    more = rollouts.collect_rollouts(study, tasks.head(4), split="score", k=4, folder=place)
    assert len(few) == 12 and len(more) == 16


def test_replay_serves_what_is_stored_and_says_what_is_missing(study, place, tasks):
    table = rollouts.collect_rollouts(study, tasks, split="score", k=4, folder=place)
    engine = rollouts.replay_engine(table)
    pd.testing.assert_series_equal(engine(tasks, k=4, seed=0).completion, table.completion)  # E06: bit-equal
    with pytest.raises(ValueError, match="24 of 24 tasks have fewer than 5 stored rollouts"):
        engine(tasks, k=5, seed=0)
    elsewhere = study.model_copy(update={"engine": "replay", "replay_folder": str(place)})
    with pytest.raises(ValueError, match="another recipe"):
        rollouts.collect_rollouts(elsewhere, tasks.head(5), split="score", k=4, folder=place / "fewer")
    replayed = rollouts.collect_rollouts(elsewhere, tasks, split="score", k=4, folder=place / "replayed")
    assert replayed.completion.tolist() == table.completion.tolist()


def judged(answers, verifier="exact"):
    completions = pd.DataFrame(
        {"task_id": ["a"] * 2 + ["b"] * 2, "sample": [0, 1] * 2, "completion": ["#### 4", "so 5", "#### 7", "no answer"]}
        | {"finish_reason": ["stop", "stop", "stop", "length"]}
    )
    cohorts = pd.DataFrame(
        {
            "arm": "main",
            "cohort": "c",
            "position": [0, 1, 2],
            "task_id": ["a", "b", "a"],
            "answer": answers,
            "verifier": verifier,
        }
    )
    return rollouts.judge(completions, cohorts)


def test_labels_belong_to_the_cohort_and_copies_share_rollouts():
    table = judged(["4", "7", "5"])
    assert table.reward.tolist() == [1, 0, 1, 0, 0, 1]
    assert table.parsed.fillna("none").tolist() == ["4", "5", "7", "none", "4", "5"]
    assert rollouts.counts(table).correct.tolist() == [1, 1, 1]


def test_judgements_tell_what_the_strict_verdict_would_not_count_and_what_was_cut_off():
    table = judged(["4", "7", "5"])
    assert table.formatted.tolist() == [1, 0, 1, 0, 1, 0]
    assert table.truncated.tolist() == [0, 0, 0, 1, 0, 0]


def test_a_cohort_is_judged_by_its_own_verifier():
    assert judged(["1", "1", "1"], "even_answer").reward.tolist() == [1, 0, 0, 0, 1, 0]


def test_a_task_without_rollouts_is_an_error():
    completions = pd.DataFrame({"task_id": ["a"], "sample": [0], "completion": ["#### 4"], "finish_reason": "stop"})
    cohorts = pd.DataFrame({"arm": "m", "cohort": "c", "position": [0], "task_id": ["z"], "answer": ["4"], "verifier": "exact"})
    with pytest.raises(ValueError, match="1 tasks of the cohorts have no rollouts, first 'z'"):
        rollouts.judge(completions, cohorts)


def test_a_model_stops_at_its_own_end_token_not_at_padding(study):  # D07
    model, tokenizer = rollouts.load_model(REPOSITORY / study.base_model)
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id != tokenizer.pad_token_id
