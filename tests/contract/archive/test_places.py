"""A changed `archive.root` or `archive.template` never puts a flag where its files are not."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from archive_place import GRACE, NOON, ArchivePlace
from files_reader import check_files

from strandline.archive import places
from strandline.archive.files.local import LocalFiles
from strandline.archive.model import HOUR_MS
from strandline.archive.options import ArchiveOptions
from strandline.errors import Conflict

ONE = NOON + HOUR_MS


@pytest.fixture
def archived(place: ArchivePlace) -> dict[str, int]:
    """The events of a flagged hour."""
    archiver = place.working()
    ids = place.publish(NOON, NOON + 1)
    place.live_through(archiver, ONE + GRACE)
    archiver.stop(place.terms)
    return dict.fromkeys(ids, 1)


def elsewhere(place: ArchivePlace, root: Path) -> None:
    place.settings = replace(place.settings, root=str(root))
    place.root, place.files = root, LocalFiles(str(root))


def test_a_changed_root_is_refused(place, archived, tmp_path):
    """Nothing is written into the new root; the error says what to do."""
    elsewhere(place, tmp_path / "new")
    with pytest.raises(Conflict, match="run `strandline archive moved`"):
        place.archiver()
    assert [*tmp_path.glob("new/**/*")] == []


def test_a_moved_archive_goes_on(place, archived, tmp_path):
    """After the files were copied and the move was recorded, hours are flagged in the new root."""
    before = place.root
    elsewhere(place, tmp_path / "new")
    options = ArchiveOptions.of(place.settings, "orders")
    with pytest.raises(Conflict, match="2024-05-01/12/orders are missing"):
        places.moved(options, place.terms, place.ledger, place.files)
    shutil.rmtree(tmp_path / "new", ignore_errors=True)
    shutil.copytree(before, tmp_path / "new")
    assert places.moved(options, place.terms, place.ledger, place.files) == 3
    archiver = place.archiver()
    later = place.publish(ONE + 1, partition=1)
    place.live_through(archiver, ONE + HOUR_MS + GRACE)
    assert check_files(place.root).flagged == {**archived, **dict.fromkeys(later, 1)}


def test_a_changed_template_is_refused(place, archived):
    """No flag is written under the new template; with the old one for this event type the archive goes on."""
    old = place.settings.template
    place.settings = replace(place.settings, template="new/%Y-%m-%d/%H/{event_type}")
    with pytest.raises(Conflict, match=r"archive\.template = '…,orders=%Y-%m-%d/%H/\{event_type\}'"):
        place.archiver()
    assert not (place.root / "new").exists()
    place.settings = replace(place.settings, template=f"new/%Y-%m-%d/%H/{{event_type}},orders={old}")
    later = place.publish(ONE + 1)
    place.live_through(place.archiver(), ONE + HOUR_MS + GRACE)
    assert check_files(place.root).flagged == {**archived, **dict.fromkeys(later, 1)}


@pytest.mark.parametrize(("change", "said"), [("root", "are not there"), ("template", "keep the old one")])
def test_a_ledger_of_an_earlier_release_is_checked_by_its_newest_hour(place, archived, tmp_path, change, said):
    """It recorded no place: its newest flagged hour must be where the settings say."""
    database = place.platform.databases.get("", "archive.db")
    database.transaction(lambda session: session.execute("DELETE FROM archive_places"))
    before = place.settings
    if change == "root":
        elsewhere(place, tmp_path / "new")
    else:
        place.settings = replace(place.settings, template="new/%Y-%m-%d/%H/{event_type}")
    with pytest.raises(Conflict, match=said):
        place.archiver()
    if change == "template":
        place.settings = before
        assert place.archiver().started


def test_a_flag_is_not_repaired_without_its_files(place, archived, caplog):
    """A directory that was deleted stays deleted, and the log names it."""
    shutil.rmtree(place.root / "2024-05-01" / "12")
    place.archiver()
    assert place.flagged() == ["01/10", "01/11"]
    assert "files of 2024-05-01/12/orders are missing" in caplog.text
