# Whether this machine can build kafkalite; if not, one sentence says what to install.
#
#     sh tools/machine_ready.sh PYTHON CC

python=$1
compiler=$2

need() {
    echo "kafkalite needs $1; on Debian and Ubuntu: apt install $2" >&2
    exit 1
}

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null ||
    need "Python 3.11 or newer (found: ${python:-none}; name another with make PYTHON=…)" python3
"$python" -c 'import ensurepip, venv' 2>/dev/null ||
    need "Python's venv module" python3-venv
"$python" -c 'import sys, sysconfig, os.path as p
sys.exit(not p.exists(p.join(sysconfig.get_path("include"), "Python.h")))' 2>/dev/null ||
    need "Python's header files" python3-dev
command -v "${compiler%% *}" >/dev/null ||
    need "a C compiler" gcc
echo '#include <stdlib.h>' | $compiler -E -xc - >/dev/null 2>&1 ||
    need "the C library's header files" libc6-dev
