"""Which archives a template is built from."""

import pytest

from torpor.adapters.templates.sources import (
    Archive,
    Distribution,
    choose_archives,
    parse_deb822,
    parse_one_line,
    parse_os_release,
    render_deb822,
    without_credentials,
)
from torpor.domain.errors import Unsupported

BOOKWORM = Distribution("debian", "bookworm")
NOBLE = Distribution("ubuntu", "noble")

DEBIAN_SOURCES = """\
Types: deb
# a comment inside the stanza
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates bookworm-backports
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://mirror.example/debian-security
Suites: bookworm-security
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
"""

UBUNTU_SOURCES = """\
Types: deb deb-src
URIs: http://mirror.example/ubuntu/
Suites: noble noble-updates
Components: main restricted
Signed-By: /usr/share/keyrings/ubuntu-archive-keyring.gpg

Enabled: no
Types: deb
URIs: http://mirror.example/off/
Suites: noble
Components: main

Types: deb-src
URIs: http://mirror.example/source/
Suites: noble
Components: main
"""

VENDOR_SOURCES = """\
Types: deb
URIs: http://vendor.example/apt
Suites: bookworm
Components: main
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 aGVsbG8=
 -----END PGP PUBLIC KEY BLOCK-----
"""

ONE_LINE = """\
# written by the installer
deb http://mirror.example/debian bookworm main contrib # the archive
deb [arch=amd64 signed-by=/usr/share/keyrings/debian.gpg] http://mirror.example/sec bookworm-security main
deb-src http://mirror.example/debian bookworm main
deb http://vendor.example/docker bookworm stable
"""


def test_a_deb822_file_gives_its_archives_in_order():
    first, second = parse_deb822(DEBIAN_SOURCES)
    assert first.suites == ("bookworm", "bookworm-updates", "bookworm-backports")
    assert first.components == ("main",)
    assert first.signed_by == "/usr/share/keyrings/debian-archive-keyring.gpg"
    assert second.uris == ("http://mirror.example/debian-security",)


def test_disabled_and_source_only_stanzas_are_passed_over():
    assert [archive.uris for archive in parse_deb822(UBUNTU_SOURCES)] == [("http://mirror.example/ubuntu/",)]


def test_a_one_line_file_gives_its_binary_archives_with_their_options():
    archives = parse_one_line(ONE_LINE)
    assert archives[0] == Archive(("http://mirror.example/debian",), ("bookworm",), ("main", "contrib"))
    assert archives[1].options == (
        ("Architectures", "amd64"),
        ("Signed-By", "/usr/share/keyrings/debian.gpg"),
    )
    assert archives[2].components == ("stable",)


def test_only_the_release_itself_is_chosen_without_backports():
    chosen = choose_archives(parse_deb822(DEBIAN_SOURCES), BOOKWORM)
    assert [archive.suites for archive in chosen] == [("bookworm", "bookworm-updates"), ("bookworm-security",)]


def test_a_vendor_archive_beside_the_distributions_is_left_out():
    both = (*parse_deb822(DEBIAN_SOURCES), *parse_deb822(VENDOR_SOURCES), *parse_one_line(ONE_LINE))
    assert all("vendor" not in archive.uris[0] for archive in choose_archives(both, BOOKWORM))


def test_a_mirror_with_a_key_of_its_own_is_taken_when_it_is_the_only_one():
    (chosen,) = choose_archives(parse_deb822(VENDOR_SOURCES), BOOKWORM)
    assert chosen.uris == ("http://vendor.example/apt",)


def test_on_ubuntu_universe_is_added_once():
    (chosen,) = choose_archives(parse_deb822(UBUNTU_SOURCES), NOBLE)
    assert chosen.components == ("main", "restricted", "universe")
    assert choose_archives([chosen], NOBLE) == (chosen,)


def test_another_releases_archives_are_refused_with_the_remedy():
    with pytest.raises(Unsupported, match="apt source for debian trixie"):
        choose_archives(parse_deb822(DEBIAN_SOURCES), Distribution("debian", "trixie"))


def test_what_is_rendered_parses_to_the_same_archives():
    archives = (*parse_deb822(DEBIAN_SOURCES), *parse_deb822(VENDOR_SOURCES))
    assert parse_deb822(render_deb822(archives)) == archives


def test_credentials_of_a_mirror_do_not_enter_a_template():
    text = "URIs: https://user:secret@mirror.example/debian http://plain.example/x@y"
    assert without_credentials(text) == "URIs: https://mirror.example/debian http://plain.example/x@y"


def test_the_hosts_release_is_read_from_os_release():
    assert parse_os_release('ID=debian\nVERSION_CODENAME=bookworm\nPRETTY_NAME="Debian"\n') == BOOKWORM
    assert parse_os_release("ID=ubuntu\nID_LIKE=debian\nVERSION_CODENAME=noble\n") == NOBLE
    mint = "ID=linuxmint\nID_LIKE='ubuntu debian'\nVERSION_CODENAME=wilma\nUBUNTU_CODENAME=noble\n"
    assert parse_os_release(mint) == NOBLE


def test_another_system_is_unsupported_and_named():
    with pytest.raises(Unsupported, match="Fedora Linux 42: Debian or Ubuntu is needed"):
        parse_os_release('ID=fedora\nPRETTY_NAME="Fedora Linux 42"\n')
