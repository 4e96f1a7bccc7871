import pytest

from raysts.data.wikipedia.wikipedia import clean, dedup_key, is_well_formed, split_sentences


def test_clean() -> None:
    text = "A 5'' gun & a 3 < 4 rule.\n\n\n  The  second\tparagraph.  "
    assert clean(text) == "A 5'' gun & a 3 < 4 rule.\nThe second paragraph."
    assert clean("Kept text.\nReferences\nGone.") == "Kept text."
    assert clean("e\u0301") == "é"


@pytest.mark.parametrize("text", [
    "Dr. J. R. Smith met Mr. Jones at 5.30 p.m. on Jan. 3 in St. Louis. | They talked about No. 5 and about Vol. 2 of it.",
    "The firm was called Smith Inc. until the year it closed. | It was sold to Jones Ltd. | The owner then moved away.",
    "He moved to the U.S. Army base in the early spring. | He lived for many years in the U.S. | The family stayed there.",
    'She said "I will never go there again." | Nobody believed what she said on that day! | "Why not?" they asked her then.',
    "The river is 3.5 km long and 1.2 m deep there. | 2010 saw the club demoted by two whole leagues.",
    "He was born c. 1900 in the old town of Rome. | They all took some vitamin C. | The rest took none of it that day.",
    "It was cold, at -100 C. | These values could crack the shield of the craft.",
    "The name comes from E. coli and from I. A. Richards, they say. | (It was e.g. used here as an example of it.)",
])  # fmt: skip
def test_boundaries(text: str) -> None:
    sentences = text.split(" | ")
    assert split_sentences(" ".join(sentences)) == [sentence for sentence in sentences if is_well_formed(sentence)]
    assert any(is_well_formed(sentence) for sentence in sentences)


def test_a_sentence_never_crosses_a_line() -> None:
    whole = "The first line has one whole sentence."
    assert split_sentences(f"A heading\n{whole}\nand a rest that starts in lower case.") == [whole]


NOT_WELL_FORMED = (
    "Only five words are here.", "This has " + "very " * 60 + "many words.",
    "this one starts with a lower case letter.", "This one has no full stop at the end",
    "This one has a remnant ( ; here) in the middle.", "This one is spaced , like tokenised text .",
    "This one has (one bracket that never closes here.", 'This one has "one quote that never closes here.',
    "This one links to http://example.org in its middle.", "This one has markup [[left over]] in its middle.",
    "This one has a hole \ufffc in its middle.", "This One Has No Lower Case Words At All.",
    "This One has No More Than One.", "This one has “one such quote that never closes here.",
    "Here are all number of it 1234567890123.", "This has " + "very " * 57 + "many words.",
    "In 1999, 12 34 56 78 90 12 34 56 78 90.", "- This one starts with a dash and a blank.",
    "This one ends in two stops at the end..",
)  # fmt: skip


def test_well_formed() -> None:
    for sentence in (
        "This sentence has just six words.",
        "2010 saw the club demoted two leagues.",
        '"This one starts and ends with quotes," he said.',
        'He called it "the end of all this".',
        "Élan vital is a term of old philosophy (1907).",
        "Is this what we were all waiting for?",
        "This One has two Words Of Those.",
        "Here are all number of it 123456789012.",
        "The word " + "very " * 57 + "end.",
    ):
        assert is_well_formed(sentence), sentence
    assert [sentence for sentence in NOT_WELL_FORMED if is_well_formed(sentence)] == []


def test_dedup_key_ignores_numbers_case_and_form() -> None:
    key = dedup_key("It had 1,234.5 people in 2010.")
    assert len(key) == 16 and key == dedup_key("it  HAD 7 people in 1999.")
    assert key != dedup_key("It had many people in 2010.") and key != dedup_key("It had 1 people in May.")
    assert dedup_key("ﬁne work") == dedup_key("fine work")
