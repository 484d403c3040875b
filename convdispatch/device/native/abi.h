// What the launcher takes of PyTorch and of CUDA's driver: PyTorch's stable C interface by its own headers, the driver
// by name, so that one build serves every PyTorch from 2.11 on, and machines without CUDA load it too.
#pragma once

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#ifndef TORCH_TARGET_VERSION
#define TORCH_TARGET_VERSION 0x020b000000000000ULL
#endif
#include <torch/csrc/stable/c/shim.h>

#include <dlfcn.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

namespace launcher {

// --- CUDA's driver ---------------------------------------------------------------------------------------------------

struct Attribute {  // CUlaunchAttribute
  unsigned kind, pad, value[16];
};

struct Config {  // CUlaunchConfig
  unsigned grid[3], block[3], shared;
  void *stream;
  Attribute *attributes;
  unsigned count;
};

struct Driver {
  int (*current_context)(void **) = nullptr;
  int (*launch)(const Config *, void *, void **, void **) = nullptr;
  AOTITorchError (*current_stream)(int32_t, void **) = nullptr;

  // Why it cannot be used; empty where it can. `library` is CUDA's driver, or what stands for it in tests.
  std::string open(const char *library) {
    void *driver = dlopen(library, RTLD_NOW | RTLD_GLOBAL);
    if (!driver) return std::string(library) + " does not load";
    find(current_context, driver, "cuCtxGetCurrent");
    find(launch, driver, "cuLaunchKernelEx");
    find(current_stream, driver, "aoti_torch_get_current_cuda_stream");
    for (const char *name : {"libtorch_cuda.so", "libtorch_cpu.so"})  // where PyTorch is already
      if (void *torch = current_stream ? nullptr : dlopen(name, RTLD_NOW | RTLD_NOLOAD))
        find(current_stream, torch, "aoti_torch_get_current_cuda_stream");
    if (!current_context || !launch) return std::string(library) + " has no cuLaunchKernelEx";
    return current_stream ? "" : "this PyTorch has no CUDA";
  }

 private:
  template <typename T>
  static void find(T &function, void *library, const char *name) {
    function = reinterpret_cast<T>(dlsym(library, name));
  }
};

// --- PyTorch's values ------------------------------------------------------------------------------------------------

// An operator's arguments as its boxed kernel gets them: ours to give back. Nothing here throws.
class Arguments {
 public:
  Arguments(StableIValue *stack, const char *kinds) : stack_(stack), kinds_(kinds) {}
  ~Arguments() {
    for (size_t at = 0; kinds_[at]; ++at) {
      switch (kinds_[at]) {
        case 't': aoti_torch_delete_tensor_object(tensor(at)); break;
        case 'l': torch_delete_list(list(at)); break;
        case 'T': if (optional(at)) aoti_torch_delete_tensor_object(tensor(at)), discard(optional(at)); break;
        case 'L': if (optional(at)) torch_delete_list(list(at)), discard(optional(at)); break;
      }
    }
  }
  Arguments(const Arguments &) = delete;

  const char *kinds() const { return kinds_; }
  bool has(size_t at) const {
    bool defined = true;  // a tensor that is there may be none
    if (kinds_[at] == 'T' && optional(at)) aoti_torch_is_defined(tensor(at), &defined);
    return kinds_[at] >= 'a' || (optional(at) && defined);
  }
  // Of an optional argument too, where it is there.
  AtenTensorHandle tensor(size_t at) const { return reinterpret_cast<AtenTensorHandle>(value(at)); }
  StableListHandle list(size_t at) const { return reinterpret_cast<StableListHandle>(value(at)); }
  int64_t integer(size_t at) const { return static_cast<int64_t>(stack_[at]); }
  bool flag(size_t at) const { return stack_[at] & 0xff; }
  size_t count(size_t at) const {
    size_t count = 0;
    torch_list_size(list(at), &count);
    return count;
  }
  int64_t item(size_t at, size_t place, bool flag = false) const {
    StableIValue found = 0;
    torch_list_get_item(list(at), place, &found);
    return flag ? found & 0xff : static_cast<int64_t>(found);
  }

  static StableIValue *optional_of(StableIValue value) {
    static auto make = reinterpret_cast<AOTITorchError (*)(StableIValue **)>(
        dlsym(RTLD_DEFAULT, "torch_new_stable_ivalue"));
    StableIValue *made = nullptr;
    if (!make || make(&made)) made = new StableIValue;
    *made = value;
    return made;
  }
  static void discard(StableIValue *made) {
    static auto remove = reinterpret_cast<AOTITorchError (*)(StableIValue *)>(
        dlsym(RTLD_DEFAULT, "torch_delete_stable_ivalue"));  // from 2.13 on; before, both sides used new and delete
    remove ? static_cast<void>(remove(made)) : delete made;
  }

 private:
  StableIValue *optional(size_t at) const { return reinterpret_cast<StableIValue *>(stack_[at]); }
  StableIValue value(size_t at) const { return kinds_[at] >= 'a' ? stack_[at] : *optional(at); }

  StableIValue *stack_;
  const char *kinds_;  // a letter each: tensor, list, bool (f), int; capitals are optional ones
};

// What a kernel must know of a tensor; `ok` is false for one that is not dense.
struct Seen {
  int64_t *sizes = nullptr, *strides = nullptr, dims = 0;
  int32_t dtype = 0, kind = 0, index = 0, layout = -1;
  void *address = nullptr;
  bool ok = false;

  Seen() = default;
  explicit Seen(AtenTensorHandle tensor) {
    static const int32_t strided = aoti_torch_layout_strided();
    ok = !aoti_torch_get_layout(tensor, &layout) && layout == strided && !aoti_torch_get_dim(tensor, &dims) &&
         !aoti_torch_get_sizes(tensor, &sizes) && !aoti_torch_get_strides(tensor, &strides) &&
         !aoti_torch_get_dtype(tensor, &dtype) && !aoti_torch_get_device_type(tensor, &kind) &&
         !aoti_torch_get_device_index(tensor, &index) && !aoti_torch_get_data_ptr(tensor, &address);
  }
  uint64_t at() const { return reinterpret_cast<uint64_t>(address); }
  bool contiguous() const {
    int64_t step = 1;
    for (int64_t axis = dims - 1; axis >= 0; --axis) {
      if (sizes[axis] != 1 && strides[axis] != step) return false;
      step *= sizes[axis];
    }
    return true;
  }
};

// An owned tensor.
class Owned {
 public:
  Owned() = default;
  Owned(Owned &&other) noexcept : handle_(other.release()) {}
  Owned &operator=(Owned &&other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Owned() {
    if (handle_) aoti_torch_delete_tensor_object(handle_);
  }
  AtenTensorHandle *put() { return &handle_; }
  AtenTensorHandle get() const { return handle_; }
  AtenTensorHandle release() {
    AtenTensorHandle handle = handle_;
    handle_ = nullptr;
    return handle;
  }

 private:
  AtenTensorHandle handle_ = nullptr;
};

// --- Python's --------------------------------------------------------------------------------------------------------

class Gil {
 public:
  Gil() { take(); }
  ~Gil() { release(); }
  void take() {
    state_ = PyGILState_Ensure();
    held_ = true;
  }
  void release() {
    if (held_) PyGILState_Release(state_);
    held_ = false;
  }

 private:
  PyGILState_STATE state_;
  bool held_ = false;
};

class Ref {  // an owned object; to be used with Python's lock
 public:
  Ref(PyObject *object = nullptr) : object_(object) {}
  Ref(Ref &&other) noexcept : object_(other.object_) { other.object_ = nullptr; }
  Ref &operator=(Ref &&other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Ref() { Py_XDECREF(object_); }
  static Ref of(PyObject *borrowed) {
    Py_XINCREF(borrowed);
    return Ref(borrowed);
  }
  PyObject *get() const { return object_; }
  PyObject *release() {
    PyObject *object = object_;
    object_ = nullptr;
    return object;
  }
  explicit operator bool() const { return object_; }

 private:
  PyObject *object_;
};

}  // namespace launcher

// How PyTorch is told of an exception that Python holds: its bindings catch what is called so, and raise what it answers
// with its words. That is a class in Python (`raised`), which gives the exception itself for them. Were it not caught as
// such, it would be a RuntimeError of the same words.
namespace torch {
struct __attribute__((visibility("default"))) PyTorchError : public std::exception {
  virtual PyObject *python_type() = 0;
};
}  // namespace torch

namespace launcher {

inline PyObject *raised = nullptr;  // raised.keep(exception) -> words by which raised(words) is that exception

class Raised : public torch::PyTorchError {
 public:
  Raised() : words_("an error in Python") {  // with Python's lock, and an exception that is set
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    if (value && trace) PyException_SetTraceback(value, trace);
    Ref kept(value ? PyObject_CallMethod(raised, "keep", "O", value) : nullptr);
    if (const char *read = kept ? PyUnicode_AsUTF8AndSize(kept.get(), nullptr) : nullptr) words_ = read;
    PyErr_Clear();
    Py_XDECREF(type), Py_XDECREF(value), Py_XDECREF(trace);
  }
  const char *what() const noexcept override { return words_.c_str(); }
  PyObject *python_type() override { return raised; }

 private:
  std::string words_;
};

}  // namespace launcher
