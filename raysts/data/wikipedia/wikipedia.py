"""Wikipedia's text to sentences. Pure functions.

``split_sentences`` states the rules of a sentence, and ``dedup_key`` which sentences are the same.
"""

import hashlib
import re
import unicodedata

MIN_WORDS, MAX_WORDS = 6, 60

_BACK_MATTER = re.compile(
    r"^(?:references|external links|further reading|bibliography|notes|footnotes|citations|see also)\.?$", re.I
)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# An abbreviation that a name or a number follows: the sentence goes on after it.
_GOES_ON = _words(
    "mr mrs ms messrs mme mlle dr prof st ste mt ft gen col lt sgt cpl capt cmdr maj adm brig pvt rev fr hon gov "
    "sen rep pres supt det insp vs v cf viz al eg ie ca c b d r fl approx est no nos vol vols pp p pt ch ed eds "
    "trans fig figs eq sec art op jan feb mar apr jun jul aug sep sept oct nov dec bros univ dept "
)
# An abbreviation that may also end a sentence: it does when a word follows that usually begins one.
_MAY_END = _words("inc ltd co corp jr sr etc llc plc esq sq ave blvd rd mi km kg cm mm hr hrs min ")
_STARTERS = _words(
    "the a an this that these those he she it they we i his her its their in on at by for from with after before "
    "during when while although though however since until as if but and so then there here one two some many "
    "most all both each other another such to of also among between under over following despite because instead "
    "later today "
)
_BOUNDARY = re.compile(r"""(?<![.!?])([.!?]++)(["'”’)\]]*+)\s+(?=["'“‘(\[]*[^\W_a-z])""")
_LAST_TOKEN = re.compile(r"""[\w.\-’']+$""")
_DOTTED = re.compile(r"(?:[^\W\d_]\.)+[^\W\d_]|ph\.d|[ap]\.m", re.I)
_FIRST_WORD = re.compile(r"""["'“‘(\[]*(?P<word>[^\W_]+)(?![.\w])""")

_START = re.compile(r"""["“‘']?[^\W_]""")
_END = re.compile(r"""[.!?]["”’')]*$""")
_LEFTOVER = re.compile(
    r"[\[\]{}|<>\\^_=~*#\t\ufffc]|https?:|www\.|\(\s*[;,:.)]|[;,:]\s*\)|\s[,;:.!?](?:\s|$)|[,;]\s*[,;.]|''|``"
    r"|\.\s?\.(?!\.)|\b(?:thumb|px|ISBN|doi)\b|\ufffd"
)
_LOWER_WORD = re.compile(r"(?<![^\s\"“‘(])[a-z]{2,}")
_DIGITS = re.compile(r"\d+(?:[.,]\d+)*")
_SPACE = re.compile(r"\s+")


def clean(text: str) -> str:
    """Return an article's paragraphs, one a line, without the back matter.

    White space and characters (NFC) are normalised. The back matter begins with the references, external links, or their like.
    """
    lines = []
    for line in unicodedata.normalize("NFC", text).splitlines():
        line = _SPACE.sub(" ", line).strip()
        if _BACK_MATTER.match(line):
            break
        if line:
            lines.append(line)
    return "\n".join(lines)


def split_sentences(text: str) -> list[str]:
    """Return the well-formed sentences of :func:`sentences_of`.

    Well-formed: 6 to 60 words; starts with a capital, a digit or an opening quote before one; ends with ``.``, ``!`` or
    ``?``; at least two lower-case words; at least two thirds of its characters are letters or spaces; brackets and
    double quotes are paired; no remnants of extraction such as ``( ;``, spaced punctuation, addresses, markup, U+FFFC.
    """
    return [sentence for sentence in sentences_of(text) if is_well_formed(sentence)]


def sentences_of(text: str) -> list[str]:
    """Return the sentences of prose, in order. A sentence never crosses a line.

    A sentence ends at ``.``, ``!`` or ``?`` (and closing quotes or brackets) before white space and a capital, a digit
    or an opening quote, but not after an abbreviation that a name or number follows (``Dr.``, ``No.``) nor, unless a
    word follows that usually begins a sentence, after an initial (``J.``), ``Inc.``, ``U.S.``, ``p.m.`` and their like.
    Decimals never end one.
    """
    sentences = []
    for line in text.splitlines():
        line = _SPACE.sub(" ", line).strip()
        first = 0
        for match in _BOUNDARY.finditer(line):
            if _ends_sentence(line, match):
                sentences.append(line[first : match.end(2)])
                first = match.end()
        sentences.append(line[first:])
    return [sentence for sentence in sentences if sentence]


def _ends_sentence(line: str, match: re.Match[str]) -> bool:
    if match[1] != "." or match[2]:
        return True
    token = _LAST_TOKEN.search(line, max(0, match.start() - 40), match.start())
    if token is None:
        return True
    word = token[0].lstrip(".'’-").lower()
    initial = len(word) == 1 and token[0].isupper()
    if word in _GOES_ON and not initial:
        return False
    if initial or word in _MAY_END or _DOTTED.fullmatch(word):
        following = _FIRST_WORD.match(line, match.end())
        return following is not None and following[1].lower() in _STARTERS
    return True


def is_well_formed(sentence: str) -> bool:
    """Return True if ``sentence`` obeys the rules of ``split_sentences``."""
    words = sentence.count(" ") + 1
    start = _START.match(sentence)
    if not MIN_WORDS <= words <= MAX_WORDS or start is None or not _END.search(sentence) or _LEFTOVER.search(sentence):
        return False
    if not (start[0][-1].isupper() or start[0][-1].isdigit()):
        return False
    count = sentence.count
    if count("(") != count(")") or count('"') % 2 or count("“") != count("”"):
        return False
    letters = sum(character.isalpha() or character == " " for character in sentence)
    return 3 * letters >= 2 * len(sentence) and len(_LOWER_WORD.findall(sentence)) >= 2


def dedup_key(sentence: str) -> bytes:
    """Return 16 bytes of a sentence without its numbers, case, white space and NFKC form."""
    folded = unicodedata.normalize("NFKC", sentence).casefold()
    folded = _SPACE.sub(" ", _DIGITS.sub("0", folded)).strip()
    return hashlib.blake2b(folded.encode("utf-8", "surrogatepass"), digest_size=16).digest()
