"""Failure modes: pairs of cohorts and properties of mixtures for which the sign of the lift's difference was written down.

The signs are LAD's own predictions, put here before any mixture and any run on the second base was trained. Of the
designed cohorts on the first base, four of the six seeds had been seen.
"""

from typing import NamedTuple


class Contrast(NamedTuple):
    """The lift of cohort `a` minus that of cohort `b`, predicted to have `sign`."""

    name: str
    a: str
    b: str
    sign: int
    because: str


CONTRASTS = (
    Contrast("bimodal_unimodal", "bimodal", "unimodal", -1, "equal mean pass rate, but p(1-p) is small at both ends"),
    Contrast("noisy_clean_30", "labels_wrong_30", "clean_twin", -1, "wrong labels are solved by chance alone"),
    Contrast("noisy_clean_60", "labels_wrong_60", "clean_twin", -1, "wrong labels are solved by chance alone"),
    Contrast("duplicate_diverse_8", "repeat_8", "max_diverse", -1, "eight tasks stand for 256"),
    Contrast("duplicate_diverse_32", "repeat_32", "max_diverse", -1, "32 tasks stand for 256"),
    Contrast("low_high", "medium_hard", "medium_easy", 1, "p near .3 has more headroom than p near .7"),
)
# Of the regression of a mixture's lift on these four at once, standardised: property -> sign of its slope.
MIXTURE_SLOPES = {
    "wrong_label_share": -1,
    "distinct_fraction": 1,
    "pass_rate_sd": -1,  # bimodal against unimodal: at equal mean, spread lowers mean p(1-p)
    "clean_pass_rate": -1,  # by the clean labels; LAD's energy falls from p = 1/3 on
}
