"""Prices: what an offer costs, what its rank and a budget's choice promise, and that no prediction has seen its own lift."""

import matplotlib
import numpy as np
import pandas as pd
import pytest

from lad_utils import price, price_plots
from lad_utils.prediction import calibrate, predict

matplotlib.use("agg")


def offers(n=19, *, seed=0, slope=10.0, noise=0.02, start=0):
    rng = np.random.default_rng(seed)
    lad, diversity, rate = rng.uniform(0.001, 0.012, n), rng.uniform(3, 9, n), rng.uniform(0.1, 0.9, n)
    lift = slope * lad + rng.normal(0, noise, n)
    columns = {"cohort": [f"c{start + i}" for i in range(n)], "family": "f", "lad": lad, "diversity": diversity}
    columns |= {"energy": lad / diversity, "mean_pass_rate": rate, "variance": rate * (1 - rate), "lift": lift}
    columns |= {"ci_low": lift - 0.02, "ci_high": lift + 0.02, "n_distinct": rng.integers(8, 257, n)}
    return pd.DataFrame(columns | {"tokens": rng.uniform(7e4, 8e4, n)})


def test_a_price_is_a_task_a_token_or_both_and_never_nothing():
    one = offers(1).assign(n_distinct=100, tokens=2e6)
    assert price.dollars(one, per_task=0.5).tolist() == [50]
    assert price.dollars(one, per_million_tokens=3).tolist() == [6]
    assert price.dollars(one, per_task=0.5, per_million_tokens=3).tolist() == [56]
    with pytest.raises(ValueError, match="'c0' costs nothing: give a price"):
        price.dollars(one)


def test_the_ranking_is_by_lift_per_dollar_with_intervals_of_both():
    designed, new = offers(), offers(30, seed=1, start=100)
    cost, calibration = price.dollars(new, per_task=2.0), calibrate(designed)
    ranked = price.per_dollar(calibration, new, cost, rng=np.random.default_rng(0))
    told = predict(calibration, new).set_index("cohort").loc[ranked.cohort]
    dollars = cost.set_axis(new.cohort).loc[ranked.cohort].to_numpy()
    for name in ("predicted", "low", "high"):
        np.testing.assert_allclose(ranked[f"{name}_per_dollar"], told[name] / dollars)
    assert ranked.predicted_per_dollar.is_monotonic_decreasing and ranked["rank"].tolist() == [*range(1, 31)]
    assert (ranked.rank_low <= ranked["rank"]).all() and (ranked["rank"] <= ranked.rank_high).all()
    assert ranked.p_best.sum() == pytest.approx(1)


def test_draws_spread_as_the_intervals_do():
    designed, new = offers(60), offers(5, seed=2, start=100)
    calibration = calibrate(designed)
    drawn = price.lift_draws(calibration, new, rng=np.random.default_rng(0))
    low, high = np.quantile(drawn, [0.05, 0.95], axis=0)
    told = predict(calibration, new)
    np.testing.assert_allclose(low, told["low"], atol=0.01)
    np.testing.assert_allclose(high, told["high"], atol=0.01)


def test_ninety_percent_of_true_ranks_lie_in_their_intervals():
    inside = []
    for seed in range(60):
        designed, new = offers(seed=2 * seed), offers(12, seed=2 * seed + 1, start=100)
        cost = price.dollars(new, per_million_tokens=1.0)
        ranked = price.per_dollar(calibrate(designed), new, cost, rng=np.random.default_rng(seed)).set_index("cohort")
        true = (new.lift / cost).rank(ascending=False).set_axis(new.cohort)[ranked.index]
        inside += ((ranked.rank_low <= true) & (true <= ranked.rank_high)).tolist()
    assert 0.86 <= np.mean(inside) <= 0.97


def test_a_budget_buys_the_best_prediction_it_can_afford():
    designed, new = offers(noise=0.001), offers(10, seed=1, noise=0.001, start=100)
    cost = price.dollars(new, per_task=1.0)
    rng = np.random.default_rng(0)
    everything = price.under_budget(calibrate(designed), new, cost, 1e6, rng=rng)
    assert everything.cohort == new.cohort[new.lad.idxmax()] and everything.n_affordable == 10
    budget = cost.sort_values().iloc[4]
    some = price.under_budget(calibrate(designed), new, cost, budget, rng=rng)
    can = new[cost <= budget]
    assert some.cohort == can.cohort[can.lad.idxmax()] and some.dollars <= budget and some.n_affordable == 5
    assert some.low < some.predicted < some.high and 0 < some.p_best <= 1
    assert price.under_budget(calibrate(designed), new, cost, cost.min() - 1, rng=rng) is None
    lacking = new.assign(lad=[np.nan, *new.lad[1:]])
    for ask in (price.per_dollar, lambda *args, rng: price.under_budget(*args, 1e6, rng=rng)):
        with pytest.raises(ValueError, match="offer 'c100' lacks a value of lad"):
            ask(calibrate(designed), lacking, cost, rng=rng)


def test_no_offer_predicts_its_own_lift():
    table = offers()
    before = price.held_out_lifts(table, table, ("lad",)).predicted
    table.loc[3, "lift"] += 5
    after = price.held_out_lifts(table, table, ("lad",)).predicted
    assert after[3] == before[3] and not np.isclose(after[4], before[4])


def test_what_was_bought_is_told_by_measured_lift():
    table = offers(3).assign(lift=[0.1, 0.3, 0.2], n_distinct=[10, 20, 30])
    cost = price.dollars(table, per_task=1.0)
    bought = price.budget_table(table, {"lad": pd.Series([1.0, 2.0, 3.0])}, cost)
    assert bought.cohort.tolist() == ["c0", "c1", "c2"] and bought.lift.tolist() == [0.1, 0.3, 0.2]
    assert bought.random.tolist() == pytest.approx([0.1, 0.2, 0.2]) and bought.best.tolist() == [0.1, 0.3, 0.3]
    mean, low, high = price.gain_over_random(table, pd.Series([1.0, 2.0, 3.0]), cost)
    assert mean == pytest.approx((bought.lift - bought.random).mean())
    assert low < mean < high and high - mean == pytest.approx(mean - low)


def test_the_gains_interval_covers_noise_in_lifts():
    rng, table = np.random.default_rng(0), offers(20)
    cost, predicted, inside = price.dollars(table, per_task=1.0), table.lad * 10, 0
    true = price.gain_over_random(table, predicted, cost)[0]
    for _ in range(400):
        noisy = table.lift + rng.normal(0, 0.02 / 1.96, 20)
        seen = table.assign(lift=noisy, ci_low=noisy - 0.02, ci_high=noisy + 0.02)
        _, low, high = price.gain_over_random(seen, predicted, cost)
        inside += low <= true <= high
    assert 0.92 <= inside / 400 <= 0.98


def test_entries_say_who_ranks_best_and_why_nothing_can_be_said():
    designed, new = offers(noise=0.005), offers(30, seed=1, noise=0.005, start=100)
    found = {e["name"]: e for e in price.price_entries({"mixtures": (designed, new)})}
    assert found["price.token.mixtures.lad.rho"]["value"] > found["price.token.mixtures.variance.rho"]["value"]
    assert found["price.token.mixtures.lad.gain"]["ci_low"] > 0
    assert {name.split(".")[1] for name in found} == {"task", "token"}
    few = price.price_entries({"designed": (offers(4), offers(4))})
    assert few[0]["value"] is None and "too few" in few[0]["reason"]
    none = price.price_entries({"mixtures": (designed, new.head(0))})
    assert none[0]["value"] is None and none[0]["reason"] == "no offer was trained"


def test_pictures_show_predicted_beside_measured():
    designed, new = offers(), offers(30, seed=1, start=100)
    cost = price.dollars(new, per_task=1.0)
    ranked = price.per_dollar(calibrate(designed), new, cost, rng=np.random.default_rng(0))
    axes = price_plots.lift_per_dollar(ranked, new.set_index("cohort").lift, unit="$1 a task").axes[0]
    assert len(axes.get_yticklabels()) == price_plots.MOST and axes.get_yticklabels()[-1].get_text().startswith(
        ranked.cohort[0]
    )
    bought = price.budget_table(new, {"lad": new.lad, "variance": new.variance}, cost)
    labels = [t.get_text() for t in price_plots.bought_under_budget(bought).axes[0].get_legend().get_texts()]
    assert labels == ["best affordable", "mean affordable", "first by LAD", "first by p(1-p)"]
