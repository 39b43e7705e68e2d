"""Other people's runs on real LLMs as a check: do p(1-p), p(1-p)^2, pass rate or size rank what their cohorts gained?"""

import re
from collections import namedtuple

import numpy as np
import pandas as pd
from scipy import stats

from lad_utils.size import size_groups
from lad_utils.stats import spearman_ci
from lad_utils.validation import PERMUTATIONS, entry

METRICS = {"variance": "p(1-p)", "energy": "p(1-p)²", "mean_pass_rate": "mean pass rate", "n_tasks": "number of tasks"}
SOURCE = "data/published_lifts.csv"
TEXT = ("base_model", "benchmark", "cohort", "property", "trainer", "budget", "where", "confidence")
MIN_COHORTS = 4
WIDEST_BAND = 0.5  # the midpoint of [0, 1] says nothing; where a mean is given too, narrower bands miss it by a few hundredths
SATURATED = 0.85  # the lowest edge that a paper of the record calls its extreme of easy tasks
EXACT = (
    "stated",
    "one task",
    "one task, early in training",
    "no task solved",
)  # bases of an energy that leave out no spread within the cohort
ALTERED = r"label noise|signal quality|format reward|ablation|^order|^online|^sampling by"

Pooled = namedtuple("Pooled", "rho low high p_value n_groups n_clusters n_papers reason")


def short_name(paper: str) -> str:
    """A paper's name as part of the names of entries: without identifier and brackets, `one_shot_rlvr`."""
    name = re.sub(r"\(.*?\)", "", paper)
    return re.sub(r"\W+", "_", re.sub(r"^[\d.]+ ", "", name).lower()).strip("_")


def published_rows(table: pd.DataFrame) -> pd.DataFrame:
    """Every row of the record in one form: where it belongs, its outcome, its metrics, and what each of them rests on.

    Columns added or normalised:
    line: in the csv, by the table's index. study: the paper's short name. cohort: less remarks in brackets, so that it is one
    cohort everywhere. base, benchmark: a setting of the evaluation in the model's name ("(32k eval)") belongs to the latter.
    budget: less "; best step ...", which says what came out. Where steps scale with size, it holds the size, so that only
    cohorts of one size are at an equal budget. "" where it is not stated. place: the table or file of the paper.
    outcome, kind: the lift in points, or accuracy after training where only that is printed; with one base and benchmark
    both rank alike. altered: labels, reward, loss or the order of tasks differ, so more than the choice of tasks does.
    mean_pass_rate: as given, else the midpoint of a band no wider than WIDEST_BAND (of a wider one: NaN).
    variance, energy: mean p(1-p) and mean p(1-p)^2 where the text states them, else from the mean pass rate, which is right
    for one task and where no task is solved, and else leaves out the spread within the cohort. *_basis says which, and where
    the pass rate of one task is not quite the base's, being from early training.
    """
    rows = pd.DataFrame({"line": table.index.to_numpy() + 2, "paper": table["paper"].to_numpy()})
    rows["study"] = rows["paper"].map(short_name)
    text = table[list(TEXT)].astype(object).fillna("").astype(str).reset_index(drop=True)
    for name in ("n_tasks", "pass_rate_low", "pass_rate_high", "pass_rate_mean", "acc_after", "lift"):
        rows[name] = pd.to_numeric(table[name], errors="coerce").to_numpy(float)
    setting = text["base_model"].str.extract(r"(\([^)]* eval\))", expand=False).fillna("")
    rows["base"] = text["base_model"].str.replace(r" ?\([^)]* eval\)", "", regex=True)
    rows["benchmark"] = (text["benchmark"] + " " + setting).str.strip()
    rows["cohort"] = text["cohort"].str.replace(r" ?\([^)]*\)", "", regex=True).str.strip()
    rows["trainer"], rows["property"], rows["confidence"] = text["trainer"], text["property"], text["confidence"]
    rows["place"] = text["where"].str.split(r"[(;:]", regex=True).str[0].str.strip()
    rows["budget"] = text["budget"].str.replace(r"; best step .*", "", regex=True)
    scales, sizes = rows["budget"].str.contains("scale with size"), rows["n_tasks"].map("; {:.0f} tasks".format)
    rows.loc[scales, "budget"] += sizes
    rows.loc[rows["budget"].str.contains("not stated") | (scales & rows["n_tasks"].isna()), "budget"] = ""
    rows["outcome"] = rows["lift"].fillna(rows["acc_after"])
    rows["kind"] = np.where(rows["lift"].notna(), "lift", "accuracy after training")
    rows["altered"] = [bool(re.search(ALTERED, f"{p}\n{c}", re.I | re.M)) for p, c in zip(rows["property"], rows["cohort"])]

    low, high, given = rows["pass_rate_low"], rows["pass_rate_high"], rows["pass_rate_mean"]
    p = rows["mean_pass_rate"] = given.fillna(((low + high) / 2).where(high - low <= WIDEST_BAND))
    basis = np.where(given.notna(), "mean pass rate", np.where(p.notna(), "midpoint of a band", ""))
    rows["mean_pass_rate_basis"], rows["n_tasks_basis"] = basis, np.where(rows["n_tasks"].notna(), "stated", "")
    basis = np.where(p == 0, "no task solved", basis)
    one = np.where(text["property"].str.contains("early-training"), "one task, early in training", "one task")
    basis = np.where(given.notna() & (rows["n_tasks"] == 1), one, basis)
    for name, power, pattern in (("variance", 1, r"p\(1-p\)"), ("energy", 2, r"p\(1-p\)\^2")):
        stated = pd.to_numeric(text["property"].str.extract(rf"mean {pattern}=([0-9.]*[0-9])", expand=False), errors="coerce")
        rows[name] = stated.fillna((p * (1 - p) ** power).round(12))
        rows[f"{name}_basis"] = np.where(stated.notna(), "stated", basis)
    return rows


def published_groups(table: pd.DataFrame, *, assume_equal_budgets: bool = False) -> tuple[pd.DataFrame, pd.DataFrame]:
    """(rows in groups, dropped rows with line, paper, cohort, reason): within-paper groups of cohorts trained on equal budgets.

    A group is one paper, base model, trainer, budget, benchmark, table of the paper and kind of outcome, as `published_rows`
    normalises them, with at least MIN_COHORTS cohorts, each once (its first row). A row's first reason to be dropped counts.
    `assume_equal_budgets`: a budget that is not stated counts as equal within a table of a paper.
    Adds group, and cluster: paper and base model, which its benchmarks share.
    """
    rows = published_rows(table)
    rows["cluster"] = rows["study"] + " | " + rows["base"]
    key = ["paper", "base", "trainer", "budget", "benchmark", "place", "kind"]
    rows["group"] = rows["cluster"] + " | " + rows["benchmark"]
    rows["reason"] = ""

    def drop(which: pd.Series, reason: str) -> None:
        rows.loc[which & (rows["reason"] == ""), "reason"] = reason

    drop(rows["outcome"].isna(), "neither lift nor accuracy after training as a number")
    drop(rows["altered"], "labels, reward, loss or order differ, not the choice of tasks alone")
    drop((rows["budget"] == "") & (not assume_equal_budgets), "budget, or steps where they scale with size, not stated")
    kept = rows[rows["reason"] == ""]
    drop(kept.duplicated([*key, "cohort"]).reindex(rows.index, fill_value=False), "the group has this cohort already")
    sizes = rows[rows["reason"] == ""].groupby(key)["line"].transform("size").reindex(rows.index)
    drop(sizes < MIN_COHORTS, f"fewer than {MIN_COHORTS} in its group")
    kept = rows[rows["reason"] == ""].drop(columns="reason")
    shared = kept.groupby("group")["line"].transform("size") > kept.groupby(key)["line"].transform("size")
    full = kept["group"] + " | " + kept["trainer"] + " | " + kept["budget"] + " | " + kept["place"] + " | " + kept["kind"]
    kept["group"] = kept["group"].where(~shared, full)  # the short name alone would run two groups together
    dropped = rows[rows["reason"] != ""][["line", "paper", "cohort", "reason"]].reset_index(drop=True)
    return kept.reset_index(drop=True), dropped


def equal_sizes(rows: pd.DataFrame) -> pd.DataFrame:
    """Of every group the cohorts of its commonest size (the smaller of two) alone, from MIN_COHORTS on; `rows` in groups."""
    count = rows.groupby(["group", "n_tasks"])["line"].transform("size")
    known = rows[count >= MIN_COHORTS]
    return known[known["n_tasks"] == known.groupby("group")["n_tasks"].transform(lambda sizes: sizes.mode().iloc[0])]


def group_rhos(rows: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Spearman of `metric` with the outcome in every group: study, cluster, group, rho, low, high, p_value, n, reason, note."""
    found = []
    for (study, cluster, group), mine in rows.groupby(["study", "cluster", "group"], sort=False):
        known = mine.dropna(subset=[metric])
        r = spearman_ci(known[metric], known["outcome"])._asdict()
        if len(known) < MIN_COHORTS:
            r |= dict.fromkeys(("rho", "low", "high", "p_value"), np.nan)
            r["reason"] = f"{len(known)} of {len(mine)} cohorts have this metric, fewer than {MIN_COHORTS}"
        basis = known[f"{metric}_basis"].value_counts()
        note = "; ".join([r["p_method"] or "no p", *(f"{n} of {len(known)} from: {b}" for b, n in basis.items())])
        found.append({"study": study, "cluster": cluster, "group": group} | r | {"note": note})
    columns = ["study", "cluster", "group", "rho", "low", "high", "p_value", "n", "reason", "note"]
    return pd.DataFrame(found, columns=columns)


def pooled_rho(
    rows: pd.DataFrame, metric: str, *, rng: np.random.Generator, n_permutations: int = PERMUTATIONS, level: float = 0.95
) -> Pooled:
    """Mean over clusters (paper and base model) of the mean within-group Spearman of `metric` with the outcome.

    The interval is Student's over clusters, one vote each, cut off at +-1: benchmarks of a cluster share their runs, so they
    are no further evidence. p is two-sided, by a stratified permutation: each cohort of a paper draws one random number, and
    in every group of that paper the group's own values of the metric are dealt out in the order of these numbers. So groups
    are permuted within, and together where they share cohorts; where all groups of a paper hold the same cohorts in the same
    order by metric the level is exact, p = (1 + #{|rho*| >= |rho|}) / (1 + n_permutations). `rows`: study, cluster, group,
    cohort, outcome and the metric, NaN where unknown.
    """
    clusters: dict[str, list[tuple[float, np.ndarray]]] = {}
    known = rows[rows[metric].notna()]
    by_group = known.groupby("group")
    testable = by_group[metric].transform("size").ge(MIN_COHORTS)
    for column in (metric, "outcome"):
        testable &= by_group[column].transform("nunique") > 1
    known = known[testable]
    draws = {key: rng.random(n_permutations) for key in dict.fromkeys(zip(known["study"], known["cohort"]))}
    for (cluster, _), mine in known.groupby(["cluster", "group"], sort=False):
        x, y = (stats.rankdata(mine[c]) - (len(mine) + 1) / 2 for c in (metric, "outcome"))
        order = np.argsort([draws[key] for key in zip(mine["study"], mine["cohort"])], axis=0)
        norm = np.sqrt((x @ x) * (y @ y))
        clusters.setdefault(cluster, []).append((x @ y / norm, np.sort(x) @ y[order] / norm))
    if not clusters:
        return Pooled(*[np.nan] * 4, 0, 0, 0, "no group can be tested")
    by_cluster = np.array([np.mean([rho for rho, _ in groups]) for groups in clusters.values()])
    null = np.mean([np.mean([star for _, star in groups], axis=0) for groups in clusters.values()], axis=0)
    rho, low, high, reason = float(by_cluster.mean()), np.nan, np.nan, "one cluster: no interval over clusters"
    if len(by_cluster) > 1:
        half = stats.t.ppf((1 + level) / 2, len(by_cluster) - 1) * by_cluster.std(ddof=1) / np.sqrt(len(by_cluster))
        low, high, reason = max(float(rho - half), -1.0), min(float(rho + half), 1.0), ""
    p_value = (1 + np.sum(np.abs(null) >= abs(rho) - 1e-9)) / (1 + n_permutations)
    return Pooled(rho, low, high, float(p_value), known["group"].nunique(), len(clusters), known["study"].nunique(), reason)


def _pooled_entries(name: str, rows: pd.DataFrame, metric: str) -> list[dict]:
    r = pooled_rho(rows, metric, rng=np.random.default_rng(0))
    note = f"mean over {r.n_clusters} paper x base model of {r.n_groups} groups, {r.n_papers} papers"
    args, told = {"n": r.n_groups, "source": SOURCE}, "" if r.n_groups else r.reason
    p = entry(f"{name}.p_value", r.p_value, note=f"stratified permutation, {PERMUTATIONS} draws; {note}", reason=told, **args)
    return [entry(f"{name}.rho", r.rho, low=r.low, high=r.high, note=note, reason=r.reason, **args), p]


def published_entries(table: pd.DataFrame) -> list[dict]:
    """Entries of the published record: what was dropped and why, every rank test, and the blind spots.

    published.<metric>.pooled, .paper.<paper>, .without.<paper>, .group.<group>: each with rho and p_value. Before <metric> may
    stand equal_size (cohorts of one size alone), exact_figures (no figure from notes or abstracts), exact_energy (no p(1-p)
    from a mean pass rate that hides spread) or assumed_budgets (a budget that is not stated counts as equal).
    """
    rows, dropped = published_groups(table)
    counts = {"rows": len(table), "rows_in_groups": len(rows), "groups": rows["group"].nunique()}
    entries = [entry(f"published.{name}", count, n=len(table), source=SOURCE) for name, count in counts.items()]
    for i, (reason, mine) in enumerate(dropped.groupby("reason", sort=False), start=1):
        note = f"{reason}: lines {', '.join(map(str, mine['line']))}"
        entries.append(entry(f"published.dropped.{i}", len(mine), n=len(table), source=SOURCE, note=note))
    hidden = rows.assign(**{m: rows[m].where(rows[f"{m}_basis"].isin(EXACT)) for m in ("variance", "energy")})
    same_size = equal_sizes(rows)
    variants = {
        "": (rows, METRICS),
        "equal_size.": (same_size, ("variance", "energy", "mean_pass_rate")),
        "exact_figures.": (published_groups(table[table["confidence"].str.startswith("exact")])[0], METRICS),
        "exact_energy.": (hidden, ("variance", "energy")),
        "assumed_budgets.": (published_groups(table, assume_equal_budgets=True)[0], METRICS),
    }
    for prefix, (chosen, metrics) in variants.items():
        for metric in metrics:
            entries += _pooled_entries(f"published.{prefix}{metric}.pooled", chosen, metric)
    for metric in METRICS:
        groups = group_rhos(rows, metric)
        for study in groups.dropna(subset=["rho"])["study"].unique():
            entries += _pooled_entries(f"published.{metric}.paper.{study}", rows[rows["study"] == study], metric)
            entries += _pooled_entries(f"published.{metric}.without.{study}", rows[rows["study"] != study], metric)
        for prefix, found in (("", groups), ("equal_size.", group_rhos(same_size, metric))):
            for r in found.itertuples():
                name, args = f"published.{prefix}{metric}.group.{r.group}", {"n": r.n, "source": SOURCE, "note": r.note}
                entries.append(entry(f"{name}.rho", r.rho, low=r.low, high=r.high, reason=r.reason, **args))
                entries += [entry(f"{name}.p_value", r.p_value, **args)] if np.isfinite(r.p_value) else []
    by_cluster = [group_rhos(rows, m).groupby("cluster")["rho"].mean() for m in ("variance", "energy")]
    ahead = (by_cluster[0] - by_cluster[1]).dropna()
    args = {"n": len(ahead), "source": SOURCE, "reason": "" if len(ahead) else "no group can be tested"}
    entries.append(entry("published.variance_minus_energy.rho", ahead.mean(), note="mean over paper x base model", **args))
    return entries + blind_spot_entries(table)


def _span(name: str, values, *, note: str) -> list[dict]:
    """Entries name.lowest, .median, .highest of some numbers."""
    values = np.asarray(values, dtype=float)
    args = {"n": len(values), "source": SOURCE, "reason": "" if len(values) else "no such row in the record", "note": note}
    ends = {"lowest": np.min, "median": np.median, "highest": np.max}
    return [entry(f"{name}.{end}", f(values) if len(values) else np.nan, **args) for end, f in ends.items()]


def blind_spot_entries(table: pd.DataFrame) -> list[dict]:
    """What the record says where LAD is blind, as lowest, median and highest over rows or series, in points unless said.

    zeros: cohorts of which the base, by its own rollouts, solved nothing: lift, share of their group that gained less, and
    outcome minus that of the full set. size: lift at the most minus at the fewest tasks, by group of `size_groups`.
    wrong_labels: outcome at the highest minus at the lowest share of wrong labels, by series. saturated: lift where the mean
    pass rate is SATURATED or more. spurious: lift without a correct reward as a share of the same run's with it.
    """
    rows = published_rows(table)
    sound = rows[~rows["altered"] & rows["outcome"].notna()]
    by_run = ["paper", "base", "trainer", "budget", "benchmark", "place", "kind"]
    other = sound["cohort"].str.extract(r"\b(\d+B)-base", expand=False)  # zeros of another base say nothing of this one
    own = [not isinstance(o, str) or f"-{o}" in base for o, base in zip(other, sound["base"])]
    zeros = sound[(sound["mean_pass_rate"] == 0) & np.array(own, dtype=bool)]
    groups, entries = published_groups(table)[0], []
    by_group = groups.groupby("group")
    groups["beaten"] = (by_group["outcome"].rank(method="min") - 1) / (by_group["line"].transform("size") - 1)
    easy = sound[sound["mean_pass_rate"] >= SATURATED]
    spots = (("zeros", zeros, "no base success"), ("saturated", easy, f"mean pass rate >= {SATURATED:g}"))
    for spot, chosen, what in spots:
        for kind, mine in (("sets", chosen[chosen["n_tasks"] != 1]), ("examples", chosen[chosen["n_tasks"] == 1])):
            entries += _span(f"published.{spot}.{kind}.lift", mine["lift"].dropna(), note=f"{what}; points, rows")
            beaten, note = groups["beaten"][groups["line"].isin(mine["line"])], f"{what}; of the group's other cohorts"
            entries += _span(f"published.{spot}.{kind}.share_beaten", beaten, note=note)
    full = sound[sound["cohort"].str.match(r"full\b")][[*by_run, "outcome"]]
    beside = zeros.merge(full, on=by_run, suffixes=("", "_full"))
    for study, mine in beside.groupby("study", sort=False):
        note = "no base success, minus the full set, which is larger too"
        entries += _span(f"published.zeros.minus_full.{study}", mine["outcome"] - mine["outcome_full"], note=note)

    for paper, mine in size_groups(table[~rows["altered"].to_numpy()]).groupby("study", sort=False):
        ends = [g.groupby("n_tasks")["lift"].mean().iloc[[0, -1]].to_numpy() for _, g in mine.groupby("group")]
        scales = rows["budget"][rows["paper"] == paper].str.contains("scale with size").any()
        note = f"{mine['n_tasks'].min():.0f} to {mine['n_tasks'].max():.0f} tasks, {'more' if scales else 'equal'} steps"
        entries += _span(f"published.size.{short_name(paper)}.gain", [last - first for first, last in ends], note=note)

    parts = rows["cohort"].str.extract(r"(?:rate|noise) (0?\.\d+)|(\d+)% random labels").astype(float)
    rows["wrong"] = parts[0].fillna(parts[1] / 100).mask(rows["cohort"] == "clean", 0.0)
    rows["never_sampled"] = rows["cohort"].str.startswith("inactive")
    against = table["where"].fillna("").str.extract(r"(-?\d+\.?\d*) points vs clean", expand=False)
    rows["against_clean"] = against.astype(float).to_numpy()
    for study, mine in rows[rows["property"].str.contains("label noise")].groupby("study", sort=False):
        known, changes = mine.dropna(subset=["wrong", "outcome"]), mine["against_clean"].dropna().tolist()
        for _, series in known.groupby([*by_run, "n_tasks", "never_sampled"], dropna=False):
            ends = series.groupby("wrong")["outcome"].mean()
            changes += [ends.iloc[-1] - ends.iloc[0]] if len(ends) > 1 else []
        low, high = (known["wrong"].min(), known["wrong"].max()) if len(known) else (0, 1)
        entries += _span(f"published.wrong_labels.{study}.change", changes, note=f"wrong labels {low:.0%} to {high:.0%}")

    truth = rows[["cohort", *by_run, "lift"]].replace({"cohort": {"ground-truth labels": "truth"}})
    for kind in ("random reward", "format reward", "incorrect labels"):
        mine = rows[rows["cohort"].str.contains(kind, case=False)]
        named = mine["cohort"].str.extract(r" on (.+)$", expand=False).fillna("truth")  # "Format reward on X" is beside X
        pairs = mine.assign(cohort=named).merge(truth, on=["cohort", *by_run], suffixes=("", "_truth"))
        note = f"of the lift with a correct reward; base {', '.join(dict.fromkeys(pairs['base']))}"
        name = f"published.spurious.{kind.replace(' ', '_')}.share"
        entries += _span(name, pairs["lift"] / pairs["lift_truth"], note=note)
    return entries
