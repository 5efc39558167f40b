"""PURE: command lines of the builder, and what their output means."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path

from torpor.domain.errors import EngineError, InvalidArgument, StorageFull, TorporError

# What nobody reads in a sandbox: a third of the bytes. Copyright notices stay.
_EXCLUDED = (
    "/usr/share/doc/*",
    "/usr/share/info/*",
    "/usr/share/lintian/*",
    "/usr/share/locale/*",
    "/usr/share/man/*",
)
_INCLUDED = ("/usr/share/doc/*/copyright", "/usr/share/locale/locale.alias")

# Settings of the host's apt that decide whether it reaches its archives at all.
_CARRIED_SETTINGS = re.compile(
    r"Acquire::(?:(?:https?|ftp)::(?:Proxy|CaInfo|CaPath|SslCert|SslKey|Verify-Peer|Verify-Host|Timeout)\b"
    r"|Retries\b|Check-Valid-Until\b|Check-Date\b|Languages\b|ForceIPv[46]\b)",
    re.IGNORECASE,
)

# Passwords of archives stay in the host's own files, which apt reads while it builds.
_HOST_LOGINS = ('Dir::Etc::netrc "/etc/apt/auth.conf";', 'Dir::Etc::netrcparts "/etc/apt/auth.conf.d";')

# Variables that would change what is built, rather than how it is fetched. SOURCE_DATE_EPOCH makes Python's compiler
# write caches that hash their source at every import.
_DROPPED_VARIABLES = re.compile(r"(?:PYTHON|PIP_|PYENV_|VIRTUAL_ENV|SOURCE_DATE_EPOCH|DPKG_|APT_)")

LOG_TAIL_BYTES = 4096
_SHOWN_MAX = 200

_MISSING_PACKAGE = re.compile(
    r"Unable to locate package (\S+)|Version '([^']+)' for '(\S+)' was not found", re.MULTILINE
)
_NO_CANDIDATE = re.compile(r"Package '?([a-z0-9+.-]+)'? has no installation candidate")
_UNREACHABLE = re.compile(
    r"Temporary failure resolving|Could not resolve|Could not connect|Connection failed|Failed to fetch", re.IGNORECASE
)


def mmdebstrap_argv(
    packages: Iterable[str], *, codename: str, target: Path, sources: Path, settings: Path
) -> tuple[str, ...]:
    """Make ``target``, a directory that must not exist or be empty, from the archives in ``sources``.

    ``settings``: an apt.conf with what ``carried_settings`` chose.
    """
    return (
        "mmdebstrap",
        "--mode=root",
        "--variant=minbase",
        "--format=directory",
        f"--include={','.join(sorted(set(packages)))}",
        f"--aptopt={settings}",
        '--aptopt=APT::Install-Recommends "false"',
        # The folder is closed to apt's own user, which would only be warned about.
        '--aptopt=APT::Sandbox::User "root"',
        *(f"--dpkgopt=path-exclude={pattern}" for pattern in _EXCLUDED),
        *(f"--dpkgopt=path-include={pattern}" for pattern in _INCLUDED),
        codename,
        str(target),
        str(sources),
    )


def compile_argv(root: Path, folders: Iterable[str]) -> tuple[str, ...]:
    """Compile what has no byte code yet, with the tree's own Python. One process: the chroot has no ``/dev/shm``.

    The exit status is 1 if any file does not compile, and distributions ship some (syntax for newer or older Pythons).
    """
    return ("chroot", str(root), "/usr/bin/python3", "-I", "-m", "compileall", "-q", "-j", "1", *folders)


def copy_argv(source: Path, target: Path) -> tuple[str, ...]:
    """Copy a tree with owners, modes, links and times; ``target`` must not exist."""
    return ("cp", "--archive", "--reflink=auto", "--no-target-directory", str(source), str(target))


def carried_settings(dump: str) -> str:
    """Of ``apt-config dump``: the lines that a fetch from the host's archives needs (proxies, certificates, time-outs).

    The build alone uses them; they do not stay in the tree.
    """
    carried = [line for line in dump.splitlines() if _CARRIED_SETTINGS.match(line)]
    return "\n".join((*carried, *_HOST_LOGINS)) + "\n"


def build_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The host's environment (proxies stay) without what would leak into the tree."""
    kept = {key: value for key, value in environ.items() if not _DROPPED_VARIABLES.match(key)}
    # A login's PATH may lack the folders of the system's own tools, which packages' scripts expect.
    path = f"{kept.get('PATH', '/usr/bin:/bin')}:/usr/local/sbin:/usr/sbin:/sbin"
    return kept | {"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8", "PATH": path}


def apt_settings(root: Path, *, sources: Path, carried: str) -> str:
    """An apt.conf for the host's apt to work on the tree at ``root``, with nothing of the host's own settings."""
    own = (
        'Dir::Etc::Main "/dev/null";',
        'Dir::Etc::Parts "/dev/null";',
        f'Dir "{root}";',
        'Dir::Bin::Methods "/usr/lib/apt/methods";',
        f'Dir::Etc::SourceList "{sources}";',
        'Dir::Etc::SourceParts "/dev/null";',
        'Dir::Etc::Trusted "/etc/apt/trusted.gpg";',
        'Dir::Etc::TrustedParts "/etc/apt/trusted.gpg.d";',
        f'DPkg::Chroot-Directory "{root}";',
        'DPkg::Options { "--force-confdef"; "--force-confold"; };',
        'APT::Install-Recommends "false";',
        'APT::Sandbox::User "root";',
    )
    return "\n".join((*own, carried))


def build_error(argv: tuple[str, ...], *, exit_code: int, log: str, log_file: Path | None = None) -> TorporError:
    """What a failed command means to the caller, with the end of its output."""
    tail = log[-LOG_TAIL_BYTES:]
    if "No space left on device" in log:
        return StorageFull(
            "cannot build the template: no space left on the device; free about 1 GB and repeat", log_tail=tail
        )
    missing = _MISSING_PACKAGE.search(log) or _NO_CANDIDATE.search(log)
    if missing:
        package = next(group for group in reversed(missing.groups()) if group)
        return InvalidArgument(
            f"cannot install the package {package}: this host's apt sources have none of that name and version",
            field="packages",
            package=package,
            log_tail=tail,
        )
    remedy = f"its output is in {log_file}" if log_file else "see log_tail"
    if _UNREACHABLE.search(log):
        remedy = "this host's apt sources could not be reached; check that apt-get update works, then repeat"
    return EngineError(
        f"cannot build the template: {shlex.join(argv)[:_SHOWN_MAX]} ended with {exit_code}; {remedy}",
        argv=list(argv),
        exit_code=exit_code,
        log_tail=tail,
        log_file=str(log_file or ""),
    )
