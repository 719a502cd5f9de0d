"""A run's checkpoint as a model of lm-eval, `marin_jax`: its requests in, answers from one batched program out.

    lm_eval.simple_evaluate(model="marin_jax", model_args="pretrained=runs/d768-smoke", …), once this module is imported
    marin-lm-eval run --model marin_jax --model_args pretrained=runs/d768-smoke --tasks marin_cloze

lm-eval 0.4.13 has no way to name a module that brings a model, so the second is a console script of ours
(`evals.lm_eval_command`). Nothing here needs torch.

As lm-eval defines it (docstrings of `lm_eval.api.model`): a context that does not fit loses tokens on its left; rolling
log-likelihood predicts every token once, a full window before the last ones; trailing spaces of a context belong to the
continuation. As the model was trained: every context begins with BOS, once; a text of rolling log-likelihood is scored
behind BOS, which is not scored itself.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import jax
import lm_eval.models  # noqa: F401  so that a message about an unknown model names all of them
from lm_eval import utils
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import maybe_truncate, normalize_gen_kwargs, postprocess_generated_text
from tqdm import tqdm

from evals.batching import parse_world, place
from evals.generation import Prompt, generate
from evals.loading import LoadedRun, RouterBias, load_run, weights
from evals.loglikelihood import Answer, Request, log_likelihoods
from evals.plain_text import plain_text
from marin_model.flops import parameter_shapes
from repro.errors import UsageError

NAME = "marin_jax"
TASKS = Path(__file__).parent / "tasks"  # the packaged tasks
DTYPES = ("float32", "bfloat16")
NEW_TOKENS = 256  # where a task does not say how many; lm-eval's own default
# Settings of generation that change nothing at these values, or nothing where the likeliest token is taken.
NEUTRAL = {"num_beams": 1, "top_p": 1.0, "top_k": 0, "repetition_penalty": 1.0, "min_p": 0.0}
OF_SAMPLING = ("top_p", "top_k", "min_p")

log = logging.getLogger(__name__)


@register_model(NAME)
class MarinJax(TemplateLM):
    """`pretrained` is a run's folder, or a run that was loaded already.

    step           completed updates; None: the newest checkpoint
    tokenizer      the tokenizers file that the run was trained with; bytes need none
    router_bias    saved or pending, see `evals.loading`
    dtype          of the computation: float32, or bfloat16 as the run's own evaluations
    max_length     tokens of context, at most the model's
    batch_size     rows of a batch; auto: as many as hold 8,192 tokens
    mesh           replicas x data x expert, such as 8x1x1, for a run that is yet to be loaded; None: all accelerators
                   as replicas, or a CPU alone
    seed           of sampling; texts drawn of equal prompts differ, and do not depend on what else is asked
    """

    def __init__(
        self,
        pretrained: str | Path | LoadedRun,
        step: int | None = None,
        tokenizer: str | None = None,
        router_bias: RouterBias = "saved",
        dtype: str = "float32",
        max_length: int | None = None,
        batch_size: int | str = "auto",
        max_batch_size: int | None = None,
        mesh: str | None = None,
        seed: int = 0,
        device: str | None = None,
    ) -> None:
        super().__init__()
        run = (
            pretrained
            if isinstance(pretrained, LoadedRun)
            else load_run(Path(pretrained), step=step, tokenizer=tokenizer, world=parse_world(mesh))
        )
        if dtype not in DTYPES:
            raise UsageError(f"dtype {dtype!r}: must be {' or '.join(DTYPES)}.")
        if max_length is not None and not 2 <= max_length <= run.config.max_seq_len:
            raise UsageError(f"max_length {max_length}: must be 2 to {run.config.max_seq_len}, the model's context.")
        _check_device(device)
        self.run = run
        self.max_length = max_length or run.config.max_seq_len
        self.router_bias, self.dtype, self.seed = router_bias, dtype, seed
        self.text = plain_text(run.tokenizer.identity, run.tokenizer_file)
        self.placed = place(
            weights(run, router_bias),
            run.config,
            dtype=dtype,
            world=run.world,
            rows=_rows(batch_size),
            most_rows=max_batch_size,
        )

    @property
    def eot_token_id(self) -> int:
        return self.text.eos

    @property
    def prefix_token_id(self) -> int:
        return self.text.bos

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        """Ids of a text, behind BOS unless told otherwise or the text spells it itself."""
        ids = self.text.encode(string)
        if add_special_tokens is False or ids[:1] == [self.text.bos]:
            return ids
        return [self.text.bos, *ids]

    def get_model_info(self) -> dict[str, Any]:
        """What lm-eval writes under "config"."""
        return {
            "model_num_parameters": sum(prod(shape) for shape in parameter_shapes(self.run.config).values()),
            "model_dtype": self.dtype,
            "model_revision": f"{self.run.steps_completed} updates",
            "model_sha": self.run.identity_digest,
            "router_bias": self.router_bias,
            "dispatch": "dropless",
            "max_length": self.max_length,
            "prefix_token_id": self.prefix_token_id,
            "eot_token_id": self.eot_token_id,
            "tokenizer": str(self.run.tokenizer.identity),
            "tokenizer_digest": self.run.tokenizer_digest,
            "sampling_seed": self.seed,
        }

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        texts = [str(request.args[0]) for request in requests]
        windows = [self._windows(text) for text in texts]
        answers = iter(self._answers([one for of_text in windows for one in of_text], disable_tqdm))
        totals = [sum(next(answers).log_likelihood for _ in of_text) for of_text in windows]
        for text, total in zip(texts, totals, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", (text,), total)
        return totals

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        asked = [(str(context), dict(settings)) for context, settings in (request.args for request in requests)]
        settings = [_generation(given, min(NEW_TOKENS, self.max_length // 2)) for _, given in asked]
        copies: Counter[str] = Counter()
        prompts = []
        for (context, given), how in zip(asked, settings, strict=True):
            name = json.dumps([context, given], sort_keys=True)
            seed = hashlib.sha256(f"{self.seed} {copies[name]} {name}".encode()).digest()
            copies[name] += 1
            prompts.append(self._prompt(context, how, int.from_bytes(seed[:4])))

        def has_ended(index: int, written: list[int]) -> bool:
            text = self.text.decode(written)
            return any(stop in text for stop in settings[index]["until"] if stop)

        self.run.world.check_alike("lm-eval's requests", prompts)
        bar = tqdm(total=len(prompts), desc="Running generate_until requests", disable=self._is_mute(disable_tqdm))
        with bar, self._precision():
            written = generate(self.placed, prompts, self.text.eos, has_ended, bar.update)
        texts = []
        for (context, given), how, ids in zip(asked, settings, written, strict=True):
            text = postprocess_generated_text(self.text.decode(ids), how["until"], None)
            self.cache_hook.add_partial("generate_until", (context, given), text)
            texts.append(text)
        return texts

    def _loglikelihood_tokens(
        self, requests: list[tuple[tuple[str, str], list[int], list[int]]], disable_tqdm: bool = False, **kwargs: Any
    ) -> list[tuple[float, bool]]:
        cut = sum(len(context) + len(continuation) > self.max_length + 1 for _, context, continuation in requests)
        if cut:
            log.warning("%d of %d contexts do not fit and lose tokens on their left.", cut, len(requests))
        answers = self._answers([self._request(*request) for request in requests], disable_tqdm)
        for (key, *_), answer in zip(requests, answers, strict=True):
            self.cache_hook.add_partial("loglikelihood", key, tuple(answer))
        return [(log_likelihood, is_greedy) for log_likelihood, is_greedy in answers]

    def _answers(self, requests: Sequence[Request], disable_tqdm: bool) -> list[Answer]:
        self.run.world.check_alike("lm-eval's requests", requests)
        bar = tqdm(total=len(requests), desc="Running loglikelihood requests", disable=self._is_mute(disable_tqdm))
        with bar, self._precision():
            return log_likelihoods(self.placed, requests, bar.update)

    def _request(self, key: tuple[str, str], context: list[int], continuation: list[int]) -> Request:
        if len(continuation) > self.max_length:
            raise UsageError(
                f"a continuation has {len(continuation):,} tokens, the context holds {self.max_length:,}: "
                f"{key[1][:60]!r}… Only rolling log-likelihood scores longer texts."
            )
        return Request(tuple((context + continuation)[-(self.max_length + 1) :][:-1]), tuple(continuation))

    def _windows(self, text: str) -> list[Request]:
        pairs = utils.get_rolling_token_windows(
            token_list=self.tok_encode(text, add_special_tokens=False),
            prefix_token=self.prefix_token_id,
            max_seq_len=self.max_length,
            context_len=1,
        )
        return [
            Request((*before, *targets[:-1]), tuple(targets))
            for before, targets in map(utils.make_disjoint_window, pairs)
        ]

    def _prompt(self, context: str, how: Mapping[str, Any], seed: int) -> Prompt:
        new = how["max_gen_toks"]
        if new >= self.max_length:
            raise UsageError(
                f"max_gen_toks {new:,} leaves no room for a prompt in a context of {self.max_length:,}. Lower it with "
                "--gen_kwargs."
            )
        ids, _ = maybe_truncate(self.tok_encode(context), new, self.max_length, verbose=False)
        return Prompt(tuple(ids), new, how["temperature"], seed)

    def _is_mute(self, disable_tqdm: bool) -> bool:
        return disable_tqdm or not self.run.world.is_first

    def _precision(self) -> Any:
        """Whole float32 products, also where a GPU would round their inputs to TF32."""
        return jax.default_matmul_precision("float32" if self.dtype == "float32" else "default")


def _generation(given: Mapping[str, Any], most: int) -> dict[str, Any]:
    """Settings of generation as lm-eval reads them. UsageError for one that would be needed and is not known."""
    settings: dict[str, Any] = dict(normalize_gen_kwargs(dict(given), most))
    settings["temperature"] = float(settings.get("temperature", 0.0))
    for name, value in settings.items():
        if name in ("until", "max_gen_toks", "do_sample", "temperature") or NEUTRAL.get(name) == value:
            continue
        if name in OF_SAMPLING and settings["temperature"] == 0:
            continue
        raise UsageError(f"generation with {name}={value!r} is not known to {NAME}. Leave it out with --gen_kwargs.")
    return settings


def _rows(batch_size: int | str) -> int | None:
    if str(batch_size).partition(":")[0] == "auto":
        return None
    if not str(batch_size).isdecimal() or not int(batch_size):
        raise UsageError(f"batch_size {batch_size!r}: must be a count of rows, or auto.")
    return int(batch_size)


def _check_device(device: str | None) -> None:
    here = jax.default_backend()
    if device is not None and device.partition(":")[0].replace("cuda", "gpu") != here:
        raise UsageError(f"device {device!r}: JAX computes on {here} here. Set JAX_PLATFORMS to choose another.")
