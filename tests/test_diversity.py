"""Vendi against hand-worked spectra, a ten-line reference, vendi-score and its bounds; near-duplicates against planted ones."""

import subprocess
import sys
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from lad_utils import diversity
from lad_utils.diversity import distinct_fraction, near_duplicates, normalise_rows, vendi, vendi_at

ORDERS = [0.5, 1, 2, np.inf]
# n and d on both sides of n = d, entries that make no zero row
embeddings_of = st.tuples(st.integers(2, 12), st.integers(2, 12)).flatmap(
    lambda shape: arrays(
        np.float64, shape, elements=st.floats(-2, 2).map(lambda v: round(v, 3)).filter(lambda v: abs(v) > 1e-2)
    )
)


def reference(x, q=1, weights=None):
    """exp of the Renyi entropy of K_ij sqrt(w_i w_j), K the full cosine kernel in float64."""
    x = np.asarray(x, dtype=float)
    w = np.full(len(x), 1 / len(x)) if weights is None else np.asarray(weights) / np.sum(weights)
    cosine = x @ x.T / np.outer(np.sqrt((x**2).sum(axis=1)), np.sqrt((x**2).sum(axis=1)))
    p = np.linalg.eigvalsh(cosine * np.sqrt(np.outer(w, w)))
    p = p[p > 1e-12]
    if q == 1:
        return np.exp(-np.sum(p * np.log(p)))
    return 1 / p.max() if np.isinf(q) else np.sum(p**q) ** (1 / (1 - q))


@given(m=st.integers(1, 12), d=st.integers(1, 10), q=st.sampled_from(ORDERS), seed=st.integers(0, 9))
def test_vendi_of_m_copies_of_d_orthogonal_items_is_d(m, d, q, seed):  # B02, B03
    turned = np.linalg.qr(np.random.default_rng(seed).normal(size=(12, 12)))[0][:d]
    assert vendi(np.tile(np.eye(12)[:d], (m, 1)), q) == pytest.approx(d, rel=1e-9)
    assert vendi(np.tile(turned, (m, 1)), q) == pytest.approx(d, rel=1e-9)


@pytest.mark.parametrize("q", ORDERS)
@pytest.mark.parametrize("copies", [1, 256, 5000])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_copies_of_one_long_vector_count_as_one(q, copies, dtype):  # B03
    x = np.random.default_rng(0).normal(size=(1, 384)).astype(dtype)
    assert vendi(np.repeat(x, copies, axis=0), q) == pytest.approx(1, abs=1e-9)


def test_a_spectrum_of_two_halves_and_a_zero_is_two():  # B03
    assert vendi([[1, 0, 0], [0, 1, 0]]) == pytest.approx(2)
    assert [diversity._renyi(np.array([0.5, 0.5, 0, -1e-16]), q) for q in ORDERS] == pytest.approx([2] * 4)


def test_vendi_of_three_to_one_is_the_hand_worked_number_for_every_order():
    x = np.eye(2)[[0, 0, 0, 1]]  # eigenvalues 3/4 and 1/4
    entropy = -(0.75 * np.log(0.75) + 0.25 * np.log(0.25))
    expected = [(np.sqrt(0.75) + 0.5) ** 2, np.exp(entropy), 1 / (0.75**2 + 0.25**2), 4 / 3]
    assert [vendi(x, q) for q in ORDERS] == pytest.approx(expected)


def test_vendi_ignores_scale_and_sign_of_a_direction():  # B07
    assert vendi([[10, 0], [0, 10]]) == pytest.approx(2)
    assert vendi([[1, 0], [-1, 0]]) == pytest.approx(1)
    assert vendi([[3, 4]]) == pytest.approx(1)


def test_rows_a_little_off_unit_length_are_normalised_too():  # B07
    x = np.eye(2)[[0, 0, 0, 1]]
    assert vendi(x * [[1.0001], [1.0001], [1.0001], [1]]) == pytest.approx(vendi(x), rel=1e-12)


@pytest.mark.parametrize(("dtype", "sizes"), [(np.float32, [1e-30, 1, 1e30]), (np.float64, [1e-200, 1, 1e200])])
def test_rows_too_long_or_too_short_to_be_squared_are_normalised(dtype, sizes):  # B07
    rng = np.random.default_rng(0)
    x = rng.normal(size=(30, 8)).astype(dtype)
    scaled = x * rng.choice(sizes, (30, 1)).astype(dtype)
    assert vendi(scaled) == pytest.approx(vendi(x), rel=1e-6)
    assert vendi(scaled[:6]) == pytest.approx(vendi(x[:6]), rel=1e-6)
    unit = normalise_rows(scaled)
    assert np.linalg.norm(unit, axis=1) == pytest.approx(np.ones(30))
    assert not np.shares_memory(normalise_rows(unit), unit)


@pytest.mark.parametrize("rows", [3, 40])  # the kernel's side and the dual's
@pytest.mark.parametrize(("value", "found"), [(0, "zero"), (np.nan, "not finite"), (np.inf, "not finite")])
def test_rows_without_a_direction_are_refused_by_number_and_counted(rows, value, found):  # B04
    x = np.ones((rows, 4))
    x[2], x[rows - 1] = value, value
    for refused in (vendi, normalise_rows, lambda x: vendi_at(x, rows, rng=np.random.default_rng(0))):
        with pytest.raises(ValueError, match=rf"row 2 is {found} \({2 if rows > 3 else 1} such rows\)"):
            refused(x)
    with pytest.raises(ValueError, match=rf"row 2 is {found} \({2 if rows > 3 else 1} such rows\)"):
        vendi(x, chunk_rows=1)


@pytest.mark.parametrize("x", [[], [1.0, 2.0], np.ones((0, 4)), np.ones((4, 0)), [["a"]]])
def test_what_is_no_matrix_of_numbers_is_refused(x):
    with pytest.raises(ValueError, match="embeddings"):
        vendi(x)


@pytest.mark.parametrize("q", [0, -1, np.nan])
def test_orders_that_are_not_positive_are_refused(q):
    for refused in (lambda: vendi(np.eye(2), q), lambda: vendi_at(np.eye(2), 1, q, rng=np.random.default_rng(0))):
        with pytest.raises(ValueError, match="expected q > 0"):
            refused()


def test_copied_prompts_leave_vendi_alone():  # G08
    assert vendi(np.tile(np.eye(3), (100, 1))) == pytest.approx(3, rel=1e-9)
    prompts = ["Add 1 and 2.", "Name a prime.", "Halve 8."] * 100
    assert distinct_fraction(prompts) == 3 / 300
    report = near_duplicates(prompts)
    assert len(report) == 300 and report["group"].nunique() == 3 and (report["size"] == 100).all()
    assert (report["earlier"] == -1).sum() == 3 and (report["similarity"] == 1).sum() == 297


@settings(deadline=None)
@given(x=embeddings_of, data=st.data())
def test_every_order_agrees_with_the_reference_on_both_sides_of_n_equal_d(x, data):
    weights = data.draw(arrays(np.float64, len(x), elements=st.floats(0, 5)).filter(lambda w: w.sum() > 1e-3))
    for q in ORDERS:
        assert vendi(x, q, chunk_rows=3) == pytest.approx(reference(x, q), rel=1e-6)
        assert vendi(x, q, weights=weights, chunk_rows=3) == pytest.approx(reference(x, q, weights), rel=1e-5)


@settings(deadline=None)
@given(x=embeddings_of)
def test_vendi_lies_between_one_and_the_smaller_side_and_falls_with_its_order(x):
    scores = [vendi(x, q) for q in (0.1, 0.5, 0.999999, 1, 1.000001, 2, 5, 200, np.inf)]
    assert scores[-1] >= 1 - 1e-9 and scores[0] <= min(x.shape) * (1 + 1e-9)
    assert (np.diff(scores) <= 1e-7 * scores[0]).all()


@settings(deadline=None)
@given(x=embeddings_of, q=st.sampled_from(ORDERS), seed=st.integers(0, 99), copies=st.integers(2, 4))
def test_order_of_rows_and_copies_of_the_whole_set_change_nothing(x, q, seed, copies):
    expected = pytest.approx(vendi(x, q), rel=1e-6)
    assert vendi(np.random.default_rng(seed).permutation(x), q) == expected
    assert vendi(np.tile(x, (copies, 1)), q) == expected


@settings(deadline=None)
@given(n=st.integers(2, 60), d=st.integers(1, 40), share=st.floats(0.01, 1), seed=st.integers(0, 999), extreme=st.booleans())
def test_replacing_rows_moves_vendi_by_no_more_than_the_bound(n, d, share, seed, extreme):
    rng = np.random.default_rng(seed)
    x = np.ones((n, d)) if extreme else rng.normal(size=(n, d))
    m = max(1, round(share * n))
    y = x.copy()
    y[:m] = np.eye(max(n, d))[:m, :d] + 1e-9 if extreme else rng.normal(size=(m, d))
    eps = m / n
    mixing = 0.0 if m == n else -eps * np.log(eps) - (1 - eps) * np.log(1 - eps)
    moved = abs(np.log(vendi(y) / vendi(x)))
    assert moved <= eps * np.log(m) + mixing + 1e-6
    if m < n:
        assert moved <= eps * np.log(n - 1) + mixing + 1e-6


def test_the_bound_is_reached_when_copies_become_orthogonal():
    n, m = 20, 19
    y = np.tile(np.eye(n)[0], (n, 1))
    y[1:] = np.eye(n)[1:]
    eps = m / n
    assert np.log(vendi(y)) == pytest.approx(eps * np.log(m) - eps * np.log(eps) - (1 - eps) * np.log(1 - eps))


def test_weights_count_as_copies():
    x = np.random.default_rng(0).normal(size=(30, 12))
    copies = np.random.default_rng(1).integers(0, 4, 30)
    for q in ORDERS:
        assert vendi(x, q, weights=copies) == pytest.approx(vendi(np.repeat(x, copies, axis=0), q), rel=1e-9)
        assert vendi(x, q, weights=np.full(30, 0.2)) == pytest.approx(vendi(x, q), rel=1e-9)


def test_one_task_with_all_the_energy_is_one_task():
    assert vendi(np.eye(5), weights=[0, 0, 1e-300, 0, 0]) == pytest.approx(1)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1, -1, 0], "row 1 is -1"),
        ([1, 1, np.nan], "row 2 is nan"),
        ([0, 0, 0], "all weights are 0"),
        ([1, 1], r"expected \(3,\)"),
    ],
)
def test_unusable_weights_are_refused(weights, message):
    with pytest.raises(ValueError, match=message):
        vendi(np.eye(3), weights=weights)


def spread(floor, *, n, d=96, seed=0):
    """n rows whose covariance falls geometrically from 1 to `floor` (0: rank 8), float32."""
    rng = np.random.default_rng(seed)
    scales = np.r_[np.ones(8), np.zeros(d - 8)] if floor == 0 else np.geomspace(1, floor, d) ** 0.5
    return ((rng.normal(size=(n, d)) * scales) @ np.linalg.qr(rng.normal(size=(d, d)))[0]).astype(np.float32)


@pytest.mark.parametrize("q", ORDERS)
@pytest.mark.parametrize("floor", [1, 1e-3, 1e-5, 1e-6, 1e-7, 1e-9, 0])
def test_float32_rows_score_as_in_float64_to_one_in_a_million(floor, q):
    x = np.tile(spread(floor, n=2000), (4, 1))  # copies repeat their rounding, which then does not average out
    for rows in (x, x / np.linalg.norm(x, axis=1, keepdims=True)):
        assert vendi(rows, q, chunk_rows=1000) == pytest.approx(vendi(rows.astype(np.float64), q), rel=1e-6)


def test_float32_rows_take_float64_products_only_where_it_matters(monkeypatch):
    used = []
    dual = diversity._dual
    monkeypatch.setattr(diversity, "_dual", lambda *a: used.append(a[3]) or dual(*a))
    vendi(spread(1e-3, n=2000))
    assert used == [np.float32]
    vendi(spread(0, n=2000))
    assert used == [np.float32, np.float32, np.float64]


@pytest.mark.parametrize("q", ORDERS)
def test_chunks_and_files_change_nothing(q, tmp_path):
    x = np.random.default_rng(0).normal(size=(1000, 20)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    for chunk in (1, 7, 999, 5000):
        assert vendi(mapped, q, chunk_rows=chunk) == pytest.approx(vendi(x.astype(float), q), rel=1e-6)
    assert vendi(np.asfortranarray(x), q) == pytest.approx(vendi(x, q), rel=1e-6)
    assert vendi(x[::2, ::3], q) == pytest.approx(reference(x[::2, ::3], q), rel=1e-6)


def test_a_large_file_is_scored_without_being_copied(tmp_path):
    code = (
        "import numpy as np, resource, sys\n"
        "from lad_utils.diversity import vendi\n"
        "x = np.lib.format.open_memmap(sys.argv[1], 'w+', np.float32, (300_000, 64))\n"
        "x[:] = np.random.default_rng(0).standard_normal(x.shape, np.float32)\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == 'darwin' else 1024)\n"
        "vendi(x[:1000]); before = peak(); score = vendi(x)\n"
        "print(score, (peak() - before) / x.nbytes)"
    )
    found = subprocess.run([sys.executable, "-c", code, str(tmp_path / "x.npy")], capture_output=True, text=True, check=True)
    score, share = map(float, found.stdout.split())
    assert 63 < score <= 64 and share < 0.2


@pytest.mark.parametrize("n", [64, 4096])
def test_vendi_score_agrees(n):  # B02: its sparse path does not, its dual does
    peer = pytest.importorskip("vendi_score.vendi")
    x = np.random.default_rng(0).normal(size=(n, 32))
    for q in (0.5, 1, 2):
        assert vendi(x, q) == pytest.approx(peer.score_dual(x, q), rel=1e-9)
    assert vendi(x.astype(np.float32)) == pytest.approx(peer.score_dual(x.astype(np.float32)), rel=1e-4)


def test_resampling_with_replacement_lowers_vendi():  # B06
    assert vendi(np.eye(4)[[0, 0, 1, 2]]) == pytest.approx(2.8284, abs=1e-4)
    assert vendi_at(np.eye(4), 4, rng=np.random.default_rng(0), draws=5) == pytest.approx((4, 0))


def test_vendi_at_a_smaller_n_is_that_of_subsets():
    x = np.random.default_rng(0).normal(size=(300, 8))
    mean, sd = vendi_at(x, 20, 2, rng=np.random.default_rng(1), draws=200)
    rng = np.random.default_rng(2)
    drawn = [vendi(x[rng.permutation(300)[:20]], 2) for _ in range(200)]
    assert mean == pytest.approx(np.mean(drawn), abs=4 * np.std(drawn) / np.sqrt(100))
    assert sd == pytest.approx(np.std(drawn), rel=0.3)
    means = [vendi_at(x, n, rng=np.random.default_rng(1))[0] for n in (2, 4, 8, 16, 300)]
    assert (np.diff(means) > 0).all() and means[-1] == pytest.approx(vendi(x))


def test_vendi_at_of_half_the_copies_of_two_items_is_the_mean_over_all_subsets():
    # pairs of rows (a, a, b, b): 2 of 6 are equal and score 1, 4 score 2
    mean, _ = vendi_at(np.eye(2)[[0, 0, 1, 1]], 2, rng=np.random.default_rng(0), draws=2000)
    assert mean == pytest.approx(5 / 3, abs=0.05)
    pairs = {vendi_at(np.eye(2)[[0, 0, 1, 1]], 2, rng=np.random.default_rng(seed), draws=2) for seed in range(30)}
    rounded = {(round(mean, 6), round(sd, 6)) for mean, sd in pairs}
    assert {(1.5, round(0.5**0.5, 6)), (2, 0)} <= rounded  # of 1 and 2: mean 1.5, standard deviation 1/sqrt(2)


@pytest.mark.parametrize(
    ("options", "message"), [({"n": 5}, "expected 1 to 4"), ({"n": 0}, "expected 1 to 4"), ({"n": 2, "draws": 1}, "draws=1")]
)
def test_subsets_that_cannot_be_drawn_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        vendi_at(np.eye(4), **options, rng=np.random.default_rng(0))


def test_case_and_spacing_do_not_make_a_prompt_distinct_and_operators_do():
    assert distinct_fraction(["Tom has 3 apples.", "TOM HAS 3 APPLES.", "tom has  3 apples.\n", "Tom has 4 apples."]) == 0.5
    assert distinct_fraction(["3 + 4", "3 - 4", "1 + 27", "12 + 7", "3.5", "35"]) == 1
    assert distinct_fraction(["∑", "∏", "∑"]) == pytest.approx(2 / 3)


def test_an_empty_list_or_what_is_no_text_is_refused():
    with pytest.raises(ValueError, match="no prompts"):
        distinct_fraction([])
    with pytest.raises(TypeError, match="row 1 is NoneType"):
        distinct_fraction(["a", None])
    with pytest.raises(ValueError, match=r"threshold=0\.2"):
        near_duplicates(["a"], threshold=0.2)
    assert len(near_duplicates([])) == 0


@cache
def pieces(text):
    text = "".join(c for c in text.lower() if c.isalnum())
    return {text[i : i + 5] for i in range(max(1, len(text) - 4))}


def jaccard(one, other):
    return len(pieces(one) & pieces(other)) / len(pieces(one) | pieces(other))


WORDS = [
    a + b + c
    for a in ("ba", "ko", "ri", "tel", "mu")
    for b in ("na", "sto", "ve", "lin")
    for c in ("p", "mer", "ta", "do", "sk")
]


def story(rng, words=40):
    return " ".join(rng.choice(WORDS, words)) + f" {rng.integers(10, 99)} {rng.integers(10, 99)}?"


def test_planted_near_duplicates_are_found_with_their_exact_similarity():
    rng = np.random.default_rng(0)
    prompts = [story(rng) for _ in range(400)]
    again = [p.upper().replace(" ", ", ") for p in prompts[:50]]
    number = [p[:-3] + str(rng.integers(10, 99)) + "?" for p in prompts[50:100]]
    report = near_duplicates([*prompts, *again, *number])
    assert (report["earlier"][:400] == -1).all() and (report["similarity"][:400] == 0).all()
    assert report["earlier"][400:].tolist() == list(range(100))
    assert (report["similarity"][400:450] == 1).all()
    expected = [jaccard(a, b) for a, b in zip(prompts[50:100], number)]
    assert report["similarity"][450:].tolist() == pytest.approx(expected) and min(expected) > 0.9
    assert report["group"][400:].tolist() == list(range(100)) and (report["size"][:100] == 2).all()
    assert (report["size"][100:400] == 1).all()


def test_the_most_similar_earlier_row_is_named_not_the_first():
    rng = np.random.default_rng(3)
    words = rng.choice(WORDS, 60).tolist()
    far, near, last = list(words), list(words), list(words)
    far[5], far[25], far[45], near[15] = "uvwxyz", "zyxwvu", "wuvzyx", "xyzuvw"
    report = near_duplicates([" ".join(far), " ".join(near), " ".join(last)])
    assert report["earlier"].tolist() == [-1, 0, 1] and report["group"].tolist() == [0, 0, 0]
    assert report["similarity"][2] == pytest.approx(jaccard(" ".join(near), " ".join(last)))


def test_other_numbers_in_one_template_are_near_duplicates_though_other_tasks():
    template = (
        "{} has {} apples and gives {} of them to a friend. How many apples are left in the basket at the end of the day?"
    )
    prompts = [template.format("Tom", a, b) for a, b in ((3, 1), (4, 1), (14, 12), (88, 3))]
    prompts += ["What is the area of a circle whose radius is four times as long as the side of a unit square?"]
    report = near_duplicates(prompts)
    assert report["group"].tolist() == [0, 0, 0, 0, 4] and report["size"].tolist() == [4, 4, 4, 4, 1]
    assert len(report) == len(prompts) and distinct_fraction(prompts) == 1  # reported, never removed


@given(before=st.integers(5, 60), after=st.integers(5, 60))
def test_one_changed_digit_leaves_at_least_the_stated_similarity(before, after):
    letters = [chr(0x4E00 + i) for i in range(130)]  # all different, so no piece occurs twice
    one, other = ("".join(letters[:before]) + digit + "".join(letters[before : before + after]) for digit in "34")
    size = before + after + 1
    assert jaccard(one, other) >= (size - 9) / (size + 1) - 1e-12
    if min(before, after) >= 4:
        assert jaccard(one, other) == pytest.approx((size - 9) / (size + 1))


def test_no_report_is_false_and_few_are_missed_against_all_pairs():
    rng = np.random.default_rng(1)
    prompts = [story(rng, words=20) for _ in range(150)]
    for source in list(prompts):
        words = source.split()
        for at in rng.choice(20, rng.integers(1, 4), replace=False):
            words[at] = rng.choice(WORDS)
        prompts.append(" ".join(words))
    best = np.array([max([0, *(jaccard(p, q) for q in prompts[:i])]) for i, p in enumerate(prompts)])
    for threshold in (0.6, 0.7, 0.8):
        report = near_duplicates(prompts, threshold=threshold)
        found, true = (report["earlier"] >= 0).to_numpy(), best >= threshold
        assert not (found & ~true).any()
        assert 10 < true.sum() < 200 and (found & true).sum() >= 0.9 * true.sum()
        pairs = report[found]
        assert (pairs["earlier"] < pairs.index).all()
        exact = [jaccard(prompts[i], prompts[j]) for i, j in zip(pairs.index, pairs["earlier"])]
        assert pairs["similarity"].tolist() == pytest.approx(exact)


@settings(deadline=None)
@given(
    st.lists(
        st.one_of(st.text(max_size=12), st.sampled_from(["", "?", "7", "a b", "A-B", "\ud800", "\0", "日本語の問題"])),
        max_size=12,
    )
)
def test_any_text_gets_a_consistent_report(prompts):
    report = near_duplicates(prompts)
    assert len(report) == len(prompts)
    for row, (group, size, earlier, similarity) in enumerate(report.itertuples(index=False)):
        assert size == (report["group"] == group).sum() and group <= row and report["group"][group] == group
        assert (earlier == -1 and similarity == 0) or (
            earlier < row and similarity >= 0.7 and report["group"][earlier] == group
        )


def test_a_crowded_template_is_reported_without_comparing_all_pairs():
    rng = np.random.default_rng(2)
    head = "A farmer who lives by the river counts the sheep in the field before the rain starts and finds that there are "
    prompts = [f"{head}{a} of them, sells {b}." for a, b in rng.integers(10, 10_000, (3000, 2))]
    report = near_duplicates(prompts)
    assert (report["earlier"] >= 0).mean() > 0.99 and report["size"].max() > 2900
    assert len(diversity._candidates(diversity._signatures([p.encode() for p in prompts]))) <= 3000 * diversity.CANDIDATES
