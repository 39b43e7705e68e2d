"""The micro world is what makes the study mean something: these are its promises."""

import json

import numpy as np
import pandas as pd
import pytest

from lad_utils import base_model, micro
from lad_utils.cohorts import BANDS
from lad_utils.model_baselines import solution_log_likelihood
from lad_utils.oracle import count_correct
from lad_utils.params import REPOSITORY, load_study
from lad_utils.rollouts import load_model, sampler_of, transformers_engine
from lad_utils.runs import REFERENCE, read_table
from lad_utils.verifier import verify

STUDY = load_study("micro-reference")
WORLD = STUDY.world_seed
ELICIT_TEXT = (  # the first pair that the shipped base model was trained on
    "begin with 4 . join 9 . after that multiply 3 . after that append 1 . what is the result ?",
    "4 + 9 = 13 ; 13 * 3 = 39 ; 39 + 1 = 40 ; #### 40",
)


@pytest.fixture(scope="module")
def pool():
    tasks = read_table(REFERENCE / "tasks.parquet")
    return tasks[tasks.task_id.str.startswith("pool-")]


@pytest.fixture(scope="module")
def base():
    return load_model(REPOSITORY / STUDY.base_model)


def test_pool_evaluation_and_target_share_no_expression():
    sets = [set(micro.make_tasks(400, split=s, world_seed=WORLD).expression) for s in ("pool", "eval", "target")]
    assert not sets[0] & sets[1] and not sets[0] & sets[2] and not sets[1] & sets[2]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((12, "+*", [7, 3]), (7, "+*", [12, 3])),
        ((12, "+-", [7, 3]), (12, "-+", [3, 7])),
        ((4, "*+", [3, 2]), (3, "*+", [4, 2])),
        ((9, "--", [1, 2]), (9, "--", [2, 1])),
        ((2, "**", [3, 4]), (4, "**", [2, 3])),
    ],
)
def test_an_expression_is_canonical_up_to_the_order_of_terms_and_factors(one, other):
    assert micro.expression_of(*one) == micro.expression_of(*other)


def test_expressions_of_different_calculations_differ():
    texts = [micro.expression_of(*t) for t in ((4, "-*", [3, 2]), (4, "*-", [2, 3]), (3, "-*", [4, 2]), (4, "+*", [3, 2]))]
    assert texts == ["(4-3)*2", "2*4-3", "(3-4)*2", "(3+4)*2"]


def test_the_pool_lacks_the_held_out_skill_patterns_and_the_evaluation_has_them():
    pool, questions = (micro.make_tasks(400, split=s, world_seed=WORLD) for s in ("pool", "eval"))
    assert not pool.operations.isin(micro.HELD_OUT_PATTERNS).any()
    assert questions.operations.isin(micro.HELD_OUT_PATTERNS).mean() > 0.1


def test_worked_solutions_verify_and_their_expressions_evaluate_to_the_answer():
    rng = np.random.default_rng(0)
    for _ in range(300):
        task = micro.draw_task(rng, levels=micro.verb_levels(1), n_steps=int(rng.integers(1, 4)))
        value = task["start"]
        for op, b in zip(task["operations"], task["operands"], strict=True):
            value = {"+": value + b, "-": value - b, "*": value * b}[op]
            assert 1 <= value <= micro.LARGEST
        assert verify(micro.solution(task), str(value))


def test_corruption_follows_the_verbs_level():
    levels, rng = micro.verb_levels(3), np.random.default_rng(0)
    for verb in micro.VERBS["+"]:
        task = {"start": 5, "operations": "+", "operands": [7], "verbs": verb, "domain": "story"}
        wrong = np.mean([not verify(micro.solution(task, levels, rng), "12") for _ in range(400)])
        assert wrong == pytest.approx(levels[verb], abs=0.08)


def test_worlds_differ_and_a_world_is_reproducible():
    one, again, other = (micro.make_tasks(20, split="pool", world_seed=s) for s in (WORLD, WORLD, 101))
    pd.testing.assert_frame_equal(one, again)
    assert (one.prompt != other.prompt).any() and micro.verb_levels(WORLD) != micro.verb_levels(101)


def test_paraphrases_are_distinct_wordings_of_one_expression():
    task = micro.make_tasks(1, split="pool", world_seed=WORLD).iloc[0]
    wordings = micro.paraphrases(task, 256, rng=np.random.default_rng(0), prefix="x")
    assert wordings.prompt.nunique() == 256
    assert (wordings.expression == task.expression).all() and (wordings.verbs == task.verbs).all()


def test_guessable_tasks_all_have_the_same_answer():
    assert set(micro.same_answer_tasks(50, world_seed=WORLD, prefix="x").answer) == {"24"}


def test_the_tokenizer_knows_every_word_and_puts_numbers_together_again():
    tokenizer = base_model.build_tokenizer()
    rng = np.random.default_rng(0)
    for domain in ("story", "number"):
        for _ in range(200):
            task = micro.draw_task(rng, levels=micro.verb_levels(1), n_steps=2, domain=domain)
            for text in (task["prompt"], micro.solution(task)):
                ids = tokenizer(text).input_ids
                assert tokenizer.unk_token_id not in ids and ids[0] == tokenizer.bos_token_id
                assert tokenizer.decode(ids, skip_special_tokens=True) == text
    assert len({tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.bos_token_id}) == 3  # D07


def test_the_shipped_base_is_small_safetensors_and_says_its_accuracy(base):
    model, tokenizer = base
    assert model.num_parameters() < 1_000_000
    files = {p.name for p in (REPOSITORY / STUDY.base_model).iterdir()}
    assert "model.safetensors" in files and not any(name.endswith((".bin", ".pt", ".pkl")) for name in files)
    questions = micro.make_tasks(200, split="eval", world_seed=WORLD)
    engine = transformers_engine(model, tokenizer, sampler_of(STUDY))
    sampled = count_correct(engine(questions, k=8, seed=1), questions)
    greedy = count_correct(engine(questions, k=1, seed=1, greedy=True), questions)
    assert 0.3 <= (sampled.c / sampled.n).mean() <= 0.5
    assert (greedy.c / greedy.n).mean() > (sampled.c / sampled.n).mean()


def test_greedy_and_sampled_accuracy_are_reported():
    names = {e["name"] for e in json.loads((REFERENCE / "results.json").read_text())["entries"]}
    assert {"sampled.base_accuracy", "greedy.base_accuracy"} <= names


def test_half_of_the_pool_is_of_middling_difficulty_and_the_outer_bands_fill(pool):
    assert len(pool) == STUDY.pool_size and (pool.k >= 16).all()
    assert pool.pass_rate.between(0.1, 0.7).mean() >= 0.5
    assert (pool.pass_rate < 0.08).sum() >= STUDY.cohort_size
    assert (pool.pass_rate > 0.85).sum() >= STUDY.cohort_size
    for low, high in BANDS.values():
        assert ((pool.pass_rate >= low) & (pool.pass_rate < high)).sum() >= STUDY.cohort_size


def test_operations_explain_under_a_tenth_of_the_variance_in_difficulty(pool):
    assert pool.n_steps.nunique() == 1  # so the number of steps is given
    means = pool.groupby("operations").pass_rate.transform("mean")
    assert means.var() / pool.pass_rate.var() < 0.10


# The second base model, `gaps`.


def gaps_text(n):
    rng, gaps = np.random.default_rng(5), micro.verb_gaps(WORLD)
    levels = dict.fromkeys(micro.verb_levels(WORLD), micro.GAPS_ERROR)
    return [base_model.pretraining_text(rng, levels, WORLD, gaps=gaps) for _ in range(n)]


def test_gaps_makes_the_same_verbs_rare_and_misused_that_are_hard_in_elicit():
    levels, (shares, misuse) = micro.verb_levels(WORLD), micro.verb_gaps(WORLD)
    for op in micro.OPERATIONS:
        by_level = sorted(micro.VERBS[op], key=levels.get)
        assert [misuse[v] for v in by_level] == sorted(micro.MISUSE)
        assert [shares[v] for v in by_level] == sorted((shares[v] for v in by_level), reverse=True)
        assert sum(shares[v] for v in by_level) == pytest.approx(1)


def test_gaps_text_holds_the_shares_and_the_misuse_that_it_states():
    shares, misuse = micro.verb_gaps(WORLD)
    seen = {v: [] for v in shares}
    for prompt, text in gaps_text(6000):
        words = [w for w in prompt.split() if w in shares]
        steps = [s.split() for s in text.split(" ; ")[:-1]]
        for verb, step in zip(words, steps, strict=True):
            op = next(o for o in micro.OPERATIONS if verb in micro.VERBS[o] + micro.NUMBER_VERBS[o])
            seen[verb].append(step[1] != op)
    for op in micro.OPERATIONS:
        n = {v: len(seen[v]) for v in micro.VERBS[op]}
        for verb in micro.VERBS[op]:
            assert n[verb] / sum(n.values()) == pytest.approx(shares[verb], abs=0.03)
            if n[verb] > 200:  # a little below: now and then no other operation keeps to the numbers
                assert np.mean(seen[verb]) == pytest.approx(misuse[verb], abs=0.08)


def test_without_gaps_the_pretraining_text_is_what_it_was():
    rng = np.random.default_rng([WORLD, 4])
    prompt, text = base_model.pretraining_text(rng, micro.verb_levels(WORLD), WORLD)
    assert (prompt, text) == ELICIT_TEXT


def test_the_likelihood_of_a_solution_is_the_models_own(base):
    import torch

    model, tokenizer = base
    task = micro.make_tasks(2, split="eval", world_seed=WORLD)
    texts = [micro.solution_of(row) for _, row in task.iterrows()]
    found = solution_log_likelihood(model, tokenizer, task.prompt.tolist(), texts)
    ids = (
        tokenizer(task.prompt[1]).input_ids,
        [*tokenizer(texts[1], add_special_tokens=False).input_ids, tokenizer.eos_token_id],
    )
    labels = torch.tensor([[-100] * len(ids[0]) + ids[1]])
    with torch.inference_mode():
        loss = model(input_ids=torch.tensor([ids[0] + ids[1]]), labels=labels).loss
    assert found[1] == pytest.approx(-float(loss), abs=1e-5)


def test_a_wrong_solution_is_less_likely_than_the_right_one(base):
    task = micro.make_tasks(50, split="eval", world_seed=WORLD)
    right = [micro.solution_of(row) for _, row in task.iterrows()]
    wrong = [f"{text.rsplit(' ', 1)[0]} {int(text.rsplit(' ', 1)[1]) + 1}" for text in right]
    a, b = (solution_log_likelihood(*base, task.prompt.tolist(), t) for t in (right, wrong))
    assert (a > b).mean() > 0.95


@pytest.fixture(scope="module")
def answered_by_gaps():
    """200 evaluation questions with the second base's sampled and greedy right answers."""
    study = load_study("micro-gaps")
    engine = transformers_engine(*load_model(REPOSITORY / study.base_model), sampler_of(study))
    questions = micro.make_tasks(200, split="eval", world_seed=WORLD)
    sampled = count_correct(engine(questions, k=8, seed=1), questions)
    greedy = count_correct(engine(questions, k=1, seed=1, greedy=True), questions)
    return questions.assign(sampled=(sampled.c / sampled.n).to_numpy(), greedy=greedy.c.to_numpy())


def test_the_second_base_must_be_taught(answered_by_gaps):
    assert 0.5 <= answered_by_gaps.greedy.mean() <= 0.8
    assert 0.3 <= answered_by_gaps.sampled.mean() <= 0.55


def test_the_second_base_knows_the_common_verbs_and_not_the_rare_ones(answered_by_gaps):
    levels = micro.verb_levels(WORLD)
    worst = answered_by_gaps.verbs.map(lambda verbs: max(levels[v] for v in verbs.split()))
    by_worst = answered_by_gaps.groupby(worst).sampled.mean()
    assert by_worst[micro.LEVELS[0]] > 0.8 and by_worst[micro.LEVELS[-1]] < 0.3 and by_worst.is_monotonic_decreasing
