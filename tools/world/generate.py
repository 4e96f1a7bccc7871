"""Generate the embedded world, whose labels follow from the meaning of its sentences.

Sentences are made from a small formal semantics (`meaning`) by many wordings (`text`), so similarity and entailment follow from
meaning and not from shared words. Usage, from the root of the repository: ``python -m tools.world.generate``. A change of any
table needs a new `WORLD_VERSION` in `raysts/data/world.py`.
"""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tools.world import facts, tables, tasks
from tools.world.lexicon import ACTIONS, KINDS
from tools.world.tables import SIZES, STS_SUBSETS, Row, Writer, nli_rows, sick_rows, sts_rows
from tools.world.text import FUNCTION_WORDS, all_surfaces, inflect, plural

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
SUFFIXES = ("s", "es", "ing", "ed", "d")


def world_tables(seed: int, size: str) -> Iterator[tuple[str, list[Row]]]:
    """Yield (name, rows) of every table. The same seed gives the same rows.

    Facts of train, dev and test are the same partition for every seed.
    """
    sizes = SIZES[size]
    articles, sentences = Writer(seed, "wikipedia", "train").articles(sizes.articles, sizes.sentences_per_article)
    yield "wikipedia/articles", articles
    yield "wikipedia/sentences", Writer(seed, "wikipedia/order", "train").draws.shuffled(sentences)
    yield "nli/train", nli_rows(seed, "nli/train", "train", sizes.nli_train)
    yield "nli/snli_dev", nli_rows(seed, "nli/snli_dev", "dev", sizes.nli_eval)
    yield "nli/snli_test", nli_rows(seed, "nli/snli_test", "test", sizes.nli_eval)
    subsets = tuple(tables.PROFILES)
    for split in facts.SPLITS:
        rows = sizes.sts_train if split == "train" else sizes.sts_eval
        yield f"sts/stsb_{split}", sts_rows(seed, f"sts/stsb_{split}", split, rows, subsets)
    for name, year_subsets in STS_SUBSETS.items():
        yield f"sts/{name}", sts_rows(seed, f"sts/{name}", "test", sizes.sts_year, year_subsets)
    for name, split in (("train", "train"), ("trial", "dev"), ("test", "test")):
        yield f"sick/sick_{name}", sick_rows(seed, f"sick/sick_{name}", split, sizes.sick)
    yield from tasks.task_tables(seed, sizes.transfer)


def write_world(path: Path, seed: int = 0, size: str = "default") -> None:
    """Write the tables in the canonical layout. ``size``: `default`, or `small` for quick tests."""
    for name, rows in world_tables(seed, size):
        file = path / f"{name}.parquet"
        file.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(rows), file, compression="zstd")


def world_words() -> list[str]:
    """Return every word form that a sentence may contain, in lower case, sorted."""
    phrases = [
        *FUNCTION_WORDS,
        *(surface for _, surface in all_surfaces()),
        *(plural(form) for kind in KINDS.values() for form in kind.forms),
        *(form for action in ACTIONS.values() for verb in action.forms for form in inflect(verb).values()),
    ]
    return sorted({word for phrase in phrases for word in phrase.lower().split()})


def world_vocabulary() -> list[str]:
    """Return the word pieces: special tokens, suffixes, then the words that are not stem plus suffix."""
    words = set(world_words())
    pieces = [word for word in sorted(words) if _stem(word, words) is None]
    return [*SPECIAL_TOKENS, *(f"##{suffix}" for suffix in SUFFIXES), *pieces]


def _stem(word: str, words: set[str]) -> str | None:
    """Return the longest other word of which this one is an inflection by a mere suffix, if any."""
    for suffix in sorted(SUFFIXES, key=len):
        stem = word.removesuffix(suffix)
        if stem != word and len(stem) > 2 and stem in words and _stem(stem, words) is None:
            return stem
    return None


if __name__ == "__main__":
    from raysts.data.world import EMBEDDED

    write_world(EMBEDDED)
    for name, lines in (("words.txt", world_words()), ("vocab.txt", world_vocabulary())):
        (EMBEDDED / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"wrote {EMBEDDED}")
