// convdispatch.device.native._launcher: the fast path of a convolution on PyTorch's tensors, below Python, on CUDA and
// in PyTorch's threads on a CPU.
//
// Python decides once how a problem is computed; this looks the decision up and launches it. See docs/design/adr/0021.

#include "host_programs.h"
#include "replay.h"
#include "samples.h"

namespace launcher {
namespace {

TorchLibraryHandle installed[kOperations] = {};  // the registrations of operators' kernels

PyObject *fail(const char *words) { return PyErr_Format(PyExc_RuntimeError, "%s", words); }

// open(library, policy, object, handle) loads CUDA's driver, if one is named, and stores Python's functions. Raises
// RuntimeError.
PyObject *open(PyObject *, PyObject *given) {
  const char *library;
  Python next = python;
  if (!PyArg_ParseTuple(given, "sOOO", &library, &next.policy, &next.object, &next.handle)) return nullptr;
  const std::string why = *library ? driver.open(library) : "";
  if (!why.empty()) return fail(why.c_str());
  Py_INCREF(given);  // never released, because running calls may use these functions
  python = next;
  Py_RETURN_NONE;
}

// ask(plain, switches on CUDA, switches on a CPU, operators, raised, tensor) stores the Python objects of the operators.
PyObject *ask(PyObject *, PyObject *given) {
  Python next = python;
  PyObject *tuples = reinterpret_cast<PyObject *>(&PyTuple_Type), **switches = next.switches;
  if (!PyArg_ParseTuple(given, "OO!O!O!OO", &next.plain, tuples, switches, tuples, switches + 1, tuples,
                        &next.operators, &raised, &next.tensor))
    return nullptr;
  if (PyTuple_Size(next.operators) != kOperations) return fail("another number of operators");
  Py_INCREF(given);
  python = next;
  Py_RETURN_NONE;
}

// install(operation, key) registers the kernel of an operation for a dispatch key, of a CPU or of CUDA, until
// uninstall(operation). Raises RuntimeError.
PyObject *install(PyObject *, PyObject *given) {
  const char *key;
  int operation;
  if (!PyArg_ParseTuple(given, "is", &operation, &key)) return nullptr;
  if (operation < 0 || operation >= kOperations) return fail("no such operation");
  const Operator &of = operators[operation % kOnHost];
  TorchLibraryHandle &to = installed[operation];
  if (to) return fail("installed already");
  if (!python.operators || !(on_host(operation) || driver.launch)) return fail("open() and ask() come before install()");
  bool added = !aoti_torch_library_init_impl(of.library, key, __FILE__, __LINE__, &to);
  for (const char *name : of.names)
    added = added && (!name || !torch_library_impl(to, name, of.kernels[on_host(operation)], TORCH_TARGET_VERSION));
  return added ? held(Py_None).release() : fail("PyTorch refuses a kernel for a convolution");
}

PyObject *uninstall(PyObject *, PyObject *given) {
  int operation;
  if (!PyArg_ParseTuple(given, "i", &operation)) return nullptr;
  if (operation < 0 || operation >= kOperations) return fail("no such operation");
  TorchLibraryHandle gone = std::exchange(installed[operation], nullptr);
  if (gone) aoti_torch_delete_library_object(gone);
  Py_RETURN_NONE;
}

// pause(on) passes all calls to Python while it is on.
PyObject *pause(PyObject *, PyObject *on) {
  python.paused = PyObject_IsTrue(on) == 1;
  Py_RETURN_NONE;
}

// under(number) makes decisions be stored and looked up under this number of settings; others stay stored.
PyObject *under(PyObject *, PyObject *number) {
  const long long settings = PyLong_AsLongLong(number);
  if (settings == -1 && PyErr_Occurred()) return nullptr;
  python.settings = settings;
  Py_RETURN_NONE;
}

// further(meetings) lets PyTorch compute a further size of a known layer until it has come this many times.
PyObject *further_from(PyObject *, PyObject *count) {
  python.meetings = static_cast<uint32_t>(PyLong_AsLong(count));
  return PyErr_Occurred() ? nullptr : held(Py_None).release();
}

// met() returns how often the size of the call that Python handles now has come; 0 if it is not counted.
PyObject *met(PyObject *, PyObject *) {
  const auto found = meetings.find(std::hash<std::string_view>{}(missed.key));
  return PyLong_FromUnsignedLong(missed.open && found != meetings.end() ? found->second : 0);
}

// know(holds) lets PyTorch compute further sizes of the present call's layer at first, as long as `holds()` returns that
// its weights are unchanged.
PyObject *know(PyObject *, PyObject *holds) {
  if (missed.open) {
    if (layers.size() >= kMost) layers.clear();
    layers[missed.layer].holds = held(holds);
    meetings[std::hash<std::string_view>{}(missed.key)] = python.meetings;  // the present size is no further size
  }
  Py_RETURN_NONE;
}

// offer(steps, laid, holds, packed, sums) stores Python's decision for the call that it handles now, and returns whether
// it was stored. Steps are (program, sources, result, packs); `laid` are the (source, strides) of tensors to copy first.
// `holds` is None, or returns at each call whether the decision, with `packed` weights, is still valid. Without steps,
// PyTorch's own kernel computes the call while `holds` returns true; None for `holds` is then refused.
PyObject *offer(PyObject *, PyObject *given) {
  PyObject *steps, *laid, *holds;
  unsigned long long packed;
  int sums;
  if (!PyArg_ParseTuple(given, "OOOKp", &steps, &laid, &holds, &packed, &sums)) return nullptr;
  if (!missed.open) Py_RETURN_FALSE;
  missed.open = false;
  auto made = std::make_shared<Decision>();
  made->sums = sums;
  bool reads_weights = false;
  const bool taken = each_of(steps, [&](PyObject *one) {
    Step &step = made->steps.emplace_back();
    PyObject *program, *sources;
    int packs;
    if (!PyArg_ParseTuple(one, "OOip", &program, &sources, &step.result, &packs) || !integers(sources, step.sources))
      return false;
    Shared *shared = program_of(program);
    if (!shared) return false;
    step.program = *shared;
    step.packs = packs;
    for (int source : step.sources) {
      if (source < kX || source > kNone) return PyErr_Format(PyExc_ValueError, "no operand is %d", source), false;
      reads_weights = reads_weights || source == kW;
    }
    return true;
  });
  const bool copies = taken && each_of(laid, [&](PyObject *one) {
    Laid &each = made->laid.emplace_back();
    PyObject *strides;
    if (!PyArg_ParseTuple(one, "iO", &each.source, &strides)) return false;
    if (each.source >= kX && each.source < kOut) return integers(strides, each.strides);
    return PyErr_Format(PyExc_ValueError, "nothing to copy is %d", each.source), false;
  });
  if (!copies) return nullptr;
  const bool theirs = made->steps.empty(), holding = holds != Py_None;
  const bool known = is_plain(missed.operation) &&
                     (on_host(missed.operation) || (driver.forward && driver.backward));  // PyTorch has kernels to call
  const bool cannot = !holding || !known;
  if (theirs ? cannot : holding && !missed.by_weights) Py_RETURN_FALSE;
  if (entries.size() >= kMost) std::exchange(entries, {}), packed_weights.clear();
  Entry &entry = entries[missed.key];
  const bool by_weights = missed.by_weights && (reads_weights || theirs);
  if (by_weights && entry.weights.size() >= kMost) entry.weights.clear();
  Known next{std::move(made), holding ? held(holds) : Ref(), packed};
  std::swap(by_weights ? entry.weights[missed.weights] : entry.known, next);
  if (by_weights && holding) packed_weights[missed.weights] = 1;
  Py_RETURN_TRUE;
}

PyObject *forget(PyObject *, PyObject *) {
  forget_all();
  Py_RETURN_NONE;
}

// drop(program) removes the decisions that run it; running calls keep it alive until they end.
PyObject *drop(PyObject *, PyObject *capsule) {
  Shared *program = program_of(capsule);
  if (!program) return nullptr;
  forget_some(program->get());
  Py_RETURN_NONE;
}

// counts() returns (forward calls, backward calls, calls by solver, calls of further sizes that PyTorch computed) since
// the last counts().
PyObject *counts(PyObject *, PyObject *) {
  Ref by(PyDict_New());
  for (auto &each : solved) {
    if (!each.second) continue;
    Ref number(PyLong_FromUnsignedLongLong(each.second));
    if (!number || PyDict_SetItemString(by.get(), each.first.c_str(), number.get())) return nullptr;
    each.second = 0;
  }
  PyObject *answer = Py_BuildValue("KKOL", (unsigned long long)calls[0], (unsigned long long)calls[1], by.get(),
                                   (long long)compiling);
  calls[0] = calls[1] = compiling = 0;
  return answer;
}

// launches() returns the solvers of the last few calls, the latest first.
PyObject *launches(PyObject *, PyObject *) {
  Ref list(PyList_New(0));
  for (unsigned back = 1; back <= 8 && back <= latest; ++back)
    if (Ref name{PyUnicode_FromString(recent[(latest - back) % 8]->c_str())}) PyList_Append(list.get(), name.get());
  return list.release();
}

PyMethodDef methods[] = {
    {"open", open, METH_VARARGS, nullptr},
    {"ask", ask, METH_VARARGS, nullptr},
    {"install", install, METH_VARARGS, nullptr},
    {"uninstall", uninstall, METH_VARARGS, nullptr},
    {"pause", pause, METH_O, nullptr},
    {"program", make_program, METH_VARARGS, nullptr},
    {"replay", make_replay, METH_VARARGS, nullptr},
    {"under", under, METH_O, nullptr},
    {"groups", make_groups, METH_VARARGS, nullptr},
    {"run_groups", run_groups, METH_VARARGS, nullptr},
    {"host_program", make_host_program, METH_VARARGS, nullptr},
    {"lend", lend, METH_VARARGS, nullptr},
    {"has_idle", has_idle, METH_O, nullptr},
    {"pieces", make_pieces, METH_VARARGS, nullptr},
    {"hold", pieces_hold, METH_O, nullptr},
    {"offer", offer, METH_VARARGS, nullptr},
    {"forget", forget, METH_NOARGS, nullptr},
    {"further", further_from, METH_O, nullptr},
    {"met", met, METH_NOARGS, nullptr},
    {"know", know, METH_O, nullptr},
    {"drop", drop, METH_O, nullptr},
    {"used", program_used, METH_O, nullptr},
    {"counts", counts, METH_NOARGS, nullptr},
    {"launches", launches, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_launcher", SOURCES, -1, methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace
}  // namespace launcher

PyMODINIT_FUNC PyInit__launcher() { return PyModule_Create(&launcher::definition); }
