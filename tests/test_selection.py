"""Selections: who is compared with whom, on which questions, and what counts as forgotten; on tables made by hand."""

import matplotlib
import numpy as np
import pandas as pd
import pytest

from lad_utils import selection, selection_plots
from lad_utils.cohorts import COMPARED, build_cohorts, score_split
from lad_utils.energy import unbiased_energy
from lad_utils.oracle import arm_recipe
from lad_utils.params import load_study

matplotlib.use("agg")
COUNTS = pd.DataFrame(
    {"split": "eval", "draw": [1] * 6, "task_id": [f"q{i}" for i in range(6)], "n": 10, "c": [10, 9, 9, 8, 1, 0]}
)


def runs(after: dict, *, variant="sampled", before=4, n=8):
    """(lifts, questions) of runs named (arm, cohort, seed): right answers after training, of n, on q0, q1, ..."""
    lifts, questions = [], []
    for (arm, cohort, seed), right in after.items():
        run_id = f"{arm}/{cohort}/seed{seed}"
        ids = [f"{'s' if variant == 'shifted' else 'q'}{i}" for i in range(len(right))]
        pairs = {"task_id": ids, "n_before": n, "c_before": before, "n_after": n, "c_after": right}
        questions.append(pd.DataFrame(pairs).assign(run_id=run_id, variant=variant))
        row = {"arm": arm, "cohort": cohort, "seed": seed, "variant": variant, "run_id": run_id, "invalid": ""}
        lifts.append(row | {"lift": np.mean(np.array(right) - before) / n})
    return pd.DataFrame(lifts), pd.concat(questions, ignore_index=True)


def scores(*names, arm="causal"):
    columns = {"arm": arm, "cohort": list(names), "metric": "lad", "value": np.arange(len(names)) / 100}
    return pd.DataFrame(columns | {"ci_low": 0.0, "ci_high": 1.0, "n_tasks": 3})


def by_name(*tables):
    return {e["name"]: e for e in selection.selection_entries(*tables, COUNTS)}


def test_selections_are_compared_question_by_question_in_the_order_named():
    lifts, questions = runs({("causal", "top_lad", 0): [4, 6, 6], ("causal", "bottom_lad", 0): [2, 2, 5]})
    found = by_name(lifts, questions, scores("top_lad", "bottom_lad"))
    assert found["causal.top_lad_minus_bottom_lad"]["value"] == pytest.approx((2 + 4 + 1) / 24)
    assert "causal.top_lad_minus_random_pool" not in found


def test_both_arms_are_compared_and_deciles_are_not():
    names = {
        ("causal", "top_lad", 0): [8, 6, 6],
        ("selection", "top_variance", 0): [4, 2, 4],
        ("selection", "decile_1", 0): [1, 2, 4],
    }
    lifts, questions = runs(names)
    found = by_name(lifts, questions, pd.concat([scores("top_lad"), scores("top_variance", "decile_1", arm="selection")]))
    assert found["causal.top_lad_minus_top_variance"]["value"] == pytest.approx(10 / 24)
    assert not any("minus_decile" in name for name in found) and "causal.decile_1.lift" in found


def test_the_effect_is_told_in_standard_deviations_between_seeds():
    after = {
        ("causal", c, s): [right + 2 * s, right, right + s] for c, right in (("top_lad", 4), ("random_pool", 2)) for s in (0, 1)
    }
    lifts, questions = runs(after)
    found = by_name(lifts, questions, scores("top_lad", "random_pool"))["causal.top_lad_minus_random_pool"]
    assert found["value"] == pytest.approx(2 / 8)
    assert found["note"].endswith(f"2 and 2 seeds; {0.25 / np.sqrt((3 / 24) ** 2 / 2):.1f} standard deviations between seeds")
    alone = runs({k: v for k, v in after.items() if k[2] == 0})
    assert by_name(*alone, scores("top_lad", "random_pool"))["causal.top_lad_minus_random_pool"]["note"].endswith(
        "1 and 1 seeds"
    )


def test_mastered_questions_are_those_an_independent_draw_solved_nearly_always():
    assert selection.mastered_questions(COUNTS) == ["q0", "q1", "q2"]
    other = COUNTS.assign(draw=2, c=10)
    assert selection.mastered_questions(pd.concat([COUNTS, other, other.assign(split="fresh", draw=1)])) == ["q0", "q1", "q2"]
    lifts, questions = runs({("causal", "top_lad", 0): [3, 4, 2, 8, 8, 8]})
    found = by_name(lifts, questions, scores("top_lad"))
    assert found["causal.top_lad.mastered_lift"]["value"] == pytest.approx(-3 / 24)
    assert found["causal.top_lad.lift"]["value"] == pytest.approx((-3 + 12) / 48)


def test_another_domain_has_a_lift_of_its_own_where_it_was_asked():
    after = {("causal", "top_lad", 0): [4, 6, 6], ("causal", "random_pool", 0): [2, 2, 5]}
    sampled, shifted = runs(after), runs({k: [v + 1 for v in right] for k, right in after.items()}, variant="shifted")
    lifts, questions = (pd.concat(parts, ignore_index=True) for parts in zip(sampled, shifted, strict=True))
    found = by_name(lifts, questions, scores("top_lad", "random_pool"))
    assert found["causal.top_lad.shifted_lift"]["value"] == pytest.approx(7 / 24)
    assert found["causal.top_lad_minus_random_pool.shifted_lift"]["value"] == pytest.approx(7 / 24)
    assert "causal.top_lad.shifted_lift" not in by_name(*sampled, scores("top_lad", "random_pool"))


def test_dose_and_response_over_deciles():
    after = {("selection", f"decile_{i}", 0): [i // 2, i // 2, 1 + i // 2] for i in range(1, 11)}
    after["selection", "decile_10", 0] = [0, 0, 1]
    lifts, questions = runs(after)
    found = by_name(lifts, questions, scores(*[f"decile_{i}" for i in range(1, 11)], arm="selection"))
    assert found["causal.dose.best_decile"]["value"] == 8 and 0 < found["causal.dose.decile_rho"]["value"] < 1
    assert found["causal.dose.lad_rho"]["value"] == pytest.approx(found["causal.dose.decile_rho"]["value"])


def pool(n=400, k=16):
    rng = np.random.default_rng(0)
    correct = rng.binomial(k, rng.uniform(0, 1, n) ** 2)
    table = pd.DataFrame(
        {"task_id": [f"t{i}" for i in range(n)], "correct": correct, "k": k, "pass_rate": correct / k, "answer": "1"}
    )
    return table.assign(operations=rng.choice(["++", "+-"], n)), rng.standard_normal((n, 12))


def chosen(*names, size=32):
    table, x = pool()
    rows, _ = build_cohorts([*names], table, size=size, world_seed=1, embeddings=x, arm="selection")
    return {name: table.set_index("task_id").loc[group.task_id] for name, group in rows.groupby("cohort")}


def test_selections_hold_what_their_names_say():
    made, (table, _) = chosen("hardest", "easiest", "random_mixed", "top_variance", "top_lad", "most_diverse"), pool()
    rates = np.sort(table.pass_rate)
    np.testing.assert_array_equal(np.sort(made["hardest"].pass_rate), rates[:32])
    np.testing.assert_array_equal(np.sort(made["easiest"].pass_rate), rates[-32:])
    assert made["random_mixed"].pass_rate.between(0, 1, inclusive="neither").all()
    variance = {name: unbiased_energy(m.correct, m.k, 0).mean() for name, m in made.items()}
    assert (
        variance["top_variance"] == max(variance.values())
        and made["top_variance"].pass_rate.mean() > made["top_lad"].pass_rate.mean()
    )
    assert all(m.index.is_unique for m in made.values())


def test_deciles_cut_the_pool_by_energy_without_overlap():
    made = chosen(*[f"decile_{i}" for i in range(1, 11)])
    energy = {int(name.removeprefix("decile_")): unbiased_energy(m.correct, m.k) for name, m in made.items()}
    assert all(energy[i].max() <= energy[i + 1].min() for i in range(1, 10))
    assert pd.concat(made.values()).index.is_unique


def test_compared_selections_get_every_seed_and_the_others_two():
    study = load_study("micro-reference")
    assert {len(arm_recipe(study, "causal", c)[1]) for c in study.causal_cohorts} == {6}
    assert {c: len(arm_recipe(study, "selection", c)[1]) for c in study.selection_cohorts} == {
        c: 6 if c in COMPARED else 2 for c in study.selection_cohorts
    }


def test_selections_are_scored_by_rollouts_of_their_own_so_that_other_scores_stay_as_they_were():
    assert score_split("selection") not in {score_split(arm) for arm in ("main", "causal", "mixture", "size")}


def test_figures_show_each_selection_once_and_deciles_apart():
    after = {("causal", c, 0): [4, 6, 6] for c in ("random_pool", "top_lad")} | {
        ("selection", f"decile_{i}", 0): [i // 2, 2, 3] for i in range(1, 11)
    }
    table = selection.selection_lifts(*runs(after), COUNTS)
    axes = selection_plots.selection_bars(table).axes[0]
    assert [t.get_text() for t in axes.get_yticklabels()] == ["random pool", "top lad"]
    lad = scores(*[f"decile_{i}" for i in range(1, 11)]).set_index("cohort").value
    assert [t.get_text() for t in selection_plots.dose_response(table, lad).axes[1].texts] == [str(i) for i in range(1, 11)]
