// Programs on a CPU, whose kernels run in PyTorch's intra-op threads, for one call at a time. A call that finds them
// busy, or no idle queues, is passed to Python.
#pragma once

#include "work_groups.h"

#include <mutex>

namespace launcher {

struct Queues {  // a queue for each of PyTorch's threads
  void *context;
  std::vector<void *> each;
};

inline auto &idle = *new std::vector<Queues>;  // never destroyed, because threads may end after Python
inline std::mutex idle_lock;

inline std::vector<Queues>::iterator idle_for(void *context, size_t threads) {  // the caller holds idle_lock
  return std::find_if(idle.begin(), idle.end(),
                      [&](const Queues &one) { return one.context == context && one.each.size() >= threads; });
}

inline uint32_t thread_count() {  // the number of PyTorch's threads
  uint32_t threads = 1;
  torch_get_num_threads(&threads);
  return std::max(threads, 1u);
}

class Lent {  // takes idle queues for one call on so many threads, and returns them in its destructor
 public:
  const uint32_t threads;

  Lent(void *context, uint32_t threads) : threads(threads) {
    const std::lock_guard<std::mutex> lock(idle_lock);
    const auto found = idle_for(context, threads);
    if (found == idle.end()) return;
    queues_ = std::move(*found);
    idle.erase(found);
  }
  ~Lent() {
    if (queues_.each.empty()) return;
    const std::lock_guard<std::mutex> lock(idle_lock);
    idle.push_back(std::move(queues_));
  }
  Lent(const Lent &) = delete;
  void *const *each() const { return queues_.each.empty() ? nullptr : queues_.each.data(); }

 private:
  Queues queues_{};
};

class HostLaunches : public Host {
 public:
  // `kept` is a Python object that keeps the launches and their memory alive.
  HostLaunches(Launches *launches, void *context, PyObject *kept)
      : launches_(launches), context_(context), kept_(held(kept).release()) {}
  ~HostLaunches() override {
    Gil gil;
    Py_DECREF(kept_);
  }

  bool run(const std::vector<uint64_t> &operands) override {
    const std::unique_lock<std::mutex> alone(busy_, std::try_to_lock);
    if (!alone) return false;
    const Lent queues(context_, thread_count());
    return queues.each() && !set_addresses(*launches_, operands) &&
           !run_all(*launches_, queues.each(), queues.threads);
  }

 private:
  Launches *launches_;
  void *context_;
  PyObject *kept_;
  std::mutex busy_;
};

// run_groups(capsule, context, operands) runs all launches in order on operands at these addresses, and waits; returns
// False, and runs nothing, if no queues of the context are idle. Raises RuntimeError with OpenCL's status.
inline PyObject *run_groups(PyObject *, PyObject *given) {
  PyObject *capsule, *operands;
  unsigned long long context;
  std::vector<uint64_t> addresses;
  if (!PyArg_ParseTuple(given, "OKO", &capsule, &context, &operands) || !integers(operands, addresses)) return nullptr;
  Launches *launches = launches_of(capsule);
  if (!launches) return nullptr;
  const Lent queues(reinterpret_cast<void *>(context), thread_count());
  if (!queues.each()) Py_RETURN_FALSE;
  int32_t status = set_addresses(*launches, addresses);
  if (status) return PyErr_Format(PyExc_RuntimeError, "clSetKernelArgSVMPointer answers %d", status);
  Py_BEGIN_ALLOW_THREADS
  status = run_all(*launches, queues.each(), queues.threads);
  Py_END_ALLOW_THREADS
  if (status) return PyErr_Format(PyExc_RuntimeError, "clEnqueueNDRangeKernel answers %d", status);
  Py_RETURN_TRUE;
}

// host_program(name, groups, context, areas, scratch, sizes, strides, kept) returns a program like program(), for the
// launches that groups() returned; `kept` keeps alive what they use.
inline PyObject *make_host_program(PyObject *, PyObject *given) {
  const char *name;
  unsigned long long context, scratch;
  PyObject *groups, *areas, *sizes, *strides, *kept;
  auto made = std::make_shared<Program>();
  if (!PyArg_ParseTuple(given, "sOKOKOOO", &name, &groups, &context, &areas, &scratch, &sizes, &strides, &kept) ||
      !integers(areas, made->areas) || !integers(sizes, made->sizes) || !integers(strides, made->strides))
    return nullptr;
  Launches *launches = launches_of(groups);
  Ref both(launches ? PyTuple_Pack(2, groups, kept) : nullptr);
  if (!both) return nullptr;
  made->scratch = scratch;
  made->host = std::make_unique<HostLaunches>(launches, reinterpret_cast<void *>(context), both.get());
  return capsule_of(std::move(made), name);
}

// lend(context, queues) adds idle queues for programs of the context, which must never be destroyed; `queues` are bytes
// with the address of a queue for each thread.
inline PyObject *lend(PyObject *, PyObject *given) {
  unsigned long long context;
  const char *bytes;
  Py_ssize_t size;
  if (!PyArg_ParseTuple(given, "Ky#", &context, &bytes, &size)) return nullptr;
  Queues made{reinterpret_cast<void *>(context), std::vector<void *>(static_cast<size_t>(size) / sizeof(void *))};
  std::memcpy(made.each.data(), bytes, made.each.size() * sizeof(void *));
  const std::lock_guard<std::mutex> lock(idle_lock);
  if (!made.each.empty()) idle.push_back(std::move(made));
  Py_RETURN_NONE;
}

// has_idle(context) returns whether a call with PyTorch's present number of threads would find idle queues.
inline PyObject *has_idle(PyObject *, PyObject *given) {
  void *context = PyLong_AsVoidPtr(given);
  if (PyErr_Occurred()) return nullptr;
  const std::lock_guard<std::mutex> lock(idle_lock);
  return PyBool_FromLong(idle_for(context, thread_count()) != idle.end());
}

}  // namespace launcher
