"""Repositories of the Hugging Face Hub: downloads from `hf:ORG/NAME[@REVISION]`, and uploads of model directories.

`huggingface_hub` keeps downloads in its cache and reads HF_HOME, HF_TOKEN, HF_ENDPOINT and HF_HUB_OFFLINE.
"""

import contextlib
import fnmatch
import os
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from plm_jax.common import extras, sealing, storage
from plm_jax.common.errors import UserError, one_line
from plm_jax.hub import elmo, families, files, hub_files, tokenizer_json, vocabulary_files

_NAME = r"[\w.-]+/[\w.-]+"
_COMMIT = re.compile(r"[0-9a-f]{40}")
_LOG_IN = "set HF_TOKEN, or run `hf auth login`"


class Repository(NamedTuple):
    """A repository and a revision.

    Attributes:
      name: name of the repository, ORG/NAME.
      revision: branch, tag or commit; None for the main branch.
    """

    name: str
    revision: str | None

    @property
    def is_pinned(self) -> bool:
        """Whether the revision is a full commit hash."""
        return self.revision is not None and _COMMIT.fullmatch(self.revision) is not None


def parse(source: str) -> Repository:
    """Splits `hf:ORG/NAME[@REVISION]` into the name and the revision.

    Raises:
      UserError: the source does not have this form.
    """
    match = re.fullmatch(rf"{storage.REPOSITORY}({_NAME})(?:@(.+))?", source)
    if match is None:
        raise UserError(f"'{source}' does not name a repository: expected hf:ORG/NAME or hf:ORG/NAME@REVISION")
    return Repository(match[1], match[2])


def download(source: str) -> str:
    """Downloads the model of a repository. Files that are in the cache already are not downloaded again.

    Returns:
      The folder of the model in the cache. The name of this folder is the commit hash.

    Raises:
      UserError: `huggingface_hub` is not installed, the Hub cannot be reached or does not provide the repository or the
        revision, or the repository has no weights that plm_jax can read.
    """
    repository = parse(source)
    with _reporting_errors(repository) as hub:
        folder = hub.snapshot_download(
            repository.name, revision=repository.revision, allow_patterns=sorted(_model_files())
        )
        if not any(name.endswith((files.WEIGHTS, files.INDEX, elmo.WEIGHTS)) for name in storage.names(folder)):
            names = hub.HfApi().list_repo_files(repository.name, revision=os.path.basename(folder))
            raise _missing_weights(source, repository, names)
    return folder


def pin(source: str) -> str:
    """Resolves the revision of a source to a commit hash. Returns `hf:ORG/NAME@COMMIT`.

    Downloads the model, unless the source contains a commit hash already.

    Raises:
      UserError: the source is invalid, or `download` fails.
    """
    repository = parse(source)
    if repository.is_pinned:
        return source
    return f"{storage.REPOSITORY}{repository.name}@{os.path.basename(download(source))}"


def upload(folder: str, name: str, private: bool) -> str:
    """Uploads a model directory to the main branch in one commit. Creates the repository if it does not exist.

    Model files of the repository that are not in the folder are deleted, because they belong to a previous model.

    Args:
      folder: local directory.
      name: ORG/NAME.
      private: whether the repository must be private. If False, the Hub decides whether a new repository is private.

    Returns:
      The URL of the commit.

    Raises:
      UserError: the name is not ORG/NAME, `huggingface_hub` is not installed, the Hub rejects the upload, or the
        repository is public although `private` is true.
    """
    repository = parse(f"{storage.REPOSITORY}{name}")
    with _reporting_errors(repository, uploads=True) as hub:
        api = hub.HfApi()
        api.create_repo(name, private=private or None, exist_ok=True)
        if private and not api.repo_info(name).private:
            raise UserError(
                f"{name} already exists on the Hub and is public: make it private there, or leave out --private"
            )
        paths = [path for path in storage.files_below(folder) if path != storage.UNFINISHED]
        outdated = [path for path in api.list_repo_files(name) if _is_model_file(path) and path not in paths]
        # Not `upload_folder`, which splits a large folder into several commits.
        commit = api.create_commit(
            name,
            [hub.CommitOperationDelete(path) for path in outdated]
            + [hub.CommitOperationAdd(path, os.path.join(folder, path)) for path in paths],
            commit_message="Upload a model of plm_jax",
        )
    return commit.commit_url


def _model_files() -> set[str]:
    """Returns glob patterns of the file names that plm_jax reads from model directories of any format."""
    registered = families.registered().values()
    schemes = (tokenizer_json.FILES, *map(vocabulary_files.files_of, registered))
    return {
        *(name for names_by_scheme in schemes for names in names_by_scheme.values() for name in names),
        *(families.CONFIG, hub_files.GENERATION, *hub_files.TOKENIZER),
        *(files.WEIGHTS, files.INDEX, "model-*-of-*.safetensors"),
        *(sealing.MANIFEST, f"{vocabulary_files.FOLDER}/*", f"{hub_files.FOLDER}/*"),
        *(f"*{elmo.OPTIONS}", f"*{elmo.WEIGHTS}", "*vocab*.txt"),
    }


def _is_model_file(path: str) -> bool:
    """Whether a path matches a pattern in `_model_files`. A `*` in a pattern does not match `/`."""
    depth = path.count("/")
    return any(fnmatch.fnmatch(path, pattern) and depth == pattern.count("/") for pattern in _model_files())


def _missing_weights(source: str, repository: Repository, names: list[str]) -> UserError:
    """Returns the error for a repository without weights that plm_jax can read."""
    if any(name in files.PICKLES for name in names):
        return UserError(
            f"{source} has pickles ({files.PICKLES[0]}), which are not read because they could run any code, and no "
            f"safetensors: pass a revision that has them (https://huggingface.co/{repository.name}/discussions often "
            f"offers one, as {storage.REPOSITORY}{repository.name}@refs/pr/1), or run `hf download {repository.name} "
            f"--local-dir=DIR`, and {files.UNPICKLE}"
        )
    return UserError(
        f"{source} has no model that plm_jax reads: pass a repository with {families.CONFIG} and {files.WEIGHTS}"
    )


@contextlib.contextmanager
def _reporting_errors(repository: Repository, uploads: bool = False) -> Iterator[Any]:
    """Context manager that yields the module `huggingface_hub` and converts errors of the Hub to a `UserError`.

    Args:
      uploads: whether the caller uploads to the repository.
    """
    with extras.report_missing():
        import huggingface_hub
        from huggingface_hub import errors
    name, source = repository.name, f"{storage.REPOSITORY}{repository.name}"
    try:
        yield huggingface_hub
    except UserError:
        raise
    except errors.GatedRepoError as error:
        raise UserError(
            f"{source} is gated: accept its conditions at https://huggingface.co/{name} and {_LOG_IN}"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise UserError(
            f"{source} has no revision '{repository.revision}': pass a branch, a tag or the hash of a commit"
        ) from error
    except errors.HfHubHTTPError as error:
        raise _refusal(repository, error, uploads) from error
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled) as error:
        if isinstance(error.__cause__, errors.HfHubHTTPError):
            raise _refusal(repository, error.__cause__, uploads) from error
        if not huggingface_hub.is_offline_mode():
            raise _unreachable(error.__cause__ or error) from error
        offline = "cannot be uploaded to" if uploads else "is not completely in the cache"
        raise UserError(f"{source} {offline} while HF_HUB_OFFLINE is set: unset it") from error
    except errors.HFValidationError as error:
        raise UserError(f"'{name}' is not a valid name ({one_line(error)}): expected ORG/NAME") from error
    except Exception as error:  # The libraries for HTTP and for transfers have their own errors.
        if isinstance(error, ValueError) and "README.md" in str(error):
            raise UserError(f"the Hub does not accept the model card ({one_line(error)}): check --license") from error
        if isinstance(error, OSError) and error.errno is not None and not isinstance(error, ConnectionError):
            raise  # An error of this machine, such as a full disk.
        raise _unreachable(error) from error


def _refusal(repository: Repository, error: Any, uploads: bool) -> UserError:
    """Returns the `UserError` for a response of the Hub whose HTTP status is an error."""
    status, name = error.response.status_code, repository.name
    if status in (401, 403, 404) and uploads:
        return UserError(f"the Hub does not let you write to {name}: {_LOG_IN}, with a token that may write there")
    if status == 401 and "credentials" in str(error):
        return UserError(f"the Hub does not accept your token: {_LOG_IN}")
    if status in (401, 403, 404):
        return UserError(
            f"the Hub has no repository {name} that you may read: check the name; if it is private, {_LOG_IN}"
        )
    reason = one_line(error.server_message or error.response.reason_phrase)
    return UserError(f"the Hub failed to answer for {name} (HTTP {status}: {reason}): try again later")


def _unreachable(error: BaseException) -> UserError:
    return UserError(
        f"cannot reach the Hugging Face Hub ({type(error).__name__}: {one_line(error)}): check the network and "
        "HF_ENDPOINT"
    )
