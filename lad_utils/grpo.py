"""One GRPO run with TRL: every option written out, raw rewards logged by group, and the trainers that are compared."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd

from lad_utils.cohorts import VERIFIERS
from lad_utils.online import TaskSampler
from lad_utils.params import Study
from lad_utils.rollouts import sampler_of
from lad_utils.verifier import completion_text

MAX_ROUNDS = 4  # of generation a step, after which dynamic sampling takes what it has
ENTROPY_SCALE = 0.1  # alpha of RL-ZVP


class Recorder:
    """The reward function of one run, which logs raw rewards a group and step before TRL scales them.

    TRL hands rows over grouped, G completions of a prompt after another. A verifier that raises ends the run. With `coin` the
    verdict is the toss of a fair coin instead, whatever the completion: the control of Shao et al. (2025), Spurious Rewards.
    """

    __name__ = "reward"  # TRL names its metrics by it

    def __init__(self, *, verifier: str, generations: int, coin: np.random.Generator | None = None):
        self.verify, self.generations, self.coin, self.rows = VERIFIERS[verifier], generations, coin, []
        self.step, self.seen = 0, 0  # the step, and the groups of it so far: dynamic sampling takes several rounds

    def __call__(self, prompts, completions, completion_ids, answer, task_id, position, trainer_state, **_):
        if self.coin is None:
            rewards = [float(self.verify(completion_text(c), a)) for c, a in zip(completions, answer, strict=True)]
        else:
            rewards = self.coin.integers(0, 2, len(completions)).astype(float).tolist()
        sums = np.reshape(rewards, (-1, self.generations)).sum(axis=1)
        if self.step != trainer_state.global_step + 1:
            self.step, self.seen = trainer_state.global_step + 1, 0
        for group, reward_sum in enumerate(sums.tolist()):
            first = group * self.generations
            self.rows.append(
                {
                    "step": self.step,
                    "group": self.seen + group,
                    "task_id": task_id[first],
                    "position": position[first],
                    "n": self.generations,
                    "reward_sum": reward_sum,
                    "tokens": sum(len(ids) for ids in completion_ids[first : first + self.generations]),
                }
            )
        self.seen += len(sums)
        return rewards


def trainer_options(study: Study, trainer: str) -> dict:
    """What `trainer` changes among TRL's own options: nothing where a subclass (trainers.py) or the reward makes it differ.

    dr_grpo: Liu et al. (2025), Understanding R1-Zero-like training: advantages not divided by the group's standard deviation,
    the loss summed over tokens and divided by a constant length. sgd: torch's plain SGD, no momentum, group-scaled advantages;
    sgd_unscaled: the same on Dr. GRPO's objective, the one of which STATISTICS 2 derives [p(1-p)]^2.
    """
    unscaled = {"scale_rewards": "none", "loss_type": "dr_grpo"}
    sgd = {"optim": "sgd", "learning_rate": study.sgd_learning_rate}
    both = sgd | unscaled | {"learning_rate": study.sgd_unscaled_learning_rate}
    return {"dr_grpo": unscaled, "sgd": sgd, "sgd_unscaled": both}.get(trainer, {})


def grpo_config(study: Study, *, seed: int, folder: Path, trainer: str = "grpo"):
    """TRL's GRPOConfig with every field that shapes the result written out, since TRL's defaults drift between releases."""
    from trl import GRPOConfig

    batch = study.grpo_prompts_per_step * study.grpo_generations
    options = dict(
        output_dir=str(folder),
        seed=seed,
        data_seed=seed,
        **sampler_of(study).grpo_kwargs(),
        num_generations=study.grpo_generations,
        per_device_train_batch_size=batch,
        gradient_accumulation_steps=1,
        generation_batch_size=batch,
        num_iterations=1,
        max_steps=study.grpo_steps,
        shuffle_dataset=True,
        remove_unused_columns=False,
        learning_rate=study.grpo_learning_rate,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=study.grpo_warmup_steps,
        optim="adamw_torch",
        adam_beta1=0.9,
        adam_beta2=0.999,
        adam_epsilon=1e-8,
        weight_decay=0.0,
        max_grad_norm=1.0,
        beta=study.grpo_kl_beta,
        epsilon=0.2,
        epsilon_high=0.2,
        loss_type="dapo",
        scale_rewards="group",
        importance_sampling_level="token",
        mask_truncated_completions=False,
        top_entropy_quantile=1.0,
        entropy_coef=0.0,
        disable_dropout=True,
        use_cpu=True,  # the micro model is faster there, and in full precision
        bf16=False,
        activation_checkpointing=False,
        use_vllm=False,
        logging_steps=1,
        logging_first_step=True,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        log_level="error",
    )
    return GRPOConfig(**options | trainer_options(study, trainer))


def train(
    study: Study,
    cohort: pd.DataFrame,
    *,
    seed: int,
    folder: Path,
    model,
    tokenizer,
    trainer: str = "grpo",
    sampler: str = "uniform",
    look: Callable[[int, pd.DataFrame], None] | None = None,
) -> tuple[pd.DataFrame, pd.DataFrame, dict]:
    """GRPO on `cohort`, which trains `model` in place: (groups, steps, resolved config).

    `cohort` has one row a position: prompt, answer, task_id, position, verifier; a `sampler` other than uniform also needs
    correct and k, base rollouts of each. `trainer` is `grpo` or one of params.TRAINERS. After every eighth
    of the steps but the last `look(step, groups)` is called with the groups so far, the model in evaluation mode.
    """
    from datasets import Dataset
    from transformers.trainer_callback import PrinterCallback
    from trl import GRPOTrainer

    from lad_utils import trainers

    contract = sampler_of(study)
    rows = cohort.assign(prompt=[contract.text(p) for p in cohort["prompt"]])[["prompt", "answer", "task_id", "position"]]
    coin = np.random.default_rng([seed, 3]) if trainer == "random_reward" else None
    recorder = Recorder(verifier=cohort["verifier"].iloc[0], generations=study.grpo_generations, coin=coin)
    config = grpo_config(study, seed=seed, folder=folder, trainer=trainer)
    make, further = trainers.TRAINERS.get(trainer, GRPOTrainer), {}
    if sampler != "uniform":
        visits = {"prompts": study.grpo_prompts_per_step, "generations": study.grpo_generations, "steps": study.grpo_steps}
        chosen = TaskSampler(sampler, cohort["correct"], cohort["k"], gamma=study.gamma, seed=seed, **visits)
        make, further = trainers.AdaptiveSampling, {"task_sampler": chosen}
    run = make(
        model=model,
        reward_funcs=recorder,
        args=config,
        train_dataset=Dataset.from_pandas(rows, preserve_index=False),
        processing_class=tokenizer,
        **further,
    )
    if look is not None:
        every = max(study.grpo_steps // 8, 1)
        run.add_callback(trainers.Watch(lambda step: look(step, pd.DataFrame(recorder.rows)), every))
    run.remove_callback(PrinterCallback)
    run.train()
    groups = pd.DataFrame(recorder.rows)
    prompt_tokens = dict(zip(rows["task_id"], (len(ids) for ids in tokenizer(rows["prompt"].tolist()).input_ids), strict=True))
    groups["prompt_tokens"] = groups["task_id"].map(prompt_tokens) * groups["n"]
    log = pd.DataFrame([entry for entry in run.state.log_history if "loss" in entry])
    mixed = groups["reward_sum"].between(0, groups["n"], inclusive="neither")
    steps = pd.DataFrame(
        {
            "step": log["step"].astype(int),
            "loss": log["loss"],
            "grad_norm": log["grad_norm"],
            "entropy": log["entropy"],
            "mean_reward": (groups["reward_sum"] / groups["n"]).groupby(groups["step"]).mean().to_numpy(),
            "zero_variance_share": 1 - mixed.groupby(groups["step"]).mean().to_numpy(),
            "clipped_share": log["completions/clipped_ratio"],
        }
    )
    return groups, steps, config.to_dict() | {"output_dir": Path(folder).name}  # the rest of the path is the machine's
