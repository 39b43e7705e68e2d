"""Failure-mode contrasts: signs that were written down beforehand, and what the runs say."""

import numpy as np
import pandas as pd
import pytest

from lad_utils import contrasts, elicitation
from lad_utils.cohorts import FAMILY


def runs(lifts):
    """(lifts, questions) of runs that answer 200 questions 8 times, from accuracy .4 to .4 + lift."""
    rng, rows, pairs = np.random.default_rng(0), [], []
    for (arm, cohort, seed), lift in lifts.items():
        run_id = f"{arm}/{cohort}/seed{seed}"
        rows.append(
            {"arm": arm, "cohort": cohort, "seed": seed, "variant": "sampled", "invalid": "", "run_id": run_id, "lift": lift}
        )
        counts = {
            "n_before": 8,
            "c_before": rng.binomial(8, 0.4, 200),
            "n_after": 8,
            "c_after": rng.binomial(8, 0.4 + lift, 200),
        }
        ids = [f"q{i:03d}" for i in range(200)]
        pairs.append(pd.DataFrame({"run_id": run_id, "variant": "sampled", "task_id": ids, **counts}))
    return pd.DataFrame(rows), pd.concat(pairs)


def test_every_contrast_names_cohorts_of_the_design_and_a_sign():
    for c in contrasts.CONTRASTS:
        assert c.a in FAMILY and c.b in FAMILY and c.sign in (-1, 1)


def test_a_contrast_says_whether_its_sign_came():
    names = {
        "bimodal": 0.02,
        "unimodal": 0.2,
        "labels_wrong_30": 0.3,
        "clean_twin": 0.1,
        "medium_hard": 0.2,
        "medium_easy": 0.2,
    }
    table = runs({("main", n, s): lift + 0.005 * s for n, lift in names.items() for s in (0, 1)})
    found = {e["name"]: e for e in contrasts.contrast_entries(*table)}
    assert found["contrast.bimodal_unimodal"]["value"] == pytest.approx(-0.18, abs=0.03)
    assert found["contrast.bimodal_unimodal"]["note"].endswith("as predicted")
    assert found["contrast.noisy_clean_30"]["note"].endswith("the other way")
    assert found["contrast.low_high"]["note"].endswith("undecided")
    assert found["contrast.duplicate_diverse_8"]["value"] is None and found["contrast.duplicate_diverse_8"]["reason"]


@pytest.mark.parametrize(
    ("sign", "low", "high", "told"),
    [
        (1, 0.1, 0.2, "as predicted"),
        (-1, 0.1, 0.2, "the other way"),
        (-1, -0.2, -0.1, "as predicted"),
        (1, -0.1, 0.1, "undecided"),
    ],
)
def test_verdicts(sign, low, high, told):
    assert contrasts.verdict(sign, low, high) == told


def test_slopes_of_mixtures_recover_what_was_planted():
    rng = np.random.default_rng(2)
    tasks = pd.DataFrame({"task_id": [f"t{i}" for i in range(400)], "answer": "1", "pass_rate": rng.random(400), "k": 16})
    cohorts, planted = [], {}
    for i in range(30):
        wrong, distinct = rng.random() * 0.6, int(rng.integers(10, 60))
        ids = rng.choice(tasks.task_id, distinct, replace=False)[np.arange(64) % distinct]
        answer = np.where(np.arange(64) < wrong * 64, "2", "1")
        cohorts.append(pd.DataFrame({"arm": "mixture", "cohort": f"mixture_{i:02d}", "task_id": ids, "answer": answer}))
        planted[f"mixture_{i:02d}"] = 0.2 - 0.3 * (answer == "2").mean()
    cohorts = pd.concat(cohorts)
    table = runs({("mixture", c, 0): lift for c, lift in planted.items()})
    found = {e["name"]: e for e in contrasts.slope_entries(*table, cohorts, tasks)}
    sd = contrasts.mixture_properties(cohorts, tasks).wrong_label_share.std()
    e = found["slope.wrong_label_share"]
    assert e["ci_low"] < -0.3 * sd < e["ci_high"] and e["note"].endswith("as predicted") and e["ci_high"] - e["ci_low"] < 0.02
    assert found["slope.pass_rate_sd"]["ci_low"] < 0.01 and found["slope.pass_rate_sd"]["ci_high"] > -0.01


def test_without_trained_mixtures_slopes_say_so():
    lifts, questions = runs({("main", "random", 0): 0.1})
    cohorts = pd.DataFrame({"arm": ["main"], "cohort": ["random"], "task_id": ["t"], "answer": ["1"]})
    found = contrasts.slope_entries(lifts, questions, cohorts, pd.DataFrame())
    assert {e["reason"] for e in found} == {"no mixture was trained"} and len(found) == len(contrasts.MIXTURE_SLOPES)


def test_what_a_cooler_base_gains_is_paired_by_question():
    counts = pd.DataFrame(
        {"split": "eval", "draw": [1, 1, 1, 2, 2, 2], "task_id": [*"abc"] * 2, "n": 4, "c": [0, 2, 4, 2, 2, 4]}
    )
    cooled = pd.DataFrame({"temperature": 0.5, "task_id": [*"abc"], "n": 2, "c": [1, 2, 2]})
    (e,) = elicitation.cooling_entries(counts, cooled)
    assert e["name"] == "cooling.0.5.gain" and e["value"] == pytest.approx(np.mean([0.5 - 0.25, 1 - 0.5, 0]))


def test_fresh_questions_do_not_count_in_what_cooling_gains():
    counts = pd.DataFrame({"split": ["eval"] * 3 + ["fresh"], "draw": 1, "task_id": [*"abcd"], "n": 4, "c": [0, 2, 4, 4]})
    cooled = pd.DataFrame({"temperature": 0.5, "task_id": [*"abcd"], "n": 2, "c": [1, 2, 2, 0]})
    assert elicitation.cooling_entries(counts, cooled)[0]["n"] == 3


def test_mean_lifts_leave_the_control_out_and_name_their_range():
    lifts, questions = runs({("main", n, 0): lift for n, lift in {"hard": 0.1, "easy": 0.2, "clean_twin": 0.5}.items()})
    greedy = questions.assign(variant="greedy", n_before=1, c_before=1, n_after=1, c_after=1)
    found = elicitation.elicitation_entries(pd.concat([lifts, lifts.assign(variant="greedy")]), pd.concat([questions, greedy]))
    e = {e["name"]: e for e in found}["elicitation.main.mean_sampled_lift"]
    assert e["n"] == 2 and e["value"] == pytest.approx(0.15, abs=0.03) and e["note"].startswith("mean over cohorts; from ")


def test_greedy_decoding_of_the_base_is_counted_before_training():
    _, questions = runs({("main", "hard", 0): 0.3})
    greedy = questions.assign(variant="greedy", n_before=1, c_before=1, n_after=1, c_after=0)
    lifts = runs({("main", "hard", 0): 0.3})[0]
    found = elicitation.elicitation_entries(pd.concat([lifts, lifts.assign(variant="greedy")]), pd.concat([questions, greedy]))
    e = {e["name"]: e for e in found}["elicitation.greedy_decoding"]
    assert e["value"] == pytest.approx(1 - 0.4, abs=0.03)
