"""Checks that archived hours are where the settings say, so that no flag is written without its files."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from strandline.archive.files import Files
from strandline.archive.layout import Layout
from strandline.archive.ledger import Ledger
from strandline.archive.model import DAY_MS, ArchivedFile, Location, Term
from strandline.archive.options import ArchiveOptions
from strandline.errors import Conflict


def configured(options: ArchiveOptions, files: Files) -> Location:
    """Where the settings say that the hours of the event type are; a relative path is another place elsewhere."""
    return Location(files.url.rstrip("/") if options.settings.root else "", options.layout.template)


def check(options: ArchiveOptions, ledger: Ledger, files: Files) -> None:
    """Record the place of an event type at its first start; Conflict if it has changed since it has hours."""
    asked, known = configured(options, files), ledger.location(options.event_type)
    if known == asked:
        return
    if known is None or _is_empty(options.event_type, ledger):
        _check_older(options, ledger, files)
        ledger.set_location(options.event_type, asked)
    elif known.template != asked.template:
        raise _template_changed(options, known.template)
    else:
        raise Conflict(
            f"archive.root is {_named(asked.root)}, but the archived hours of {options.event_type!r} are in "
            f"{_named(known.root)}. Set it back; or stop all archive processes, copy everything to the new place, "
            "and run `strandline archive moved`"
        )


def _is_empty(event_type: str, ledger: Ledger) -> bool:
    """Whether the event type has neither flags nor files."""
    hours = ledger.hours
    return not (hours.newest_path(event_type) or hours.with_data(event_type) or ledger.publishing(event_type))


def _named(root: str) -> str:
    return repr(root) if root else "the data directory"


def _template_changed(options: ArchiveOptions, before: str) -> Conflict:
    name = options.event_type
    old = before.replace(f"/{name}", "/{event_type}") if before.count(name) == 1 else before
    return Conflict(
        f"archive.template is {options.layout.template!r} for {name!r}, but its archived hours are in {before!r}. "
        f"Set it back, or keep the old one for this event type: archive.template = '…,{name}={old}'"
    )


def _check_older(options: ArchiveOptions, ledger: Ledger, files: Files) -> None:
    """A ledger of an earlier release knows only the paths: the newest flagged hour must be at its path."""
    newest = ledger.hours.newest_path(options.event_type)
    if newest is None:
        return
    hour_ms, path = newest
    if path != options.layout.directory(hour_ms):
        raise _template_changed(options, path)
    if not present(files, options.layout, hour_ms, ledger.files(options.event_type, hour_ms)):
        raise Conflict(
            f"archive.root is {_named(options.settings.root)}, but the files of {path} are not there. Set "
            "archive.root to the place of the archived hours, or copy them to the new place first"
        )


def present(files: Files, layout: Layout, hour_ms: int, listed: Sequence[ArchivedFile]) -> bool:
    """Whether all files of an hour are in its directory."""
    return not listed or not _missing(files, layout.data(hour_ms), listed)


def _missing(files: Files, folder: str, listed: Sequence[ArchivedFile]) -> list[str]:
    """The paths of listed files that are not in the directory."""
    names = {entry.name for entry in files.entries(folder)}
    return [file.path for file in listed if file.path.rsplit("/", 1)[-1] not in names]


def moved(options: ArchiveOptions, terms: Sequence[Term], ledger: Ledger, files: Files) -> int:
    """Record that the archived hours are in the root of the settings now; returns how many were found there.

    Conflict, with nothing recorded, if files of an hour are missing there or the template has changed.
    """
    name, layout, count = options.event_type, options.layout, 0
    known = ledger.location(name)
    if known is not None and known.template != layout.template:
        raise _template_changed(options, known.template)
    now_ms = ledger.now_ms()
    for start_ms in range(min((term.from_ms for term in terms), default=now_ms), now_ms, DAY_MS):
        for hour in ledger.hours.between(start_ms, start_ms + DAY_MS, name):
            if not present(files, layout, hour.hour_ms, ledger.files(name, hour.hour_ms)):
                raise Conflict(
                    f"files of {layout.directory(hour.hour_ms)} are missing in {files.url}; copy them first"
                )
            count += hour.revision > 0
    _check_quarantine(name, ledger, files)
    ledger.set_location(name, configured(options, files))
    return count


def _check_quarantine(event_type: str, ledger: Ledger, files: Files) -> None:
    quarantined = ledger.files(event_type, -1)
    for folder, listed in groupby(quarantined, key=lambda file: file.path.rpartition("/")[0]):
        if _missing(files, folder, [*listed]):
            raise Conflict(f"files of {folder} are missing in {files.url}; copy them first")
