"""Stand-ins for public container images, built from Debian packages because no registry can be reached.

    tar = root_file_system("python:3.11-slim-bookworm")       # made once per machine, then from the cache
    ensure(engine, "python:3.11-slim-bookworm")               # imported into the engine under that very tag
    ensure_sandbox_image(engine)                              # orchestrator/sandbox/image/Dockerfile on top

Another image is one more entry in STANDINS. Making one needs root, debootstrap and a Debian mirror;
the cache is /var/cache/lamplighter-tests (the folder of an ordinary user's caches otherwise).
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from orchestrator.sandbox.package_index import certificate_file, pip_configuration
from tests.support.docker_engine import Engine

SUITE = "bookworm"
DOCKERFILE = Path("orchestrator/sandbox/image/Dockerfile")


@dataclass(frozen=True)
class Standin:
    """What makes a minimal Debian into something like the public image."""

    packages: tuple[str, ...]
    finish: str = ""  # shell commands, run inside the new root
    changes: tuple[str, ...] = ()  # Dockerfile instructions for the import


PYTHON_FINISH = """
for name in python python3 python3.11; do ln -s /usr/bin/python3.11 /usr/local/bin/$name; done
ln -s /usr/bin/pip3 /usr/local/bin/pip
rm -f /usr/lib/python3*/EXTERNALLY-MANAGED
"""

# Servers are installed once the root exists, so that nothing starts them on the way.
QUIETLY = """
printf '#!/bin/sh\\nexit 101\\n' > /usr/sbin/policy-rc.d; chmod +x /usr/sbin/policy-rc.d
export DEBIAN_FRONTEND=noninteractive
"""
POSTGRES_FINISH = (
    QUIETLY
    + r"""
mkdir -p /etc/postgresql-common
echo 'create_main_cluster = false' > /etc/postgresql-common/createcluster.conf
apt-get update -qq; apt-get install -y -qq --no-install-recommends postgresql-15
cat > /usr/local/bin/docker-entrypoint.sh <<'END'
#!/bin/sh
# The public image's first start, as far as compose.yaml uses it.
set -eu
data=/var/lib/postgresql/data
as_postgres() { setpriv --reuid postgres --regid postgres --clear-groups "$@"; }
if [ ! -e $data/PG_VERSION ]; then
    chown postgres:postgres $data; chmod 700 $data
    cat "$POSTGRES_PASSWORD_FILE" > /tmp/password; chown postgres /tmp/password
    as_postgres initdb -D $data -U "$POSTGRES_USER" --auth-local=trust --auth-host=scram-sha-256 --pwfile=/tmp/password
    rm /tmp/password
    echo "CREATE DATABASE $POSTGRES_DB;" | as_postgres postgres --single -D $data postgres
    echo 'host all all all scram-sha-256' >> $data/pg_hba.conf
fi
exec setpriv --reuid postgres --regid postgres --clear-groups "$@" -D $data -c 'listen_addresses=*'
END
chmod +x /usr/local/bin/docker-entrypoint.sh
mkdir -p /var/lib/postgresql/data /var/run/postgresql; chown postgres /var/run/postgresql
"""
)
REDIS_FINISH = (
    QUIETLY + "apt-get update -qq; apt-get install -y -qq --no-install-recommends redis-server; mkdir -p /data"
)

STANDINS = {
    "python:3.11-slim-bookworm": Standin(
        packages=("ca-certificates", "python3", "python3-venv", "python3-pip"),
        finish=PYTHON_FINISH,
        changes=("ENV PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin", "CMD python3"),
    ),
    "postgres:15-bookworm": Standin(
        packages=("ca-certificates",),
        finish=POSTGRES_FINISH,
        changes=(
            "ENV PATH=/usr/lib/postgresql/15/bin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8",
            'ENTRYPOINT ["docker-entrypoint.sh"]',
            'CMD ["postgres"]',
            "VOLUME /var/lib/postgresql/data",
        ),
    ),
    "redis:7.0-bookworm": Standin(
        packages=("ca-certificates",),
        finish=REDIS_FINISH,
        changes=("WORKDIR /data", "VOLUME /data", 'CMD ["redis-server"]'),
    ),
}


def cache_folder() -> Path:
    if os.geteuid() == 0:
        return Path("/var/cache/lamplighter-tests")
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lamplighter-tests"


def root_file_system(tag: str) -> Path:
    """The stand-in's files as a tar, from the cache or newly made. Skips the test where it cannot be."""
    standin = STANDINS[tag]
    key = hashlib.sha256(repr((standin, SUITE)).encode()).hexdigest()[:12]
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    tar = folder / f"{tag.replace('/', '_').replace(':', '_')}-{key}.tar"
    with one_at_a_time(folder / f"{tar.name}.lock"):
        if not tar.exists():
            make(standin, tar)
    return tar


def make(standin: Standin, tar: Path) -> None:
    if os.geteuid() != 0 or shutil.which("debootstrap") is None:
        pytest.skip(f"the stand-in image {tar.stem} is not cached, and making it needs root and debootstrap")
    root = tar.with_suffix(".root")
    shutil.rmtree(root, ignore_errors=True)
    include = ",".join(standin.packages)
    run("debootstrap", "--variant=minbase", f"--include={include}", SUITE, str(root))
    run("chroot", str(root), "/bin/sh", "-ec", f"{standin.finish}\napt-get clean")
    partial = tar.with_suffix(".partial")
    run(
        "tar", "-C", str(root), "--exclude=./dev/*", "--exclude=./proc/*", "--exclude=./sys/*", "-cf", str(partial), "."
    )
    partial.rename(tar)
    shutil.rmtree(root, ignore_errors=True)


def ensure(engine: Engine, tag: str) -> str:
    """Import the stand-in unless the engine has it."""
    if not engine.has_image(tag):
        changes = [word for change in STANDINS[tag].changes for word in ("--change", change)]
        engine.command("import", *changes, str(root_file_system(tag)), tag)
    return tag


def ensure_for_building(engine: Engine, tag: str) -> str:
    """As `ensure`, and what is built on it installs with this machine's own CA file and package index."""
    if engine.has_image(tag):
        return tag
    ensure(engine, tag)
    config = pip_configuration()
    authority = certificate_file(config)
    lines = [f"index-url = {config['index-url']}"] if "index-url" in config else []
    with tempfile.TemporaryDirectory() as folder:
        dockerfile = [f"FROM {tag}"]
        if authority:
            shutil.copy(authority, Path(folder, "ca.crt"))
            dockerfile.append("COPY ca.crt /etc/ssl/certs/ca-certificates.crt")
            lines.append("cert = /etc/ssl/certs/ca-certificates.crt")
        Path(folder, "pip.conf").write_text("\n".join(["[global]", *lines, ""]))
        Path(folder, "Dockerfile").write_text("\n".join([*dockerfile, "COPY pip.conf /etc/pip.conf", ""]))
        engine.command("build", "-t", tag, folder)
    return tag


def ensure_with_wheels(engine: Engine, tag: str) -> str:
    """As `ensure_for_building`, and with the folder of wheels that this machine's pip is told of, if it is of any.

    So torch's CPU build comes from there, where the usual index has one of gigabytes. Returns the tag of that image.
    """
    ensure_for_building(engine, tag)
    wheels = [path for word in pip_configuration().get("find-links", "").split() if (path := Path(word)).is_dir()]
    if not wheels:
        return tag
    with tempfile.TemporaryDirectory() as folder:
        for path in wheels:
            shutil.copytree(path, Path(folder, "wheels"), dirs_exist_ok=True)
        lines = [f"FROM {tag}", "COPY wheels /opt/wheels", "RUN echo 'find-links = /opt/wheels' >> /etc/pip.conf"]
        Path(folder, "Dockerfile").write_text("\n".join([*lines, ""]))
        engine.command("build", "-t", f"{tag}-wheels", folder)
    return f"{tag}-wheels"


def ensure_sandbox_image(engine: Engine) -> str:
    """Build the sandbox image, unless the engine has one of the same Dockerfile; returns its tag."""
    ensure(engine, "python:3.11-slim-bookworm")
    tag = f"lamplighter-sandbox:{hashlib.sha256(DOCKERFILE.read_bytes()).hexdigest()[:12]}"
    if not engine.has_image(tag):
        engine.command("build", "--network", "host", "-t", tag, str(DOCKERFILE.parent))
    return tag


@contextmanager
def one_at_a_time(lock: Path) -> Iterator[None]:
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"{' '.join(command[:3])} failed: {(done.stderr or done.stdout)[-800:]}")
