"""Intrinsics: operations that kernels need and Numba lacks, written in LLVM's intermediate language.

Addresses are 64-bit integers, and need not be aligned.
"""

# mypy: ignore-errors
# Numba infers the types of intrinsics when it compiles kernels.

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

MOST_AXES = 64
"""The most axes that torch and NumPy allow."""

_LONG = ir.IntType(64)


@intrinsic
def load(typingctx, address, unit):
    """Read an item of the type that ``unit`` points to, at any alignment."""

    def generate(context, builder, signature, arguments):
        data = context.data_model_manager[signature.return_type]
        pointer = builder.inttoptr(arguments[0], data.get_data_type().as_pointer())
        return data.from_data(builder, builder.load(pointer, align=1))

    return unit.dtype(types.int64, unit), generate


@intrinsic
def store(typingctx, address, value):
    """Write an item, at any alignment."""

    def generate(context, builder, signature, arguments):
        data = context.data_model_manager[signature.args[1]]
        pointer = builder.inttoptr(arguments[0], data.get_data_type().as_pointer())
        builder.store(data.as_data(builder, arguments[1]), pointer, align=1)
        return context.get_dummy_value()

    return types.none(types.int64, value), generate


@intrinsic
def counters(typingctx):
    """Make one integer for each axis, on the stack."""

    def generate(context, builder, signature, arguments):
        with builder.goto_entry_block():
            array = builder.alloca(ir.ArrayType(_LONG, MOST_AXES))
        return builder.bitcast(array, _LONG.as_pointer())

    return types.CPointer(types.int64)(), generate


@intrinsic
def bytes_of(typingctx, unit):
    """Return the bytes of an item, a constant in the compiled kernel, so that neighbouring items become one vector."""

    def generate(context, builder, signature, arguments):
        return context.get_constant(types.int64, signature.args[0].dtype.bitwidth // 8)

    return types.int64(unit), generate


@intrinsic
def transpose_8x8(typingctx, target, target_step, source, source_step, unit):
    """Copy eight vectors of eight items and transpose them in registers.

    Interleaving vector ``i`` with vector ``i + 4``, three times over, is the transposition of an 8 x 8 matrix.
    """

    def generate(context, builder, signature, arguments):
        into, into_step, out_of, out_step, _ = arguments
        item = ir.IntType(signature.args[4].dtype.bitwidth)
        vector = ir.VectorType(item, 8)

        def pointer(base, step, i):
            address = builder.add(base, builder.mul(step, ir.Constant(step.type, i)))
            return builder.inttoptr(address, vector.as_pointer())

        def mask(lanes):
            return ir.Constant(ir.VectorType(ir.IntType(32), 8), lanes)

        low, high = mask([0, 8, 1, 9, 2, 10, 3, 11]), mask([4, 12, 5, 13, 6, 14, 7, 15])
        rows = [builder.load(pointer(out_of, out_step, i), align=1) for i in range(8)]
        for _ in range(3):
            pairs = [(rows[i], rows[i + 4]) for i in range(4)]
            rows = [builder.shuffle_vector(a, b, half) for a, b in pairs for half in (low, high)]
        for i in range(8):
            builder.store(rows[i], pointer(into, into_step, i), align=1)
        return context.get_dummy_value()

    return types.none(types.int64, types.int64, types.int64, types.int64, unit), generate
