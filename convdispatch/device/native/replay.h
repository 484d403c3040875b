// Repeats a conv() on PyTorch's CUDA tensors: the arguments are compared with those of the recorded call, and the
// program is launched without Python's part. If anything differs, the replay returns None, and the slow path is taken.
#pragma once

#include "operators.h"

namespace launcher {

// A tensor's handle, valid as long as its Python object: PyTorch returns the address of its implementation (`_cdata`),
// and a handle points to such an address. `make_replay` checks this assumption by comparing data pointers.
class Borrowed {
 public:
  explicit Borrowed(PyObject *tensor) {
    static PyObject *const name = PyUnicode_InternFromString("_cdata");
    Ref number(PyObject_GetAttr(tensor, name));
    implementation_ = number ? PyLong_AsVoidPtr(number.get()) : nullptr;
    if (!implementation_) PyErr_Clear();
  }
  explicit operator bool() const { return implementation_; }
  AtenTensorHandle handle() { return reinterpret_cast<AtenTensorHandle>(&implementation_); }

 private:
  void *implementation_ = nullptr;
};

struct Operand {
  PyTypeObject *kind = nullptr;
  std::vector<int64_t> sizes;
  uint64_t bytes = 0;
};

struct Replay {
  Ref options, shape, policy;
  Shared program;
  Operand operands[3];  // x, w, y
  int written = 2;
  int32_t dtype = 0, kind = 0, index = 0;
  bool frozen = false;
};

inline const char *const kReplay = "convdispatch.device.native.replay";

// Whether an object is a tensor like that of the recorded call, without a gradient to record; then `seen` describes it.
inline bool as_before(const Replay &call, const Operand &was, PyObject *object, Seen &seen) {
  static PyObject *const name = PyUnicode_InternFromString("requires_grad");
  Borrowed tensor(object);
  if (!tensor) return false;
  seen = Seen(tensor.handle());
  if (!seen.ok || seen.dtype != call.dtype || seen.kind != call.kind || seen.index != call.index ||
      seen.dims != static_cast<int64_t>(was.sizes.size()) ||
      std::memcmp(seen.sizes, was.sizes.data(), was.sizes.size() * sizeof(int64_t)) || !seen.contiguous())
    return false;
  Ref records(PyObject_GetAttr(object, name));
  return records.get() == Py_False;
}

inline bool equal(PyObject *one, PyObject *other) {
  if (one == other) return true;
  const int same = PyObject_RichCompareBool(one, other, Py_EQ);
  if (same < 0) PyErr_Clear();  // an array among the options cannot be compared
  return same == 1;
}

// again(operands, options, shape) returns the result, or None for a call that differs.
inline PyObject *again(PyObject *capsule, PyObject *const *given, Py_ssize_t count) {
  auto *call = static_cast<Replay *>(PyCapsule_GetPointer(capsule, kReplay));
  if (!call) return nullptr;
  if (count != 3 || !equal(given[1], call->options.get()) || !equal(given[2], call->shape.get())) Py_RETURN_NONE;
  Ref policy(PyObject_CallObject(python.policy, nullptr));
  if (policy.get() != call->policy.get()) return PyErr_Clear(), held(Py_None).release();
  std::vector<uint64_t> addresses(5, 0);
  PyObject *out = nullptr;
  uint64_t all = 0;
  for (int place = 0; place < 3; ++place) {
    PyObject *object = PyTuple_GetItem(given[0], place);
    const Operand &was = call->operands[place];
    if (place == call->written && object == Py_None) continue;
    Seen seen;
    if (Py_TYPE(object) != was.kind || !as_before(*call, was, object, seen)) Py_RETURN_NONE;
    if (place == call->written) out = object;
    all |= addresses[place] = seen.at();
    if (!seen.address) Py_RETURN_NONE;
  }
  const Program &program = *call->program;
  void *stream = nullptr;
  if (!program.here() || driver.current_stream(call->index < 0 ? 0 : call->index, &stream)) Py_RETURN_NONE;
  Owned made;
  if (!out) {
    Seen like;
    like.dtype = call->dtype, like.kind = call->kind, like.index = call->index;
    all |= addresses[call->written] = call->frozen ? 0 : program.allocate(made, like);
    if (!addresses[call->written]) Py_RETURN_NONE;
  }
  const uint64_t begin = addresses[call->written], end = begin + call->operands[call->written].bytes;
  for (int place = 0; place < 3; ++place)
    if (place != call->written && begin < addresses[place] + call->operands[place].bytes && addresses[place] < end)
      Py_RETURN_NONE;  // the slow path raises the error
  if (all % kAlignment) Py_RETURN_NONE;
  program.count(0);
  if (!program.run(stream, addresses, call->kind, call->index)) Py_RETURN_NONE;
  return out ? held(out).release() : tensor_of(made.get());
}

// replay(program, options, shape, policy, frozen, kind, (x, w, y)) returns the function `again` for calls like
// this one; None among the operands is the result, which is of class `kind`. Raises RuntimeError if PyTorch's objects do
// not have the assumed layout.
inline PyObject *make_replay(PyObject *, PyObject *given) {
  static PyMethodDef method = {"again", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(again)),
                               METH_FASTCALL, nullptr};
  PyObject *program, *options, *shape, *policy, *kind, *operands;
  auto made = std::make_unique<Replay>();
  int frozen;
  if (!PyArg_ParseTuple(given, "OOOOpO!O!", &program, &options, &shape, &policy, &frozen, &PyType_Type,
                        &kind, &PyTuple_Type, &operands))
    return nullptr;
  Shared *shared = program_of(program);
  if (!shared) return nullptr;
  made->program = *shared;
  made->frozen = frozen;
  made->options = held(options), made->shape = held(shape), made->policy = held(policy);
  for (int place = 0; place < 3; ++place) {
    PyObject *object = PyTuple_GetItem(operands, place);
    if (object == Py_None) {
      made->written = place;
      continue;
    }
    Borrowed tensor(object);
    Ref pointer(tensor ? PyObject_CallMethod(object, "data_ptr", nullptr) : nullptr);
    if (!pointer) return nullptr;
    const Seen seen(tensor.handle());
    if (!seen.ok || seen.address != PyLong_AsVoidPtr(pointer.get())) {
      PyErr_SetString(PyExc_RuntimeError, "a tensor's handle is another thing in this PyTorch");
      return nullptr;
    }
    made->operands[place].kind = Py_TYPE(object);
    made->operands[place].sizes.assign(seen.sizes, seen.sizes + seen.dims);
    made->dtype = seen.dtype, made->kind = seen.kind, made->index = seen.index;
  }
  made->operands[made->written].kind = reinterpret_cast<PyTypeObject *>(kind);
  made->operands[made->written].sizes = (*shared)->sizes;
  for (Operand &operand : made->operands) {
    Py_INCREF(reinterpret_cast<PyObject *>(operand.kind));  // never released, because classes of tensors live as long as the process
    operand.bytes = aoti_torch_dtype_element_size(made->dtype);
    for (int64_t size : operand.sizes) operand.bytes *= static_cast<uint64_t>(size);
  }
  Ref capsule(PyCapsule_New(made.get(), kReplay, [](PyObject *capsule) {
    delete static_cast<Replay *>(PyCapsule_GetPointer(capsule, kReplay));
  }));
  if (!capsule) return nullptr;
  made.release();
  return PyCFunction_New(&method, capsule.get());
}

}  // namespace launcher
