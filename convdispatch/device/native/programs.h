// Programs: a problem's launches, which Python has decided. A call inserts addresses and launches; no policy is here.
#pragma once

#include "abi.h"

namespace launcher {

constexpr size_t kRoom = 1024;  // the most bytes of a kernel's arguments
constexpr uint64_t kAlignment = 16;  // the alignment in bytes of operands, because kernels load up to 16 bytes at once

inline Driver driver;
inline std::unordered_map<std::string, uint64_t> solved;  // calls by solver since Python last called counts()
inline const std::string *recent[8];  // a ring of the solvers of the last launches
inline unsigned latest = 0;
inline uint64_t uses = 0;  // the number of launches of all programs

struct Place {
  uint32_t at, operand;  // byte offset in the arguments; number of an operand or of an area of scratch memory
  uint64_t offset;
};

struct Launch {
  void *function;
  unsigned grid[3], block[3], shared, overlaps;
  std::vector<char> arguments;
  std::vector<Place> places;
};

struct Host {  // the interface of launches on a CPU, see host_programs.h
  virtual ~Host() = default;
  // Returns false if nothing ran, or not everything.
  virtual bool run(const std::vector<uint64_t> &operands) = 0;
};

struct Program {
  std::vector<Launch> launches;
  std::unique_ptr<Host> host;  // replaces `launches` on a CPU
  std::vector<uint64_t> areas;  // byte offsets of the areas of scratch memory
  uint64_t scratch = 0;
  std::vector<int64_t> sizes, strides;  // the shape of the output tensor
  void *context = nullptr;
  std::pair<const std::string, uint64_t> *tally = nullptr;
  mutable uint64_t used = 0;  // the number of its last launch among all; 0 if there was none since the last used()

  void count(int by) const {
    used = ++uses;
    tally->second += by;
    recent[latest++ % 8] = &tally->first;
  }

  // Launches on the operands; returns false if nothing ran, or not everything.
  bool run(void *stream, std::vector<uint64_t> &operands, int32_t kind, int32_t index) const {
    static const int32_t bytes = aoti_torch_dtype_uint8();
    static Attribute early{6, 0, {1}};  // CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    static thread_local const void *known = &early;  // the stream of this thread's last kernel; at first none
    Owned memory;  // kept until everything is launched, then PyTorch's allocator reuses it in the stream's order
    if (scratch) {
      const int64_t size = static_cast<int64_t>(scratch), step = 1;
      void *begin = nullptr;
      if (!made(memory, aoti_torch_empty_strided, 1, &size, &step, bytes, kind, index) ||
          aoti_torch_get_data_ptr(memory.get(), &begin))
        return false;
      for (uint64_t area : areas) operands.push_back(reinterpret_cast<uint64_t>(begin) + area);
    }
    if (host) return host->run(operands);
    bool after_kernel = known == stream;
    for (const Launch &each : launches) {
      alignas(16) char room[kRoom];
      std::memcpy(room, each.arguments.data(), each.arguments.size());
      for (const Place &place : each.places) {
        const uint64_t address = operands[place.operand] + place.offset;
        std::memcpy(room + place.at, &address, sizeof address);
      }
      size_t size = each.arguments.size();
      void *extra[] = {reinterpret_cast<void *>(1), room, reinterpret_cast<void *>(2), &size, nullptr};
      Config config{{each.grid[0], each.grid[1], each.grid[2]}, {each.block[0], each.block[1], each.block[2]},
                    each.shared, stream, &early, after_kernel ? each.overlaps : 0};
      if (driver.launch(&config, each.function, nullptr, extra)) return false;
      after_kernel = true;
    }
    known = stream;
    return true;
  }

  bool here() const {
    void *found = nullptr;
    return host || !driver.current_context(&found) && found == context;
  }

  // Allocates the output; returns its address, or 0 if that fails.
  uint64_t allocate(Owned &out, const Seen &like) const {
    void *data = nullptr;
    const bool fine = made(out, aoti_torch_empty_strided, static_cast<int64_t>(sizes.size()), sizes.data(),
                           strides.data(), like.dtype, like.kind, like.index);
    return fine && !aoti_torch_get_data_ptr(out.get(), &data) ? reinterpret_cast<uint64_t>(data) : 0;
  }
};

using Shared = std::shared_ptr<const Program>;
inline const char *const kProgram = "convdispatch.device.native.program";

inline Shared *program_of(PyObject *capsule) {
  return static_cast<Shared *>(PyCapsule_GetPointer(capsule, kProgram));
}

// A capsule with a program of the solver `name`.
inline PyObject *capsule_of(std::shared_ptr<Program> program, const char *name) {
  program->tally = &*solved.try_emplace(name, 0).first;
  return PyCapsule_New(new Shared(std::move(program)), kProgram, [](PyObject *capsule) { delete program_of(capsule); });
}

// used(program) returns the number of its last launch among all programs' launches; 0 if it was not launched since the
// last call of used().
inline PyObject *program_used(PyObject *, PyObject *capsule) {
  Shared *program = program_of(capsule);
  return program ? PyLong_FromUnsignedLongLong(std::exchange((*program)->used, 0)) : nullptr;
}

// Calls `take` for each item of a sequence, until one returns false; returns whether all returned true.
template <typename Take>
bool each_of(PyObject *sequence, Take take) {
  const Py_ssize_t count = PySequence_Size(sequence);
  for (Py_ssize_t at = 0; at < count; ++at)
    if (Ref item{PySequence_GetItem(sequence, at)}; !item || !take(item.get())) return false;
  return count >= 0;
}

template <typename Integer>
bool integers(PyObject *sequence, std::vector<Integer> &found) {
  return each_of(sequence, [&](PyObject *item) {
    found.push_back(static_cast<Integer>(PyLong_AsLongLong(item)));
    return !PyErr_Occurred();
  });
}

// program(name, context, launches, areas, scratch, sizes, strides) returns a program in a capsule; launches are
// (function, (groups, items, shared memory), overlaps, arguments, [(byte, operand, offset)]). Raises ValueError for
// arguments of more than kRoom bytes.
inline PyObject *make_program(PyObject *, PyObject *given) {
  const char *name;
  unsigned long long context, scratch;
  PyObject *launches, *areas, *sizes, *strides;
  auto made = std::make_shared<Program>();
  if (!PyArg_ParseTuple(given, "sKOOKOO", &name, &context, &launches, &areas, &scratch, &sizes, &strides) ||
      !integers(areas, made->areas) || !integers(sizes, made->sizes) || !integers(strides, made->strides))
    return nullptr;
  made->context = reinterpret_cast<void *>(context);
  made->scratch = scratch;
  const bool taken = each_of(launches, [&](PyObject *one) {
    Launch &launch = made->launches.emplace_back();
    unsigned long long function;
    PyObject *places;
    const char *bytes;
    Py_ssize_t size;
    unsigned *of = launch.grid, *in = launch.block;
    if (!PyArg_ParseTuple(one, "K(IIIIIII)Iy#O", &function, of, of + 1, of + 2, in, in + 1, in + 2, &launch.shared,
                          &launch.overlaps, &bytes, &size, &places))
      return false;
    if (size > static_cast<Py_ssize_t>(kRoom))
      return PyErr_Format(PyExc_ValueError, "at most %zu bytes of arguments, got %zd", kRoom, size), false;
    launch.function = reinterpret_cast<void *>(function);
    launch.arguments.assign(bytes, bytes + size);
    return each_of(places, [&](PyObject *each) {
      unsigned long long offset;
      Place place;
      if (!PyArg_ParseTuple(each, "IIK", &place.at, &place.operand, &offset)) return false;
      if (place.at + 8 > size)
        return PyErr_Format(PyExc_ValueError, "an address at byte %u of %zd", place.at, size), false;
      place.offset = offset;
      launch.places.push_back(place);
      return true;
    });
  });
  return taken ? capsule_of(std::move(made), name) : nullptr;
}

}  // namespace launcher
