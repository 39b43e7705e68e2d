"""Effective diversity of a task set: the Vendi score at any size, distinct prompts, near-duplicates."""

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import pandas as pd
from scipy.sparse import coo_array, csr_array
from scipy.sparse.csgraph import connected_components
from scipy.special import logsumexp

from lad_utils.tasks import fold_prompt, normalise_prompt

CHUNK_ROWS = 8192  # large enough that the matrix product dominates, small enough that a chunk is tens of megabytes
DROPPED = 1e-12  # eigenvalues below this are rounding
FLOAT32_FLOOR = 2.5e-7  # eigenvalues below this can be rounding of float32 products
FLOAT32_SLACK = 5e-7  # so such eigenvalues may move the score by no more than this, relatively
SHINGLE = 5  # bytes; with a row number above them they fit into 64 bits
BANDS, BAND = 24, 5  # a pair of similarity s shares a band with probability 1 - (1 - s^5)^24
NEIGHBOURS = 6  # earlier members of a band's bucket that a text is compared with
CANDIDATES = 8  # earlier texts a text is verified against, the most alike by signature
BATCH_BYTES = 2**19  # text shingled at once


def _unit_rows(chunk: np.ndarray, weights: np.ndarray | None, out: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows sqrt(weight) x / |x| of `chunk` (in `out`, or `chunk` itself where nothing is to do); rows without a direction."""
    chunk = chunk.astype(out.dtype, copy=False)
    limits = np.finfo(out.dtype)
    with np.errstate(all="ignore"):
        squares = np.vecdot(chunk, chunk)
        if weights is None and (np.abs(squares - 1) <= 4 * limits.eps).all():  # unit but for rounding, as embedders give them
            return chunk, np.empty(0, int)
        odd = ~((squares > limits.tiny / limits.eps) & (squares <= limits.max))
        if odd.any():  # zero, not finite, or of a size whose square is not: scaled first, the former two become NaN
            chunk = chunk.astype(np.float64)
            chunk[odd] /= np.abs(chunk[odd]).max(axis=1, keepdims=True)
            squares = np.vecdot(chunk, chunk)
        scale = np.sqrt((1 if weights is None else weights) / squares).astype(chunk.dtype, copy=False)
        np.multiply(chunk, scale[:, None], out=out, casting="same_kind")
    return out, np.flatnonzero(~np.isfinite(squares))


def _refuse(x: np.ndarray, bad: np.ndarray) -> None:
    if bad.size:
        found = "not finite" if np.any(x[bad[0]]) else "zero"
        raise ValueError(f"embeddings: row {bad[0]} is {found} ({bad.size} such rows); remove it or embed it again")


def _matrix(embeddings) -> np.ndarray:
    x = np.asarray(embeddings)
    if x.ndim != 2 or 0 in x.shape:
        raise ValueError(f"embeddings: shape {x.shape}, expected (n, d) with n >= 1 and d >= 1")
    if x.dtype.kind not in "fiub":
        raise ValueError(f"embeddings: found {x.dtype} entries, expected real numbers")
    return x


def normalise_rows(embeddings) -> np.ndarray:
    """Unit rows, float64, shape (n, d); a zero or non-finite row is an error that names it."""
    unit, bad = _unit_rows(x := _matrix(embeddings), None, np.empty(x.shape))
    _refuse(x, bad)
    return np.array(unit)


def _kernel(x: np.ndarray, weights: np.ndarray | None, rows: np.ndarray | None, chunk: int) -> np.ndarray:
    """n x n matrix K_ij sqrt(w_i w_j), K the cosine kernel (of `rows` alone, if given), summed over columns in float64."""
    part = x if rows is None else x[rows]
    kernel = np.zeros((len(part), len(part)))
    with np.errstate(all="ignore"):
        largest = np.maximum(part.max(axis=1), -part.min(axis=1).astype(np.float64))[:, None]
        for start in range(0, x.shape[1], chunk):
            block = part[:, start : start + chunk] / largest
            kernel += block @ block.T
    norms = np.sqrt(np.diagonal(kernel))
    bad = np.flatnonzero(~np.isfinite(norms))
    _refuse(x, bad if rows is None else rows[bad])
    scale = (1 if weights is None else np.sqrt(weights)) / norms
    return kernel * np.outer(scale, scale)


def _dual(x: np.ndarray, weights: np.ndarray | None, rows: np.ndarray | None, dtype, chunk: int) -> np.ndarray:
    """d x d matrix X'WX of unit rows (of `rows` alone, if given): products in `dtype`, summed over chunks in float64."""
    n, d = x.shape if rows is None else (len(rows), x.shape[1])
    total, product, buffer = np.zeros((d, d)), np.empty((d, d), dtype), np.empty((min(n, chunk), d), dtype)
    bad = []
    for start in range(0, n, chunk):
        part = slice(start, min(start + chunk, n))
        some, weight = x[part if rows is None else rows[part]], None if weights is None else weights[part]
        unit, found = _unit_rows(some, weight, buffer[: part.stop - start])
        bad.extend(found + start if rows is None else rows[found + start])
        if not bad:  # a bad row ends in an error, but is counted with all others first
            total += np.matmul(unit.T, unit, out=product)
    _refuse(x, np.array(bad, dtype=int))
    return total


def _renyi(eigenvalues: np.ndarray, q: float, floor: float = DROPPED) -> float:
    """exp of the Renyi entropy of order q of the eigenvalues above `floor`, which are made to sum to 1."""
    p = eigenvalues[eigenvalues > floor]
    p = p / p.sum()
    if np.isinf(q):
        return float(1 / p.max())
    if abs(q - 1) < 1e-8:
        return float(np.exp(-np.sum(p * np.log(p))))
    return float(np.exp(logsumexp(q * np.log(p)) / (1 - q)))


def _score(x: np.ndarray, q: float, weights: np.ndarray | None, rows: np.ndarray | None, chunk: int = CHUNK_ROWS) -> float:
    if not q > 0:
        raise ValueError(f"vendi: order q={q}, expected q > 0 (may be inf)")
    if (len(x) if rows is None else len(rows)) <= x.shape[1]:
        kernel = _kernel(x, weights, rows, chunk)
        return _renyi(np.linalg.eigvalsh(kernel) / np.trace(kernel), q)
    for dtype in (np.float32, np.float64) if x.dtype in (np.float16, np.float32) else (np.float64,):
        dual = _dual(x, weights, rows, dtype, chunk)
        eigenvalues = np.linalg.eigvalsh(dual) / np.trace(dual)
        score = _renyi(eigenvalues, q)
        if dtype is np.float32 and abs(_renyi(eigenvalues, q, FLOAT32_FLOOR) / score - 1) <= FLOAT32_SLACK:
            break  # what float32 cannot resolve does not matter here; else once more in float64
    return score


def vendi(embeddings, q: float = 1, *, weights=None, chunk_rows: int = CHUNK_ROWS) -> float:
    """Vendi score of order q: exp of the Renyi entropy of the eigenvalues of K/n, K the cosine kernel; in [1, min(n, d)].

    `embeddings` is (n, d), float32 or float64, also an np.memmap; rows are normalised, a zero or non-finite row is an
    error that names it. q > 0, may be inf; the score falls with q. With `weights` (n,), >= 0 (say, energies), K/n becomes
    K_ij sqrt(w_i w_j) with w summing to 1. Friedman and Dieng 2023, eq. 2; orders q after Pasarkar and Dieng 2023.

    Solved in float64: the n x n kernel if n <= d, else the d x d dual X'WX, summed over chunks of `chunk_rows` rows,
    so nothing of the size of `embeddings` is made. Products of float32 rows are float32 where the eigenvalues that float32
    cannot resolve change the score by under 5e-7; a set of so low a rank that they do takes a second pass, in float64.
    Eigenvalues below 1e-12 are dropped. The score depends on n: compare sets at equal n (`vendi_at`). Replacing m of n rows
    moves it (q=1) by a factor within exp(+-[eps ln m + h(eps)]), eps = m/n, h the binary entropy: by concavity of entropy.
    """
    x = _matrix(embeddings)
    return _score(x, q, None if weights is None else _weights(weights, len(x)), None, chunk_rows)


def _weights(weights, n: int) -> np.ndarray:
    w = np.asarray(weights, dtype=np.float64)
    if w.shape != (n,):
        raise ValueError(f"vendi: weights of shape {w.shape}, expected ({n},), one an embedding")
    bad = np.flatnonzero(~(np.isfinite(w) & (w >= 0)))
    if bad.size:
        raise ValueError(f"vendi: weight of row {bad[0]} is {w[bad[0]]} ({bad.size} such rows), expected a finite number >= 0")
    if not w.any():
        raise ValueError("vendi: all weights are 0, expected a positive total")
    return w / w.max()


def vendi_at(embeddings, n: int, q: float = 1, *, rng: np.random.Generator, draws: int = 20) -> tuple[float, float]:
    """(mean, standard deviation) of the Vendi score of `draws` random subsets of n rows: sets of unequal size, matched.

    Subsets are drawn without replacement. A bootstrap would repeat rows, and repeats sit below: of four orthogonal items,
    four draws with replacement that hit one twice score 2.83, not 4, so such an interval need not hold the estimate.
    """
    x = _matrix(embeddings)
    if not 1 <= n <= len(x):
        raise ValueError(f"vendi_at: n={n}, expected 1 to {len(x)}, the rows there are")
    if draws < 2:
        raise ValueError(f"vendi_at: draws={draws}, expected at least 2 for a standard deviation")
    scores = [_score(x, q, None, np.sort(rng.choice(len(x), n, replace=False))) for _ in range(draws)]
    return float(np.mean(scores)), float(np.std(scores, ddof=1))


def _texts(prompts: Iterable[str], reduced: Callable[[str], str]) -> Iterator[str]:
    """`reduced` prompts; one of which nothing is left stands as it is."""
    for row, prompt in enumerate(prompts):
        if not isinstance(prompt, str):
            raise TypeError(f"prompts: row {row} is {type(prompt).__name__}, expected str")
        yield reduced(prompt) or prompt


def distinct_fraction(prompts: Sequence[str]) -> float:
    """Share of distinct texts among `prompts`, in (0, 1]: case and spacing do not tell prompts apart, symbols do."""
    if len(prompts) == 0:
        raise ValueError("distinct_fraction: no prompts")
    return len(set(_texts(prompts, fold_prompt))) / len(prompts)


def _batches(sizes: np.ndarray | list[int]) -> Iterator[slice]:
    """Slices of items whose sizes add up to about BATCH_BYTES."""
    cuts = np.flatnonzero(np.diff(np.cumsum(sizes) // BATCH_BYTES)) + 1
    for start, stop in zip([0, *cuts], [*cuts, len(sizes)], strict=True):
        yield slice(int(start), int(stop))


def _shingles(texts: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """SHINGLE-byte pieces of every text, one text after the other, int64; and how many each has, shape (len(texts),).

    A text shorter than a shingle is one piece, filled up with zero bytes.
    """
    gap = b"\0" * (SHINGLE - 1)
    joined = np.frombuffer(gap.join(texts) + gap + b"\0", np.uint8)
    packed = np.zeros(len(joined) - len(gap), np.int64)
    for k in range(SHINGLE):
        packed = packed << 8 | joined[k : len(packed) + k]
    lengths = np.array([len(text) for text in texts], dtype=np.int64)
    counts = np.maximum(lengths - len(gap), 1)
    first = np.cumsum(lengths + len(gap)) - lengths - len(gap)  # where each text starts in `joined`
    return packed[np.arange(counts.sum()) + np.repeat(first - np.cumsum(counts) + counts, counts)], counts


def _signatures(texts: list[bytes]) -> np.ndarray:
    """MinHash signatures (Broder 1997) of BANDS * BAND values, 8 bits of each (Li and Koenig 2010), shape (n, 120), uint8."""
    multipliers = np.random.SeedSequence(0).generate_state(BANDS * BAND) | np.uint32(1)
    out = np.empty((len(texts), len(multipliers)), np.uint8)
    for batch in _batches([len(text) for text in texts]):
        shingles, counts = _shingles(texts[batch])
        starts = np.cumsum(counts) - counts
        mixed = shingles.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        mixed = ((mixed ^ mixed >> 32) * np.uint64(0xD6E8FEB86659FD93) >> 32).astype(np.uint32)
        for j, multiplier in enumerate(multipliers):
            least = np.minimum.reduceat(mixed * multiplier, starts)
            out[batch, j] = least * np.uint32(0x9E3779B1) >> 24
    return out


def _distinct(values: np.ndarray) -> np.ndarray:
    """Sorted distinct values. (np.unique hashes integers first, which is many times slower on packed ones.)"""
    values = np.sort(values)
    return values[np.concatenate([[True], values[1:] != values[:-1]])[: len(values)]]


def _candidates(signatures: np.ndarray) -> np.ndarray:
    """Pairs to verify, shape (m, 2): a text and an earlier one that shares a band, the CANDIDATES most alike by signature.

    Each band sorts the texts by its own values and then by three more, so that within a crowded bucket neighbours agree
    further than others (as in an LSH forest, Bawa et al. 2005); a text meets the NEIGHBOURS next to it, never all.
    """
    kept = np.empty(0, np.uint64)  # text << 36 | disagreements << 28 | earlier text: sorted, the most alike come first
    for band in range(BANDS):
        columns = np.arange(band * BAND, band * BAND + 8) % signatures.shape[1]
        keys = np.ascontiguousarray(signatures[:, columns]).view(">u8").ravel().astype(np.uint64)
        order = np.argsort(keys, kind="stable")
        bucket = keys[order] >> np.uint64(8 * (8 - BAND))
        for lag in range(1, NEIGHBOURS + 1):
            at = np.flatnonzero(bucket[lag:] == bucket[:-lag])
            one, other, differ = order[at], order[at + lag], np.empty(len(at), np.int64)
            for part in _batches(np.full(len(at), signatures.shape[1])):
                differ[part] = np.count_nonzero(signatures[one[part]] != signatures[other[part]], axis=1)
            codes = np.maximum(one, other) << 36 | differ << 28 | np.minimum(one, other)
            kept = np.concatenate([kept, codes.astype(np.uint64)])
        kept = _distinct(kept)
        text = kept >> np.uint64(36)
        rank = np.arange(len(text)) - np.searchsorted(text, text)
        kept = kept[rank < CANDIDATES]
    return np.column_stack([kept >> np.uint64(36), kept & np.uint64(2**28 - 1)]).astype(np.int64)


def _similarities(texts: list[bytes], pairs: np.ndarray) -> np.ndarray:
    """Exact Jaccard similarity of the shingle sets of every pair, shape (m,)."""
    out, lengths = np.empty(len(pairs)), np.array([len(text) for text in texts], dtype=np.int64)
    for batch in _batches(lengths[pairs].sum(axis=1)):
        some, where = np.unique(pairs[batch], return_inverse=True)
        shingles, counts = _shingles([texts[i] for i in some])
        keys = _distinct(np.repeat(np.arange(len(some)), counts) << 8 * SHINGLE | shingles)
        bounds = np.searchsorted(keys, np.arange(len(some) + 1) << 8 * SHINGLE)
        pieces = keys & (1 << 8 * SHINGLE) - 1
        sets = csr_array((np.ones(len(pieces), np.int8), pieces, bounds), shape=(len(some), 1 << 8 * SHINGLE))
        (left, right), sizes = where.reshape(-1, 2).T, np.diff(bounds)
        common = np.diff(sets[left].multiply(sets[right]).indptr)
        out[batch] = common / (sizes[left] + sizes[right] - common)
    return out


def near_duplicates(prompts: Sequence[str], *, threshold: float = 0.7) -> pd.DataFrame:
    """Prompts that say nearly the same, one row a prompt in the order given; a report, never a reason to remove a task.

    Columns: `group`, the number of the first row of its group; `size`, the rows of that group; `earlier`, the most similar
    earlier row found, and `similarity` to it (-1 and 0.0 where none reaches `threshold`). Similarity is the Jaccard index of
    the sets of 5-byte pieces of the texts' letters and digits in lower case, and exact for every reported row: no report
    is false. 1.0 means equal letters and digits, so "3 + 4" and "3 - 4" are alike here, and two for
    distinct_fraction. Groups join rows that a chain of such pairs connects.

    It judges wording alone: "Tom has 3 apples ..." and "Tom has 4 apples ..." are two tasks and near-duplicates in text. One
    changed digit in a text of L letters and digits leaves at least (L-9)/(L+1). Needs no embedder: equal texts are found
    first, then MinHash with bands finds a pair of similarity s with probability 1 - (1 - s^5)^24 (0.99 at 0.7) unless its
    bucket is crowded (one template a thousand times over). Time grows as n log n, memory by about 1 KB a prompt.
    """
    if not 0.5 <= threshold <= 1:
        raise ValueError(f"near_duplicates: threshold={threshold}, expected 0.5 to 1; below, bands miss most pairs")
    number: dict[bytes, int] = {}
    text = np.array(
        [number.setdefault(t.encode("utf-8", "surrogatepass"), len(number)) for t in _texts(prompts, normalise_prompt)],
        dtype=int,
    )
    texts, first = list(number), np.unique(text, return_index=True)[1]  # texts are numbered in the order of their first rows
    pairs = _candidates(_signatures(texts))
    similarity = _similarities(texts, pairs)
    pairs, similarity = pairs[similarity >= threshold], similarity[similarity >= threshold]
    best = np.lexsort((pairs[:, 1], -similarity, pairs[:, 0]))
    best = best[np.unique(pairs[best, 0], return_index=True)[1]]
    copy = first[text] != np.arange(len(text))
    earlier, nearest, row = np.where(copy, first[text], -1), copy.astype(float), first[pairs[best, 0]]
    earlier[row], nearest[row] = first[pairs[best, 1]], similarity[best]
    links = coo_array((np.ones(len(pairs), np.int8), (pairs[:, 0], pairs[:, 1])), shape=(len(texts), len(texts)))
    label = connected_components(links, directed=False)[1] if texts else text
    leader = first[np.unique(label, return_index=True)[1]]  # the first text of a component holds its first row
    size = np.bincount(label[text])[label[text]]
    return pd.DataFrame({"group": leader[label[text]], "size": size, "earlier": earlier, "similarity": nearest})
