"""Claims about costs on paper: the rules meet the meter of the published runs, and the page says what they give."""

import pytest

from lad_utils.scaling import (
    MARKET,
    NODE,
    PAGE,
    SIZES,
    Machine,
    Plan,
    against_micro,
    cost_table,
    gpus,
    hours,
    largest_in_a_node,
    page,
    training_flops,
)


def test_predictions_meet_the_meter_of_the_published_study():
    ratio = against_micro().set_index("what")["ratio"]
    assert ratio["rollouts of the cohort `random`"] == pytest.approx(1, abs=0.05)
    assert ratio["a run with its evaluation, mean"] == pytest.approx(1, abs=0.05)
    assert ratio["evaluation of the base"] == pytest.approx(1, abs=0.05)
    assert 1.0 < ratio["rollouts, mean of the designed cohorts"] < 1.2  # repeated tasks are sampled once


def test_a_study_by_hand():
    plan = Plan(cohorts=2, tasks=4, k=8, seeds=3, steps=5, completions_per_step=16, questions=10, samples_a_question=1)
    table = cost_table(plan, Machine(peak=1e15, sampling=0.1, training=0.5, dollars=2.0)).set_index(["model", "what"])
    lad, oracle = table.loc["7B", "LAD"], table.loc["7B", "oracle"]
    n = SIZES["7B"]
    assert lad["tokens"] == 2 * 4 * 8 * 400 and lad["flops"] == 2 * n * 25_600
    assert oracle["tokens"] == pytest.approx(6 * 5 * 16 * 400 + 7 * 10 * 2 * 400)
    assert oracle["flops"] == pytest.approx(8 * n * 192_000 + 2 * n * 56_000)
    assert oracle["gpu_hours"] == pytest.approx((2 * n * 248_000 / 1e14 + 6 * n * 192_000 / 5e14) / 3600)
    assert oracle["dollars"] == pytest.approx(2 * oracle["gpu_hours"])
    sampled, trained = training_flops(plan, n)
    assert trained == 3 * sampled and hours(Machine(peak=1e15, sampling=0.1), sampling=3.6e17) == pytest.approx(1)


def test_memory_decides_the_gpus_and_where_a_node_ends():
    machine = Machine()
    assert [gpus(n, machine, training=False) for n in SIZES.values()] == [1, 1, 1, 4]
    assert [gpus(n, machine, training=True) for n in SIZES.values()] == [1, 1, 2, 24]
    most = largest_in_a_node(machine)
    assert gpus(0.99 * most, machine, training=False) == NODE and gpus(1.01 * most, machine, training=False) == 2 * NODE


def test_a_market_costs_in_proportion():
    one, market = (cost_table(Plan(cohorts=c), Machine()) for c in (1, MARKET))
    rows = one["what"] == "LAD"
    assert market["dollars"][rows].to_numpy() == pytest.approx(MARKET * one["dollars"][rows].to_numpy())


def test_the_page_is_what_the_module_makes():
    assert PAGE.read_text(encoding="utf-8") == page(), "run python -m lad_utils.scaling"
