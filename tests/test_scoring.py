"""Scoring from files alone: the same numbers as from arrays, and clear errors for what a buyer's file may hold."""

import numpy as np
import pandas as pd
import pytest

from lad_utils import scoring
from lad_utils.score import lad_interval


@pytest.fixture
def write(tmp_path):
    def write(frame, name="rollouts.parquet"):
        frame.to_parquet(tmp_path / name, index=False)
        return tmp_path / name

    return write


def rollouts(n=30, k=8, seed=0):
    rng = np.random.default_rng(seed)
    p = rng.beta(1, 1.5, n)
    return pd.DataFrame({"task_id": np.repeat([f"t{i}" for i in range(n)], k), "reward": rng.binomial(1, np.repeat(p, k))})


def test_files_score_as_arrays_do(write, tmp_path):
    frame, x = rollouts(), np.random.default_rng(1).normal(size=(30, 12)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    score, table = scoring.score_files(write(frame), tmp_path / "x.npy")
    by_task = frame.groupby("task_id", sort=False).reward.agg(["sum", "size"])
    assert (score.lad, score.low, score.high) == pytest.approx(lad_interval(by_task["sum"], by_task["size"], x), rel=1e-5)
    assert (score.n_tasks, score.n_rollouts, score.n_abstained) == (30, 240, 0)
    assert table.task_id.tolist() == by_task.index.tolist() and table.energy.mean() == pytest.approx(score.energy)


def test_tasks_keep_the_order_of_their_first_row_across_batches(write, monkeypatch):
    monkeypatch.setattr(scoring, "BATCH_ROWS", 7)
    frame = rollouts().sample(frac=1, random_state=3)
    found = scoring.count_rollouts(write(frame))
    assert found.task_id.tolist() == frame.task_id.drop_duplicates().tolist()
    assert found.set_index("task_id").correct.to_dict() == frame.groupby("task_id").reward.sum().to_dict()


def test_abstentions_are_counted_and_are_no_failures(write):  # D01
    frame = pd.DataFrame({"task_id": list("aaaabb"), "reward": [1.0, 0.0, None, np.nan, None, None]})
    found = scoring.count_rollouts(write(frame)).set_index("task_id")
    assert found.loc["a"].tolist() == [1, 2, 2] and found.loc["b"].tolist() == [0, 0, 2]
    score, table = scoring.score_files(
        write(pd.concat([frame, rollouts().assign(reward=lambda t: t.reward.astype(float))])), np.eye(32)
    )
    assert score.n_abstained == 4 and "1 tasks with fewer than 2 verdicts" in score.note
    assert table.set_index("task_id").scored["b"] == False  # noqa: E712


@pytest.mark.parametrize("kind", [np.int8, np.float32, bool])
def test_rewards_may_be_numbers_or_booleans(write, kind):
    frame = rollouts()
    expected = scoring.count_rollouts(write(frame))
    assert scoring.count_rollouts(write(frame.assign(reward=frame.reward.astype(kind)))).equals(expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f.assign(reward=0.5), "row 0 has reward=0.5, expected 0 or 1"),
        (lambda f: f.rename(columns={"reward": "score"}), "expected 'reward' among them"),
        (lambda f: f.assign(task_id=f.task_id.where(f.index != 11)), "row 11 has no task_id"),
        (lambda f: f.head(0), "found no rows"),
    ],
)
def test_what_cannot_be_counted_ends_in_one_clear_line(write, change, message):
    with pytest.raises(ValueError, match=message) as error:
        scoring.count_rollouts(write(change(rollouts())))
    assert "\n" not in str(error.value)


def test_a_file_that_is_no_parquet_and_a_missing_one_are_named(tmp_path):
    (tmp_path / "x.parquet").write_bytes(b"hello")
    for name in ("x.parquet", "none.parquet"):
        with pytest.raises(ValueError, match=name.split(".")[0]):
            scoring.count_rollouts(tmp_path / name)


def test_embeddings_of_another_number_of_tasks_are_refused(write):
    with pytest.raises(ValueError, match="30 tasks in the rollouts but 29 embeddings"):
        scoring.score_files(write(rollouts()), np.eye(29))


def test_one_rollout_a_task_says_nothing_of_a_spread(write):
    with pytest.raises(ValueError, match="no task has 2 verdicts"):
        scoring.score_files(write(rollouts(k=1)), np.eye(30))
