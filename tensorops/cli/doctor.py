"""``tensorops doctor``: what is installed, what is missing, and the command that fixes it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from tensorops._messages import describe_error, installed_from, nearest
from tensorops.backends import config_file, registry
from tensorops.backends.config_file import AUTO, CONFIG, VARIABLES, Configuration
from tensorops.backends.probing import REQUIREMENTS, Probe
from tensorops.backends.registry import resolve
from tensorops.cli import bench
from tensorops.cli._options import apply_configuration, say
from tensorops.cli.backends import had_here, print_hidden, print_unavailable, probe_best_first
from tensorops.libraries import Backend
from tensorops.libraries.pyopencl import INTELS_PACKAGES, intels_driver

if TYPE_CHECKING:
    from tensorops._providers import Provider
    from tensorops.hardware import Hardware

TIMED = ("rms_norm", "softmax", "linear")
SECONDS = 0.1  # for each figure
POCL = "Portable Computing Language"


@click.command()
@click.option("--all", "everything", is_flag=True, help="Also show the backends that are not available here.")
@click.option("--bench", "measured", is_flag=True, help="Also time some operators on every backend, in a minute.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
def doctor(everything: bool, measured: bool, as_json: bool) -> None:
    """Examine the installation, the configuration and every backend; say how to fix what is missing.

    The exit code is 0 if the configuration is valid, the backend that it names works, and the compiled kernels and
    plug-ins load.
    """
    from tensorops.hardware import detect_hardware

    problems: list[dict[str, str]] = []
    notes: list[str] = []
    examine_requirements(problems)
    configured = examine_configuration(problems)
    native = examine_native(problems)
    found = probe_best_first()
    hardware = detect_hardware()
    report = {
        "versions": versions(),
        "installation": examine_installation(),
        "native": native,
        "hardware": hardware.to_dict(),
        "optimal": best_here(),
        "configuration": configured,
        "plugins": examine_plugins(problems, notes),
        "backends": [_row(backend, probed) for backend, probed in found],
        "notes": [*hardware.notes, *notes_on_opencl(hardware), *examine_drivers(hardware, problems), *notes],
        "problems": problems,
    }
    times = bench.on_backends(TIMED, seconds=SECONDS) if measured and not problems else None
    if as_json:
        click.echo(json.dumps(report | ({"bench": times.to_dict()} if times else {}), indent=2))
    else:
        shown = {backend.name for backend, _ in (found if everything else had_here(found))}
        print_report(report, str(hardware), shown)
        if times is not None:
            bench.print_report(times)
    if problems:
        raise SystemExit(1)


# ------------------------------------------------------------------------------------------- examining


def versions() -> dict[str, str]:
    """Return the versions that every bug report needs."""
    import platform

    import numpy as np

    import tensorops

    return {
        "tensorops": tensorops.__version__,
        "python": f"{platform.python_version()} ({sys.executable})",
        "numpy": np.__version__,
        "platform": platform.platform(),
    }


def examine_installation() -> dict[str, Any]:
    """Return where tensorops was imported from, and how it was installed."""
    import tensorops

    folder = Path(tensorops.__file__).parent
    source_tree = (folder.parent / "native" / "CMakeLists.txt").exists()
    origin = installed_from()
    installed = "not installed" if origin is None else "installed, editable" if origin else "installed"
    if source_tree and installed != "installed, editable":
        installed += ", but imported from its source tree"
    return {"folder": str(folder), "source_tree": source_tree, "state": installed}


def examine_requirements(problems: list[dict[str, str]]) -> None:
    """Add the packages that tensorops requires and that are missing, as in a source tree without an installation."""
    from importlib.util import find_spec

    if missing := [name for name in REQUIREMENTS if find_spec(name) is None]:
        said = f"tensorops cannot compute without packages that are not installed: {', '.join(missing)}"
        problems.append({"problem": said, "remedy": f"pip install {' '.join(missing)}"})


def best_here() -> dict[str, Any]:
    """Return the backend that suits this machine best, and why; the name is ``None`` if none computes."""
    from tensorops.backends.ranking import get_optimal_backend

    try:
        best = get_optimal_backend()
    except registry.BackendUnavailableError as error:
        return {"name": None, "reasons": [str(error)]}
    return {"name": best.name, "reasons": list(best.reasons)}


def examine_native(problems: list[dict[str, str]]) -> dict[str, Any]:
    """Return the targets of the compiled kernels, or why they do not load."""
    from tensorops import _providers
    from tensorops.backends.probing import probe

    try:
        reason = _providers.load("cpu")
    except Exception as error:  # an invalid setting
        reason = describe_error(error)
    if reason:
        cpu = resolve("cpu")
        remedy = probe(cpu).remedy if "environment variable" in reason else cpu.remedy
        if installed_from() is None:
            remedy = "pip install -e ."
        problems.append({"problem": f"the compiled kernels do not load: {reason}", "remedy": remedy})
        return {"loaded": False, "reason": reason}
    from tensorops.kernels.cpu import _native

    if better := _native.better_targets():
        said = f"the kernels were compiled for {', '.join(_native.targets())}, but this processor can run {better[0]}"
        problems.append({"problem": said, "remedy": "pip install -e . -C cmake.define.TENSOROPS_TARGETS=all"})
    facts = {"target": _native.target(), "targets": _native.targets(), "num_threads": _native.num_threads() or None}
    return {"loaded": True, "reason": None, "file": _native.__file__, **facts}


def examine_configuration(problems: list[dict[str, str]]) -> dict[str, Any]:
    """Return the configuration, and add its errors to the problems."""
    path = config_file.config_path()
    set_here = {name: value for name, value in sorted(os.environ.items()) if name.startswith("TENSOROPS_")}
    facts: dict[str, Any] = {
        "file": None if path is None else str(path),
        "file_exists": config_file.exists(path),
        "environment": set_here,
        "unknown_variables": [name for name in set_here if name not in VARIABLES],
    }
    try:
        found = config_file.read()
    except ValueError as error:
        remedies = [f"unset {name}" for name in set_here if f"environment variable {name}" in str(error)]
        if not remedies:
            unset = f", or unset {CONFIG}" if CONFIG in set_here else ""
            remedies = [f"fix the file, or write an empty one with: tensorops config --reset{unset}"]
        problems.append({"problem": str(error), "remedy": remedies[0]})
        return facts | {"problem": str(error)}
    name, failure = apply_configuration()
    problems += problem_with_choice(found, failure)
    problems += problems_with_devices(found)
    values = {
        field: getattr(found, field)
        for field in ("preferred_backend", "force_backend", "backend_priority", "devices", "num_threads")
    }
    return facts | values | {"sources": dict(found.sources), "in_force": name, "problem": failure or None}


def problem_with_choice(found: Configuration, failure: str) -> list[dict[str, str]]:
    """Return why the preferred or forced backend cannot compute, if so."""
    from tensorops.backends.probing import probe

    name = found.force_backend or found.preferred_backend
    if name == AUTO:
        return [{"problem": failure, "remedy": "fix what it names"}] if failure else []
    how = "forced" if found.force_backend else "preferred"
    source = found.sources.get("force_backend" if found.force_backend else "preferred_backend", "the configuration")
    another = f"choose another: {_remedy_of(source)}"
    if (failed := probe(resolve(name))).reason:
        said = f"backend {name!r} is {how} by {source} and not available: {failed.reason}"
        return [{"problem": said, "remedy": f"{failed.remedy}; or {another}" if failed.remedy else another}]
    return [{"problem": failure, "remedy": f"change what is configured for it; or {another}"}] if failure else []


def problems_with_devices(found: Configuration) -> list[dict[str, str]]:
    """Return the device options that cannot be honoured; those of the backend in force have been applied."""
    from tensorops.backends.probing import probe_here

    where = found.sources.get("devices", "the configuration")
    problems = []
    for name in found.devices:
        if name != (found.force_backend or found.preferred_backend):
            tried = probe_here(resolve(name))
            if tried.misconfigured:  # any other reason is not the configuration's
                said = f"{where}: devices: {name}: {tried.reason}"
                problems.append({"problem": said, "remedy": f"remove that option from {where}"})
    return problems


def _remedy_of(source: str) -> str:
    return f"unset {source}" if source.startswith("TENSOROPS_") else "tensorops config --backend=auto --no-force"


def examine_plugins(problems: list[dict[str, str]], notes: list[str]) -> list[dict[str, str | None]]:
    """Return the backends and providers of other distributions, and why one failed to load, which is a problem.

    A provider that loads, but that nothing uses, is a note.
    """
    from tensorops import _providers

    registry.load_plugins()
    found: list[dict[str, str | None]] = [
        {"name": name, "distribution": owner, "reason": registry.plugin_failures.get(name)}
        for name, owner in sorted(registry.plugins.items())
    ]
    found += [
        {"name": f"kernels of {name}", "distribution": owner, "reason": _providers.load(name) or None}
        for name, owner in sorted(registry.provider_plugins.items())
    ]
    problems += [
        {"problem": f"{each['name']}: {each['reason']}", "remedy": f"pip install --upgrade {each['distribution']}"}
        for each in found
        if each["reason"]
    ]
    for name in sorted(registry.provider_plugins):
        reason, remedy = ("", "") if _providers.load(name) else why_unused(_providers.PROVIDERS[name])
        if reason:
            notes.append(f"kernels of {name} are not used: {reason}; to fix it: {remedy}")
    for owner, group in registry.misspelt_groups():
        valid = (registry.BACKENDS_GROUP, registry.PROVIDERS_GROUP)
        notes.append(
            f"{owner} has entry points in the group {group}, which nothing reads{nearest(group, valid)}; to fix it: "
            f"its author corrects the name to one of {', '.join(valid)}"
        )
    return found


def why_unused(provider: Provider) -> tuple[str, str]:
    """Return why nothing uses a provider whose kernels load, and what helps; empty strings if something does."""
    from tensorops._operator import OPERATORS

    reason, remedy = registry.why_unused(provider)
    if not reason and all(operator.kernel_of(provider.name) is None for operator in OPERATORS.values()):
        reason = f"importing {provider.kernels} registers no kernel"
        remedy = f"its author registers them there: @tensorops.silu.kernel({provider.name!r}, supports=...)"
    return reason, remedy


def notes_on_opencl(hardware: Hardware) -> list[str]:
    """Return what is unusual about the OpenCL drivers, even if nothing fails."""
    processors = [d for d in hardware.opencl_devices if d.platform == POCL and d.kind == "cpu"]
    notes = []
    if len(processors) > 1:
        notes.append(
            f"OpenCL lists the processor {len(processors)} times, because several copies of PoCL are installed "
            "(perhaps the system's and a pip package); programs that take the first one do not know which: uninstall "
            "all but one"
        )
    others = len(hardware.opencl_devices) > len(processors)
    if sys.platform == "linux" and hardware.cpu.architecture == "x86_64" and has_opencl() and not others:
        notes.append(_note_on_intels_driver(bool(processors)))
    return notes


def has_opencl() -> bool:
    """Return whether what computes by OpenCL is installed, whatever drivers there are."""
    return resolve("opencl").library.is_installed()


def _note_on_intels_driver(pocl: bool) -> str:
    """Return how to compute with Intel's driver, which also runs on processors of AMD."""
    why = "OpenCL computes on the processor by PoCL, and Intel's driver is faster"
    why = why if pocl else "OpenCL has no device, and Intel's driver computes on the processor"
    if intels_driver():  # which tensorops shows to OpenCL's loader, unless drivers are named
        return f"{why}; it is installed, but not among the drivers that OCL_ICD_VENDORS names: unset OCL_ICD_VENDORS"
    return f"{why}, whoever made the processor: {INTELS_PACKAGES}"


def examine_drivers(hardware: Hardware, problems: list[dict[str, str]]) -> list[str]:
    """Compute with each OpenCL driver in a process of its own; a failure is a problem, or a note if another works."""
    from tensorops.kernels.opencl._drivers import remedy, try_driver

    devices = dict.fromkeys((d.platform, d.name) for d in hardware.opencl_devices) if has_opencl() else {}
    failed = {device: reason for device in devices if (reason := try_driver(*device))}
    if failed and len(failed) == len(devices):
        problems += [{"problem": reason, "remedy": remedy(driver)} for (driver, _), reason in failed.items()]
        return []
    return [f"{reason}; to fix it: {remedy(driver)}" for (driver, _), reason in failed.items()]


def _row(backend: Backend, probed: Probe) -> dict[str, Any]:
    from tensorops.backends.listing import describe_row

    return {
        **describe_row(backend, probed),
        "planned": bool(backend.missing) and backend.name not in registry.plugin_failures,
    }


# -------------------------------------------------------------------------------------------- printing


def print_report(report: dict[str, Any], hardware: str, shown: set[str]) -> None:
    """Print the report for people, with the given backends; no line breaks within a command."""
    console = Console(highlight=False)

    def section(title: str, *lines: str) -> None:
        console.print(f"\n[bold]{title}[/]")
        for line in lines:
            say(console, line, indent=2 + len(line) - len(line.lstrip()))

    installation, native, optimal = report["installation"], report["native"], report["optimal"]
    section("Versions", *(f"{name} {version}" for name, version in report["versions"].items()))
    section("Installation", f"{installation['state']}: {installation['folder']}", _native_line(native))
    section("Hardware", *hardware.splitlines())
    section("Best backend here", optimal["name"] or "none", *optimal["reasons"])
    section("Configuration", *_configuration_lines(report["configuration"]))
    if report["plugins"]:
        section("Plug-ins", *map(_plugin_line, report["plugins"]))
    section("Backends")
    for row in report["backends"]:
        if row["name"] in shown:
            _print_backend(console, row)
    print_hidden(console, len(report["backends"]) - len(shown), "tensorops doctor", indent=2)
    if report["notes"]:
        section("Notes", *report["notes"])
    if report["problems"]:
        section("Problems")
        for problem in report["problems"]:
            say(console, problem["problem"], label="[red]*[/] ", indent=2)
            say(console, problem["remedy"], label="to fix it: ", indent=4)
    else:
        console.print("\n[green]No problems.[/]")


def _print_backend(console: Console, row: dict[str, Any]) -> None:
    if row["available"]:
        say(console, row["name"], label="[green]works[/]    ", indent=2)
    elif row["planned"]:
        said = f"{row['name']}: {row['reason']}; instead: {row['remedy'] or 'nothing'}"
        say(console, said, label="[dim]planned[/]  ", indent=2)
    else:
        print_unavailable(console, row["name"], row["reason"], row["remedy"], indent=2)


def _native_line(native: dict[str, Any]) -> str:
    if not native["loaded"]:
        return f"compiled kernels: no: {native['reason']}"
    threads = f"; at most {native['num_threads']} threads" if native["num_threads"] else ""
    return f"compiled kernels: {native['target']}, of {', '.join(native['targets'])}{threads}"


def _configuration_lines(found: dict[str, Any]) -> list[str]:
    exists = "exists" if found["file_exists"] else "does not exist"
    lines = [f"file: {found['file']} ({exists})" if found["file"] else f"file: none, because {CONFIG} is set but empty"]
    lines += [
        f"{name}={value}" + ("  (not a variable of tensorops)" if name in found["unknown_variables"] else "")
        for name, value in found["environment"].items()
    ]
    if "preferred_backend" in found:
        lines.append(f"preferred: {found['preferred_backend']}; forced: {found['force_backend'] or 'none'}")
    return lines


def _plugin_line(plugin: dict[str, str | None]) -> str:
    failed = f"failed: {plugin['reason']}" if plugin["reason"] else "loaded"
    return f"{plugin['name']} of {plugin['distribution']}: {failed}"
