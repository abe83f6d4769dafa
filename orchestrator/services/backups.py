"""Backups as single files: the database, and what people wrote into the data folder. Secrets' files stay out.

A backup is a compressed tar: `manifest.json`, `database/TABLE.jsonl`, `files/NAME`. Nothing of it is
unpacked but what the manifest names, under the names that are known here, and only after its digests fit.
"""

import gzip
import hashlib
import io
import json
import os
import re
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any

from orchestrator.services.errors import BadInput, NotNow
from orchestrator.settings import Settings
from orchestrator.store import backup, machines
from orchestrator.store.backup import BackupError
from orchestrator.store.session import open_sessions

FORM = 1
ENDING = ".lamplighter-backup"
OURS = re.compile(r"\d{8}-\d{6}-\d{3}(?:-[a-z-]{1,30})?\.lamplighter-backup")
KEPT_FILES = re.compile(r"config\.toml|machine|focuses/[A-Za-z0-9._-]{1,100}\.(?:toml|j2)")
TABLE = re.compile(r"[a-z_]{1,60}")
MANIFEST = "manifest.json"
MOST_MANIFEST_BYTES = 4 << 20

# What a file that is none of ours, or damaged, makes its readers raise. A full disk is not among it.
WRONG = (
    tarfile.TarError,
    gzip.BadGzipFile,
    EOFError,
    zlib.error,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
)


@dataclass(frozen=True)
class Manifest:
    version: str  # of Lamplighter
    revision: str
    made_at: str
    database: str
    rows: int


def make(settings: Settings, to: Path | None, *, version: str, why: str = "") -> Path:
    """A new backup: in the folder `to`, or the file that it names; by default in `backups` of the data folder."""
    target = target_of(settings, to, why)
    with tempfile.TemporaryDirectory(prefix="lamplighter-backup-", dir=settings.data) as place:
        folder = Path(place)
        revision, written = backup.write(settings.database, folder)
        files = {name: (settings.data / name).read_bytes() for name in files_of(settings.data)}
        manifest = {
            "lamplighter_backup": FORM,
            "version": version,
            "revision": revision,
            "made_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "database": settings.database.partition(":")[0].partition("+")[0],
            "tables": {one.name: {"rows": one.rows, "sha256": one.sha256} for one in written},
            "files": {name: hashlib.sha256(content).hexdigest() for name, content in files.items()},
        }
        partial = target.with_name(f".{target.name}.partial")
        try:
            with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as raw:
                with tarfile.open(fileobj=raw, mode="w:gz", compresslevel=6) as tar:
                    add(tar, MANIFEST, json.dumps(manifest, indent=1).encode())
                    for one in written:
                        tar.add(folder / backup.file_name(one.name), f"database/{backup.file_name(one.name)}")
                    for name, content in files.items():
                        add(tar, f"files/{name}", content)
                raw.flush()
                os.fsync(raw.fileno())
            partial.rename(target)
        finally:
            partial.unlink(missing_ok=True)
    return target


def target_of(settings: Settings, to: Path | None, why: str) -> Path:
    now = datetime.now(UTC)
    name = f"{now:%Y%m%d-%H%M%S}-{now.microsecond // 1000:03d}{f'-{why}' if why else ''}{ENDING}"
    if to is not None and to.name.endswith(ENDING):
        if to.exists():
            raise BadInput("to", f"{to} is there already; it is not written over.")
        folder, name = to.parent, to.name
    else:
        folder = to or settings.data / "backups"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder / name


def files_of(data: Path) -> list[str]:
    focuses = (sorted((data / "focuses").glob(f"*.{kind}")) for kind in ("toml", "j2"))
    found = [data / "config.toml", data / "machine", *chain.from_iterable(focuses)]
    names = [file.relative_to(data).as_posix() for file in found if file.is_file() and not file.is_symlink()]
    return [name for name in names if KEPT_FILES.fullmatch(name)]


def restore(settings: Settings, file: Path, *, replace: bool) -> Manifest:
    """Raises `BadInput`, `BackupError` or `SchemaError`; then nothing has changed."""
    with tempfile.TemporaryDirectory(prefix="lamplighter-restore-", dir=settings.data) as place:
        folder = Path(place)
        manifest, found = unpack(file, folder)
        backup.refuse_unknown(manifest.revision)
        refuse_while_working(settings)
        backup.load(settings.database, folder, manifest.revision, found["tables"], replace=replace)
        for name in found["files"]:
            target = settings.data / name
            if target.exists() and not replace:
                continue  # what the operator has written here meanwhile stays
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(folder / name.replace("/", "__"), target)
    return manifest


def unpack(file: Path, folder: Path) -> tuple[Manifest, dict[str, list[str]]]:
    """What the manifest names, checked, into the folder. Never a name, link or path of the archive's own."""
    try:
        with tarfile.open(file, "r:gz") as tar:
            content, manifest = read_manifest(tar)
            wanted = {f"database/{backup.file_name(name)}": one["sha256"] for name, one in content["tables"].items()}
            wanted |= {f"files/{name}": digest for name, digest in content["files"].items()}
            while (member := tar.next()) is not None:
                if member.name not in wanted:
                    raise BackupError(f"{file.name} holds {member.name!r}, which its manifest does not name.")
                place = folder / member.name.partition("/")[2].replace("/", "__")
                if not member.isreg() or copy(tar.extractfile(member), place) != wanted.pop(member.name):
                    raise BackupError(f"{file.name} is damaged: {member.name} is not what was written.")
    except FileNotFoundError:
        raise BadInput("file", f"There is no file {file}.") from None
    except WRONG as error:
        raise BackupError(f"{file.name} is no backup of Lamplighter, or it is damaged: {error}.") from None
    except OSError as error:
        raise BackupError(f"{file} could not be unpacked; that says nothing about it: {error}.") from None
    if wanted:
        raise BackupError(f"{file.name} is damaged: {', '.join(sorted(wanted))} is missing.")
    return manifest, {"tables": list(content["tables"]), "files": list(content["files"])}


def read_manifest(tar: tarfile.TarFile) -> tuple[dict[str, Any], Manifest]:
    first = tar.next()
    if first is None or first.name != MANIFEST or not first.isreg() or first.size > MOST_MANIFEST_BYTES:
        raise ValueError("it does not begin with a manifest")
    file = tar.extractfile(first)
    assert file is not None
    content = json.load(file)
    if content["lamplighter_backup"] != FORM:
        raise ValueError(f"its form is {content['lamplighter_backup']!r}, this version reads {FORM}")
    names = [name for name in content["tables"] if not TABLE.fullmatch(name)]
    names += [name for name in content["files"] if not KEPT_FILES.fullmatch(name)]
    if names:
        raise ValueError(f"it names {names[:3]}")
    rows = sum(int(one["rows"]) for one in content["tables"].values())
    return content, Manifest(content["version"], content["revision"], content["made_at"], content["database"], rows)


def refuse_while_working(settings: Settings) -> None:
    """A worker in the middle of a review would write into a database that is another one by then."""
    sessions = open_sessions(settings.database)
    try:
        with sessions.reading() as db:
            alive = machines.heard_of_since(db, datetime.now(UTC) - machines.SILENT_AFTER)
    finally:
        sessions.close()
    if alive:
        raise NotNow(f"A worker runs on {', '.join(alive)}. End it (and web and beat), then restore.")


def forget_old(folder: Path, *, keep: int, but: Path) -> list[Path]:
    """All but the newest `keep` backups in the folder that bear a name which we give."""
    ours = sorted(file for file in folder.iterdir() if OURS.fullmatch(file.name) and file.is_file())
    old = [file for file in ours[: max(0, len(ours) - keep)] if file != but]
    for file in old:
        file.unlink(missing_ok=True)
    return old


def add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(content), 0o600
    tar.addfile(member, io.BytesIO(content))


def copy(source: Any, target: Path) -> str:
    """Returns the digest."""
    digest = hashlib.sha256()
    with target.open("xb") as file:
        for piece in pieces(source):
            digest.update(piece)
            file.write(piece)
    return digest.hexdigest()


def pieces(source: Any) -> Iterable[bytes]:
    while piece := source.read(1 << 20):
        yield piece
