// The launcher's interface to PyTorch and CUDA's driver. It uses PyTorch's stable C interfaces and looks the driver's
// functions up by name, so that one build serves every PyTorch from 2.11 on, and machines without CUDA load it too.
#pragma once

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#ifndef TORCH_TARGET_VERSION
#define TORCH_TARGET_VERSION 0x020b000000000000ULL
#endif
#include <torch/csrc/inductor/aoti_torch/generated/c_shim_cpu.h>
#include <torch/csrc/inductor/aoti_torch/generated/c_shim_cuda.h>
#include <torch/csrc/stable/c/shim.h>

#include <dlfcn.h>

#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

// Passes a Python exception through PyTorch: its bindings catch an exception class of this name, and raise
// python_type() with the message of what(). Ours returns `raised`, which replaces itself by the exception that the
// message names. If PyTorch did not catch it, the caller would get a RuntimeError with that message.
namespace torch {
struct __attribute__((visibility("default"))) PyTorchError : public std::exception {
  virtual PyObject *python_type() = 0;
};
}  // namespace torch

namespace launcher {

// --- CUDA's driver ---------------------------------------------------------------------------------------------------

struct Attribute { unsigned kind, pad, value[16]; };  // CUlaunchAttribute

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
  // PyTorch's own kernels, called as its compiled models call them, without the dispatcher, which would call ours.
  decltype(&aoti_torch_cuda_convolution) forward = nullptr;
  decltype(&aoti_torch_cuda_convolution_backward) backward = nullptr;

  // Returns the reason why CUDA cannot be used, or an empty text. `library` is CUDA's driver, or a stub in tests.
  std::string open(const char *library) {
    const auto find = [](auto &function, void *library, const char *name) {
      function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(library, name));
    };
    void *driver = dlopen(library, RTLD_NOW | RTLD_GLOBAL);
    if (!driver) return std::string(library) + " does not load";
    current_stream = nullptr;
    find(current_context, driver, "cuCtxGetCurrent");
    find(launch, driver, "cuLaunchKernelEx");
    for (const char *name : {library, "libtorch_cuda.so", "libtorch_cpu.so"}) {
      void *each = current_stream ? nullptr : dlopen(name, RTLD_NOW | RTLD_NOLOAD);  // only if it is loaded already
      if (!each) continue;
      find(current_stream, each, "aoti_torch_get_current_cuda_stream");
      find(forward, each, "aoti_torch_cuda_convolution");
      find(backward, each, "aoti_torch_cuda_convolution_backward");
    }
    if (!current_context || !launch) return std::string(library) + " has no cuLaunchKernelEx";
    return current_stream ? "" : "this PyTorch has no CUDA";
  }
};

// --- PyTorch's values ------------------------------------------------------------------------------------------------

// The arguments of an operator's boxed kernel, which must release them.
class Arguments {
 public:
  Arguments(StableIValue *stack, const char *kinds) : stack_(stack), kinds_(kinds) {}
  ~Arguments() {
    for (size_t at = 0; kinds_[at]; ++at) {
      switch (kinds_[at]) {
        case 't': aoti_torch_delete_tensor_object(tensor(at)); break;
        case 'l': case 'm': torch_delete_list(list(at)); break;
        case 'T': if (optional(at)) aoti_torch_delete_tensor_object(tensor(at)), discard(optional(at)); break;
        case 'L': if (optional(at)) torch_delete_list(list(at)), discard(optional(at)); break;
        case 'S': if (optional(at)) torch_delete_string(string(at)), discard(optional(at)); break;
      }
    }
  }
  Arguments(const Arguments &) = delete;

  const char *kinds() const { return kinds_; }
  bool has(size_t at) const {
    bool defined = true;  // an optional tensor may be present, but undefined
    if (kinds_[at] == 'T' && optional(at)) aoti_torch_is_defined(tensor(at), &defined);
    return kinds_[at] >= 'a' || (optional(at) && defined);
  }
  // The tensor of a required argument, or of an optional one that has() a value.
  AtenTensorHandle tensor(size_t at) const { return reinterpret_cast<AtenTensorHandle>(value(at)); }
  StableListHandle list(size_t at) const { return reinterpret_cast<StableListHandle>(value(at)); }
  std::string_view text(size_t at) const {  // empty without a value
    const char *begin = "";
    size_t length = 0;
    if (optional(at)) torch_string_c_str(string(at), &begin), torch_string_length(string(at), &length);
    return {begin, length};
  }
  int64_t integer(size_t at) const { return static_cast<int64_t>(stack_[at]); }
  bool flag(size_t at) const { return stack_[at] & 0xff; }
  size_t length(size_t at) const {
    size_t count = 0;
    torch_list_size(list(at), &count);
    return count;
  }
  int64_t item(size_t at, size_t place) const {
    StableIValue each = 0;
    torch_list_get_item(list(at), place, &each);
    return static_cast<int64_t>(kinds_[at] == 'm' ? each & 0xff : each);
  }
  std::vector<int64_t> items(size_t at) const {
    std::vector<int64_t> found(length(at));
    for (size_t place = 0; place < found.size(); ++place) found[place] = item(at, place);
    return found;
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
        dlsym(RTLD_DEFAULT, "torch_delete_stable_ivalue"));  // PyTorch 2.13 and later have it; before, both sides used new and delete
    remove ? static_cast<void>(remove(made)) : delete made;
  }

 private:
  StringHandle string(size_t at) const { return reinterpret_cast<StringHandle>(value(at)); }
  StableIValue *optional(size_t at) const { return reinterpret_cast<StableIValue *>(stack_[at]); }
  StableIValue value(size_t at) const { return kinds_[at] >= 'a' ? stack_[at] : *optional(at); }

  StableIValue *stack_;
  const char *kinds_;  // one letter per argument: t tensor, l list, m list of bool, f bool, i int, s text; capital letters are optional arguments
};

// The properties of a tensor that a launch needs; `ok` is false if the tensor is not dense.
struct Seen {
  int64_t *sizes = nullptr, *strides = nullptr, dims = 0;
  int32_t dtype = 0, kind = 0, index = 0, layout = -1;
  void *address = nullptr;
  AtenTensorHandle tensor = nullptr;
  bool ok = false;

  Seen() = default;
  explicit Seen(AtenTensorHandle tensor) : tensor(tensor) {
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

struct Delete {
  void operator()(AtenTensorOpaque *tensor) const { aoti_torch_delete_tensor_object(tensor); }
  void operator()(PyObject *object) const { Py_DECREF(object); }  // the caller must hold Python's lock
};
using Owned = std::unique_ptr<AtenTensorOpaque, Delete>;
using Ref = std::unique_ptr<PyObject, Delete>;

// Calls PyTorch's `function`, whose last argument returns a new tensor in `out`; returns whether it succeeded.
template <typename Function, typename... Given>
bool made(Owned &out, Function function, Given... given) {
  AtenTensorHandle handle = nullptr;
  const bool fine = !function(given..., &handle);
  out.reset(handle);
  return fine;
}

inline Ref held(PyObject *borrowed) { return Py_XINCREF(borrowed), Ref(borrowed); }

// --- Python's lock and exceptions ------------------------------------------------------------------------------------

struct Gil {
  PyGILState_STATE state = PyGILState_Ensure();
  Gil() = default;
  Gil(const Gil &) = delete;
  ~Gil() { PyGILState_Release(state); }
};

inline PyObject *raised = nullptr;  // raised.keep(exception) returns a message, with which raised(message) is the exception

class Raised : public torch::PyTorchError {
 public:
  Raised() : words_("an error in Python") {  // the caller holds Python's lock, and an exception is set
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
