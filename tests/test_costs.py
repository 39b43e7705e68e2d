"""Costs are counted where they are spent: known workloads, and what a cohort's metrics are charged."""

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from lad_utils import costs, embeddings
from lad_utils.params import REPOSITORY, load_study
from lad_utils.rollouts import Sampler, load_model, transformers_engine

ROOT = REPOSITORY / load_study("micro-reference").base_model


@pytest.fixture(scope="module")
def base():
    return load_model(ROOT)


def ids_of(base, *lengths):
    tokenizer = base[1]
    ids = torch.full((len(lengths), max(lengths)), tokenizer.pad_token_id)
    for row, n in enumerate(lengths):
        ids[row, :n] = torch.arange(5, 5 + n)
    return ids


def test_a_planted_workload_is_counted_forward_and_backward_without_padding(base):
    model, ids = base[0], ids_of(base, 7, 20, 13)
    with costs.Meter(model) as meter:
        model(input_ids=ids).logits.sum().backward()
        with torch.inference_mode():
            model(ids)
    model.zero_grad()
    assert (meter.forward_tokens, meter.backward_tokens) == (80, 40) and meter.seconds > 0
    n = model.num_parameters()  # tied: its embedding is its output layer
    assert meter.cost()["flops"] == 2 * n * 80 + 4 * n * 40
    model(input_ids=ids)
    assert meter.forward_tokens == 80  # closed


def test_sampling_under_the_meter_costs_what_the_engine_logs(base):
    engine = transformers_engine(*base, Sampler("{prompt}", (), 12, 1.0))
    prompts = pd.DataFrame({"task_id": ["a", "b"], "prompt": ["Tom has 3 apples .", "how many apples ? Tom has 12 ."]})
    with costs.Meter(base[0]) as meter:
        drawn = engine(prompts, k=5, seed=0)
    never_fed = (drawn["n_tokens"] == drawn["n_tokens"].max()).sum()  # the last token of the last to end
    assert meter.forward_tokens == (drawn["n_tokens"] + drawn["prompt_tokens"]).sum() - never_fed
    assert meter.backward_tokens == 0


def test_the_rule_of_2n_and_4n_is_what_torch_counts_but_for_attention(base):
    model, ids = base[0], ids_of(base, 40, 40, 40, 40)
    with FlopCounterMode(display=False) as counted, costs.Meter(model) as meter:
        torch.autograd.grad(model(input_ids=ids).logits.sum(), list(model.parameters()))
    assert 1.0 <= counted.get_total_flops() / meter.cost()["flops"] < 1.12


def test_an_embedding_that_is_no_output_layer_does_not_multiply():
    from lad_utils.embeddings import encoder_of

    encoder = encoder_of("minilm")
    assert costs.multiplying_parameters(encoder) < 0.5 * encoder.num_parameters() and encoder_of("char_ngrams") is None


def test_what_runs_through_the_embedder_is_counted():
    from lad_utils.cohort_scores import embedded

    prompts = ["Tom has 12 apples .", "how many ?"]
    tokens = embeddings._load("minilm").tokenizer(prompts).attention_mask
    vectors, cost = embedded(prompts, embedder="minilm")
    assert cost["forward_tokens"] == sum(map(sum, tokens)) and cost["flops"] > 0 and len(vectors) == 2
    assert embedded(prompts, embedder="char_ngrams")[1]["flops"] == 0


def test_peak_memory_sees_what_was_held_for_a_while(base):
    import time

    with costs.Meter(base[0], memory=True) as small:
        time.sleep(0.1)
    with costs.Meter(base[0], memory=True) as large:
        held = torch.ones(50_000_000)
        time.sleep(0.2)
    assert large.peak_bytes - small.peak_bytes > 0.8 * held.nbytes


def runs():
    lifts = pd.DataFrame(
        {
            "run_id": ["main/a/seed0", "small/a/seed0"],
            "arm": ["main", "small"],
            "variant": "sampled",
            "eval_tokens": [100, 100],
            "seconds": [3.0, 1.0],
            "peak_bytes": [np.nan, 5.0],
        }
    )
    groups = pd.DataFrame({"run_id": lifts["run_id"], "tokens": 10, "prompt_tokens": 30})
    totals = pd.DataFrame({"split": ["eval", "eval_greedy", "score"], "prompt_tokens": [200, 25, 7]})
    return lifts, groups, totals


def test_a_run_is_charged_at_its_own_models_size():
    found = costs.run_costs(*runs(), n_parameters={"base": 10, "smaller": 3})
    # trained: 40 tokens generated and read, 8N each; evaluated: 100 generated beside 225 of prompts
    assert found["main/a/seed0"]["flops"] == 10 * (8 * 40 + 2 * 325)
    assert found["small/a/seed0"]["flops"] == 3 * (8 * 40 + 2 * 325)
    assert found["main/a/seed0"]["generated_tokens"] == 110 and found["main/a/seed0"]["backward_tokens"] == 40


def test_a_metrics_memory_has_a_value_or_a_reason():
    counted = dict.fromkeys(costs.COUNTS, 1.0)
    rows = [{"arm": "main", "metric": m, "value": 1.0} | counted for m in ("variance", "full_run", "small_model_lift")]
    rows.append({"arm": "main", "metric": "token_length", "value": 1.0} | dict.fromkeys(costs.COUNTS, 0.0))
    rows.append({"arm": "main", "metric": "datamodel", "value": np.nan} | counted)
    measured = pd.DataFrame({"name": ["rollouts"], "peak_bytes": [9.0]})
    table = costs.metric_costs(pd.DataFrame(rows), runs()[0], measured).set_index("name")
    assert table.loc[["variance", "small_model_lift"], "peak_bytes"].tolist() == [9.0, 5.0]
    assert "datamodel" not in table.index and table.loc["token_length", "reason"] == "no model"
    assert (table["peak_bytes"].isna() == (table["reason"] != "")).all()
