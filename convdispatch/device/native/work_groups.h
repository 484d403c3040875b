// OpenCL kernels on a CPU in the threads of PyTorch's own operators, so that one pool of threads serves both.
//
// Each thread gives a part of a kernel's work groups to a queue of its own, whose commands the giving thread computes
// itself (Intel's cl_intel_exec_by_local_thread). Python says along which axis work groups may be given apart.
#pragma once

#include "programs.h"

#include <algorithm>
#include <atomic>
#include <chrono>

namespace launcher {

constexpr int64_t kLong = 100;  // microseconds from which on threads take several parts each, whoever is free the next
constexpr int64_t kShares = 4;

// clEnqueueNDRangeKernel.
using Enqueue = int32_t (*)(void *, void *, uint32_t, const size_t *, const size_t *, const size_t *, uint32_t, void *, void *);

// clSetKernelArgSVMPointer and clSetKernelArg.
using SetPointer = int32_t (*)(void *, uint32_t, const void *);
using SetValue = int32_t (*)(void *, uint32_t, size_t, const void *);

struct Argument {  // one that is memory
  uint32_t index, operand;
  uint64_t offset, set = 0;  // bytes into the operand; what it was set to last
};

struct Groups {  // of one kernel
  void *kernel;
  std::vector<Argument> arguments;  // the others are set
  uint32_t axes, axis;  // how many, and the one along which they are given apart
  size_t global[3] = {1, 1, 1}, local[3] = {1, 1, 1};
  bool sized;  // whether `local` is the caller's
  int64_t shares = 1;  // parts for each thread

  int64_t count() const { return static_cast<int64_t>(global[axis] / local[axis]); }
};

struct Launches {
  Enqueue enqueue;
  SetPointer set;
  SetValue set_value;
  std::vector<Groups> each;
};
inline const char *const kLaunches = "convdispatch.device.native.launches";

inline Launches *launches_of(PyObject *capsule) {
  return static_cast<Launches *>(PyCapsule_GetPointer(capsule, kLaunches));
}

struct Division {  // of a launch's groups among threads
  const Groups &groups;
  Enqueue enqueue;
  void *const *queues;
  int64_t parts;
  std::atomic<int64_t> next{0};
  std::atomic<int32_t> status{0};

  // A thread's work; `thread` is no other's that works now.
  void work(int64_t thread) {
    for (int64_t part; (part = next.fetch_add(1, std::memory_order_relaxed)) < parts;) {
      const int64_t from = groups.count() * part / parts, to = groups.count() * (part + 1) / parts;
      size_t offset[3] = {}, size[3] = {groups.global[0], groups.global[1], groups.global[2]};
      const size_t unit = groups.local[groups.axis];
      offset[groups.axis] = static_cast<size_t>(from) * unit, size[groups.axis] = static_cast<size_t>(to - from) * unit;
      const int32_t found = enqueue(queues[thread], groups.kernel, groups.axes, offset, size,
                                    groups.sized ? groups.local : nullptr, 0, nullptr, nullptr);
      if (found) status = found;
    }
  }
};

// Run a launch; an OpenCL status.
inline int32_t divided(Groups &groups, Enqueue enqueue, void *const *queues, int64_t threads) {
  Division division{groups, enqueue, queues, std::min(groups.count(), threads * groups.shares)};
  const auto begin = std::chrono::steady_clock::now();
  const auto work = [](int64_t from, int64_t, void *context) { static_cast<Division *>(context)->work(from); };
  if (torch_parallel_for(0, std::min(threads, division.parts), 1, work, &division)) return -1;
  const auto took = std::chrono::steady_clock::now() - begin;
  groups.shares = took > std::chrono::microseconds(kLong) ? kShares : 1;
  return division.status;
}

// groups(enqueue, set, set_value, [(kernel, axis, global sizes, local sizes or (), [(argument, operand, offset)])]) -> a
// capsule, one thread's. Raises ValueError.
inline PyObject *make_groups(PyObject *, PyObject *given) {
  unsigned long long enqueue, set, set_value;
  PyObject *launches;
  if (!PyArg_ParseTuple(given, "KKKO", &enqueue, &set, &set_value, &launches)) return nullptr;
  auto made = std::make_unique<Launches>();
  made->enqueue = reinterpret_cast<Enqueue>(enqueue), made->set = reinterpret_cast<SetPointer>(set);
  made->set_value = reinterpret_cast<SetValue>(set_value);
  const bool taken = each_of(launches, [&](PyObject *one) {
    unsigned long long kernel;
    PyObject *global, *local, *arguments;
    std::vector<size_t> sizes, items;
    Groups groups{};
    if (!PyArg_ParseTuple(one, "KIOOO", &kernel, &groups.axis, &global, &local, &arguments) || !integers(global, sizes) ||
        !integers(local, items))
      return false;
    groups.kernel = reinterpret_cast<void *>(kernel);
    groups.axes = static_cast<uint32_t>(sizes.size()), groups.sized = !items.empty();
    bool fine = sizes.size() <= 3 && groups.axis < sizes.size() && (items.empty() || items.size() == sizes.size());
    for (size_t at = 0; fine && at < sizes.size(); ++at) {
      groups.global[at] = sizes[at];
      if (groups.sized) groups.local[at] = items[at];
      fine = groups.local[at] && sizes[at] && sizes[at] % groups.local[at] == 0;
    }
    if (!fine) return PyErr_SetString(PyExc_ValueError, "sizes of at most 3 axes in whole work groups"), false;
    made->each.push_back(std::move(groups));
    return each_of(arguments, [&](PyObject *each) {
      unsigned long long offset;
      Argument argument{};
      if (!PyArg_ParseTuple(each, "IIK", &argument.index, &argument.operand, &offset)) return false;
      argument.offset = offset;
      made->each.back().arguments.push_back(argument);
      return true;
    });
  });
  if (!taken) return nullptr;
  return PyCapsule_New(made.release(), kLaunches, [](PyObject *capsule) { delete launches_of(capsule); });
}

// point(capsule, operands, but): kernels take the addresses from now on; operand `but` is set by the caller. Raises
// ValueError for one too few, RuntimeError with OpenCL's status.
inline PyObject *point_groups(PyObject *, PyObject *given) {
  PyObject *capsule, *operands;
  int but;
  std::vector<uint64_t> addresses;
  if (!PyArg_ParseTuple(given, "OOi", &capsule, &operands, &but) || !integers(operands, addresses)) return nullptr;
  Launches *launches = launches_of(capsule);
  if (!launches) return nullptr;
  for (Groups &groups : launches->each)
    for (Argument &argument : groups.arguments) {
      if (argument.operand >= addresses.size()) return PyErr_Format(PyExc_ValueError, "no operand %u", argument.operand);
      const uint64_t address = static_cast<int>(argument.operand) == but ? 0 : addresses[argument.operand] + argument.offset;
      if (address && address != argument.set)
        if (int32_t status = launches->set(groups.kernel, argument.index, reinterpret_cast<void *>(address)))
          return PyErr_Format(PyExc_RuntimeError, "clSetKernelArgSVMPointer answers %d", status);
      argument.set = address;
    }
  Py_RETURN_NONE;
}

// run_groups(capsule, queues): all launches in order, over when this returns; `queues` are bytes, an address a thread.
// Raises RuntimeError with OpenCL's status.
inline PyObject *run_groups(PyObject *, PyObject *given) {
  PyObject *capsule;
  const char *bytes;
  Py_ssize_t size;
  if (!PyArg_ParseTuple(given, "Oy#", &capsule, &bytes, &size)) return nullptr;
  Launches *launches = launches_of(capsule);
  if (!launches) return nullptr;
  std::vector<void *> queues(static_cast<size_t>(size) / sizeof(void *));
  if (queues.empty()) return PyErr_Format(PyExc_ValueError, "no queue was given");
  std::memcpy(queues.data(), bytes, queues.size() * sizeof(void *));
  int32_t status = 0;
  Py_BEGIN_ALLOW_THREADS
  uint32_t threads = 1;
  torch_get_num_threads(&threads);
  const int64_t most = std::min<int64_t>(std::max(threads, 1u), static_cast<int64_t>(queues.size()));
  for (Groups &each : launches->each)
    if ((status = divided(each, launches->enqueue, queues.data(), most))) break;
  Py_END_ALLOW_THREADS
  if (status) return PyErr_Format(PyExc_RuntimeError, "clEnqueueNDRangeKernel answers %d", status);
  Py_RETURN_NONE;
}

}  // namespace launcher
