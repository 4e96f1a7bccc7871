"""MediaWiki markup to prose: one pass over the nested brackets (templates, links, tables), then the line rules.

Anybody may have written the markup: every step takes time linear in its length (but for text nested in itself). So no
pattern looks for a partner that may be missing, and no pattern can begin inside the run of characters that it begins with.
"""

import html
import re
from bisect import bisect_left

HOLE = "\ufffc"
"""OBJECT REPLACEMENT CHARACTER: stands where an object (a formula, an unknown template) was in the middle of prose."""

_MARKUP = re.compile(r"\[\[|\{\{|^\{\||<ref[ />]|'''|^==[^=\n]+==\s*$", re.M)
_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.S)
_DROPPED_TAGS = "ref|gallery|timeline|imagemap|syntaxhighlight|source|pre|table|references|score|templatestyles"
_EMPTY_TAG = re.compile(rf"<(?:{_DROPPED_TAGS})\b[^<>]*/>", re.I)
_DROPPED = re.compile(rf"<({_DROPPED_TAGS})\b[^<>]*>", re.I)
_OBJECT = re.compile(r"<(math|chem|hiero|code|ce)\b[^<>]*>", re.I)
_CLOSER = re.compile(r"</([^\W\d_]+)\s*>")
_BREAK = re.compile(r"<br\s*/?>|</?(?:p|div|blockquote|li|ul|ol|center)\b[^<>]*>", re.I)
_TAG = re.compile(r"</?[a-z][^<>]*>", re.I)
_NESTED = re.compile(r"\{\{|\}\}|\[\[|\]\]|^[ :*;]*\{\||^[ :]*\|\}(?!\})", re.M)
_ADDRESS = re.compile(r"\[(?:https?:|ftp:|mailto:)?//[^\s\]]*\s*")
_BOLD = re.compile(r"'{2,5}")
_HEADING = re.compile(r"^=.*=[ \t]*$", re.M)
_MAGIC = re.compile(r"__[A-Z]+__")
_LIST = re.compile(r"^[*#:;]+\s*", re.M)
_EMPTY_BRACKETS = re.compile(r"(?<!\s)\s*+\(\s*+[;,:–\-]*+\s*+\)")
_BRACKET_START = re.compile(r"\(\s*(?:[;,:]\s*)+")
_BRACKET_END = re.compile(r"(?<![\s;,:])\s*+[;,:][\s;,:]*+\)")
_SPACE_BEFORE = re.compile(r"(?<![ \t])[ \t]++([,.;:!?)])(?=\s|$|[\"'”])")

_NAMESPACES = frozenset(
    ["file", "image", "media", "category", "special", "template", "wikipedia", "portal", "help", "draft", "user"]
    + ["talk"]
)
_LANGUAGE_LINK = re.compile(r"^[a-z]{2,3}(?:-[a-z]+)*:|^simple:")

_SHOW_LAST = frozenset(
    ["lang", "transl", "transliteration", "nowrap", "nobr", "small", "big", "abbr", "sup", "sub", "mvar", "noitalic"]
    + ["em", "strong", "smallcaps", "color", "formatnum", "linktext", "bdi", "script", "unicode"]
)
_SHOW_FIRST = frozenset(["tooltip", "nihongo", "var", "not a typo", "proper name", "ill", "interlanguage link"])
_CHARACTERS = {
    "nbsp": " ", "spaces": " ", "thinsp": " ", "hairsp": "", "ndash": "–", "spaced ndash": " – ", "snd": " – ",
    "spnd": " – ", "mdash": "—", "spaced mdash": " — ", "'": "'", "`": "'", "'s": "'s", "\"": '"', "=": "=", "!": "|",
    "dot": " · ", "·": " · ", "frac12": "½", "shy": "", "wbr": "", "c.": "c.", "circa": "c.", "bc": "BC", "ad": "AD",
}  # fmt: skip
# Templates that are no part of a sentence, by how their names begin (the last line: whole names).
_SILENT = re.compile(
    r"^(?:#|-|"
    r"cit|sfn|harv|efn|page needed|fact|cleanup|clarif|when|who|which|whom|why|where|by whom|"
    r"dubious|verif|failed|original|dead|wayback|webarchive|anchor|main|see|details|further|"
    r"portal|about|redirect|use |good|featured|pp|coord|defaultsort|infobox|ipa|respell|pron|"
    r"audio|listen|short desc|hatnote|stub|clear|reflist|notelist|note|specify|vague|update|"
    r"better|according|citation|medical|lead|toc|flag|increase|decrease|steady|dagger|isbn|doi|"
    r"huh|weasel|peacock|pov|disputed|expand|unreferenced|more|multiple|navbox|authority|taxobox|"
    r"speciesbox|quote box"
    r"|(?:refn?|r|rp|cn|for|nb|sic)$)"
)


def is_markup(text: str) -> bool:
    """Whether ``text`` holds MediaWiki markup rather than prose already extracted from it."""
    return _MARKUP.search(text) is not None


def strip_markup(markup: str) -> str:
    """Prose of an article's markup, a paragraph a line; see ``raysts.data.wikipedia.wikipedia.clean``."""
    text = _COMMENT.sub("", markup)
    text = _replace_elements(_DROPPED, "", _EMPTY_TAG.sub("", text))
    text = _replace_elements(_OBJECT, HOLE, text)
    *closed, rest = _unnest(text).split("]")
    text = "".join([*map(_external_link, closed), rest])
    text = _TAG.sub("", _BREAK.sub("\n", text))
    text = _HEADING.sub(_heading, _MAGIC.sub("", _BOLD.sub("", text)))
    text = html.unescape(_LIST.sub("", text)).replace("\xa0", " ")
    text = _BRACKET_END.sub(")", _BRACKET_START.sub("(", _EMPTY_BRACKETS.sub("", text)))
    return _SPACE_BEFORE.sub(r"\1", _EMPTY_BRACKETS.sub("", text))


def _replace_elements(opener: re.Pattern[str], replacement: str, text: str) -> str:
    """Elements with all that is in them replaced; one that is never closed stays."""
    closers: dict[str, list[tuple[int, int]]] = {}
    for match in _CLOSER.finditer(text):
        closers.setdefault(match[1].lower(), []).append(match.span())
    parts: list[str] = []
    position = 0
    for match in opener.finditer(text):
        spans = closers.get(match[1].lower(), [])
        first_after = bisect_left(spans, (match.end(), 0))
        if match.start() >= position and first_after < len(spans):
            parts += [text[position : match.start()], replacement]
            position = spans[first_after][1]
    return "".join([*parts, text[position:]])


def _unnest(text: str) -> str:
    """Resolve templates, links and tables from the inside out in one pass; brackets without partner are dropped."""
    stack: list[tuple[str, list[str]]] = [("", [])]
    unclosed = {"{{": 0, "[[": 0, "{|": 0}
    position = 0
    for match in _NESTED.finditer(text):
        token = match[0].strip(" :*;")
        stack[-1][1].append(text[position : match.start()])
        position = match.end()
        if token in unclosed:
            stack.append((token, []))
            unclosed[token] += 1
            continue
        opener = {"}}": "{{", "]]": "[[", "|}": "{|"}[token]
        if not unclosed[opener]:
            continue
        level = len(stack) - 1
        while stack[level][0] != opener:  # an opener without partner: its text belongs to what surrounds it
            level -= 1
        body = "".join(piece for _, pieces in stack[level:] for piece in pieces)
        for kind, _ in stack[level:]:
            unclosed[kind] -= 1
        del stack[level:]
        stack[-1][1].append("" if opener == "{|" else _template(body) if opener == "{{" else _link(body))
    stack[-1][1].append(text[position:])
    return "".join(piece for kind, pieces in stack if kind != "{|" for piece in pieces)


def _external_link(text: str) -> str:
    """Text that a ``]`` follows; an external link that ends there is its label, on one line, with the address before."""
    lines = text[: text.rfind("\n") + 1].rstrip()  # before the label's line
    address = _ADDRESS.search(text, len(lines) - len(lines.rsplit(None, 1)[-1]) if lines else 0)
    return f"{text}]" if address is None else text[: address.start()] + text[address.end() :]


def _heading(match: re.Match[str]) -> str:
    line = match[0].rstrip(" \t")
    before, after = (len(line) - len(line.lstrip("="))), len(line) - len(line.rstrip("="))
    level = min(before, after, (len(line) - 1) // 2)
    title = line[level:-level]
    return "\n".join(("", title.strip(" \t") or title[-1], "")) if level else match[0]


def _link(body: str) -> str:
    target, bar, label = body.partition("|")
    if target.startswith(":"):
        target = target[1:]
    elif target.partition(":")[0].strip().lower() in _NAMESPACES or _LANGUAGE_LINK.match(target):
        return ""
    if not bar:
        return target
    if not label:  # the pipe trick hides a namespace, a bracket or what follows a comma
        return re.sub(r"\s*\(.*\)$|,.*$", "", target.rpartition(":")[2])
    return label.rpartition("|")[2]


def _template(body: str) -> str:
    name, *arguments = (part.strip() for part in body.split("|"))
    name = name.replace("_", " ").strip().lower()
    plain = [argument for argument in arguments if not re.match(r"[\w \-]+=", argument)]
    if name in _CHARACTERS:
        return _CHARACTERS[name] + (" " + plain[0] if name in ("c.", "circa") and plain else "")
    if name.startswith("lang-") and plain or name in _SHOW_FIRST and plain:
        return plain[0]
    if name in _SHOW_LAST and plain:
        return plain[-1]
    if name in ("convert", "cvt") and len(plain) >= 2:
        return " ".join(plain[:4] if plain[1] in ("-", "–", "to", "and", "x", "by") else plain[:2])
    if name == "as of" and plain:
        return "As of " + "-".join(plain)
    if not name or "\n" in body or _SILENT.match(name):
        return ""
    return HOLE
