#!/bin/sh
# Run the tests on the CPython versions of other Debian releases: sh tools/pythons.sh [PYTEST ARGS]
#
# Each release is installed once by debootstrap into a folder of the user's cache, and entered by
# chroot in a mount namespace of its own, so that no mount outlives this script.  The tracked files
# of this working tree are copied there; their .venv and compiled modules stay from run to run.
# Needs root, debootstrap, and Debian's package archive.  RELEASES selects the releases.
#
# Left out: clients that are not in those folders (Java, kcat, node); their tests are skipped.

set -eu
cd "$(dirname "$0")/.."

RELEASES=${RELEASES:-"trixie sid"} # CPython 3.13 and 3.14
JOBS=${JOBS:-3}
CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/kafkalite/pythons
PACKAGES=python3,python3-dev,python3-venv,gcc,libc6-dev,make,ca-certificates,git,procps

if [ "$(id -u)" != 0 ] || ! command -v debootstrap >/dev/null; then
    echo "make pythons needs root and debootstrap (apt-get install debootstrap)" >&2
    exit 2
fi

install_release() {
    [ -e "$CACHE/$1/installed" ] && return
    echo "installing Debian $1 into $CACHE/$1"
    rm -rf "${CACHE:?}/$1"
    mkdir -p "$CACHE"
    debootstrap --variant=minbase --include="$PACKAGES" "$1" "$CACHE/$1" >"$CACHE/$1.log" 2>&1 || {
        echo "debootstrap failed: see $CACHE/$1.log" >&2
        exit 1
    }
    touch "$CACHE/$1/installed"
}

copy_sources() {
    tree=$CACHE/$1/kafkalite
    mkdir -p "$tree"
    # Compiled modules stay: make compares their time with the sources', which tar keeps.
    git ls-files -z --deduplicate |
        tar --null --ignore-failed-read --files-from=- --create 2>/dev/null |
        tar --extract --directory="$tree"
    (cd "$tree" && find . -name .venv -prune -o -name build -prune -o -type f \
        \( -name '*.py' -o -name '*.pyi' -o -name '*.pyx' -o -name '*.pxd' \) -print) |
        while read -r file; do [ -e "$file" ] || rm "$tree/$file"; done
}

run_tests() {
    release=$1
    shift
    # shellcheck disable=SC2016  # the inner shell expands them
    unshare --mount sh -euc '
        root=$1; shift
        for folder in proc sys dev; do mount --rbind "/$folder" "$root/$folder"; done
        for file in /etc/resolv.conf /etc/hosts /etc/ssl/certs/ca-certificates.crt; do
            [ ! -e "$file" ] || { touch "$root$file"; mount --bind "$file" "$root$file"; }
        done
        exec chroot "$root" sh -euc "
            cd /kafkalite
            make -s PYTHON=/usr/bin/python3 .venv/developer build
            .venv/bin/python --version
            exec .venv/bin/python -m pytest -q \"\$@\"" tests "$@"
    ' mounts "$CACHE/$release" "$@"
}

[ $# -gt 0 ] || set -- -n "$JOBS"
mkdir -p "$CACHE"
exec 9>"$CACHE/lock"
flock 9 # another run would build in the same folders
failed=""
for release in $RELEASES; do
    install_release "$release"
    copy_sources "$release"
    run_tests "$release" "$@" || failed="$failed $release"
done
[ -z "$failed" ] || { echo "tests failed on Debian$failed" >&2; exit 1; }
