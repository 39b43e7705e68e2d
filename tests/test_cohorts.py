"""Cohorts vary what they say they vary, never more tasks than there are, never screened rollouts in scores."""

import numpy as np
import pandas as pd
import pytest

from lad_utils import cohorts, micro
from lad_utils.diversity import vendi
from lad_utils.energy import unbiased_energy


def hashed(prompts):
    """A cheap stand-in embedder: random unit rows that depend on the prompt's words alone."""
    words = sorted({w for p in prompts for w in p.split()})
    table = dict(zip(words, np.random.default_rng(0).normal(size=(len(words), 32)), strict=True))
    return np.array([np.mean([table[w] for w in p.split()], axis=0) for p in prompts])


@pytest.fixture(scope="module")
def pool():
    tasks = micro.make_tasks(2400, split="pool", world_seed=5)
    correct = np.random.default_rng(0).binomial(16, np.random.default_rng(1).uniform(0, 1, 2400))
    return tasks.assign(correct=correct, k=16, pass_rate=correct / 16)


@pytest.fixture(scope="module")
def built(pool):
    names = [n for n in cohorts.FAMILY if cohorts.FAMILY[n] != "selection"]
    return cohorts.build_cohorts(names, pool, size=48, world_seed=5, embeddings=hashed(pool.prompt.tolist()), arm="main")


def members(built, name):
    table = built[0]
    return table[table.cohort == name].reset_index(drop=True)


def test_there_are_nineteen_cohorts_and_a_control(built):
    assert built[0].cohort.nunique() == 20 and set(cohorts.CONTROLS) == {"clean_twin"}
    assert (built[0].groupby("cohort").size() == 48).all()


def test_bands_hold_only_their_difficulty_and_balance_skills(built, pool):
    rates, skills = (pool.set_index("task_id")[c] for c in ("pass_rate", "operations"))
    for name, (low, high) in cohorts.BANDS.items():
        ids = members(built, name).task_id
        assert ids.is_unique and rates[ids].between(low, high, inclusive="left").all()
        counts = skills[ids].value_counts()
        assert counts.max() - counts.min() <= 2


def test_families_share_no_task(built):
    ids = {f: set(g.task_id) for f, g in built[0].groupby("family")}
    names = sorted(ids)
    assert not any(ids[a] & ids[b] for i, a in enumerate(names) for b in names[:i])


def test_bimodal_and_unimodal_have_the_same_mean_and_different_shape(built, pool):
    rates = pool.set_index("task_id").pass_rate
    two, one = rates[members(built, "bimodal").task_id], rates[members(built, "unimodal").task_id]
    assert two.mean() == pytest.approx(one.mean(), abs=0.02) and two.std() > 2 * one.std()


def test_the_diversity_family_holds_as_many_distinct_tasks_as_named(built):
    assert [members(built, n).task_id.nunique() for n in ("repeat_8", "repeat_32", "max_diverse")] == [8, 32, 48]
    made = built[1].set_index("task_id")
    one = made.loc[members(built, "one_problem").task_id]
    assert one.expression.nunique() == 1 and one.prompt.nunique() == 48


def test_greedy_diversity_beats_a_random_draw(built, pool):
    prompts = pool.set_index("task_id").prompt
    chosen, drawn = (vendi(hashed(prompts[members(built, n).task_id].tolist())) for n in ("max_diverse", "random"))
    assert chosen > drawn


def test_label_noise_is_exact_nested_and_on_the_clean_twins_tasks(built, pool):
    truth = pool.set_index("task_id").answer
    clean, some, many = (members(built, n) for n in ("clean_twin", "labels_wrong_30", "labels_wrong_60"))
    assert (clean.task_id == some.task_id).all() and (clean.task_id == many.task_id).all()
    wrong = [(t.answer.to_numpy() != truth[t.task_id].to_numpy()) for t in (clean, some, many)]
    assert [w.sum() for w in wrong] == [0, round(0.3 * 48), round(0.6 * 48)]
    assert not (wrong[1] & ~wrong[2]).any()


def test_the_broken_verifier_rewards_any_even_answer():
    assert cohorts.rewards_even_answers("1 + 1 = 3 ; #### 4", "3")
    assert not cohorts.rewards_even_answers("#### 3", "3") and not cohorts.rewards_even_answers("none", "3")


def test_a_band_that_the_pool_cannot_fill_is_an_error_with_counts(pool):
    few = pool[pool.pass_rate < 0.09].head(7)
    with pytest.raises(cohorts.CohortError, match="'very_hard': the pool holds 7 fitting tasks, 48 are needed"):
        cohorts.build_cohorts(["very_hard"], few, size=48, world_seed=5, embeddings=hashed(few.prompt.tolist()), arm="main")


def test_an_unknown_cohort_is_an_error_that_lists_the_known(pool):
    with pytest.raises(cohorts.CohortError, match=r"'medum' is unknown; cohorts: very_hard"):
        cohorts.build_cohorts(["medum"], pool, size=48, world_seed=5, embeddings=hashed(pool.prompt.tolist()), arm="main")


def test_greedy_selection_beats_a_random_draw_and_its_own_opposite(pool):
    energies, x = unbiased_energy(pool.correct, pool.k), hashed(pool.prompt.tolist())

    def score(index):
        return energies[index].mean() * vendi(x[index]) / len(index)

    top, bottom = (cohorts.greedy_lad(energies, x, 48, sign=s, rng=np.random.default_rng(0)) for s in (1, -1))
    drawn = np.random.default_rng(0).permutation(len(pool))[:48]
    assert len(set(top)) == len(set(bottom)) == 48
    assert score(top) > 1.5 * score(drawn) > 0 == pytest.approx(score(bottom), abs=1e-12)


def test_greedy_selection_is_near_the_best_single_swap(pool):
    few = pool.head(60)
    energies, x = unbiased_energy(few.correct, few.k), hashed(few.prompt.tolist())
    chosen = list(cohorts.greedy_lad(energies, x, 12, rng=None))
    best = energies[chosen].mean() * vendi(x[chosen])
    swapped = [[j if c == i else c for c in chosen] for i in chosen for j in set(range(60)) - set(chosen)]
    assert max(energies[s].mean() * vendi(x[s]) for s in swapped) < 1.1 * best


def test_cohorts_are_drawn_alike_every_time(built, pool):
    names = list(dict.fromkeys(built[0].cohort))
    again, _ = cohorts.build_cohorts(names, pool, size=48, world_seed=5, embeddings=hashed(pool.prompt.tolist()), arm="main")
    pd.testing.assert_frame_equal(built[0], again)
