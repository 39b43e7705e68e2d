"""Mixture cohorts and the arm that varies size: what they hold and that they vary what they are there for."""

import numpy as np
import pytest

from lad_utils import micro
from lad_utils.cohorts import CohortError
from lad_utils.mixtures import COPIES, build_mixtures, mixture_weights
from lad_utils.params import load_study
from lad_utils.size import build_size_cohorts, size_cohort_names, size_of


@pytest.fixture(scope="module")
def pool():
    tasks = micro.make_tasks(1500, split="pool", world_seed=7)
    return tasks.assign(pass_rate=np.random.default_rng(0).random(1500))


@pytest.fixture(scope="module")
def mixtures(pool):
    return build_mixtures(12, pool, size=256, world_seed=7)


def test_every_mixture_fills_its_positions_with_pool_tasks(mixtures, pool):
    assert (mixtures.groupby("cohort").size() == 256).all() and mixtures.cohort.nunique() == 12
    assert (mixtures.groupby("cohort").position.nunique() == 256).all()
    assert set(mixtures.task_id) <= set(pool.task_id)


def test_copies_come_in_their_classes_and_share_their_label(mixtures):
    copies = mixtures.groupby(["cohort", "task_id"])
    assert set(copies.size()) == set(COPIES)
    assert (copies.answer.nunique() == 1).all()


def test_mixtures_differ_in_difficulty_skill_duplication_and_labels(mixtures, pool):
    joined = mixtures.merge(pool[["task_id", "answer", "pass_rate", "operations"]], on="task_id", suffixes=("", "_true"))
    grouped = joined.assign(wrong=joined.answer != joined.answer_true).groupby("cohort")
    wrong, hard, distinct = grouped.wrong.mean(), grouped.pass_rate.mean(), grouped.task_id.nunique()
    assert np.ptp(wrong) > 0.2 and np.ptp(hard) > 0.2 and np.ptp(distinct) > 60
    top_skill = grouped.operations.agg(lambda s: s.value_counts(normalize=True).iloc[0])
    assert top_skill.max() > 0.35


def test_the_label_noise_is_the_drawn_share(mixtures, pool):
    skills = sorted(pool.operations.unique())
    for index in range(12):
        weights, _ = mixture_weights(index, skills=skills, world_seed=7)
        rows = mixtures[mixtures.cohort == f"mixture_{index:02d}"].drop_duplicates("task_id")
        true = pool.set_index("task_id").answer[rows.task_id].to_numpy()
        assert (rows.answer.to_numpy() != true).sum() == round(weights["labels"][1] * len(rows))


def test_mixtures_depend_on_the_seed_and_on_their_number_alone(mixtures, pool):
    assert build_mixtures(3, pool, size=256, world_seed=7).equals(mixtures[mixtures.cohort < "mixture_03"])
    assert not build_mixtures(3, pool, size=256, world_seed=8).task_id.equals(mixtures.task_id[:768])
    assert len(build_mixtures(0, pool, size=256, world_seed=7)) == 0


def test_a_pool_too_small_for_a_mixture_is_an_error_with_counts(pool):
    with pytest.raises(CohortError, match="100 fitting tasks"):
        build_mixtures(1, pool.head(100), size=256, world_seed=7)


def test_size_cohorts_hold_as_many_distinct_tasks_as_they_say_whatever_the_steps(pool):
    study = load_study("micro-reference")
    names, cohorts = size_cohort_names(study), build_size_cohorts(study, pool)
    assert len(names) == len(study.size_distinct) * len(study.size_steps) * study.size_draws == cohorts.cohort.nunique()
    for name, rows in cohorts.groupby("cohort"):
        assert rows.task_id.nunique() == size_of(name).distinct and len(rows) == study.cohort_size
        assert rows.task_id.value_counts().nunique() == 1
    sets = {name: frozenset(rows.task_id) for name, rows in cohorts.groupby("cohort")}
    assert sets["distinct_8_steps_32_draw_0"] == sets["distinct_8_steps_64_draw_0"] != sets["distinct_8_steps_32_draw_1"]


def test_a_study_without_the_size_arm_has_no_such_rows(pool):
    assert len(build_size_cohorts(load_study("micro"), pool)) == 0
