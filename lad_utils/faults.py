"""Faults of whole cohorts: verifiers that contradict themselves, labels that can be guessed, and the table of them all."""

import numpy as np
import pandas as pd
from sklearn.metrics import average_precision_score, precision_recall_curve
from statsmodels.stats.proportion import proportion_confint

from lad_utils.validation import entry
from lad_utils.votes import canonical, label_fault_posterior, vote_counts

NAN = float("nan")
TOLERATED = 0.01  # of the tasks: equal answers written in ways that are not recognised as equal look like contradictions
WORTH_GUESSING = 0.1  # of the tasks: where the base passes none, any constant beats it and few are worth learning
BINS = (0.0, 0.02, 0.1, 0.3, 0.5, 0.7, 0.9, 0.98, 1.0)  # of the reliability picture: finer where most posteriors are


def verifier_faults(votes: pd.DataFrame) -> dict:
    """How far verdicts contradict one correct answer a task; `votes` as vote_counts gives them.

    A task contradicts itself if two of its answers are rewarded, one answer is rewarded and refused, or an unparsed one is
    rewarded. `flag` is set when more than 1% of the tasks do: "accepts everything" if nothing at all is refused, "inverted" if
    nine in ten tasks of three answers or more refuse at most one, else "broken"; and "no reward" if nothing is rewarded.
    A verifier that consistently rewards one wrong answer is a wrong label: see label_fault_posterior.
    Keys: n, two_answers, both_verdicts, unparsed_rewarded, contradicting (tasks), share, low, high (Clopper-Pearson 95%),
    rewarded_answers (mean distinct ones a rewarded task), flag, reason.
    """
    answers, position = votes[votes["parsed"].notna()], votes["position"]
    n = position.nunique()
    if n == 0:
        raise ValueError("verifier_faults: no verdicts")
    per_task = answers.groupby(["position", "reward"])["parsed"].nunique().unstack(fill_value=0)
    refused, rewarded = (per_task.get(r, pd.Series(0, per_task.index)) for r in (0, 1))
    all_answers = answers.groupby("position")["parsed"].nunique()
    two, both = set(rewarded.index[rewarded > 1]), set(all_answers.index[refused + rewarded > all_answers])
    unparsed = set(position[votes["parsed"].isna() & (votes["reward"] == 1)])
    contradicting = two | both | unparsed
    share, (low, high) = len(contradicting) / n, proportion_confint(len(contradicting), n, method="beta")
    many, flag = all_answers > 2, ""
    if not votes["reward"].any():
        flag, reason = "no reward", "nothing is rewarded: unusable labels, a verifier that accepts nothing, or out of reach"
    else:
        kinds = f"{len(two)} reward two answers, {len(both)} reward and refuse one, {len(unparsed)} reward an unparsed one"
        reason = f"{len(contradicting)} of {n} tasks contradict themselves: {kinds}" if contradicting else "no contradiction"
        if share > TOLERATED:
            inverted = many.any() and (refused[many] <= 1).mean() >= 0.9
            flag = "accepts everything" if votes["reward"].all() else "inverted" if inverted else "broken"
        elif votes["reward"].all():
            reason = "all is rewarded and no task has two answers: saturated, or a verifier that accepts everything"
        elif votes.groupby("position")["count"].sum().max() < 2:
            reason = "one rollout a task: contradictions cannot show"
    counts = {"two_answers": len(two), "both_verdicts": len(both), "unparsed_rewarded": len(unparsed)}
    spread = float(rewarded[rewarded > 0].mean()) if (rewarded > 0).any() else 0.0
    found = {"n": n, **counts, "contradicting": len(contradicting), "share": share, "low": float(low), "high": float(high)}
    return found | {"rewarded_answers": spread, "flag": flag, "reason": reason}


def guessable_faults(answers, pass_rate: float) -> dict:
    """Whether labels can be guessed: does one constant answer pass as often as the base model, or half of the time?

    `answers`: labels of n distinct tasks; `pass_rate`: the base's mean. Without other cohorts to compare with, this is what
    can be said: a policy then gains at least as much by learning the constant as by learning to solve. The flag "guessable"
    needs the lower Clopper-Pearson bound (97.5%, one-sided) of the constant's share to reach min(pass_rate, 1/2) and 10%.
    Keys: n, effective_answers (exp of the labels' entropy), effective_share (of n), best_constant, share, low, high, flag,
    reason.
    """
    counts = canonical(pd.Series(list(answers), dtype=object)).value_counts()
    n = int(counts.sum())
    if n == 0:
        raise ValueError("guessable_faults: no answers")
    effective = float(np.exp(-np.sum(counts / n * np.log(counts / n))))
    best, most = counts.index[0], int(counts.iloc[0])
    low, high = proportion_confint(most, n, method="beta")
    flag = "guessable" if low >= max(min(pass_rate, 0.5), WORTH_GUESSING) else ""
    reason = f"answering {best} always would pass {most} of {n} tasks, the base passes {pass_rate:.0%}"
    found = {"n": n, "effective_answers": effective, "effective_share": effective / n, "best_constant": best}
    return found | {"share": most / n, "low": float(low), "high": float(high), "flag": flag, "reason": reason}


def fault_tables(judgements: pd.DataFrame, cohorts: pd.DataFrame, true_answers=None) -> tuple[pd.DataFrame, pd.DataFrame]:
    """(one row a cohort, one row a distinct task of it): noise rate, flags with reasons and, where truth is known, how right.

    `judgements` and `cohorts` (cohort, position, task_id, answer) of one arm; `true_answers`: Series by task_id, or None.
    Copies of a task with one label count once. A cohort whose verifier is flagged has no noise rate. Columns by task: cohort,
    position, task_id, posterior, reason, wrong (missing where the truth is unknown).
    """
    by_cohort, by_task, votes_of = [], [], dict(list(judgements.groupby("cohort", sort=False)))
    for name, members in cohorts.groupby("cohort", sort=False):
        distinct = members.drop_duplicates(["task_id", "answer"])
        if name not in votes_of:
            raise ValueError(f"fault_tables: cohort {name!r} has no judgements")
        votes = vote_counts(votes_of[name][votes_of[name]["position"].isin(distinct["position"])])
        verifier, found = verifier_faults(votes), label_fault_posterior(votes)
        reason = found.reason or (f"verifier flagged: {verifier['flag']}" if verifier["flag"] else "")
        pass_rate = float(votes["count"] @ votes["reward"] / votes["count"].sum())
        guess = guessable_faults(distinct["answer"], pass_rate)
        tasks = distinct[["cohort", "position", "task_id"]].merge(found.tasks, on="position", how="left")
        if reason:
            tasks = tasks.assign(posterior=NAN, reason=tasks["reason"].where(tasks["reason"] != "", reason))
        truth = None if true_answers is None else canonical(true_answers.reindex(distinct["task_id"]).reset_index(drop=True))
        labels = canonical(distinct["answer"].reset_index(drop=True))
        tasks["wrong"] = None if truth is None else (labels != truth).where(truth.notna(), None)
        rates = (NAN, NAN, NAN) if reason else (found.noise_rate, found.low, found.high)
        row = {"cohort": name, "n": len(distinct), "k": int(votes.groupby("position")["count"].sum().median())}
        row |= dict(zip(("noise_rate", "noise_low", "noise_high"), rates)) | {
            "noise_reason": reason,
            "noise_note": "" if reason else found.note,
        }
        row |= {f"verifier_{k}": v for k, v in verifier.items()} | {f"guess_{k}": v for k, v in guess.items()}
        by_cohort.append(row | detection(tasks))
        by_task.append(tasks)
    return pd.DataFrame(by_cohort), pd.concat(by_task, ignore_index=True)


def detection(tasks: pd.DataFrame) -> dict:
    """How well posterior > 0.5 finds wrong labels, and whether the mean posterior is their share; `tasks` as by fault_tables.

    Keys: judged (tasks with posterior and known truth), wrong_share, mean_posterior, suspected, false_alarms, precision and
    recall with Clopper-Pearson 95% bounds, average_precision (scikit-learn), detection_reason ("" if all are defined).
    """
    known = tasks[tasks["wrong"].notna() & tasks["posterior"].notna()]
    wrong, suspected = known["wrong"].astype(bool).to_numpy(), (known["posterior"] > 0.5).to_numpy()
    found = {
        "judged": len(known),
        "wrong_share": NAN,
        "mean_posterior": NAN,
        "suspected": int((tasks["posterior"] > 0.5).sum()),
    }
    found |= {"false_alarms": int((suspected & ~wrong).sum()), "average_precision": NAN}
    hits = int((suspected & wrong).sum())
    for name, of in (("precision", suspected), ("recall", wrong)):
        bounds = proportion_confint(hits, of.sum(), method="beta") if of.any() else (NAN, NAN)
        found |= {name: hits / of.sum() if of.any() else NAN, f"{name}_low": float(bounds[0]), f"{name}_high": float(bounds[1])}
    if known.empty:
        return found | {"detection_reason": "truth unknown, or no posterior"}
    found |= {"wrong_share": float(wrong.mean()), "mean_posterior": float(known["posterior"].mean())}
    if not wrong.any():
        return found | {"detection_reason": "no label is wrong: only false alarms can be counted"}
    found["average_precision"] = float(average_precision_score(wrong, known["posterior"]))
    return found | {"detection_reason": "" if suspected.any() else "no label is suspected: precision is undefined"}


def precision_recall_points(by_task: pd.DataFrame) -> pd.DataFrame:
    """Tidy precision-recall curves of the cohorts with known wrong labels: cohort, threshold, recall, precision."""
    known = by_task[by_task["wrong"].notna() & by_task["posterior"].notna()]
    curves = []
    for name, tasks in known.groupby("cohort", sort=False):
        if tasks["wrong"].astype(bool).any():
            precision, recall, threshold = precision_recall_curve(tasks["wrong"].astype(bool), tasks["posterior"])
            points = {"cohort": name, "threshold": np.append(threshold, 1.0), "recall": recall, "precision": precision}
            curves.append(pd.DataFrame(points))
    return (
        pd.concat(curves, ignore_index=True) if curves else pd.DataFrame(columns=["cohort", "threshold", "recall", "precision"])
    )


def reliability_points(by_task: pd.DataFrame) -> pd.DataFrame:
    """Calibration over all tasks of known truth: a row a bin of posterior that holds any, with the share of wrong labels.

    Columns: posterior (mean), wrong_share, low, high (Clopper-Pearson 95%), n.
    """
    known = by_task[by_task["wrong"].notna() & by_task["posterior"].notna()]
    rows = []
    for _, tasks in known.groupby(pd.cut(known["posterior"], BINS, include_lowest=True), observed=True):
        wrong = int(tasks["wrong"].astype(bool).sum())
        low, high = proportion_confint(wrong, len(tasks), method="beta")
        rows.append((tasks["posterior"].mean(), wrong / len(tasks), low, high, len(tasks)))
    return pd.DataFrame(rows, columns=["posterior", "wrong_share", "low", "high", "n"])


def fault_entries(table: pd.DataFrame, *, prefix: str = "faults") -> list[dict]:
    """Entries of results.json for a table of fault_tables: noise rate, contradictions, best constant, and detection."""
    entries = []
    for row in table.to_dict("records"):
        name, source = f"{prefix}.{row['cohort']}", "judgements.parquet"
        rows = [
            ("noise_rate", "noise_rate", row["noise_low"], row["noise_high"], row["n"], row["noise_reason"], row["noise_note"]),
            (
                "contradicting_share",
                "verifier_share",
                row["verifier_low"],
                row["verifier_high"],
                row["n"],
                "",
                f"{row['verifier_flag'] or 'no flag'}: {row['verifier_reason']}",
            ),
            (
                "best_constant_share",
                "guess_share",
                row["guess_low"],
                row["guess_high"],
                row["n"],
                "",
                f"{row['guess_flag'] or 'no flag'}: {row['guess_reason']}",
            ),
        ]
        if row["judged"]:
            reason, judged = row["detection_reason"], row["judged"]
            note = f"posterior > 0.5, {row['suspected']} suspected, {row['false_alarms']} false alarms"
            rows += [(key, key, row[f"{key}_low"], row[f"{key}_high"], judged, reason, note) for key in ("precision", "recall")]
            rows += [
                (key, key, None, None, judged, reason, "")
                for key in ("wrong_share", "mean_posterior", "average_precision", "false_alarms")
            ]
        for label, key, low, high, n, reason, note in rows:
            reason = "" if np.isfinite(row[key]) else reason
            entries.append(entry(f"{name}.{label}", row[key], low=low, high=high, n=n, source=source, reason=reason, note=note))
    return entries
