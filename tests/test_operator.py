"""Which kernel runs, and how an operator behaves as a Python object. Results are tested elsewhere."""

from __future__ import annotations

import concurrent.futures
import contextlib
import copy
import dataclasses
import inspect
import pickle
import pydoc
import re
import sys

import numpy as np
import pytest

import support
import tensorops as tp
from tensorops import KernelRefusedError, _providers
from tensorops._kernel import Configuration
from tensorops._operator import OPERATORS, Operator, operator
from tensorops._providers import Provider
from tensorops.kernels.cpu import calls
from tensorops.typing import Array

X = np.linspace(-2.0, 2.0, 8, dtype=np.float32).reshape(2, 4)
W = np.linspace(0.5, 1.5, 4, dtype=np.float32)
ZERO = np.zeros(3, dtype=np.float32)


@pytest.fixture(params=["compiled", "python"], autouse=True)
def path(request):
    """Plans of calls are found by the compiled module, and by Python alone."""
    called_by_python = Operator.__dict__["__call__"]
    Operator.__call__ = called_by_python  # which replaces what the compiled module has put there
    if request.param == "compiled":
        if calls.native is None:
            pytest.skip("there is no compiled module")
        calls.compile_calls()
    yield request.param
    Operator.__call__ = called_by_python
    calls.compile_calls()


# --- choosing a kernel -------------------------------------------------------------------------------


@dataclasses.dataclass
class Fake:
    """A kernel that adds a number, so a result shows which kernel ran; it counts `supports` checks and calls."""

    adds: float
    refuses: str | None = None
    declines: bool = False
    raises: Exception | None = None
    questions: int = 0
    calls: int = 0

    def supports(self, x):
        self.questions += 1
        return self.refuses

    def __call__(self, x):
        self.calls += 1
        if self.raises is not None:
            raise self.raises
        if self.declines and self.refuses is not None:
            return NotImplemented
        return x + self.adds


@pytest.fixture
def providers(monkeypatch):
    """Two providers, `one` and `two`, that replace all others for NumPy arrays."""
    made = [Provider(name, ("numpy",), f"kernels of {name}", "for tests", i) for i, name in enumerate(("one", "two"))]
    monkeypatch.setattr(_providers, "PROVIDERS", {provider.name: provider for provider in made})
    monkeypatch.setattr(_providers, "_reasons", {provider.name: "" for provider in made})
    _providers.serving_library.cache_clear()
    yield
    monkeypatch.undo()
    _providers.serving_library.cache_clear()


@pytest.fixture
def adder(providers):
    """An operator that adds 1000 by its own body, and a function that gives it kernels."""

    def adder(x: Array) -> Array:
        """Add."""
        return x + 1000.0

    with support.temporary_operator(adder) as made:

        def register(**fakes):
            for provider, fake in fakes.items():
                made.kernel(provider, supports=fake.supports, declines=fake.declines)(fake)

        made.register = register
        yield made


def test_the_body_runs_where_there_is_no_kernel(adder):
    assert adder(np.zeros(1)) == 1000.0
    explanation = adder.explain(np.zeros(1))
    assert explanation.kernel == "generic"
    assert explanation.refused == {"one": "has no kernel for this operator", "two": "has no kernel for this operator"}


def test_the_first_provider_that_takes_the_arguments_runs(adder):
    one, two = Fake(1.0), Fake(2.0)
    adder.register(two=two, one=one)
    assert adder(np.zeros(1)) == 1.0
    assert adder.explain(np.zeros(1)).refused == {}
    one.refuses = "is not in the mood"
    assert adder(np.zeros(1)) == 2.0
    assert adder.explain(np.zeros(1)).refused == {"one": "is not in the mood"}
    two.refuses = "is not either"
    assert adder(np.zeros(1)) == 1000.0
    explanation = adder.explain(np.zeros(1))
    assert (explanation.kernel, explanation.library, explanation.backend) == ("generic", "numpy", "auto")
    assert explanation.refused == {"one": "is not in the mood", "two": "is not either"}
    assert str(explanation) == (
        "adder: generic on numpy (backend auto)\n  not one: is not in the mood\n  not two: is not either"
    )


def test_explain_and_trace_agree_and_explain_runs_nothing(adder):
    one = Fake(1.0)
    adder.register(one=one)
    for refuses, expected in ((None, "one"), ("no", "generic")):
        one.refuses = refuses
        calls = one.calls
        assert adder.explain(np.zeros(1)).kernel == expected
        assert one.calls == calls
        with tp.trace() as log:
            adder(np.zeros(1))
        assert log.kernels == {"adder": {expected}}


def test_explain_does_not_run_the_body():
    def careful(x: Array) -> Array:
        """Fail."""
        raise AssertionError("the body ran")

    with support.temporary_operator(careful) as made:
        assert made.explain(X).kernel == "generic"
        with pytest.raises(AssertionError, match="the body ran"):
            made(X)


def test_a_kernel_that_checks_may_be_asked_before_another_by_the_plan(adder):
    """Arrays of one type may be in several kinds of memory, each with kernels of its own."""
    asked = []

    def kernel(name, takes, adds):
        def function(x):
            asked.append(name)
            return x + adds if takes(x) else NotImplemented

        adder.kernel(name, supports=lambda x: None if takes(x) else f"not for {name}", checks=True)(function)

    kernel("one", lambda x: x.size < 3, 1.0)
    kernel("two", lambda x: x.size > 3, 2.0)
    short, medium, long = np.zeros(2), np.zeros(3), np.zeros(4)
    assert adder(long)[0] == 2.0  # leaves a plan
    asked.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(adder, "_dispatch", None)
        assert (adder(long)[0], adder(short)[0], adder(long)[0]) == (2.0, 1.0, 2.0)
    assert asked == ["one", "two", "one", "one", "two"]
    assert adder(medium)[0] == adder.generic(medium)[0]


def test_packages_of_kernels_are_found_unless_they_are_private(providers, tmp_path, monkeypatch):
    for name in ("three", "_shared"):
        folder = tmp_path / "found" / name
        folder.mkdir(parents=True)
        source = f"import tensorops.backends as b\nPROVIDER = b.Provider({name!r}, ('numpy',), '', '', by_name=True)\n"
        (folder / "__init__.py").write_text(source)
    (tmp_path / "found" / "module.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    _providers.register_package("found", [str(tmp_path / "found")])
    assert list(_providers.PROVIDERS) == ["one", "two", "three"]


def test_kernels_named_in_set_backend_are_the_only_ones(adder):
    one, two = Fake(1.0), Fake(2.0)
    adder.register(one=one, two=two)
    with tp.set_backend("numpy", providers=["two", "one"]):
        assert adder(np.zeros(1)) == 2.0
    with tp.set_backend("numpy", providers=["generic"]):
        assert adder(np.zeros(1)) == 1000.0
    with tp.set_backend("numpy", providers=["two", "generic", "one"]):
        two.refuses = "rests"
        assert adder(np.zeros(1)) == 1000.0
        assert adder.explain(np.zeros(1)).refused == {"two": "rests"}
    one.refuses = "sleeps"
    with (
        tp.set_backend("numpy", providers=["two", "one"]),
        pytest.raises(
            KernelRefusedError,
            match=r"^adder: no kernel that was asked for takes these arguments: two: rests; one: sleeps$",
        ),
    ):
        adder(np.zeros(1))


def test_a_backend_brings_its_own_order(adder):
    """`numpy` has no providers, so it computes with bodies only, whatever other providers support NumPy arrays."""
    adder.register(one=Fake(1.0))
    assert adder(np.zeros(1)) == 1.0
    with tp.set_backend("numpy"):
        assert adder(np.zeros(1)) == 1000.0
    assert adder(np.zeros(1)) == 1.0


def test_generic_calls_the_body_whatever_is_in_force(adder):
    adder.register(one=Fake(1.0))
    assert adder.generic(np.zeros(1)) == adder.generic(x=np.zeros(1)) == 1000.0
    with tp.set_backend("numpy", providers=["one"]), tp.trace() as log:
        assert adder.generic(np.zeros(1)) == 1000.0
    assert log.kernels == {"adder": {"generic"}}
    assert log[0].transfers == ()


def test_a_kernel_that_declines_is_asked_once(adder):
    one = Fake(1.0, declines=True)
    adder.register(one=one)
    for _ in range(3):
        assert adder(np.zeros(1)) == 1.0
    assert (one.questions, one.calls) == (1, 3)
    one.refuses = "has changed its mind"
    for call in range(3):
        assert adder(np.zeros(1)) == 1000.0
        assert (one.questions, one.calls) == (2 + call, 4 + call)  # it declined, then selection asked why
    one.refuses = None
    assert adder(np.zeros(1)) == 1.0


def test_a_plan_is_found_without_python(adder, path):
    adder.register(one=Fake(1.0, declines=True))
    adder(ZERO)
    run = []
    sys.setprofile(lambda frame, event, _: event == "call" and run.append(frame.f_code.co_qualname))
    try:
        results = [adder(ZERO), adder(np.ones(3, np.float32))]
    finally:
        sys.setprofile(None)
    np.testing.assert_array_equal(results, [ZERO + 1, ZERO + 2])
    assert (run.count("Operator.__call__"), run.count("Fake.__call__")) == (0 if path == "compiled" else 2, 2)


def test_what_a_kernel_says_about_its_arguments_is_not_what_users_read(adder):
    one = Fake(1.0, declines=True)
    adder.register(one=one)
    adder(ZERO)
    one.raises = TypeError("incompatible function arguments")
    one.refuses = "declines"
    assert adder(ZERO)[0] == 1000.0
    for args, kwargs in (((ZERO, ZERO), {}), ((ZERO,), {"y": 1}), ((), {})):
        with pytest.raises(TypeError, match=r"^adder: "):
            adder(*args, **kwargs)


def test_a_kernel_that_does_not_decline_is_asked_every_time(adder):
    one = Fake(1.0)
    adder.register(one=one)
    for _ in range(3):
        assert adder(np.zeros(1)) == 1.0
    assert (one.questions, one.calls) == (3, 3)


def test_a_plan_never_overtakes_a_kernel_of_higher_rank(adder):
    """The second kernel ran once; arguments that the first accepts must still go to the first."""
    one, two = Fake(1.0, refuses="not yet", declines=True), Fake(2.0, declines=True)
    adder.register(one=one, two=two)
    assert adder(np.zeros(1)) == 2.0
    one.refuses = None
    assert adder.explain(np.zeros(1)).kernel == "one"
    assert adder(np.zeros(1)) == 1.0


def test_a_plan_asks_kernels_that_check_for_themselves_in_their_order(adder):
    one, two = Fake(1.0, refuses="not yet", declines=True), Fake(2.0, declines=True)
    for provider, fake in (("one", one), ("two", two)):
        adder.kernel(provider, supports=fake.supports, checks=True)(fake)
    for _ in range(3):
        assert adder(np.zeros(1)) == 2.0
    assert (one.questions, two.questions) == (1, 1)  # by the first call, which found the plan
    assert one.calls == 2
    one.refuses = None
    assert adder(np.zeros(1)) == 1.0
    one.refuses = two.refuses = "no longer"
    assert adder(np.zeros(1)) == 1000.0
    assert (one.questions, two.questions) == (2, 2)


def test_a_plan_asks_first_what_computes_on_the_device_of_the_first_call(adder):
    """Kernels for two devices never take the same call, so their order does not matter; it does on one device."""
    one, two = Fake(1.0, refuses="not here", declines=True), Fake(2.0, declines=True)
    _providers.PROVIDERS["two"] = dataclasses.replace(_providers.PROVIDERS["two"], devices={"numpy": "elsewhere"})
    for provider, fake in (("one", one), ("two", two)):
        adder.kernel(provider, supports=fake.supports, checks=True)(fake)
    for _ in range(3):
        assert adder(np.zeros(1)) == 2.0
    assert one.calls == 0
    one.refuses, two.refuses = None, "not there"
    assert adder(np.zeros(1)) == 1.0
    assert (one.questions, two.questions) == (1, 1)  # by the first call


def test_a_kernel_that_others_outpace_runs_for_the_rest_or_by_name(adder):
    one, two = Fake(1.0), Fake(2.0)
    adder.kernel("one", supports=one.supports, outpaced=lambda x: "x is short" if x.size < 3 else None)(one)
    adder.register(two=two)
    for size, result, kernel in ((1, 2.0, "two"), (5, 1.0, "one"), (1, 2.0, "two"), (1, 2.0, "two"), (5, 1.0, "one")):
        assert adder(np.zeros(size))[0] == result  # by a plan or not
        assert adder.explain(np.zeros(size)).kernel == kernel
    assert adder.explain(np.zeros(1)).refused == {"one": "x is short; it runs where it is named: providers=['one']"}
    with tp.set_backend("numpy", providers=["one", "two"]):
        assert [adder(np.zeros(1))[0] for _ in range(3)] == [1.0] * 3


def test_a_plan_holds_for_one_type_of_array(adder):
    row = support.require("array_api_strict")
    one = Fake(1.0, declines=True)
    adder.register(one=one)
    assert adder(np.zeros(1)) == 1.0
    assert float(adder(row.xp.zeros(1))[0]) == 1000.0
    assert one.calls == 1


def test_a_plan_ends_with_the_block(adder):
    adder.register(one=Fake(1.0, declines=True), two=Fake(2.0, declines=True))
    for _ in range(2):
        for kernel, expected in (("one", 1.0), ("two", 2.0), ("generic", 1000.0)):
            with tp.set_backend("numpy", providers=[kernel]):
                assert [float(adder(np.zeros(1))[0]) for _ in range(2)] == [expected] * 2
    assert adder(np.zeros(1)) == 1.0


def test_an_error_in_a_kernel_is_raised(adder):
    one = Fake(1.0, declines=True)
    adder.register(one=one)
    adder(np.zeros(1))
    for error in (TypeError("the kernel's own"), RuntimeError("the kernel's own")):
        one.raises = error
        with pytest.raises(type(error), match="the kernel's own"):
            adder(np.zeros(1))


def test_a_kernel_that_takes_wrappers_gets_and_returns_them(providers):
    row = support.require("pyopencl")

    def body(x: Array) -> Array:
        """Not called."""
        raise AssertionError

    with support.temporary_operator(body) as operator:
        seen = []

        def kernel(x):
            seen.append(type(x))
            return x

        _providers.PROVIDERS["one"] = dataclasses.replace(_providers.PROVIDERS["one"], libraries=("pyopencl",))
        _providers.serving_library.cache_clear()
        operator.kernel("one", supports=lambda x: None, checks=True, wrappers=True)(kernel)
        wrapper = row.xp.asarray([1.0])
        for x in (wrapper, wrapper, wrapper.cl_array):
            assert type(operator(x)) is type(x)
        assert seen == [row.xp.Array, row.xp.Array, type(wrapper.cl_array)]


def test_what_a_kernel_loads_computes_in_its_place(adder):
    one, loaded = Fake(1.0), Fake(2.0, declines=True)
    adder.kernel("one", supports=one.supports, checks=True, load=lambda: loaded)(one)
    assert [adder(np.zeros(1))[0] for _ in range(3)] == [2.0] * 3
    assert (one.questions, one.calls, loaded.calls) == (1, 0, 3)


def test_a_kernel_of_a_provider_that_cannot_be_loaded_is_refused(adder, monkeypatch):
    adder.register(one=Fake(1.0))
    broken = Provider("one", ("numpy",), "tensorops.kernels.no_such_provider", "for tests", -1)
    monkeypatch.setitem(_providers.PROVIDERS, "one", broken)
    monkeypatch.delitem(_providers._reasons, "one")
    assert adder(np.zeros(1)) == 1000.0
    assert "no_such_provider" in adder.explain(np.zeros(1)).refused["one"]


def test_a_provider_serves_the_arrays_of_its_library_only(adder):
    row = support.require("array_api_strict")
    adder.register(one=Fake(1.0))
    with (
        tp.set_backend("array_api_strict", providers=["one"]),
        pytest.raises(KernelRefusedError, match="one: does not support array_api_strict arrays"),
    ):
        adder(row.xp.zeros(1))


def test_two_kernels_of_one_provider_are_an_error(adder):
    adder.register(one=Fake(1.0))
    with pytest.raises(ValueError, match=r"^adder already has a kernel of 'one'$"):
        adder.register(one=Fake(1.0))


def test_a_kernel_that_nothing_would_ask_is_an_error(adder, monkeypatch):
    with pytest.raises(ValueError, match=r"^unknown provider of kernels 'twoo' \(did you mean 'two'\?\)"):
        adder.kernel("twoo", supports=lambda x: None)
    with pytest.raises(ValueError, match=r"^adder: 'generic' is the operator's own body, and no provider of kernels$"):
        adder.kernel("generic", supports=lambda x: None)
    few = Provider("few", ("numpy",), "few", "for two operators", operators=("linear", "silu"))
    monkeypatch.setitem(_providers.PROVIDERS, "few", few)
    message = r"^adder: the provider 'few' is asked for linear, silu only; add 'adder' to its `operators`$"
    with pytest.raises(ValueError, match=message):
        adder.kernel("few", supports=lambda x: None)


def test_an_operator_needs_an_array():
    def nothing(x: int) -> int:
        """Return `x`."""
        return x

    with pytest.raises(TypeError, match=r"^nothing: no parameter is annotated Array"):
        operator(nothing)
    assert "nothing" not in OPERATORS


def test_kernels_lists_what_is_registered(adder):
    one = Fake(1.0)
    adder.register(one=one)
    assert set(adder.kernels) == {"one"}
    assert (adder.kernels["one"].provider, adder.kernels["one"].function) == ("one", one)
    adder.kernels.clear()
    assert set(adder.kernels) == {"one"}


def test_a_keyword_argument_is_dispatched_as_a_positional_one(adder):
    adder.register(one=Fake(1.0, declines=True))
    assert adder(x=np.zeros(1)) == adder(np.zeros(1)) == 1.0
    assert adder.explain(x=np.zeros(1)).kernel == "one"


def test_compiled_kernels_are_explained():
    support.require_provider("cpu")
    assert tp.rms_norm.explain(X, W).kernel == "cpu"
    explanation = tp.rms_norm.explain(X, W.astype(np.float64))
    reason = "weight has dtype float64, and x a narrower one"
    assert (explanation.kernel, explanation.refused) == ("generic", {"cpu": reason})
    assert str(explanation).splitlines() == [
        "rms_norm: generic on numpy (backend auto)",
        f"  not cpu: {reason}",
    ]
    with tp.trace() as log:
        tp.rms_norm(X, W)
        tp.rms_norm(X, W.astype(np.float64))
        tp.relu.generic(X)
    assert [(r.operator, r.kernel) for r in log] == [("rms_norm", "cpu"), ("rms_norm", "generic"), ("relu", "generic")]


# --- operators composed of others -------------------------------------------------------------------


@pytest.fixture
def composed(adder):
    """An operator that calls `adder` twice, whose kernel of provider `one` adds 1."""

    def twice(x: Array) -> Array:
        """Add twice."""
        return adder(adder(x))

    adder.register(one=Fake(1.0))
    with support.temporary_operator(twice, calls=(adder,)) as made:
        yield made


def test_what_a_composed_operator_calls_chooses_its_own_kernels(composed):
    with tp.trace() as log:
        assert (composed(ZERO) == 2.0).all()
    assert [(r.operator, r.kernel) for r in log] == [("adder", "one"), ("adder", "one"), ("twice", "generic")]
    explanation = composed.explain(ZERO)
    assert (explanation.kernel, explanation.calls) == ("generic", ("adder",))
    assert "calls adder, which choose" in str(explanation)


def test_generic_holds_for_what_a_composed_operator_calls(composed):
    with tp.trace() as log:
        assert (composed.generic(ZERO) == 2000.0).all()
    assert log.kernels == {"adder": {"generic"}, "twice": {"generic"}}
    assert (composed(ZERO) == 2.0).all()  # what was in force before is so again


def test_named_providers_hold_for_what_a_composed_operator_calls(composed):
    with tp.set_backend("numpy", providers=["one"]):
        assert (composed(ZERO) == 2.0).all()
    with tp.set_backend("numpy", providers=["two"]), pytest.raises(KernelRefusedError, match="adder: no kernel"):
        composed(ZERO)


def test_a_composed_operator_with_a_kernel_of_its_own_runs_that(composed):
    composed.kernel("one", supports=lambda x: None)(lambda x: x + 5.0)
    assert (composed(ZERO) == 5.0).all()
    assert composed.explain(ZERO).calls == ()


@pytest.mark.parametrize("has_kernel", [False, True])
def test_a_composed_operator_is_checked_once_for_calls_of_one_kind(has_kernel):
    """Also with a kernel for another library. Its steps are checked every time, and `check` looks at metadata only."""
    checked = []

    def check(name, x, power):
        checked.append((tuple(x.shape), power))
        if power is True or power == 0:
            raise ValueError(f"{name}: power is {power}")
        return {"power": power + 1}

    def raised(x: Array, *, power: int = 1) -> Array:
        return tp.silu(x) + power

    with support.temporary_operator(raised, check=check, calls=(tp.silu,)) as made:
        if has_kernel:
            made.kernel("dask", supports=lambda x, power: None)(raised)
        for _ in range(4):
            assert (made(ZERO, power=2) == 3.0).all()
        assert len(checked) == 2  # on the long path, and when the plan saw it first
        assert (made(ZERO, power=3) == 4.0).all()
        assert (made(np.zeros(7)) == 2.0).all()
        assert (made(np.zeros(7, np.float32), power=2) == 3.0).all()
        assert len(checked) == 5
        for wrong in (True, 0):
            with pytest.raises(ValueError, match=r"^raised: power is "):
                made(ZERO, power=wrong)
        made(ZERO, power=1)
        with pytest.raises(ValueError, match=r"^raised: power is True"):  # not what 1 was
            made(ZERO, power=True)
        with pytest.raises(TypeError, match=r"^raised: .*unexpected keyword argument 'pover'"):
            made(ZERO, pover=2)
        with pytest.raises(TypeError, match=r"^raised: x is list"):
            made([1.0])


def test_a_composed_operator_asks_a_kernel_that_refused(composed):
    one = Fake(5.0, refuses="not yet")
    composed.kernel("one", supports=one.supports)(one)
    for _ in range(2):
        assert (composed(ZERO) == 2.0).all()
    one.refuses = None
    assert (composed(ZERO) == 5.0).all()


def test_the_plan_of_a_composed_operator_first_asks_a_kernel_that_checks(providers):
    """While that declines, arguments are not checked anew at every call."""
    checked = []

    def raised(x: Array) -> Array:
        return tp.silu(x) + 1.0

    one = Fake(5.0, refuses="not yet", declines=True)
    check = lambda name, x: checked.append(name)  # noqa: E731
    with support.temporary_operator(raised, check=check, calls=(tp.silu,)) as made:
        made.kernel("one", supports=one.supports, checks=True)(one)
        for _ in range(4):
            assert (made(ZERO) == 1.0).all()
        assert (len(checked), one.calls, one.questions) == (2, 3, 1)
        one.refuses = None
        assert (made(ZERO) == 5.0).all()
        assert (len(checked), one.questions) == (2, 1)


def test_a_kernel_for_a_composed_operator_may_come_after_its_first_calls(composed):
    with tp.set_backend("numpy", providers=["one"]):
        for _ in range(2):
            assert (composed(ZERO) == 2.0).all()
    composed.kernel("one", supports=lambda x: None)(lambda x: x + 5.0)
    with tp.set_backend("numpy", providers=["one"]):
        assert (composed(ZERO) == 5.0).all()


# --- configurations ----------------------------------------------------------------------------------


CONFIGURATION = Configuration(
    {"block": "how many elements are added at once", "step": "how many blocks ahead are fetched"},
    choose=lambda x: {"block": int(x.shape[0]), "step": 2},
)


def blocked(x, *, block=None, step=None):
    """Return what tells which values were given; its own choice is 0."""
    return x + (block or 0) + 100.0 * (step or 0)


@pytest.fixture(params=["asked", "declines", "checks"])
def tunable(request, adder):
    """An operator whose kernel `one` has a configuration, for each way in which a kernel is called."""
    kind = request.param
    if kind == "checks":
        configuration = dataclasses.replace(CONFIGURATION, function=blocked)
        adder.kernel("one", supports=lambda x: None, checks=True, configuration=configuration)(lambda x: blocked(x))
    else:
        declines = kind == "declines"
        adder.kernel("one", supports=lambda x: None, declines=declines, configuration=CONFIGURATION)(blocked)
    return adder


def twice(operator):
    """Return the results of a call and of another one, which has a plan."""
    return [float(operator(np.zeros(3))[0]) for _ in range(2)]


def test_a_block_overrides_a_kernels_own_choice(tunable):
    x = np.zeros(3)
    assert twice(tunable) == [0.0] * 2
    for _ in range(2):
        with tp.tune(tunable, "one", block=5):
            assert twice(tunable) == [5.0] * 2
            assert tunable.explain(x).configuration == {"block": 5, "step": 2}
        assert twice(tunable) == [0.0] * 2
        assert tunable.explain(x).configuration == {"block": 3, "step": 2}
    with tp.tune("adder", "one", block=np.int64(5), step=7):
        assert twice(tunable) == [705.0] * 2


def test_nested_blocks_add_up_and_the_inner_one_counts(tunable):
    with tp.tune(tunable, "one", block=5, step=1):
        with tp.tune(tunable, "one", step=3):
            assert twice(tunable) == [305.0] * 2
            assert tunable.explain(np.zeros(3)).configuration == {"block": 5, "step": 3}
        assert twice(tunable) == [105.0] * 2


def test_a_block_ends_with_an_error(tunable):
    def fail():
        with tp.tune(tunable, "one", block=5):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert twice(tunable) == [0.0] * 2


def test_values_hold_for_one_kernel_of_one_operator(tunable):
    def other(x: Array) -> Array:
        """Add."""
        return x + 1000.0

    tunable.kernel("two", supports=lambda x: None, configuration=CONFIGURATION)(blocked)
    with support.temporary_operator(other) as made, tp.tune(tunable, "one", block=5):
        made.kernel("one", supports=lambda x: None, configuration=CONFIGURATION)(blocked)
        assert twice(made) == [0.0] * 2
        with tp.set_backend("numpy", providers=["two"]):
            assert twice(tunable) == [0.0] * 2


def test_callers_cannot_write_a_parameter_of_a_configuration(tunable):
    for block in (contextlib.nullcontext(), tp.tune(tunable, "one", block=5)):
        with block:
            twice(tunable)
            for _ in range(2):
                with pytest.raises(TypeError, match=r"^adder: got an unexpected keyword argument 'block'"):
                    tunable(np.zeros(3), block=1)


def test_backends_and_traces_within_a_block_keep_its_values(tunable):
    with tp.tune(tunable, "one", block=5):
        with tp.set_backend("numpy", providers=["one"]):
            assert twice(tunable) == [5.0] * 2
            with tp.trace() as log:
                assert twice(tunable) == [5.0] * 2
        with tp.trace() as other, tp.set_backend("numpy", providers=["one"]):
            assert twice(tunable) == [5.0] * 2
    assert [r.kernel for r in (*log, *other)] == ["one"] * 4


def test_a_block_within_a_backend_or_trace_keeps_them(tunable):
    with tp.trace() as log, tp.set_backend("numpy", providers=["one"]), tp.tune(tunable, "one", block=5):
        assert tp.get_backend() == "numpy"
        assert twice(tunable) == [5.0] * 2
    assert [(r.kernel, r.library) for r in log] == [("one", "numpy")] * 2
    with tp.set_backend("numpy"), tp.tune(tunable, "one", block=5):
        assert twice(tunable) == [1000.0] * 2  # it does not choose the kernel
        assert tunable.explain(np.zeros(3)).configuration == {}


def test_bound_functions_take_the_values_along(tunable):
    with tp.tune(tunable, "one", block=5):
        bound = tp.bind_settings(tunable)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        assert pool.submit(bound, np.zeros(3)).result(60)[0] == 5.0
        assert pool.submit(tunable, np.zeros(3)).result(60)[0] == 0.0


def test_explanations_show_the_configuration(tunable):
    with tp.tune(tunable, "one", step=4):
        explanation = tunable.explain(np.zeros(3))
    assert str(explanation) == "adder: one on numpy (backend auto)\n  with block=3, step=4"
    assert "<div>with block=3, step=4</div>" in explanation._repr_html_()
    with tp.set_backend("numpy", providers=["generic"]):
        assert str(tunable.explain(np.zeros(3))) == "adder: generic on numpy (backend numpy)"


@pytest.mark.parametrize(
    ("operator", "provider", "values", "error", "message"),
    [
        ("addre", "one", {"block": 1}, ValueError, r"unknown operator 'addre' \(did you mean 'adder'\?\); .*\bsilu,"),
        (3, "one", {"block": 1}, ValueError, "unknown operator 3; valid names: .*adder"),
        (["adder"], "one", {"block": 1}, ValueError, "unknown operator .*; valid names: .*adder"),
        ("adder", "two", {"block": 1}, ValueError, "adder has no kernel of 'two' with a configuration; .*: one$"),
        ("adder", "generic", {"block": 1}, ValueError, "adder has no kernel of 'generic' with a configuration"),
        ("silu", "one", {"block": 1}, ValueError, "silu has no kernel of 'one' with a configuration"),
        (
            "adder",
            "one",
            {"blok": 1},
            ValueError,
            r".* no parameter 'blok' \(did you mean 'block'\?\); .*: block, step$",
        ),
        ("adder", "one", {"x": 1}, ValueError, "adder on 'one' has no parameter 'x'; valid names: block, step$"),
        ("adder", "one", {}, ValueError, "no value was given; .* has block: how many elements are added at once; step"),
        ("adder", "one", {"block": 0}, ValueError, "block is 0, expected 1 "),
        ("adder", "one", {"block": -3}, ValueError, "block is -3, expected 1 "),
        ("adder", "one", {"block": 2**63}, ValueError, "block is 9223372036854775808, expected 1 "),
        ("adder", "one", {"block": True}, TypeError, "block is True, expected an integer"),
        ("adder", "one", {"block": 2.0}, TypeError, r"block is 2\.0, expected an integer"),
        ("adder", "one", {"block": "2"}, TypeError, "block is '2', expected an integer"),
    ],
)
def test_what_cannot_be_tuned_says_why(tunable, operator, provider, values, error, message):
    with pytest.raises(error, match=f"^tune: {message}"):
        tp.tune(operator, provider, **values)


def test_an_unknown_provider_cannot_be_tuned(tunable):
    for name in ("oen", 1, ["one"]):
        with pytest.raises(ValueError, match=r"^unknown provider of kernels .*; valid names: one, two, generic$"):
            tp.tune(tunable, name, block=1)


def test_a_provider_that_cannot_be_loaded_cannot_be_tuned(adder, monkeypatch):
    monkeypatch.setitem(_providers._reasons, "one", "it needs a compiler")
    with pytest.raises(ValueError, match=r"^tune: the kernels of 'one' cannot be loaded: it needs a compiler$"):
        tp.tune(adder, "one", block=1)


def test_a_configuration_is_separate_from_what_callers_write(adder):
    def kernel_with(configuration, **options):
        return adder.kernel("one", supports=lambda x: None, configuration=configuration, **options)

    taken = dataclasses.replace(CONFIGURATION, parameters={"x": "the operator's own"})
    with pytest.raises(ValueError, match=r"^adder: the configuration of 'one' has parameters of the operator: x$"):
        kernel_with(taken)
    with pytest.raises(ValueError, match=r"^adder: .*'one' needs a function, as the kernel checks$"):
        kernel_with(CONFIGURATION, checks=True)


# --- an operator is a function -----------------------------------------------------------------------


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_look_like_functions(name):
    made = OPERATORS[name]
    assert made is getattr(tp, name)
    assert repr(made) == f"<operator {name}>"
    assert (made.__name__, made.__qualname__) == (name, name)
    assert made.__module__.startswith("tensorops.ops.")
    assert inspect.signature(made) == inspect.signature(made.__wrapped__)
    assert inspect.getdoc(made) == inspect.getdoc(made.__wrapped__)
    assert callable(made)


@pytest.mark.parametrize("name", OPERATORS)
def test_help_shows_the_signature_and_the_docstring(name):
    made = OPERATORS[name]
    title, _, rest = pydoc.plain(pydoc.render_doc(made)).partition("\n\n")
    declaration, docstring, _ = rest.partition(f"\n    {inspect.getdoc(made).splitlines()[0]}\n")
    assert title.endswith(f"in module {made.__module__}")
    assert docstring
    assert declaration.startswith(f"{name}(")  # over several lines from Python 3.13 on
    for parameter in inspect.signature(made).parameters:
        assert re.search(rf"\b{parameter}: ", declaration)


def test_operators_in_a_class_are_no_methods():
    class Layer:
        activation = tp.silu

    assert Layer.activation is tp.silu
    assert Layer().activation is tp.silu
    np.testing.assert_array_equal(Layer().activation(X), tp.silu(X))


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_pickle_and_copy_by_reference(name):
    made = OPERATORS[name]
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(made, protocol)) is made
    assert copy.deepcopy(made) is made


def test_a_wrong_call_names_the_operator():
    with pytest.raises(TypeError, match=r"^silu: missing a required argument: 'x'"):
        tp.silu()
    with pytest.raises(TypeError, match=r"^silu: got an unexpected keyword argument 'axis'"):
        tp.silu(X, axis=0)
    with pytest.raises(TypeError, match=r"^rms_norm: too many positional arguments"):
        tp.rms_norm(X, W, 1e-6, -1)
