// convdispatch.device.native._launcher: the warm way of a convolution on PyTorch's CUDA tensors, below Python.
//
// Python decides what a problem runs, once; this looks the decision up and launches it. See docs/design/adr/0021.

#include "replay.h"

namespace launcher {
namespace {

TorchLibraryHandle installed = nullptr;

PyObject *fail(const std::string &words) {
  PyErr_SetString(PyExc_RuntimeError, words.c_str());
  return nullptr;
}

// open(library, policy, object, handle): take CUDA's driver, and Python's functions. Raises RuntimeError.
PyObject *open(PyObject *, PyObject *given) {
  const char *library;
  Words next;
  if (!PyArg_ParseTuple(given, "sOOO", &library, &next.policy, &next.object, &next.handle)) return nullptr;
  const std::string why = driver.open(library);
  if (!why.empty()) return fail(why);
  Py_INCREF(given);  // and with it all of them, for good: calls may be under way
  words = next;
  Py_RETURN_NONE;
}

// ask(plain, tracing, inference, grad, switches, forward, backward, raised): what the operators ask of Python.
PyObject *ask(PyObject *, PyObject *given) {
  Gate next;
  if (!PyArg_ParseTuple(given, "OOOOO!OOO", &next.plain, &next.tracing, &next.inference, &next.grad, &PyTuple_Type,
                        &next.switches, &next.forward, &next.backward, &raised))
    return nullptr;
  Py_INCREF(given);
  next.paused = gate.paused;
  gate = next;
  Py_RETURN_NONE;
}

// install(key): the operators of aten on a dispatch key are these from now on; uninstall() ends it. Raises RuntimeError.
PyObject *install(PyObject *, PyObject *given) {
  const char *key;
  if (!PyArg_ParseTuple(given, "s", &key)) return nullptr;
  if (installed) return fail("installed already");
  if (!gate.forward || !driver.launch) return fail("open() and ask() come before install()");
  if (aoti_torch_library_init_impl("aten", key, __FILE__, __LINE__, &installed) ||
      torch_library_impl(installed, "convolution", convolution, TORCH_TARGET_VERSION) ||
      torch_library_impl(installed, "convolution_backward", convolution_backward, TORCH_TARGET_VERSION))
    return fail("PyTorch refuses a kernel for aten's convolution");
  Py_RETURN_NONE;
}

PyObject *uninstall(PyObject *, PyObject *) {
  if (installed) aoti_torch_delete_library_object(installed);
  installed = nullptr;
  Py_RETURN_NONE;
}

// pause(on): all calls are Python's while it is on.
PyObject *pause(PyObject *, PyObject *given) {
  int on;
  if (!PyArg_ParseTuple(given, "p", &on)) return nullptr;
  gate.paused = on;
  Py_RETURN_NONE;
}

// offer(steps, holds, packed, sums) -> whether it was taken: what Python decided for the call that it is asked for just now, a
// list of (program, sources, result, packs); none for what stays Python's. `holds` is None, or answers whether `packed` still holds the weights.
PyObject *offer(PyObject *, PyObject *given) {
  PyObject *steps, *holds;
  unsigned long long packed;
  int sums;
  if (!PyArg_ParseTuple(given, "OOKp", &steps, &holds, &packed, &sums)) return nullptr;
  if (!missed.open) Py_RETURN_FALSE;
  missed.open = false;
  auto made = std::make_shared<Decision>();
  made->sums = sums;
  bool reads_weights = false;
  const Py_ssize_t count = PySequence_Size(steps);
  for (Py_ssize_t at = 0; at < count; ++at) {
    Ref one(PySequence_GetItem(steps, at));
    PyObject *program, *sources;
    int packs;
    Step step;
    if (!one || !PyArg_ParseTuple(one.get(), "OOip", &program, &sources, &step.result, &packs)) return nullptr;
    Shared *shared = program_of(program);
    std::vector<int64_t> each;
    if (!shared || !integers(sources, each)) return nullptr;
    for (int64_t source : each) {
      if (source < kX || source > kNone) return PyErr_Format(PyExc_ValueError, "no operand is %lld", (long long)source);
      step.sources.push_back(static_cast<int>(source));
      reads_weights = reads_weights || source == kW;
    }
    step.program = *shared;
    step.packs = packs;
    made->steps.push_back(std::move(step));
  }
  if (made->steps.empty() || (holds != Py_None && !missed.inference)) Py_RETURN_FALSE;
  if (entries.size() >= kMost) forget_all();
  Entry &entry = entries[missed.key];
  if (!missed.inference || !reads_weights) {
    entry.decided = std::move(made);
  } else {
    if (entry.weights.size() >= kMost) entry.weights.clear();
    Weights &weights = entry.weights[missed.weights];
    weights.decided = std::move(made);
    weights.holds = holds == Py_None ? Ref() : Ref::of(holds);
    weights.packed = packed;
    weights.left = 256;
    if (holds != Py_None) packed_weights[missed.weights] = 1;
  }
  Py_RETURN_TRUE;
}

PyObject *forget(PyObject *, PyObject *) {
  forget_all();
  Py_RETURN_NONE;
}

// counts() -> (forward calls, backward calls, calls by solver), since it was asked last.
PyObject *counts(PyObject *, PyObject *) {
  Ref by(PyDict_New());
  for (auto &each : solved) {
    if (!each.second) continue;
    Ref number(PyLong_FromUnsignedLongLong(each.second));
    if (!number || PyDict_SetItemString(by.get(), each.first.c_str(), number.get())) return nullptr;
    each.second = 0;
  }
  PyObject *answer = Py_BuildValue("KKO", (unsigned long long)calls[0], (unsigned long long)calls[1], by.get());
  calls[0] = calls[1] = 0;
  return answer;
}

// launches() -> the solvers of the last few calls, the latest first.
PyObject *launches(PyObject *, PyObject *) {
  Ref list(PyList_New(0));
  for (unsigned back = 1; back <= 8 && back <= latest; ++back)
    if (Ref name = Ref(PyUnicode_FromString(recent[(latest - back) % 8]->c_str()))) PyList_Append(list.get(), name.get());
  return list.release();
}

PyMethodDef methods[] = {
    {"open", open, METH_VARARGS, nullptr},
    {"ask", ask, METH_VARARGS, nullptr},
    {"install", install, METH_VARARGS, nullptr},
    {"uninstall", uninstall, METH_NOARGS, nullptr},
    {"pause", pause, METH_VARARGS, nullptr},
    {"program", make_program, METH_VARARGS, nullptr},
    {"replay", make_replay, METH_VARARGS, nullptr},
    {"offer", offer, METH_VARARGS, nullptr},
    {"forget", forget, METH_NOARGS, nullptr},
    {"counts", counts, METH_NOARGS, nullptr},
    {"launches", launches, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_launcher", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace
}  // namespace launcher

PyMODINIT_FUNC PyInit__launcher() { return PyModule_Create(&launcher::definition); }
