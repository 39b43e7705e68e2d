"""Policy gradients of single tasks, their projection, and the scores made of them, against what they should equal."""

import numpy as np
import pandas as pd
import pytest
import torch
from torch.func import functional_call, grad, vmap

from lad_utils import influence
from lad_utils.gradients import Item, Projection, advantages, items_of, mean_gradient, policy_gradient
from lad_utils.params import REPOSITORY, load_study
from lad_utils.rollouts import load_model

ROOT = REPOSITORY / load_study("micro-reference").base_model
PROMPT = "Tom has 12 apples . Tom buys 7 . how many apples ?"
DRAWN = ["12 + 7 = 19 ; #### 19", "12 + 7 = 18 ; #### 18", "12 + 7 = 19 ; #### 19", "12 - 7 = 5 ; #### 5"]


@pytest.fixture(scope="module")
def base():
    return load_model(ROOT)


def item(completions=DRAWN, answer="19", verifier="exact"):
    rollouts = pd.DataFrame({"split": "score", "task_id": "t", "completion": completions, "finish_reason": "stop"})
    members = pd.DataFrame([{"split": "score", "task_id": "t", "answer": answer, "verifier": verifier}])
    return items_of(members, pd.Series({"t": PROMPT}), rollouts)[0]


def log_likelihood(model, tokenizer, completion):
    prompt = tokenizer(PROMPT).input_ids
    ids = prompt + tokenizer(completion, add_special_tokens=False).input_ids + [tokenizer.eos_token_id]
    logits = model(input_ids=torch.tensor([ids])).logits[0, :-1]
    told = torch.log_softmax(logits.float(), -1)[range(len(ids) - 1), ids[1:]]
    return told[len(prompt) - 1 :].sum()


def close(a, b, tolerance=1e-4):
    return float((a - b).norm() / b.norm()) < tolerance


@pytest.mark.parametrize("scaled", [False, True])
def test_a_tasks_gradient_is_the_mean_over_its_rollouts_of_advantage_times_score_function(base, scaled):
    model, tokenizer = base
    rewards = torch.tensor([1.0, 0.0, 1.0, 0.0])
    advantage = rewards - rewards.mean()
    if scaled:
        advantage = advantage / (rewards.std() + 1e-4)  # as TRL scales a group
    loss = sum(a * log_likelihood(model, tokenizer, c) for a, c in zip(advantage, DRAWN, strict=True)) / 4
    expected = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(model.parameters()))])
    assert close(policy_gradient(model, tokenizer, item(), scaled=scaled), expected)


def test_equal_completions_are_one_row_and_rewards_are_by_the_cohorts_own_label():
    found = item()
    assert sorted(found.completions) == sorted(set(DRAWN)) and found.counts.sum() == 4
    assert found.pass_rate == 0.5 and item(answer="5").pass_rate == 0.25
    assert item(verifier="even_answer").pass_rate == 0.25  # 18 alone is even
    assert found.counts @ advantages(found, scaled=True) == pytest.approx(0)


def test_a_task_whose_rewards_are_all_equal_has_no_gradient(base):
    assert policy_gradient(*base, item(answer="7")) is None
    both = mean_gradient(*base, [item(), item(answer="7")], scaled=False)
    assert close(2 * both, policy_gradient(*base, item(), scaled=False))


def test_a_task_without_rollouts_is_named():
    rollouts = pd.DataFrame({"split": ["score"], "task_id": ["t"], "completion": ["1"], "finish_reason": ["stop"]})
    members = pd.DataFrame([{"split": "extra", "task_id": "t", "answer": "1", "verifier": "exact"}])
    with pytest.raises(ValueError, match="'t' has no rollouts of the split 'extra'"):
        items_of(members, pd.Series({"t": PROMPT}), rollouts)


def test_a_step_along_the_gradient_raises_the_likelihood_of_what_was_rewarded(base):
    model, tokenizer = load_model(ROOT)
    before = log_likelihood(model, tokenizer, DRAWN[0]) - log_likelihood(model, tokenizer, DRAWN[1])
    gradient = policy_gradient(model, tokenizer, item())
    vector = torch.nn.utils.parameters_to_vector(model.parameters())
    torch.nn.utils.vector_to_parameters(vector + 1e-6 * gradient, model.parameters())
    assert log_likelihood(model, tokenizer, DRAWN[0]) - log_likelihood(model, tokenizer, DRAWN[1]) > before


def test_one_backward_a_task_is_what_torch_func_gives_for_a_batch(base):
    model, tokenizer = base
    rows = [tokenizer(f"{PROMPT} {c}", return_tensors="pt").input_ids[0] for c in DRAWN[:2]]
    length = min(map(len, rows))
    ids = torch.stack([r[:length] for r in rows])[:, None]

    def loss(parameters, ids):
        logits = functional_call(model, parameters, kwargs={"input_ids": ids, "use_cache": False}).logits[:, :-1]
        return torch.log_softmax(logits, -1).gather(-1, ids[:, 1:, None]).sum()

    parameters = {n: p.detach() for n, p in model.named_parameters()}
    batched = vmap(grad(loss), in_dims=(None, 0))(parameters, ids)
    for i in range(2):
        alone = torch.autograd.grad(loss(dict(model.named_parameters()), ids[i]), list(model.parameters()))
        assert all(torch.allclose(b[i], a, atol=1e-3, rtol=1e-3) for b, a in zip(batched.values(), alone, strict=True))


def test_projected_inner_products_are_unbiased_and_err_as_one_over_the_root_of_the_dimension():
    draw = torch.Generator().manual_seed(0)
    x, y = (torch.randn(3000, generator=draw) for _ in range(2))
    y = 0.5 * x + y
    truth, spread = float(x @ y), {}
    for dim in (64, 256, 1024):
        found = np.array([float(p(x) @ p(y)) for p in (Projection(3000, dim, seed=s) for s in range(400))])
        assert abs(found.mean() - truth) < 3.5 * found.std() / 20
        spread[dim] = found.std()
        assert spread[dim] <= 1.15 * np.sqrt((float(x @ x) * float(y @ y) + truth**2) / dim)
    slope = np.polyfit(np.log(list(spread)), np.log(list(spread.values())), 1)[0]
    assert slope == pytest.approx(-0.5, abs=0.08)


def test_a_projection_is_linear_and_one_matrix_whatever_it_is_given():
    project = Projection(40, 8, seed=3)
    matrix = torch.stack([project(row) for row in torch.eye(40)], dim=1)
    assert set(matrix.abs().sum(dim=0).tolist()) == {1.0}  # a column has one entry, 1 or -1
    x = torch.arange(40.0)
    assert torch.allclose(project(x), matrix @ x) and not torch.equal(project(x), Projection(40, 8, seed=4)(x))


def test_trak_is_that_of_its_authors_package_up_to_its_scale():
    from trak.score_computers import BasicScoreComputer

    rng = np.random.default_rng(0)
    features, target = rng.normal(size=(200, 12)), rng.normal(size=12)
    ridge = influence.RIDGE * np.trace(features.T @ features / 200) / 12
    theirs = BasicScoreComputer(dtype=torch.float64, device="cpu", lambda_reg=200 * ridge)
    grads, scores = torch.tensor(features), torch.zeros(200, 1, dtype=torch.float64)
    theirs.get_scores(theirs.get_x_xtx_inv(grads, theirs.get_xtx(grads)), torch.tensor(target)[None], scores)
    mine, scores = influence.trak_scores(features, target), scores[:, 0].numpy()
    ratio = scores / mine
    assert ratio == pytest.approx(ratio[0], rel=1e-4) and ratio[0] > 0
    padded = influence.trak_scores(np.vstack([features, np.zeros((50, 12))]), target)
    assert padded[:200] == pytest.approx(mine) and not padded[200:].any()  # tasks without a gradient count as none
    assert not influence.trak_scores(np.zeros((3, 12)), target).any()


def test_scores_of_a_task_follow_their_definitions(base, tmp_path):
    model, tokenizer = base
    items = [item(), item(answer="5"), item(answer="7")]
    given = influence.reference(model, tokenizer, [item(answer="18")], items, seed=0)
    scores = influence.all_item_scores(ROOT, items, given, seed=0, folder=tmp_path)
    found = influence.gradient_metrics(scores, given, seed=0)
    g, target = policy_gradient(model, tokenizer, items[1]), policy_gradient(model, tokenizer, item(answer="18"), scaled=False)
    assert close(given.target, target)
    g, target = g.double(), target.double()
    cosine = float(g @ target / (g.norm() * target.norm()))
    assert found.gradient_norm[1] == pytest.approx(float(g.norm()), rel=1e-4)
    assert found.learnalign[1] == pytest.approx(0.25 * 0.75 * cosine, abs=1e-5)
    step = sum(policy_gradient(model, tokenizer, i) for i in items[:2]) / 3  # the warm-up is one batch of these three
    assert close(given.momentum, step) and close(given.square, step**2)
    adam = (0.9 * step + 0.1 * g) / ((0.999 * step**2 + 0.001 * g**2).sqrt() + 1e-8)
    assert found.less[1] == pytest.approx(float(adam @ target / (adam.norm() * target.norm())), abs=1e-4)
    assert found.cropi[1] == pytest.approx(cosine, abs=4 / np.sqrt(influence.PROJECTED))
    assert not found.loc[2, [*influence.GRADIENT_METRICS]].any()  # never rewarded: nothing to learn from, whatever the momentum


def test_scores_do_not_depend_on_how_many_processes_take_them(base, tmp_path, monkeypatch):
    monkeypatch.setattr(influence, "CHUNK", 1)
    items = [item(), item(answer="5"), item(answer="7")]
    given = influence.reference(*base, [item(answer="18")], items, seed=0)
    timed = ["seconds", "peak_bytes"]
    one, two = (
        influence.all_item_scores(ROOT, items, given, seed=0, folder=tmp_path / str(n), cores=n).drop(columns=timed)
        for n in (1, 2)
    )
    pd.testing.assert_frame_equal(one, two)


def test_gradients_of_a_finished_chunk_are_read_and_not_taken_again(base, tmp_path, monkeypatch):
    model, tokenizer = base
    items = [item(), item(answer="5")]
    given = influence.reference(model, tokenizer, [item()], items, seed=0)
    first = influence.all_item_scores(ROOT, items, given, seed=0, folder=tmp_path)
    monkeypatch.setattr(influence, "policy_gradient", lambda *_: pytest.fail("taken again"))
    again = influence.all_item_scores(ROOT, items, given, seed=0, folder=tmp_path)
    pd.testing.assert_frame_equal(again, first)


def test_an_item_says_which_of_its_completions_ended_by_themselves(base):
    texts, ones = [DRAWN[0], "12 + 7"], np.array([1, 1])
    told = Item(("score", "t", "19", "exact"), PROMPT, texts, np.array([True, False]), ones, np.array([1.0, 0.0]))
    whole = told._replace(ended=np.array([True, True]))
    assert not close(policy_gradient(*base, told), policy_gradient(*base, whole))
