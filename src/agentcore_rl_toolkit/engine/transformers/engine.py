"""The asyncio side of a Transformers model: checks requests and hands out their streams of tokens."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import nn
from transformers import AutoTokenizer

from ...common.object_repr import object_repr
from ...errors import ConfigError, EngineError
from ..base import IDS, EngineInfo, EngineLoad, Sampled, SampleRequest, SteppedEngine, check_request
from ..reply_form import Form
from .decode_batch import Counters, DecoderLimits
from .decoder import Decoder
from .grammar import Grammar, GrammarFactory
from .model_runner import ModelRunner, load
from .sequence import Sequence, TokenStream


class TransformersEngine(SteppedEngine):
    """Samples from a Transformers model in this process; requests are batched as they come.

    `model` is a folder, a hub id, or a loaded module (of Transformers or PEFT), for instance the one that a trainer
    trains: the engine uses it as it is, without a copy. To change its weights, hold the engine meanwhile:

        with engine.updating("step-8"):
            optimizer.step()

    Running sequences then continue with the new weights and the keys and values they have; their later tokens carry
    the new `weight_version`.

    A setting that a request leaves open means the policy itself: temperature 1, nothing cut off. Logprobs are those of
    the unmodified logits unless `at_temperature` is set.
    """

    def __init__(
        self,
        model: str | Path | nn.Module,
        *,
        tokenizer: Any = None,
        name: str | None = None,
        device: str | None = None,
        dtype: str | torch.dtype | None = None,
        weight_version: str = "0",
        max_batch: int = 32,
        max_batch_tokens: int = 131_072,
        max_queue: int = 1024,
        context_length: int | None = None,
        prefill_tokens: int = 4096,
        prefix_bytes: int = 1 << 30,
        interval: float = 0.02,
        at_temperature: bool = False,
        own_stream: bool = False,
    ) -> None:
        """
        Args:
            tokenizer: A fast tokenizer, or where to load it from; needed for `json_schema`, and to end at stop strings
                here rather than in the gateway.
            name: The model's name; by default, its path.
            device: Where to load the model; by default, a GPU if there is one.
            dtype: The type to load the model as, by default the one it was saved in. A loaded module runs with autocast
                to it.
            max_batch: How many sequences are decoded together.
            max_batch_tokens: The space of their keys and values: sequences × the longest of them. The newest sequences
                wait when it is full.
            max_queue: How many requests may wait; beyond, they are refused with a 503.
            context_length: The longest sequence; by default, the one in the model's configuration.
            prefill_tokens: How many tokens are prefilled between two steps of the batch.
            prefix_bytes: Bytes of keys and values kept for the next turns of sessions; 0 keeps none.
            interval: Seconds between two chunks of a stream; the first and the last come at once.
            at_temperature: Return logprobs of the logits divided by the request's temperature, as trainers compute
                them.
            own_stream: On a GPU, sample on its own stream, beside other work. Whoever changes the weights in
                `updating` then has to synchronize the device.
        """
        super().__init__()
        if max_batch < 1 or max_queue < 0 or prefill_tokens < 1:
            raise ConfigError("max_batch and prefill_tokens must be at least 1, max_queue at least 0")
        self._model, self._tokenizer, self._name, self._device = model, tokenizer, name, device
        self._dtype = getattr(torch, dtype) if isinstance(dtype, str) else dtype
        self._version, self._max_queue, self._context_length = weight_version, max_queue, context_length
        self._own_stream = own_stream
        self._limits = DecoderLimits(
            max_batch, max_batch_tokens, prefill_tokens, prefix_bytes, interval, at_temperature
        )
        self._decoder: Decoder | None = None
        self._closed = False
        self._grammars: GrammarFactory | None = None
        self._starting = asyncio.Lock()

    def __repr__(self) -> str:
        return object_repr(self, self.name)

    # --- the Engine protocol -----------------------------------------------------------------------------------------

    async def start(self) -> None:
        async with self._starting:
            if self._decoder is None and not self._closed:
                self._decoder = await asyncio.to_thread(self._load)

    async def close(self) -> None:
        self._closed = True
        if self._decoder is not None:
            await asyncio.to_thread(self._decoder.close)

    async def info(self) -> EngineInfo:
        decoder = self._running_decoder()
        return EngineInfo((self.name,), self._context(decoder), decoder.version)

    async def pause(self) -> None:
        self._running_decoder()
        await super().pause()

    async def sample(self, request: SampleRequest) -> AsyncIterator[Sampled]:
        decoder = self._running_decoder()
        self._check(request, decoder)
        grammar = None
        schema, form = request.sampling.json_schema, request.sampling.form
        if schema is not None or form is not None:
            grammar = await asyncio.to_thread(self._grammar, form or Form(schema=schema))
        sequence = self._sequence(request, decoder, grammar)
        decoder.submit(sequence)
        try:
            finish = None
            while finish is None:
                sampled = await sequence.stream.get()
                finish = sampled.finish
                yield sampled
        finally:
            decoder.abandon(sequence)

    # --- for a trainer -----------------------------------------------------------------------------------------------

    @property
    def weight_version(self) -> str:
        return self._version if self._decoder is None else self._decoder.version

    @property
    def counters(self) -> Counters:
        """What the engine has done so far."""
        return self._running_decoder().counters

    async def load(self) -> EngineLoad:
        """How busy it is: a full batch has no room for another sequence."""
        decoder = self._running_decoder()
        running, limits = len(decoder.batch), self._limits
        used = max(running / limits.max_batch, running * decoder.batch.width / limits.max_batch_tokens)
        return EngineLoad(min(1.0, used), running, decoder.waiting, decoder.counters.preempted)

    @property
    def waiting(self) -> int:
        """Requests without a place in the batch."""
        return self._running_decoder().waiting

    @contextmanager
    def updating(self, version: str | None = None) -> Iterator[None]:
        """Hold the engine between two steps while the weights change, from any thread.

        After the block, tokens carry `version`, and new requests reuse no keys or values from before it. If the block
        raises, the version stays as it was. Training passes over a shared module belong into such a block too, because
        the module is in evaluation mode while it samples; in the block its training flags are as the trainer set them.
        """
        if self._decoder is None:
            yield
            self._version = self._version if version is None else version
            return
        with self.gate.held():
            done = False
            try:
                yield
                done = True
            finally:
                self._decoder.change_weights(version if done else None)

    def update(self, version: str) -> None:
        """The weights were changed (while the engine was paused), and are called `version` now."""
        with self.updating(version):
            pass

    # --- parts -------------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The model's name."""
        if self._name is not None:
            return self._name
        if isinstance(self._model, nn.Module):
            config = getattr(self._model, "config", None)
            return getattr(config, "_name_or_path", "") or type(self._model).__name__
        return str(self._model)

    @property
    def forms(self) -> bool:
        return self._tokenizer is not None

    def _load(self) -> Decoder:
        if isinstance(self._model, nn.Module):
            runner = ModelRunner(self._model, autocast=self._dtype, own_stream=self._own_stream)
        else:
            runner = ModelRunner(load(self._model, self._device, self._dtype), own_stream=self._own_stream)
        if isinstance(self._tokenizer, str | Path):
            self._tokenizer = AutoTokenizer.from_pretrained(str(self._tokenizer))
        return Decoder(runner, self._limits, self.gate, version=self._version, tokenizer=self._tokenizer)

    def _running_decoder(self) -> Decoder:
        if self._closed:
            raise EngineError("the engine was closed", status=503)
        if self._decoder is None:
            raise EngineError("the engine has not been started", status=503)
        return self._decoder

    def _context(self, decoder: Decoder) -> int | None:
        return self._context_length or decoder.runner.context_length

    def _check(self, request: SampleRequest, decoder: Decoder) -> None:
        """Refuse a request that can't be sampled. A wrong id would end the CUDA context for all requests."""
        s, vocabulary = request.sampling, decoder.runner.vocab_size
        check_request(request, self.name, self._context(decoder))
        for what, ids in (("prompt", request.prompt), ("logit_bias", [token for token, _ in s.logit_bias])):
            if ids and not (min(ids) >= 0 and max(ids) < vocabulary):
                wrong = max(ids) if max(ids) >= vocabulary else min(ids)
                raise EngineError(f"{what} has token id {wrong}, but the model has {vocabulary} tokens", status=400)
        if decoder.waiting >= self._max_queue:
            raise EngineError(f"{decoder.waiting} requests are waiting already", status=503, retry_after=1.0)

    def _sequence(self, request: SampleRequest, decoder: Decoder, grammar: Grammar | None) -> Sequence:
        s, length = request.sampling, len(request.prompt)
        left = (self._context(decoder) or 1 << 62) - length
        stops = s.stop_token_ids if s.ignore_eos else self._eos_ids(decoder).union(s.stop_token_ids)
        return Sequence(
            ids=array(IDS, request.prompt),
            sampling=s,
            limit=length + min(left, s.max_tokens or left),
            stop_ids=frozenset(token for token in stops if 0 <= token < decoder.runner.vocab_size),
            keep=bool(request.session_id),
            rng=Random(s.seed),
            stream=TokenStream(),
            streamed=request.stream,
            grammar=grammar,
        )

    def _eos_ids(self, decoder: Decoder) -> frozenset[int]:
        """The model's and the tokenizer's."""
        ids = decoder.runner.eos_ids | {getattr(self._tokenizer, "eos_token_id", None)}
        return frozenset(token for token in ids if token is not None and token < decoder.runner.vocab_size)

    def _grammar(self, form: Form) -> Grammar:
        decoder = self._running_decoder()
        if self._tokenizer is None:
            raise EngineError("json_schema needs the engine's `tokenizer`, and none was given", status=400)
        if self._grammars is None:
            try:
                self._grammars = GrammarFactory(self._tokenizer, decoder.runner.vocab_size, self._eos_ids(decoder))
            except ImportError as error:
                hint = "pip install 'agentcore-rl-toolkit[transformers]'"
                raise EngineError(f"json_schema needs llguidance: {error}\nhint: {hint}", status=400) from error
        return self._grammars.compile(form)
