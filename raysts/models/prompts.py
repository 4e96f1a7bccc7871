"""Prompts: text that stands in front of every text a model reads."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from raysts.errors import InputError, nearest

Kind = Literal["query", "document"]
_NAMES: dict[Kind, tuple[str, ...]] = {"query": ("query",), "document": ("document", "passage", "corpus")}
"""What models call the prompts of the kinds, those of sentence-transformers' ``encode_query`` and ``encode_document``."""


class Asked(str):
    """A text that is read as a query or as a document; another one than the same text by itself."""

    kind: Kind

    def __new__(cls, text: str, kind: Kind) -> Asked:
        asked = super().__new__(cls, text)
        asked.kind = kind
        return asked

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Asked) and self.kind == other.kind and str.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((self.kind, str(self)))

    def __reduce__(self) -> tuple[Any, ...]:
        return Asked, (str(self), self.kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompts:
    """The prompts of a model, as ``config_sentence_transformers.json`` and its Pooling module say them. ``default``: name of
    the one that is taken where none is asked for; none: no prompt. ``pooled``: whether the tokens of a prompt are pooled
    with those of the text.
    """

    texts: Mapping[str, str] = field(default_factory=dict)
    default: str | None = None
    pooled: bool = True

    def resolve(self, prompt: str | None = None) -> str:
        """The text of ``prompt``: of that name, or itself; None: the default's; empty: no prompt.

        Raises:
            InputError: it looks like a name, and there is none.
        """
        if prompt is None:
            return self.texts[self.default] if self.default is not None else ""
        if prompt in self.texts:
            return self.texts[prompt]
        # Glued to a text a bare word would make another word of the text's first.
        if re.fullmatch(r"[\w.-]+", prompt) and prompt not in self.texts.values():
            known = ", ".join(self.texts) or "none"
            raise InputError(
                f"prompt '{prompt}': the model has no prompt of that name (it has {known}){nearest(prompt, self.texts)}; a "
                f"prompt that is given as text ends in what sets it apart: '{prompt}: '"
            )
        return prompt

    def of_kind(self, kind: Kind) -> str:
        """The prompt of queries, or of documents; of a model that has none for either, its default."""
        named = {
            of: next((self.texts[name] for name in names if name in self.texts), None) for of, names in _NAMES.items()
        }
        return (named[kind] or "") if any(named.values()) else self.resolve()

    def with_default(self, prompt: str | None) -> Prompts:
        """The same with ``prompt``, a name or a text, where none is asked for; None: as it is."""
        if prompt is None:
            return self
        text = self.resolve(prompt)
        if not text:
            return replace(self, default=None)
        name = next((name for name, known in self.texts.items() if known == text), "default")
        return replace(self, texts={**self.texts, name: text}, default=name)

    def tokens(self, tokenizer: Any, prompt: str) -> int:
        """Tokens in front of a text that are the prompt's and not pooled; 0 where prompts are pooled."""
        if self.pooled or not prompt:
            return 0
        ids = tokenizer(prompt, truncation=False)["input_ids"]
        return len(ids) - (ids[-1] in tokenizer.all_special_ids)
