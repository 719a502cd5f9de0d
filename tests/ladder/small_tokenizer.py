"""A tokenizers file made by the package itself: byte-level BPE of 300 tokens, with the tokens that begin and end."""

from __future__ import annotations

from pathlib import Path

import tokenizers

from repro.ladder.tokenizing import BOS_TOKEN, EOS_TOKEN


def write_tokenizer(path: Path) -> Path:
    """Train it on one sentence; it would cut texts to five tokens, if it were used as it is."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.decoder = tokenizers.decoders.ByteLevel()
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=[BOS_TOKEN, EOS_TOKEN],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(["the quick brown fox jumps over the lazy dog "] * 20, trainer)
    made.enable_truncation(5)
    made.save(str(path))
    return path
