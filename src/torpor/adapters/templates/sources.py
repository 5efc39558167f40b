"""PURE: where the host gets its packages, read from apt's own files, so that a template comes from the same place.

Only the distribution's own archives are taken (not a vendor's beside them), and only binary packages. No archive is
named here: a host behind a mirror builds from that mirror.

Source: sources.list(5), one-line and deb822 styles.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torpor.domain.errors import Unsupported

_SKIPPED_POCKETS = ("-backports", "-proposed", "-proposed-updates", "-debug")
_ONE_LINE = re.compile(r"deb\s+(?:\[(?P<options>[^\]]*)\]\s+)?(?P<uri>\S+)\s+(?P<suite>\S+)\s*(?P<components>.*)")
_CREDENTIALS = re.compile(r"(?<=://)[^/@\s]+@")


@dataclass(frozen=True, slots=True)
class Archive:
    """One stanza of an apt source. ``options``: further deb822 fields such as ``Signed-By``, verbatim."""

    uris: tuple[str, ...]
    suites: tuple[str, ...]
    components: tuple[str, ...]
    options: tuple[tuple[str, str], ...] = ()

    @property
    def signed_by(self) -> str:
        """The keyring this archive names, or an empty string."""
        return dict(self.options).get("Signed-By", "")


@dataclass(frozen=True, slots=True)
class Distribution:
    """Which distribution and release the host is: ``id`` (``debian``, ``ubuntu``), ``codename`` (``bookworm``)."""

    id: str
    codename: str


def parse_os_release(text: str) -> Distribution:
    """The host's distribution. Raises: Unsupported for anything but Debian and Ubuntu and what calls itself like them.

    Source: os-release(5).
    """
    fields = {
        key: value.strip().strip("\"'")
        for key, separator, value in (line.strip().partition("=") for line in text.splitlines())
        if separator
    }
    family = [fields.get("ID", ""), *fields.get("ID_LIKE", "").split()]
    known = next((name for name in family if name in {"debian", "ubuntu"}), None)
    codename = fields.get("UBUNTU_CODENAME") or fields.get("VERSION_CODENAME", "")
    if known is None or not codename:
        raise Unsupported(
            f"cannot build a template on {fields.get('PRETTY_NAME', 'this system')}: Debian or Ubuntu is needed, "
            "a release with a codename",
            os_release=fields.get("ID", ""),
        )
    return Distribution(known, codename)


def parse_one_line(text: str) -> tuple[Archive, ...]:
    """Archives of a ``sources.list`` in one-line style. Comments and ``deb-src`` lines are passed over."""
    archives = []
    for raw in text.splitlines():
        match = _ONE_LINE.fullmatch(raw.partition("#")[0].strip())
        if match:
            archives.append(
                Archive(
                    uris=(match["uri"],),
                    suites=(match["suite"],),
                    components=tuple(match["components"].split()),
                    options=_one_line_options(match["options"] or ""),
                )
            )
    return tuple(archives)


def parse_deb822(text: str) -> tuple[Archive, ...]:
    """Archives of a ``.sources`` file. Disabled stanzas and those without binary packages are passed over."""
    archives = []
    for stanza in _stanzas(text):
        fields = {key.lower(): value for key, value in stanza.items()}
        if fields.get("enabled", "yes").lower() in {"no", "false", "0"} or "deb" not in fields.get("types", "").split():
            continue
        archives.append(
            Archive(
                uris=tuple(fields.get("uris", "").split()),
                suites=tuple(fields.get("suites", "").split()),
                components=tuple(fields.get("components", "").split()),
                options=tuple((key, value) for key, value in stanza.items() if key.lower() in _KEPT_OPTIONS),
            )
        )
    return tuple(archives)


def choose_archives(archives: Iterable[Archive], distribution: Distribution) -> tuple[Archive, ...]:
    """The distribution's own archives of this release, with all that the built-in templates need switched on.

    An archive is its own if it has the component ``main``, a suite of the release, and is signed by the distribution's
    keyring or names none. Where no archive passes the last test (a mirror with a key of its own) it is dropped.
    On Ubuntu ``universe`` is added: it lies in every Ubuntu archive, and pandas and IPython are in it.

    Raises: Unsupported if nothing is left.
    """
    of_release = [chosen for archive in archives if (chosen := _of_release(archive, distribution.codename))]
    own = [archive for archive in of_release if not archive.signed_by or distribution.id in archive.signed_by.lower()]
    chosen_all = own or of_release
    if not chosen_all:
        raise Unsupported(
            f"cannot find an apt source for {distribution.id} {distribution.codename} with the component main: "
            "add one to /etc/apt and run apt-get update",
        )
    if distribution.id == "ubuntu":
        chosen_all = [_with_component(archive, "universe") for archive in chosen_all]
    return tuple(chosen_all)


def render_deb822(archives: Iterable[Archive]) -> str:
    """The archives as one ``.sources`` file."""
    stanzas = []
    for archive in archives:
        lines = [
            "Types: deb",
            f"URIs: {' '.join(archive.uris)}",
            f"Suites: {' '.join(archive.suites)}",
            f"Components: {' '.join(archive.components)}",
            *(f"{key}: {value}" for key, value in archive.options),
        ]
        stanzas.append("\n".join(lines) + "\n")
    return "\n".join(stanzas)


def without_credentials(text: str) -> str:
    """``text`` with user names and passwords taken out of its URLs: a template may not carry the host's."""
    return _CREDENTIALS.sub("", text)


_KEPT_OPTIONS = frozenset({"signed-by", "trusted", "architectures", "check-valid-until", "check-date"})
_ONE_LINE_NAMES: Mapping[str, str] = {
    "signed-by": "Signed-By",
    "trusted": "Trusted",
    "arch": "Architectures",
    "check-valid-until": "Check-Valid-Until",
    "check-date": "Check-Date",
}


def _one_line_options(text: str) -> tuple[tuple[str, str], ...]:
    pairs = (item.partition("=") for item in text.split())
    return tuple(
        (_ONE_LINE_NAMES[key], value.replace(",", " ")) for key, _, value in pairs if key in _ONE_LINE_NAMES and value
    )


def _stanzas(text: str) -> list[dict[str, str]]:
    stanzas: list[dict[str, str]] = [{}]
    key = ""
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        if not line.strip():
            stanzas.append({})
            key = ""
        elif line[0] in " \t" and key:
            stanzas[-1][key] += "\n" + line
        elif ":" in line:
            key, _, value = line.partition(":")
            stanzas[-1][key] = value.strip()
    return [stanza for stanza in stanzas if stanza]


def _of_release(archive: Archive, codename: str) -> Archive | None:
    suites = tuple(
        suite
        for suite in archive.suites
        if re.split(r"[-/]", suite)[0] == codename and not suite.endswith(_SKIPPED_POCKETS)
    )
    if not suites or "main" not in archive.components:
        return None
    return Archive(archive.uris, suites, archive.components, archive.options)


def _with_component(archive: Archive, component: str) -> Archive:
    if component in archive.components:
        return archive
    return Archive(archive.uris, archive.suites, (*archive.components, component), archive.options)
