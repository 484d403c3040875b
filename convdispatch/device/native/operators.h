// Kernels of aten::convolution and its backward: a call's decision is looked up by a packed key, then launched. Calls
// without a decision go to Python, which may store its decision under the key that was not found.
#pragma once

#include "programs.h"

namespace launcher {

// The Python objects and settings that the operators use.
struct Python {
  PyObject *policy = nullptr, *plain = nullptr;   // a function that returns the current policy; the only policy served here
  PyObject *object = nullptr, *handle = nullptr;  // functions from a handle to its tensor, and from a tensor to a new handle
  PyObject *switches[2] = {};  // for CUDA and for CPUs, bool functions that are part of a key: tracing, inference mode, ...
  PyObject *operators = nullptr;  // a tuple of Python's operators, by Operation
  PyObject *tensor = nullptr;     // the class torch.Tensor, whose instances are no parameters
  bool paused = false;
  uint32_t meetings = 0;  // the number of calls after which a further size of a layer is passed to Python
  int64_t settings = 0;  // the number of the settings with which enable() was called
};
inline Python python;

// A fused convolution includes the addition of a residual and the activation; a normed convolution and its backward
// include a norm and sums of channels. kOwnForward and kOwnBackward are aten's as operators of convdispatch.
// Operations on a CPU are the same numbers from kOnHost on.
enum Operation : int {
  kForward, kBackward, kFused, kOwnForward, kOwnBackward, kNormed, kNormedBackward, kProducts, kOnHost,
  kOperations = 2 * kOnHost
};
inline bool on_host(int operation) { return operation >= kOnHost; }
inline bool is_own(int operation) {
  return operation % kOnHost == kOwnForward || operation % kOnHost == kOwnBackward;
}
inline bool is_normed(int operation) {
  return operation % kOnHost == kNormed || operation % kOnHost == kNormedBackward;
}
// The operation whose decisions serve a call: the same problem has one decision, whichever operator asks.
inline int decided_as(int operation) { return is_own(operation) ? operation - kOwnForward : operation; }
inline bool is_plain(int operation) { return decided_as(operation) % kOnHost <= kBackward; }  // PyTorch has the same
inline bool is_backward(int operation) {
  return decided_as(operation) % kOnHost == kBackward || operation % kOnHost == kNormedBackward;
}
inline bool is_fused(int operation) { return operation % kOnHost == kFused; }
inline int result_count(int operation) { return is_backward(operation) ? 3 : is_normed(operation) ? 2 : 1; }
// kSums is the operator's last result: sums of channels, written by the kernels that write another result.
enum Source : int { kX, kW, kGrad, kBias, kResidual, kNorm, kActivated, kOut, kSums, kNone };

struct Step {
  Shared program;
  std::vector<int> sources;  // the Source of each operand
  int result = 0;            // the index of the operator's result that the program writes
  bool packs = false;        // whether the program reads packed weights instead of the weights
};

struct Laid {  // a tensor that kernels read as a copy with other strides
  int source;
  std::vector<int64_t> strides;
};

struct Decision {  // has no Python objects, because it is destroyed without Python's lock
  std::vector<Step> steps;  // empty if PyTorch's own kernel computes the call
  std::vector<Laid> laid;
  bool sums = false;  // the third result is PyTorch's sum of the gradient over all axes except the channels
};
using Decided = std::shared_ptr<const Decision>;

struct Known {
  Decided decided;
  Ref holds;  // a function that returns whether the decision is still valid, for packed weights or PyTorch's own kernel
  uint64_t packed = 0;
  int left = 256;  // calls until Python checks again whether the weights have become constant
};

struct Entry {
  Known known;
  std::unordered_map<uint64_t, Known> weights;  // decisions that depend on constant weights, by the weights' address
};

// A layer with a decision for some size: PyTorch computes calls of another size until that size has come often enough.
struct Layer {
  Ref holds;  // a function that returns whether the weights are still those of the layer
};

inline auto &layers = *new std::unordered_map<std::string, Layer>;  // by the key without sizes, with the weights' address
inline std::unordered_map<size_t, uint32_t> meetings;               // calls of a further size, by the hash of their key
inline int64_t compiling = 0;                                       // such calls since Python last called counts()
constexpr size_t kMostMeetings = 1 << 16;

inline auto &entries = *new std::unordered_map<std::string, Entry>;  // never destroyed, because Python ends before
inline std::unordered_map<uint64_t, int> packed_weights;  // addresses of weights of which some entry has a packed form
inline uint64_t calls[2];                                 // forward and backward calls since Python last called counts()
constexpr size_t kMost = 4096;

struct Missed {  // the key of this thread's call that has no decision, and the key of its layer
  std::string key, layer;
  uint64_t weights = 0;
  // Whether weights may be constant: in inference mode, and parameters without gradients in fused layers and on a CPU.
  bool by_weights = false, open = false;
  int operation = kForward;
};
inline thread_local Missed missed;

inline void forget_all() {
  std::exchange(entries, {});  // destroyed after the exchange, because their destructors may call this again
  std::exchange(layers, {});
  packed_weights.clear();
}

// Forgets the decisions that run a program.
inline void forget_some(const Program *program) {
  const auto runs = [program](const Known &known) {
    return known.decided && std::any_of(known.decided->steps.begin(), known.decided->steps.end(),
                                        [program](const Step &step) { return step.program.get() == program; });
  };
  std::vector<Known> gone;  // destroyed at the end, because their destructors may call this again
  for (auto at = entries.begin(); at != entries.end();) {
    Entry &entry = at->second;
    for (auto one = entry.weights.begin(); one != entry.weights.end();) {
      if (runs(one->second)) gone.push_back(std::move(one->second)), one = entry.weights.erase(one);
      else ++one;
    }
    if (runs(entry.known)) gone.push_back(std::exchange(entry.known, Known{}));
    at = entry.known.decided || !entry.weights.empty() ? std::next(at) : entries.erase(at);
  }
}

// Calls a function; returns whether its result is true, or -1 for an exception. The result itself goes to `kept`.
inline int truth(PyObject *function, Ref *kept = nullptr) {
  Ref answer(PyObject_CallObject(function, nullptr));
  const int found = answer ? PyObject_IsTrue(answer.get()) : -1;
  if (found < 0) {
    const bool interrupted = PyErr_ExceptionMatches(PyExc_KeyboardInterrupt);
    PyErr_Clear();
    if (interrupted) PyErr_SetInterrupt();  // Python raises it again at its next check for signals
  }
  if (kept) *kept = std::move(answer);
  return found;
}

// The bits of a key for PyTorch's modes and the settings; -1 if Python must handle the call in any case.
inline int64_t circumstances(bool host) {
  Ref policy(python.paused ? nullptr : PyObject_CallObject(python.policy, nullptr));
  if (policy.get() != python.plain) return PyErr_Clear(), -1;
  int64_t bits = python.settings << 16;
  PyObject *switches = python.switches[host];
  for (Py_ssize_t at = 0, count = PyTuple_Size(switches); at < count; ++at) {
    const int on = truth(PyTuple_GetItem(switches, at));
    if (on < 0 || (on && !at)) return -1;
    bits |= static_cast<int64_t>(on) << at;
  }
  return bits;
}

struct Key {
  static constexpr size_t kRoom = 128;
  int64_t words[kRoom];
  size_t count = 0;  // exceeds kRoom for a call with more arguments than any convolution has
  std::pair<size_t, size_t> sizes[4];  // ranges of words with the sizes of tensors other than weights: first, one past last
  size_t sized = 0;

  bool fits() const { return count <= kRoom; }
  std::string_view text() const { return {reinterpret_cast<const char *>(words), count * sizeof *words}; }
  void add(int64_t word) {
    if (count < kRoom) words[count] = word;
    ++count;
  }
  void add(const Seen &seen) {
    add(seen.dims << 48 | static_cast<int64_t>(seen.dtype) << 32 | static_cast<int64_t>(seen.kind & 0xff) << 16 |
        (seen.index & 0xffff));
    for (int64_t axis = 0; axis < seen.dims; ++axis) add(seen.sizes[axis]), add(seen.strides[axis]);
  }
  void add_sized(const Seen &seen) {
    const size_t first = count + 1;
    add(seen);
    sizes[sized++] = {first, count};
  }
  // The key of the layer: all words except those sizes, and the weights' address.
  void layer(uint64_t weights, std::string &found) const {
    found.assign(reinterpret_cast<const char *>(&weights), sizeof weights);
    size_t at = 0;
    for (size_t each = 0; each <= sized; ++each) {
      const auto [first, behind] = each < sized ? sizes[each] : std::pair(count, count);
      found.append(reinterpret_cast<const char *>(words + at), (first - at) * sizeof *words);
      at = behind;
    }
  }
  void add(std::string_view text) {  // adds a text, whose last word is filled up with zeros
    add(static_cast<int64_t>(text.size()));
    for (size_t at = 0; at < text.size(); at += sizeof *words) {
      int64_t word = 0;
      std::memcpy(&word, text.data() + at, std::min(sizeof word, text.size() - at));
      add(word);
    }
  }
  void add(const Arguments &given, size_t at) {  // adds the elements of a list
    const size_t length = given.length(at);
    add(static_cast<int64_t>(length));
    for (size_t place = 0; place < length; ++place) add(given.item(at, place));
  }
};

// A call's tensors by Source, and its key.
struct Incoming {
  int operation;
  const Arguments &given;
  std::optional<Seen> seen[6];
  const Seen *of[kNone + 1] = {};  // the tensors, by Source
  uint64_t addresses[kNone + 1] = {};
  Key key;
  bool ok = true;

  Incoming(int operation, const Arguments &given, std::initializer_list<int> tensors) : operation(operation), given(given) {
    key.add(decided_as(operation));
    size_t at = 0;
    for (int source : tensors) {
      const bool here = given.has(at);
      key.add(here);
      if (here) {
        const Seen &one = seen[at].emplace(given.tensor(at));
        if (!(ok = ok && one.ok)) return;
        source == kW || source == kBias || source == kNorm ? key.add(one) : key.add_sized(one);
        of[source] = &one;
        addresses[source] = one.at();
      }
      ++at;
    }
    for (; given.kinds()[at]; ++at) switch (given.kinds()[at]) {
        case 'l': case 'm': key.add(given, at); break;
        case 'L': key.add(given.has(at)); break;  // the bias's sizes, which follow from the weights
        case 'S': key.add(given.has(at)), key.add(given.text(at)); break;
        case 'f': key.add(given.flag(at)); break;
        case 'i': key.add(given.integer(at)); break;
      }
    ok = key.fits();
  }
};

// The Python object of a tensor; the caller still owns the handle.
inline PyObject *tensor_of(AtenTensorHandle tensor) {
  Ref capsule(PyCapsule_New(tensor, nullptr, nullptr));
  return capsule ? PyObject_CallFunctionObjArgs(python.object, capsule.get(), nullptr) : nullptr;
}

// Whether weights may be a parameter without gradients, which counts as constant on a CPU and in fused layers.
inline bool frozen(const Incoming &call) {
  static PyObject *const name = PyUnicode_InternFromString("requires_grad");
  Ref tensor(tensor_of(call.of[kW]->tensor));
  if (!tensor) return PyErr_Clear(), false;
  if (reinterpret_cast<PyObject *>(Py_TYPE(tensor.get())) == python.tensor) return false;
  Ref records(PyObject_GetAttr(tensor.get(), name));
  if (!records) PyErr_Clear();
  return records.get() == Py_False;
}

inline const Decided &pytorchs = *new Decided(std::make_shared<Decision>());  // the decision for a layer's further sizes

// Whether a call without a decision has a further size of a known layer, which has not come often enough.
inline bool further(const Incoming &call) {
  if (layers.empty() || !on_host(call.operation) || !is_plain(call.operation)) return false;
  static thread_local std::string key;
  call.key.layer(call.addresses[kW], key);
  const auto layer = layers.find(key);
  if (layer == layers.end()) return false;
  Ref holds = held(layer->second.holds.get());
  if (truth(holds.get()) != 1) return layers.erase(key), false;
  if (meetings.size() >= kMostMeetings) meetings.clear();
  return ++meetings[std::hash<std::string_view>{}(call.key.text())] < python.meetings;
}

// Whether PyTorch's own kernel may return a view: for one axis of space, and for tensors without elements. The result of
// an operator of convdispatch is none, so Python copies it.
inline bool may_be_view(const Seen &lead) {
  return lead.dims < 4 || std::find(lead.sizes, lead.sizes + lead.dims, 0) != lead.sizes + lead.dims;
}

// The decision for a call, with the address of its packed weights if any, and the object that keeps them alive; null if
// Python must handle the call, whose decision is then stored under `asked`.
inline Decided found(Incoming &call, uint64_t &packed, Ref &kept, Missed &asked) {
  const bool host = on_host(call.operation);
  const int64_t bits = circumstances(host);
  if (bits < 0) return nullptr;
  const uint64_t weights = call.addresses[kW];
  call.key.add(bits);
  const bool may_stay = !is_normed(call.operation) &&
                        ((bits & 2) || ((host || is_fused(call.operation)) && frozen(call)));
  call.key.add(may_stay);
  if (!call.key.fits()) return nullptr;
  static thread_local std::string key;  // static, so that its memory is reused by later calls
  key = call.key.text();
  asked.weights = weights, asked.by_weights = may_stay, asked.open = true, asked.operation = call.operation;
  if (!may_stay && !packed_weights.empty() && packed_weights.erase(weights)) {
    for (auto &each : entries) each.second.weights.erase(weights);  // an optimizer may write them
    return nullptr;
  }
  auto at = entries.find(key);
  if (at == entries.end())
    return !(is_own(call.operation) && may_be_view(*call.seen[0])) && further(call) ? pytorchs : nullptr;
  Known *known = &at->second.known;
  const bool by_weights = !known->decided;
  if (by_weights) {
    auto of = at->second.weights.find(weights);
    if (of == at->second.weights.end()) return nullptr;
    known = &of->second;
  }
  Decided decided = known->decided;
  if (decided->steps.empty() && is_own(call.operation) && may_be_view(*call.seen[0])) return nullptr;
  packed = known->packed;
  if (!known->holds) return by_weights && --known->left < 0 ? nullptr : decided;
  Ref holds = held(known->holds.get());  // a reference, because the call may change or delete this entry
  return truth(holds.get(), host ? &kept : nullptr) == 1 ? decided : nullptr;
}

inline void count(int operation, const Decision &decided, int by) {
  if (!decided.steps.empty()) calls[is_backward(operation)] += by;
  if (&decided == pytorchs.get()) compiling += by;
  for (const Step &step : decided.steps) step.program->count(step.result < 2 ? by : 0);  // no solver computes the sums
}

// Computes PyTorch's sum of a gradient over all axes except the channels.
inline bool summed(AtenTensorHandle grad, int64_t dims, Owned &sums) {
  AtenTensorHandle self = nullptr;
  StableListHandle axes = nullptr;
  if (aoti_torch_new_tensor_handle(grad, &self) || torch_new_list_reserve_size(static_cast<size_t>(dims), &axes))
    return false;
  for (int64_t axis = 0; axis < dims; ++axis)
    if (axis != 1) torch_list_push_back(axes, static_cast<StableIValue>(axis));
  StableIValue *optional = Arguments::optional_of(reinterpret_cast<StableIValue>(axes));
  StableIValue stack[] = {reinterpret_cast<StableIValue>(self), reinterpret_cast<StableIValue>(optional), 0, 0};
  if (torch_call_dispatcher("aten::sum", "dim_IntList", stack, TORCH_TARGET_VERSION)) return false;
  sums.reset(reinterpret_cast<AtenTensorHandle>(stack[0]));
  return true;
}

// Copies a tensor to a new one with other strides.
inline bool copied(const Seen &from, const std::vector<int64_t> &strides, Owned &out, uint64_t &address) {
  void *data = nullptr;
  const bool fine = made(out, aoti_torch_empty_strided, from.dims, from.sizes, strides.data(), from.dtype, from.kind,
                         from.index) && !aoti_torch_copy_(out.get(), from.tensor, 0);
  if (!fine || aoti_torch_get_data_ptr(out.get(), &data)) return false;
  address = reinterpret_cast<uint64_t>(data);
  return true;
}

// Allocates sums of channels: three rows of the result's, or two of the input's backward; returns their address, or 0.
inline uint64_t sums_for(const Incoming &call, Owned &out) {
  const Seen &lead = *call.seen[0];
  const bool back = is_backward(call.operation);
  const int64_t sizes[] = {back ? 2 : 3, back ? call.of[kX]->sizes[1] : call.of[kW]->sizes[0]}, strides[] = {sizes[1], 1};
  const int32_t wide = aoti_torch_dtype_float64(), dtype = lead.dtype == wide ? wide : aoti_torch_dtype_float32();
  void *data = nullptr;
  const bool fine = made(out, aoti_torch_empty_strided, 2, sizes, strides, dtype, lead.kind, lead.index);
  return fine && !aoti_torch_get_data_ptr(out.get(), &data) ? reinterpret_cast<uint64_t>(data) : 0;
}

// Launches a decision; returns false, without results, if Python must handle the call.
inline bool launched(const Decision &decided, const Incoming &call, uint64_t packed, Owned *results) {
  const Seen &lead = *call.seen[0];
  void *stream = nullptr;
  if (!on_host(call.operation) && driver.current_stream(lead.index < 0 ? 0 : lead.index, &stream)) return false;
  Owned made[3];
  std::vector<Owned> copies(decided.laid.size());  // kept alive until everything is launched
  uint64_t addresses[kNone + 1];
  std::copy(std::begin(call.addresses), std::end(call.addresses), addresses);
  for (size_t at = 0; at < copies.size(); ++at) {
    const Laid &each = decided.laid[at];
    const Seen *from = call.of[each.source];
    if (!from || !copied(*from, each.strides, copies[at], addresses[each.source])) return false;
  }
  static thread_local std::vector<uint64_t> room;  // static, so that its memory is reused by later calls
  std::vector<uint64_t> operands = std::exchange(room, {});
  for (const Step &step : decided.steps) {
    const Program &program = *step.program;
    if (!program.here()) return false;
    operands.clear();
    uint64_t all = 0;
    for (int source : step.sources) {
      uint64_t address = addresses[source];
      if (source == kW && step.packs) {
        address = packed;
      } else if (source == kOut) {
        address = program.allocate(made[step.result], lead);
        if (!address) return false;
      } else if (source == kSums) {
        address = sums_for(call, made[result_count(call.operation) - 1]);
        if (!address) return false;
      }
      all |= address;
      operands.push_back(address);
    }
    if (all % kAlignment || !program.run(stream, operands, lead.kind, lead.index)) return false;
  }
  if (decided.sums && !summed(call.given.tensor(0), lead.dims, made[2])) return false;
  for (int at = 0; at < 3; ++at) results[at] = std::move(made[at]);
  room = std::move(operands);
  return true;
}

// Calls PyTorch's own kernel; returns false if it fails, so that Python repeats the call and raises the error.
inline bool by_pytorch(int operation, const Arguments &given, Owned *results) {
  std::vector<int64_t> lists[11];
  for (size_t at = 3; given.kinds()[at]; ++at)
    if (std::strchr("lLm", given.kinds()[at]) && given.has(at)) lists[at] = given.items(at);
  const auto size = [&](int at) { return static_cast<int64_t>(lists[at].size()); };
  const bool host = on_host(operation);
  if (!is_backward(operation)) {
    AtenTensorHandle bias = given.has(2) ? given.tensor(2) : nullptr;
    return made(results[0], host ? aoti_torch_cpu_convolution : driver.forward, given.tensor(0), given.tensor(1),
                bias ? &bias : nullptr, lists[3].data(), size(3), lists[4].data(), size(4), lists[5].data(), size(5),
                given.flag(6), lists[7].data(), size(7), given.integer(8));
  }
  const int64_t *bias = lists[3].data();
  const std::vector<int32_t> mask(lists[10].begin(), lists[10].end());
  AtenTensorHandle gradients[3] = {};
  const bool fine = !(host ? aoti_torch_cpu_convolution_backward : driver.backward)(
      given.tensor(0), given.tensor(1), given.tensor(2), given.has(3) ? &bias : nullptr, size(3), lists[4].data(),
      size(4), lists[5].data(), size(5), lists[6].data(), size(6), given.flag(7), lists[8].data(), size(8),
      given.integer(9), mask.data(), size(10), &gradients[0], &gradients[1], &gradients[2]);
  for (int at = 0; at < 3; ++at) results[at].reset(gradients[at]);
  return fine;
}

inline PyObject *list_of(const std::vector<int64_t> &items, bool flags) {
  Ref list(PyList_New(0));
  for (int64_t each : items) {
    Ref item(flags ? PyBool_FromLong(each) : PyLong_FromLongLong(each));
    if (!list || !item || PyList_Append(list.get(), item.get())) return nullptr;
  }
  return list.release();
}

inline bool handle_of(PyObject *tensor, Owned &found) {
  if (tensor == Py_None) return made(found, aoti_torch_new_uninitialized_tensor);
  Ref capsule(PyObject_CallFunctionObjArgs(python.handle, tensor, nullptr));
  void *pointer = capsule ? PyCapsule_GetPointer(capsule.get(), nullptr) : nullptr;
  if (!pointer) return false;
  found.reset(static_cast<AtenTensorHandle>(pointer));
  return true;
}

// Calls the operator in Python. Throws its exception as Raised.
inline void by_python(int operation, const Arguments &given, Owned *results, Missed &asked) {
  size_t count = std::strlen(given.kinds());
  Ref arguments(PyTuple_New(static_cast<Py_ssize_t>(count)));
  for (size_t at = 0; at < count; ++at) {
    PyObject *one = nullptr;
    switch (given.has(at) ? given.kinds()[at] : 0) {
      case 't': case 'T': one = tensor_of(given.tensor(at)); break;
      case 'l': case 'L': case 'm': one = list_of(given.items(at), given.kinds()[at] == 'm'); break;
      case 'f': one = PyBool_FromLong(given.flag(at)); break;
      case 'i': one = PyLong_FromLongLong(given.integer(at)); break;
      case 'S': one = PyUnicode_FromStringAndSize(given.text(at).data(), static_cast<Py_ssize_t>(given.text(at).size())); break;
      default: one = held(Py_None).release();
    }
    if (!one) throw Raised();
    PyTuple_SetItem(arguments.get(), static_cast<Py_ssize_t>(at), one);
  }
  std::swap(missed, asked);  // swapped, because a nested call has a key of its own
  Ref answer(PyObject_CallObject(PyTuple_GetItem(python.operators, operation), arguments.get()));
  std::swap(missed, asked);
  if (!answer) throw Raised();
  if (result_count(operation) == 1) answer.reset(PyTuple_Pack(1, answer.get()));
  int at = 0;
  if (!each_of(answer.get(), [&](PyObject *each) { return at < 3 && handle_of(each, results[at++]); })) throw Raised();
}

// Makes a result that is none an empty tensor; returns false if that fails.
inline bool defined(Owned &out, const Seen &like) {
  static constexpr int64_t none = 0, step = 1;
  bool is = false;
  if (out && !aoti_torch_is_defined(out.get(), &is) && is) return true;
  return made(out, aoti_torch_empty_strided, 1, &none, &step, like.dtype, like.kind, like.index);
}

inline void compute(int operation, StableIValue *stack, const char *kinds, std::initializer_list<int> tensors) {
  Owned results[3];
  {
    Arguments given(stack, kinds);
    Incoming call(operation, given, tensors);
    Missed asked;
    uint64_t packed = 0;
    std::optional<Gil> gil(std::in_place);
    Ref kept;  // keeps the packed weights alive, even if other threads drop them meanwhile
    const Decided decided = call.ok ? found(call, packed, kept, asked) : nullptr;
    bool done = false;
    if (decided) {
      count(operation, *decided, 1);
      gil.reset();
      done = decided->steps.empty() ? by_pytorch(operation, given, results) : launched(*decided, call, packed, results);
      if (!done || kept) gil.emplace(), kept.reset();
      if (!done) count(operation, *decided, -1);
    }
    if (done && (is_own(operation) || is_normed(operation))) {
      // An operator cannot return None: a result that was not requested is an empty tensor.
      for (int at = 0; at < result_count(operation); ++at) done = done && defined(results[at], *call.seen[0]);
      if (!done) gil.emplace();
    }
    if (!done) {
      if (asked.open) asked.key = call.key.text(), call.key.layer(call.addresses[kW], asked.layer);
      by_python(operation, given, results, asked);
    }
  }
  for (int at = 0; at < result_count(operation); ++at) {
    if (!results[at]) made(results[at], aoti_torch_new_uninitialized_tensor);
    stack[at] = reinterpret_cast<StableIValue>(results[at].release());
  }
}

using Kernel = void (*)(StableIValue *, uint64_t, uint64_t);

// Arguments: input, weight, bias, stride, padding, dilation, transposed, output_padding, groups.
template <int Operation>
void convolution(StableIValue *stack, uint64_t, uint64_t) {
  compute(Operation, stack, "ttTlllfli", {kX, kW, kBias});
}

// Arguments: grad_output, input, weight, bias_sizes, stride, padding, dilation, transposed, output_padding, groups,
// output_mask.
template <int Operation>
void convolution_backward(StableIValue *stack, uint64_t, uint64_t) {
  compute(Operation, stack, "tttLlllflim", {kGrad, kX, kW});
}

// Arguments: input, weight, bias, residual, activation, stride, padding, dilation, groups.
template <int Operation>
void fused(StableIValue *stack, uint64_t, uint64_t) {
  compute(Operation, stack, "ttTTSllli", {kX, kW, kBias, kResidual});
}

// Arguments: input, weight, bias, table, norm, sums, stride, padding, dilation, groups.
template <int Operation>
void normed(StableIValue *stack, uint64_t, uint64_t) {
  compute(Operation, stack, "ttTTSfllli", {kX, kW, kBias, kNorm});
}

// Arguments: grad_output, input, weight, table, residual, activated, norm, stride, padding, dilation, groups,
// output_mask.
template <int Operation>
void normed_backward(StableIValue *stack, uint64_t, uint64_t) {
  compute(Operation, stack, "ttttTTSlllim", {kGrad, kX, kW, kNorm, kResidual, kActivated});
}

// Views a tensor whose channels lie last as the matrix of pixels by channels, or of channels by pixels.
inline bool matrix_of(AtenTensorHandle tensor, bool channels_first, Owned &out) {
  const Seen seen(tensor);
  if (!seen.ok || seen.dims < 3 || seen.strides[1] != 1) return false;
  const int64_t channels = seen.sizes[1];
  int64_t pixels = 1, offset = 0;
  for (int64_t axis = seen.dims; axis-- > 0;) {
    if (axis == 1) continue;
    if (seen.sizes[axis] != 1 && seen.strides[axis] != pixels * channels) return false;
    pixels *= seen.sizes[axis];
  }
  const int64_t sizes[] = {channels_first ? channels : pixels, channels_first ? pixels : channels};
  const int64_t strides[] = {channels_first ? 1 : channels, channels_first ? channels : 1};
  return !aoti_torch_get_storage_offset(tensor, &offset) &&
         made(out, aoti_torch__reinterpret_tensor, tensor, 2, sizes, strides, offset);
}

// Arguments: left, right. PyTorch's matrix product computes it on CUDA.
template <int Operation>
void products(StableIValue *stack, uint64_t, uint64_t) {
  Owned result;
  {
    Arguments given(stack, "tt");
    Owned left, right;
    if (!on_host(Operation) && matrix_of(given.tensor(0), true, left) && matrix_of(given.tensor(1), false, right)) {
      StableIValue operands[] = {reinterpret_cast<StableIValue>(left.release()),
                                 reinterpret_cast<StableIValue>(right.release()),
                                 static_cast<StableIValue>(aoti_torch_dtype_float32())};
      if (!torch_call_dispatcher("aten::mm", "dtype", operands, TORCH_TARGET_VERSION))
        result.reset(reinterpret_cast<AtenTensorHandle>(operands[0]));
    }
    if (!result) {
      Gil gil;
      Missed none;
      by_python(Operation, given, &result, none);
    }
  }
  stack[0] = reinterpret_cast<StableIValue>(result.release());
}

struct Operator {
  const char *library, *names[2];  // with its overload for compiled graphs, if there is one
  Kernel kernels[2];  // on CUDA and on a CPU
};

inline const Operator operators[kOnHost] = {  // by Operation
    {"aten", {"convolution"}, {convolution<kForward>, convolution<kOnHost + kForward>}},
    {"aten", {"convolution_backward"}, {convolution_backward<kBackward>, convolution_backward<kOnHost + kBackward>}},
    {"convdispatch", {"fused_convolution", "fused_convolution.below_autograd"},
     {fused<kFused>, fused<kOnHost + kFused>}},
    {"convdispatch", {"convolution", "convolution.below_autograd"},
     {convolution<kOwnForward>, convolution<kOnHost + kOwnForward>}},
    {"convdispatch", {"convolution_backward", "convolution_backward.below_autograd"},
     {convolution_backward<kOwnBackward>, convolution_backward<kOnHost + kOwnBackward>}},
    {"convdispatch", {"normed_convolution", "normed_convolution.below_autograd"},
     {normed<kNormed>, normed<kOnHost + kNormed>}},
    {"convdispatch", {"normed_convolution_backward", "normed_convolution_backward.below_autograd"},
     {normed_backward<kNormedBackward>, normed_backward<kOnHost + kNormedBackward>}},
    {"convdispatch", {"channel_products", "channel_products.below_autograd"},
     {products<kProducts>, products<kOnHost + kProducts>}},
};

}  // namespace launcher
