"""Networks of sequences as graphs of a training iteration: DeepSpeech2, GNMT and RNN-T, a batch padded to a length."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from weft.core.errors import InputError, check_name, show_value
from weft.graph import Convolution, Ctc, Gemm, Graph, Node, Op, Opaque, Recurrent, Streaming
from weft.graph.op import plain

DEEPSPEECH_FEATURES, CHARACTERS = 161, 29
"""Frequencies of DeepSpeech2's spectrogram, and characters that it writes (mlcommons/training, speech_recognition)."""
GNMT_HIDDEN, GNMT_WORDS = 1024, 32320
"""Cells and words of GNMT v2 (mlcommons/training, rnn_translator)."""
RNNT_FEATURES, RNNT_ENCODER, RNNT_PREDICTION, RNNT_JOINT, RNNT_WORDS = 240, 1024, 512, 512, 1024
"""Widths of RNN-T (mlcommons/training, rnn_speech_recognition): stacked features, cells of encoder and prediction
network, width of the joint network, word pieces with a blank [recalled]."""

LABELS = 0.28
"""Characters of a transcript for each step of 20 ms: read speech has about 14 a second [assumed; 0.2 to 0.4]."""
Named = Iterator[tuple[str, Op]]
_PASSES = 3
"""Times that a loss over all alignments goes through its probabilities: forwards, backwards, gradients [assumed]."""


def iteration(model: str, batch: Any, source: Any, target: Any = 0, dtype: str = "fp32") -> Graph:
    """Return the operators of a training iteration, forward and backward, in sequence; without the optimizer's update.

    `model` is one of SEQUENCE_MODELS. Every sequence of the batch is padded to `source` steps (frames of 10 ms for
    speech, tokens for translation) and `target` tokens; arrays of lengths broadcast in `weft.estimate`. The backward
    pass runs the operators in reverse, each by its own rule. Raises UnknownNameError for an unknown model, InputError
    for lengths that are too short or missing.

    >>> len(iteration("deepspeech2", batch=64, source=1200))
    30
    """
    check_name("model of sequences", model, SEQUENCE_MODELS)
    for name, value in (("batch", batch), ("source", source), ("target", target)):
        lengths = np.asarray(value)
        if lengths.dtype.kind not in "iuf" or not ((lengths >= 0) & (lengths < 2**31)).all():
            raise InputError(f"{name} is {show_value(value)}; give whole numbers, such as 64, or an array of them")
    forward = list(SEQUENCE_MODELS[model](batch, source, target, dtype))
    return Graph(tuple(Node(op, name) for name, op in (*forward, *_backward(forward))), title=f"{model}, an iteration")


def _backward(forward: list[tuple[str, Op]]) -> Named:
    for name, op in reversed(forward):
        gradients = op.backward
        for kind, ops in (("data", gradients.inputs), ("weights", gradients.weights)):
            for place, one in enumerate(ops):
                yield f"{name} {kind}{place or ''}", one


def _elementwise(elements: Any, dtype: str, inputs: int = 1) -> Streaming:
    return Streaming("elementwise", plain(np.asarray(elements)), 1, dtype, inputs)


def _deepspeech(batch: Any, frames: Any, dtype: str) -> Named:
    """Return the two convolutions, each with batch norm and a clipped linear function (161 x F -> 21 x T x 32)."""
    wide = plain(np.asarray(frames))
    first = Convolution(batch, 1, 32, DEEPSPEECH_FEATURES, wide, 41, 2, 0, dtype, 11)
    second = Convolution(batch, 32, 32, first.rows, first.columns, 21, 2, 0, dtype, 11, 1)
    for name, op in (("conv1", first), ("conv2", second)):
        elements = plain(np.asarray(batch) * op.rows * op.columns * op.filters)
        yield name, op
        yield f"{name} norm", Streaming("batchnorm_training", elements, 1, dtype)
        yield f"{name} clip", _elementwise(elements, dtype)


def deepspeech_steps(frames: Any) -> Any:
    """Return the steps of DeepSpeech2's recurrent layers for `frames` frames of 10 ms; InputError below one step."""
    steps = (np.asarray(frames) - 11) // 2 + 1 - 10
    if np.any(steps < 1):
        raise InputError(f"{np.min(frames):g} frames are too few for DeepSpeech2's convolutions; give at least 31")
    return plain(steps)


def _classifier_ops(batch: Any, steps: Any, hidden: int, dtype: str) -> Named:
    """Return the linear layer, its softmax, and CTC over all steps."""
    rows = plain(np.asarray(batch) * np.asarray(steps))
    yield "linear", Gemm(rows, CHARACTERS, hidden, dtype)
    yield "softmax", Streaming("softmax", rows, CHARACTERS, dtype)
    labels = plain(np.ceil(np.asarray(steps) * LABELS))
    yield "ctc", Ctc(batch, steps, labels, CHARACTERS)


def _deepspeech2(batch: Any, frames: Any, target: Any, dtype: str) -> Named:
    """Return the reference from 7 August 2018: three GRU layers of 2560 cells in one direction (@e91cec7)."""
    steps = deepspeech_steps(frames)
    yield from _deepspeech(batch, frames, dtype)
    for layer, inputs in enumerate((672, 2560, 2560)):
        yield f"gru{layer + 1}", Recurrent("gru", 2560, batch, steps, inputs, dtype)
    yield from _classifier_ops(batch, steps, 2560, dtype)


def _deepspeech2_first(batch: Any, frames: Any, target: Any, dtype: str) -> Named:
    """Return the first reference, of July 2018: five GRU layers of 800 cells in both directions, batch norm between."""
    steps = deepspeech_steps(frames)
    yield from _deepspeech(batch, frames, dtype)
    elements = plain(np.asarray(batch) * np.asarray(steps) * 800)
    for layer, inputs in enumerate((672, 800, 800, 800, 800)):
        if layer:
            yield f"norm{layer + 1}", Streaming("batchnorm_training", elements, 1, dtype)
        for way in ("forward", "reverse"):
            yield f"gru{layer + 1} {way}", Recurrent("gru", 800, batch, steps, inputs, dtype)
        yield f"sum{layer + 1}", _elementwise(elements, dtype, 2)
    yield from _classifier_ops(batch, steps, 800, dtype)


def _gnmt(batch: Any, source: Any, target: Any, dtype: str) -> Named:
    """GNMT v2: four LSTM layers in the encoder, the first in both directions, four in the decoder with attention."""
    if np.any(np.asarray(target) < 1):
        raise InputError("GNMT also needs the number of target tokens; give it, like target=25")
    hidden = GNMT_HIDDEN
    words = {name: plain(np.asarray(batch) * np.asarray(length)) for name, length in
             (("encoder", source), ("decoder", target))}  # fmt: skip
    yield "encoder embedding", Streaming("embedding", words["encoder"], hidden, dtype)
    for name, inputs in (("1 forward", hidden), ("1 reverse", hidden), ("2", 2 * hidden), ("3", hidden), ("4", hidden)):
        yield f"encoder {name}", Recurrent("lstm", hidden, batch, source, inputs, dtype)
        if name in ("3", "4"):
            yield f"encoder residual {name}", _elementwise(words["encoder"] * hidden, dtype, 2)
    yield "decoder embedding", Streaming("embedding", words["decoder"], hidden, dtype)
    yield "decoder 1", Recurrent("lstm", hidden, batch, target, hidden, dtype)
    yield from _bahdanau(batch, source, target, hidden, dtype)
    for name in ("2", "3", "4"):
        yield f"decoder {name}", Recurrent("lstm", hidden, batch, target, 2 * hidden, dtype)
        if name in ("3", "4"):
            yield f"decoder residual {name}", _elementwise(words["decoder"] * hidden, dtype, 2)
    yield "classifier", Gemm(words["decoder"], GNMT_WORDS, hidden, dtype)
    yield "loss", Streaming("eager_cross_entropy", words["decoder"], GNMT_WORDS, dtype)


def _bahdanau(batch: Any, source: Any, target: Any, hidden: int, dtype: str) -> Named:
    """Attention that scores two tokens by v tanh(query + key): batch x target x source x hidden sums, no product."""
    pairs = plain(np.asarray(batch) * np.asarray(target) * np.asarray(source))
    yield "attention query", Gemm(plain(np.asarray(batch) * np.asarray(target)), hidden, hidden, dtype)
    yield "attention key", Gemm(plain(np.asarray(batch) * np.asarray(source)), hidden, hidden, dtype)
    yield "attention sum", _elementwise(pairs * hidden, dtype)
    yield "attention tanh", _elementwise(pairs * hidden, dtype)
    yield "attention score", Gemm(pairs, 1, hidden, dtype)
    yield "attention softmax", Streaming("softmax", plain(np.asarray(batch) * np.asarray(target)), source, dtype)
    yield "attention context", Gemm(target, hidden, source, dtype, batch)


def _rnnt(batch: Any, frames: Any, target: Any, dtype: str) -> Named:
    """RNN-T: an LSTM encoder, time halved after two of five layers, a prediction network, a joint one of all pairs."""
    if np.any(np.asarray(target) < 1):
        raise InputError("RNN-T also needs the number of target tokens; give it, like target=40")
    first = plain(np.ceil(np.asarray(frames) / 3))
    second = plain(np.ceil(np.asarray(first) / 2))
    tokens = plain(np.asarray(target) + 1)
    for layer, inputs in enumerate((RNNT_FEATURES, RNNT_ENCODER)):
        yield f"encoder {layer + 1}", Recurrent("lstm", RNNT_ENCODER, batch, first, inputs, dtype)
    for layer, inputs in enumerate((2 * RNNT_ENCODER, RNNT_ENCODER, RNNT_ENCODER)):
        yield f"encoder {layer + 3}", Recurrent("lstm", RNNT_ENCODER, batch, second, inputs, dtype)
    words = plain(np.asarray(batch) * np.asarray(tokens))
    yield "embedding", Streaming("embedding", words, RNNT_PREDICTION, dtype)
    for layer in range(2):
        yield f"prediction {layer + 1}", Recurrent("lstm", RNNT_PREDICTION, batch, tokens, RNNT_PREDICTION, dtype)
    pairs = plain(np.asarray(batch) * np.asarray(second) * np.asarray(tokens))
    yield "joint encoder", Gemm(plain(np.asarray(batch) * np.asarray(second)), RNNT_JOINT, RNNT_ENCODER, dtype)
    yield "joint prediction", Gemm(words, RNNT_JOINT, RNNT_PREDICTION, dtype)
    yield "joint sum", _elementwise(pairs * RNNT_JOINT, dtype)
    yield "joint linear", Gemm(pairs, RNNT_WORDS, RNNT_JOINT, dtype)
    yield "transducer loss", Opaque("transducer loss", bytes=plain(_PASSES * 4 * np.asarray(pairs) * RNNT_WORDS))


SEQUENCE_MODELS: Mapping[str, Callable[[Any, Any, Any, str], Iterable[tuple[str, Op]]]] = {
    "deepspeech2": _deepspeech2,
    "deepspeech2-first": _deepspeech2_first,
    "gnmt": _gnmt,
    "rnnt": _rnnt,
}
"""The models of sequences by name; each gives the operators of its forward pass for batch, lengths and dtype."""
