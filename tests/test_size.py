"""Size terms: planted curves are recovered, and published groups are what they are said to be."""

import numpy as np
import pandas as pd
import pytest

from lad_utils.reliability import PUBLISHED_LIFTS, size_entries
from lad_utils.size import half_size, held_out_lift, size_groups, size_terms


def planted(half, *, papers=4, noise=0.0, seed=0):
    rng, rows = np.random.default_rng(seed), []
    for paper in range(papers):
        for group in range(3):
            for n in (1, 4, 16, 64, 256, 1024):
                lift = (5 + 3 * group) * n / (n + half)
                rows.append(
                    {"study": f"p{paper}", "group": f"p{paper}/{group}", "n_tasks": n, "lift": lift + noise * rng.normal()}
                )
    return pd.DataFrame(rows)


@pytest.mark.parametrize("half", [2.0, 50.0, 400.0])
def test_a_planted_half_size_is_found_and_mostly_covered_even_with_four_papers(half):
    covered = []
    for seed in range(20):
        found, low, high = half_size(planted(half, noise=0.3, seed=seed), rng=np.random.default_rng(0), n_boot=100)
        assert found == pytest.approx(half, rel=0.25)
        covered.append(low <= half <= high)
    assert np.mean(covered) >= 0.7


def test_groups_scaled_differently_share_the_half_size():
    table = planted(50.0)
    table.loc[table.study == "p1", "lift"] *= 100
    assert half_size(table, rng=np.random.default_rng(0))[0] == pytest.approx(50, rel=0.03)


def test_published_groups_have_three_sizes_and_one_paper_each():
    groups = size_groups(pd.read_csv(PUBLISHED_LIFTS))
    assert (groups.groupby("group").n_tasks.nunique() >= 3).all() and (groups.groupby("group").study.nunique() == 1).all()
    assert groups.study.nunique() == 3 and groups[["n_tasks", "lift"]].notna().all().all()


def test_planted_slopes_of_distinct_tasks_and_visits_are_recovered():
    rng, rows = np.random.default_rng(1), []
    for d in (2, 8, 32, 128):
        for draw in range(3):
            luck = 0.005 * rng.normal()
            for steps in (32, 64, 128):
                visits = steps * 8 / d
                lift = 0.1 + 0.02 * np.log(d) + 0.01 * np.log(visits) + luck + 0.002 * rng.normal()
                rows.append({"distinct": d, "visits": visits, "lift": lift, "draw": f"{d}/{draw}"})
    terms = size_terms(pd.DataFrame(rows)).set_index("term")
    assert terms.value["log_distinct"] == pytest.approx(0.02, abs=3 * terms.se["log_distinct"])
    assert terms.low["log_visits"] < 0.01 < terms.high["log_visits"]
    assert terms.value["log_distinct"] - terms.value["log_visits"] == pytest.approx(0.01, abs=0.006)


def test_held_out_lift_never_sees_its_own_family():
    rng = np.random.default_rng(2)
    table = pd.DataFrame({"family": np.repeat(list("abcd"), 5), "lad": rng.random(20)})
    table["lift"] = 1 + 2 * table.lad
    assert held_out_lift(table, ("lad",)) == pytest.approx(table.lift)
    shifted = table.assign(lift=table.lift + 5 * (table.family == "a"))
    predicted = held_out_lift(shifted, ("lad",))
    assert predicted[:5] == pytest.approx(table.lift[:5])


def test_a_study_that_varies_no_size_says_so_instead_of_a_number():
    scores = pd.DataFrame(
        [("main", c, m, v, 256) for c in "ab" for m, v in (("lad", 0.1), ("distinct_fraction", 1.0))],
        columns=["arm", "cohort", "metric", "value", "n_tasks"],
    )
    lifts = pd.DataFrame(
        {"arm": "main", "cohort": list("ab"), "variant": "sampled", "invalid": "", "lift": [0.1, 0.2], "steps": 64}
    )
    entries = {e["name"]: e for e in size_entries(scores, lifts, {"a": "x", "b": "y"}, prompts_per_step=8)}
    assert entries["size.log_distinct"]["value"] is None and "does not vary" in entries["size.log_distinct"]["reason"]
    assert entries["size.published.all.half"]["value"] > 0
