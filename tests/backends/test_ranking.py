"""Which backend suits which machine: the priority table on simulated machines."""

import types

import pytest

from tensorops.backends import ranking
from tensorops.backends.probing import unavailable_reason
from tensorops.backends.ranking import Candidate, get_optimal_backend, ranked
from tensorops.backends.registry import BackendUnavailableError, all_backends, resolve
from tensorops.hardware import CPU, Accelerator, Hardware, detect_hardware

SERVER = CPU(architecture="x86_64", features=frozenset({"avx", "avx2", "avx512"}))
LAPTOP = CPU(architecture="x86_64", features=frozenset({"avx", "avx2"}))
ARM = CPU(architecture="aarch64", features=frozenset({"neon", "sve"}))
MAC = CPU(architecture="aarch64", features=frozenset({"neon"}))


def gpu(name, capability):
    return Hardware("cuda", name, compute_capability=capability, cpu=SERVER)


def tpu(version):
    return Hardware("tpu", f"TPU {version}", tpu_version=version, cpu=SERVER)


def with_accelerators(*kinds, **more):
    """Return a machine with several accelerators; the first determines its type."""
    found = tuple(Accelerator(kind, f"the {kind} device", None, "a test") for kind in kinds)
    return Hardware(kinds[0], f"the {kinds[0]} device", accelerators=found, cpu=SERVER, **more)


def everything(name):
    return ""


def only(*names):
    return lambda name: "" if name in names else "no such thing"


# --- each class of hardware --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hardware", "considered", "words"),
    [
        (gpu("H100", 90), ["cuda", "torch", "jax"], "H100, an NVIDIA GPU of the Hopper generation or newer"),
        (gpu("B200", 100), ["cuda", "torch", "jax"], "B200, an NVIDIA GPU of the Hopper generation or newer"),
        (gpu("A100", 80), ["cuda", "torch", "jax"], "A100, an NVIDIA GPU of the A100 generation"),
        (gpu("RTX 4090", 89), ["cuda", "torch", "jax"], "RTX 4090, an NVIDIA GPU"),
        (gpu("T4", 75), ["cuda", "torch", "jax"], "T4, an NVIDIA GPU"),
        (gpu("of unknown capability", None), ["cuda", "torch", "jax"], "of unknown capability, an NVIDIA GPU"),
        (tpu("v5p"), ["tpu", "jax"], "TPU v5p, a TPU v5p or newer"),
        (tpu("v6e"), ["tpu", "jax"], "TPU v6e, a TPU v5p or newer"),
        (tpu("v7"), ["tpu", "jax"], "TPU v7, a TPU v5p or newer"),
        (tpu("v5e"), ["tpu", "jax"], "TPU v5e, a TPU"),
        (tpu("v4"), ["tpu", "jax"], "TPU v4, a TPU"),
        (Hardware("apple", "Apple M3", cpu=MAC), ["mlx"], "Apple M3, an Apple chip whose GPU shares the memory"),
        (Hardware("neuron", "AWS Trainium", cpu=SERVER), ["nki"], "AWS Trainium, an AWS accelerator"),
        (Hardware("rocm", "MI300X", cpu=SERVER), ["opencl", "torch", "jax"], "MI300X, an AMD GPU"),
        (Hardware("opencl", "Arc A770", cpu=LAPTOP), ["opencl"], "Arc A770, through OpenCL"),
        (Hardware(cpu=SERVER), [], "x86-64 with AVX-512, C++ kernels"),
        (Hardware(cpu=LAPTOP), [], "x86-64 with AVX2, C++ kernels"),
        (Hardware(cpu=ARM), [], "Arm with SVE, C++ kernels"),
        (Hardware(cpu=MAC), [], "Arm with NEON, C++ kernels"),
        (Hardware(cpu=CPU(architecture="riscv64")), [], "riscv64, C++ kernels"),
        (Hardware(), [], "the processor, C++ kernels"),
    ],
)
def test_the_best_that_is_available(hardware, considered, words):
    found = get_optimal_backend(hardware, available=everything)
    assert [c.name for c in found.ranking] == [*considered, "cpu", "numpy"]
    first = (considered or ["cpu"])[0]
    assert found.name == first
    assert found.ranking[0] == Candidate(first, words, True)
    assert found.reasons[0] == f"{first}: {words}"


def test_the_rows_are_in_the_promised_order():
    """A machine that has everything, then repeatedly loses its best backend."""
    kinds = ["cuda", "tpu", "apple", "opencl"]
    everything_new = with_accelerators(*kinds, compute_capability=90, tpu_version="v5p")
    assert ranked(everything_new)[:7] == ("cuda", "torch", "jax", "tpu", "mlx", "opencl", "cpu")
    a100_and_new_tpu = with_accelerators(*kinds, compute_capability=80, tpu_version="v6e")
    assert ranked(a100_and_new_tpu)[:7] == ("tpu", "jax", "cuda", "torch", "mlx", "opencl", "cpu")
    a100_and_old_tpu = with_accelerators(*kinds, compute_capability=80, tpu_version="v5e")
    assert ranked(a100_and_old_tpu)[:7] == ("cuda", "torch", "jax", "tpu", "mlx", "opencl", "cpu")
    other_gpu_and_old_tpu = with_accelerators(*kinds, compute_capability=89, tpu_version="v4")
    assert ranked(other_gpu_and_old_tpu)[:7] == ("tpu", "jax", "cuda", "torch", "mlx", "opencl", "cpu")
    assert ranked(with_accelerators("apple", "opencl"))[:3] == ("mlx", "opencl", "cpu")


def test_a_reason_names_the_device_that_it_is_about():
    hardware = with_accelerators("cuda", "opencl", compute_capability=75)
    found = get_optimal_backend(hardware, available=only("opencl"))
    assert found.reasons[0] == "cuda: not available: no such thing"
    assert found.reasons[3] == "opencl: the opencl device, through OpenCL"


def test_every_kind_of_the_table_suits_a_backend_and_the_other_way_round():
    suited = {kind for backend in all_backends().values() for kind in backend.suits}
    assert suited == {row.kind for row in ranking.PRIORITIES}


# --- what is passed over -----------------------------------------------------------------------------


def test_what_is_unavailable_is_passed_over_and_says_why():
    found = get_optimal_backend(tpu("v5e"), available=only("jax", "cpu", "numpy"))
    assert found.name == "jax"
    assert found.reasons == (
        "tpu: not available: no such thing",
        "jax: TPU v5e, a TPU",
        "cpu: not tried, because jax comes first",
        "numpy: not tried, because jax comes first",
    )
    assert str(found) == "\n  ".join(["jax", *found.reasons])
    assert [c.available for c in found.ranking] == [False, True, None, None]


def test_nothing_after_the_first_is_tried():
    tried = []

    def available(name):
        tried.append(name)
        return "" if name == "cpu" else "absent"

    assert get_optimal_backend(gpu("H100", 90), available=available).name == "cpu"
    assert tried == ["cuda", "torch", "jax", "cpu"]


def test_numpy_is_the_last_resort():
    assert get_optimal_backend(gpu("H100", 90), available=only("numpy")).name == "numpy"


MACHINES = {
    "nvidia": gpu("H100", 90),
    "amd": Hardware("rocm", "MI300X", cpu=SERVER),
    "tpu": tpu("v5p"),
    "apple": Hardware("apple", "Apple M3", cpu=MAC),
    "server": Hardware(cpu=SERVER),
}


@pytest.mark.parametrize(
    ("machine", "installed", "best"),
    [
        ("nvidia", ["cuda", "torch", "jax"], "cuda"),
        ("nvidia", ["torch", "jax"], "torch"),  # our kernels take its tensors on GPUs
        ("nvidia", ["jax"], "jax"),
        ("nvidia", [], "cpu"),
        ("amd", ["opencl", "torch", "jax"], "opencl"),
        ("amd", ["torch", "jax"], "torch"),
        ("amd", ["jax"], "jax"),
        ("tpu", ["tpu", "jax", "torch"], "tpu"),
        ("tpu", ["torch"], "cpu"),
        ("apple", ["mlx", "jax", "torch"], "mlx"),
        ("apple", ["jax", "torch"], "cpu"),
        ("server", ["jax", "torch", "mlx", "opencl"], "cpu"),
    ],
)
def test_the_best_of_what_is_installed(machine, installed, best):
    assert get_optimal_backend(MACHINES[machine], available=only(*installed, "cpu", "numpy")).name == best


def test_a_build_without_the_hardware_is_no_choice(monkeypatch, tmp_path):
    """PyTorch for processors is installed, and JAX without its package for GPUs."""
    from tensorops.libraries import jax, torch

    folder = tmp_path / "torch"
    folder.mkdir()
    (folder / "__init__.py").write_text("raise ImportError('this takes seconds')")
    monkeypatch.syspath_prepend(str(tmp_path))
    for said, lacking in (("cuda: Optional[str] = None\nhip = None\n", True), ("cuda = '13.0'\nhip = None\n", False)):
        (folder / "version.py").write_text(said)
        monkeypatch.setattr(
            torch.importlib.util, "find_spec", lambda name: types.SimpleNamespace(origin=str(folder / "__init__.py"))
        )
        assert ("has no code for NVIDIA GPUs" in torch._lacks("cuda")) == lacking
        assert "has no code for AMD GPUs" in torch._lacks("rocm")
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    for names, lacking in (([], True), (["jax_cuda13_plugin"], False)):
        found = [types.SimpleNamespace(name=name) for name in names]
        monkeypatch.setattr(jax.pkgutil, "iter_modules", lambda found=found: found)
        assert ("without the package" in jax._lacks("cuda")) == lacking
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert "JAX_PLATFORMS=cpu lets JAX compute on no such device" in jax._lacks("cuda")


def test_nothing_at_all_is_an_error_with_every_reason():
    expected = (
        "^no backend can compute here; "
        + "; ".join(f"{name}: not available: no such thing" for name in ("cuda", "torch", "jax", "cpu", "numpy"))
        + "$"
    )
    with pytest.raises(BackendUnavailableError, match=expected):
        get_optimal_backend(gpu("H100", 90), available=only())


# --- what the user asked for first -------------------------------------------------------------------


def test_a_priority_goes_first():
    found = get_optimal_backend(gpu("H100", 90), available=only("torch", "cuda"), priority=["dask", "torch", "cpu"])
    assert [c.name for c in found.ranking] == ["dask", "torch", "cpu", "cuda", "jax", "numpy"]
    assert found.name == "torch"
    assert found.reasons[:2] == (
        "dask: not available: no such thing",
        "torch: first in the requested priority",
    )


def test_aliases_mean_their_backend():
    found = get_optimal_backend(Hardware(), available=everything, priority=["nvidia", "cuda", "python"])
    assert [c.name for c in found.ranking] == ["cuda", "numpy", "cpu"]


def test_the_configured_priority_is_the_default(monkeypatch):
    from tensorops.backends.config_file import Configuration
    from tensorops.backends.process import process

    monkeypatch.setattr(process, "configuration", Configuration(backend_priority=("dask",)))
    assert get_optimal_backend(Hardware(), available=everything).name == "dask"
    assert get_optimal_backend(Hardware(), available=everything, priority=()).name == "cpu"


def test_an_unknown_name_is_an_error():
    for ask in (ranked, get_optimal_backend):
        with pytest.raises(
            ValueError, match=r"^unknown backend 'cudda' \(did you mean 'cuda'\?\); valid names: cuda, "
        ):
            ask(Hardware(), priority=["cudda"])
        with pytest.raises(TypeError, match=r"^priority must be a sequence of backend names, not one string$"):
            ask(Hardware(), priority="cuda")


# --- all of them, best first -------------------------------------------------------------------------


@pytest.mark.parametrize("hardware", [Hardware(), gpu("H100", 90), tpu("v6e"), Hardware("apple")], ids=str)
@pytest.mark.parametrize("priority", [(), ("torch",), ("numpy", "cpu"), ("array_api_strict",)])
def test_ranked_has_every_backend_once(hardware, priority):
    names = ranked(hardware, priority)
    assert sorted(names) == sorted(all_backends())
    assert names[: len(priority)] == priority


def test_ranked_ends_with_what_nobody_prefers():
    names = ranked(Hardware())
    assert names[0] == "cpu"
    assert names[-2:] == ("numpy", "array_api_strict")
    rest = names[1:-2]
    assert set(names) == set(all_backends())
    # Backends that suit no part of the hardware: eager ones, then lazy ones, then planned ones.
    assert rest.index("torch") < rest.index("dask") < rest.index("cudnn")


# --- this machine ------------------------------------------------------------------------------------


def test_this_machine():
    found = get_optimal_backend()
    assert not unavailable_reason(resolve(found.name))
    chosen = [c for c in found.ranking if c.available]
    assert [c.name for c in chosen] == [found.name]
    for passed_over in found.ranking[: found.ranking.index(chosen[0])]:
        assert unavailable_reason(resolve(passed_over.name)) in passed_over.reason
    assert ranked() == ranked(detect_hardware())


def test_the_remedy_is_part_of_the_reason():
    found = get_optimal_backend(Hardware(), priority=["nnpack"])
    assert found.reasons[0].startswith("nnpack: not available: NNPACK is retired")
    assert found.reasons[0].endswith("(use 'cpu')")
