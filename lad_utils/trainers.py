"""TRL's GRPOTrainer where TRL has no option for it: two treatments of zero-variance groups, and a sampler that learns."""

from collections.abc import Callable

import numpy as np
import torch
from accelerate.utils import gather_object
from transformers import TrainerCallback
from trl import GRPOTrainer

from lad_utils.grpo import ENTROPY_SCALE, MAX_ROUNDS
from lad_utils.online import TaskSampler


class DynamicSampling(GRPOTrainer):
    """DAPO's dynamic sampling: generate until the batch is full of groups with both rewards (Yu et al. 2025, section 3.2).

    Further prompts come from permutations of the task set of this trainer's own. After MAX_ROUNDS rounds the batch is filled up
    with groups that have no advantage. Of DAPO's other parts the loss averaged over tokens and the missing KL term are there
    already, and with one update a batch no ratio is ever clipped, high or low; overlong completions are not punished. One
    process only.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._rng, self._waiting = np.random.default_rng([self.args.seed, 1]), []

    def _further_prompts(self, n: int) -> list[dict]:
        while len(self._waiting) < n:
            self._waiting += self._rng.permutation(len(self.train_dataset)).tolist()
        taken, self._waiting = self._waiting[:n], self._waiting[n:]
        return [self.train_dataset[i] for i in taken for _ in range(self.num_generations)]

    def _generate_and_score_completions(self, inputs):
        wanted, mixed, dead = len(inputs) // self.num_generations, [], []
        for rounds in range(MAX_ROUNDS):
            if rounds:
                inputs = self._further_prompts(wanted)
            batch = super()._generate_and_score_completions(inputs)
            alive = batch["advantages"].view(wanted, -1).abs().amax(dim=1) > 0
            for group, has_both in enumerate(alive.tolist()):
                rows = slice(group * self.num_generations, (group + 1) * self.num_generations)
                part = {name: value[rows] for name, value in batch.items() if value.dim()}
                (mixed if has_both else dead).append(part)
            if len(mixed) >= wanted:
                break
        batch = {name: _stacked([part[name] for part in (mixed + dead)[:wanted]], name) for name in batch if batch[name].dim()}
        return batch | {"num_items_in_batch": batch["completion_mask"].sum()}


def _stacked(parts: list[torch.Tensor], name: str) -> torch.Tensor:
    """Rows of several rounds as one tensor: (rows,) as they are, (rows, tokens) padded, prompts on their left."""
    width = max(part.shape[-1] for part in parts)
    if parts[0].dim() == 1:
        return torch.cat(parts)
    sides = [(width - part.shape[-1], 0) if name.startswith("prompt") else (0, width - part.shape[-1]) for part in parts]
    return torch.cat([torch.nn.functional.pad(part, side) for part, side in zip(parts, sides, strict=True)])


class ZeroVarianceAware(GRPOTrainer):
    """Advantages a token in groups whose rewards are all alike, after RL-ZVP (Le et al. 2025, No Prompt Left Behind).

    All right: alpha H_t, H_t the policy's entropy at token t in nats, detached. All wrong: -alpha (max H - H_t), the maximum
    over the completion, so that uncertain tokens are punished least. Groups with both rewards keep GRPO's advantages.
    """

    def _calculate_rewards(self, *args, **kwargs):
        self._rewards = super()._calculate_rewards(*args, **kwargs)
        return self._rewards

    def _generate_and_score_completions(self, inputs):
        batch = super()._generate_and_score_completions(inputs)
        mask = batch["completion_mask"]
        with torch.no_grad():
            _, entropies, _ = self._get_per_token_logps_and_entropies(
                self.model,
                torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1),
                torch.cat([batch["prompt_mask"], mask], dim=1),
                mask.size(1),
                compute_entropy=True,
            )
        first = self.accelerator.process_index * len(inputs)
        rates = self._rewards[first : first + len(inputs), 0].view(-1, self.num_generations).mean(dim=1)
        return batch | {"advantages": shaped_advantages(batch["advantages"], rates, entropies, mask)}


def shaped_advantages(advantages, rates, entropies, mask) -> torch.Tensor:
    """(B, T) advantages from GRPO's (B,): RL-ZVP's where a group's mean reward, `rates` (B / G,), is 0 or 1.

    entropies, mask: (B, T), nats and 1 for the completion's own tokens.
    """
    rate = rates.repeat_interleave(len(advantages) // len(rates)).unsqueeze(1)
    own = entropies * mask
    right, wrong = ENTROPY_SCALE * own, -ENTROPY_SCALE * (own.amax(dim=1, keepdim=True) - own)
    shaped = torch.where(rate == 1, right, torch.where(rate == 0, wrong, advantages.unsqueeze(1)))
    return shaped * mask


class AdaptiveSampling(GRPOTrainer):
    """Prompts from a TaskSampler, which every step tells what its tasks were rewarded. Rewards are those of all processes."""

    def __init__(self, *args, task_sampler: TaskSampler, **kwargs):
        self.task_sampler = task_sampler
        super().__init__(*args, **kwargs)

    def _get_train_sampler(self, dataset=None):
        return self.task_sampler

    def _calculate_rewards(self, inputs, *args, **kwargs):
        rewards = super()._calculate_rewards(inputs, *args, **kwargs)
        positions = gather_object([row["position"] for row in inputs])[:: self.num_generations]
        sums = rewards[:, 0].view(-1, self.num_generations).sum(dim=1)
        self.task_sampler.update(positions, sums.tolist(), n=self.num_generations)
        return rewards


class Watch(TrainerCallback):
    """Calls `look(step)` every `every` steps but after the last, the model in evaluation mode; torch's random state stays."""

    def __init__(self, look: Callable[[int], None], every: int):
        self.look, self.every = look, every

    def on_step_end(self, args, state, control, model=None, **kwargs):
        if state.global_step % self.every == 0 and state.global_step < state.max_steps:
            random_state = torch.get_rng_state()
            model.eval()
            self.look(state.global_step)
            model.train()
            torch.set_rng_state(random_state)


TRAINERS = {"dynamic_sampling": DynamicSampling, "zero_variance_aware": ZeroVarianceAware}  # the others are options of TRL
