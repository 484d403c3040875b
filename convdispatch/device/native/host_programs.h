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

class Lent {  // takes idle queues for one call, and returns them in its destructor
 public:
  Lent(void *context, size_t threads) {
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
    uint32_t threads = 1;
    if (!alone || torch_get_num_threads(&threads)) return false;
    threads = std::max(threads, 1u);
    const Lent queues(context_, threads);
    if (!queues.each()) return false;
    for (Groups &groups : launches_->each)
      for (Argument &argument : groups.arguments)
        if (argument.operand >= operands.size() ||
            set_address(*launches_, groups, argument, operands[argument.operand] + argument.offset))
          return false;
    return !run_all(*launches_, queues.each(), threads);
  }

 private:
  Launches *launches_;
  void *context_;
  PyObject *kept_;
  std::mutex busy_;
};

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
  made->tally = &*solved.try_emplace(name, 0).first;
  return PyCapsule_New(new Shared(std::move(made)), kProgram, [](PyObject *capsule) { delete program_of(capsule); });
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

// has_idle(context, threads) returns whether a call with this number of threads would find idle queues.
inline PyObject *has_idle(PyObject *, PyObject *given) {
  unsigned long long context, threads;
  if (!PyArg_ParseTuple(given, "KK", &context, &threads)) return nullptr;
  const std::lock_guard<std::mutex> lock(idle_lock);
  return PyBool_FromLong(idle_for(reinterpret_cast<void *>(context), threads) != idle.end());
}

}  // namespace launcher
