"""A bucket in memory with the part of Google Cloud Storage's JSON API that gcsfs, tensorstore and Google's client use.

Objects have generations, and requests may have conditions on them (https://cloud.google.com/storage/docs/json_api), as
tensorstore's commits require. Writes are atomic. The only bucket is `gs://bucket`.
"""

import hashlib
import http.server
import itertools
import json
import re
import threading
import urllib.parse
from base64 import b64encode
from collections.abc import Callable
from typing import NamedTuple

NAME = "bucket"


class Object(NamedTuple):
    data: bytes
    generation: int

    def describe(self, name: str) -> dict:
        return {
            "kind": "storage#object",
            "bucket": NAME,
            "name": name,
            "id": f"{NAME}/{name}/{self.generation}",
            "generation": str(self.generation),
            "metageneration": "1",
            "size": str(len(self.data)),
            "md5Hash": b64encode(hashlib.md5(self.data).digest()).decode(),
            "timeCreated": "2026-01-01T00:00:00.000Z",
            "updated": "2026-01-01T00:00:00.000Z",
        }


class Refused(Exception):
    """A response that consists of a status."""


class Bucket:
    """The bucket, a context manager that serves it. `environment` directs other processes to it.

    Attributes:
      before_write: called with an object's name before it is written.
    """

    def __init__(self):
        self.objects: dict[str, Object] = {}
        self.before_write: Callable[[str], None] = lambda name: None
        self.uploads: dict[str, tuple[str, dict, bytearray]] = {}
        self.lock = threading.RLock()
        self._generations = itertools.count(1)
        self._server = http.server.ThreadingHTTPServer(("localhost", 0), type("_", (_Handler,), {"bucket": self}))
        self._server.daemon_threads = True

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()

    @property
    def environment(self) -> dict[str, str]:
        url = f"http://localhost:{self._server.server_port}"
        # gcsfs would request the kind of the bucket by gRPC, which this server lacks.
        return {
            "STORAGE_EMULATOR_HOST": url,
            "TENSORSTORE_GCS_HTTP_URL": url,
            "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
            "NO_GCE_CHECK": "true",
        }

    def names(self, prefix: str = "") -> list[str]:
        with self.lock:
            return sorted(name for name in self.objects if name.startswith(prefix))

    def read(self, name: str) -> bytes:
        return self.objects[name].data

    def put(self, name: str, data: bytes, query: dict | None = None) -> dict:
        self.before_write(name)
        with self.lock:
            self.check(name, query or {})
            self.objects[name] = Object(data, next(self._generations))
            return self.objects[name].describe(name)

    def check(self, name: str, query: dict) -> None:
        generation = self.objects[name].generation if name in self.objects else 0
        if int(query.get("ifGenerationMatch", generation)) != generation:
            raise Refused(412)

    def find(self, name: str) -> Object:
        if name not in self.objects:
            raise Refused(404)
        return self.objects[name]

    def list(self, query: dict) -> dict:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter")
        low, high = query.get("startOffset", ""), query.get("endOffset")
        items, prefixes = [], {}
        for name in self.names(prefix):
            if name < low or (high and name >= high):
                continue
            head, separator, _ = name[len(prefix) :].partition(delimiter) if delimiter else ("", "", "")
            if separator:
                prefixes[prefix + head + delimiter] = None
            else:
                items.append(self.objects[name].describe(name))
        return {"kind": "storage#objects", "items": items, "prefixes": list(prefixes)}


class QuietHandler(http.server.BaseHTTPRequestHandler):
    """Handles the requests of clients that may be killed, and logs nothing."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1  # Sends a response in one piece.

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except ConnectionError:  # The client ended or was killed.
            self.close_connection = True

    def log_message(self, *_):
        pass


class _Handler(QuietHandler):
    bucket: Bucket

    def answer(self, status: int, body: bytes = b"", **headers: object) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()

    def json(self, tree: dict) -> None:
        self.answer(200, json.dumps(tree).encode(), Content_Type="application/json")

    def handle_any(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        try:
            self.route(self.command, self.path, body)
        except Refused as refused:
            status = refused.args[0]
            error = {"error": {"code": status, "message": {404: "Not Found"}.get(status, "conditionNotMet")}}
            self.answer(status, b"" if status == 304 else json.dumps(error).encode(), Content_Type="application/json")

    do_GET = do_POST = do_PUT = do_DELETE = handle_any

    def route(self, method: str, target: str, body: bytes) -> None:
        url = urllib.parse.urlsplit(target)
        query = {key: values[0] for key, values in urllib.parse.parse_qs(url.query).items()}
        if url.path == "/batch/storage/v1":
            return self.batch(body)
        match = re.fullmatch(r"(?:/(upload|download))?/storage/v1/b/([^/]+)(/o)?(?:/([^/]+))?(/.*)?", url.path)
        if not match or match[2] != NAME:
            raise Refused(404)
        name = urllib.parse.unquote(match[4] or "")
        if match[1] == "upload":
            self.upload(query, body)
        elif match[5]:
            self.derive(match[5], name, query, json.loads(body or b"{}"))
        elif not name:
            self.json(self.bucket.list(query) if match[3] else {"kind": "storage#bucket", "name": NAME, "id": NAME})
        elif method == "DELETE":
            self.delete(name, query)
            self.answer(204)
        elif query.get("alt") == "media" or match[1] == "download":
            self.media(name, query)
        else:
            self.json(self.bucket.find(name).describe(name))

    def media(self, name: str, query: dict) -> None:
        stored = self.bucket.find(name)
        if int(query.get("ifGenerationNotMatch", -1)) == stored.generation:
            raise Refused(304)
        self.bucket.check(name, query)
        size = len(stored.data)
        headers = {"x-goog-generation": stored.generation, "Content-Type": "application/octet-stream"}
        byte_range = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        if not byte_range:
            return self.answer(200, stored.data, **headers)
        if byte_range[1]:
            first, last = int(byte_range[1]), min(int(byte_range[2] or size), size - 1)
        else:
            first, last = max(0, size - int(byte_range[2])), size - 1
        if first > last:
            raise Refused(416)
        headers["Content-Range"] = f"bytes {first}-{last}/{size}"
        return self.answer(206, stored.data[first : last + 1], **headers)

    def upload(self, query: dict, body: bytes) -> None:
        if query["uploadType"] == "media":
            return self.json(self.bucket.put(query["name"], body, query))
        if query["uploadType"] == "multipart":
            (_, about), (_, data) = self.parts(body)
            return self.json(self.bucket.put(json.loads(about)["name"], data, query))
        if "upload_id" not in query:
            upload_id = f"u{len(self.bucket.uploads)}"
            name = query.get("name") or json.loads(body)["name"]
            self.bucket.uploads[upload_id] = name, query, bytearray()
            base = f"http://{self.headers['Host']}/upload/storage/v1/b/{NAME}/o"
            return self.answer(200, Location=f"{base}?uploadType=resumable&upload_id={upload_id}")
        name, conditions, data = self.bucket.uploads[query["upload_id"]]
        data += body
        if self.headers.get("Content-Range", "").endswith("/*"):
            return self.answer(308, Range=f"bytes=0-{len(data) - 1}")
        return self.json(self.bucket.put(name, bytes(data), conditions))

    def derive(self, verb: str, name: str, query: dict, about: dict) -> None:
        if verb == "/compose":
            data = b"".join(self.bucket.find(source["name"]).data for source in about["sourceObjects"])
            return self.json(self.bucket.put(name, data, query))
        target = urllib.parse.unquote(verb.rpartition("/")[2])
        resource = self.bucket.put(target, self.bucket.find(name).data, query)
        return self.json(resource if verb.startswith("/copyTo") else {"done": True, "resource": resource})

    def delete(self, name: str, query: dict) -> None:
        with self.bucket.lock:
            self.bucket.find(name)
            self.bucket.check(name, query)
            del self.bucket.objects[name]

    def parts(self, body: bytes) -> list[tuple[bytes, bytes]]:
        """Returns the heads and contents of a multipart body."""
        boundary = re.search(r'boundary="?([^";]+)', self.headers["Content-Type"])[1].encode()
        parts = []
        for part in body.split(b"--" + boundary)[1:-1]:
            end = b"\r\n" if part.startswith(b"\r\n") else b"\n"
            head, _, content = part.removeprefix(end).partition(end + end)
            parts.append((head, content.removesuffix(end)))
        return parts

    def batch(self, body: bytes) -> None:
        answers = ""
        for head, content in self.parts(body):
            path = urllib.parse.urlsplit(content.decode().split()[1]).path
            try:
                self.delete(urllib.parse.unquote(path.rpartition("/")[2]), {})
                status = "204 No Content"
            except Refused:
                status = "404 Not Found"
            number = re.search(r"Content-ID: <(.*)>", head.decode())[1]
            answers += (
                f"--batch\r\nContent-Type: application/http\r\nContent-ID: <response-{number}>\r\n\r\n"
                f"HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n\r\n"
            )
        self.answer(200, f"{answers}--batch--\r\n".encode(), Content_Type="multipart/mixed; boundary=batch")
