"""Claims about the answer checker; ids in comments name the field case that a test guards against."""

import json
import os
import random
import threading
import time
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lad_utils import verifier
from lad_utils.verifier import completion_text, extract, extract_strict, gold_answer, parse_number, verify, verify_strict

DATA = Path(__file__).resolve().parents[1] / "../shared/data"
RUN_ON = "#### 5\n\nQuestion: Tom has 7 apples.\n#### 7"


def box(text):
    return f"so it is \\boxed{{{text}}}."


def gsm8k_answers(split):
    path = DATA / "gsm8k" / f"{split}.jsonl"
    if not path.exists():
        pytest.skip("GSM8K is not on this machine")
    return [json.loads(line)["answer"] for line in path.read_text(encoding="utf-8").split("\n") if line]


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        ("Her order is $29.00.", "29"),  # A01
        ("The answer is $1,234.00", "1234"),  # A01
        ("The answer is 72, in total, so the farmer earns that much.", "72"),  # A02
        (RUN_ON, "5"),  # A03
        ("#### -3", "-3"),  # A05
        ("#### $-3", "-3"),
        ("#### -$3", "-3"),
        ("#### 2125", "2,125"),  # A07
        ("#### 2,125", "2125"),  # A07
        ("9.0", "9"),  # A09
        (box(r"\frac{1}{2}"), "0.5"),  # A12
        (box(r"2\frac{1}{2}"), "2.5"),
        (box(r"\dfrac34"), "3/4"),
        ("so 15 apples", "15"),  # A16
        ("The answer is 3.14", "3.14"),  # A17
        ("The answer is .5", "1/2"),
        ("25%", "25"),  # A18
        (box(r"25\%"), "25"),  # A18
        ("016", "16"),  # A19
        ("12 + 7 = 19 ; 19 * 3 = 57 ; #### 57", "57"),
        ("12 + 7 = 19 19 * 3 = 57 #### 57", "57"),
        ("So she has 18.\n#### 18", "She has 9 + 9 = 18.\n#### 18"),  # G07
        ("#### **5**", "5"),
        ("#### 5 eggs per day", "5"),
        ("**Answer:** 5", "5"),
        ("Answer: Janet makes $18 every day.", "18"),
        ("The answer is 12 + 7 = 19.", "19"),
        ("The answer is <<9+9=18>>18.", "18"),
        (box(r"x = 5 \text{ cm}"), "5"),
        (box("1{,}234"), "1234"),
        ("\\boxed{7} and then \\boxed{5", "7"),
        ("The area is 12 cm^2", "12"),
        ("It is 5 - 8 = - 3", "-3"),
    ],
)
def test_right_answers_are_accepted(completion, answer):
    assert verify(completion, answer) is True


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        ("The answer is $1,234.00", "234"),  # A01
        (RUN_ON, "7"),  # A03
        ("#### 3", "-3"),  # A05
        ("8.6", "9"),  # A09
        ("", "5"),  # A10
        (None, "5"),
        ("no idea", "5"),
        ("####", "5"),
        ("so 15 apples", "5"),  # A16
        ("The answer is 3.14", "3"),  # A17
        ("25%", "0.25"),  # A18
        (box(r"25\%"), "0.25"),  # A18
        (box(r"\sqrt{625}\%"), "0.25"),  # A18
        ("The answer is 15-20", "1520"),  # A02, its regex read ranges as one number
        ("The answer is 5 or 6", "5"),
        ("#### 5, 6", "5"),
        ("#### 5 hours and 30 minutes", "5"),
        ("#### 12 + 7", "19"),
        ("#### x = 5, y = 7", "7"),
        ("The answer is x + 5", "5"),
        ("so we get 5x", "5"),
        ("that is 10^5", "5"),
        ("1.234,00", "0"),
        ("at 3:30", "30"),
        ("5 million", "5"),
        ("1/0", "0"),
        ("1e999999999", "1"),
        ("12345678901234567890", "12345678901234567891"),
        ("0.30000000000000004", "0.3"),
        (box(r"\frac{1}{2}x"), "0.5"),
        (box("y+3x-4=0"), "0"),
        (box(r"5 \approx 6"), "5"),
        (r"so $\frac{1}{2}$", "2"),
    ],
)
def test_wrong_or_ambiguous_answers_are_rejected(completion, answer):
    assert verify(completion, answer) is False


@pytest.mark.parametrize("stated", ["25%", r"\boxed{25\%}", "#### 25%", "The answer is 25 percent."])
def test_a_percent_matches_exactly_one_of_25_and_a_quarter(stated):  # A18
    assert (verify(stated, "25"), verify(stated, "0.25")) == (True, False)


def test_extraction_order_is_marker_then_box_then_phrase_then_number():
    number, phrase, marker = " 4 apples", " the answer is 3 ;", " #### 1\n"
    assert extract(marker + box("2") + phrase + number) == "1"
    assert extract(box("9") + box("2") + phrase + number) == "2"
    assert extract("the answer is 8. " + phrase + number) == "3"
    assert extract(number) == "4"


def test_first_marker_counts_in_a_run_on():  # A03
    assert extract(RUN_ON) == extract_strict(RUN_ON) == "5"
    assert extract("#### 5 Question: 7 apples #### 7") == "5"


def test_strict_score_needs_a_marker_or_a_balanced_box():
    assert extract_strict("The answer is 5") is None
    assert extract_strict("\\boxed{5") is None
    assert not verify_strict("The answer is 5", "5")
    assert verify_strict("#### 5", "5")
    assert verify_strict(box("5"), "5")


@pytest.mark.parametrize(
    "gold", ["see figure", "see figure 3", "18 or 19", "", "N/A", "none", None, float("nan"), "#### ?", "#### N/A", True]
)
def test_an_unusable_gold_raises_and_never_rewards(gold):  # A10
    assert gold_answer(gold) is None
    for completion in ("", "#### 3", "see figure", "None"):
        with pytest.raises(ValueError, match="gold answer: found"):
            verify(completion, gold)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("9 + 9 = 18\n#### 18", "18"),  # G07
        ("...#### -3", "-3"),  # A05
        ("2,125", "2125"),  # A07
        (5, "5"),
        (5.0, "5"),
        ("016", "016"),
        (r"Hence \boxed{\frac{1}{2}}.", "1/2"),
        ("$12$", "12"),
        (r"99\%", "99"),
        ("5 apples", "5"),
        (r"4\sqrt{2}", r"4\sqrt{2}"),
        ("(16,17)", "(16,17)"),
    ],
)
def test_gold_column_gives_its_final_answer(text, answer):
    assert gold_answer(text) == answer


@pytest.mark.parametrize("completion", ["#### 5", [{"role": "assistant", "content": "#### 5"}]])
def test_text_and_chat_completions_get_the_same_reward(completion):  # D09
    assert verify(completion, "5")
    assert not verify(completion, "6")


def test_chat_completion_without_content_is_empty_and_other_types_raise():
    assert completion_text([{"role": "assistant", "content": None}]) == completion_text([]) == completion_text(None) == ""
    with pytest.raises(TypeError, match="completion: found int"):
        completion_text(5)


def test_numbers_are_exact():
    assert parse_number("0.1") == Fraction(1, 10)
    assert parse_number("-1,234.50 dollars") == Fraction(-2469, 2)
    assert parse_number("1.5e3") == 1500
    assert parse_number("9" * 300) == 10**300 - 1


@pytest.mark.parametrize(
    ("stated", "gold", "expected"),
    [
        (r"\sqrt{4}", "2", True),
        (r"\sqrt{2}", "1.414214", False),
        ("1+x", "x + 1", True),
        (r"\frac{\sqrt{3}}{3}", r"\frac{1}{\sqrt{3}}", True),
        (r"3 \times 10^{2}", "300", True),
        (r"5 \text{ or } 6", "5", False),
        (r"\text{Evelyn}", r"\text{Evelyn}", True),
    ],
)
def test_other_latex_is_compared_as_mathematics(stated, gold, expected):
    assert verify(box(stated), gold) is expected


def test_latex_verdict_is_the_same_off_the_main_thread():  # A15
    verdicts = []
    pairs = [(r"\frac{1}{3}", r"\frac{1}{3}"), (r"\sqrt{9}", "3"), (r"\sqrt{9}", "4")]

    def check():
        verdicts.append([verify(box(stated), gold) for stated, gold in pairs])

    threads = [threading.Thread(target=check) for _ in range(4)]
    verifier._agrees.cache_clear()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    check()
    assert verdicts == [[True, True, False]] * 5


def test_tower_of_exponents_is_false_at_once():  # A14
    started = time.monotonic()
    assert not verify(box("9^{9^{9^{9}}}"), "5")
    assert not verify(box("9^9^9^9"), "5")
    assert time.monotonic() - started < 30


def test_a_comparison_past_its_limit_is_false_and_the_worker_comes_back(monkeypatch):  # A14
    assert verify(box(r"\sqrt{16}"), "4")
    first = verifier.WORKER.process.pid
    monkeypatch.setattr(verifier, "WORKER_SECONDS", 0.0)
    assert not verify(box(r"\sqrt{25}"), "5")
    monkeypatch.undo()
    assert verify(box(r"\sqrt{36}"), "6")
    assert verifier.WORKER.process.pid != first


def test_a_dead_worker_is_false_once_and_then_replaced():
    assert verify(box(r"\sqrt{49}"), "7")
    os.kill(verifier.WORKER.process.pid, 9)
    verifier.WORKER.process.wait()
    assert not verify(box(r"\sqrt{64}"), "8")
    assert verify(box(r"\sqrt{81}"), "9")


@pytest.mark.parametrize(
    "hostile",
    [
        "9" * 200_000,
        "#" * 200_000,
        "\\boxed{" * 30_000,
        "answer is " * 30_000,
        "1," * 100_000,
        "-" * 200_000,
        "\\frac{1}{2}" * 9_000,
    ],
    ids=["digits", "hashes", "open boxes", "phrases", "commas", "minus signs", "fractions"],
)
def test_huge_inputs_are_rejected(hostile):
    assert not verify(hostile, "5")
    assert not verify("#### " + hostile, "5")


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet=st.characters(exclude_characters="0123456789\\")))
def test_text_without_digits_never_verifies_against_a_number(text):
    assert not verify(text, "7")


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="0123456789 .,-+/$%=#:;()xa\n", max_size=40), st.integers(0, 999))
def test_a_gold_whose_digits_are_absent_is_never_accepted(text, gold):
    digits = text.replace(",", "")
    simple = not any(sign in text for sign in "./%")
    assert not (verify(text, gold) and simple and str(gold) not in digits)


@settings(max_examples=200, deadline=None)
@given(st.integers(-(10**9), 10**9))
def test_every_way_of_stating_an_integer_is_accepted_and_its_neighbour_rejected(value):
    for completion in (f"#### {value:,}", box(value), f"The answer is {value}.", f"she has {value:,}.00", f"x = {value}"):
        assert verify(completion, str(value))
        assert not verify(completion, str(value + 1))


@pytest.mark.parametrize("split", ["train", "test"])
def test_every_gsm8k_gold_verifies_against_itself_and_none_against_its_neighbour(split):  # A05, A07, G07
    solutions = gsm8k_answers(split)
    assert len(solutions) == {"train": 7473, "test": 1319}[split]
    for solution in solutions:
        gold = gold_answer(solution)
        assert verify(solution, solution)
        assert verify(f"The answer is {gold}.", solution)
        assert not verify(solution, str(parse_number(gold) + 1))


def test_shuffled_gsm8k_golds_are_accepted_only_where_they_are_equal():
    solutions = gsm8k_answers("test")
    golds = [int(solution.rsplit("#### ", 1)[1].replace(",", "")) for solution in solutions]
    other = random.Random(0).sample(golds, len(golds))
    assert [verify(solution, gold) for solution, gold in zip(solutions, other, strict=True)] == [
        gold == wrong for gold, wrong in zip(golds, other, strict=True)
    ]
