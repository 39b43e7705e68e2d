"""Entries of every metric against lift: LAD's rivals, partial correlations, held-out errors."""

import numpy as np
import pandas as pd
import pytest

from lad_utils import correlations
from lad_utils.agreement import partial_spearman_ci
from lad_utils.baselines import METRICS
from lad_utils.stats import loco, spearman_ci, williams_test
from lad_utils.validation import PRIMARY_RIVALS


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(1)
    lift, families = rng.normal(size=19), np.repeat([*"abcdefgh"], [5, 2, 4, 2, 2, 2, 1, 1])
    columns = {m: lift + rng.normal(0, 2, 19) for m in METRICS} | {"lad": lift + rng.normal(0, 0.2, 19)}
    columns["lift_other_seeds"] = lift + rng.normal(0, 0.1, 19)
    mix = {f"share_of_{n}": rng.random(19) for n in ("plus", "minus")}
    return pd.DataFrame({"cohort": [f"c{i}" for i in range(19)], "family": families, "lift": lift, **columns, **mix})


def by_name(entries):
    return {e["name"]: e for e in entries}


def test_lad_is_compared_with_its_primary_rivals_under_holm_over_four(table):
    found = by_name(correlations.comparison_entries(table))
    raw = {r: found[f"lad_minus_{r}.p_value"]["value"] for r in PRIMARY_RIVALS}
    smallest = min(raw, key=raw.get)
    assert len(raw) == 4
    assert found[f"lad_minus_{smallest}.p_value_holm"]["value"] == pytest.approx(min(1, 4 * raw[smallest]))
    r = [spearman_ci(table[a], table[b]).rho for a, b in (("lad", "lift"), ("variance", "lift"), ("lad", "variance"))]
    e = found["lad_minus_variance.rho"]
    assert e["value"] == pytest.approx(r[0] - r[1]) and e["ci_low"] < e["value"] < e["ci_high"]
    assert raw["variance"] == pytest.approx(williams_test(*r, 19).p_value)


def test_another_full_run_is_compared_with_the_lift_of_the_other_seeds(table):
    found = by_name(correlations.correlation_entries(table))
    assert found["full_run.rho"]["value"] == pytest.approx(spearman_ci(table.full_run, table.lift_other_seeds).rho)
    assert found["full_run.rho"]["value"] != pytest.approx(spearman_ci(table.full_run, table.lift).rho)
    beside = by_name(correlations.comparison_entries(table))["lad_minus_full_run.rho"]["value"]
    r = [spearman_ci(table[m], table.lift_other_seeds).rho for m in ("lad", "full_run")]
    assert beside == pytest.approx(r[0] - abs(r[1]))


def test_a_rival_is_taken_in_its_better_direction(table):
    one, mirrored = (by_name(correlations.comparison_entries(t)) for t in (table, table.assign(variance=-table.variance)))
    for name in ("rho", "p_value", "p_value_family_swaps"):
        assert mirrored[f"lad_minus_variance.{name}"]["value"] == pytest.approx(one[f"lad_minus_variance.{name}"]["value"])


def test_a_primary_rival_that_was_not_measured_still_counts_in_holm(table):
    missing = by_name(correlations.comparison_entries(table.assign(short_grpo=np.nan)))
    raw = {r: missing[f"lad_minus_{r}.p_value"]["value"] for r in PRIMARY_RIVALS}
    assert raw["short_grpo"] is None and missing["lad_minus_short_grpo.p_value"]["reason"]
    smallest = min(v for v in raw.values() if v is not None)
    holm = [missing[f"lad_minus_{r}.p_value_holm"]["value"] for r in PRIMARY_RIVALS]
    assert min(v for v in holm if v is not None) == pytest.approx(min(1, 4 * smallest))


def test_only_the_four_comparisons_fixed_beforehand_are_called_primary(table):
    notes = {n: e["note"] for n, e in by_name(correlations.comparison_entries(table)).items() if n.endswith(".p_value")}
    assert {n for n, note in notes.items() if note.startswith("primary")} == {f"lad_minus_{r}.p_value" for r in PRIMARY_RIVALS}
    assert all(note.startswith(("primary", "exploratory")) for note in notes.values())


def test_held_out_numbers_leave_whole_families_out(table):
    found = by_name(correlations.correlation_entries(table))
    held_out = loco(table.lad, table.lift, table.family.tolist(), n_permutations=0)
    assert found["lad.held_out_family_rho"]["value"] == pytest.approx(held_out.rho)
    rmse = np.sqrt(np.mean((held_out.predictions - table.lift) ** 2))
    assert found["lad.held_out_family_rmse"]["value"] == pytest.approx(rmse)
    assert found["lad.held_out_cohort_rmse"]["value"] != pytest.approx(rmse)


def test_partial_correlation_leaves_the_metric_itself_out_of_what_is_given(table):
    found = by_name(correlations.agreement_entries(table))
    given = [c for c in correlations.COVARIATES if c != "vendi"]
    assert found["vendi.partial_rho"]["value"] == pytest.approx(partial_spearman_ci(table.vendi, table.lift, table[given]).rho)
    assert "vendi" not in found["vendi.partial_rho"]["note"] and "vendi" in found["lad.partial_rho"]["note"]


def test_operation_mix_counts_the_steps_of_a_cohorts_tasks(table):
    cohorts = pd.DataFrame({"arm": "main", "cohort": ["c0", "c0", "c1"], "task_id": ["a", "b", "b"]})
    tasks = pd.DataFrame({"task_id": ["a", "b"], "operations": ["++", "-*"]})
    mixed = correlations.with_operation_mix(table[["cohort"]].head(2), cohorts, tasks)
    assert mixed.share_of_plus.tolist() == [0.5, 0.0] and mixed.share_of_minus.tolist() == [0.25, 0.5]


def test_the_null_of_held_out_correlations_is_below_zero_and_depends_on_the_folds(table):
    found = by_name(correlations.null_entries(table))
    cohort, family = (found[f"null.held_out_{fold}_rho"] for fold in ("cohort", "family"))
    assert cohort["value"] == pytest.approx(-0.38, abs=0.04)  # as published for n = 19
    assert cohort["value"] < family["value"] < 0 and family["ci_low"] < family["value"] < family["ci_high"]


def test_without_families_there_is_no_null_by_family(table):
    found = by_name(correlations.null_entries(table.assign(family="mixture")))
    assert found["null.held_out_family_rho"]["value"] is None and found["null.held_out_family_rho"]["reason"]
    assert found["null.held_out_cohort_rho"]["value"] is not None


def test_a_useless_rival_in_its_better_direction_is_never_behind_zero():
    rng = np.random.default_rng(2)
    rho = [spearman_ci(*rng.standard_normal((2, 19))).rho for _ in range(300)]
    assert np.mean(np.abs(rho)) > 0.15 > abs(np.mean(rho))  # why comparisons err against LAD
