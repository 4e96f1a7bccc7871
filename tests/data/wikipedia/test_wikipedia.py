from __future__ import annotations

import bz2
import tracemalloc
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from raysts.data.corpora import Corpus
from raysts.data.wikipedia import wikipedia
from raysts.data.wikipedia.markup import HOLE, strip_markup
from raysts.data.wikipedia.wikipedia import clean, dedup_key, is_well_formed, read_dump, split_sentences
from raysts.errors import InputError

MARKUP = """{{Infobox person
| name = Ada {{small|Byron}}
| born = [[London]]
}}
[[File:Ada.jpg|thumb|left|A portrait of [[Ada Lovelace|Ada]] by {{ill|A. Painter|de}}]]
'''Ada''' ({{IPAc-en|ˈ|eɪ|d|ə}}; {{lang-grc|Ἄδα}}, ''Ada'') was a [[mathematician]].\
<ref name="a">{{cite book|title=X}}</ref> She wrote{{sfn|Toole|1998|p=5}} \
[[Analytical Engine|programs]] for [[engine]]s &amp; lived {{convert|10|km|mi}} from town.<ref name="b" />

== Life == <!-- a comment
over lines -->
{| class="wikitable"
|-
| cell || {{flag|UK}}
{|
| nested
|}
|}
* She met [http://example.org/x Charles Babbage] in&nbsp;1833.
The value is <math>x^2</math> in this {{unknown thing|5}} formula.<br />A new line with <sup>raised</sup> text.
[[Category:People]] [[de:Ada]] [[:Category:Shown]] and [[Foo (bar)|]].

== References ==
{{reflist}}
Never shown is what comes after the references here.
"""


def test_clean_markup() -> None:
    assert clean(MARKUP).split("\n") == [
        "Ada (Ἄδα, Ada) was a mathematician. She wrote programs for engines & lived 10 km from town.",
        "Life",
        "She met Charles Babbage in 1833.",
        f"The value is {HOLE} in this {HOLE} formula.",
        "A new line with raised text.",
        "Category:Shown and Foo.",
    ]


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        ("'''a''' {{never closed [[b]] c", "a never closed b c"),
        ("'''a''' b]] }} c", "a b c"),
        ("[[a|{{b]] c '''d'''", "b c d"),
        ("x {{a|{{b|{{c}}}}}} '''y'''", f"x {HOLE} y"),
        ("'''a'''{{spaced ndash}}b {{circa|1900}} {{as of|2014}}", "a – b c. 1900 As of 2014"),
        ("'''a''' ({{listen|x}}; ) b", "a b"),
        ("[[Image:x.png|a [[b]] [[c|d]]]]'''e'''", "e"),
    ],
)
def test_clean_unbalanced_and_templates(markup: str, text: str) -> None:
    assert clean(markup) == text


@pytest.mark.parametrize(
    "unit",
    [
        "[http://a ",
        "[//",
        "[[ }}",
        "{{ ]]",
        "<ref>",
        "<ref>x<math>",
        "=",
        " , ",
        " ;",
        "\t",
        ";\n",
        ".",
        "( \n",
        "]",
        "a",
    ],
)
def test_the_time_for_hostile_markup_grows_with_its_length(unit: str) -> None:
    """Where it grew with the square, each of these would take minutes."""
    assert split_sentences(clean("'''x" + unit * (300_000 // len(unit)))) == []


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        ("[http://a b c] [//d] [http://e\nf g] h", "b c  f g h"),
        ("[http://a b\nc] [ftp://d e]", "[http://a b\nc] e"),
        ("a<ref>b</ref>c<REF name=x>d</Ref >e<ref>f", "acef"),
        ("x\n== A ==\ny\n=== B==\n=====\n= =", "x\n\nA\n\ny\n\n= B\n\n\n=\n\n\n \n"),
        ("a ( ;, ) b (; c ,) d", "a b (c) d"),
    ],
)
def test_markup_that_is_odd(markup: str, text: str) -> None:
    assert strip_markup(markup) == text


def test_clean_leaves_plain_text_alone() -> None:
    text = "A 5'' gun & a 3 < 4 rule.\n\n\n  The  second\tparagraph.  "
    assert clean(text) == "A 5'' gun & a 3 < 4 rule.\nThe second paragraph."
    assert clean("Kept text.\nReferences\nGone.") == "Kept text."
    assert clean("e\u0301") == "é"


@pytest.mark.parametrize(
    "sentences",
    [
        [
            "Dr. J. R. Smith met Mr. Jones at 5.30 p.m. on Jan. 3 in St. Louis.",
            "They talked about No. 5 and about Vol. 2 of it.",
        ],
        [
            "The firm was called Smith Inc. until the year it closed.",
            "It was sold to Jones Ltd.",
            "The owner then moved away to the south.",
        ],
        [
            "He moved to the U.S. Army base in the early spring.",
            "He lived for many years in the U.S.",
            "The family stayed in their old home.",
        ],
        [
            'She said "I will never go there again."',
            "Nobody believed what she said on that day!",
            '"Why not?" they asked her in the evening.',
        ],
        ["The river is 3.5 km long and 1.2 m deep there.", "2010 saw the club demoted by two whole leagues."],
        ["It was cold, at -100 C.", "These values could crack the shield of the craft."],
        [
            "The name comes from E. coli and from I. A. Richards, they say.",
            "(It was e.g. used here as an example of it.)",
        ],
    ],
)
def test_boundaries(sentences: list[str]) -> None:
    assert split_sentences(" ".join(sentences)) == [sentence for sentence in sentences if is_well_formed(sentence)]
    assert any(is_well_formed(sentence) for sentence in sentences)


def test_a_sentence_never_crosses_a_line() -> None:
    assert split_sentences(
        "A heading\nThe first line has one whole sentence.\nand a rest that starts in lower case."
    ) == ["The first line has one whole sentence."]


@pytest.mark.parametrize(
    "sentence",
    [
        "Only five words are here.",
        "This has " + "very " * 60 + "many words.",
        "this one starts with a lower case letter.",
        "This one has no full stop at the end",
        "This one has a remnant ( ; here) in the middle.",
        "This one is spaced , like tokenised text .",
        "This one has (one bracket that never closes here.",
        'This one has "one quote that never closes here.',
        "This one links to http://example.org in its middle.",
        "This one has markup [[left over]] in its middle.",
        f"This one has a hole {HOLE} in its middle.",
        "This One Has No Lower Case Words At All.",
        "In 1999, 12 34 56 78 90 12 34 56 78 90.",
        "- This one starts with a dash and a blank.",
        "This one ends in two stops at the end..",
    ],
)
def test_not_well_formed(sentence: str) -> None:
    assert not is_well_formed(sentence)


def test_well_formed() -> None:
    for sentence in (
        "This sentence has just six words.",
        "2010 saw the club demoted two leagues.",
        '"This one starts and ends with quotes," he said.',
        'He called it "the end of all this".',
        "Élan vital is a term of old philosophy (1907).",
        "Is this what we were all waiting for?",
        "The word " + "very " * 57 + "end.",
    ):
        assert is_well_formed(sentence), sentence


def test_dedup_key_ignores_numbers_case_and_form() -> None:
    key = dedup_key("It had 1,234.5 people in 2010.")
    assert len(key) == 16
    assert key == dedup_key("it  HAD 7 people in 1999.")
    assert key != dedup_key("It had many people in 2010.") and key != dedup_key("It had 1 people in May.")
    assert dedup_key("ﬁne work") == dedup_key("fine work")


def _page(number: int, text: str, ns: int = 0, redirect: bool = False) -> str:
    return (
        f"<page><title>T{number}</title><ns>{ns}</ns><id>{number}</id>{'<redirect />' if redirect else ''}"
        f"<revision><id>{1000 + number}</id><contributor><id>5</id></contributor><text>{text}</text></revision></page>"
    )


def _dump(pages: str) -> bytes:
    head = '<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.10/"><siteinfo><sitename>W</sitename></siteinfo>'
    return f"{head}{pages}</mediawiki>".encode()


def test_read_dump(tmp_path: Path) -> None:
    pages = (
        _page(1, "first &amp; &lt;ref&gt;x&lt;/ref&gt;") + _page(2, "talk", ns=1) + _page(3, "gone", redirect=True)
        + _page(4, "#REDIRECT [[T1]]") + _page(5, "") + _page(6, "last")
    )  # fmt: skip
    for name, data in (("d.xml", _dump(pages)), ("d.xml.bz2", bz2.compress(_dump(pages)))):
        (tmp_path / name).write_bytes(data)
        assert list(read_dump(tmp_path / name)) == [(1, "T1", "first & <ref>x</ref>"), (6, "T6", "last")]


def test_read_dump_that_was_cut_short(tmp_path: Path) -> None:
    whole = _dump(_page(1, "first") + _page(2, "second"))
    (tmp_path / "a.xml").write_bytes(whole[:-60])
    (tmp_path / "b.xml.bz2").write_bytes(bz2.compress(whole)[:-20])
    for path in (tmp_path / "a.xml", tmp_path / "b.xml.bz2"):
        with pytest.raises(InputError, match="download it again"):
            list(read_dump(path))
    with pytest.raises(InputError, match="does not exist"):
        list(read_dump(tmp_path / "none.xml"))


@pytest.mark.parametrize("number", ["", "<id></id>", "<id>abc</id>", "<id>-1</id>", f"<id>{'9' * 400}</id>"])
def test_read_dump_of_a_page_without_a_number(number: str, tmp_path: Path) -> None:
    """That of its revision is another's."""
    (tmp_path / "d.xml").write_bytes(_dump(_page(1, "first").replace("<id>1</id>", number)))
    with pytest.raises(InputError, match="page 'T1' has the id '.*', which is no number"):
        list(read_dump(tmp_path / "d.xml"))


def test_read_dump_of_a_page_that_has_no_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wikipedia, "MOST_PAGE", 1 << 18)
    whole = _dump("".join(_page(i, "word " * 5_000) for i in range(1, 21)))
    for name, more in (("text", b"x" * (1 << 20)), ("tags", b"<a>" * (1 << 18))):
        (tmp_path / f"{name}.xml.bz2").write_bytes(bz2.compress(whole.removesuffix(b"</mediawiki>") + b"<page>" + more))
        with pytest.raises(InputError, match="a page has more than 262,144 bytes"):
            list(read_dump(tmp_path / f"{name}.xml.bz2"))


def test_read_dump_holds_one_page_at_a_time(tmp_path: Path) -> None:
    (tmp_path / "d.xml").write_bytes(_dump("".join(_page(i, "word " * 20_000) for i in range(1, 101))))  # 10 MB
    tracemalloc.start()
    try:
        assert sum(1 for _ in read_dump(tmp_path / "d.xml")) == 100
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


def test_real_markup_becomes_prose(real_data: Corpus) -> None:
    articles = pq.read_table(real_data.root / "wikipedia/markup_articles.parquet").to_pylist()
    texts = [clean(article["markup"]) for article in articles]
    text = "\n".join(texts)
    for mark in ("[[", "{{", "{|", "<ref", "'''", "&nbsp;", "Category:"):
        assert text.count(mark) <= 5, (mark, text.count(mark))  # a few pages show markup on purpose
    titles = [article["title"].split(" (")[0].lower() for article in articles]
    named = sum(title in text[:200].lower() for title, text in zip(titles, texts, strict=True))
    assert named > 90  # the first line is the first sentence, not what is left of a box
    assert sum(len(split_sentences(text)) > 20 for text in texts) > 80


def test_real_sentences_are_found_again(real_data: Corpus) -> None:
    root = real_data.root / "wikipedia"
    table = pq.read_table(root / "articles.parquet").slice(0, 800)
    articles = {row["article_id"]: row["text"] for row in table.to_pylist()}
    ours = {key: {dedup_key(s) for s in split_sentences(clean(text))} for key, text in articles.items()}
    theirs = [row for row in pq.read_table(root / "sentences.parquet").to_pylist() if row["article_id"] in articles]
    found = sum(dedup_key(row["sentence"]) in ours[row["article_id"]] for row in theirs)
    assert len(theirs) > 2_000 and found > 0.97 * len(theirs)
