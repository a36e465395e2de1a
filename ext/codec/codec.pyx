"""Runs schema plans: decodes rare requests and responses into Fields, and encodes them from dicts.

A Plan is the layout of one message in one version: its steps in the order of the bytes, compiled
once from tuples.  `read` decodes untrusted bytes and returns Fields or an error code; `write`
encodes a dict of our own, and asserts that it is valid.  A plan does not depend on its API.
protocol/types.py defines the types of schemas, protocol/schema.py creates plans.

The cost of a hostile frame is bounded: every count is compared with the bytes left and with the
maximum number of units of a message, before anything is allocated for it; nesting is limited by the
schema, which is finite; a tagged field is read within its own size.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.dict cimport PyDict_GetItem, PyDict_SetItem, PyDict_Size
from cpython.mem cimport PyMem_Calloc, PyMem_Free
from cpython.object cimport PyObject, PyObject_GenericGetAttr
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t
from libc.string cimport memcpy

from big_endian cimport load_i64, load_u16, store_i64
from wire_bytes cimport (
    ELEMENT_UNITS, INVALID_REQUEST, NULL_LENGTH, REQUEST_UNITS_MAX, STRUCT_UNITS, Cursor, Sink,
    put_i8, put_i16, put_i32, put_i64, put_length, put_raw, put_sized, put_text, put_uvarint,
    fail, remaining, room, sink_bytes, sink_close, sink_open, take, take_count, take_i8, take_i16,
    take_i32, take_i64, take_length, take_tag_count, take_text, take_uvarint,
)


cdef extern from "Python.h":
    PyObject* _PyType_Lookup(type kind, object name)


cdef enum Kind:
    KIND_BOOL
    KIND_INT8
    KIND_INT16
    KIND_UINT16
    KIND_INT32
    KIND_INT64
    KIND_FLOAT64
    KIND_UUID
    KIND_STRING
    KIND_BYTES
    KIND_RECORDS
    KIND_STRUCT
    KIND_ARRAY

BOOL, INT8, INT16, UINT16 = KIND_BOOL, KIND_INT8, KIND_INT16, KIND_UINT16
INT32, INT64, FLOAT64 = KIND_INT32, KIND_INT64, KIND_FLOAT64
UUID, STRING, BYTES, RECORDS = KIND_UUID, KIND_STRING, KIND_BYTES, KIND_RECORDS
STRUCT, ARRAY = KIND_STRUCT, KIND_ARRAY

UNITS_MAX = REQUEST_UNITS_MAX

cdef enum:
    UNTAGGED = -1
    UUID_SIZE = 16


cdef class Fields(dict):
    """A decoded message, or a part of one: a dict whose items are attributes too.

    A field with the name of a dict method is read as an item.
    """

    def __getattribute__(self, name):
        # The default lookup would raise an AttributeError of the class before trying the field.
        cdef PyObject* value
        if _PyType_Lookup(Fields, name) == NULL:
            value = PyDict_GetItem(self, name)
            if value != NULL:
                return <object> value
        return PyObject_GenericGetAttr(self, name)


cdef struct Step:
    PyObject* name
    PyObject* preset            # the default of the field
    PyObject* plan              # of the struct, or of the array's element; NULL for the others
    Kind kind
    Kind element
    int tag
    bint nullable


cdef class Plan:
    """One message, or a struct inside one, in one version.

    Created from tuples `(name, kind, element kind, nullable, tag, default, plan)`: the fields of
    the version, untagged ones in order, then tagged ones by tag; then `(name, default, dropped)`
    for the fields it lacks, `dropped` false if a value other than the default must not be lost.
    """

    cdef Step* steps
    cdef Py_ssize_t untagged
    cdef Py_ssize_t count
    cdef readonly bint flexible
    cdef readonly Py_ssize_t size_min
    cdef int units_each
    cdef tuple fields
    cdef tuple lacking
    cdef dict presets

    def __cinit__(self, tuple fields, tuple lacking, bint flexible):
        cdef Py_ssize_t index
        self.fields, self.lacking, self.flexible = fields, lacking, flexible
        self.count = len(fields)
        self.units_each = STRUCT_UNITS + len(fields) + len(lacking)
        self.presets = {name: preset for name, preset, _ in lacking}
        self.size_min = 1 if flexible else 0
        self.steps = <Step*> PyMem_Calloc(max(self.count, 1), sizeof(Step))
        if self.steps == NULL:
            raise MemoryError
        for index, field in enumerate(fields):
            self.set_step(&self.steps[index], field)
            if self.steps[index].tag == UNTAGGED:
                assert self.untagged == index, "tagged fields come last"
                self.untagged += 1
                self.size_min += step_size_min(&self.steps[index], flexible)

    cdef set_step(self, Step* step, tuple field):
        name, kind, element, nullable, tag, preset, plan = field
        # The objects behind these pointers live as long as `fields` holds their tuples.
        step.name, step.preset = <PyObject*> name, <PyObject*> preset
        step.plan = NULL if plan is None else <PyObject*> plan
        step.kind, step.element = kind, element
        step.nullable, step.tag = nullable, tag
        if tag != UNTAGGED:
            assert self.flexible, f"{name} is tagged in a version that has no tags"
            self.presets[name] = preset

    def __dealloc__(self):
        PyMem_Free(self.steps)


cdef Py_ssize_t step_size_min(const Step* step, bint flexible):
    """Return the minimum size of the field in bytes."""
    if step.kind == KIND_STRUCT:
        return 1 if step.nullable else (<Plan> step.plan).size_min
    return kind_size_min(step.kind, flexible)


cdef Py_ssize_t kind_size_min(Kind kind, bint flexible):
    if kind == KIND_BOOL or kind == KIND_INT8:
        return 1
    if kind == KIND_INT16 or kind == KIND_UINT16:
        return 2
    if kind == KIND_INT32:
        return 4
    if kind == KIND_INT64 or kind == KIND_FLOAT64:
        return 8
    if kind == KIND_UUID:
        return UUID_SIZE
    if flexible:
        return 1
    return 2 if kind == KIND_STRING else 4


# ---- reading

def read(
    Plan plan not None, buffer, Py_ssize_t position=0, int64_t units_max=UNITS_MAX,
):
    """Decode the bytes from `position` on; return Fields or an error code.

    Records are views of `buffer`; everything else is copied.  Bytes after the last field are
    ignored, as in Kafka: librdkafka, for one, leaves bytes after some requests.
    """
    cdef Py_buffer view
    cdef Cursor cursor
    cdef object fields
    assert position >= 0
    if not isinstance(buffer, memoryview):
        buffer = memoryview(buffer)
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        cursor.at = <const uint8_t*> view.buf + min(position, view.len)
        cursor.end = <const uint8_t*> view.buf + view.len
        cursor.units_left = units_max
        cursor.flexible = plan.flexible
        cursor.invalid = False
        fields = read_struct(plan, &cursor, buffer, <const uint8_t*> view.buf)
        if cursor.invalid:
            return INVALID_REQUEST
        return fields
    finally:
        PyBuffer_Release(&view)


cdef object read_struct(Plan plan, Cursor* cursor, object owner, const uint8_t* start):
    cdef Fields fields = Fields.__new__(Fields)
    cdef Py_ssize_t index
    cdef Step* step
    cdef object value
    for index in range(plan.untagged):
        step = &plan.steps[index]
        value = read_value(step, cursor, owner, start)
        if cursor.invalid:
            return None
        PyDict_SetItem(fields, <object> step.name, value)
    for name, preset in plan.presets.items():
        PyDict_SetItem(fields, name, fresh(preset))
    if plan.flexible:
        read_tags(plan, cursor, fields, owner, start)
    return fields


cdef object fresh(preset):
    """Return a copy of a default, so that changing it does not change other messages."""
    if type(preset) is list:
        return []
    if type(preset) is dict:
        return Fields((name, fresh(value)) for name, value in preset.items())
    return preset


cdef int read_tags(
    Plan plan, Cursor* cursor, Fields fields, object owner, const uint8_t* start
) except -1:
    cdef uint32_t count = take_tag_count(cursor)
    cdef uint32_t tag, size
    cdef Py_ssize_t index
    cdef Step* step
    cdef const uint8_t* end
    while count and not cursor.invalid:
        count -= 1
        tag = take_uvarint(cursor)
        size = take_uvarint(cursor)
        if size > remaining(cursor):
            fail(cursor)
            break
        for index in range(plan.untagged, plan.count):
            step = &plan.steps[index]
            if <uint32_t> step.tag == tag:
                end, cursor.end = cursor.end, cursor.at + size
                value = read_value(step, cursor, owner, start)
                if cursor.invalid or remaining(cursor):
                    cursor.end = end
                    fail(cursor)
                    break
                cursor.end = end
                PyDict_SetItem(fields, <object> step.name, value)
                break
        else:
            take(cursor, size)
    return 0


cdef object read_value(Step* step, Cursor* cursor, object owner, const uint8_t* start):
    if step.kind == KIND_ARRAY:
        return read_array(step, cursor, owner, start)
    if step.kind == KIND_STRUCT:
        # A nullable struct has a byte before it: negative for null, or 0 if the field is tagged.
        if step.nullable and take_i8(cursor) < (step.tag != UNTAGGED):
            return None
        return read_struct(<Plan> step.plan, cursor, owner, start)
    return read_scalar(step.kind, step.nullable, cursor, owner, start)


cdef object read_array(Step* step, Cursor* cursor, object owner, const uint8_t* start):
    cdef Py_ssize_t count, size_min
    cdef int units_each = ELEMENT_UNITS
    cdef object value
    cdef list values = []
    if step.element == KIND_STRUCT:
        size_min = (<Plan> step.plan).size_min
        units_each = (<Plan> step.plan).units_each
    else:
        size_min = kind_size_min(step.element, cursor.flexible)
    count = take_count(cursor, size_min, units_each, step.nullable)
    if cursor.invalid or count == NULL_LENGTH:
        return None
    while count:
        count -= 1
        if step.element == KIND_STRUCT:
            value = read_struct(<Plan> step.plan, cursor, owner, start)
        else:
            value = read_scalar(step.element, False, cursor, owner, start)
        if cursor.invalid:
            return None
        values.append(value)
    return values


cdef object read_scalar(
    Kind kind, bint nullable, Cursor* cursor, object owner, const uint8_t* start
):
    cdef const uint8_t* at
    if kind == KIND_INT32:
        return take_i32(cursor)
    if kind == KIND_INT16:
        return take_i16(cursor)
    if kind == KIND_INT64:
        return take_i64(cursor)
    if kind == KIND_STRING:
        return read_string(nullable, cursor)
    if kind == KIND_BOOL:
        return take_i8(cursor) != 0
    if kind == KIND_INT8:
        return take_i8(cursor)
    if kind == KIND_BYTES or kind == KIND_RECORDS:
        return read_bytes(kind, nullable, cursor, owner, start)
    at = take(cursor, kind_size_min(kind, cursor.flexible))
    if at == NULL:
        return None
    if kind == KIND_UUID:
        return PyBytes_FromStringAndSize(<const char*> at, UUID_SIZE)
    if kind == KIND_UINT16:
        return load_u16(at)
    return load_f64(at)


cdef object read_string(bint nullable, Cursor* cursor):
    cdef Py_ssize_t length = take_length(cursor, 2, nullable)
    if cursor.invalid or length == NULL_LENGTH:
        return None
    return take_text(cursor, length)


cdef object read_bytes(
    Kind kind, bint nullable, Cursor* cursor, object owner, const uint8_t* start
):
    cdef Py_ssize_t length = take_length(cursor, 4, nullable)
    cdef Py_ssize_t position
    if cursor.invalid or length == NULL_LENGTH:
        return None
    position = take(cursor, length) - start
    if kind == KIND_RECORDS:
        return owner[position:position + length]
    return PyBytes_FromStringAndSize(<const char*> start + position, length)


cdef inline double load_f64(const uint8_t* at) noexcept nogil:
    cdef int64_t raw = load_i64(at)
    cdef double value
    memcpy(&value, &raw, 8)
    return value


# ---- writing

def write(Plan plan not None, values):
    """Return the bytes of a message.

    Missing fields have their defaults; an unknown one is an AssertionError.  Raises LookupError if
    the version lacks a field whose value must not be dropped.
    """
    cdef Sink sink
    sink_open(&sink, plan.flexible)
    try:
        write_struct(plan, &sink, values)
        return sink_bytes(&sink)
    finally:
        sink_close(&sink)


cdef int write_struct(Plan plan, Sink* sink, object values) except -1:
    cdef Py_ssize_t index
    cdef Py_ssize_t known = 0
    cdef uint32_t tags = 0
    cdef Step* step
    cdef PyObject* given
    assert isinstance(values, dict), f"a struct is written from a dict, not {values!r}"
    for index in range(plan.count):
        step = &plan.steps[index]
        given = PyDict_GetItem(values, <object> step.name)
        known += given != NULL
        if step.tag == UNTAGGED:
            write_value(step, sink, <object> (step.preset if given == NULL else given))
        elif given != NULL and not is_preset(step, <object> given):
            tags += 1
    if known != PyDict_Size(values):
        check_lacking(plan, values, known)
    if plan.flexible:
        put_uvarint(sink, tags)
        if tags:
            write_tags(plan, sink, values)
    return 0


cdef int write_tags(Plan plan, Sink* sink, object values) except -1:
    cdef Py_ssize_t index, start
    cdef Step* step
    cdef PyObject* given
    for index in range(plan.untagged, plan.count):
        step = &plan.steps[index]
        given = PyDict_GetItem(values, <object> step.name)
        if given == NULL or is_preset(step, <object> given):
            continue
        put_uvarint(sink, step.tag)
        start = sink.size
        write_value(step, sink, <object> given)
        put_sized(sink, start)
    return 0


cdef bint is_preset(Step* step, object value) except -1:
    """Return True if a tagged field equals its default, so that it is not written."""
    if step.kind == KIND_STRUCT and value is not None and not step.nullable:
        return is_preset_struct(<Plan> step.plan, value)
    if step.kind == KIND_ARRAY and value is not None:
        return len(value) == 0 and <object> step.preset is not None
    return value == <object> step.preset


cdef bint is_preset_struct(Plan plan, object values) except -1:
    cdef Py_ssize_t index
    cdef Py_ssize_t known = 0
    cdef PyObject* given
    for index in range(plan.count):
        given = PyDict_GetItem(values, <object> plan.steps[index].name)
        if given == NULL:
            continue
        known += 1
        if not is_preset(&plan.steps[index], <object> given):
            return False
    # Remaining names are unknown; writing the struct raises an error that names them.
    return known == PyDict_Size(values)


cdef int check_lacking(Plan plan, object values, Py_ssize_t known) except -1:
    """Raise an error unless all values that were not written may be dropped in this version."""
    for name, preset, dropped in plan.lacking:
        if name not in values:
            continue
        known += 1
        value = values[name]
        if dropped or value == preset or (type(preset) is list and not value):
            continue
        raise LookupError(name)
    if known != PyDict_Size(values):
        fields = {step[0] for step in plan.fields} | {lack[0] for lack in plan.lacking}
        raise AssertionError(f"unknown field {', '.join(sorted(set(values) - fields))}")
    return 0


cdef int write_value(Step* step, Sink* sink, object value) except -1:
    if value is None:
        assert step.nullable, f"{<object> step.name} is None, but the field is not nullable"
        return write_null(step, sink)
    if step.kind == KIND_ARRAY:
        return write_array(step, sink, value)
    if step.kind == KIND_STRUCT:
        if step.nullable:
            put_i8(sink, 1)
        return write_struct(<Plan> step.plan, sink, value)
    try:
        return write_scalar(step.kind, sink, value)
    except (AssertionError, TypeError, OverflowError) as error:
        raise AssertionError(f"{<object> step.name} = {value!r}: {error}") from error


cdef int write_null(Step* step, Sink* sink) except -1:
    if step.kind == KIND_STRUCT:
        return put_i8(sink, -1 if step.tag == UNTAGGED else 0)
    return put_length(sink, NULL_LENGTH, 2 if step.kind == KIND_STRING else 4)


cdef int write_array(Step* step, Sink* sink, object values) except -1:
    put_length(sink, len(values), 4)
    if step.element == KIND_STRUCT:
        for value in values:
            write_struct(<Plan> step.plan, sink, value)
    else:
        for value in values:
            write_scalar(step.element, sink, value)
    return 0


cdef int write_scalar(Kind kind, Sink* sink, object value) except -1:
    if kind == KIND_INT32:
        return put_i32(sink, <int32_t> integer(value, -0x80000000, 0x7FFFFFFF))
    if kind == KIND_INT16:
        return put_i16(sink, <int16_t> integer(value, -0x8000, 0x7FFF))
    if kind == KIND_INT64:
        return put_i64(sink, <int64_t> value)
    if kind == KIND_STRING:
        return put_text(sink, value)
    if kind == KIND_BOOL:
        return put_i8(sink, 1 if value else 0)
    if kind == KIND_INT8:
        return put_i8(sink, <int8_t> integer(value, -0x80, 0x7F))
    if kind == KIND_BYTES or kind == KIND_RECORDS:
        return write_bytes(sink, value)
    if kind == KIND_UUID:
        assert type(value) is bytes and len(value) == UUID_SIZE, "a UUID is 16 bytes"
        return put_raw(sink, PyBytes_AS_STRING(value), UUID_SIZE)
    if kind == KIND_UINT16:
        return put_i16(sink, <int16_t> <uint16_t> integer(value, 0, 0xFFFF))
    return write_float(sink, value)


cdef inline int64_t integer(object value, int64_t low, int64_t high) except? -1:
    cdef int64_t number = value
    assert low <= number <= high, f"must be {low} to {high}"
    return number


cdef int write_bytes(Sink* sink, object value) except -1:
    cdef Py_buffer view
    PyObject_GetBuffer(value, &view, PyBUF_SIMPLE)
    try:
        put_length(sink, view.len, 4)
        return put_raw(sink, view.buf, view.len)
    finally:
        PyBuffer_Release(&view)


cdef int write_float(Sink* sink, double value) except -1:
    cdef int64_t raw
    memcpy(&raw, &value, 8)
    store_i64(room(sink, 8), raw)
    return 0
