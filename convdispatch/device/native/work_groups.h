// Runs OpenCL kernels on a CPU in the threads of PyTorch's own operators, so that one pool of threads serves both.
//
// Each thread enqueues a part of a kernel's work groups on its own queue, whose commands the enqueuing thread computes
// itself (Intel's cl_intel_exec_by_local_thread). Python determines the axes along which a kernel may be divided.
#pragma once

#include "programs.h"

#include <algorithm>
#include <atomic>
#include <chrono>

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace launcher {

constexpr int64_t kLeastPart = 2000;  // the shortest part in nanoseconds, because enqueuing one takes 1,000 with warm caches
constexpr int64_t kLongPart = 100000;  // the least nanoseconds of the parts of a long launch: enqueuing a part takes up to 7,000 after a kernel of a net has filled the caches
constexpr int64_t kShares = 4;  // the most parts a thread of a long launch, which free threads take one by one
constexpr int64_t kManyRows = 8;  // with as many rows a part, rows are not cut: the longest part is an eighth longer
constexpr int64_t kShortRow = 4000;  // nanoseconds of a row that is not cut, because enqueuing both ends takes half of it
constexpr int64_t kTurns = 5000;  // nanoseconds in which the threads begin to enqueue their parts of a launch, one after the other
constexpr int kSpins = 5000;  // checks of other threads' parts, some 100 microseconds, before a thread sleeps; waking it takes half

// The type of clEnqueueNDRangeKernel.
using Enqueue = int32_t (*)(void *, void *, uint32_t, const size_t *, const size_t *, const size_t *, uint32_t, void *, void *);

// The type of clSetKernelArgSVMPointer.
using SetPointer = int32_t (*)(void *, uint32_t, const void *);

struct Argument {  // a kernel argument that is memory
  uint32_t index, operand;
  uint64_t offset, set = 0;  // byte offset into the operand; the address that was set last
};

struct Groups {  // the work groups of one kernel's launch
  void *kernel;
  std::vector<Argument> arguments;  // the arguments that are memory; all others are set already
  uint32_t axes, row, column;  // number of axes; the axes along which the launch is divided, equal if there is only one
  size_t global[3] = {1, 1, 1}, local[3] = {1, 1, 1};
  bool sized;  // whether the caller specified `local`
  int64_t took = INT64_MAX;  // total nanoseconds of all parts of the last call; INT64_MAX before the first call

  int64_t along(uint32_t axis) const { return static_cast<int64_t>(global[axis] / local[axis]); }
  int64_t rows() const { return along(row); }
  int64_t columns() const { return column == row ? 1 : along(column); }
  int64_t count() const { return rows() * columns(); }

  // The number of parts of a call on this number of threads; no part is so short that enqueuing it would take longer.
  int64_t parts(int64_t threads) const {
    const int64_t shares = took == INT64_MAX ? 1 : std::clamp<int64_t>(took / threads / kLongPart, 1, kShares);
    return std::max<int64_t>(1, std::min({count(), threads * shares, took / kLeastPart}));
  }
};

inline void breathe() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

struct alignas(64) Progress {  // the progress of one launch in a call
  int64_t parts = 0;
  std::atomic<int64_t> next{0}, took{0};          // the part to be taken next; nanoseconds of the finished parts
  std::atomic<int32_t> left{0}, sleepers{0};      // unfinished parts; threads that sleep until none is left

  void end_part() {
    if (left.fetch_sub(1) == 1 && sleepers.load()) futex(FUTEX_WAKE_PRIVATE, INT32_MAX);
  }

  // Waits until all parts are done. If a part takes long, the system has interrupted it; then this thread sleeps on a
  // futex, which wakes it at once when the part ends. Yielding the core instead would lose a time slice each time.
  void wait() {
    for (int spins = 0; spins < kSpins; ++spins) {
      if (!left.load(std::memory_order_acquire)) return;
      breathe();
    }
    sleepers.fetch_add(1);
    while (const int32_t seen = left.load()) futex(FUTEX_WAIT_PRIVATE, seen);
    sleepers.fetch_sub(1);
  }

 private:
  void futex(int what, int32_t value) {
    static_assert(sizeof left == sizeof(int32_t), "a futex is 32 bits");
    syscall(SYS_futex, &left, what, value, nullptr, nullptr, 0);
  }
};

struct Launches {
  Enqueue enqueue;
  SetPointer set;
  std::vector<Groups> each;
  std::unique_ptr<Progress[]> progress;  // the progress of each launch, for one call at a time
};
inline const char *const kLaunches = "convdispatch.device.native.launches";

inline Launches *launches_of(PyObject *capsule) {
  return static_cast<Launches *>(PyCapsule_GetPointer(capsule, kLaunches));
}

// One call of launches in order, by any number of threads. A thread takes parts of a launch while there are any, and
// then waits for the parts that other threads took. It never waits for a thread, so a late or missing one delays nobody.
struct Run {
  const Launches &launches;
  void *const *queues;
  const int64_t turn;  // nanoseconds between the beginnings of two threads' enqueues
  std::atomic<int32_t> status{0};
  std::atomic<int64_t> last_turn{0};  // the time of the last beginning

  // Enqueues the work groups of a range of rows and columns; returns an OpenCL status.
  int32_t give(const Groups &groups, std::pair<int64_t, int64_t> rows, std::pair<int64_t, int64_t> columns,
               void *queue) const {
    size_t offset[3] = {}, size[3] = {groups.global[0], groups.global[1], groups.global[2]};
    const auto take = [&](uint32_t axis, std::pair<int64_t, int64_t> range) {
      offset[axis] = static_cast<size_t>(range.first) * groups.local[axis];
      size[axis] = static_cast<size_t>(range.second - range.first) * groups.local[axis];
    };
    if (rows.first == rows.second || columns.first == columns.second) return 0;
    take(groups.column, columns);
    take(groups.row, rows);
    return launches.enqueue(queue, groups.kernel, groups.axes, offset, size, groups.sized ? groups.local : nullptr, 0,
                            nullptr, nullptr);
  }

  // Enqueues a part of a launch: the end of a row, whole rows, and the beginning of a row.
  int32_t part(const Groups &groups, int64_t part, int64_t parts, void *queue) const {
    const int64_t rows = groups.rows(), columns = groups.columns(), count = rows * columns;
    const int64_t begin = count * part / parts, end = count * (part + 1) / parts;
    if (columns == 1 || rows >= kManyRows * parts || groups.took / rows <= kShortRow)
      return give(groups, {rows * part / parts, rows * (part + 1) / parts}, {0, columns}, queue);
    int64_t from = begin / columns, to = end / columns;
    if (from == to) return give(groups, {from, from + 1}, {begin % columns, end % columns}, queue);
    int32_t status = 0;
    if (begin % columns) {
      status = give(groups, {from, from + 1}, {begin % columns, columns}, queue);
      ++from;
    }
    if (!status) status = give(groups, {from, to}, {0, columns}, queue);
    return status ? status : give(groups, {to, to + 1}, {0, end % columns}, queue);
  }

  // Waits until it is this thread's turn to enqueue. OpenCL's runtime looks a kernel up under a mutex. All threads enqueue
  // as soon as the launch before is over, so they would meet there, and the system puts a thread that meets another to
  // sleep: that costs up to 25,000 nanoseconds.
  void take_turn() {
    using Clock = std::chrono::steady_clock;
    const auto now = [] { return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count(); };
    int64_t last = last_turn.load(), mine;
    do mine = std::max<int64_t>(now(), last + turn);
    while (!last_turn.compare_exchange_weak(last, mine));
    while (now() < mine) breathe();
  }

  // Does one thread's work; `thread` is an index that no other running thread has.
  void work(int64_t thread) {
    using Clock = std::chrono::steady_clock;
    for (size_t at = 0; at < launches.each.size(); ++at) {
      Progress &now = launches.progress[at];
      for (int64_t mine; (mine = now.next.fetch_add(1, std::memory_order_relaxed)) < now.parts;) {
        if (now.parts > 1) take_turn();
        const auto begin = Clock::now();
        if (!status.load(std::memory_order_relaxed))
          if (const int32_t found = part(launches.each[at], mine, now.parts, queues[thread])) status = found;
        now.took += std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begin).count();
        now.end_part();
      }
      now.wait();
    }
  }
};

// Runs all launches; returns an OpenCL status.
inline int32_t run_all(Launches &launches, void *const *queues, int64_t threads) {
  int64_t most = 1;
  for (size_t at = 0; at < launches.each.size(); ++at) {
    Progress &now = launches.progress[at];
    most = std::max(most, now.parts = launches.each[at].parts(threads));
    now.next = 0, now.left = static_cast<int32_t>(now.parts), now.took = 0;
  }
  Run run{launches, queues, kTurns / threads};
  const auto work = [](int64_t from, int64_t to, void *context) {
    for (; from < to; ++from) static_cast<Run *>(context)->work(from);
  };
  if (most == 1)
    run.work(0);
  else if (torch_parallel_for(0, std::min(threads, most), 1, work, &run))
    return -1;
  for (size_t at = 0; at < launches.each.size(); ++at) launches.each[at].took = launches.progress[at].took;
  return run.status;
}

// Sets the kernels' arguments to the memory of the operands; returns an OpenCL status.
inline int32_t set_addresses(Launches &launches, const std::vector<uint64_t> &operands) {
  for (Groups &groups : launches.each)
    for (Argument &argument : groups.arguments) {
      if (argument.operand >= operands.size()) return -49;  // CL_INVALID_ARG_INDEX
      const uint64_t address = operands[argument.operand] + argument.offset;
      if (address == argument.set) continue;
      argument.set = 0;
      if (int32_t status = launches.set(groups.kernel, argument.index, reinterpret_cast<void *>(address))) return status;
      argument.set = address;
    }
  return 0;
}

// groups(enqueue, set, [(kernel, (row axis, column axis), global sizes, local sizes or (), [(argument, operand, offset)])])
// returns a capsule for one thread. Raises ValueError.
inline PyObject *make_groups(PyObject *, PyObject *given) {
  unsigned long long enqueue, set;
  PyObject *launches;
  if (!PyArg_ParseTuple(given, "KKO", &enqueue, &set, &launches)) return nullptr;
  auto made = std::make_unique<Launches>();
  made->enqueue = reinterpret_cast<Enqueue>(enqueue), made->set = reinterpret_cast<SetPointer>(set);
  const bool taken = each_of(launches, [&](PyObject *one) {
    unsigned long long kernel;
    PyObject *global, *local, *arguments;
    std::vector<size_t> sizes, items;
    Groups groups{};
    if (!PyArg_ParseTuple(one, "K(II)OOO", &kernel, &groups.row, &groups.column, &global, &local, &arguments) ||
        !integers(global, sizes) || !integers(local, items))
      return false;
    groups.kernel = reinterpret_cast<void *>(kernel);
    groups.axes = static_cast<uint32_t>(sizes.size()), groups.sized = !items.empty();
    bool fine = sizes.size() <= 3 && std::max(groups.row, groups.column) < sizes.size() && (items.empty() || items.size() == sizes.size());
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
  made->progress.reset(new Progress[made->each.size()]);
  return PyCapsule_New(made.release(), kLaunches, [](PyObject *capsule) { delete launches_of(capsule); });
}

}  // namespace launcher
