"""The tokenizer that the gateway and `renderers` use. It calls the compiled tokenizer, without offsets or padding.

`fastokens` encodes text fifty times faster than the tokenizer's own code, and a table of bytes decodes three times
faster. The gateway uses each if it agrees with the tokenizer on random sequences from its vocabulary and, to encode, on
texts that are hard to split.
"""

from __future__ import annotations

import contextlib
import os
import random
import threading
from array import array
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ...engine.base import IDS
from ...engine.checkpoints import resolve_tokenizer
from ...errors import ConfigError, PromptTooLong

_TRIED = 200
_LONG = 32  # ids of a text that a placeholder may stand for
_PIECE = 1 << 16  # characters
_HARD = [
    "  two  spaces\n\n\ttabs and\r\nlines   ",
    "don't I'LL we'Ve 1234567 3.14e-10 x=y+z;",
    "naïve café cafe\u0301 Ελληνικά русский 中文字符 日本語 한국어 العربية हिन्दी 👩‍👩‍👧‍👦🏳️‍🌈",
    '{"name": "get_weather", "arguments": {"city": "Zürich", "n": [1, 2.5, null]}}',
    "def f(x):\n    return [i ** 2 for i in range(x) if i % 3]  # comment\n",
    "<|im_start|>user\nhi<|im_end|><think></think>\u2028\u0085\u00a0\ufeff\x00",
    "",
]


class _Encoding(threading.local):
    """The state of a thread's encoding."""

    texts: list[array[int]] | None = None
    """The ids of each long text that has a placeholder."""
    left: int | None = None
    """How many more ids it may encode."""


class Tokenizer:
    def __init__(self, tokenizer: Any) -> None:
        """`tokenizer` is a fast tokenizer from Transformers."""
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise ConfigError(
                f"{type(tokenizer).__name__} is not a fast tokenizer",
                hint="save it with a tokenizer.json beside the model",
            )
        self.full = tokenizer
        self._backend = backend
        self.name_or_path: str = tokenizer.name_or_path
        self.eos_token_id: int | None = tokenizer.eos_token_id
        self.bos_token_id: int | None = tokenizer.bos_token_id
        self.unk_token_id: int | None = tokenizer.unk_token_id
        self.pad_token_id: int | None = tokenizer.pad_token_id
        self.all_special_tokens: list[str] = list(tokenizer.all_special_tokens)
        thoughts = ("<think>", "</think>")
        named = tokenizer.convert_tokens_to_ids([token for token in self.all_special_tokens if token not in thoughts])
        marked = (i for i, token in _list_added_tokens(tokenizer) if token.special and token.content not in thoughts)
        self.special_ids: frozenset[int] = frozenset((*named, *marked))
        self.chat_template: str | None = getattr(tokenizer, "chat_template", None)
        self._added: dict[str, int] = {str(t): i for i, t in ((i, t.content) for i, t in _list_added_tokens(tokenizer))}
        self.size: int = backend.get_vocab_size(with_added_tokens=True)
        self._fast = FastEncoder.create(backend)
        self._bytes = ByteTable.create(backend)
        self._encoding = _Encoding()

    def encode(self, text: str, add_special_tokens: bool = False, **_: Any) -> list[int]:
        ids = self.encode_packed(text, add_special_tokens)
        texts = self._encoding.texts
        if texts is None or len(ids) < _LONG:
            return ids.tolist()
        texts.append(ids)
        return [-len(texts)]

    def fill_placeholders(self, render: Callable[[], list[int]]) -> array[int]:
        """The ids that `render` returns. While it runs, it sees one negative id for each long text that it encodes.

        `renderers` takes several steps of Python for each id: 10,000 ids take 0.2 instead of 3 ms, 600 take 13 instead
        of 60 us.
        """
        texts: list[array[int]] = []
        self._encoding.texts = texts
        try:
            ids = render()
        finally:
            self._encoding.texts = None
        filled, start = array(IDS), 0
        for place, token in enumerate(ids):
            if token < 0:
                filled.extend(array(IDS, ids[start:place]))
                filled.extend(texts[-token - 1])
                start = place + 1
        filled.extend(array(IDS, ids[start:]))
        return filled

    @contextlib.contextmanager
    def bound(self, most: int) -> Iterator[None]:
        """In this block, encoding more than `most` ids in all raises `PromptTooLong`, with little memory.

        Encoding takes up to 30 bytes of memory for each byte of a text.
        """
        self._encoding.left = most
        try:
            yield
        finally:
            self._encoding.left = None

    def encode_packed(self, text: str, add_special_tokens: bool = False) -> array[int]:
        """Like `encode`, but returns an array without building a list."""
        left = self._encoding.left
        if left is None:
            return self._encode(text, add_special_tokens)
        if len(text) > left:  # about to take memory: count in pieces first
            count = 0
            for start in range(0, len(text), _PIECE):
                count += len(self._encode(text[start : start + _PIECE]))
                self._check_left(left - count)
        ids = self._encode(text, add_special_tokens)
        self._encoding.left = self._check_left(left - len(ids))
        return ids

    def _check_left(self, left: int) -> int:
        if left < 0:
            self._encoding.left = 0
            raise PromptTooLong("the prompt has more tokens than may be encoded")
        return left

    def _encode(self, text: str, add_special_tokens: bool = False) -> array[int]:
        try:
            text.encode()
        except UnicodeEncodeError:  # lone surrogates can't be encoded
            text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        if self._fast is not None and not add_special_tokens:
            with contextlib.suppress(ValueError):  # fastokens fails on a byte that is missing from the vocabulary
                return self._fast.encode(text)
        return array(IDS, self._backend.encode(text, add_special_tokens=add_special_tokens).ids)

    def decode(self, token_ids: Any, skip_special_tokens: bool = False, **_: Any) -> str:
        ids = token_ids if isinstance(token_ids, list) else list(token_ids)
        if self._bytes is not None:
            return self._bytes.decode(ids, skip_special_tokens)
        text: str = self._backend.decode(ids, skip_special_tokens=skip_special_tokens)
        return text

    def convert_tokens_to_ids(self, tokens: Any) -> Any:
        if isinstance(tokens, str):
            found = self._added.get(tokens)
            found = self._backend.token_to_id(tokens) if found is None else found
            return self.unk_token_id if found is None else found
        return [self.convert_tokens_to_ids(token) for token in tokens]

    def apply_chat_template(self, messages: Sequence[Any], **settings: Any) -> Any:
        return self.full.apply_chat_template(messages, **settings)

    def get_added_vocab(self) -> dict[str, int]:
        return dict(self._added)


def load_tokenizer(name: str | os.PathLike[str], chat_template: str | os.PathLike[str] | None = None) -> Tokenizer:
    """Load from a folder, a hub id or `tiny`; `chat_template` is a Jinja file that replaces the tokenizer's own."""
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise ConfigError(
            "the gateway needs Transformers to load a tokenizer",
            hint="pip install 'agentcore-rl-toolkit[gateway]'",
        ) from error
    if str(name).startswith(("/", "./", "../")) and not os.path.isdir(name):
        raise ConfigError(f"no tokenizer could be loaded from {str(name)!r}: the folder does not exist")
    try:
        tokenizer = AutoTokenizer.from_pretrained(resolve_tokenizer(os.fspath(name)))
        if chat_template is not None:
            tokenizer.chat_template = Path(chat_template).read_text()
        return Tokenizer(tokenizer)
    except (OSError, ValueError) as error:
        raise ConfigError(f"no tokenizer could be loaded from {str(name)!r}: {error}") from error


class FastEncoder:
    def __init__(self, backend: Any) -> None:
        import fastokens

        self._tokenizer = fastokens.Tokenizer.from_json_str(backend.to_str())

    @classmethod
    def create(cls, backend: Any) -> FastEncoder | None:
        """Create an encoder; None if `fastokens` can't load the tokenizer, or encodes differently."""
        try:
            fast = cls(backend)
            return fast if fast._agrees(backend) else None
        except Exception:  # not installed, or it does not support this tokenizer
            return None

    def encode(self, text: str) -> array[int]:
        ids = array(IDS)
        ids.frombytes(self._tokenizer.encode_batch_flat([text])[0])
        return ids

    def _agrees(self, backend: Any) -> bool:
        texts = [*_HARD, *(text for _, _, text in _decode_random_ids(backend))]
        return all(backend.encode(text, add_special_tokens=False).ids == self.encode(text).tolist() for text in texts)


class ByteTable(dict[int, bytes]):
    """Decodes by the bytes of each id, looked up as ids come: 7 instead of 21 us for 256 ids."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self._special = {i for i, token in backend.get_added_tokens_decoder().items() if token.special}

    @classmethod
    def create(cls, backend: Any) -> ByteTable | None:
        """Create a table; None if the text of an id depends on the ids around it."""
        table = cls(backend)
        return (
            table if all(table.decode(ids, skip) == text for ids, skip, text in _decode_random_ids(backend)) else None
        )

    def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        if skip_special_tokens:
            ids = [i for i in ids if i not in self._special]
        return b"".join(map(self.__getitem__, ids)).decode("utf-8", "replace")

    def __missing__(self, token: int) -> bytes:
        text: str | None = self._backend.id_to_token(token)
        if text is None:  # not in the vocabulary
            return b""
        try:
            self[token] = bytes(map(_BYTES.__getitem__, text))
        except KeyError:  # an added token
            self[token] = text.encode()
        return self[token]


def _map_byte_letters() -> dict[str, int]:
    """The letters that byte-level tokenizers write bytes with: visible ones mean themselves."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = (byte for byte in range(256) if byte not in visible)
    return {chr(byte): byte for byte in visible} | {chr(256 + place): byte for place, byte in enumerate(others)}


_BYTES = _map_byte_letters()


def _decode_random_ids(backend: Any) -> Iterator[tuple[list[int], bool, str]]:
    """Yield random ids, including every added token; whether special tokens are skipped; and their text."""
    rng, size = random.Random(0), backend.get_vocab_size(with_added_tokens=True)
    added = iter(sorted(backend.get_added_tokens_decoder()))
    for _ in range(_TRIED):
        ids = [rng.randrange(size) for _ in range(20)]
        ids[1::2] = [next(added, other) for other in ids[1::2]]
        for skip in (True, False):
            yield ids, skip, backend.decode(ids, skip_special_tokens=skip)


def _list_added_tokens(tokenizer: Any) -> list[tuple[int, Any]]:
    return list(getattr(tokenizer, "added_tokens_decoder", {}).items())
