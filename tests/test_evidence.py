"""Every published number, recomputed from the raw files in outputs/reference/micro; any difference fails."""

import json

import numpy as np
import pandas as pd
import pytest
import yaml
from scipy.stats import spearmanr

from lad_utils import report
from lad_utils.cohorts import CONTROLS
from lad_utils.costs import study_costs
from lad_utils.findings import readme_with
from lad_utils.params import REPOSITORY, check, load_study
from lad_utils.runs import REFERENCE, read_table
from lad_utils.diversity import vendi
from lad_utils.energy import unbiased_energy

STUDY = load_study("micro-reference")
STORED = json.loads((REFERENCE / "results.json").read_text())
ENTRIES = {e["name"]: e for e in STORED["entries"]}


@pytest.fixture(scope="module")
def tables():
    return report.load_tables(REFERENCE)


@pytest.fixture(scope="module")
def votes():
    return read_table(REFERENCE / "judgements.parquet")


@pytest.fixture(scope="module")
def judgements(votes):
    """One row a rollout again, from votes with their counts."""
    return votes.loc[votes.index.repeat(votes["count"])].drop(columns="count").reset_index(drop=True)


def same(found, stored) -> bool:
    if isinstance(stored, float) or isinstance(found, float):
        return found is not None and stored is not None and bool(np.isclose(found, stored, rtol=1e-6, atol=1e-9))
    return found == stored


def test_results_json_recomputes_number_by_number(tables):
    again = report.results(STUDY, tables)
    assert [e["name"] for e in again["entries"]] == list(ENTRIES)
    wrong = [e["name"] for e in again["entries"] if not all(same(e[k], ENTRIES[e["name"]][k]) for k in e)]
    assert wrong == []
    assert {k: v for k, v in again.items() if k != "entries"} == {k: v for k, v in STORED.items() if k != "entries"}


def test_the_check_notices_a_changed_lift(tables):
    lifts = tables["lifts"].copy()
    first = (lifts.arm == "main") & (lifts.cohort == STUDY.cohorts[0]) & (lifts.seed == STUDY.seeds[0])
    lifts.loc[first, "lift"] += 0.01
    again = report.results(STUDY, tables | {"lifts": lifts})
    assert any(not same(e["value"], ENTRIES[e["name"]]["value"]) for e in again["entries"])


def test_the_readme_prints_the_stored_table_findings_and_figure():
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    assert readme_with(text, STORED) == text
    assert "outputs/reference/micro/figures/lift_against_lad.png" in text


def test_lifts_recompute_from_counts_by_question(tables):
    questions = tables["eval_questions"]
    for row in tables["lifts"].itertuples():
        q = questions[(questions.run_id == row.run_id) & (questions.variant == row.variant)]
        assert len(q) == row.n_questions == STUDY.n_eval
        before, after = (q.c_before / q.n_before).mean(), (q.c_after / q.n_after).mean()
        assert (row.acc_before, row.acc_after, row.lift) == pytest.approx((before, after, after - before))


def test_scores_recompute_from_votes_and_prompts(tables, judgements):
    again = report.score_study(STUDY, tables["tasks"], judgements, tables["rollout_totals"])
    stored = tables["scores"].set_index(["arm", "cohort", "metric"])
    again = again.set_index(["arm", "cohort", "metric"]).loc[stored.index]
    numbers = ["value", "generated_tokens", "forward_tokens", "seconds"]
    np.testing.assert_allclose(again[numbers].to_numpy(float), stored[numbers].to_numpy(float), rtol=1e-4)
    exact = stored.index.get_level_values("metric") != "majority_correctness"  # its bootstrap depends on the order of votes
    intervals = ["ci_low", "ci_high"]
    np.testing.assert_allclose(again.loc[exact, intervals], stored.loc[exact, intervals], rtol=1e-4, atol=1e-7)


def test_the_headline_correlation_follows_from_first_principles(tables, votes):
    """Not a line of the validation code: counts to energies, prompts to Vendi, questions to lifts, SciPy's Spearman."""
    from lad_utils.embeddings import embed

    main = votes[(votes.arm == "main") & ~votes.cohort.isin(CONTROLS)]
    prompts = tables["tasks"].set_index("task_id").prompt
    lad, lift = {}, {}
    for name, group in main.groupby("cohort"):
        right = group.assign(right=group.reward * group["count"]).groupby("position")
        correct, k = right["right"].sum(), right["count"].sum()
        ids = right.task_id.first()
        lad[name] = unbiased_energy(correct, k).mean() * vendi(embed(prompts[ids].tolist())) / len(ids)
        q = tables["eval_questions"]
        q = q[q.run_id.str.startswith(f"main/{name}/") & (q.variant == "sampled")]
        lift[name] = (q.c_after / q.n_after).mean() - (q.c_before / q.n_before).mean()
    found = spearmanr([lad[n] for n in sorted(lad)], [lift[n] for n in sorted(lad)]).statistic
    assert found == pytest.approx(ENTRIES["lad.rho"]["value"], abs=1e-9)
    assert ENTRIES["lad.rho"]["n"] == len(lad) == 19


def test_costs_recompute_from_logged_tokens(tables):
    n_parameters = 0
    from safetensors import safe_open

    with safe_open(REFERENCE / "base" / "model.safetensors", "np") as weights:
        n_parameters = sum(weights.get_tensor(name).size for name in list(weights.keys()))
    args = (tables[n] for n in ("cohorts", "rollout_totals", "groups", "lifts"))
    pd.testing.assert_frame_equal(study_costs(*args, n_parameters=n_parameters), tables["costs"])


def test_every_run_is_there_trained_equally_and_logged_whole(tables):
    runs = tables["lifts"].drop_duplicates("run_id")
    assert len(runs) == len(STUDY.cohorts) * len(STUDY.seeds) + len(STUDY.causal_cohorts) * len(STUDY.causal_seeds)
    assert len(STUDY.seeds) >= 4
    per_step = STUDY.grpo_prompts_per_step
    groups = tables["groups"].groupby("run_id")
    assert (groups.size() == STUDY.grpo_steps * per_step).all() and set(groups.groups) == set(runs.run_id)
    visits = tables["groups"].groupby(["run_id", "position"]).size()
    assert visits.min() == visits.max() == STUDY.grpo_steps * per_step // STUDY.cohort_size


def test_what_is_logged_a_step_follows_from_its_groups(tables):
    groups = tables["groups"].assign(mixed=lambda t: t.reward_sum.between(1, t.n - 1), rate=lambda t: t.reward_sum / t.n)
    steps = tables["steps"].set_index(["run_id", "step"])
    found = groups.groupby(["run_id", "step"])[["mixed", "rate"]].mean().loc[steps.index]
    np.testing.assert_allclose(steps.zero_variance_share, 1 - found.mixed, atol=1e-12)
    np.testing.assert_allclose(steps.mean_reward, found.rate, atol=1e-12)


def test_the_stored_parameters_are_the_studys_with_trls_full_config():
    stored = yaml.safe_load((REFERENCE / "params.yaml").read_text())
    config = stored.pop("grpo_config")
    assert check(stored, where="stored") == STUDY
    assert len(config) > 100 and config["learning_rate"] == STUDY.grpo_learning_rate and config["max_steps"] == STUDY.grpo_steps


def test_the_families_vary_what_they_are_there_for(tables):
    found = tables["scores"][tables["scores"].arm == "main"].pivot(index="cohort", columns="metric", values="value")
    bands = found.mean_pass_rate[["very_hard", "hard", "medium_hard", "medium", "medium_easy", "easy", "very_easy"]]
    assert bands.is_monotonic_increasing
    assert 0.2 <= found.mean_pass_rate["broken_verifier"] <= 0.6
    assert found.variance["medium_hard"] == pytest.approx(found.variance["medium_easy"], rel=0.15)
    assert found.mean_pass_rate["bimodal"] == pytest.approx(found.mean_pass_rate["unimodal"], abs=0.05)
    assert (
        found.mean_pass_rate["labels_wrong_60"] < found.mean_pass_rate["labels_wrong_30"] < found.mean_pass_rate["clean_twin"]
    )
    assert found.vendi["repeat_8"] < found.vendi["repeat_32"] < found.vendi["random"] < found.vendi["max_diverse"]
    assert found.distinct_fraction[["repeat_8", "repeat_32", "random"]].tolist() == [8 / 256, 32 / 256, 1]


def test_lad_never_exceeds_the_formulas_maximum(tables):
    scores = tables["scores"]
    wide = scores.pivot(index=["arm", "cohort"], columns="metric", values="value")
    assert (wide.lad / (wide.vendi / STUDY.cohort_size) <= 4 / 27).all()


def test_no_number_is_undefined_without_a_reason(tables):
    assert all(e["value"] is not None or e["reason"] for e in STORED["entries"])
    assert tables["scores"].value.notna().all()


def test_executed_notebooks_keep_their_pictures_and_no_error():
    paths = sorted((REFERENCE / "notebooks").glob("**/*.ipynb"))
    names = {p.stem for p in paths}
    assert {
        "00_micro_base",
        "01_cohorts",
        "02_rollouts",
        "03_scoring",
        "06_loco",
        "08_mechanism",
        "09_causal_selection",
        "11_report",
    } <= names
    for path in paths:
        outputs = [o for c in json.loads(path.read_text())["cells"] for o in c.get("outputs", [])]
        assert not any(o["output_type"] == "error" for o in outputs), path.name
        assert path.stem == "11_report" or any("image/png" in o.get("data", {}) for o in outputs), path.name
