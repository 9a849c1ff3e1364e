"""Multipart uploads: one object of an S3 store in parts that several processes upload, which appear all at once."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from typing import Any

from tensordict_memmap.remote import snapshots
from tensordict_memmap.remote.store import Store

_PART = 8 << 20
_MOST_PARTS = 9_000


def part_size(nbytes: int) -> int:
    """Return the bytes of each part of an object but the last one: S3 accepts at most 10,000 parts.

    >>> part_size(1 << 20) >> 20, part_size(1 << 40) >> 20
    (8, 117)
    """
    mebibytes = -(-nbytes // (_MOST_PARTS << 20))
    return max(_PART, mebibytes << 20)


class Multipart:
    """The multipart calls of a store.

    Args:
        store: The store of the objects.

    Raises:
        ValueError: The store has no such calls.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        if not hasattr(store.fs, "call_s3"):
            raise ValueError(
                f"{store.url} is not on S3, to which alone several ranks can upload parts of one object; save to s3:// "
                "or to a folder that all ranks share"
            )

    def _call(self, method: str, path: str, **options: Any) -> Any:
        bucket, key, _ = self.store.fs.split_path(self.store.full_path(path))
        return self.store.fs.call_s3(method, Bucket=bucket, Key=key, **options)

    def create(self, path: str) -> str:
        """Start an upload to a path; return its id."""
        return str(self._call("create_multipart_upload", path)["UploadId"])

    def put_part(self, path: str, upload: str, number: int, data: bytes) -> str:
        """Upload a part and return its tag; without an upload, write the object of this one part."""
        if not upload:
            self.store.write(path, data)
            return ""
        return str(self._call("upload_part", path, UploadId=upload, PartNumber=number, Body=data)["ETag"])

    def complete(self, path: str, upload: str, tags: Mapping[int, str]) -> None:
        """Make the object of its parts, which replaces an earlier one in one step."""
        parts = [{"PartNumber": number, "ETag": tags[number]} for number in sorted(tags)]
        self._call("complete_multipart_upload", path, UploadId=upload, MultipartUpload={"Parts": parts})
        self.store.fs.invalidate_cache()

    def abort(self, path: str, upload: str) -> None:
        """Remove the parts of an upload; ignore errors."""
        with contextlib.suppress(Exception):
            self._call("abort_multipart_upload", path, UploadId=upload)

    def remove_abandoned(self, path: str) -> None:
        """Remove the parts of uploads to a path that killed processes left more than a day ago."""
        with contextlib.suppress(Exception):  # a store may not list uploads
            bucket, key, _ = self.store.fs.split_path(self.store.full_path(path))
            found = self.store.fs.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=key)
            for one in found.get("Uploads", ()):
                started = one["Initiated"].timestamp()
                if one["Key"] == key and time.time() - started > snapshots.LEASE_SECONDS:
                    self.abort(path, one["UploadId"])
