"""The files of the archive: the port, and one adapter for each kind of file system."""

from strandline.archive.files.connect import connect
from strandline.archive.files.port import Digest, FileEntry, Files, NewFile, Seen

__all__ = ["Digest", "FileEntry", "Files", "NewFile", "Seen", "connect"]
