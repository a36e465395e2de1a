/* libFuzzer's end of a target: bytes go into Python, and what comes of them goes back.

   The interpreter is embedded, so that libFuzzer owns the process; the targets are plain functions
   (targets.py), found by the name in KAFKALITE_FUZZ_TARGET, and what is instrumented are the
   compiled modules they call.  The bytes are shown where libFuzzer put them, which ends where they
   end: one read too many is seen. */

#include <Python.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>

#define KINDS 65536

/* libFuzzer counts these as it counts branches: one for each way in which bytes have fared. */
__attribute__((section("__libfuzzer_extra_counters"))) static uint8_t kinds[KINDS];

static PyObject *target;

static void fail(void) {
    PyErr_Print();
    abort();
}

static void start(void) {
    PyConfig config;
    PyStatus status;
    PyConfig_InitPythonConfig(&config);
    config.install_signal_handlers = 0;
    signal(SIGPIPE, SIG_IGN);
    status = PyConfig_SetBytesString(&config, &config.program_name, getenv("KAFKALITE_FUZZ_PYTHON"));
    if (!PyStatus_Exception(status)) status = Py_InitializeFromConfig(&config);
    if (PyStatus_Exception(status)) Py_ExitStatusException(status);
    PyConfig_Clear(&config);
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    PyObject *module;
    start();
    module = PyImport_ImportModule("tests.fuzz.decoders");
    if (module == NULL) fail();
    target = PyObject_CallMethod(module, "chosen", "s", getenv("KAFKALITE_FUZZ_TARGET"));
    if (target == NULL) fail();
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *at, size_t size) {
    PyObject *view = PyMemoryView_FromMemory((char *) at, (Py_ssize_t) size, PyBUF_READ);
    PyObject *kind = view == NULL ? NULL : PyObject_CallOneArg(target, view);
    if (kind == NULL) fail();
    kinds[PyLong_AsLong(kind) % KINDS] = 1;
    Py_DECREF(kind);
    Py_DECREF(view);
    return 0;
}
