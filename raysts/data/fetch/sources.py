"""Where the public data sets are: repository, commit, split (or file) and number of rows, by canonical table."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Source:
    """One split of one hub data set, or one file of a GitHub repository (``file``; ``dataset`` is then the repository).

    ``revision`` is the full commit; None where no commit could be verified when this table was written: then ``branch``
    is resolved at fetch time, said aloud and recorded. ``rows`` is what the split holds.
    """

    dataset: str
    split: str
    rows: int
    shape: str
    revision: str | None
    config: str | None = None
    branch: str = "main"
    name: str | None = None
    file: str | None = None


@dataclass(frozen=True, slots=True)
class Archive:
    """A zip archive on the web: its address, its SHA-256, and the text file that is wanted of it."""

    url: str
    sha256: str
    member: str


def _sts(year: int, rows: int, revision: str) -> Source:
    return Source(f"mteb/sts{year}-sts", "test", rows, "sts", revision)


def _stsb(split: str, rows: int) -> Source:
    return Source("mteb/stsbenchmark-sts", split, rows, "sts", "b0fddb56ed78048fa8b90373c8a3cfc37b684831")


def _sick(split: str, rows: int) -> Source:
    # The main branch is a loading script, which ``datasets`` no longer runs; the hub keeps it as Parquet on this one.
    # It is the corrected release of 9,840 pairs; that of SemEval 2014 had 4,500 + 500 + 4,927.
    return Source("RobZamp/sick", split, rows, "sick", None, branch="refs/convert/parquet")


def _snli(split: str, rows: int) -> Source:
    revision = "cdb5c3d5eed6ead6e5a341c8e56e669bb666725b"
    return Source("stanfordnlp/snli", split, rows, "nli", revision, config="plain_text", name="snli")


def _texts(dataset: str, revision: str | None, **rows: int) -> tuple[Source, ...]:
    return tuple(Source(dataset, split, count, "text", revision) for split, count in rows.items())


def _sst5(split: str, rows: int) -> tuple[Source, ...]:
    return _texts("SetFit/sst5", "e51bdcd8cd3a30da231967c1a249ba59361279a3", **{split: rows})


def _trec(split: str, rows: int) -> tuple[Source, ...]:
    # A commit of refs/convert/parquet: the main branch is a loading script.
    return (Source("CogComp/trec", split, rows, "trec", "65752bf53af25bc935a0dce92fb5b6c930728450"),)


def _mrpc(split: str, rows: int) -> Source:
    return Source("nyu-mll/glue", split, rows, "paraphrase", "bcdcba79d07bc864c1c254ccfcedcce55bcc9a8c", config="mrpc")


_PHRASES = ("stanfordnlp/sst2", "8d51e7e4887a4caaa95b3fbebbf53c0490b58bbb")
"""SST-2 with the phrases that SentEval trains on; its test split has no labels."""


def _similarity(file: str, name: str, rows: int) -> Source:
    revision = "94b3dd9fdbac7ed08dbee7179cd5ee464acf0594"
    path = f"data/word-sim/EN-{file}.txt"
    return Source("mfaruqui/eval-word-vectors", "test", rows, "word_similarity", revision, name=name, file=path)


def _words(kind: str, file: str, name: str, rows: int) -> Source:
    revision = "9b61d0e067e2e68af22160d09450f82d9544cd70"
    path = f"{kind.replace('_', '-')}/monolingual/en/{file}.csv"
    return Source("vecto-ai/word-benchmarks", "test", rows, kind, revision, name=name, file=path)


SOURCES: dict[str, tuple[Source, ...]] = {
    "sts/sts12": (_sts(12, 3_108, "a0d554a64d88156834ff5ae9920b964011b16384"),),
    "sts/sts13": (_sts(13, 1_500, "7e90230a92c190f1bf69ae9002b8cea547a64cca"),),
    "sts/sts14": (_sts(14, 3_750, "6031580fec1f6af667f0bd2da0a551cf4f0b2375"),),
    "sts/sts15": (_sts(15, 3_000, "ae752c7c21bf194d8b67fd573edf7ae58183cbe3"),),
    "sts/sts16": (_sts(16, 1_186, "4d8694f8f0e0100860b497b999b3dbed754a0513"),),
    "sts/stsb_train": (_stsb("train", 5_749),),
    "sts/stsb_dev": (_stsb("validation", 1_500),),
    "sts/stsb_test": (_stsb("test", 1_379),),
    "sick/sick_train": (_sick("train", 4_439),),
    "sick/sick_trial": (_sick("validation", 495),),
    "sick/sick_test": (_sick("test", 4_906),),
    "nli/train": (
        _snli("train", 550_152),
        Source("nyu-mll/multi_nli", "train", 392_702, "nli", "da70db2af9d09693783c3320c4249840212ee221", name="mnli"),
    ),
    "nli/snli_dev": (_snli("validation", 10_000),),
    "nli/snli_test": (_snli("test", 10_000),),
    "senteval/mr": _texts(
        "cornell-movie-review-data/rotten_tomatoes", "aa13bc287fa6fcab6daf52f0dfb9994269ffea28",
        train=8_530, validation=1_066, test=1_066,
    ),
    "senteval/cr": _texts("SetFit/SentEval-CR", None, train=3_012, test=753),
    "senteval/mpqa": _texts("rahulsikder223/SentEval-MPQA", None, train=8_484, test=2_122),
    "senteval/subj": _texts("SetFit/subj", "2eba632847a64707391116d7e9b3cd72c700c5e6", train=8_000, test=2_000),
    "senteval/sst2_train": _texts(*_PHRASES, train=67_349),
    "senteval/sst2_dev": _texts(*_PHRASES, validation=872),
    "senteval/sst2_test": _texts("SetFit/sst2", "00ea8ccb7a54b4e3780a3e51aa3f80361ff849c0", test=1_821),
    "senteval/sst5_train": _sst5("train", 8_544),
    "senteval/sst5_dev": _sst5("validation", 1_101),
    "senteval/sst5_test": _sst5("test", 2_210),
    "senteval/trec_train": _trec("train", 5_452),
    "senteval/trec_test": _trec("test", 500),
    "senteval/mrpc_train": (_mrpc("train", 3_668), _mrpc("validation", 408)),
    "senteval/mrpc_test": (_mrpc("test", 1_725),),
    "web/word_similarity": (
        _similarity("WS-353-ALL", "WS353", 353), _similarity("WS-353-SIM", "WS353-SIM", 203),
        _similarity("WS-353-REL", "WS353-REL", 252), _similarity("SIMLEX-999", "SimLex999", 999),
        _similarity("MEN-TR-3k", "MEN", 3_000), _similarity("RW-STANFORD", "RW", 2_034),
        _similarity("MTurk-287", "MTurk287", 287), _similarity("MTurk-771", "MTurk771", 771),
        _similarity("RG-65", "RG65", 65), _similarity("MC-30", "MC30", 30),
        _similarity("SimVerb-3500", "SimVerb3500", 3_500), _similarity("YP-130", "YP130", 130),
        _similarity("VERB-143", "VERB143", 144),
    ),
    "web/word_analogy": (
        _words("word_analogy", "google-analogies", "Google", 19_544), _words("word_analogy", "msr", "MSR", 8_000),
        _words("word_analogy", "semeval", "SemEval2012_2", 10_014), _words("word_analogy", "sat", "SAT", 5_610),
    ),
    "web/word_categorization": (
        _words("word_categorization", "ap", "AP", 402), _words("word_categorization", "bless", "BLESS", 217),
        _words("word_categorization", "battig", "Battig", 5_321),
        _words("word_categorization", "essli-2008", "ESSLLI2008", 45),
    ),
    "wikipedia/articles": (
        Source(
            "wikimedia/wikipedia", "train", 6_407_814, "articles", "b04c8d1ceb2f5cd4588862100d08de323dccfbaa",
            config="20231101.en",
        ),
    ),
}  # fmt: skip
"""Canonical tables that can be fetched, and from where. The revisions are those that public projects pin."""

SHARDED = frozenset({"wikipedia/articles"})
"""Tables written as a folder of shards."""

_GLOVE = (
    "https://nlp.stanford.edu/data/glove.6B.zip",
    "617afb2fe6cbd085c235baf7a465b96f4112bd7f7ccb2b2cbd649fed9cbcf2fb",
)

VECTORS: dict[str, Archive] = {
    f"words/glove.6B.{dimensions}d": Archive(*_GLOVE, f"glove.6B.{dimensions}d.txt")
    for dimensions in (50, 100, 200, 300)
}
"""Word vectors that can be fetched, as text files of that name; only when they are asked for, since they are large."""
