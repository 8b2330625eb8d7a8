"""The asyncio side of a Transformers model: what a request may ask for, and its stream of tokens."""

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

from ...errors import ConfigError, EngineError
from ..base import IDS, EngineInfo, Sampled, SampleRequest
from ..reply_form import Form
from .decoder import Decoder
from .grammar import Grammar, Grammars
from .limits import Counters, Limits
from .model_runner import Runner, load
from .sequence import Sequence, Stream


class TransformersEngine:
    """Samples from a Transformers model in this process; requests are batched as they come.

    `model` is a folder, a hub id, or a module that is already loaded (of Transformers or PEFT), for instance the one a
    trainer trains: it is used as it is, without a copy. To change its weights, hold the engine meanwhile:

        with engine.updating("step-8"):
            optimizer.step()

    Sequences that are running then go on with the new weights, their later tokens with the new `weight_version`. Their
    keys and values are kept as they are, as inference servers do it; with `recompute` they are computed anew.

    A setting that a request leaves open means the policy itself: temperature 1, nothing cut off. Logprobs are
    those of the unmodified logits unless `at_temperature` is set.
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
        recompute: bool = False,
        routes: bool = False,
        graphs: bool | None = None,
        at_temperature: bool = False,
    ) -> None:
        """
        Args:
            tokenizer: A fast tokenizer or where to load it from; only needed for `json_schema` and for ending at stop
                strings here rather than in the gateway.
            name: What the model is called; by default, its path.
            device: Where to load the model; by default, on a GPU if there is one.
            dtype: What to load the model as, by default what it was saved as. A module that is already loaded is run
                with autocast to it.
            max_batch: How many sequences are decoded together.
            max_batch_tokens: What their keys and values may take: sequences × the longest of them. The newest ones wait
                when it is used up.
            max_queue: How many may wait for a place; beyond, requests are refused with a 503.
            context_length: The longest sequence; by default, what the model's configuration says.
            prefill_tokens: How much is prefilled between two steps of the batch.
            prefix_bytes: Keys and values kept for the next turns of sessions; 0 keeps none.
            interval: Seconds between two chunks of a stream; the first and the last come at once.
            recompute: Compute keys and values of running sequences anew after an update of the weights.
            routes: Tell which experts each token went through.
            graphs: Run passes in fixed shapes, as CUDA graphs; by default on a GPU. Models that can't, and `routes`,
                are run plainly all the same. On a CPU there are only the shapes, which takes longer.
            at_temperature: Return logprobs of the logits divided by the request's temperature, as trainers compute
                them.
        """
        if max_batch < 1 or max_queue < 0 or prefill_tokens < 1:
            raise ConfigError("max_batch and prefill_tokens are at least 1, max_queue at least 0")
        self._model, self._tokenizer, self._name, self._device = model, tokenizer, name, device
        self._dtype = getattr(torch, dtype) if isinstance(dtype, str) else dtype
        self._version, self._max_queue, self._recompute, self._routes = weight_version, max_queue, recompute, routes
        self._graphs = graphs
        self._context_length = context_length
        self._limits = Limits(max_batch, max_batch_tokens, prefill_tokens, prefix_bytes, interval, at_temperature)
        self._decoder: Decoder | None = None
        self._paused = self._closed = False
        self._grammars: Grammars | None = None
        self._starting, self._pausing = asyncio.Lock(), asyncio.Lock()

    # --- the seam ----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        async with self._starting:
            if self._decoder is None and not self._closed:
                self._decoder = await asyncio.to_thread(self._load)

    async def close(self) -> None:
        self._closed = True
        if self._decoder is not None:
            await asyncio.to_thread(self._decoder.close)

    async def info(self) -> EngineInfo:
        decoder = self._ready()
        return EngineInfo((self.name,), self._context(decoder), decoder.version)

    async def pause(self) -> None:
        """Wait for the step under way, then rest; running sequences go on after `resume`."""
        decoder = self._ready()
        async with self._pausing:
            if self._paused:
                return
            decoder.hold()
            try:
                await asyncio.to_thread(decoder.wait_for_rest)
            except BaseException:  # whoever paused has gone away
                decoder.release()
                raise
            self._paused = True

    async def resume(self) -> None:
        async with self._pausing:
            if self._paused:
                self._paused = False
                self._ready().release()

    async def sample(self, request: SampleRequest) -> AsyncIterator[Sampled]:
        decoder = self._ready()
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
        """What has been done so far."""
        return self._ready().counters

    @contextmanager
    def updating(self, version: str | None = None, *, recompute: bool | None = None) -> Iterator[None]:
        """Hold the engine between two steps while the weights change, from any thread.

        After it, tokens carry `version`, and no key or value computed before is reused for a new request. If the block
        raises, the version stays as it was. Training passes over a shared module belong into such a block too, since
        the module is in evaluation mode while it samples. Its training flags are as they were found.
        """
        if self._decoder is None:
            yield
            self._version = self._version if version is None else version
            return
        with self._decoder.held():
            done = False
            try:
                yield
                done = True
            finally:
                again = self._recompute if recompute is None else recompute
                self._decoder.renew(version if done else None, recompute=again)

    def update(self, version: str, *, recompute: bool | None = None) -> None:
        """The weights have been changed (while the engine was paused), and are called `version` now."""
        with self.updating(version, recompute=recompute):
            pass

    # --- parts -------------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """What the model is called."""
        if self._name is not None:
            return self._name
        if isinstance(self._model, nn.Module):
            config = getattr(self._model, "config", None)
            return getattr(config, "_name_or_path", "") or type(self._model).__name__
        return str(self._model)

    def _load(self) -> Decoder:
        if isinstance(self._model, nn.Module):
            runner = Runner(self._model, autocast=self._dtype, routes=self._routes)
        else:
            runner = Runner(load(self._model, self._device, self._dtype), routes=self._routes)
        if isinstance(self._tokenizer, str | Path):
            self._tokenizer = AutoTokenizer.from_pretrained(str(self._tokenizer))
        return Decoder(runner, self._limits, version=self._version, tokenizer=self._tokenizer, graphs=self._graphs)

    def _ready(self) -> Decoder:
        if self._closed:
            raise EngineError("the engine was closed", status=503)
        if self._decoder is None:
            raise EngineError("the engine has not been started", status=503)
        return self._decoder

    def _context(self, decoder: Decoder) -> int | None:
        return self._context_length or decoder.runner.context_length

    def _check(self, request: SampleRequest, decoder: Decoder) -> None:
        """Refuse what can't be sampled. A wrong id would end a GPU's context for everybody."""
        s, vocabulary = request.sampling, decoder.runner.vocab_size
        if request.model not in (None, self.name):
            raise EngineError(f"there is no model {request.model!r} here, only {self.name!r}", status=404)
        if not request.prompt:
            raise EngineError("the prompt is empty", status=400)
        if s.max_tokens is not None and s.max_tokens < 1:
            raise EngineError(f"max_tokens is {s.max_tokens}, but at least 1", status=400)
        for what, ids in (("prompt", request.prompt), ("logit_bias", [token for token, _ in s.logit_bias])):
            if ids and not (min(ids) >= 0 and max(ids) < vocabulary):
                wrong = max(ids) if max(ids) >= vocabulary else min(ids)
                raise EngineError(f"{what} has token id {wrong}, but there are {vocabulary} tokens", status=400)
        self._check_length(len(request.prompt), s.max_tokens, self._context(decoder))
        if decoder.load >= self._max_queue:
            raise EngineError(f"{decoder.load} requests are waiting already", status=503, retry_after=1.0)

    def _check_length(self, prompt: int, max_tokens: int | None, context: int | None) -> None:
        over = 0 if context is None else prompt + (max_tokens or 1) - context
        if over > 0:
            wanted = f"{prompt} tokens and {max_tokens or 'at least 1'} to sample"
            raise EngineError(f"the prompt has {wanted}, {over} more than the context of {context}", status=400)

    def _sequence(self, request: SampleRequest, decoder: Decoder, grammar: Grammar | None) -> Sequence:
        s, context = request.sampling, self._context(decoder)
        room = (context or 1 << 62) - len(request.prompt)
        eos = decoder.runner.eos_ids | {getattr(self._tokenizer, "eos_token_id", None)}
        own = frozenset() if s.ignore_eos else frozenset(token for token in eos if token is not None)
        stop_ids = frozenset(token for token in own.union(s.stop_token_ids) if 0 <= token < decoder.runner.vocab_size)
        # The same seed is the same sequence, but another one for each choice of a call.
        rng = Random() if s.seed is None else Random(f"{s.seed}/{request.choice}")
        return Sequence(
            ids=array(IDS, request.prompt),
            sampling=s,
            limit=len(request.prompt) + min(room, s.max_tokens or room),
            stop_ids=stop_ids,
            keep=bool(request.session_id),
            rng=rng,
            stream=Stream(),
            streamed=request.stream,
            routed=request.routes_from or 0,
            grammar=grammar,
        )

    @property
    def forms(self) -> bool:
        return self._tokenizer is not None

    def _grammar(self, form: Form) -> Grammar:
        decoder = self._ready()
        if self._tokenizer is None:
            raise EngineError("json_schema needs the engine's `tokenizer`, and none was given", status=400)
        if self._grammars is None:
            try:
                runner = decoder.runner
                eos = runner.eos_ids | {getattr(self._tokenizer, "eos_token_id", None)}
                ends = frozenset(token for token in eos if token is not None and token < runner.vocab_size)
                self._grammars = Grammars(self._tokenizer, runner.vocab_size, ends)
            except ImportError as error:
                hint = "pip install 'agentcore-rl-toolkit[transformers]'"
                raise EngineError(f"json_schema needs llguidance: {error}\nhint: {hint}", status=400) from error
        return self._grammars.of_form(form)
