"""Which tasks GRPO visits next: a posterior of every task's pass rate, kept up with training, and what is chosen by it."""

from collections.abc import Iterator

import numpy as np
from scipy.special import betaln

# Fixed before any run with them: a base rollout set counts as one group of 8, and evidence halves in some 34 steps.
STRENGTH = 8.0
DECAY = 0.98
SAMPLERS = ("uniform", "lad_order", "static_lad", "online_lad", "near_half")  # uniform is TRL's own


class TaskPosterior:
    """Beta posteriors of the pass rates of n tasks: a flat prior, base rollouts worth at most `strength`, and decay.

    The policy moves, so all evidence is multiplied by `decay` every step: a task not visited for long goes back to Beta(1, 1),
    whose energy is high, and is tried again. With G = 8 a group outweighs its base rollouts at once.
    """

    def __init__(self, correct, k, *, strength: float = STRENGTH, decay: float = DECAY):
        correct, k = np.asarray(correct, dtype=float), np.asarray(k, dtype=float)
        if correct.shape != k.shape or (k < 0).any() or (correct < 0).any() or (correct > k).any():
            raise ValueError("TaskPosterior: every task needs 0 <= correct <= k")
        scale = np.minimum(1.0, strength / np.maximum(k, 1.0))
        self.right, self.wrong, self.decay = correct * scale, (k - correct) * scale, decay

    def update(self, tasks, correct, n: int) -> None:
        """One step: everything decays, then `tasks` (indices, repeats allowed) got `correct` of `n` right."""
        correct = np.asarray(correct, dtype=float)
        self.right *= self.decay
        self.wrong *= self.decay
        np.add.at(self.right, tasks, correct)
        np.add.at(self.wrong, tasks, n - correct)

    def energy(self, gamma: float = 1.0) -> np.ndarray:
        """Posterior mean of p(1-p)^(1+gamma), shape (n,)."""
        a, b = 1 + self.right, 1 + self.wrong
        return np.exp(betaln(a + 1, b + 1 + gamma) - betaln(a, b))

    def draw(self, rng: np.random.Generator) -> np.ndarray:
        """One draw of every task's pass rate, shape (n,)."""
        return rng.beta(1 + self.right, 1 + self.wrong)


class TaskSampler:
    """Indices of a task set for TRL's trainer: `prompts` distinct tasks a step, each `generations` times, for `steps` steps.

    lad_order: by energy of the base rollouts, highest first, from the start again at the end. static_lad: drawn in proportion
    to that energy, never re-estimated. online_lad: the same with the posterior's, kept up with training. near_half: the tasks
    whose pass rates, drawn from the posterior, are nearest to 1/2 (MoPPS, Qu et al. 2025). The dataloader asks for a step's
    tasks while the one before is trained on, so a posterior lags by one step.
    """

    def __init__(self, name: str, correct, k, *, prompts: int, generations: int, steps: int, gamma: float, seed: int):
        if name not in SAMPLERS[1:]:
            raise ValueError(f"sampler {name!r} is unknown; samplers: {', '.join(SAMPLERS[1:])}")
        if len(correct) < prompts:
            raise ValueError(f"sampler {name!r}: {len(correct)} tasks, {prompts} are needed a step")
        self.name, self.prompts, self.generations, self.steps, self.gamma = name, prompts, generations, steps, gamma
        self.rng, self.posterior = np.random.default_rng([seed, 2]), TaskPosterior(correct, k)
        self.base = TaskPosterior(correct, k, strength=np.inf).energy(gamma)

    def __len__(self) -> int:
        return (self.steps + 1) * self.prompts * self.generations  # one step more, as the dataloader looks ahead

    def __iter__(self) -> Iterator[int]:
        for step in range(self.steps + 1):
            for task in self.choose(step):
                yield from [int(task)] * self.generations

    def update(self, tasks, correct, n: int) -> None:
        self.posterior.update(tasks, correct, n)

    def choose(self, step: int) -> np.ndarray:
        """The `prompts` distinct tasks of one step."""
        if self.name == "lad_order":
            order = np.argsort(-self.base, kind="stable")
            return order[np.arange(step * self.prompts, (step + 1) * self.prompts) % len(order)]
        if self.name == "near_half":
            return np.argsort(np.abs(self.posterior.draw(self.rng) - 0.5), kind="stable")[: self.prompts]
        weights = self.base if self.name == "static_lad" else self.posterior.energy(self.gamma)
        return self.rng.choice(len(weights), self.prompts, replace=False, p=weights / weights.sum())
