"""Real data beside other programs: ``python benchmarks/real_data.py [--sets NAME...] [--quick] [--keep FILE]``.

Every set of ``real_data_sets.py`` is written as people have theirs, in a part to learn from and one that is held out.
One line of ``dl4j train`` learns it, with no options but those that say what is learned; the peers learn the same
examples with their defaults. Five seeds for sets of up to 2,000 examples, three for larger ones; figures are medians.

At the end stands what has to be reached. A set's m is 1 point or two standard errors of the peer's figure (of the
held-out part, by bootstrap), whichever is more. A point is 0.01 of accuracy and F1; of an error it is a hundredth of
the trivial answer's. PyTorch and pytabkit are left out where they are not installed, and so are their verdicts.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field
from pathlib import Path
from typing import Any

import command_line
import measured
import numpy as np
import real_data_sets as sets
from real_data_sets import Parts, Peer, RealSet

RESAMPLES = 100
BATCH, RATE, WIDTH, EMBEDDING = 32, 0.001, 128, 64  # of PyTorch's networks
LINE = 3600.0  # seconds that one line of ours may take


@dataclass(frozen=True)
class Outcome:
    """What one side reached: the figure, its standard error, the seconds that it trained for."""

    value: float
    error: float
    seconds: float

    @staticmethod
    def median(of: Sequence[Outcome]) -> Outcome:
        """Return the medians of several seeds."""
        return Outcome(*(statistics.median(values) for values in zip(*map(astuple, of), strict=True)))


@dataclass(frozen=True)
class Row:
    """The medians of one set."""

    data: RealSet
    ours: Outcome
    peers: Mapping[str, Outcome] = field(default_factory=dict)

    @property
    def unit(self) -> float:
        """A hundred points."""
        return 1.0 if self.data.has_classes else self.peers["trivial"].value

    def ahead(self, peer: str) -> float:
        """Return by how many hundred points ours is better than a peer."""
        difference = self.ours.value - self.peers[peer].value
        return (difference if self.data.has_classes else -difference) / self.unit

    def margin(self, peer: str) -> float:
        """Return m in hundreds of points."""
        return max(sets.POINT, 2 * self.peers[peer].error / self.unit)

    def best(self, peers: Iterable[str]) -> str:
        """Return the best of those peers that took part."""
        return min((peer for peer in peers if peer in self.peers), key=self.ahead)


# -- figures -----------------------------------------------------------------------------------------------------------


def score(metric: str, y: Any, predicted: Any) -> float:
    """Return a metric of predictions."""
    if metric == "accuracy":
        return float(np.mean(y == predicted))
    if metric == "macro_f1":
        from sklearn.metrics import f1_score

        return float(f1_score(y, predicted, average="macro", zero_division=0.0))
    error = np.asarray(predicted, np.float64) - y
    return float(np.abs(error).mean() if metric == "mae" else np.sqrt(np.square(error).mean()))


def standard_error(metric: str, y: Any, predicted: Any) -> float:
    """Return the standard deviation of a metric over resamples of the held-out part.

    Where hardly any answer is wrong, resamples say nothing: that of an accuracy is at least the one of Agresti and
    Coull (The American Statistician 1998).
    """
    rng, least = np.random.default_rng(0), 0.0
    if metric == "accuracy":
        count = np.size(y) + 4
        share = (np.sum(y == predicted) + 2) / count
        least = math.sqrt(share * (1 - share) / count)
    rows = (rng.integers(0, len(y), len(y)) for _ in range(RESAMPLES))
    return max(least, statistics.stdev(score(metric, y[own], predicted[own]) for own in rows))


def ours(data: RealSet, place: Path, words: Sequence[str]) -> tuple[Outcome, str]:
    """Return what a command line reports, or the worst figure there is and why."""
    command = [sys.executable, "-m", "dl4jlegacy", *words[1:], "--format", "json"]
    done = subprocess.run(
        command, cwd=place.parent, env=measured.ENVIRONMENT, capture_output=True, text=True, check=False, timeout=LINE
    )
    try:
        report = json.loads(done.stdout)  # also of a run that learned nothing, whose exit status says so
        return Outcome(float(report[data.metric]), 0.0, float(report["seconds"])), ""
    except (ValueError, KeyError, TypeError):
        why = done.stderr.strip() if done.returncode else f"its report has no {data.metric}"
        return Outcome(0.0 if data.has_classes else math.inf, 0.0, 0.0), f"failed ({done.returncode}): {why}"


def theirs(peer: Peer, data: RealSet, parts: Parts, seed: int, seconds: float) -> Outcome:
    """Return what a peer reaches; one that has equal time trains for so many seconds."""
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # not converged; words that only the held-out part has
        predicted, y = LEARNERS[peer](data, parts, seed, seconds), parts.y_test
    took = time.perf_counter() - began
    if data.kind == "sequences":
        predicted, y = predicted.reshape(-1), y.reshape(-1)
    return Outcome(score(data.metric, y, predicted), standard_error(data.metric, y, predicted), took)


# -- peers: each returns its predictions of the held-out part ----------------------------------------------------------


def trivial(data: RealSet, parts: Parts, *_: Any) -> Any:
    """Return the answer of somebody who has learned nothing."""
    if data.kind == "series":
        return parts.x_test["lag1"].to_numpy()
    if data.has_classes:
        names, counts = np.unique(parts.y, return_counts=True)
        return np.full(parts.y_test.shape, names[counts.argmax()])
    return np.full(len(parts.y_test), np.median(parts.y) if data.metric == "mae" else np.mean(parts.y))


def encoded(words: Any, numbers: Any) -> Any:
    """Return a transformer with one part for the columns of words, and one for those of numbers."""
    from sklearn.compose import ColumnTransformer, make_column_selector

    return ColumnTransformer(
        [
            ("words", words, make_column_selector(dtype_exclude=np.number)),
            ("numbers", numbers, make_column_selector(dtype_include=np.number)),
        ]
    )


def as_words(table: Any) -> Any:
    """Return a table with texts in all columns but those of numbers, gaps among them as None."""
    words = table.select_dtypes(exclude=np.number).columns
    return table.assign(**{name: table[name].astype(object).where(table[name].notna(), None) for name in words})


def fitted(model: Any, data: RealSet, parts: Parts) -> Any:
    """Return a scikit-learn model's predictions; the labels of regressions are standardized for it."""
    from sklearn.compose import TransformedTargetRegressor
    from sklearn.preprocessing import StandardScaler

    if not data.has_classes:
        model = TransformedTargetRegressor(model, transformer=StandardScaler())
    return model.fit(as_words(parts.x), parts.y).predict(as_words(parts.x_test))


def mlp(data: RealSet, parts: Parts, seed: int, _: float) -> Any:
    from sklearn.impute import SimpleImputer
    from sklearn.neural_network import MLPClassifier, MLPRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    gap = SimpleImputer(strategy="constant", fill_value="missing", missing_values=None)
    words = make_pipeline(gap, OneHotEncoder(handle_unknown="ignore"))
    numbers = make_pipeline(SimpleImputer(strategy="median"), StandardScaler())
    model = (MLPClassifier if data.has_classes else MLPRegressor)(random_state=seed)
    return fitted(make_pipeline(encoded(words, numbers), model), data, parts)


def hgb(data: RealSet, parts: Parts, seed: int, _: float) -> Any:
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OrdinalEncoder

    words = OrdinalEncoder(
        handle_unknown="use_encoded_value", unknown_value=np.nan, encoded_missing_value=np.nan, max_categories=250
    )
    kind = HistGradientBoostingClassifier if data.has_classes else HistGradientBoostingRegressor
    count = parts.x.shape[1] - parts.x.select_dtypes(include=np.number).shape[1]
    model = kind(categorical_features=list(range(count)) or None, random_state=seed)
    return fitted(make_pipeline(encoded(words, "passthrough"), model), data, parts)


def realmlp(data: RealSet, parts: Parts, seed: int, _: float) -> Any:
    from pytabkit import RealMLP_TD_S_Classifier, RealMLP_TD_S_Regressor
    from sklearn.impute import SimpleImputer

    gap = SimpleImputer(strategy="constant", fill_value="missing", missing_values=None)
    fill = encoded(gap, SimpleImputer(strategy="median")).set_output(transform="pandas")
    train, test = fill.fit_transform(as_words(parts.x)), fill.transform(as_words(parts.x_test))
    words = [name for name in train.columns if name.startswith("words__")]
    model = (RealMLP_TD_S_Classifier if data.has_classes else RealMLP_TD_S_Regressor)(
        random_state=seed, device="cpu", n_threads=measured.cores()
    )
    return model.fit(train, parts.y, cat_col_names=words).predict(test)


def pixels(_: RealSet, parts: Parts, seed: int, __: float) -> Any:
    from sklearn.neural_network import MLPClassifier

    flat, test = (x.reshape(len(x), -1) for x in (parts.x, parts.x_test))
    return MLPClassifier(random_state=seed).fit(flat, parts.y).predict(test)


def most_frequent(contexts: Iterable[Any], following: Iterable[int]) -> dict[Any, int]:
    """Return what most often followed each context; of equally frequent ones the lowest number."""
    counts = Counter(zip(contexts, following, strict=True))
    ordered = sorted(counts.items(), key=lambda item: (item[1], -item[0][1]))
    return {context: token for (context, token), _ in ordered}


def bigrams(_: RealSet, parts: Parts, *__: Any) -> Any:
    follows, else_ = most_frequent(parts.x, parts.y), np.bincount(parts.y).argmax()
    return np.array([follows.get(token, else_) for token in parts.x_test])


def trigrams(data: RealSet, parts: Parts, *_: Any) -> Any:
    follows = most_frequent(zip(parts.x[:-1], parts.x[1:], strict=True), parts.y[1:])
    before = [parts.y[-1], *parts.x_test[:-1]]
    pairs = zip(before, parts.x_test, bigrams(data, parts), strict=True)
    return np.array([follows.get((first, second), else_) for first, second, else_ in pairs])


def lenet(_: RealSet, parts: Parts, seed: int, seconds: float) -> Any:
    import torch
    from torch import nn

    x, test = (torch.from_numpy(as_channels(own)) for own in (parts.x, parts.x_test))
    names, y = np.unique(parts.y, return_inverse=True)
    torch.manual_seed(seed)
    layers = nn.Sequential(
        nn.Conv2d(x.shape[1], 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.LazyLinear(120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, len(names)),
    )  # fmt: skip
    layers(x[:1])
    return names[trained(layers, x, torch.from_numpy(y), test, seconds)]


def as_channels(x: np.ndarray) -> np.ndarray:
    """Return pictures as ``(pictures, channels, height, width)``."""
    return np.ascontiguousarray(x[:, None] if x.ndim == 3 else x.transpose(0, 3, 1, 2))


def lstm(data: RealSet, parts: Parts, seed: int, seconds: float) -> Any:
    import torch
    from torch import nn

    class Recurrent(nn.Module):
        def __init__(self, first: nn.Module, width: int, classes: int) -> None:
            super().__init__()
            self.first, self.lstm = first, nn.LSTM(width, WIDTH, batch_first=True)
            self.last = nn.Linear(WIDTH, classes)

        def forward(self, x: Any) -> Any:
            return self.last(self.lstm(self.first(x))[0])

    torch.manual_seed(seed)
    if data.kind == "sequences":
        names, y = np.unique(parts.y, return_inverse=True)
        layers = Recurrent(nn.Identity(), parts.x.shape[2], len(names))
        x, test = torch.from_numpy(parts.x), torch.from_numpy(parts.x_test)
        return names[trained(layers, x, torch.from_numpy(y.reshape(parts.y.shape)), test, seconds)]
    starts = np.arange(0, len(parts.x) - parts.length, parts.length // 2)
    places = starts[:, None] + np.arange(parts.length)
    x, y = torch.from_numpy(parts.x[places]), torch.from_numpy(parts.y[places])
    layers = Recurrent(nn.Embedding(parts.sizes, EMBEDDING), EMBEDDING, parts.sizes)
    return trained(layers, x, y, torch.from_numpy(parts.x_test.reshape(-1, parts.length)), seconds).reshape(-1)


def trained(layers: Any, x: Any, y: Any, test: Any, seconds: float) -> Any:
    """Train with Adam for so many seconds, at least one epoch; return the most probable classes."""
    import torch

    torch.set_num_threads(measured.cores())
    adam, loss = torch.optim.Adam(layers.parameters(), RATE), torch.nn.CrossEntropyLoss()
    ends, epoch = time.perf_counter() + seconds, 0
    while epoch == 0 or time.perf_counter() < ends:
        for rows in torch.randperm(len(x)).split(BATCH):
            if epoch and time.perf_counter() > ends:
                break
            adam.zero_grad()
            loss(layers(x[rows]).flatten(0, -2), y[rows].flatten()).backward()
            adam.step()
        epoch += 1
    with torch.no_grad():
        return np.concatenate([layers(own).argmax(-1).numpy() for own in test.split(256)])


LEARNERS: Mapping[Peer, Callable[..., Any]] = {
    sets.TRIVIAL: trivial,
    sets.MLP: mlp,
    sets.HGB: hgb,
    sets.REALMLP: realmlp,
    sets.PIXELS: pixels,
    sets.LENET: lenet,
    sets.LSTM: lstm,
    sets.BIGRAMS: bigrams,
    sets.TRIGRAMS: trigrams,
}


# -- the verdict -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Verdict:
    """What has to be reached: a count of sets, or a median; ``value`` is None if no set could tell."""

    name: str
    value: float | None
    goal: float
    at_least: bool = True


def counted(name: str, reached: Sequence[bool], goal: int) -> Verdict:
    """Return the verdict that ``goal`` of some sets have to reach something."""
    return Verdict(f"{name}, of {len(reached)}", float(sum(reached)) if reached else None, goal)


def middle(name: str, values: Sequence[float], goal: float, *, at_least: bool = True) -> Verdict:
    """Return the verdict that a median has to reach ``goal``."""
    return Verdict(name, statistics.median(values) if values else None, goal, at_least)


def verdicts(rows: Sequence[Row], rules: sets.Rules = sets.RULES) -> list[Verdict]:
    """Return what was to be reached, and what was."""
    bases = [(row, row.best(("trivial", "mlp"))) for row in rows]
    tables = [row for row in rows if row.data.is_table]
    boosted = [row for row in tables if "hgb" in row.peers]
    amounts = [row for row in boosted if not row.data.has_classes]
    near = [
        row.ahead("hgb") >= -rules.near_points
        if row.data.has_classes
        else row.ours.value <= rules.near_ratio * row.peers["hgb"].value
        for row in boosted
    ]
    real = [row for row in tables if "realmlp" in row.peers]
    pictures = [row.ahead("lenet") >= 0 for row in rows if "lenet" in row.peers]
    words = [row.ahead("trigrams") >= -row.margin("trigrams") for row in rows if row.data.kind == "words"]
    series = [row.ahead("trivial") > 0 for row in rows if row.data.kind == "series"]
    timely = [
        row.ours.seconds <= max(rules.seconds, rules.times_mlp * row.peers["mlp"].seconds)
        for row in tables
        if "mlp" in row.peers
    ]
    within = [row.ahead(base) >= -row.margin(base) for row, base in bases]
    never = [row.ahead(base) >= -2 * row.margin(base) for row, base in bases]
    return [
        counted(">= trivial and MLP, less m", within, len(rows) - len(rows) // rules.sets_for_a_miss),
        counted("never below them by 2 m", never, len(rows)),
        middle("accuracy less HGB's, median", [r.ahead("hgb") for r in boosted if r.data.has_classes], 0.0),
        middle("error over HGB's, median", [r.ours.value / r.peers["hgb"].value for r in amounts], 1.0, at_least=False),
        counted("within 2 points or 1.1 x of HGB", near, math.ceil(rules.near_hgb * len(near))),
        middle("ahead of RealMLP in m, median", [r.ahead("realmlp") / r.margin("realmlp") for r in real], -1.0),
        counted("images >= LeNet", pictures, len(pictures)),
        counted("words >= trigrams, less m", words, len(words)),
        counted("series better than the last value", series, len(series)),
        counted("tables in 3 x the MLP's time or 3 s", timely, len(timely)),
    ]


# -- the run -----------------------------------------------------------------------------------------------------------


class Kept:
    """The peers' figures of a file, so that they are measured once; those of equal time are not kept."""

    def __init__(self, path: str) -> None:
        self.path = Path(path) if path else None
        lines = self.path.read_text(encoding="utf-8").splitlines() if self.path and self.path.exists() else []
        self.known = {tuple(key): Outcome(**outcome) for key, outcome in map(json.loads, lines)}

    def of(self, peer: Peer, data: RealSet, parts: Parts, seed: int, seconds: float) -> Outcome:
        """Return what a peer reaches, known or measured now."""
        key = (data.name, seed, peer.name)
        if key in self.known and not peer.equal_time:
            return self.known[key]
        found = theirs(peer, data, parts, seed, seconds)
        if self.path is not None and not peer.equal_time:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps([key, asdict(found)]) + "\n")
        return found


def measure(data: RealSet, report: measured.Report, kept: Kept, arguments: Any) -> Row:
    """Return the medians of a set."""
    found = data.make()
    mine: list[Outcome] = []
    peers: dict[str, list[Outcome]] = {}
    for seed in sets.seeds(data, found)[: 1 if arguments.quick else None]:
        with tempfile.TemporaryDirectory(prefix="dl4j-bench-", dir=os.environ.get("TMPDIR")) as name:
            place = Path(name) / (f"{data.name}-files" if data.kind not in sets.TEXTS else f"{data.name}.txt")
            parts = sets.write(data, found, place, seed)
            words = ["dl4j", "train", place.name, *data.options, "--seed", str(seed), *shlex.split(arguments.train)]
            outcome, failure = ours(data, place, words)
        if failure or not mine:
            report.say(f"{shlex.join(words)} {failure}".rstrip())
        mine.append(outcome)
        for peer in sets.PEERS[data.kind]:
            if command_line.is_installed(peer.needs):
                peers.setdefault(peer.name, []).append(kept.of(peer, data, parts, seed, outcome.seconds))
    row = Row(data, Outcome.median(mine), {name: Outcome.median(of) for name, of in peers.items()})
    report.say(line_of(row))
    return row


COLUMNS = list(dict.fromkeys(peer.name for peers in sets.PEERS.values() for peer in peers))


def heading() -> str:
    return f"{'set':<13}{'metric':<10}{'ours':>10}" + "".join(
        f"{name:>10}" for name in (*COLUMNS, "m", "seconds", "mlp's")
    )


def line_of(row: Row) -> str:
    """Return the line of the table; ``-``: no peer of this kind of set, or it is not installed."""
    peers = [f"{row.peers[name].value:.4g}" if name in row.peers else "-" for name in COLUMNS]
    base = row.best(("trivial", "mlp"))
    times = [f"{row.ours.seconds:.1f}", f"{row.peers['mlp'].seconds:.1f}" if "mlp" in row.peers else "-"]
    cells = [f"{row.ours.value:.4g}", *peers, f"{row.margin(base) * row.unit:.2g}", *times]
    return f"{row.data.name:<13}{row.data.metric:<10}" + "".join(f"{cell:>10}" for cell in cells)


def main(given: list[str] | None = None) -> int:
    """Train on all; return the exit status, 1 if something is not reached."""
    parser = command_line.cluster_parser(__doc__)
    names = [data.name for data in sets.ALL]
    parser.add_argument("--sets", nargs="+", choices=names, metavar="NAME", help=f"some of {', '.join(names)}")
    parser.add_argument(
        "--quick", action="store_true", help=f"one seed; {', '.join(sets.QUICK)} unless there are --sets"
    )
    parser.add_argument(
        "--keep", default="", metavar="FILE", help="measure peers once: write figures there, and read them"
    )
    parser.add_argument("--train", default="", metavar="OPTIONS", help="more options of dl4j train")
    arguments = parser.parse_args(given)
    chosen = arguments.sets or (sets.QUICK if arguments.quick else names)
    every = [data for data in sets.ALL if data.name in chosen]
    command_line.require("sklearn", "pandas", "PIL", *{data.needs for data in every})
    report = measured.Report("real data, beside other programs", arguments.format)
    peers = dict.fromkeys(peer for data in every for peer in sets.PEERS[data.kind])
    absent = sorted({peer.needs for peer in peers if not command_line.is_installed(peer.needs)})
    for peer in peers:
        report.say(f"{peer.name}: {peer.says}{'; not installed' if peer.needs in absent else ''}")
    report.say(heading())
    kept = Kept(arguments.keep)
    rows = [measure(data, report, kept, arguments) for data in every]
    for row in rows:
        report.add(f"{row.data.name}: {row.data.metric}", row.ours.value, "")
    for verdict in verdicts(rows):
        if verdict.value is None:
            report.say(f"{verdict.name}: not measured")
        else:
            report.add(verdict.name, verdict.value, "", verdict.goal, at_least=verdict.at_least)
    report.details["absent"] = absent
    report.details["sets"] = [
        {"set": row.data.name, "metric": row.data.metric, "ours": asdict(row.ours)}
        | {name: asdict(outcome) for name, outcome in row.peers.items()}
        for row in rows
    ]
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
