"""Communication between GPUs: collectives, messages from one to another, and copies inside one GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, cast

import numpy.typing as npt

from weft.core.errors import InputError, check_name, check_whole, is_whole, show_value
from weft.core.fields import check_fields
from weft.core.units import format_bytes
from weft.graph.op import DTYPE_BYTES, LARGEST, Op, Tensor, check_dtype, check_sizes

COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "send_recv")
"""The collectives by name, spelled as in the libraries."""
Form = Literal["ag_gemm", "gemm_rs", "gemm_ar"]
"""An all-gather of A's rows before the GEMM, or a reduce-scatter or all-reduce of its output after it."""
PairForm = Literal["ag_gemm", "gemm_rs", "gemm_ar", "gemm_ag", "gemm_a2a"]
"""Every form that closed forms time: also an all-gather or all-to-all of the GEMM's output after it."""
RANKS = 8
"""Default number of GPUs of a collective."""


@dataclass(frozen=True)
class Collective(Op):
    """A collective `name` over `ranks` GPUs that moves `bytes` of `dtype`.

    `bytes` counts the whole buffer [bytes], as nccl-tests does: a reduction's input, an all-gather's output, a rank's
    data of an all-to-all (its own part included), the message of a broadcast or of a send and receive. Raises
    UnknownNameError for an unknown collective or dtype, InputError for fewer than two ranks or an empty buffer.

    >>> Collective("all_reduce", 1 << 20, ranks=8).flops
    458752
    """

    kind: ClassVar[str] = "collective"

    name: str
    bytes: int
    ranks: int
    dtype: str = "bf16"

    def __post_init__(self) -> None:
        check_name("collective", self.name, COLLECTIVES)
        check_fields(self, sizes=False)
        check_dtype(self.dtype)
        check_sizes(self, "{} of a collective", {"bytes": 1, "ranks": 2})

    @property
    def share(self) -> int:
        """One rank's part of the buffer, rounded up [bytes]."""
        return -(-self.bytes // self.ranks)

    @property
    def reduces(self) -> bool:
        """Whether it adds up the ranks' data."""
        return self.name in ("all_reduce", "reduce_scatter")

    @property
    def reads(self) -> tuple[Tensor, ...]:
        """A rank's input: its share for an all-gather, otherwise the whole buffer."""
        return (self._buffer(self.share if self.name == "all_gather" else self.bytes),)

    @property
    def writes(self) -> tuple[Tensor, ...]:
        """A rank's output: its share for a reduce-scatter, otherwise the whole buffer."""
        return (self._buffer(self.share if self.name == "reduce_scatter" else self.bytes),)

    def _buffer(self, size: int) -> Tensor:
        return Tensor((-(-size // DTYPE_BYTES[self.dtype]),), self.dtype, "buffer")

    @property
    def flops(self) -> int:
        """Additions of one rank: ranks - 1 for every element of its share."""
        return (self.ranks - 1) * self.share // DTYPE_BYTES[self.dtype] if self.reduces else 0

    def __str__(self) -> str:
        return f"{self.name} of {format_bytes(self.bytes, 3)} over {self.ranks} GPUs"


Copies = Literal["rank", "expert"]
"""Whether a token is sent once to each rank that has any of its experts, or once for each expert."""
EXCHANGES: Mapping[str, Copies] = {
    "nccl": "expert",
    "allgather-reducescatter": "rank",
    "deepep": "rank",
    "deepep-ll": "expert",
    "hybridep": "rank",
    "uccl": "rank",
    "uccl-ll": "expert",
    "pplx": "expert",
    "nvlink-one-sided": "rank",
    "nvlink-two-sided": "rank",
}
"""Libraries that exchange a mixture's tokens between ranks, and the copies of a token that they send."""


@dataclass(frozen=True)
class TokenExchange(Collective):
    """The all-to-all of a mixture's tokens by a `library`: a rank's `tokens` of `hidden` elements to `top_k` experts.

    `bytes` counts what a rank sends, its own part included; `operation` is "dispatch" or "combine"; `units` are the
    compute units that the library takes (0: its own number). A token's experts are of `reach` out of `groups` groups
    (0: of all). Raises InputError for other numbers below one.
    """

    operation: Literal["dispatch", "combine"] = "dispatch"
    library: str = "nccl"
    tokens: int = 1
    hidden: int = 1
    top_k: int = 1
    experts: int = 2
    units: int = 0
    reach: int = 0
    groups: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_name("dispatcher", self.library, EXCHANGES)
        check_sizes(self, "{} of an exchange", dict.fromkeys(("tokens", "hidden", "top_k", "experts"), 1))
        for name in ("units", "reach", "groups"):
            check_whole(f"{name} of an exchange", getattr(self, name), 0, 8)

    def __str__(self) -> str:
        return f"{self.library} {self.operation} of {format_bytes(self.bytes, 3)} over {self.ranks} GPUs"


@dataclass(frozen=True)
class Send(Op):
    """A message of `bytes` to the GPU that is `offset` ranks away."""

    kind: ClassVar[str] = "send"

    bytes: int
    offset: int = 1

    def __post_init__(self) -> None:
        check_sizes(self, "{} of a message", {"bytes": 1})
        if not is_whole(self.offset) or abs(self.offset) > LARGEST:
            raise InputError(
                f"the offset of a message is {show_value(self.offset)}; give a whole number of ranks, like 1"
            )

    @property
    def reads(self) -> tuple[Tensor, ...]:
        """The message."""
        return (Tensor((self.bytes,), "int8", "buffer"),)

    @property
    def writes(self) -> tuple[Tensor, ...]:
        """Nothing on this GPU: the message is written at the receiver."""
        return ()


@dataclass(frozen=True)
class Copy(Op):
    """A copy of `bytes` from one place in a GPU's memory to another."""

    kind: ClassVar[str] = "copy"

    bytes: int

    def __post_init__(self) -> None:
        check_sizes(self, "{} of a copy", {"bytes": 1})

    @property
    def reads(self) -> tuple[Tensor, ...]:
        """The source of the copy."""
        return (Tensor((self.bytes,), "int8", "buffer"),)

    @property
    def writes(self) -> tuple[Tensor, ...]:
        """The destination of the copy."""
        return self.reads


def all_reduce(bytes: npt.ArrayLike, ranks: npt.ArrayLike = RANKS, dtype: str = "bf16") -> Collective:
    """Return an all-reduce of `bytes`, such as "64 MiB" or arrays of whole numbers, over `ranks` GPUs.

    Raises UnitError for a text without a unit, and as `Collective` does.

    >>> print(all_reduce("64 MiB"))
    all_reduce of 64 MiB over 8 GPUs
    """
    return _collective("all_reduce", bytes, ranks, dtype)


def reduce_scatter(bytes: npt.ArrayLike, ranks: npt.ArrayLike = RANKS, dtype: str = "bf16") -> Collective:
    """Return a reduce-scatter of a whole input of `bytes`; arguments and errors as of `all_reduce`."""
    return _collective("reduce_scatter", bytes, ranks, dtype)


def all_gather(bytes: npt.ArrayLike, ranks: npt.ArrayLike = RANKS, dtype: str = "bf16") -> Collective:
    """Return an all-gather of a whole output of `bytes`; arguments and errors as of `all_reduce`."""
    return _collective("all_gather", bytes, ranks, dtype)


def all_to_all(bytes: npt.ArrayLike, ranks: npt.ArrayLike = RANKS, dtype: str = "bf16") -> Collective:
    """Return an all-to-all of `bytes` on each GPU, its own part included; arguments and errors as of `all_reduce`."""
    return _collective("all_to_all", bytes, ranks, dtype)


def _collective(name: str, bytes: npt.ArrayLike, ranks: npt.ArrayLike, dtype: str) -> Collective:
    return Collective(name, cast(int, bytes), cast(int, ranks), dtype)
