"""Wrong labels, broken verifiers and guessable cohorts are found, and what rollouts cannot tell is said to be unknown."""

from math import comb
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import poch

from lad_utils import faults, votes
from lad_utils.votes import draw_rollouts, label_fault_posterior, vote_counts

REFERENCE = Path(__file__).resolve().parents[1] / "outputs" / "reference" / "micro"


def table(*rows, **columns):
    """Votes from rows (position, parsed, reward, count)."""
    return pd.DataFrame(rows, columns=["position", "parsed", "reward", "count"]).assign(**columns)


def simulate(n, k, pi, *, rng, a=2.0, b=2.5, alpha=1.0, values=30):
    """(votes, which labels are wrong) of n tasks whose k rollouts and labels follow the model; answer 0 is the truth."""
    wrong, parts = rng.random(n) < pi, []
    for i in range(n):
        right = rng.binomial(k, rng.beta(a, b))
        weights = rng.dirichlet([alpha] * values)
        counts = np.append(right, rng.multinomial(k - right, weights))
        label = 1 + rng.choice(values, p=weights) if wrong[i] else 0
        seen = np.flatnonzero(counts)
        part = {"position": i, "parsed": seen.astype(str), "reward": (seen == label).astype(int), "count": counts[seen]}
        parts.append(pd.DataFrame(part))
    return pd.concat(parts, ignore_index=True), wrong


def enumerated(counts, label, *, a, b, alpha, values, pi):
    """Posterior that the label is wrong, by summing over every possible truth of a universe of values + 1 answers.

    counts: votes by answer (index), zeros included; probabilities are of one order of the votes, by rising factorials.
    """
    total, mass = sum(counts), np.zeros(2)
    for truth in range(values + 1):
        likelihood = poch(a, counts[truth]) * poch(b, total - counts[truth]) / poch(a + b, total)
        others = [n for i, n in enumerate(counts) if i != truth]
        likelihood *= np.prod([poch(alpha, n) for n in others]) / poch(values * alpha, sum(others))
        if truth == label:
            mass[0] += (1 - pi) * likelihood
        else:
            mass[1] += pi * likelihood * (alpha + counts[label]) / (values * alpha + sum(others))
    return mass[1] / mass.sum()


@pytest.mark.parametrize("label", [0, 1, 2, 5])
@pytest.mark.parametrize("counts", [(3, 2, 1), (0, 5, 1), (1, 1, 1), (6, 0, 0)])
def test_a_tasks_posterior_equals_the_sum_over_every_possible_truth(counts, label):
    values, parameters = 7, {"a": 1.3, "b": 2.2, "alpha": 0.8, "pi": 0.3}
    counts = np.array([*counts, *[0] * (values + 1 - len(counts))])
    seen = np.flatnonzero(counts)
    h = votes._hypotheses(table(*[("t", str(i), int(i == label), int(counts[i])) for i in seen]))
    x = np.log([parameters["a"], parameters["b"], parameters["alpha"], values - h["d"].max()])
    posterior = votes._log_likelihood(x, h, parameters["pi"])[2][h["wrong"]].sum()
    assert posterior == pytest.approx(enumerated(counts, label, values=values, **parameters), rel=1e-9)


def test_the_gradient_is_that_of_the_likelihood():
    h = votes._hypotheses(simulate(12, 6, 0.4, rng=np.random.default_rng(1))[0])
    x, step = np.array([0.3, 0.7, 0.2, 1.4, -1.0]), 1e-5
    differences = [
        (votes._log_likelihood(x + step * e, h)[0] - votes._log_likelihood(x - step * e, h)[0]) / (2 * step) for e in np.eye(5)
    ]
    assert votes._log_likelihood(x, h)[1] == pytest.approx(differences, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize(("n", "k"), [(64, 8), (256, 32)])
@pytest.mark.parametrize("pi", [0.0, 0.3, 1.0])
def test_the_noise_rates_interval_covers_and_the_mean_posterior_is_the_share(n, k, pi):
    rng, runs = np.random.default_rng(7), 10
    found = [(label_fault_posterior(v), w) for v, w in (simulate(n, k, pi, rng=rng) for _ in range(runs))]
    assert sum(f.low <= pi <= f.high for f, _ in found) >= runs - 2  # P(fewer) < .012 at 95% coverage
    assert abs(np.mean([f.tasks.posterior.mean() - w.mean() for f, w in found])) < 0.03
    assert np.mean([f.high - f.low for f, _ in found]) < (0.35 if n == 64 else 0.15)  # covers by knowing, not by width


@pytest.mark.slow
@pytest.mark.parametrize("n", [64, 256])
@pytest.mark.parametrize("k", [8, 32])
@pytest.mark.parametrize("pi", [0.0, 0.1, 0.3, 0.6, 0.95, 1.0])
def test_coverage_holds_at_every_size_rollout_count_and_rate(n, k, pi, capsys):
    rng = np.random.default_rng(11)
    found = [label_fault_posterior(simulate(n, k, pi, rng=rng)[0]) for _ in range(40)]
    covered = sum(f.low <= pi <= f.high for f in found)
    with capsys.disabled():
        width, rate = np.mean([f.high - f.low for f in found]), np.mean([f.noise_rate for f in found])
        print(f" n={n} k={k} pi={pi}: coverage {covered}/40, mean rate {rate:.3f}, width {width:.3f}")
    assert covered >= 33  # P(fewer) < .001 at 95% coverage


def test_posterior_finds_the_wrong_labels_and_is_calibrated():
    v, wrong = simulate(256, 32, 0.3, rng=np.random.default_rng(3))
    found = label_fault_posterior(v)
    suspected = found.tasks.posterior.to_numpy() > 0.5
    assert (suspected & wrong).sum() / suspected.sum() > 0.9 and (suspected & wrong).sum() / wrong.sum() > 0.85
    sure = (found.tasks.posterior > 0.98).to_numpy()
    assert sure.sum() > 40 and wrong[sure].mean() > 0.95
    truth = found.truth.sort_values("probability").groupby("position").tail(1)
    assert (truth.parsed == "0").mean() > 0.9  # it also names the true answer
    assert found.truth.groupby("position").probability.sum().to_numpy() == pytest.approx(1)
    blind = votes.likely_truth(v).sort_values("probability").groupby("position").tail(1)
    assert (blind.parsed == "0").mean() > 0.85


def test_a_small_clean_pool_leaves_doubt_about_its_labels():
    found = label_fault_posterior(simulate(12, 4, 0.0, rng=np.random.default_rng(12), a=6, b=2)[0])
    assert found.noise_rate < 0.01 and found.low == 0 and found.high > 0.1  # the likeliest rate is none, yet
    assert 1e-4 < found.tasks.posterior.mean() < found.high


@settings(max_examples=3, deadline=None)
@given(st.randoms(use_true_random=False))
def test_names_order_and_unparsed_votes_do_not_matter(random):
    v, _ = simulate(40, 8, 0.3, rng=np.random.default_rng(4))
    names = [str(i) for i in range(31)]
    random.shuffle(names)
    rows = list(range(len(v)))
    random.shuffle(rows)
    other = v.assign(parsed=[names[int(t)] for t in v.parsed]).iloc[rows].reset_index(drop=True)
    unparsed = table(*[(i, None, 0, 1 + i % 3) for i in range(40)])
    other = pd.concat([other, unparsed], ignore_index=True)
    x, y = (label_fault_posterior(t).tasks.set_index("position").posterior.sort_index() for t in (v, other))
    assert y.to_numpy() == pytest.approx(x.to_numpy(), abs=2e-3)


def test_one_rollout_a_task_or_no_reward_identifies_nothing():
    one = label_fault_posterior(table(*[(i, str(i % 3), int(i % 2), 1) for i in range(40)]))
    none = label_fault_posterior(simulate(40, 8, 0.0, rng=np.random.default_rng(0))[0].assign(reward=0))
    for found, reason in ((one, "one parsed answer a task"), (none, "nothing is rewarded")):
        assert reason in found.reason and np.isnan([found.noise_rate, found.low, found.high]).all()
        assert found.tasks.posterior.isna().all() and (found.tasks.reason == found.reason).all()
    assert "no task has parsed" in label_fault_posterior(table((0, None, 0, 8))).reason


def test_a_base_that_singles_out_no_answer_identifies_nothing():
    found = label_fault_posterior(simulate(128, 8, 0.3, rng=np.random.default_rng(5), a=3, b=40)[0])
    assert "hard and mislabelled look the same" in found.reason and np.isnan(found.noise_rate)


def test_a_common_systematic_error_looks_like_wrong_labels_and_says_so():
    v, _ = simulate(128, 16, 0.0, rng=np.random.default_rng(6))
    swapped = v.assign(reward=(v.parsed == "1").astype(int))  # the base favours answer 0 of every task, labels say 1
    found = label_fault_posterior(swapped)
    assert found.low > 0.9 and found.high == 1 and "errs systematically" in found.note


def test_tasks_with_contradicting_verdicts_get_no_posterior_but_a_reason():
    v, _ = simulate(40, 8, 0.1, rng=np.random.default_rng(8))
    odd = table((100, "1", 1, 4), (100, "2", 1, 4), (101, "1", 1, 4), (101, "1", 0, 4), (102, "1", 0, 7), (102, None, 1, 1))
    found = label_fault_posterior(pd.concat([v, odd, table((103, None, 0, 8))], ignore_index=True))
    last = found.tasks.set_index("position").loc[[100, 101, 102, 103]]
    assert last.posterior.isna().all() and (last.reason.iloc[:3] == "verdicts contradict one right answer").all()
    assert last.reason.iloc[3] == "no parsed answer" and found.n == 40


def test_equal_numbers_are_one_answer_and_abstentions_are_no_refusals():  # D01
    rows = [(0, "24", 1), (0, "24.0", 1), (0, " 24", None), (0, None, 0), (0, "", 0), (0, "x", np.nan)]
    v = vote_counts(pd.DataFrame(rows, columns=["position", "parsed", "reward"]))
    assert v.assign(parsed=v.parsed.fillna("-")).to_numpy().tolist() == [[0, "24", 1, 2], [0, "-", 0, 2]]
    assert v["count"] @ v.reward / v["count"].sum() == 0.5
    with pytest.raises(ValueError, match=r"row 0 has reward 0.5, expected 0, 1 or none"):
        vote_counts(pd.DataFrame({"position": [0], "parsed": ["1"], "reward": [0.5]}))


def answers(n_tasks=50, k=8):
    """One row a rollout: position and parsed, 0 being right half of the time."""
    rng = np.random.default_rng(9)
    parsed = np.where(rng.random((n_tasks, k)) < 0.5, 0, rng.integers(1, 9, (n_tasks, k)))
    return pd.DataFrame({"position": np.repeat(np.arange(n_tasks), k), "parsed": parsed.ravel().astype(str)})


@pytest.mark.parametrize(
    ("verdict", "flag"),
    [
        (lambda p: (p == "0").astype(int), ""),
        (lambda p: (p == "3").astype(int), ""),  # consistent, so a wrong label and no broken verifier
        (lambda p: (p.astype(int) % 2 == 0).astype(int), "broken"),
        (lambda p: p.map(lambda _: 1), "accepts everything"),
        (lambda p: p.map(lambda _: 0), "no reward"),
        (lambda p: (p != "0").astype(int), "inverted"),
        (lambda p: pd.Series(np.random.default_rng(0).integers(0, 2, len(p)), p.index), "broken"),
    ],
)
def test_each_way_of_being_broken_is_named(verdict, flag):
    rollouts = answers()
    found = faults.verifier_faults(vote_counts(rollouts.assign(reward=verdict(rollouts.parsed))))
    assert found["flag"] == flag and found["reason"]
    assert (found["share"] > 0.5) == (flag not in ("", "no reward"))


def test_verifier_faults_count_each_kind_of_contradiction():
    v = table((0, "1", 1, 2), (0, "2", 1, 1), (1, "1", 1, 2), (1, "1", 0, 1), (2, None, 1, 1), (2, "1", 0, 1), (3, "1", 1, 1))
    found = faults.verifier_faults(v)
    kinds = [found[key] for key in ("two_answers", "both_verdicts", "unparsed_rewarded", "contradicting", "n")]
    assert kinds == [1, 1, 1, 3, 4] and found["share"] == 0.75 and found["rewarded_answers"] == pytest.approx(4 / 3)
    assert "3 of 4 tasks contradict themselves" in found["reason"]


@pytest.mark.parametrize(("contradicting", "flag"), [(2, ""), (6, "broken")])
def test_a_verifier_is_flagged_from_one_per_cent_of_contradicting_tasks_on(contradicting, flag):
    honest = [row for i in range(300) for row in ((i, "1", 1, 4), (i, "2", int(i < contradicting), 4))]
    found = faults.verifier_faults(table(*honest))
    assert found["flag"] == flag and f"{contradicting} of 300 tasks contradict themselves" in found["reason"]
    assert found["low"] < contradicting / 300 < found["high"]


def test_a_saturated_set_is_not_told_from_a_verifier_that_accepts_everything():
    found = faults.verifier_faults(table((0, "1", 1, 8), (1, "2", 1, 8)))
    assert found["flag"] == "" and "saturated, or a verifier that accepts everything" in found["reason"]
    assert "one rollout a task" in faults.verifier_faults(table((0, "1", 1, 1), (1, "2", 0, 1)))["reason"]


@given(st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=8), min_size=1, max_size=12), st.integers(0, 5))
def test_an_exact_verifier_is_never_called_broken(rollouts, gold):
    rows = [(i, str(a), int(a == gold), 1) for i, task in enumerate(rollouts) for a in task]
    found = faults.verifier_faults(vote_counts(table(*rows)))
    assert found["contradicting"] == 0 and found["flag"] in ("", "no reward")


def test_labels_are_guessable_if_a_constant_passes_as_often_as_the_base():
    same = faults.guessable_faults(["24"] * 40 + ["24.0"] * 10, 0.4)
    assert (same["flag"], same["effective_answers"], same["share"]) == ("guessable", 1, 1)
    assert "answering 24 always would pass 50 of 50 tasks, the base passes 40%" in same["reason"]
    spread = faults.guessable_faults([str(i) for i in range(50)], 0.1)
    assert spread["flag"] == "" and spread["effective_share"] == pytest.approx(1)
    assert faults.guessable_faults([str(i) for i in range(50)], 0.0)["flag"] == ""  # beats a base that passes none, in vain
    assert faults.guessable_faults(["1", "2", "2", "3"], 0.2)["flag"] == ""  # 2 of 4 says little: its interval starts at 7%
    yes_no = faults.guessable_faults(["yes"] * 70 + ["no"] * 30, 0.9)
    assert yes_no["flag"] == "guessable" and yes_no["effective_answers"] == pytest.approx(1.842, abs=1e-3)


@pytest.fixture(scope="module")
def reference():
    judgements, cohorts, tasks = (pd.read_parquet(REFERENCE / f"{name}.parquet") for name in ("judgements", "cohorts", "tasks"))
    chosen = ["labels_wrong_30", "labels_wrong_60", "clean_twin", "broken_verifier", "guessable", "very_hard", "repeat_8"]
    keep = [t[(t.arm == "main") & t.cohort.isin(chosen)] for t in (judgements, cohorts)]
    return *keep, tasks.set_index("task_id").answer


def test_faults_of_the_published_cohorts_are_found_and_clean_ones_raise_no_alarm(reference):
    by_cohort, by_task = faults.fault_tables(*reference)
    found = by_cohort.set_index("cohort")
    for name in ("labels_wrong_30", "labels_wrong_60"):
        row = found.loc[name]
        assert row.noise_low < row.wrong_share < row.noise_high < row.noise_low + 0.14
        assert min(row.precision, row.recall) > 0.95 and row.average_precision > 0.99
        assert row.mean_posterior == pytest.approx(row.wrong_share, abs=0.02)
    clean = found.loc[["clean_twin", "guessable", "repeat_8"]]
    assert (clean.noise_low == 0).all() and (clean.suspected == 0).all() and (clean.noise_rate < 1e-3).all()
    assert found.loc["repeat_8", "n"] == 8 and found.loc["repeat_8", "noise_high"] > 0.15  # 8 tasks, not 256
    assert found.verifier_flag[found.verifier_flag != ""].to_dict() == {"broken_verifier": "broken"}
    assert found.guess_flag[found.guess_flag != ""].to_dict() == {"guessable": "guessable"}
    undefined = found[found.noise_rate.isna()]
    assert set(undefined.index) == {"broken_verifier", "very_hard"} and (undefined.noise_reason != "").all()
    assert (by_task.reason[by_task.posterior.isna()] != "").all()
    names = [e["name"] for e in faults.fault_entries(by_cohort)]
    assert "faults.labels_wrong_30.noise_rate" in names and len(names) == len(set(names))
    curves = faults.precision_recall_points(by_task)
    assert set(curves.cohort) == {"labels_wrong_30", "labels_wrong_60"}
    bins = faults.reliability_points(by_task)
    assert bins.n.sum() == by_task.posterior.notna().sum() and bins.wrong_share.iloc[-1] > 0.97


def test_eight_rollouts_still_find_most_wrong_labels(reference):
    judgements, cohorts, truth = reference
    noisy = [t[t.cohort.isin(["labels_wrong_30", "clean_twin"])] for t in (judgements, cohorts)]
    thinned = draw_rollouts(noisy[0], 8, rng=np.random.default_rng(0))
    found = faults.fault_tables(thinned, noisy[1], truth)[0].set_index("cohort")
    assert (found.k == 8).all() and found.loc["clean_twin", "suspected"] == 0
    assert min(found.loc["labels_wrong_30", ["precision", "recall"]]) > 0.75
    assert found.loc["labels_wrong_30", "noise_low"] < 77 / 256 < found.loc["labels_wrong_30", "noise_high"]


def test_without_the_truth_nothing_is_said_of_precision(reference):
    few = [t[t.cohort == "repeat_8"] for t in reference[:2]]
    row = faults.fault_tables(*few)[0].iloc[0]
    assert row.judged == 0 and np.isnan(row.precision) and row.detection_reason
    names = [e["name"].split(".")[-1] for e in faults.fault_entries(row.to_frame().T)]
    assert names == ["noise_rate", "contradicting_share", "best_constant_share"]
    with pytest.raises(ValueError, match="cohort 'repeat_8' has no judgements"):
        faults.fault_tables(few[0].head(0), few[1])


def test_drawn_rollouts_are_k_of_each_task_and_shared_by_its_copies():
    j = pd.DataFrame({"arm": "main", "cohort": "c", "position": [0, 0, 1, 1, 2], "task_id": ["a", "a", "a", "a", "b"]})
    j = j.assign(parsed=["1", "2", "1", "2", "1"], reward=[1, 0, 1, 0, 1], count=[16, 16, 16, 16, 32])
    drawn = draw_rollouts(j, 8, rng=np.random.default_rng(2))
    assert (drawn.groupby("position")["count"].sum() == 8).all()
    copies = [drawn[drawn.position == i][["parsed", "count"]].to_numpy().tolist() for i in (0, 1)]
    assert copies[0] == copies[1]
    many = pd.concat([j.iloc[:2].assign(position=i, task_id=i, count=2) for i in range(600)])
    both = draw_rollouts(many, 2, rng=np.random.default_rng(3)).groupby("position").size() == 2
    assert both.mean() == pytest.approx(2 * 2 / comb(4, 2), abs=0.06)  # with replacement it would be 1/2
    with pytest.raises(ValueError, match="task 'a' of c has 32 rollouts, 33 are asked"):
        draw_rollouts(j, 33, rng=np.random.default_rng(0))
