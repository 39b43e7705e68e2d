"""Policy gradients of single tasks from stored rollouts, and one random projection of them.

A task's gradient is that of GRPO's objective on its k rollouts: (1/k) sum_i A_i grad log pi(y_i | x), A_i the advantage and
log pi summed over the completion's tokens. Equal completions share one row, so that a task costs as many rows as it has
distinct completions; tasks whose rewards are all equal have no gradient and cost nothing.
One backward pass a task: on a CPU `torch.func.vmap` over tasks was no faster (`benchmarks/gradients.py`), and at the size of a
language model a batch of its gradients would not fit.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import pandas as pd

KEY = ["split", "task_id", "answer", "verifier"]  # what makes a task another one: its rollouts, and how they are judged
SMALLEST_SD = 1e-4  # TRL adds it to a group's standard deviation


class Item(NamedTuple):
    """A task as some cohort judges it, with its rollouts: equal completions once, with how often each was drawn."""

    key: tuple  # of KEY
    prompt: str
    completions: list[str]
    ended: np.ndarray  # (R,) whether each ended by itself, so that its end token counts
    counts: np.ndarray  # (R,)
    rewards: np.ndarray  # (R,) 0 or 1

    @property
    def pass_rate(self) -> float:
        return float(self.counts @ self.rewards / self.counts.sum())


def items_of(members: pd.DataFrame, prompts: pd.Series, rollouts: pd.DataFrame) -> list[Item]:
    """One Item a distinct KEY of `members`, in the order in which they first appear.

    members: columns split, task_id, answer, verifier. prompts: indexed by task_id. rollouts: split, task_id, completion,
    finish_reason; a task without any is a ValueError.
    """
    from lad_utils.cohorts import VERIFIERS

    drawn = rollouts.assign(ended=rollouts["finish_reason"] == "stop")
    drawn = drawn.groupby(["split", "task_id", "completion", "ended"], sort=True).size().rename("count").reset_index()
    by_task = {k: (g["completion"].tolist(), g["ended"].to_numpy(), g["count"].to_numpy()) for k, g in drawn.groupby(KEY[:2])}
    items = []
    for key in members[KEY].drop_duplicates().itertuples(index=False, name=None):
        split, task_id, answer, verifier = key
        if (split, task_id) not in by_task:
            raise ValueError(f"gradients: task {task_id!r} has no rollouts of the split {split!r}")
        texts, ended, counts = by_task[split, task_id]
        rewards = np.array([float(VERIFIERS[verifier](c, answer)) for c in texts])
        items.append(Item(key, str(prompts[task_id]), texts, ended, counts, rewards))
    return items


def advantages(item: Item, *, scaled: bool) -> np.ndarray:
    """Advantage of each distinct completion, (R,): reward - mean, over the group's standard deviation if `scaled` (GRPO, TRL).

    All k rollouts count as one group. Unscaled, the expected gradient is (k-1)/k that of the pass rate.
    """
    centred = item.rewards - item.pass_rate
    if not scaled:
        return centred
    k = item.counts.sum()
    return centred / (np.sqrt(item.counts @ centred**2 / max(k - 1, 1)) + SMALLEST_SD)


def policy_gradient(model, tokenizer, item: Item, *, scaled: bool = True):
    """The item's policy gradient as one float32 tensor, (P,), in the order of model.parameters(); None if it is 0."""
    import torch

    if len(set(item.rewards.tolist())) < 2:
        return None
    prompt = tokenizer(item.prompt).input_ids
    told = tokenizer(item.completions, add_special_tokens=False).input_ids
    told = [[*ids, tokenizer.eos_token_id] if end else ids for ids, end in zip(told, item.ended, strict=True)]
    ids = torch.full((len(told), len(prompt) + max(map(len, told))), tokenizer.pad_token_id)
    weights = torch.zeros((len(told), ids.shape[1] - 1))
    share = item.counts * advantages(item, scaled=scaled) / item.counts.sum()
    for row, (completion, weight) in enumerate(zip(told, share.tolist(), strict=True)):
        ids[row, : len(prompt) + len(completion)] = torch.tensor(prompt + completion)
        weights[row, len(prompt) - 1 : len(prompt) + len(completion) - 1] = weight
    logits = model(input_ids=ids, use_cache=False).logits[:, :-1].float()  # padded on the right: no real token sees a pad
    likelihood = torch.log_softmax(logits, -1).gather(-1, ids[:, 1:, None])[..., 0]
    gradients = torch.autograd.grad((likelihood * weights).sum(), list(model.parameters()))
    return torch.cat([g.reshape(-1) for g in gradients])


def mean_gradient(model, tokenizer, items: Iterable[Item], *, scaled: bool):
    """Mean policy gradient of items, those without one counted as 0; (P,)."""
    import torch

    total, n = torch.zeros(sum(p.numel() for p in model.parameters())), 0
    for item in items:
        found, n = policy_gradient(model, tokenizer, item, scaled=scaled), n + 1
        if found is not None:
            total += found
    return total / max(n, 1)


class Projection:
    """Count sketch to `dim` numbers: each coordinate goes to one of them, drawn at random, with a random sign.

    Inner products are kept on average, with variance at most (|x|^2 |y|^2 + <x,y>^2) / dim (Charikar et al. 2002; feature
    hashing, Weinberger et al. 2009, lemma 2), as by a dense matrix of signs, at a cost of P additions instead of P x dim.
    """

    def __init__(self, size: int, dim: int, *, seed: int):
        import torch

        draw = torch.Generator().manual_seed(seed)
        self.dim, self.place = dim, torch.randint(dim, (size,), generator=draw)
        self.sign = torch.randint(2, (size,), generator=draw).float() * 2 - 1

    def __call__(self, vector):
        """(P,) -> (dim,)."""
        import torch

        return torch.zeros(self.dim).index_add_(0, self.place, vector * self.sign)
