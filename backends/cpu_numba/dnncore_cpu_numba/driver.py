"""The driver: the one native loop that runs programs, step after step, over numba's threads.

A program is a table of rows of `ROW` int64: the address of a task, the distance in bytes from the
row to the task's block of parameters, the number of work items, the number of parts that the items
are cut into, and the threads that share them. A step of one part runs in the calling thread,
without a launch. The driver calls numba's threading layer directly: a parallel numba function would
do the same after a second of compilation, or a third of a second of loading, per process.
"""

# ruff: noqa: ARG001 - numba prescribes the parameters of intrinsics

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.metadata
import sys
import threading
from collections.abc import Callable

import llvmlite.binding as llvm
import numba
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from dnncore.backend import BuildError
from dnncore_cpu_numba.native import symbol_of
from dnncore_cpu_numba.pointers import call, load_i64
from dnncore_cpu_numba.task import task

__all__ = ["ROW", "launcher", "max_threads", "threading_layer"]

ROW = 5  # int64 of one row
_I64 = ir.IntType(64)


@functools.cache
def threading_layer() -> str:
    """Start numba's threads and name their layer: "tbb", "omp" or "workqueue".

    tbb is asked for first: its launches are the quickest, several Python threads may launch, and
    forked children work. Its library, a package of its own, is on no loader's path, so it is loaded
    here by its file.
    """
    for path in _tbb_libraries():
        with contextlib.suppress(OSError):
            ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
            break
    numba.get_num_threads()  # starts the threads
    if not llvm.address_of_symbol("numba_parallel_for"):
        raise BuildError(
            f"cpu_numba: numba {numba.__version__} has another threading interface than the one"
            " this backend knows; install a version that dnncore was tested with"
        )
    return str(numba.threading_layer())


def max_threads() -> int:
    """The most threads that numba can use in this process."""
    return int(numba.config.NUMBA_NUM_THREADS)


@functools.cache
def launcher() -> Callable[[int, int], None]:
    """The function (address of a table, number of rows) that runs a program; releases the GIL."""
    layer = threading_layer()
    llvm.add_symbol(symbol_of(_run_part.name), _run_part.address)  # the driver refers to it
    kind = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64)
    run = kind(_run_rows.address)
    return _one_at_a_time(run) if layer == "workqueue" else run


def _tbb_libraries() -> list[str]:
    """Where the library of the package tbb may lie."""
    name = {"win32": "tbb12.dll", "darwin": "libtbb.12.dylib"}.get(sys.platform, "libtbb.so.12")
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        files = importlib.metadata.files("tbb") or []
        return [str(file.locate()) for file in files if file.name == name]
    return []


def _one_at_a_time(run: Callable[[int, int], None]) -> Callable[[int, int], None]:
    """Lock launches: numba's workqueue aborts the process when two threads launch at once."""
    lock = threading.Lock()

    def run_locked(table: int, rows: int) -> None:
        with lock:
            run(table, rows)

    return run_locked


@task(arity=4)
def _run_part(arguments, counts, steps, row):
    """Run some parts of one row; called by the threading layer as a numpy ufunc's inner loop."""
    function = load_i64(row, 0)
    params = row + load_i64(row, 1)
    items = load_i64(row, 2)
    parts = load_i64(row, 3)
    first = load_i64(arguments, 0)
    for part in range(first, first + load_i64(counts, 0)):
        call(function, (params, items * part // parts, items * (part + 1) // parts))


@task(arity=2)
def _run_rows(table, rows):
    """Run a program; what the caller set by `numba.set_num_threads` is left as it was."""
    threads = _get_num_threads()
    for i in range(rows):
        row = table + 8 * ROW * i
        if load_i64(row, 3) == 1:
            call(load_i64(row, 0), (row + load_i64(row, 1), 0, load_i64(row, 2)))
        else:
            _launch(row, load_i64(row, 3), load_i64(row, 4))
    _set_num_threads(threads)


@intrinsic
def _launch(typingctx, row, parts, threads):
    """numba_parallel_for(function, arguments, counts, steps, data, inner dims, arguments, threads).

    The layer cuts the range [0, parts) and hands each piece to the function as a ufunc's arguments:
    arguments[0] = 0 + 1 * first part, counts[0] = number of parts.
    """

    def codegen(context, builder, signature, args):
        pointer = cgutils.voidptr_t
        kind = ir.FunctionType(ir.VoidType(), [pointer] * 5 + [_I64] * 3)
        launch = cgutils.get_or_insert_function(builder.module, kind, "numba_parallel_for")
        part_kind = ir.FunctionType(ir.VoidType(), [_I64] * 4)
        part = cgutils.get_or_insert_function(builder.module, part_kind, symbol_of(_run_part.name))

        def slot(value):
            return builder.bitcast(cgutils.alloca_once_value(builder, value), pointer)

        row, parts, threads = args
        arrays = [slot(_I64(0)), slot(parts), slot(_I64(1))]
        data = builder.inttoptr(row, pointer)
        builder.call(
            launch, [builder.bitcast(part, pointer), *arrays, data, _I64(0), _I64(1), threads]
        )

    return types.void(types.int64, types.int64, types.int64), codegen


@intrinsic
def _get_num_threads(typingctx):
    def codegen(context, builder, signature, args):
        kind = ir.FunctionType(_I64, [])
        return builder.call(
            cgutils.get_or_insert_function(builder.module, kind, "get_num_threads"), []
        )

    return types.int64(), codegen


@intrinsic
def _set_num_threads(typingctx, count):
    def codegen(context, builder, signature, args):
        kind = ir.FunctionType(ir.VoidType(), [_I64])
        builder.call(cgutils.get_or_insert_function(builder.module, kind, "set_num_threads"), args)

    return types.void(types.int64), codegen
