"""Every published number, recomputed from the raw files in outputs/reference/micro; any difference fails."""

import json

import numpy as np
import pandas as pd
import pytest
import yaml
from scipy.stats import spearmanr

from lad_utils import report
from lad_utils.ablations import ablation_scores
from lad_utils.adaptive import replay_curve
from lad_utils.baselines import SCORED
from lad_utils.cohort_scores import score_study
from lad_utils.cohorts import CONTROLS
from lad_utils.costs import metric_costs, study_costs
from lad_utils.diversity import vendi
from lad_utils.energy import unbiased_energy
from lad_utils.entries import HISTORY_FILE, failure_entries
from lad_utils.faults import fault_tables
from lad_utils.findings import readme_with
from lad_utils.model_baselines import KEY, members_of, reference_solutions, signal_scores, solution_log_likelihood
from lad_utils.oracle import CURVE_K, UNEQUAL, arm_recipe
from lad_utils.params import REPOSITORY, check, load_study
from lad_utils.problems import transfer_energy
from lad_utils.progress import oracle_jobs
from lad_utils.reliability import cohort_items, signed_table
from lad_utils.runs import PUBLISHED, REFERENCE, read_table
from lad_utils.size import size_of
from lad_utils.trainer_ranking import task_gains, trainer_runs
from lad_utils.training_baselines import training_scores
from lad_utils.transfer import coverage_scores
from lad_utils.validation import lift_entries
from lad_utils.zeros import classify_zeros

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


@pytest.mark.parametrize("name", PUBLISHED)
def test_results_json_recomputes_number_by_number(name):
    study, folder = load_study(name), REFERENCE.parent / PUBLISHED[name]
    stored = json.loads((folder / "results.json").read_text())
    entries = {e["name"]: e for e in stored["entries"]}
    if not (REPOSITORY / study.history / HISTORY_FILE).is_file():  # a real run's history is not ours to publish
        entries = {n: e for n, e in entries.items() if not n.startswith("problems.history.")}
    again = report.results(study, report.load_tables(folder))
    assert [e["name"] for e in again["entries"]] == list(entries)
    wrong = [e["name"] for e in again["entries"] if not all(same(e[k], entries[e["name"]][k]) for k in e)]
    assert wrong == []
    assert {k: v for k, v in again.items() if k != "entries"} == {k: v for k, v in stored.items() if k != "entries"}


def test_the_check_notices_a_changed_answer(tables):
    questions, first = tables["eval_questions"].copy(), f"main/{STUDY.cohorts[0]}/seed{STUDY.seeds[0]}"
    mine = questions.index[(questions.run_id == first) & (questions.variant == "sampled")][:40]
    questions.loc[mine, "c_after"] = 0
    changed = tables | {"eval_questions": questions}
    again = failure_entries(changed) + lift_entries(tables["lifts"], questions, tables["tasks"])
    assert any(not same(e["value"], ENTRIES[e["name"]]["value"]) for e in again)


def test_the_readme_prints_what_the_published_studies_wrote_and_their_figure():
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    words = report.published_words()
    assert readme_with(text, words) == text
    missing = [name for name in report.WORDS if f"<!-- {name} -->" not in text]
    assert missing == [] and "<!-- micro-gaps.table -->" in text
    assert "outputs/reference/micro/figures/lift_against_lad.png" in text


def test_lifts_recompute_from_counts_by_question(tables):
    questions = tables["eval_questions"]
    asked = dict(list(questions.groupby(["run_id", "variant"])))
    for row in tables["lifts"].itertuples():
        q = asked[row.run_id, row.variant]
        assert len(q) == row.n_questions == (STUDY.n_shift if row.variant == "shifted" else STUDY.n_eval)
        before, after = (q.c_before / q.n_before).mean(), (q.c_after / q.n_after).mean()
        assert (row.acc_before, row.acc_after, row.lift) == pytest.approx((before, after, after - before))


def test_scores_recompute_from_votes_and_prompts(tables, judgements):
    args = (STUDY, tables["tasks"], judgements, tables["rollout_totals"])
    again = score_study(*args, n_parameters=parameters_of("base")).set_index(["arm", "cohort", "metric"])
    stored = tables["scores"][tables["scores"]["metric"].isin(SCORED)].set_index(["arm", "cohort", "metric"])
    again = again.loc[stored.index]
    numbers = ["value", "ci_low", "ci_high", "generated_tokens", "forward_tokens", "backward_tokens", "flops"]
    np.testing.assert_allclose(again[numbers].to_numpy(float), stored[numbers].to_numpy(float), rtol=1e-4, atol=1e-7)
    assert (again["reason"] == stored["reason"]).all()
    embedded = stored.index.get_level_values("metric").isin(["lad", "vendi", "dots"])  # their seconds are this machine's
    assert again.loc[~embedded, "seconds"].to_numpy() == pytest.approx(stored.loc[~embedded, "seconds"].to_numpy())


def test_scores_that_need_the_model_recompute_from_what_was_measured_of_each_task(tables):
    args = (tables["cohorts"], tables["task_signals"], tables["baseline_costs"], tables["rollout_totals"])
    again = signal_scores(*args, n_parameters=parameters_of("base"))
    check_scores(again, tables["scores"])
    gradients = again[again["metric"] == "gradient_norm"].set_index("cohort")
    own = members_of(tables["cohorts"]).merge(tables["task_signals"], on=KEY)
    assert gradients["value"].to_dict() == pytest.approx(own.groupby("cohort")["gradient_norm"].mean().to_dict())


def test_signals_of_a_task_are_its_votes_and_the_shipped_models_likelihood(tables, votes):
    from lad_utils.rollouts import load_model

    signals, members = tables["task_signals"], members_of(tables["cohorts"])
    right = (
        votes.assign(right=votes["reward"] * votes["count"]).groupby(["arm", "cohort", "position"])[["right", "count"]].sum()
    )
    seen = members.merge((right["right"] / right["count"]).rename("seen").reset_index(), on=["arm", "cohort", "position"])
    both = seen.merge(signals, on=KEY)
    assert len(both) == len(members) and both["pass_rate"].to_numpy() == pytest.approx(both["seen"].to_numpy())
    assert (signals.loc[signals["pass_rate"].isin([0, 1]), ["gradient_norm", "less", "trak"]] == 0).all().all()
    some = signals.drop_duplicates(["task_id", "answer"]).iloc[::400]
    solutions = reference_solutions(some, tables["tasks"])
    told = solution_log_likelihood(*load_model(REFERENCE / "base"), solutions.prompt.tolist(), solutions.solution.tolist())
    assert told == pytest.approx(some["log_likelihood"].to_numpy(), abs=1e-4)


def test_scores_that_need_training_recompute_from_the_runs(tables):
    args = (tables[n] for n in ("cohorts", "tasks", "lifts", "groups", "rollout_totals"))
    sizes = {name: parameters_of(name) for name in ("base", "smaller")}
    check_scores(training_scores(*args, n_parameters=sizes), tables["scores"])


def check_scores(again, scores):
    index = ["arm", "cohort", "metric"]
    again = again.set_index(index)
    stored = scores.set_index(index).loc[again.index]
    numbers = ["value", "ci_low", "ci_high", "flops", "seconds"]
    np.testing.assert_allclose(again[numbers].to_numpy(float), stored[numbers].to_numpy(float), rtol=1e-6, atol=1e-9)
    assert (again["reason"] == stored["reason"]).all()


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


def test_what_a_selection_gives_and_loses_follows_from_counts(tables):
    questions, counts = tables["eval_questions"], tables["problem_counts"]
    first = counts[(counts.draw == 1) & (counts.split == "eval")]
    mastered = set(first.task_id[first.c / first.n >= 0.9])
    rates = questions.assign(after=questions.c_after / questions.n_after, before=questions.c_before / questions.n_before)
    rates["cohort"] = rates.run_id.str.split("/").str[1]
    for variant, suffix in (("sampled", ""), ("shifted", ".shifted_lift")):
        after = rates[rates.variant == variant].groupby("cohort").after.mean()
        for other in ("random_pool", "top_variance", "bottom_lad", "hardest"):
            found = ENTRIES[f"causal.top_lad_minus_{other}{suffix}"]["value"]
            assert found == pytest.approx(after["top_lad"] - after[other], abs=1e-9)
    kept = rates[(rates.variant == "sampled") & rates.task_id.isin(mastered) & (rates.cohort == "top_lad")]
    assert ENTRIES["causal.top_lad.mastered_lift"]["value"] == pytest.approx((kept.after - kept.before).mean(), abs=1e-9)
    assert ENTRIES["causal.top_lad.mastered_lift"]["n"] == len(mastered)


def test_what_tasks_gained_recomputes_from_groups_and_votes(tables, votes):
    again = task_gains(tables["groups"], votes, trainer_runs(tables["lifts"]))
    pd.testing.assert_frame_equal(again, tables["task_gains"])
    assert set(again.trainer) == {"grpo", *STUDY.trainers} - {"random_reward"}


def test_other_trainers_are_compared_by_counts(tables):
    questions = tables["eval_questions"].query("variant == 'sampled'")
    parts = questions.run_id.str.split("/", expand=True)
    after = questions.assign(arm=parts[0], cohort=parts[1], rate=questions.c_after / questions.n_after)
    alike = after.cohort.isin(STUDY.trainer_cohorts) & parts[2].isin([f"seed{s}" for s in STUDY.trainer_seeds])
    after = after[alike].groupby(["arm", "cohort"]).rate.mean()
    for trainer in STUDY.trainers:
        found = ENTRIES[f"trainer.{trainer}.minus_grpo"]["value"]
        assert found == pytest.approx(after[trainer].mean() - after["main"].mean(), abs=1e-9)


def test_learning_curves_are_those_of_the_samplers_runs(tables):
    curves, lifts = tables["curves"], tables["lifts"].query("arm == 'online' and variant == 'sampled'").set_index("run_id")
    assert set(curves.run_id) == set(lifts.index) and len(lifts) == len(STUDY.samplers) * len(STUDY.sampler_seeds)
    assert (curves.n == CURVE_K * STUDY.n_eval).all() and curves.groupby("run_id").size().eq(7).all()
    for run_id, rows in tables["groups"][tables["groups"].run_id.isin(lifts.index)].groupby("run_id"):
        spent = rows.groupby("step").tokens.sum().cumsum()
        mine = curves[curves.run_id == run_id]
        assert spent[mine.step].tolist() == mine.tokens.tolist() and lifts.tokens[run_id] == spent.iloc[-1]
    ends = lifts.groupby("cohort").acc_after.mean()
    for other in set(ends.index) - {"online_lad"}:
        assert ENTRIES[f"online.online_lad_minus_{other}"]["value"] == pytest.approx(ends["online_lad"] - ends[other], abs=1e-9)


def test_what_a_dollar_buys_recomputes_from_lifts_and_distinct_tasks(tables):
    lifts = tables["lifts"].query("arm == 'mixture' and variant == 'sampled'").groupby("cohort")[["lift", "tokens"]].mean()
    lifts["distinct"] = tables["cohorts"].query("arm == 'mixture'").groupby("cohort").task_id.nunique()
    for price, per in (("task", lifts.distinct), ("token", lifts.tokens)):
        alone = spearmanr(1 / per, lifts.lift / per).statistic
        assert ENTRIES[f"price.{price}.mixtures.no_score.rho"]["value"] == pytest.approx(alone)


def parameters_of(model):
    from safetensors import safe_open

    with safe_open(REFERENCE / model / "model.safetensors", "np") as weights:
        return sum(weights.get_tensor(name).size for name in list(weights.keys()))


def test_costs_recompute_from_logged_tokens(tables):
    args = (tables[n] for n in ("rollout_totals", "groups", "lifts", "curves"))
    stages = study_costs(*args, n_parameters={name: parameters_of(name) for name in ("base", "smaller")})
    metrics = metric_costs(tables["scores"], tables["lifts"], tables["baseline_costs"])
    pd.testing.assert_frame_equal(pd.concat([stages, metrics], ignore_index=True), tables["costs"])


def test_every_run_is_there_trained_equally_and_logged_whole(tables):
    runs = tables["lifts"].drop_duplicates("run_id")
    expected = [f"{a}/{c}/seed{s}" for a, c in oracle_jobs(STUDY) for s in arm_recipe(STUDY, a, c)[1]]
    assert sorted(runs.run_id) == sorted(expected) and len(STUDY.seeds) >= 6 and len(STUDY.mixture_seeds) >= 2
    per_step = STUDY.grpo_prompts_per_step
    groups = tables["groups"].groupby("run_id")
    steps = runs.set_index("run_id").steps
    arms = runs.set_index("run_id").arm
    assert (steps[arms == "short"] == STUDY.short_steps).all() and STUDY.short_steps == STUDY.grpo_steps // 10
    assert (steps[~arms.isin(["size", "short", "online"])] == STUDY.grpo_steps).all()
    assert (steps[arms == "online"] == STUDY.sampler_steps).all()
    again = arms[arms == "dynamic_sampling"].index  # generates until its batch is full
    assert set(groups.groups) == set(runs.run_id)
    assert (groups.size() == steps[groups.size().index] * per_step).drop(again).all()
    assert (groups.size()[again] >= steps[again] * per_step).all()
    visits = tables["groups"].groupby(["run_id", "position"]).size().groupby("run_id").agg(["min", "max"])
    visits = visits[~arms[visits.index].isin(["short", *UNEQUAL])]  # short never comes to the end of its first epoch
    expected = steps[visits.index] * per_step // STUDY.cohort_size
    assert (visits["min"] == expected).all() and (visits["max"] == expected).all()


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
        "13_fewer_rollouts",
        "14_faults",
        "15_zeros",
        "16_size",
        "17_transfer",
        "18_task_report",
        "07_ablations",
        "10_noise_ceiling",
        "04_baselines",
        "26_cost_frontier",
        "19_problem_rollouts",
        "20_published_record",
        "21_failure_modes",
        "22_prediction",
        "23_trainers",
        "24_online",
        "25_price",
    } <= names
    for path in paths:
        outputs = [o for c in json.loads(path.read_text())["cells"] for o in c.get("outputs", [])]
        assert not any(o["output_type"] == "error" for o in outputs), path.name
        assert path.stem in ("11_report", "19_problem_rollouts") or any("image/png" in o.get("data", {}) for o in outputs), (
            path.name
        )


def test_every_cohort_of_every_arm_is_scored_and_holds_its_size(tables):
    cohorts, scores = tables["cohorts"], tables["scores"]
    assert (cohorts.groupby(["arm", "cohort"]).size() == STUDY.cohort_size).all()
    assert cohorts[cohorts.arm == "mixture"].cohort.nunique() == STUDY.mixtures == 48
    assert set(map(tuple, cohorts[["arm", "cohort"]].drop_duplicates().values)) == set(
        map(tuple, scores[["arm", "cohort"]].drop_duplicates().values)
    )


def test_diversity_at_order_one_is_the_scores_and_falls_with_the_order(tables):
    plain = tables["diversity"][~tables["diversity"].weighted]
    wide = plain.pivot(index="cohort", columns=["embedder", "order"], values="vendi")
    scored = tables["scores"][(tables["scores"].arm == "main") & (tables["scores"].metric == "vendi")].set_index("cohort").value
    np.testing.assert_allclose(wide["minilm", 1.0], scored[wide.index], rtol=1e-4)
    for embedder in ("minilm", "char_ngrams"):
        assert (np.diff(wide[embedder].sort_index(axis=1).to_numpy(), axis=1) <= 1e-6).all()


def test_faults_recompute_from_votes(tables, votes):
    main, truth = tables["cohorts"][tables["cohorts"].arm == "main"], tables["tasks"].set_index("task_id").answer
    some = ["labels_wrong_30", "clean_twin", "broken_verifier", "guessable"]
    again, by_task = fault_tables(votes[(votes.arm == "main") & votes.cohort.isin(some)], main[main.cohort.isin(some)], truth)
    stored = tables["faults"].set_index("cohort").loc[again.cohort]
    for column in ("noise_rate", "noise_low", "noise_high", "verifier_share", "precision", "recall"):
        np.testing.assert_allclose(again[column].astype(float), stored[column].astype(float), rtol=1e-3, atol=1e-4)
    assert again.verifier_flag.tolist() == stored.verifier_flag.tolist()
    posterior = by_task.merge(tables["label_faults"], on=["cohort", "position"])
    np.testing.assert_allclose(posterior.posterior_x.astype(float), posterior.posterior_y.astype(float), atol=2e-3)


def test_signed_scores_recompute_from_votes(tables, votes):
    chosen = ["labels_wrong_60", "repeat_8", "random"]
    again = signed_table(votes[votes.cohort.isin(chosen)], tables["scores"], gamma=STUDY.gamma, beta=STUDY.beta).set_index(
        "cohort"
    )
    stored = tables["signed"].set_index("cohort").loc[again.index]
    np.testing.assert_allclose(again[["value", "gain", "drift"]], stored[["value", "gain", "drift"]], rtol=1e-3, atol=1e-6)


def test_coverage_and_its_controls_recompute_from_votes(tables, votes):
    from lad_utils.embeddings import embed

    main = votes[votes.arm == "main"].assign(right=lambda t: t.reward * t["count"])
    solved = main.groupby(["arm", "cohort", "position", "task_id"], sort=False)[["right", "count"]].sum().reset_index()
    solved = solved.rename(columns={"right": "correct", "count": "k"})
    order = {c: i for i, c in enumerate(tables["cohorts"].cohort.drop_duplicates())}
    solved = solved.sort_values(["cohort", "position"], key=lambda s: s.map(order) if s.name == "cohort" else s)
    prompts, ids = tables["tasks"].set_index("task_id").prompt, solved.task_id.unique()
    vectors = pd.DataFrame(embed(prompts[ids].tolist()), index=ids)
    targets = tables["target_counts"]
    rng = np.random.default_rng([STUDY.world_seed, 11])
    again = coverage_scores(solved, vectors, targets, embed(prompts[targets.task_id].tolist()), rng=rng)
    merged = again.merge(tables["transfer"], on=["arm", "cohort", "metric"])
    assert len(merged) == len(again) == len(tables["transfer"]) == 3 * len(STUDY.cohorts)
    np.testing.assert_allclose(merged.value_x, merged.value_y, rtol=1e-4)


def test_zeros_are_classed_by_their_counts_and_agree_with_the_votes(tables, votes):
    zeros = tables["zeros"]
    assert (zeros.kind == classify_zeros(zeros.strict, zeros.flexible, zeros.truncated, zeros.k)).all()
    clean = votes[(votes.arm == "main") & (votes.cohort == "random")]  # no task of it stands there twice
    right = clean.assign(right=clean.reward * clean["count"]).groupby("task_id").right.sum()
    full = zeros[zeros.budget == "full"].set_index("task_id").flexible
    assert (full[right.index] == right).all()
    assert (zeros.more_correct <= zeros.more_k).all()


def test_the_curve_of_fewer_rollouts_is_what_a_fresh_replay_gives(tables, votes):
    _, correct, k, weights, diversity = cohort_items(votes, tables["cohorts"], tables["scores"], arm="main", beta=STUDY.beta)
    items = correct, int(k[0]), weights, diversity
    again = replay_curve(*items, n_replays=8, rng=np.random.default_rng(99)).set_index(["method", "setting"])
    curves = tables["fewer_rollouts"]
    stored = curves[(curves.arm == "main") & ~curves.clean].set_index(["method", "setting"]).loc[again.index]
    assert (stored.n_replays >= 50).all()
    np.testing.assert_allclose(again.spearman, stored.spearman, atol=0.03)
    np.testing.assert_allclose(again.rollouts_per_task, stored.rollouts_per_task, rtol=0.2)


def test_the_arm_of_sizes_varies_distinct_tasks_and_steps_alone(tables):
    lifts, scores = tables["lifts"], tables["scores"]
    arm = lifts[(lifts.arm == "size") & (lifts.variant == "sampled")]
    assert len(arm) == STUDY.size_draws * len(STUDY.size_distinct) * len(STUDY.size_steps)
    assert all(size_of(c).steps == s for c, s in zip(arm.cohort, arm.steps, strict=True))
    wide = scores[scores.arm == "size"].pivot(index="cohort", columns="metric", values="value")
    assert [round(f * STUDY.cohort_size) for f in wide.distinct_fraction] == [size_of(c).distinct for c in wide.index]


def solved_from(votes, tables, arms):
    """correct and k by position, in the order in which the study has its cohorts."""
    some = votes[votes.arm.isin(arms)].assign(right=lambda t: t.reward * t["count"])
    solved = some.groupby(["arm", "cohort", "position", "task_id"], sort=False)[["right", "count"]].sum().reset_index()
    order = {key: i for i, key in enumerate(dict.fromkeys(zip(tables["cohorts"].arm, tables["cohorts"].cohort, strict=True)))}
    place = [order[key] for key in zip(solved.arm, solved.cohort, strict=True)]
    return solved.assign(place=place).sort_values(["place", "position"]).rename(columns={"right": "correct", "count": "k"})


def test_ablations_recompute_from_votes(tables, votes):
    from lad_utils.embeddings import EMBEDDERS, embed

    solved = solved_from(votes, tables, ["main"])
    ids = solved.task_id.unique()
    prompts = tables["tasks"].set_index("task_id").prompt[ids].tolist()
    vectors = {name: pd.DataFrame(embed(prompts, embedder=name), index=ids) for name in EMBEDDERS}
    again = ablation_scores(solved, vectors, rng=np.random.default_rng([STUDY.world_seed, 14]))
    stored = tables["ablations"][tables["ablations"].arm == "main"]
    both = again.merge(stored, on=["arm", "cohort", "variant"])
    assert len(both) == len(again) == len(stored)
    np.testing.assert_allclose(both.value_x, both.value_y, rtol=1e-4, atol=1e-9)


def test_relevance_of_problems_recomputes_from_votes(tables, votes):
    from lad_utils.embeddings import embed

    trained, counts = solved_from(votes, tables, ["main"]), tables["problem_counts"]
    prompts = tables["tasks"].set_index("task_id").prompt
    b1 = counts[(counts.draw == 1) & (counts.split == "eval")].head(100)
    unique = trained.task_id.unique()
    vectors = pd.DataFrame(embed(prompts[unique].tolist()), index=unique).loc[trained.task_id].to_numpy()
    again = transfer_energy(b1.c, b1.n, embed(prompts[b1.task_id].tolist()), trained, vectors)
    stored = tables["problem_transfer"].set_index("task_id").loc[b1.task_id]
    np.testing.assert_allclose(again.transfer.to_numpy(), stored.transfer.to_numpy(), rtol=1e-4, atol=1e-9)


def test_base_draws_are_three_and_independent_of_the_evaluation(tables):
    counts, questions = tables["problem_counts"], tables["eval_questions"]
    assert counts.groupby(["split", "draw"]).size().to_dict() == {(s, d): 500 for s in ("eval", "fresh") for d in (1, 2, 3)}
    assert (counts.n == STUDY.k_draws).all()
    rates = counts[counts.split == "eval"].assign(p=lambda t: t.c / t.n).pivot(index="task_id", columns="draw", values="p")
    first = questions[(questions.run_id == questions.run_id.iloc[0]) & (questions.variant == "sampled")].set_index("task_id")
    rates[0] = first.c_before / first.n_before
    p = rates.mean(axis=1)
    noise = rates.sub(p, axis=0).corr().to_numpy()[~np.eye(4, dtype=bool)]
    agreement = rates.corr()  # the same questions, other luck; the evaluation has a quarter of the rollouts
    assert agreement.loc[[1, 2, 3], [1, 2, 3]].to_numpy().min() > 0.9 and agreement[0].min() > 0.8 and noise.max() < 0.15


def test_fresh_questions_are_new_and_answered_by_every_run_that_was_asked(tables):
    fresh, tasks = tables["fresh_questions"], tables["tasks"].set_index("task_id")
    assert (tasks.split[fresh.task_id.unique()] == "fresh").all() and fresh.task_id.nunique() == STUDY.n_fresh
    runs = fresh.groupby("run_id").agg(questions=("task_id", "size"), n=("n", "max"))
    assert (runs.questions == STUDY.n_fresh).all() and (runs.n == STUDY.k_eval).all()
    assert {f"mixture/mixture_{i:02d}/seed{s}" for i in range(STUDY.mixtures) for s in STUDY.mixture_seeds} <= set(runs.index)
