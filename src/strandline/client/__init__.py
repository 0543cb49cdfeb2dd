"""The SDK: the same rooms and verbs as the embedded library, over HTTP."""

from strandline.client.archive import HttpArchive
from strandline.client.log import HttpLog
from strandline.client.remote import Remote, connect
from strandline.client.schedule import HttpMessages, HttpSchedules

__all__ = ["HttpArchive", "HttpLog", "HttpMessages", "HttpSchedules", "Remote", "connect"]
