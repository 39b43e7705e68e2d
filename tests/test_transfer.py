"""Transfer-aware coverage and its controls: the formula by hand, and that the controls would expose what is no transfer."""

import numpy as np
import pandas as pd
import pytest

from lad_utils.transfer import coverage, coverage_scores, frozen_kernel


def test_coverage_by_hand():
    found = coverage([0.25, 0.16], [[1.0, 0.5], [0.0, 0.0]], [0.5, 0.4])
    assert found == pytest.approx(0.25 * np.log(1 + 0.5 + 0.2) / 2)


def test_the_kernel_is_the_cosine_without_its_negative_half():
    assert frozen_kernel(np.eye(2), [[1, 0], [-1, 0]]).tolist() == [[1, 0], [0, 0]]


@pytest.fixture
def world():
    """Two subjects, orthogonal; the target asks about the first alone. Cohorts `near` and `far` differ in nothing else."""
    rng = np.random.default_rng(0)
    ids = [f"t{i}" for i in range(80)]
    vectors = pd.DataFrame(np.repeat(np.eye(2), 40, axis=0), index=ids)
    correct = np.tile(rng.binomial(8, 0.4, 40), 2)
    rows = pd.DataFrame({"task_id": ids, "correct": correct, "k": 8, "arm": "main", "cohort": np.repeat(["near", "far"], 40)})
    targets = pd.DataFrame({"correct": [2, 4, 5], "k": 8})
    return rows, vectors, targets, np.tile([1.0, 0.0], (3, 1))


def test_relevance_shows_in_the_score_and_in_neither_control(world):
    found = coverage_scores(*world, rng=np.random.default_rng(1)).pivot(index="cohort", columns="metric", values="value")
    assert found.coverage["near"] > 0 == found.coverage["far"]
    assert found.coverage_flat["near"] == pytest.approx(found.coverage_flat["far"])
    assert found.coverage_shuffled["near"] == pytest.approx(found.coverage_shuffled["far"], rel=0.15)


def test_copies_add_nothing(world):
    rows, *rest = world
    doubled = pd.concat([rows, rows[rows.cohort == "near"]], ignore_index=True)
    first, again = (coverage_scores(r, *rest, rng=np.random.default_rng(1)) for r in (rows, doubled))
    pd.testing.assert_frame_equal(first, again)
