"""A Hugging Face Hub in memory with the part of its API that `huggingface_hub` uses for models.

Every commit is a mapping from paths to contents. Large files are uploaded to an LFS store before the commit that refers
to them, as on the Hub (https://huggingface.co/docs/hub/api).
"""

import base64
import hashlib
import http.server
import json
import pathlib
import re
import threading
import urllib.parse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tests.support.bucket import QuietHandler

TOKEN = "hf_owner"
# Suffixes of files that are stored in LFS.
_LARGE = (".safetensors", ".hdf5", ".bin")


@dataclass
class Repository:
    """A repository.

    Attributes:
      commits: files of each commit, by its hash.
      refs: hash of a commit by branch or tag.
    """

    private: bool = False
    gated: bool = False
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)

    def commit(self, files: Mapping[str, bytes], branch: str = "main") -> str:
        """Adds a commit with these files and returns its hash."""
        digest = hashlib.sha1(str(len(self.commits)).encode())
        for path, content in sorted(files.items()):
            digest.update(path.encode() + content)
        self.commits[digest.hexdigest()] = dict(files)
        self.refs[branch] = digest.hexdigest()
        return digest.hexdigest()

    @property
    def files(self) -> dict[str, bytes]:
        """Files of the main branch."""
        return self.commits[self.refs["main"]]


class Refused(Exception):
    """A response that consists of a status and the Hub's code of the error."""


class Hub:
    """The Hub, a context manager that serves it. `environment` directs other processes to it.

    Attributes:
      repositories: repositories by name.
      requests: method and path of every request.
      before: called with the method and the path before a request is answered.
    """

    def __init__(self, home: pathlib.Path):
        self.repositories: dict[str, Repository] = {}
        self.large: dict[str, bytes] = {}
        self.requests: list[str] = []
        self.before: Callable[[str, str], None] = lambda method, path: None
        self._home = home
        self._server = http.server.ThreadingHTTPServer(("localhost", 0), type("_", (_Handler,), {"hub": self}))
        self._server.daemon_threads = True

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://localhost:{self._server.server_port}"

    @property
    def environment(self) -> dict[str, str]:
        return {
            "HF_ENDPOINT": self.url,
            "HF_HOME": str(self._home),
            "HF_TOKEN": "",
            "HF_HUB_OFFLINE": "0",
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
        }

    def add(self, name: str, folder: pathlib.Path, **fields: bool) -> str:
        """Adds a commit with the files of a folder to a new or an existing repository, and returns its hash."""
        files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        return self.repositories.setdefault(name, Repository(**fields)).commit(files)


class _Handler(QuietHandler):
    hub: Hub

    def answer(self, status: int, body: bytes = b"", **headers: object) -> None:
        self.send_response(status)
        headers = {"Content_Length": len(body)} | headers
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        self.wfile.flush()

    def json(self, tree: object, status: int = 200) -> None:
        self.answer(status, json.dumps(tree).encode(), Content_Type="application/json")

    def handle_any(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path = urllib.parse.urlsplit(self.path).path
        self.hub.requests.append(f"{self.command} {path}")
        try:
            self.hub.before(self.command, path)
            self.route(path, body)
        except Refused as refused:
            status, code, *message = refused.args
            self.answer(status, X_Error_Code=code, X_Error_Message=message[0] if message else code)

    do_GET = do_HEAD = do_POST = do_PUT = handle_any

    def route(self, path: str, body: bytes) -> None:
        if path == "/api/validate-yaml":
            return self.json({"errors": [], "warnings": []})
        if path == "/api/repos/create":
            return self.create(json.loads(body))
        if match := re.fullmatch(r"/lfs/(\w+)", path):
            assert hashlib.sha256(body).hexdigest() == match[1]
            self.hub.large[match[1]] = body
            return self.answer(200)
        if match := re.fullmatch(r"/(.+)\.git/info/lfs/objects/batch", path):
            self.find(match[1], writes=True)
            return self.batch(json.loads(body))
        if match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            return self.content(self.find(match[1], reads=True), *map(urllib.parse.unquote, match.group(2, 3)))
        match = re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/(revision|tree|preupload|commit)/([^/]+))?", path)
        if not match:
            raise Refused(404, "")
        name, verb, revision = match.groups()
        repository = self.find(name, writes=verb in ("preupload", "commit"))
        sha, files = self.revision(repository, urllib.parse.unquote(revision or "main"))
        if verb == "tree":
            return self.json([self.entry(path, content) for path, content in files.items()])
        if verb == "preupload":
            return self.json({"files": [self.mode(each["path"], files) for each in json.loads(body)["files"]]})
        if verb == "commit":
            return self.commit(name, repository, dict(files), body)
        siblings = [{"rfilename": path} for path in files]
        return self.json({"id": name, "sha": sha, "private": repository.private, "siblings": siblings})

    @property
    def is_owner(self) -> bool:
        return self.headers.get("Authorization") == f"Bearer {TOKEN}"

    def find(self, name: str, reads: bool = False, writes: bool = False) -> Repository:
        repository = self.hub.repositories.get(name)
        if repository is None or (repository.private and not self.is_owner):
            raise Refused(404 if self.is_owner else 401, "RepoNotFound")
        if repository.gated and reads and not self.is_owner:
            raise Refused(401, "GatedRepo")
        if writes and not self.is_owner:
            raise Refused(403, "", "Forbidden")
        return repository

    def revision(self, repository: Repository, revision: str) -> tuple[str, dict[str, bytes]]:
        sha = repository.refs.get(revision, revision)
        if sha not in repository.commits:
            raise Refused(404, "RevisionNotFound")
        return sha, repository.commits[sha]

    def entry(self, path: str, content: bytes) -> dict:
        lfs = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 134}
        entry = {"type": "file", "path": path, "size": len(content), "oid": _blob(content)}
        return entry | ({"lfs": lfs} if path.endswith(_LARGE) else {})

    def mode(self, path: str, files: Mapping[str, bytes]) -> dict:
        is_large = path.endswith(_LARGE)
        oid = None
        if path in files:
            oid = hashlib.sha256(files[path]).hexdigest() if is_large else _blob(files[path])
        return {"path": path, "uploadMode": "lfs" if is_large else "regular", "shouldIgnore": False, "oid": oid}

    def content(self, repository: Repository, revision: str, path: str) -> None:
        sha, files = self.revision(repository, revision)
        if path not in files:
            raise Refused(404, "EntryNotFound")
        etag = self.entry(path, files[path])
        etag = etag.get("lfs", etag)["oid"]
        self.answer(200, files[path], X_Repo_Commit=sha, ETag=f'"{etag}"')

    def create(self, about: dict) -> None:
        if not self.is_owner:
            raise Refused(401, "", "Invalid username or password.")
        name = f"{about['organization']}/{about['name']}"
        if name in self.hub.repositories:
            return self.json({"url": f"{self.hub.url}/{name}"}, status=409)
        self.hub.repositories[name] = Repository(private=about.get("visibility") == "private")
        self.hub.repositories[name].commit({".gitattributes": b"*.safetensors filter=lfs\n"})
        return self.json({"url": f"{self.hub.url}/{name}"})

    def batch(self, about: dict) -> None:
        objects = []
        for each in about["objects"]:
            action = {"upload": {"href": f"{self.hub.url}/lfs/{each['oid']}"}}
            objects.append(each | ({} if each["oid"] in self.hub.large else {"actions": action}))
        self.json({"transfer": "basic", "objects": objects})

    def commit(self, name: str, repository: Repository, files: dict[str, bytes], body: bytes) -> None:
        for operation in map(json.loads, body.splitlines()):
            value = operation["value"]
            match operation["key"]:
                case "file":
                    files[value["path"]] = base64.b64decode(value["content"])
                case "lfsFile":
                    files[value["path"]] = self.hub.large[value["oid"]]
                case "deletedFile":
                    del files[value["path"]]
        sha = repository.commit(files)
        self.json({"commitUrl": f"{self.hub.url}/{name}/commit/{sha}", "commitOid": sha})


def _blob(content: bytes) -> str:
    """Returns the hash of a file in Git."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
