"""The micro world's base model: tokenizer, small Llama, and pretraining on worked solutions that hold mistakes."""

from itertools import chain
from pathlib import Path

import numpy as np
import pandas as pd

from lad_utils import micro
from lad_utils.params import Study

WIDTH, LARGER_WIDTH, SMALLER_WIDTH = 128, 192, 64
SPECIAL = ("<pad>", "<bos>", "<eos>", "<unk>")


def build_tokenizer():
    """Word-level tokenizer with digits split, about 120 tokens; decoding puts numbers together again."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    text = " ".join([*micro.OPENERS, *micro.LINKS, *micro.QUESTIONS, micro.PHRASE, "begin with what is the result ?"])
    words = [w for w in text.split() if not w.startswith("{")]
    words += [
        *micro.NAMES,
        *micro.NOUNS,
        *chain(*micro.VERBS.values()),
        *chain(*micro.NUMBER_VERBS.values()),
        *micro.OPERATIONS,
        "=",
        ";",
        "####",
    ]
    words += list("0123456789")
    vocabulary = {w: i for i, w in enumerate(dict.fromkeys([*SPECIAL, *words]))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Digits(individual_digits=True)]
    )
    tokenizer.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", vocabulary["<bos>"])])
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace(Regex("^"), " "),
            decoders.Fuse(),
            decoders.Replace(Regex(r"(?<=\d) (?=\d)"), ""),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        unk_token="<unk>",
        padding_side="left",
        model_max_length=128,
        clean_up_tokenization_spaces=False,
    )


def build_model(tokenizer, *, seed: int, width: int = WIDTH, layers: int = 4):
    """An untrained Llama of about 0.9M parameters."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return LlamaForCausalLM(config)


def pretraining_text(
    rng: np.random.Generator, levels: dict[str, float], world_seed: int, *, gaps: tuple[dict, dict] | None = None
) -> tuple[str, str]:
    """One (prompt, possibly wrong solution) pair: 1 to 3 steps, 15% from the number domain, never from eval or target.

    `gaps`: shares and misuse of every verb, see `micro.verb_gaps`.
    """
    shares, misuse = gaps or (None, None)
    while True:
        n_steps = int(rng.choice([1, 2, 3], p=[0.3, 0.55, 0.15]))
        domain = "number" if rng.random() < 0.15 else "story"
        task = micro.draw_task(rng, levels=levels, n_steps=n_steps, domain=domain, shares=shares)
        if micro.split_of(task["expression"], world_seed) == "pool":
            return task["prompt"], micro.solution(task, levels, rng, misuse)


def recipe_of(study: Study) -> dict:
    """The arguments of `pretrain` that a study fixes."""
    return {
        "world_seed": study.world_seed,
        "steps": study.pretrain_steps,
        "batch_size": study.pretrain_batch_size,
        "learning_rate": study.pretrain_learning_rate,
        "pretraining": study.pretraining,
    }


def pretrain(
    folder: Path,
    *,
    world_seed: int,
    steps: int,
    batch_size: int,
    learning_rate: float,
    pretraining: str = "elicit",
    width: int = WIDTH,
    progress=None,
) -> pd.DataFrame:
    """Train the world's base model and save it (safetensors) with its tokenizer in `folder`; returns the loss a step.

    `pretraining`: text with wrong solutions (`elicit`) or with rare verbs (`gaps`), see `micro`.
    """
    rng = np.random.default_rng([world_seed, 4])
    levels, gaps, tokenizer = micro.verb_levels(world_seed), None, build_tokenizer()
    if pretraining == "gaps":
        levels, gaps = dict.fromkeys(levels, micro.GAPS_ERROR), micro.verb_gaps(world_seed)
    model = build_model(tokenizer, seed=world_seed, width=width)
    model.set_attn_implementation("eager")  # short sequences: faster than sdpa on a CPU
    losses = fit(
        model,
        tokenizer,
        lambda: [pretraining_text(rng, levels, world_seed, gaps=gaps) for _ in range(batch_size)],
        steps=steps,
        learning_rate=learning_rate,
        progress=progress,
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return pd.DataFrame({"step": range(steps), "loss": losses})


def fit(model, tokenizer, draw, *, steps: int, learning_rate: float, progress=None) -> list[float]:
    """AdamW, one-cycle rate with its peak at `learning_rate`, on the solutions of the (prompt, solution) pairs of `draw()`.

    Trains `model` in place; returns the loss (nats a token) of every step.
    """
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=learning_rate, total_steps=steps, pct_start=0.1)
    losses = []
    for step in range(steps):
        rows = [
            (tokenizer(p).input_ids, [*tokenizer(s, add_special_tokens=False).input_ids, tokenizer.eos_token_id])
            for p, s in draw()
        ]
        width = max(len(p) + len(s) for p, s in rows)
        ids = torch.full((len(rows), width), tokenizer.pad_token_id)
        labels = torch.full((len(rows), width), -100)
        for i, (p, s) in enumerate(rows):
            ids[i, : len(p) + len(s)] = torch.tensor(p + s)
            labels[i, len(p) : len(p) + len(s)] = torch.tensor(s)
        # Right padding needs no attention mask in a causal model: no real token ever looks at a pad.
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(input_ids=ids, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        if progress:
            progress(step, losses[-1])
    return losses
