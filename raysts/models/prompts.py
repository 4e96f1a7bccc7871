"""Prompts: text in front of every text that a model reads."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from raysts.errors import InputError, nearest

Side = Literal["query", "document"]
_NAMES: dict[Side, tuple[str, ...]] = {"query": ("query",), "document": ("document", "passage", "corpus")}
"""Names of the prompts of queries and documents, as in sentence-transformers' ``encode_query`` and ``encode_document``."""


@dataclass(frozen=True, slots=True)
class SideText:
    """Text that a model reads as a query or as a document."""

    text: str
    side: Side

    def __str__(self) -> str:
        return self.text


Text = str | SideText
"""Text as a model reads it. A plain text has no side."""


def check_texts(texts: Sequence[Any]) -> None:
    """Raise InputError unless all are text that tokenizers read."""
    for number, text in enumerate(texts):
        if not isinstance(text, Text):  # None has no tokens, and their mean would be NaN
            raise InputError(f"texts[{number}] is {text!r:.40}: must be text; remove it, or give '' in its place")
        try:
            str(text).encode()
        except UnicodeEncodeError as error:
            raise InputError(
                f"texts[{number}] has half a surrogate pair at character {error.start}: must be Unicode; remove it, or give "
                f"text.encode('utf-16', 'surrogatepass').decode('utf-16', 'replace')"
            ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompts:
    """Prompts of a model.

    ``default``: name of the prompt that is used without a choice (None: no prompt). ``pooled``: whether the tokens of a
    prompt are pooled with those of the text.
    """

    texts: Mapping[str, str] = field(default_factory=dict)
    default: str | None = None
    pooled: bool = True

    def resolve(self, prompt: str | None = None) -> str:
        """Return the text of ``prompt``, a name or a text. None: the default's. Empty: no prompt.

        Raises:
            InputError: it looks like a name, and the model has no such prompt.
        """
        if prompt is None:
            return self.texts[self.default] if self.default is not None else ""
        if prompt in self.texts:
            return self.texts[prompt]
        # A bare word would merge with the first word of the text.
        if re.fullmatch(r"[\w.-]+", prompt) and prompt not in self.texts.values():
            names = ", ".join(self.texts) or "none"
            raise InputError(
                f"prompt '{prompt}': the model has no prompt of that name (it has {names}){nearest(prompt, self.texts)}; a "
                f"prompt that is given as text ends in what sets it apart: '{prompt}: '"
            )
        return prompt

    def side_prompt(self, side: Side) -> str:
        """Return the prompt of queries or documents, or the default if the model has neither."""
        named = {
            key: next((self.texts[name] for name in names if name in self.texts), None) for key, names in _NAMES.items()
        }
        return (named[side] or "") if any(named.values()) else self.resolve()

    def replace_default(self, prompt: str | None) -> Prompts:
        """Return a copy with ``prompt``, a name or a text, as default. None: no change."""
        if prompt is None:
            return self
        text = self.resolve(prompt)
        if not text:
            return replace(self, default=None)
        name = next((name for name, value in self.texts.items() if value == text), "default")
        return replace(self, texts={**self.texts, name: text}, default=name)

    def for_every_text(self) -> Prompts:
        """Return a copy with the default alone, which queries and documents then have too."""
        text = self.resolve()
        return replace(self, texts={"default": text} if text else {}, default="default" if text else None)

    def tokens(self, tokenizer: Any, prompt: str) -> int:
        """Return the number of a prompt's tokens that are not pooled: 0 if prompts are pooled."""
        if self.pooled or not prompt:
            return 0
        ids = tokenizer(prompt, truncation=False)["input_ids"]
        return len(ids) - (ids[-1] in tokenizer.all_special_ids)
