"""Compile an entry point of the engine, with all functions that it calls, to one LLVM module. numba translates.

A machine reaches compiled functions as one pointer, to the records of its tables (`state.table_records`). Types that
are registered here tell numba how an element of a table is found: constant columns and widths become constant offsets,
and tables never overlap, nor do two columns of one.
"""

from __future__ import annotations

import ast
import operator
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import llvmlite.binding as llvm
import llvmlite.ir as ir
import numba
from numba import int64, types
from numba.core import cgutils
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.typing.templates import AbstractTemplate, AttributeTemplate, infer_global, signature
from numba.extending import (
    infer_getattr,
    intrinsic,
    lower_builtin,
    lower_getattr_generic,
    models,
    register_model,
)

from weft.engine import layout, state
from weft.engine.bits import lowest_bit, prefetch
from weft.engine.jit import MARKED, EntryPoint, checks_bounds
from weft.engine.memory import consult

_WORD = ir.IntType(64)
_OPAQUE = str(_WORD.as_pointer()) == "ptr"
"""Whether pointers are opaque; those of llvmlite 0.44, whose LLVM is 15, know what they point to."""


def _pointer(target: Any = _WORD) -> Any:
    """Return the type of a pointer, to `target` where LLVM asks for that."""
    return ir.PointerType() if _OPAQUE else ir.PointerType(target)


class MachineType(types.Type):
    """The type of a machine in compiled functions: the address of the records of its tables."""

    def __init__(self) -> None:
        super().__init__(name="Machine")


class TableType(types.Type):
    """The type of a table in compiled functions: the address of its record."""

    def __init__(self, table: str) -> None:
        self.table, self.fixed = table, state.COLUMNS.get(table, ())
        super().__init__(name=f"Table({table})")


class PolicyType(types.Type):
    """The type of an arbiter's policy in compiled functions: the address of its machine code."""

    def __init__(self) -> None:
        super().__init__(name="Policy")


for _kind in (MachineType, TableType, PolicyType):
    register_model(_kind)(models.OpaqueModel)


@infer_getattr
class _TablesOfMachine(AttributeTemplate):
    """A machine has its tables as attributes."""

    key = MachineType

    def generic_resolve(self, _: Any, name: str) -> Any:  # type: ignore[override]
        """The type of table `name`."""
        return TableType(name) if name in state.Machine._fields else None


@infer_getattr
class _ShapeOfTable(AttributeTemplate):
    """A table has a shape: its first four dimensions, zero where it has fewer."""

    key = TableType

    def resolve_shape(self, _: Any) -> Any:
        """The type of the shape."""
        return types.UniTuple(int64, 4)


@infer_global(operator.getitem)
class _GetElement(AbstractTemplate):
    """An element of a table is an integer."""

    def generic(self, args: Sequence[Any], _: Any) -> Any:
        """The signature of `table[index]`."""
        return signature(int64, *args) if isinstance(args[0], TableType) else None


@infer_global(operator.setitem)
class _SetElement(AbstractTemplate):
    """An element of a table is set to an integer."""

    def generic(self, args: Sequence[Any], _: Any) -> Any:
        """The signature of `table[index] = value`."""
        return signature(types.none, args[0], args[1], int64) if isinstance(args[0], TableType) else None


@lower_getattr_generic(MachineType)
def _table_of(_: Any, builder: Any, __: Any, machine: Any, name: str) -> Any:
    place = state.Machine._fields.index(name) * state.RECORD
    return builder.bitcast(_word(builder, machine, _WORD(place)), machine.type)


@lower_getattr_generic(TableType)
def _shape_of(_: Any, builder: Any, __: Any, table: Any, name: str) -> Any:
    assert name == "shape"
    sizes = ir.Constant(ir.ArrayType(_WORD, 4), ir.Undefined)
    for axis in range(4):
        sizes = builder.insert_value(sizes, _field(builder, table, state.RECORD_SIZES + axis), axis)
    return sizes


@lower_builtin(operator.getitem, TableType, types.Any)
def _get(context: Any, builder: Any, sig: Any, args: Sequence[Any]) -> Any:
    place, column = _place(context, builder, sig.args, args)
    return _tag(builder, builder.load(place, typ=_WORD), sig.args[0].table, column)


@lower_builtin(operator.setitem, TableType, types.Any, int64)
def _set(context: Any, builder: Any, sig: Any, args: Sequence[Any]) -> Any:
    place, column = _place(context, builder, sig.args, args)
    _tag(builder, builder.store(args[2], place), sig.args[0].table, column)
    return context.get_dummy_value()


def _word(builder: Any, pointer: Any, number: Any) -> Any:
    """The address of a word, by its number from an address on."""
    return builder.gep(builder.bitcast(pointer, _pointer()), [number], source_etype=_WORD)


def _field(builder: Any, table: Any, number: int) -> Any:
    """An integer of a table's record, which does not change while machine code runs."""
    loaded = builder.load(_word(builder, table, _WORD(number)), typ=_WORD)
    loaded.set_metadata("invariant.load", builder.module.add_metadata([]))
    return loaded


def _place(context: Any, builder: Any, kinds: Sequence[Any], args: Sequence[Any]) -> tuple[Any, int | None]:
    """The address of an element, and its column if that is known to the compiler."""
    table, index = kinds[0], args[1]
    kind = kinds[1]
    parts, indices = [kind], [index]
    if isinstance(kind, types.BaseTuple):
        parts, indices = list(kinds[1]), [builder.extract_value(index, k) for k in range(len(kind))]
    values = [
        _WORD(part.literal_value) if isinstance(part, types.Literal) else context.cast(builder, each, part, int64)
        for part, each in zip(parts, indices, strict=True)
    ]
    free = len(parts) - len(table.fixed)
    sizes = [*(_LateDimension(builder, args[0], axis) for axis in range(free)), *table.fixed]
    if checks_bounds():
        _check(
            context,
            builder,
            args[0],
            values,
            [size() if isinstance(size, _LateDimension) else _WORD(size) for size in sizes],
        )
    offset = values[0]
    for value, size in zip(values[1:], sizes[1:], strict=True):
        offset = builder.add(builder.mul(offset, size() if isinstance(size, _LateDimension) else _WORD(size)), value)
    start = builder.inttoptr(_field(builder, args[0], state.RECORD_ADDRESS), _pointer())
    known = isinstance(parts[-1], types.Literal) and (table.fixed or len(parts) == 1)
    return _word(builder, start, offset), parts[-1].literal_value if known else None


class _LateDimension:
    """The size of a dimension that only a run knows, loaded where it is needed."""

    def __init__(self, builder: Any, table: Any, axis: int) -> None:
        self._of = builder, table, state.RECORD_SIZES + axis

    def __call__(self) -> Any:
        return _field(*self._of)


def _check(context: Any, builder: Any, table: Any, values: Sequence[Any], sizes: Sequence[Any]) -> None:
    """Note an index outside a table in the table's record, and leave the machine code with an IndexError."""
    for axis, (value, size) in enumerate(zip(values, sizes, strict=True)):
        with builder.if_then(builder.icmp_unsigned(">=", value, size), likely=False):
            for number, noted in (
                (state.RECORD_AXIS, _WORD(axis)),
                (state.RECORD_INDEX, value),
                (state.RECORD_OUTSIDE, _WORD(1)),
            ):
                builder.store(noted, _word(builder, table, _WORD(number)))
            context.call_conv.return_user_exc(builder, IndexError, ("index outside of a table",))


def _tag(builder: Any, access: Any, table: str, column: int | None) -> Any:
    """Tell LLVM (by its type-based alias analysis) which table, and if known which column, an access is to."""
    add = builder.module.add_metadata
    node = add([f"table {table}", add(["weft"]), _WORD(0)])
    if column is not None:
        node = add([f"{table} {column}", node, _WORD(0)])
    access.set_metadata("tbaa", add([node, node, _WORD(0)]))
    return access


@intrinsic
def _trailing_zeros(_: Any, bits: Any) -> tuple[Any, Callable[..., Any]]:
    def generate(context: Any, builder: Any, _: Any, args: Any) -> Any:
        return builder.cttz(args[0], context.get_constant(types.boolean, True))

    return int64(int64), generate


@intrinsic
def _prefetch(_: Any, table: Any, row: Any, column: Any) -> tuple[Any, Callable[..., Any]]:
    def generate(_: Any, builder: Any, sig: Any, args: Any) -> Any:
        (width,) = sig.args[0].fixed
        place = builder.add(builder.mul(args[1], _WORD(width)), args[2])
        start = builder.inttoptr(_field(builder, args[0], state.RECORD_ADDRESS), _pointer())
        byte, flag = _pointer(ir.IntType(8)), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, flag, flag, flag])
        call = cgutils.get_or_insert_function(builder.module, kind, f"llvm.prefetch.{'p0' if _OPAQUE else 'p0i8'}")
        builder.call(call, [builder.bitcast(_word(builder, start, place), byte), flag(0), flag(3), flag(1)])
        return cgutils.get_null_value(cgutils.voidptr_t)

    return types.none(table, int64, int64), generate


@intrinsic
def _ask(_: Any, policy: Any, fields: Any) -> tuple[Any, Callable[..., Any]]:
    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        kinds = list(sig.args[1])
        values = [context.cast(builder, builder.extract_value(args[1], k), kind, int64) for k, kind in enumerate(kinds)]
        result, reason = cgutils.alloca_once(builder, _WORD), cgutils.alloca_once(builder, cgutils.voidptr_t)
        kind = ir.FunctionType(ir.IntType(32), [result.type, reason.type, *[_WORD] * len(kinds)])
        status = builder.call(builder.bitcast(args[0], ir.PointerType(kind)), [result, reason, *values])
        with builder.if_then(builder.icmp_signed("!=", status, status.type(0)), likely=False):
            builder.ret(status)
        return builder.load(result, typ=_WORD)

    return int64(policy, fields), generate


class _Library(JITCodeLibrary):
    """The LLVM module of one function: neither optimised nor translated, but linked with the others and done once."""

    def add_llvm_module(self, module: Any) -> None:
        """Take the module as it is."""
        self._final_module.link_in(module)

    def finalize(self) -> None:
        """Leave the module as it is."""
        self._finalized = True

    def get_pointer_to_function(self, _: str) -> int:
        """No address: these modules are not loaded."""
        return 0

    @property
    def codegen(self) -> Any:
        """The object that numba asks to set a function's environment, which these functions do not have."""
        return self

    def set_env(self, name: str, environment: Any) -> None:
        """Set nothing: code without Python objects needs no environment."""


class Session:
    """One compilation: numba translates functions one by one, and their modules become one.

    `made(functions)` is called after each function with how many have been translated so far.
    """

    def __init__(self, made: Callable[[int], None] = lambda functions: None) -> None:
        libraries: list[Any] = []

        class Pipeline(Compiler):
            """numba's compiler, with a library that leaves each module as it is."""

            def compile_extra(self, function: Any) -> Any:
                library = _Library(self.state.targetctx.codegen(), function.__qualname__)
                self.state.library = library
                library.enable_object_caching()
                found = super().compile_extra(function)
                libraries.append(library)
                made(len(libraries))
                return found

        self._libraries = libraries
        self._options: dict[str, Any] = {
            "pipeline_class": Pipeline,
            "no_cpython_wrapper": True,
            "no_cfunc_wrapper": True,
            "_nrt": False,
        }

    def function(self, plain: Callable[..., Any], **options: Any) -> Any:
        """A function for others to call, translated when its arguments' types are known."""
        jit: Any = numba.njit
        return jit(**self._options, **options)(plain)

    def module(self, function: Any, arguments: Sequence[Any], name: str) -> Any:
        """An LLVM module of `function` and all that it calls, for arguments of these types, under the symbol `name`.

        The function returns numba's status, 0 for success; its first two arguments are the addresses of its result and
        of a reason for failure.
        """
        function.compile(tuple(arguments))
        symbol = function.overloads[tuple(arguments)].fndesc.llvm_func_name
        whole = _linked(self._libraries)
        for each in whole.functions:
            if not each.is_declaration and each.name != symbol:
                each.linkage = "internal"
        for each in whole.global_variables:
            if not each.is_declaration and not each.name.startswith("llvm."):
                each.linkage = "internal"
        whole.get_function(symbol).name = name
        return whole


def engine_module(entry: EntryPoint, made: Callable[[int, int], None]) -> Any:
    """An LLVM module of an entry point with all that it calls, under the symbol of its name.

    `made(functions, of)` is called while it is translated: how many of all functions have been.
    """
    function = entry.py_func
    total = len(_called(function))
    session = Session(lambda functions: made(min(functions, total - 1), total))
    code = function.__code__
    names = code.co_varnames[: code.co_argcount]
    arguments = [_type_of(name, function.__annotations__.get(name, "")) for name in names]
    module = session.module(_namesakes(session)[function], arguments, entry.name)
    made(total, total)
    return module


def _type_of(name: str, annotation: str) -> Any:
    if name == "policy":
        return PolicyType()
    return {"Machine": MachineType(), "Table": TableType(name)}.get(annotation, int64)


def _linked(libraries: Sequence[Any]) -> Any:
    """One module of all libraries and of those of numba that they call."""
    whole = llvm.parse_assembly("")
    whole.triple, whole.data_layout = libraries[0]._final_module.triple, libraries[0]._final_module.data_layout
    others = [other for library in libraries for other in library._linking_libraries]
    for library in libraries:
        whole.link_in(library._final_module, preserve=True)
    for library in dict.fromkeys(others):
        if library not in libraries:
            whole.link_in(library._get_module_for_linking(), preserve=True)
    return whole


def _called(entry: Callable[..., Any]) -> set[Callable[..., Any]]:
    """The marked functions that `entry` calls, directly or not, and itself."""
    found, left = {entry}, [entry]
    while left:
        function = left.pop()
        for name in function.__code__.co_names:
            other = function.__globals__.get(name)
            if callable(other) and other in MARKED and other not in found:
                found.add(other)
                left.append(other)
    return found


def _namesakes(session: Session) -> dict[Callable[..., Any], Any]:
    """For each marked function what numba compiles; these call each other, and columns of tables are constants."""
    instead: dict[Any, Any] = {lowest_bit: _trailing_zeros, prefetch: _prefetch, consult: _ask}
    scopes: list[dict[str, Any]] = []
    for module in dict.fromkeys(sys.modules[function.__module__] for function in MARKED):
        scope = _with_constants(module)
        scopes.append(scope)
        for function, inlined in MARKED.items():
            if function.__module__ == module.__name__:
                plain = scope[function.__name__]
                instead[function] = session.function(plain, forceinline=inlined, error_model="numpy")
    for scope in scopes:
        for name, value in scope.items():
            if isinstance(value, Callable) and not isinstance(value, type):  # type: ignore[arg-type]
                scope[name] = instead.get(getattr(sys.modules[scope["__name__"]], name, None), value)
    return instead


def _with_constants(module: ModuleType) -> dict[str, Any]:
    """The module's names, with its functions compiled again so that columns and sizes of `layout` are constants."""
    assert module.__file__ is not None
    tree = ast.parse(Path(module.__file__).read_text())
    tree.body = [each for each in tree.body if isinstance(each, ast.FunctionDef)]
    for each in tree.body:
        each.decorator_list, each.returns = [], None  # type: ignore[attr-defined]
        for argument in each.args.args:  # type: ignore[attr-defined]
            argument.annotation = None
    scope = dict(vars(module))
    exec(compile(ast.fix_missing_locations(_Constants().visit(tree)), module.__file__, "exec"), scope)
    return scope


class _Constants(ast.NodeTransformer):
    """Puts the value of a constant of `layout` in place of its name."""

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        """A constant, if the attribute is one of `layout`."""
        if isinstance(node.value, ast.Name) and node.value.id == "y":
            return ast.copy_location(ast.Constant(getattr(layout, node.attr)), node)
        return self.generic_visit(node)
