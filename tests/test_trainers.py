"""What each trainer changes, and nothing else: options of TRL, groups kept, advantages, on tensors made by hand."""

import numpy as np
import pandas as pd
import pytest
import torch
from trl import GRPOTrainer

from lad_utils import grpo, trainers
from lad_utils.params import TRAINERS, load_study

STUDY = load_study("micro-reference")


@pytest.mark.parametrize("trainer", ["grpo", *TRAINERS])
def test_a_trainer_changes_what_it_says_and_nothing_else(trainer, tmp_path):
    plain, other = (grpo.grpo_config(STUDY, seed=1, folder=tmp_path, trainer=t).to_dict() for t in ("grpo", trainer))
    changed = {name for name in plain if plain[name] != other[name] and name not in ("logging_dir",)}
    expected = {
        "dr_grpo": {"scale_rewards", "loss_type"},
        "sgd": {"optim", "learning_rate"},
        "sgd_unscaled": {"scale_rewards", "loss_type", "optim", "learning_rate"},
    }
    assert changed == expected.get(trainer, set())
    assert (plain["optim"], plain["scale_rewards"]) == ("adamw_torch", "group")


def test_sgd_is_plain_sgd():
    config = grpo.grpo_config(STUDY, seed=1, folder="x", trainer="sgd")
    kind, options = GRPOTrainer.get_optimizer_cls_and_kwargs(config)
    assert kind is torch.optim.SGD and not options.get("momentum") and config.weight_decay == 0


def recorded(calls, *, coin=None, step=0):
    recorder = grpo.Recorder(verifier="exact", generations=2, coin=coin)
    state = type("State", (), {"global_step": step})()
    rewards = []
    for completions in calls:
        n = len(completions)
        columns = {"task_id": ["a"] * n, "position": [0] * n, "completion_ids": [[1]] * n, "answer": ["5"] * n}
        rewards.append(recorder(prompts=[""] * n, completions=completions, trainer_state=state, **columns))
    return rewards, recorder.rows


def test_rounds_of_one_step_number_their_groups_on():
    _, rows = recorded([["#### 5"] * 4, ["#### 6"] * 4])
    assert [(r["step"], r["group"]) for r in rows] == [(1, 0), (1, 1), (1, 2), (1, 3)]


def test_a_coin_pays_no_heed_to_the_completion_and_depends_on_the_seed_alone():
    right, wrong = ["#### 5"] * 400, ["#### 6"] * 400
    (first,), rows = recorded([right], coin=np.random.default_rng(3))
    (second,), _ = recorded([wrong], coin=np.random.default_rng(3))
    assert first == second and 0.4 < np.mean(first) < 0.6
    assert sum(r["reward_sum"] for r in rows) == sum(first)


class Rounds:
    """Stands in for GRPOTrainer._generate_and_score_completions: rounds of two groups of two, widths of their own."""

    def __init__(self, rounds):
        self.rounds, self.asked = list(rounds), []

    def __call__(self, trainer, inputs):
        self.trainer = trainer
        self.asked.append([row["position"] for row in inputs])
        advantages, prompt, completion, mark = self.rounds.pop(0)
        return {
            "prompt_ids": torch.full((4, prompt), mark),
            "prompt_mask": torch.ones(4, prompt, dtype=torch.long),
            "completion_ids": torch.full((4, completion), mark),
            "completion_mask": torch.ones(4, completion, dtype=torch.long),
            "advantages": torch.tensor(advantages),
            "num_items_in_batch": torch.tensor(4 * completion),
        }


def sampled(monkeypatch, rounds):
    fake = Rounds(rounds)
    monkeypatch.setattr(GRPOTrainer, "_generate_and_score_completions", lambda self, inputs: fake(self, inputs))
    trainer = object.__new__(trainers.DynamicSampling)
    trainer.num_generations, trainer.train_dataset = 2, [{"position": i} for i in range(6)]
    trainer._rng, trainer._waiting = np.random.default_rng(0), []
    return trainer._generate_and_score_completions([{"position": p} for p in (0, 0, 1, 1)]), fake


def test_dynamic_sampling_asks_on_until_the_batch_is_full_of_mixed_groups(monkeypatch):
    rounds = [([0.0, 0.0, 1.0, -1.0], 3, 2, 1), ([0.0, 0.0, 0.0, 0.0], 3, 2, 2), ([1.0, -1.0, 1.0, -1.0], 2, 4, 3)]
    batch, fake = sampled(monkeypatch, rounds)
    assert len(fake.asked) == 3 and all(a == b for row in fake.asked for a, b in zip(row[::2], row[1::2], strict=True))
    assert batch["advantages"].tolist() == [1, -1, 1, -1]
    assert batch["prompt_ids"].tolist() == [[1, 1, 1]] * 2 + [[0, 3, 3]] * 2  # prompts are padded on their left
    assert batch["completion_mask"].tolist() == [[1, 1, 0, 0]] * 2 + [[1, 1, 1, 1]] * 2
    assert batch["num_items_in_batch"] == 12


def test_dynamic_sampling_takes_dead_groups_when_its_rounds_are_over(monkeypatch):
    dead, one = [0.0] * 4, [0.0, 0.0, 1.0, -1.0]
    batch, fake = sampled(monkeypatch, [(dead, 2, 2, 1), (dead, 2, 2, 2), (one, 2, 2, 3), (dead, 2, 2, 4), (one, 2, 2, 5)])
    assert len(fake.trainer._waiting) == 0  # three further rounds of two are just the six tasks: none was taken in vain
    assert len(fake.asked) == trainers.MAX_ROUNDS
    assert batch["advantages"].tolist() == [1, -1, 0, 0] and batch["completion_ids"][:, 0].tolist() == [3, 3, 1, 1]


def test_dynamic_sampling_goes_through_all_tasks_before_it_repeats_one():
    trainer = object.__new__(trainers.DynamicSampling)
    trainer.num_generations, trainer.train_dataset = 2, list(range(6))
    trainer._rng, trainer._waiting = np.random.default_rng(0), []
    asked = [p for _ in range(3) for p in trainer._further_prompts(4)[::2]]
    assert sorted(asked[:6]) == [*range(6)] and len(asked) == 12


def test_groups_without_variance_are_praised_by_entropy_and_spared_where_unsure():
    entropies = torch.tensor([[0.2, 0.4, 9.0], [0.1, 0.3, 0.5]]).repeat_interleave(2, 0).repeat(2, 1)[:6]
    mask = torch.tensor([[1, 1, 0], [1, 1, 0], [1, 1, 1], [1, 1, 1], [1, 1, 0], [1, 1, 0]])
    found = trainers.shaped_advantages(torch.tensor([0, 0, 0, 0, 1.0, -1.0]), torch.tensor([1.0, 0.0, 0.5]), entropies, mask)
    scale = trainers.ENTROPY_SCALE
    right, wrong = [0.2 * scale, 0.4 * scale, 0.0], [-0.4 * scale, -0.2 * scale, 0.0]
    np.testing.assert_allclose(found, [right, right, wrong, wrong, [1, 1, 0], [-1, -1, 0]], atol=1e-6)


def test_adaptive_sampling_tells_its_sampler_what_each_group_earned(monkeypatch):
    told = []
    sampler = type("Sampler", (), {"update": lambda self, *args, **kwargs: told.append((args, kwargs))})()
    monkeypatch.setattr(GRPOTrainer, "_calculate_rewards", lambda self, *args: torch.tensor([[1.0], [0.0], [1.0], [1.0]]))
    trainer = object.__new__(trainers.AdaptiveSampling)
    trainer.task_sampler, trainer.num_generations = sampler, 2
    trainer._calculate_rewards([{"position": p} for p in (7, 7, 3, 3)], None, None, None)
    assert told == [(([7, 3], [1.0, 2.0]), {"n": 2})] and trainer._get_train_sampler() is sampler


def test_watching_leaves_the_random_state_and_the_mode_alone():
    seen, model = [], torch.nn.Linear(1, 1)
    watch = trainers.Watch(lambda step: seen.append((step, model.training, torch.rand(1).item())), every=2)
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    drawn = []
    for step in (1, 2, 4):
        watch.on_step_end(None, type("State", (), {"global_step": step, "max_steps": 4})(), None, model=model)
        drawn.append(torch.rand(1))
    assert [(s, training) for s, training, _ in seen] == [(2, False)] and model.training
    assert torch.equal(torch.cat(drawn), expected)


def test_recipes_of_arms_differ_where_their_runs_do(monkeypatch):
    from lad_utils import oracle

    monkeypatch.setattr(oracle, "base_digest", lambda study, name: name)
    columns = {"prompt": ["p"], "answer": ["1"], "verifier": ["exact"], "sampler": ["uniform"], "correct": [1], "k": [8]}
    cohort, questions = pd.DataFrame(columns), pd.DataFrame({"task_id": ["q"], "prompt": ["p"], "answer": ["1"]})
    arms = ["main", "online", *TRAINERS]
    found = {arm: oracle.run_recipe(STUDY, cohort, questions, arm=arm) for arm in arms}
    assert len(set(found.values())) == len(arms)
    slower = STUDY.model_copy(update={"sgd_learning_rate": 0.001})
    again = {arm: oracle.run_recipe(slower, cohort, questions, arm=arm) for arm in arms}
    assert [arm for arm in arms if again[arm] != found[arm]] == ["sgd"]
    others = cohort.assign(sampler="online_lad"), cohort.assign(correct=2)
    assert len({oracle.run_recipe(STUDY, c, questions, arm="online") for c in (cohort, *others)}) == 3
