"""The one conformance test: every operator, implementation, array library, dtype and case against its reference.

It runs what `tensorops.testing` lists; a new operator, kernel or library is tested without an edit here. Every call
is traced, and the trace must name the implementation that was asked for.
"""

import contextlib
import re

import numpy as np
import pytest

import support
import tensorops as tp
from tensorops import KernelRefusedError, kernels
from tensorops._dtypes import dtype_name
from tensorops._namespaces import NAMESPACES, creation_device
from tensorops._operator import OPERATORS
from tensorops.testing import CASES, INVALID, REFERENCES, assert_matches

# Limits of libraries, by (library, dtype): operators whose result has that dtype, but is only as exact as float32 and
# vanishes where a float32 would. An entry must be needed: `test_a_known_limit_is_one` fails when it is not any more.
ONLY_AS_EXACT_AS_FLOAT32 = {
    # MLX's CPU backend computes exp, sin and cos of float64 by polynomials made for float32.
    ("mlx", "float64"): (
        "silu", "sigmoid", "softplus", "gelu", "swiglu", "geglu", "softmax", "log_softmax", "logsumexp",
        "scaled_dot_product_attention", "cross_entropy", "rope",
    ),
}  # fmt: skip


def is_limited(case, row, dtype):
    limited = case.operator in ONLY_AS_EXACT_AS_FLOAT32.get((row.name, dtype), ())
    return limited and "float32" in case.dtypes


def every_implementation():
    for operator in OPERATORS.values():
        for row in NAMESPACES.values():
            for dtype in support.dtypes_of(row.name):
                for implementation in support.implementations(operator, row):
                    yield pytest.param(
                        operator,
                        row,
                        dtype,
                        implementation,
                        id=f"{operator.__name__}-{row.name}-{dtype}-{implementation}",
                    )


def cases_of(operator, dtype):
    return [case for case in CASES[operator.__name__] if dtype in case.dtypes]


def assert_result(result, expected, case, row, dtype, inputs, limited=None):
    """Assert library, device, dtype, shape and values of one result or a tuple of results."""
    limited = is_limited(case, row, dtype) if limited is None else limited
    if isinstance(expected, tuple):
        assert isinstance(result, tuple), f"result is {type(result).__name__}, expected a tuple"
        for part, expected_part in zip(result, expected, strict=True):
            assert_result(part, expected_part, case, row, dtype, inputs, limited)
        return
    if expected is None:
        assert result is None
        return
    assert row.owns(result), f"result is {type(result).__name__}, no {row.name} array"
    assert creation_device(result) == creation_device(inputs[0])
    wanted = dtype if expected.dtype == np.float64 else expected.dtype.name
    if expected.dtype == np.int64:  # an index: of the library's default dtype for them
        default = tp.get_namespace(result).__array_namespace_info__().default_dtypes()["indexing"]
        assert result.dtype == default, f"index dtype is {result.dtype}, expected {default}"
        wanted = dtype_name(result)
    actual = support.back(result)
    if limited and wanted == dtype:
        assert actual.dtype.name == dtype
        actual, wanted = actual.astype(np.float32), "float32"
    assert_matches(actual, expected, wanted, tolerance=case.tolerance_for(wanted), scale_axis=case.scale_axis)


def assert_ran(log, operator, implementation, row, inputs):
    (record,) = log
    assert (record.operator, record.kernel, record.namespace) == (
        operator.__name__,
        implementation,
        row.name,
    )
    assert record.transfers == ()
    # Scalars drawn from a generator and options are not among them.
    assert record.shapes == tuple(tuple(x.shape) for x in inputs)
    assert record.dtypes == tuple(dtype_name(x) for x in inputs)


def run_generic(operator, args, kwargs, row):
    with tp.trace() as log:
        result = operator.generic(*args, **kwargs)
    assert_ran(log, operator, "generic", row, support.arrays_in((args, kwargs)))
    return result


def run_kernel(operator, args, kwargs, row, provider):
    """Run a kernel by name and return its result and no reason; or, where it refuses, none and the reason.

    `explain` must know before: the reason that it gives is the one in the error.
    """
    backend = support.backend_of(row.name).name
    with tp.set_backend(backend, kernels=[provider, "generic"]):
        reason = operator.explain(*args, **kwargs).refused.get(provider)
    with tp.set_backend(backend, kernels=[provider]), tp.trace() as log:
        if reason is not None:
            with pytest.raises(KernelRefusedError, match=f"{provider}: {re.escape(reason)}"):
                operator(*args, **kwargs)
            assert len(log) == 0
            return None, reason
        result = operator(*args, **kwargs)
    assert_ran(log, operator, provider, row, support.arrays_in((args, kwargs)))
    return result, None


def run_plain(operator, args, kwargs):
    """Call without settings, as users do: the first call chooses, the second may go by the plan of the first."""
    chosen = operator.explain(*args, **kwargs).kernel
    with tp.trace() as log:
        traced = operator(*args, **kwargs)
    assert log[0].kernel == chosen, f"explain says {chosen}, but {log[0].kernel} ran"
    return [traced, operator(*args, **kwargs), operator(*args, **kwargs)]


def run_compiled(operator, calls):
    """Run all calls in one `jax.jit`, as compiling each operation for each shape would take many times as long."""
    import jax

    leaves, structure = jax.tree.flatten(calls)
    is_array = [isinstance(leaf, jax.Array) for leaf in leaves]
    row = NAMESPACES["jax"]

    def run(*arrays):
        given = iter(arrays)
        filled = [next(given) if array else leaf for array, leaf in zip(is_array, leaves, strict=True)]
        return [run_generic(operator, args, kwargs, row) for args, kwargs in jax.tree.unflatten(structure, filled)]

    return jax.jit(run)(*(leaf for array, leaf in zip(is_array, leaves, strict=True) if array))


class Failures:
    """Failures by case, so that one report shows all cases of an operator that fail."""

    def __init__(self):
        self.by_case = {}

    @contextlib.contextmanager
    def of(self, case):
        try:
            yield
        except (Exception, pytest.fail.Exception) as error:  # reported by `raise_all`
            self.by_case[case.name] = f"{type(error).__name__}: {error}"

    def raise_all(self):
        __tracebackhide__ = True
        if self.by_case:
            pytest.fail("\n".join(f"{name}: {text}" for name, text in self.by_case.items()), pytrace=False)


@pytest.mark.parametrize(("operator", "row", "dtype", "implementation"), list(every_implementation()))
def test_conformance(operator, row, dtype, implementation):
    support.require(row.name)
    failures, refusals = Failures(), {}
    with support.holding(row.name, dtype):
        compiled = []
        for case in cases_of(operator, dtype):
            args, kwargs = case.build(dtype_name=dtype)
            expected = REFERENCES[operator.__name__](*args, **kwargs)
            args, kwargs = support.there((args, kwargs), row.name)
            inputs = support.arrays_in((args, kwargs))
            if row.name == "jax":
                compiled.append((case, args, kwargs, expected))
                continue
            with failures.of(case):
                if implementation == "generic":
                    results = [run_generic(operator, args, kwargs, row)]
                else:
                    result, reason = run_kernel(operator, args, kwargs, row, implementation)
                    results = run_plain(operator, args, kwargs)
                    if reason is None:
                        results.append(result)
                    else:
                        refusals[case] = reason
                for result in results:
                    assert_result(result, expected, case, row, dtype, inputs)
        if compiled:
            results = run_compiled(operator, [(args, kwargs) for _, args, kwargs, _ in compiled])
            for (case, args, kwargs, expected), result in zip(compiled, results, strict=True):
                with failures.of(case):
                    assert_result(result, expected, case, row, dtype, support.arrays_in((args, kwargs)))
    failures.raise_all()
    if refusals:
        require_that_it_serves(operator, dtype, refusals)


def require_that_it_serves(operator, dtype, refusals):
    """Assert that a kernel takes most cases of a dtype, or none of them because of the dtype."""
    everyday = [case for case in cases_of(operator, dtype) if not case.tags]
    taken = [case for case in everyday if case not in refusals]
    if not taken:
        others = [f"{case}: {text}" for case, text in refusals.items() if "dtype" not in text]
        by_dtype = len(refusals) - len(others)
        assert by_dtype > len(others), "refuses every case, mostly not for its dtype:\n" + "\n".join(others)
        return
    assert 2 * len(taken) >= len(everyday), "refuses most cases:\n" + "\n".join(refusals.values())


def every_kernel():
    for operator in OPERATORS.values():
        for provider in operator.kernels:
            yield pytest.param(operator, provider, id=f"{operator.__name__}-{provider}")


@pytest.mark.parametrize(("operator", "provider"), list(every_kernel()))
def test_a_kernel_is_chosen_for_its_first_case(operator, provider):
    """A kernel that no plain call of some library leads to is none."""
    rows = [row for row in NAMESPACES.values() if provider in row.providers]
    assert rows, f"no array library names {provider} among its providers"
    testable = [row for row in rows if not support.why_not(row.name)]
    if not testable:
        pytest.skip("; ".join(f"{row.name}: {support.why_not(row.name)}" for row in rows))
    case = CASES[operator.__name__][0]
    chosen = set()
    for row in testable:
        for dtype in support.dtypes_of(row.name):
            with support.holding(row.name, dtype):
                args, kwargs = support.there(case.build(dtype_name=dtype), row.name)
                chosen.add(operator.explain(*args, **kwargs).kernel)
    assert provider in chosen


@pytest.mark.parametrize("provider", kernels.PROVIDERS)
def test_every_provider_has_kernels(provider):
    support.require_provider(provider)
    assert any(provider in operator.kernels for operator in OPERATORS.values())


@pytest.mark.parametrize("operator", OPERATORS.values(), ids=OPERATORS)
def test_jax_operation_by_operation(operator):
    """Without `jit`, every operation is compiled alone and rounds alone."""
    row = support.require("jax")
    failures = Failures()
    for case in cases_of(operator, "float32"):
        if case.name == CASES[operator.__name__][0].name or "special" in case.tags:
            args, kwargs = case.build(dtype_name="float32")
            expected = REFERENCES[operator.__name__](*args, **kwargs)
            args, kwargs = support.there((args, kwargs), "jax")
            with failures.of(case):
                result = run_generic(operator, args, kwargs, row)
                assert_result(result, expected, case, row, "float32", support.arrays_in((args, kwargs)))
    failures.raise_all()


@pytest.mark.parametrize(
    ("operator", "device", "dtype"),
    [
        pytest.param(operator, device, dtype, id=f"{operator.__name__}-{device}-{dtype}")
        for operator in OPERATORS.values()
        for device, dtype in (("device1", "float64"), ("no_float64", "float32"))
    ],
)
def test_results_stay_on_the_device(operator, device, dtype):
    """The strictest library has devices that refuse to meet, and one that holds no float64."""
    row = support.require("array_api_strict")
    where = row.xp.Device(device)
    failures = Failures()

    def move(tree):
        if isinstance(tree, dict):
            return {key: move(value) for key, value in tree.items()}
        if isinstance(tree, tuple):
            return tuple(map(move, tree))
        if isinstance(tree, np.ndarray):
            held = tree.astype(dtype) if tree.dtype == np.float64 else tree
            return row.from_numpy(held, where)
        return tree

    for case in cases_of(operator, dtype):
        args, kwargs = case.build(dtype_name=dtype)
        expected = REFERENCES[operator.__name__](*args, **kwargs)
        args, kwargs = move((args, kwargs))
        with failures.of(case):
            result = operator(*args, **kwargs)
            assert_result(result, expected, case, row, dtype, support.arrays_in((args, kwargs)))
    failures.raise_all()


@pytest.mark.parametrize(
    ("namespace", "dtype", "operator"),
    [(*key, operator) for key, operators in ONLY_AS_EXACT_AS_FLOAT32.items() for operator in operators],
)
def test_a_known_limit_is_one(namespace, dtype, operator):
    """An entry of the table that its first case needs no more must go."""
    row = support.require(namespace)
    case = CASES[operator][0]
    with support.holding(namespace, dtype):
        args, kwargs = case.build(dtype_name=dtype)
        expected = REFERENCES[operator](*args, **kwargs)
        args, kwargs = support.there((args, kwargs), namespace)
        result = OPERATORS[operator].generic(*args, **kwargs)
        inputs = support.arrays_in((args, kwargs))
        with pytest.raises(AssertionError, match="elements differ"):
            assert_result(result, expected, case, row, dtype, inputs, limited=False)


# --- what must be refused ----------------------------------------------------------------------------


def every_refusal():
    for operator in OPERATORS.values():
        for row in NAMESPACES.values():
            for implementation in support.implementations(operator, row):
                yield pytest.param(operator, row, implementation, id=f"{operator.__name__}-{row.name}-{implementation}")


@pytest.mark.parametrize(("operator", "row", "implementation"), list(every_refusal()))
def test_refuses_invalid_arguments(operator, row, implementation):
    support.require(row.name)
    backend = support.backend_of(row.name).name
    failures = Failures()
    for case in INVALID[operator.__name__]:
        args, kwargs = support.there(case.build(dtype_name="float32"), row.name)
        calls = [operator, operator.generic]
        if implementation != "generic":

            def preferred(*args, **kwargs):
                with tp.set_backend(backend, kernels=[implementation, "generic"]):
                    return operator(*args, **kwargs)

            calls = [operator, preferred]
            with (
                failures.of(case),
                tp.set_backend(backend, kernels=[implementation]),
                pytest.raises(TypeError, match=rf"^{operator.__name__}: "),
            ):
                operator(*args, **kwargs)
        for call in calls:
            with failures.of(case), pytest.raises(case.exception) as caught:
                call(*args, **kwargs)
            if case.name not in failures.by_case:
                with failures.of(case):
                    assert not isinstance(caught.value, KernelRefusedError)
                    assert re.search(case.message, str(caught.value)), str(caught.value)
    failures.raise_all()
