"""MediaWiki markup to prose: one pass over the nested brackets (templates, links, tables), then the line rules."""

from __future__ import annotations

import html
import re

HOLE = "\ufffc"
"""OBJECT REPLACEMENT CHARACTER: stands where an object (a formula, an unknown template) was in the middle of prose."""

_MARKUP = re.compile(r"\[\[|\{\{|^\{\||<ref[ />]|'''|^==[^=\n]+==\s*$", re.M)
_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.S)
_DROPPED_TAGS = "ref|gallery|timeline|imagemap|syntaxhighlight|source|pre|table|references|score|templatestyles"
_EMPTY_TAG = re.compile(rf"<(?:{_DROPPED_TAGS})\b[^<>]*/>", re.I)
_DROPPED = re.compile(rf"<({_DROPPED_TAGS})\b[^<>]*>.*?</\1\s*>", re.I | re.S)
_OBJECT = re.compile(r"<(math|chem|hiero|code|ce)\b[^<>]*>.*?</\1\s*>", re.I | re.S)
_BREAK = re.compile(r"<br\s*/?>|</?(?:p|div|blockquote|li|ul|ol|center)\b[^<>]*>", re.I)
_TAG = re.compile(r"</?[a-z][^<>]*>", re.I)
_NESTED = re.compile(r"\{\{|\}\}|\[\[|\]\]|^[ :*;]*\{\||^[ :]*\|\}(?!\})", re.M)
_EXTERNAL = re.compile(r"\[(?:https?:|ftp:|mailto:)?//[^\s\]]*\s*([^\]\n]*)\]")
_BOLD = re.compile(r"'{2,5}")
_HEADING = re.compile(r"^(=+)[ \t]*(.+?)[ \t]*\1[ \t]*$", re.M)
_MAGIC = re.compile(r"__[A-Z]+__")
_LIST = re.compile(r"^[*#:;]+\s*", re.M)
_EMPTY_BRACKETS = re.compile(r"\s*\(\s*[;,:–\-]*\s*\)")
_BRACKET_START = re.compile(r"\(\s*(?:[;,:]\s*)+")
_BRACKET_END = re.compile(r"(?:\s*[;,:])+\s*\)")
_SPACE_BEFORE = re.compile(r"[ \t]+([,.;:!?)])(?=\s|$|[\"'”])")

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
    text = _DROPPED.sub("", _EMPTY_TAG.sub("", text))
    text = _OBJECT.sub(HOLE, text)
    text = _unnest(text)
    text = _EXTERNAL.sub(r"\1", text)
    text = _TAG.sub("", _BREAK.sub("\n", text))
    text = _HEADING.sub(r"\n\2\n", _MAGIC.sub("", _BOLD.sub("", text)))
    text = html.unescape(_LIST.sub("", text)).replace("\xa0", " ")
    text = _BRACKET_END.sub(")", _BRACKET_START.sub("(", _EMPTY_BRACKETS.sub("", text)))
    return _SPACE_BEFORE.sub(r"\1", _EMPTY_BRACKETS.sub("", text))


def _unnest(text: str) -> str:
    """Resolve templates, links and tables from the inside out in one pass; brackets without partner are dropped."""
    stack: list[tuple[str, list[str]]] = [("", [])]
    position = 0
    for match in _NESTED.finditer(text):
        token = match[0].strip(" :*;")
        stack[-1][1].append(text[position : match.start()])
        position = match.end()
        if token in ("{{", "[[", "{|"):
            stack.append((token, []))
            continue
        opener = {"}}": "{{", "]]": "[[", "|}": "{|"}[token]
        if all(kind != opener for kind, _ in stack):
            continue
        while stack[-1][0] != opener:  # an opener without partner: its text belongs to what surrounds it
            _, pieces = stack.pop()
            stack[-1][1].extend(pieces)
        body = "".join(stack.pop()[1])
        stack[-1][1].append("" if opener == "{|" else _template(body) if opener == "{{" else _link(body))
    stack[-1][1].append(text[position:])
    return "".join(piece for kind, pieces in stack if kind != "{|" for piece in pieces)


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
