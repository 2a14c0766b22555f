"""Chakra's `.et` files as messages: a length-prefixed `GlobalMetadata`, then a length-prefixed `Node` for each step.

The schema is MLCommons Chakra's `et_def.proto`; its descriptor is made here, so that no generated code is needed.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from weft.core.errors import ConfigError, InputError
from weft.core.files import read_unpacked

VERSIONS = ("", "0.0.4", "1.0.0")
"""Versions of Chakra's schema, as files state them, whose fields are those below; older files state none."""
_AGAIN = "write the file again, or get it again"
_WHOLE = "int32 int64 uint32 uint64 sint32 sint64 fixed32 fixed64 sfixed32 sfixed64"
_SCALARS = ("double", "float", *_WHOLE.split(), "bool", "string", "bytes")
"""Types of an attribute's value in the order of their fields: each has one for a value and one for a list."""
_MESSAGES = {
    "GlobalMetadata": "version:string attr:AttributeProto*",
    "IOInfo": "values:string shapes:string types:string",
    "Node": "id:uint64 name:string type:int32 ctrl_deps:uint64* data_deps:uint64* start_time_micros:uint64 "
    "duration_micros:uint64 inputs:IOInfo outputs:IOInfo attr:AttributeProto*",
}
"""Fields of the messages in the order of their numbers; * marks a repeated one. An enumeration is an int32 on disk."""


@cache
def schema() -> Mapping[str, Any]:
    """Return the message classes `GlobalMetadata`, `Node` and `AttributeProto` by name; InputError without protobuf."""
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    except ImportError:
        raise InputError(
            "Chakra's .et files need protobuf, which is not installed; run pip install 'weft[traces]'"
        ) from None
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="chakra.proto", package="ChakraProtoMsg", syntax="proto3")

    def add(message: Any, name: str, number: int, type_: str, repeated: bool = False, **more: int) -> None:
        made = message.field.add(name=name, number=number, label=3 if repeated else 1, **more)
        if type_ in _SCALARS:
            made.type = getattr(field, f"TYPE_{type_.upper()}")
        else:
            made.type, made.type_name = field.TYPE_MESSAGE, f".ChakraProtoMsg.{type_}"

    attribute = file.message_type.add(name="AttributeProto")
    attribute.oneof_decl.add(name="value")  # a value that is false or 0 is written, too
    add(attribute, "name", 1, "string")
    add(attribute, "doc_string", 2, "string")
    for place, type_ in enumerate(_SCALARS):
        listed = f"{type_.capitalize()}List"
        add(file.message_type.add(name=listed), "values", 1, type_, repeated=True)
        add(attribute, f"{type_}_val", 3 + 2 * place, type_, oneof_index=0)
        add(attribute, f"{type_}_list", 4 + 2 * place, listed, oneof_index=0)
    for name, members in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for number, member in enumerate(members.split(), 1):
            called, _, type_ = member.partition(":")
            add(message, called, number, type_.rstrip("*"), type_.endswith("*"))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    used = {name: pool.FindMessageTypeByName(f"ChakraProtoMsg.{name}") for name in (*_MESSAGES, "AttributeProto")}
    return {name: message_factory.GetMessageClass(message) for name, message in used.items()}


def read_messages(path: str | Path) -> tuple[Any, list[Any]]:
    """Return the metadata and the nodes of an .et file, compressed or not.

    Raises ConfigError for a file that is cut off, broken or of another version, InputError for a missing one or without
    protobuf.
    """
    messages = schema()
    from google.protobuf import message, proto

    try:
        file = io.BytesIO(read_unpacked(path))
        head = proto.parse_length_prefixed(messages["GlobalMetadata"], file)
        nodes = list(iter(_next(proto.parse_length_prefixed, messages["Node"], file), None))
    except (message.DecodeError, ValueError) as error:
        why = str(error) or "its end is missing"
        raise ConfigError(f"this is no whole Chakra trace ({why}); {_AGAIN}", str(path)) from None
    if head is None:
        raise ConfigError(f"the file is empty; {_AGAIN}", str(path))
    if head.version not in VERSIONS:
        known = ", ".join(filter(None, VERSIONS))
        raise ConfigError(
            f"this Chakra trace is of version '{head.version}', and Weft reads {known}; convert it with the converter "
            "of such a version",
            str(path),
        )
    return head, nodes


def _next(parse: Callable[[Any, Any], Any], kind: Any, file: io.BytesIO) -> Callable[[], Any]:
    return lambda: parse(kind, file)


def packed_messages(messages: Iterable[Any]) -> bytes:
    """Messages as the content of an .et file, each behind its length."""
    from google.protobuf import proto

    file = io.BytesIO()
    for one in messages:
        proto.serialize_length_prefixed(one, file)
    return file.getvalue()


def attributes(message: Any) -> dict[str, Any]:
    """Return the attributes of a node or of the metadata by name, lists as tuples."""
    found: dict[str, Any] = {}
    for one in message.attr:
        which = one.WhichOneof("value")
        if which is not None:
            value = getattr(one, which)
            found[one.name] = tuple(value.values) if which.endswith("_list") else value
    return found


def attribute(name: str, type_: str, value: Any) -> Any:
    """Return an attribute of one of protobuf's types, such as "int64"; a sequence becomes a list of that type."""
    made = schema()["AttributeProto"](name=name)
    if isinstance(value, Sequence) and not isinstance(value, str):
        getattr(made, f"{type_}_list").values.extend(value)
    else:
        setattr(made, f"{type_}_val", value)
    return made
