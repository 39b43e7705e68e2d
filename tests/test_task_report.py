"""Which tasks pull their weight, checked against finite differences and by hand."""

import numpy as np
import pandas as pd
import pytest

from lad_utils.diversity import vendi
from lad_utils.energy import unbiased_energy
from lad_utils.task_report import VERDICTS, pull, surprise, task_report


def weighted_lad(weights, energies, x):
    """log of mean energy x Vendi under weights, the long way round."""
    kernel = x @ x.T * np.sqrt(np.outer(weights, weights))
    values = np.linalg.eigvalsh(kernel)
    values = values[values > 1e-12]
    return np.log(weights @ energies) - np.sum(values * np.log(values))


def test_pull_is_the_derivative_of_log_lad():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(20, 6))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    correct, n, step = rng.integers(0, 9, 20), 20, 1e-6
    energies, found = unbiased_energy(correct, 8), pull(correct, 8, x)
    assert found.mean() == pytest.approx(1)
    base = np.full(n, 1 / n)
    for i in range(n):
        more = (1 - step) * base + step * np.eye(n)[i]
        assert (weighted_lad(more, energies, x) - weighted_lad(base, energies, x)) / step == pytest.approx(
            found[i] - 1, abs=1e-3
        )


def test_a_lone_direction_is_more_surprising_than_a_repeated_one():
    found = surprise(np.eye(2)[[0, 0, 0, 1]])
    assert found == pytest.approx(np.log([4 / 3] * 3 + [4]) - np.log(vendi(np.eye(2)[[0, 0, 0, 1]])))
    assert surprise(np.eye(2)[[0, 0, 0, 1]], chunk_rows=3) == pytest.approx(found)


@pytest.fixture
def tasks():
    return pd.DataFrame(
        {
            "task_id": list("abcdef"),
            "prompt": ["one apple", "two pears", "ONE  apple", "three figs", "four plums", "five nuts"],
            "correct": [3, 0, 3, 8, 2, 4],
            "k": 8,
            "line": [1, 2, 4, 5, 6, 9],
        }
    )


def test_verdicts_name_the_task_that_a_repeat_repeats_and_come_in_their_order(tasks):
    report = task_report(tasks, np.eye(6), suspicion=[0, 0, 0.9, 0, 0.6, np.nan]).set_index("task_id")
    assert report.verdict.to_dict() == {
        "a": "keep",
        "b": "never solved",
        "c": "check the label",
        "d": "always solved",
        "e": "check the label",
        "f": "keep",
    }
    assert report.repeats[["a", "c"]].tolist() == ["", "a"] and report.copies[["a", "b", "c"]].tolist() == [2, 1, 2]
    assert set(report.verdict) <= set(VERDICTS) and report.loc["c", "line"] == 4
    assert task_report(tasks, np.eye(6)).set_index("task_id").verdict["c"] == "repeated"


def test_prompts_that_differ_in_an_operator_alone_are_two_tasks(tasks):
    report = task_report(tasks.assign(prompt=["3 + 4 = ?", "3 - 4 = ?", "3 * 4 = ?", "1 + 27", "12 + 7", "x"]), np.eye(6))
    assert (report.repeats == "").all()


def test_a_near_duplicate_is_named_and_kept(tasks):
    text = "A baker sells {} loaves every morning and half as many in the afternoon. How many a week?"
    prompts = [text.format(12), "two pears", text.format(13), *tasks.prompt[3:]]
    report = task_report(tasks.assign(prompt=prompts), np.eye(6)).set_index("task_id")
    assert report.similar_to.to_dict() == {"a": "", "b": "", "c": "a", "d": "", "e": "", "f": ""}
    assert 0.7 <= report.similarity["c"] < 1 and report.similarity["a"] == 0 and report.verdict["c"] == "keep"


def test_no_task_has_a_certain_energy_and_nothing_is_undefined(tasks):
    report = task_report(tasks, np.eye(6))
    assert (report.energy_se > 0).all() and report.notna().all().all()
    assert report.pull.is_monotonic_decreasing
    unsolved = task_report(tasks.assign(correct=0), np.eye(6))
    assert (unsolved.energy > 0).all() and unsolved.pull.to_numpy() == pytest.approx(1)
