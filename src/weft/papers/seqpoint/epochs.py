"""Epochs of networks of sequences: the padded length of every iteration, and its time on a machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.core.errors import InputError
from weft.core.files import read_records, read_text
from weft.core.options import SHORT
from weft.estimate import estimate
from weft.hardware import Gpu
from weft.models.sequence import iteration

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
_HOP = 160
"""Samples of 16 kHz between two frames of a spectrogram, 10 ms (mlcommons/training, speech_recognition)."""
_MARKS = 2
"""Tokens that mark the beginning and the end of a sentence (mlcommons/training, rnn_translator)."""
LONGEST, BUCKETS = 50, 5
"""Tokens up to which GNMT takes a pair, and its buckets of equal width (mlcommons/training, rnn_translator)."""
PAIRS = 133_317
"""Sentence pairs of the training set of IWSLT'15 English to Vietnamese."""
UTTERANCES = 28_539
"""Utterances of LibriSpeech train-clean-100."""
SPEECH, TRANSLATION = "lengths_speech.csv", "lengths_translation.csv"


@dataclass(frozen=True, eq=False)
class Epoch:
    """Iterations of a network in their order: `lengths` (n,) by which they are told apart, and their `inputs` (n, 2).

    Inputs are source and target lengths as `weft.iteration` takes them. `source` says where the lengths come from.
    """

    network: str
    model: str
    batch: int
    lengths: Floats
    inputs: Ints
    source: str

    def __len__(self) -> int:
        return len(self.lengths)

    def seconds(self, gpu: Gpu) -> Floats:
        """Return the time of every iteration on a GPU, in closed form [s]; each distinct one is timed once."""
        unique, which = np.unique(self.inputs, axis=0, return_inverse=True)
        graph = iteration(self.model, self.batch, unique[:, 0], unique[:, 1])
        return np.asarray(estimate(graph, gpu, SHORT).seconds)[which.ravel()]


def speech(data: Path | None, batch: int, *, whole: bool = False, order: str = "sorted", seed: int = 0) -> Epoch:
    """An epoch of DeepSpeech2 on LibriSpeech-100h: utterances in the `order` "sorted" by duration, or "shuffled".

    The last, incomplete batch is left out unless the epoch is `whole`. Without measurements (`data`), lengths are drawn
    from a distribution like LibriSpeech's.
    """
    frames, source = _utterances(data)
    rng = np.random.default_rng(seed)
    frames = np.sort(frames) if order == "sorted" else frames[rng.permutation(len(frames))]
    cut = [frames[first : first + batch] for first in range(0, len(frames), batch)]
    longest = np.array([one.max() for one in cut if whole or len(one) == batch])
    inputs = np.stack([longest, np.zeros_like(longest)], axis=1)
    return Epoch("DeepSpeech2", "deepspeech2", batch, longest.astype(np.float64), inputs, source)


def translation(data: Path | None, batch: int, seed: int = 0) -> Epoch:
    """Return an epoch of GNMT on lengths of IWSLT'15: pairs drawn into buckets, whole batches alone, in a random order.

    The 133,317 training pairs are in no public repository: they are drawn with replacement from tst2012 and tst2013.
    Without measurements (`data`), lengths are drawn from a distribution like theirs.
    """
    rng = np.random.default_rng(seed)
    pairs, source = _pairs(data)
    pairs = pairs[(pairs.max(axis=1) <= LONGEST) & (pairs.min(axis=1) > _MARKS)]
    pairs = pairs[rng.integers(0, len(pairs), PAIRS)]
    batches = np.concatenate([*_bucket_pairs(pairs, batch, rng)])
    batches = batches[rng.permutation(len(batches))]
    return Epoch("GNMT", "gnmt", batch, batches.max(axis=1).astype(np.float64), batches, source)


def _bucket_pairs(pairs: Ints, batch: int, rng: np.random.Generator) -> Iterator[Ints]:
    """Padded lengths of the whole batches of each bucket of similar pairs, (batches, 2)."""
    bucket = (pairs.max(axis=1) - 1) // (-(-LONGEST // BUCKETS))
    for one in np.unique(bucket):
        mine = pairs[rng.permutation(np.flatnonzero(bucket == one))]
        count = len(mine) // batch
        yield mine[: count * batch].reshape(count, batch, 2).max(axis=1)


def _utterances(data: Path | None) -> tuple[Ints, str]:
    """Frames of every utterance, and where they come from."""
    rows = list(_rows(data, SPEECH))
    if rows:
        samples = np.array([int(row["samples"]) for row in rows if row["split"] == "train-clean-100"])
        return samples // _HOP + 1, f"LibriSpeech train-clean-100, {len(samples):,} utterances"
    rng = np.random.default_rng(0)
    short = rng.random(UTTERANCES) < _SHORT
    seconds = np.where(short, rng.uniform(*_FLAT, UTTERANCES), rng.triangular(*_PEAK, UTTERANCES))
    return (seconds * 100).astype(
        np.int64
    ) + 1, "drawn like LibriSpeech train-clean-100: there are no measurements here"


_SHORT, _FLAT, _PEAK = 0.27, (2.0, 12.0), (12.0, 15.5, 17.0)
"""Share of short utterances, their flat range, and the peak of the others (low, mode, high) [s]: of train-clean-100's,
73 % lie between 12 and 17 s, the others nearly all below."""


def _pairs(data: Path | None) -> tuple[Ints, str]:
    """Source and target tokens of pairs with their marks, and where they come from."""
    rows = [row for row in _rows(data, TRANSLATION) if row["set"].startswith("iwslt15")]
    if rows:
        tokens = np.array([(int(row["source_tokens"]), int(row["target_tokens"])) for row in rows])
        return tokens + _MARKS, f"IWSLT'15 en-vi, {PAIRS:,} pairs drawn from the {len(rows):,} of tst2012 and tst2013"
    rng = np.random.default_rng(0)
    source_ = rng.lognormal(np.log(_MEAN[0]) - _SPREAD**2 / 2, _SPREAD, 2821)
    target = source_ * rng.lognormal(np.log(_MEAN[1] / _MEAN[0]), 0.2, 2821)
    tokens = np.stack([source_, target], axis=1).astype(np.int64) + 1 + _MARKS
    return tokens, "drawn like IWSLT'15 en-vi: there are no measurements here"


_MEAN, _SPREAD = (19.4, 24.1), 0.6
"""Mean source and target tokens of IWSLT'15 en-vi's tests, and the spread of their logarithm [assumed, 0.4 to 0.8]."""


def _rows(data: Path | None, name: str) -> Iterator[Mapping[str, Any]]:
    if data is None or not (data / name).is_file():
        return
    yield from read_records(read_text(data / name), data / name)


def variants(gpu: Gpu) -> dict[str, Gpu]:
    """The paper's machine and what it was compared with, on another base as well: slower, smaller, without an L2.

    Of the paper's five machines the one without an L1 is the same in closed form: GEMMs keep their tiles in the local
    data share.
    """
    slow = "852 MHz" if gpu.compute.clock > _SLOW else f"{gpu.compute.clock / 2:g} Hz"
    clocks = ("compute.clock", "clocks.matrix_peak", "clocks.sustained", "cache.clock")
    few = max(gpu.compute.compute_units // 4, 1)
    return {
        "as it is": gpu,
        f"at {slow}": gpu.replace(dict.fromkeys(clocks, slow)),
        f"{few} compute units": gpu.replace({"compute.compute_units": few}),
        "without an L2": _without_cache(gpu),
    }


_SLOW = 1e9


def _without_cache(gpu: Gpu) -> Gpu:
    """Return a GPU whose L2 answers as slowly as the memory: every request goes there."""
    share = gpu.memory.bandwidth * gpu.memory.read_efficiency / gpu.cache.bandwidth
    if not 0 < share <= 1:
        raise InputError(f"{gpu.name}'s L2 is no faster than its memory; name a GPU with a faster one")
    return gpu.replace({"achieved.gemm_cache": share, "cache.efficiency": share})
