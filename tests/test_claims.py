"""The words around the numbers hold whatever the numbers are: undefined, negative, or all against LAD."""

import json
import re

import pytest

from lad_utils import claims, findings, published_view, report
from lad_utils.runs import REFERENCE

ENTRIES = {e["name"]: e for e in json.loads((REFERENCE / "results.json").read_text())["entries"]}
UNDEFINED = {"value": None, "ci_low": None, "ci_high": None, "reason": "not measured"}


def undefined(name):
    return {n: e | UNDEFINED if re.search(name, n) else e for n, e in ENTRIES.items()}


@pytest.mark.parametrize("word", report.WORDS)
@pytest.mark.parametrize(
    "gone",
    [
        "^lad",
        "short_grpo",
        "^mixture",
        "^contrast|^slope",
        "^prediction",
        "^problems",
        "^ceiling",
        "^causal|^trainer|^online|^price",
        "rollouts|gradient|adds|frontier",
    ],
)
def test_words_say_undefined_with_the_reason_and_never_none_or_nan(word, gone):
    text = report.WORDS[word](undefined(gone))
    assert text and not re.search(r"\bNone\b|\bnan\b|undefined \([^)]*\) points", text)


def test_a_metric_ahead_of_a_negative_lad_is_named():
    behind = ENTRIES | {"lad.rho": ENTRIES["lad.rho"] | {"value": -0.8, "ci_low": -0.9, "ci_high": -0.5}}
    assert "mean pass rate (" in findings.findings(behind).split("\n")[0]


def test_a_significant_difference_says_who_is_ahead():
    for value, told in ((-0.4, "LAD behind"), (0.4, "LAD ahead")):
        found = ENTRIES | {
            "lad_minus_variance.rho": ENTRIES["lad_minus_variance.rho"] | {"value": value},
            "lad_minus_variance.p_value_holm": ENTRIES["lad_minus_variance.p_value_holm"] | {"value": 0.01, "reason": ""},
        }
        assert f"variance p(1-p) ({told})" in findings.findings(found)


def test_what_a_study_lacks_is_said_once_a_place():
    lacking = {n: e for n, e in ENTRIES.items() if not n.startswith(("causal.", "ablation.mixture."))}
    assert claims.NOT_HERE in claims.prototype_claims(lacking)


def test_an_interval_open_on_one_side_is_shown_as_such():
    assert findings.shown({"value": 0.5, "ci_low": 0.1, "ci_high": None}) == "0.50 [0.10, unbounded]"


def test_few_sets_support_and_contradict_nothing():
    few = {n: e | {"n": 2} if n.startswith("published.zeros.sets.share_beaten") else e for n, e in ENTRIES.items()}
    line = next(x for x in published_view.published_findings(few).splitlines() if "no base success" in x)
    assert line.startswith("* **Leaves open**")


def test_a_selection_that_beats_top_lad_is_named_as_such():
    ends = {"random_pool": (-0.01, 0.01), "top_variance": (-0.03, -0.01), "bottom_lad": (0.1, 0.2)}
    found = {n: {"ci_low": low, "ci_high": high} for n, (low, high) in ends.items()}
    told = findings._selection_verdict(found | {"easiest": {"ci_low": None, "ci_high": None}})
    assert "ahead of bottom-LAD; behind top variance; not told apart from random pool." in told and "easiest" not in told
