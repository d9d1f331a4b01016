"""Make an evidence archive of a run directory."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from harness.core.atomic import open_atomically
from harness.core.errors import HarnessError
from harness.journal import journal, reader
from harness.journal.events import RunStarted
from harness.reporting.page import report as page
from harness.supervisor import executor_files
from harness.tools.evidence import archive, checks, record
from harness.tools.evidence import manifest as manifests
from harness.tools.evidence.manifest import FileFacts, Manifest
from harness.tools.evidence.record import EvidenceRecord

#: Files that exist only during a run, and the page, which cannot be verified; `harness report html` makes it again from
#: the journal.
_NOT_PACKED = frozenset({".lock", executor_files.COMPILER_CACHES, page.FILE_NAME})


class PackageError(HarnessError):
    """A run directory cannot be packed."""


@dataclass(frozen=True, slots=True)
class RunFiles:
    """The files of a run directory by their names there, and the links that are left out, with their targets."""

    paths: dict[str, Path]
    links: dict[str, str]


def files_of(run_dir: Path) -> RunFiles:
    """Return every file of a run directory.

    Links that cases left in ``files/`` are not followed; pytest makes some for each test with a temporary folder. Raise
    PackageError for other links, and for anything else that is not a regular file.
    """
    files = RunFiles({}, {})
    for path in _walk(run_dir):
        name = path.relative_to(run_dir).as_posix()
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            if not name.startswith(f"{executor_files.KEPT}/"):
                leads = "out of the run directory" if _leads_out(path, run_dir) else "to another file"
                raise PackageError(
                    f"{str(path)!r} is a link that leads {leads}, to {str(path.readlink())!r}: "
                    "put the file itself there, or remove the link"
                )
            files.links[name] = str(path.readlink())
        elif not stat.S_ISREG(mode):
            raise PackageError(f"{str(path)!r} is not a regular file: remove it from the run directory")
        elif fault := archive.name_fault(f"{manifests.RUN}{name}"):
            raise PackageError(f"{str(path)!r} cannot be packed: {fault}; rename it")
        else:
            files.paths[name] = path
    return files


def _walk(run_dir: Path) -> Iterator[Path]:
    def refuse(error: OSError) -> None:
        raise PackageError(f"cannot read {str(error.filename)!r}: {error.strerror}")

    for folder, folders, names in os.walk(run_dir, onerror=refuse):
        here = Path(folder)
        if here == run_dir:
            folders[:] = [name for name in folders if name not in _NOT_PACKED]
            names = [name for name in names if name not in _NOT_PACKED]
        links = [name for name in folders if (here / name).is_symlink()]
        folders[:] = sorted({*folders} - {*links})
        yield from (here / name for name in sorted([*names, *links]))


def _leads_out(path: Path, run_dir: Path) -> bool:
    return not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(run_dir))


@dataclass(frozen=True, slots=True)
class Package:
    """A run to pack. `problems`: why `harness verify` would refuse it."""

    run_dir: Path
    files: RunFiles
    record: EvidenceRecord
    problems: tuple[checks.Problem, ...]

    @classmethod
    def of(cls, run_dir: Path) -> Package:
        """Read a run directory. Raise PackageError, JournalError."""
        contents = reader.read_run_journal(run_dir / journal.FILE_NAME)
        for event in contents.events:
            if isinstance(event, RunStarted) and event.imported is not None:
                ran = event.imported.text
                raise PackageError(f"cases of {str(run_dir)!r} were run {ran}: only a run of the harness is evidence")
        files = files_of(run_dir)
        evidence = record.read_evidence_record(
            {name: _read(path) for name, path in files.paths.items() if record.is_read(name)},
            run_dir / journal.FILE_NAME,
        )
        return cls(run_dir, files, evidence, tuple(checks.run_problems(evidence)))

    def write(self, out: Path) -> Manifest:
        """Write the archive. Raise WriteError, and PackageError if a file changes meanwhile."""
        if Path(os.path.realpath(out)).is_relative_to(os.path.realpath(self.run_dir)):
            raise PackageError(f"{str(out)!r} is in the run directory, so it would contain itself: name another place")
        derived = manifests.derived_files(self.record)
        for name in derived:
            if fault := archive.name_fault(name):
                raise PackageError(f"must-pass list {name!r} cannot be packed: {fault}")
        facts = {name: FileFacts(size=len(data), sha256=sha256(data).hexdigest()) for name, data in derived.items()}
        facts |= {f"{manifests.RUN}{name}": _file_facts(path) for name, path in self.files.paths.items()}
        links = {f"{manifests.RUN}{name}": target for name, target in self.files.links.items()}
        summary = manifests.summary_of(self.record, complete=not any(problem.unfinished for problem in self.problems))
        manifest = manifests.make_manifest(summary, dict(sorted(facts.items())), links)
        data = {**derived, manifests.FILE_NAME: manifests.manifest_bytes(manifest)}
        with open_atomically(out) as file:
            archive.write_archive(file, self._members(manifest, data))
        return manifest

    def _members(self, manifest: Manifest, data: dict[str, bytes]) -> Iterator[tuple[str, int, Iterator[bytes]]]:
        for name in sorted({*manifest.files, *data}):
            if name in data:
                yield name, len(data[name]), iter([data[name]])
            else:
                facts = manifest.files[name]
                yield name, facts.size, _unchanged(self.files.paths[name.removeprefix(manifests.RUN)], facts)


def _unchanged(path: Path, facts: FileFacts) -> Iterator[bytes]:
    """Yield the content of a file. Raise PackageError if it is not the content that was hashed."""
    digest = sha256()
    with path.open("rb") as file:
        for chunk in archive.file_chunks(file):
            digest.update(chunk)
            yield chunk
    if digest.hexdigest() != facts.sha256:
        raise PackageError(f"{str(path)!r} changed while it was packed: wait until nothing writes there")


def _file_facts(path: Path) -> FileFacts:
    digest, size = sha256(), 0
    try:
        with path.open("rb") as file:
            for chunk in archive.file_chunks(file):
                digest.update(chunk)
                size += len(chunk)
    except OSError as error:
        raise PackageError(f"cannot read {str(path)!r}: {error.strerror}") from None
    return FileFacts(size=size, sha256=digest.hexdigest())


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise PackageError(f"cannot read {str(path)!r}: {error.strerror}") from None
