"""Object stores over HTTPS, of given objects: Google's (XML interface, with x-goog-hash) and S3's (with ETags).

Headers and XML as their documentation shows them. Ask by path, /bucket/key; a bucket that is not open answers 403.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
from dataclasses import dataclass, field
from xml.sax.saxutils import escape

import google_crc32c

from tests.servers.base import Answer, Request, Server

CHANGED = "2026-08-18T09:30:00.000Z"


@dataclass
class Objects(Server):
    """`objects`: key → bytes of the one open `bucket`; keys in `packed` are kept as gzip, in `parts` uploaded so."""

    bucket: str = "marin-public"
    google: bool = True
    objects: dict[str, bytes] = field(default_factory=dict)
    packed: set[str] = field(default_factory=set)
    parts: dict[str, int] = field(default_factory=dict)
    types: dict[str, str] = field(default_factory=dict)  # key → content type
    more_headers: tuple[tuple[str, str], ...] = ()
    page: int = 1000  # keys an answer
    stuck: bool = False  # the listing's continuation token leads back to the same answer
    unpacks: bool = False  # packed objects are sent unpacked, whatever is asked for

    def answer(self, request: Request) -> Answer:
        bucket, _, key = request.path[1:].partition("/")
        if bucket != self.bucket:
            return _refused(403, "AccessDenied", "Access denied.")
        if "list-type" in request.query:
            return self._listing(request)
        if key not in self.objects:
            return _refused(404, "NoSuchKey", "The specified key does not exist.")
        return self._object(key, request)

    def _object(self, key: str, request: Request) -> Answer:
        data = self.objects[key]
        kept = gzip.compress(data, mtime=0) if key in self.packed else data
        send_packed = key in self.packed and not self.unpacks and "gzip" in request.headers.get("accept-encoding", "")
        headers = [("content-type", self.types.get(key, "application/octet-stream"))]
        if send_packed:
            headers.append(("content-encoding", "gzip"))
        md5 = hashlib.md5(kept).digest()
        if self.google:
            crc32c = base64.b64encode(google_crc32c.value(kept).to_bytes(4, "big")).decode()
            headers += [
                ("x-goog-hash", f"crc32c={crc32c}"),
                *([] if key in self.parts else [("x-goog-hash", f"md5={base64.b64encode(md5).decode()}")]),
                ("x-goog-stored-content-encoding", "gzip" if key in self.packed else "identity"),
                ("x-goog-stored-content-length", str(len(kept))),
            ]
        else:
            headers.append(("x-amz-request-id", "0A49CE4060975EAC"))
        headers += [("etag", f'"{self._etag(key)}"'), *self.more_headers]
        return Answer(200, tuple(headers), kept if send_packed else data)

    def _etag(self, key: str) -> str:
        kept = gzip.compress(self.objects[key], mtime=0) if key in self.packed else self.objects[key]
        if key in self.parts:
            return f"{hashlib.md5(hashlib.md5(kept).digest()).hexdigest()}-{self.parts[key]}"
        return hashlib.md5(kept).hexdigest()

    def _listing(self, request: Request) -> Answer:
        prefix = request.query.get("prefix", "")
        keys = sorted(key for key in self.objects if key.startswith(prefix))
        start = 0 if self.stuck else int(request.query.get("continuation-token", 0))
        shown, cut = keys[start : start + self.page], start + self.page < len(keys)
        lines = "".join(
            f"<Contents><Key>{escape(key)}</Key><LastModified>{CHANGED}</LastModified>"
            f"<ETag>&quot;{self._etag(key)}&quot;</ETag><Size>{len(self.objects[key])}</Size></Contents>"
            for key in shown
        )
        token = f"<NextContinuationToken>{start + self.page}</NextContinuationToken>" if cut else ""
        body = (
            '<?xml version="1.0" encoding="UTF-8"?>\n'
            f'<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>{self.bucket}</Name>'
            f"<Prefix>{escape(prefix)}</Prefix><IsTruncated>{str(cut).lower()}</IsTruncated>{lines}{token}</ListBucketResult>"
        )
        return Answer(200, (("content-type", "application/xml"),), body.encode())


def _refused(status: int, code: str, message: str) -> Answer:
    body = f"<?xml version='1.0' encoding='UTF-8'?><Error><Code>{code}</Code><Message>{message}</Message></Error>"
    return Answer(status, (("content-type", "application/xml; charset=UTF-8"),), body.encode())
