// Programs: a problem's launches as Python decided them once. A call puts addresses in and launches; no policy is here.
#pragma once

#include "abi.h"

namespace launcher {

constexpr size_t kRoom = 1024;  // bytes of a kernel's arguments, at most
constexpr uint64_t kAlignment = 16;  // bytes that kernels load and copy at once, at most

inline Driver driver;
inline std::unordered_map<std::string, uint64_t> solved;  // by solver: calls since Python asked last
inline const std::string *recent[8];  // whose launches came last, a ring
inline unsigned latest = 0;

struct Place {
  uint32_t at, operand;  // bytes into the arguments; an operand's number, or that of an area of scratch memory
  uint64_t offset;
};

struct Launch {
  void *function;
  unsigned grid[3], block[3], overlaps;
  std::vector<char> arguments;
  std::vector<Place> places;
};

struct Program {
  std::vector<Launch> launches;
  std::vector<uint64_t> areas;  // of scratch memory: where each begins
  uint64_t scratch = 0;
  std::vector<int64_t> sizes, strides;  // of the tensor that it writes
  void *context = nullptr;
  std::pair<const std::string, uint64_t> *tally = nullptr;

  void count(int by) const {
    tally->second += by;
    recent[latest++ % 8] = &tally->first;
  }

  // Launch on the operands, `count` of them; false where nothing ran, or not all of it.
  bool run(void *stream, std::vector<uint64_t> &operands, int32_t kind, int32_t index) const {
    static const int32_t bytes = aoti_torch_dtype_uint8();
    static Attribute early{6, 0, {1}};  // CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    static thread_local const void *known = &early;  // the stream to which a kernel was given last: none yet
    Owned memory;  // lives until the launches are given: PyTorch's allocator keeps the stream's order
    if (scratch) {
      const int64_t size = static_cast<int64_t>(scratch), step = 1;
      void *begin = nullptr;
      if (aoti_torch_empty_strided(1, &size, &step, bytes, kind, index, memory.put()) ||
          aoti_torch_get_data_ptr(memory.get(), &begin))
        return false;
      for (uint64_t area : areas) operands.push_back(reinterpret_cast<uint64_t>(begin) + area);
    }
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
                    0, stream, &early, after_kernel ? each.overlaps : 0};
      if (driver.launch(&config, each.function, nullptr, extra)) return false;
      after_kernel = true;
    }
    known = stream;
    return true;
  }

  bool here() const {
    void *found = nullptr;
    return !driver.current_context(&found) && found == context;
  }

  bool allocate(Owned &out, const Seen &like) const {
    return !aoti_torch_empty_strided(static_cast<int64_t>(sizes.size()), sizes.data(), strides.data(), like.dtype,
                                     like.kind, like.index, out.put());
  }
};

using Shared = std::shared_ptr<const Program>;

inline const char *const kProgram = "convdispatch.device.native.program";

inline Shared *program_of(PyObject *capsule) {
  return static_cast<Shared *>(PyCapsule_GetPointer(capsule, kProgram));
}

inline bool integers(PyObject *sequence, std::vector<int64_t> &found) {
  const Py_ssize_t count = PySequence_Size(sequence);
  for (Py_ssize_t at = 0; at < count; ++at) {
    Ref each(PySequence_GetItem(sequence, at));
    found.push_back(each ? PyLong_AsLongLong(each.get()) : -1);
    if (PyErr_Occurred()) return false;
  }
  return count >= 0;
}

// program(name, context, launches, areas, scratch, sizes, strides) -> a capsule; launches are (function, groups and
// items, overlaps, arguments, [(byte, operand, offset)]).
inline PyObject *make_program(PyObject *, PyObject *given) {
  const char *name;
  unsigned long long context, scratch;
  PyObject *launches, *areas, *sizes, *strides;
  auto made = std::make_shared<Program>();
  if (!PyArg_ParseTuple(given, "sKOOKOO", &name, &context, &launches, &areas, &scratch, &sizes, &strides))
    return nullptr;
  made->context = reinterpret_cast<void *>(context);
  made->scratch = scratch;
  std::vector<int64_t> begins;
  if (!integers(areas, begins) || !integers(sizes, made->sizes) || !integers(strides, made->strides)) return nullptr;
  made->areas.assign(begins.begin(), begins.end());
  const Py_ssize_t count = PySequence_Size(launches);
  for (Py_ssize_t at = 0; at < count; ++at) {
    Ref one(PySequence_GetItem(launches, at));
    Launch launch{};
    unsigned long long function;
    PyObject *extents, *places;
    const char *bytes;
    Py_ssize_t size;
    if (!one || !PyArg_ParseTuple(one.get(), "KOIy#O", &function, &extents, &launch.overlaps, &bytes, &size, &places))
      return nullptr;
    std::vector<int64_t> six;
    if (!integers(extents, six)) return nullptr;
    if (six.size() != 6 || size > static_cast<Py_ssize_t>(kRoom))
      return PyErr_Format(PyExc_ValueError, "a launch takes 6 extents and at most %zu bytes of arguments, got %zu and "
                          "%zd", kRoom, six.size(), size);
    for (int axis = 0; axis < 3; ++axis)
      launch.grid[axis] = static_cast<unsigned>(six[axis]), launch.block[axis] = static_cast<unsigned>(six[axis + 3]);
    launch.function = reinterpret_cast<void *>(function);
    launch.arguments.assign(bytes, bytes + size);
    const Py_ssize_t slots = PySequence_Size(places);
    for (Py_ssize_t slot = 0; slot < slots; ++slot) {
      Ref each(PySequence_GetItem(places, slot));
      std::vector<int64_t> three;
      if (!each || !integers(each.get(), three)) return nullptr;
      if (three.size() != 3 || three[0] < 0 || three[0] + 8 > size)
        return PyErr_Format(PyExc_ValueError, "an address is (byte, operand, offset) within %zd bytes", size);
      launch.places.push_back({static_cast<uint32_t>(three[0]), static_cast<uint32_t>(three[1]),
                               static_cast<uint64_t>(three[2])});
    }
    made->launches.push_back(std::move(launch));
  }
  made->tally = &*solved.try_emplace(name, 0).first;
  return PyCapsule_New(new Shared(std::move(made)), kProgram, [](PyObject *capsule) { delete program_of(capsule); });
}

}  // namespace launcher
