"""The Hugging Face hub as a source: which data sets, at which commits, and a fetch that never stalls.

Files are fetched singly into the hub's own cache, so that their SHA-256 can be recorded and a cached copy serves
offline. The hub library retries an unreachable host for half a minute a file; hence one short probe first, and
cached files only if it fails. Commits are pinned; NuminaMath-1.5 and GPQA follow ``main``, no pin being known to us.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from resetcli.base.errors import ResetError
from resetcli.data.livecodebench import SHARDS

PROBE_SECONDS = 5.0


@dataclass(frozen=True)
class HubFiles:
    """Files of one data set on the hub, at one revision."""

    repo: str
    revision: str
    files: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.repo}@{self.revision[:12]}"


HUB: dict[str, HubFiles] = {
    "aime22-24": HubFiles(
        "AI-MO/aimo-validation-aime",
        "13f9e12f613e720c2a2b2f345dd04b998a29494d",
        ("data/train-00000-of-00001.parquet",),
    ),
    "aime25": HubFiles("math-ai/aime25", "563bb8404243c5f09de6ec262f2db674fe5bce9b", ("test.jsonl",)),
    "gpqa": HubFiles("Idavidrein/gpqa", "main", ("gpqa_diamond.csv",)),
    "math500": HubFiles("HuggingFaceH4/MATH-500", "6e4ed1a2a79af7d8630a6b768ec859cb5af4d3be", ("test.jsonl",)),
    "gsm8k": HubFiles(
        "openai/gsm8k", "740312add88f781978c0658806c59bc2815b9866", ("main/test-00000-of-00001.parquet",)
    ),
    "wikitext": HubFiles(
        "Salesforce/wikitext",
        "b08601e04326c79dfdd32d625aee71d232d685c3",
        ("wikitext-2-raw-v1/test-00000-of-00001.parquet",),
    ),
    "numinamath": HubFiles(
        "AI-MO/NuminaMath-1.5", "main", tuple(f"data/train-{part:05d}-of-00003.parquet" for part in range(3))
    ),
    **{
        f"livecodebench-{shard}": HubFiles(
            "livecodebench/code_generation_lite", "0fe84c3912ea0c4d4a78037083943e8f0c4dd505", (name,)
        )
        for shard, name in SHARDS.items()
    },
}
"""Hub id, commit and files per data set. Listed in docs/data.md too."""


def unreachable() -> str | None:
    """Why the hub cannot be asked ("offline ..."), or None if it answers. Takes about ``PROBE_SECONDS`` at most."""
    import huggingface_hub
    from huggingface_hub import constants
    from huggingface_hub.errors import OfflineModeIsEnabled

    if huggingface_hub.is_offline_mode():
        return "offline (HF_HUB_OFFLINE is set)"
    endpoint = constants.ENDPOINT
    try:
        huggingface_hub.get_session().head(endpoint, timeout=PROBE_SECONDS)
    except OfflineModeIsEnabled:
        return "offline (HF_HUB_OFFLINE is set)"
    except Exception as exc:  # requests' or httpx' own, by the version of huggingface_hub; neither is our dependency
        # Whatever a bare HEAD request raises, the hub cannot be asked, and the reason is handed on in the error line.
        return f"offline ({endpoint} cannot be reached: {exc or type(exc).__name__})"
    return None


def fetch(dataset: str, why_offline: str | None) -> list[Path]:
    """Local paths of the files of ``HUB[dataset]``, downloaded unless cached; the cache only if ``why_offline``.

    Raises:
        ResetError: one line with the data set, the reason (offline, gated, no token, not found) and --data-dir.
    """
    import huggingface_hub
    from huggingface_hub import errors
    from huggingface_hub.utils import disable_progress_bars

    entry = HUB[dataset]
    paths: list[Path] = []
    reason: str
    cause: Exception | None
    # The hub's own bars write carriage returns into whatever stderr is; progress is the reporter's business.
    disable_progress_bars()
    try:
        for name in entry.files:
            paths.append(
                Path(
                    huggingface_hub.hf_hub_download(
                        entry.repo,
                        name,
                        repo_type="dataset",
                        revision=entry.revision,
                        etag_timeout=PROBE_SECONDS,
                        local_files_only=why_offline is not None,
                    )
                )
            )
        return paths
    except errors.GatedRepoError:
        if huggingface_hub.get_token() is None:
            reason = "it is gated and there is no token (accept its terms on its hub page, then set HF_TOKEN)"
        else:
            reason = "it is gated and this token has no access (accept its terms on its hub page)"
        cause = None
    except errors.LocalEntryNotFoundError as exc:
        reason = f"{why_offline or 'the connection failed'}, not in the local cache"
        cause = exc
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError, errors.EntryNotFoundError) as exc:
        token = "" if huggingface_hub.get_token() else ", or it needs a token and there is none"
        reason = f"the hub has no {entry.repo} at {entry.revision} with {entry.files[len(paths)]}{token}"
        cause = exc
    except (errors.HfHubHTTPError, OSError) as exc:
        reason = f"the hub answered with an error: {str(exc)[:200]}"
        cause = exc
    except Exception as exc:  # of the HTTP library in use (see ``unreachable``), in mid-download; raised anew below
        reason = f"the download failed: {type(exc).__name__} {str(exc)[:200]}"
        cause = exc
    raise ResetError(f"data set {entry.repo} is not available: {reason}; or give local files by --data-dir") from cause
