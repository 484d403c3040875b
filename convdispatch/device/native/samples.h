// Compares pieces of memory with their earlier content; prefetches overlap the reads, where Python would wait for each.
#pragma once

#include "abi.h"

#include <algorithm>

namespace launcher {

constexpr size_t kAhead = 24;  // the number of pieces that are prefetched before they are compared

struct Pieces {
  std::vector<const char *> places;
  std::vector<uint32_t> sizes;
  std::string held;

  bool hold() const {
    const size_t count = places.size();
    for (size_t at = 0; at < std::min(kAhead, count); ++at) __builtin_prefetch(places[at]);
    const char *before = held.data();
    for (size_t at = 0; at < count; before += sizes[at++]) {
      if (at + kAhead < count) __builtin_prefetch(places[at + kAhead]);
      if (std::memcmp(places[at], before, sizes[at])) return false;
    }
    return true;
  }
};
inline const char *const kPieces = "convdispatch.device.native.pieces";

inline Pieces *pieces_of(PyObject *capsule) { return static_cast<Pieces *>(PyCapsule_GetPointer(capsule, kPieces)); }

// pieces(addresses, sizes, held) returns a capsule. All three are bytes: addresses of 8 bytes, sizes of 4 bytes, and the
// content of all pieces in a row. Raises ValueError.
inline PyObject *make_pieces(PyObject *, PyObject *given) {
  const char *addresses, *sizes, *held;
  Py_ssize_t places, bytes, length;
  if (!PyArg_ParseTuple(given, "y#y#y#", &addresses, &places, &sizes, &bytes, &held, &length)) return nullptr;
  auto made = std::make_unique<Pieces>();
  made->places.resize(static_cast<size_t>(places) / sizeof(void *)), made->sizes.resize(static_cast<size_t>(bytes) / 4);
  std::memcpy(made->places.data(), addresses, made->places.size() * sizeof(void *));
  std::memcpy(made->sizes.data(), sizes, made->sizes.size() * 4);
  made->held.assign(held, static_cast<size_t>(length));
  size_t all = 0;
  for (uint32_t each : made->sizes) all += each;
  if (made->places.size() != made->sizes.size() || all != made->held.size())
    return PyErr_Format(PyExc_ValueError, "%zu places, %zu sizes of %zu bytes, got %zd bytes", made->places.size(),
                        made->sizes.size(), all, length);
  return PyCapsule_New(made.release(), kPieces, [](PyObject *capsule) { delete pieces_of(capsule); });
}

// hold(pieces) returns whether all pieces of memory still have their earlier content.
inline PyObject *pieces_hold(PyObject *, PyObject *capsule) {
  const Pieces *pieces = pieces_of(capsule);
  return pieces ? PyBool_FromLong(pieces->hold()) : nullptr;
}

}  // namespace launcher
