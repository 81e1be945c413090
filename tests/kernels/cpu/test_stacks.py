"""Compiled kernels in threads with small stacks, such as servers start by the thousand.

Every operator that has one, and every derivative, on the cases of conformance and on the arguments of benchmarks, in a
process of its own: a stack that is too small ends it.
"""

import json
import os
import sys

import pytest

import support
from tensorops._operator import OPERATORS
from tensorops.kernels.cpu.derivatives import derivative_of

support.require_native()
COMPILED = sorted(name for name, operator in OPERATORS.items() if "cpu" in operator.kernels)
DERIVED = [name for name in COMPILED if derivative_of(name)]
STACK = 48 * 1024
SIZES = [(1, 64), (40, 1024)]  # of benchmarks: for one thread, and large enough for several

SMALL_STACK = """
import copy, json, os, sys, threading
import numpy as np
import tensorops as tp
from tensorops._dispatch import KernelRefusedError
from tensorops._operator import OPERATORS
from tensorops.kernels.cpu import _native
from tensorops.kernels.cpu.derivatives import derivative_of
from tensorops.testing import CASES, DTYPES
from tensorops.testing.workloads import workload

stack, threads, sizes = int(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])
_native.set_num_threads(threads)
before = len(os.listdir("/proc/self/task"))
_native.softmax(np.ones((64, 1 << 14)))
print(len(os.listdir("/proc/self/task")) - before)


# A label, whether the kernel must take them, and arguments
def every_call(name):
    for dtype in DTYPES:
        for case in CASES[name]:
            if dtype in case.dtypes:
                yield f"{dtype} {case.name}", False, *case.build(dtype_name=dtype)
        for rows, features in sizes:
            made = workload(name, rows, features, dtype)
            yield f"{dtype} {rows}x{features}", dtype == "float32", made.args, made.options


# The results of the operator's own compiled kernel, or None if it does not take the arguments
def compute(operator, args, options):
    with tp.set_backend("numpy", providers=["cpu"]), tp.trace() as log:
        try:
            result = operator(*copy.deepcopy(args), **copy.deepcopy(options))
        except KernelRefusedError:
            return None
    if log[-1].kernel != "cpu":  # composed of others
        return None
    return result if isinstance(result, tuple) else (result,)


# A call of the compiled vector-Jacobian product, whose cotangents are the results themselves
def derivative(operator, args, options, results):
    name = operator.__name__
    known = derivative_of(name)
    given = operator.canonical(*args, **options)
    given |= dict(zip(known.results, results)) | dict(zip(known.cotangents, results))
    values = {each: given[each] for each in known.parameters if each in given}
    positional = [values.pop(each) for each in known.parameters[: known.positional]]

    def call():
        found = getattr(_native, known.name)(*positional, **values)
        if found is NotImplemented:
            return None
        return found if isinstance(found, tuple) else (found,)

    return call


# The results of calls in a thread with a small stack
def in_thread(calls):
    results, errors = [], []

    def run():
        try:
            results.extend(call() for call in calls)
        except BaseException as error:
            errors.append(error)

    threading.stack_size(stack)
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    threading.stack_size(0)
    if errors:
        raise errors[0]
    return results


for name in sys.argv[4].split(","):
    operator, calls, labels, expected, of_derivative = OPERATORS[name], [], [], [], 0
    print(name, file=sys.stderr, flush=True)
    for label, must, args, options in every_call(name):
        call = lambda args=args, options=options: compute(operator, args, options)
        results = call()
        assert results is not None or not must, label
        if results is None:
            continue
        calls.append(call)
        labels.append(label)
        expected.append(results)
        if derivative_of(name) is None:
            continue
        call = derivative(operator, args, options, results)
        gradients = call()
        if gradients is None:
            continue
        of_derivative += 1
        calls.append(call)
        labels.append(f"derivative, {label}")
        expected.append(gradients)
    for label, ours, theirs in zip(labels, in_thread(calls), expected, strict=True):
        assert [a.tobytes() for a in ours if a is not None] == [a.tobytes() for a in theirs if a is not None], label
    print(name, of_derivative)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have other smallest stacks")
@pytest.mark.parametrize("threads", [1, 2])
def test_every_kernel_runs_on_a_small_stack(threads):
    """Results are those of the main thread; OpenMP's threads have small stacks as well."""
    environment = {"OMP_NUM_THREADS": "2", "OMP_STACKSIZE": f"{STACK}B"} | support.only("numpy")
    result = support.python(SMALL_STACK, str(STACK), str(threads), json.dumps(SIZES), ",".join(COMPILED), **environment)
    assert result.returncode == 0, result.stderr
    started, *lines = result.stdout.splitlines()
    derivatives = dict(map(str.split, lines))
    assert list(derivatives) == COMPILED
    assert [name for name, count in derivatives.items() if count != "0"] == DERIVED
    if len(os.sched_getaffinity(0)) >= threads:
        assert int(started) == threads - 1
