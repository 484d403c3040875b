// aten::convolution and its backward where Python has decided them before: found by a packed key, then launched. All
// else is asked of Python, which may put what it decided under the key that was missed.
#pragma once

#include "programs.h"

namespace launcher {

// What bears on a call beside its tensors. Read with Python's lock, as Python itself reads it.
struct Gate {
  PyObject *plain = nullptr;  // the only policy that is served
  PyObject *tracing = nullptr, *inference = nullptr, *grad = nullptr;
  PyObject *switches = nullptr;  // a tuple of functions whose answers are part of a key
  PyObject *forward = nullptr, *backward = nullptr;  // the operators in Python
  bool paused = false;
};
inline Gate gate;

struct Words {
  PyObject *policy = nullptr;                     // answers the policy in force
  PyObject *object = nullptr, *handle = nullptr;  // a handle's tensor, and a new handle of a tensor
};
inline Words words;

enum Source : int { kX, kW, kGrad, kBias, kOut, kNone };

struct Step {
  Shared program;
  std::vector<int> sources;  // of each operand
  int result = 0;            // which of the operator's results it writes
  bool packs = false;        // reads packed weights where weights are
};

struct Decision {  // free of Python's objects: let go without its lock
  std::vector<Step> steps;
  bool sums = false;  // the third result is PyTorch's sum of the gradient over all axes but the channels'
};
using Decided = std::shared_ptr<const Decision>;

struct Weights {
  Decided decided;
  Ref holds;  // answers whether the packed form is still that of the weights; none for weights that are not packed
  uint64_t packed = 0;
  int left = 256;  // calls until Python is asked again whether these became constant
};

struct Entry {
  Decided decided;
  std::unordered_map<uint64_t, Weights> weights;  // in inference mode, where it depends on them: by address
};

inline std::unordered_map<std::string, Entry> entries;
inline std::unordered_map<uint64_t, int> packed_weights;  // addresses of those that some entry has packed forms of
inline uint64_t calls[2];                                 // of each operator since Python asked last
constexpr size_t kMost = 4096;

struct Missed {  // the key that this thread's call did not find
  std::string key;
  uint64_t weights = 0;
  bool inference = false, open = false;
};
inline thread_local Missed missed;

inline void forget_all() {
  entries.clear();
  packed_weights.clear();
}

inline int truth(PyObject *function) {
  Ref answer(PyObject_CallObject(function, nullptr));
  const int found = answer ? PyObject_IsTrue(answer.get()) : -1;
  if (found < 0) {
    const bool interrupted = PyErr_ExceptionMatches(PyExc_KeyboardInterrupt);
    PyErr_Clear();
    if (interrupted) PyErr_SetInterrupt();  // it comes again where Python hears it
  }
  return found;
}

// The bits of a key that are no tensor's; -1 where the call is Python's whatever they are.
inline int64_t circumstances() {
  if (gate.paused || truth(gate.tracing)) return -1;
  Ref policy(PyObject_CallObject(words.policy, nullptr));
  if (policy.get() != gate.plain) return PyErr_Clear(), -1;
  const int inference = truth(gate.inference), grad = truth(gate.grad);
  if (inference < 0 || grad < 0) return -1;
  int64_t bits = inference | grad << 1;
  const Py_ssize_t count = PyTuple_Size(gate.switches);
  for (Py_ssize_t at = 0; at < count; ++at) {
    const int on = truth(PyTuple_GetItem(gate.switches, at));
    if (on < 0) return -1;
    bits |= static_cast<int64_t>(on) << (at + 2);
  }
  return bits;
}

class Key {
 public:
  void add(int64_t word) { words_[count_ < kWords ? count_++ : (full_ = true, kWords - 1)] = word; }
  void add(const Seen &seen) {
    add(seen.dims << 48 | static_cast<int64_t>(seen.dtype) << 32 | static_cast<int64_t>(seen.kind & 0xff) << 16 |
        (seen.index & 0xffff));
    for (int64_t axis = 0; axis < seen.dims; ++axis) add(seen.sizes[axis]), add(seen.strides[axis]);
  }
  void add(const Arguments &given, size_t at, bool flags = false) {
    const size_t count = given.count(at);
    add(static_cast<int64_t>(count));
    for (size_t place = 0; place < count; ++place) add(given.item(at, place, flags));
  }
  bool whole() const { return !full_; }
  std::string text() const { return {reinterpret_cast<const char *>(words_), count_ * sizeof *words_}; }

 private:
  static constexpr size_t kWords = 128;
  int64_t words_[kWords];
  size_t count_ = 0;
  bool full_ = false;
};

// A call's tensors by Source, and its key.
struct Call {
  int operation;
  const Arguments &given;
  std::vector<Seen> seen;
  uint64_t addresses[kNone + 1] = {};
  Key key;
  bool ok = true;

  Call(int operation, const Arguments &given, std::initializer_list<int> tensors) : operation(operation), given(given) {
    key.add(operation);
    seen.reserve(4);
    size_t at = 0;
    for (int source : tensors) {
      const bool here = given.has(at);
      key.add(here);
      if (here) {
        const Seen &one = seen.emplace_back(given.tensor(at));
        if (!(ok = ok && one.ok)) return;
        key.add(one);
        addresses[source] = one.at();
      }
      ++at;
    }
    for (; given.kinds()[at]; ++at) switch (given.kinds()[at]) {
        case 'l': key.add(given, at, operation && at == 10); break;
        case 'L': key.add(given.has(at)); break;  // sizes of the bias, which follow from the others
        case 'f': key.add(given.flag(at)); break;
        case 'i': key.add(given.integer(at)); break;
      }
    ok = key.whole();
  }
};

// What was decided for a call, and its packed weights' address where it has some; none where Python is to be asked, which may
// put what it decides under `asked`.
inline Decided found(Call &call, uint64_t &packed, Missed &asked) {
  const int64_t bits = circumstances();
  if (bits < 0) return nullptr;
  const uint64_t weights = call.addresses[kW];
  call.key.add(bits);
  asked = {call.key.text(), weights, static_cast<bool>(bits & 1), true};
  if (!asked.inference && !packed_weights.empty() && packed_weights.erase(weights)) {
    for (auto &each : entries) each.second.weights.erase(weights);  // an optimizer may be about to write
    return nullptr;
  }
  auto at = entries.find(asked.key);
  if (at == entries.end()) return nullptr;
  if (at->second.decided) return at->second.decided;
  auto known = at->second.weights.find(weights);
  if (known == at->second.weights.end()) return nullptr;
  Decided decided = known->second.decided;
  if (!known->second.holds) return --known->second.left < 0 ? nullptr : decided;
  packed = known->second.packed;
  Ref holds = Ref::of(known->second.holds.get());  // what it runs may change all of this
  return truth(holds.get()) == 1 ? decided : nullptr;
}

inline void count(int operation, const Decision &decided, int by) {
  calls[operation] += by;
  for (const Step &step : decided.steps) step.program->count(step.result < 2 ? by : 0);  // sums are no solver's
}

// PyTorch's sum of a gradient over all axes but the channels'.
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
  *sums.put() = reinterpret_cast<AtenTensorHandle>(stack[0]);
  return true;
}

// Run what was decided; false, with nothing in `results`, where Python has to.
inline bool launched(const Decision &decided, const Call &call, uint64_t packed, Owned *results) {
  const Seen &lead = call.seen.front();
  void *stream = nullptr;
  if (driver.current_stream(lead.index < 0 ? 0 : lead.index, &stream)) return false;
  Owned made[3];
  std::vector<uint64_t> operands;
  operands.reserve(16);
  for (const Step &step : decided.steps) {
    const Program &program = *step.program;
    if (!program.here()) return false;
    operands.clear();
    uint64_t all = 0;
    for (int source : step.sources) {
      uint64_t address = call.addresses[source];
      if (source == kW && step.packs) {
        address = packed;
      } else if (source == kOut) {
        void *data = nullptr;
        if (!program.allocate(made[step.result], lead) ||
            aoti_torch_get_data_ptr(made[step.result].get(), &data))
          return false;
        address = reinterpret_cast<uint64_t>(data);
      }
      all |= address;
      operands.push_back(address);
    }
    if (all % kAlignment || !program.run(stream, operands, lead.kind, lead.index)) return false;
  }
  if (decided.sums && !summed(call.given.tensor(0), lead.dims, made[2])) return false;
  for (int at = 0; at < 3; ++at) results[at] = std::move(made[at]);
  return true;
}

inline PyObject *list_of(const Arguments &given, size_t at, bool flags) {
  const size_t count = given.count(at);
  Ref made(PyList_New(static_cast<Py_ssize_t>(count)));
  for (size_t place = 0; made && place < count; ++place) {
    const int64_t item = given.item(at, place, flags);
    PyList_SetItem(made.get(), static_cast<Py_ssize_t>(place), flags ? PyBool_FromLong(item) : PyLong_FromLongLong(item));
  }
  return made.release();
}

// A tensor's object; the handle stays the caller's.
inline PyObject *tensor_of(AtenTensorHandle tensor) {
  Ref capsule(PyCapsule_New(tensor, nullptr, nullptr));
  return capsule ? PyObject_CallFunctionObjArgs(words.object, capsule.get(), nullptr) : nullptr;
}

inline bool handle_of(PyObject *tensor, Owned &found) {
  if (tensor == Py_None) return !aoti_torch_new_uninitialized_tensor(found.put());
  Ref capsule(PyObject_CallFunctionObjArgs(words.handle, tensor, nullptr));
  void *pointer = capsule ? PyCapsule_GetPointer(capsule.get(), nullptr) : nullptr;
  if (!pointer) return false;
  *found.put() = static_cast<AtenTensorHandle>(pointer);
  return true;
}

// The operator in Python. Throws what it raises.
inline void by_python(int operation, const Arguments &given, Owned *results, Missed &asked) {
  size_t count = std::strlen(given.kinds());
  Ref arguments(PyTuple_New(static_cast<Py_ssize_t>(count)));
  for (size_t at = 0; at < count; ++at) {
    PyObject *one = nullptr;
    if (!given.has(at)) {
      Py_INCREF(Py_None);
      one = Py_None;
    } else {
      switch (given.kinds()[at]) {
        case 't': case 'T': one = tensor_of(given.tensor(at)); break;
        case 'l': case 'L': one = list_of(given, at, operation && at == 10); break;
        case 'f': one = PyBool_FromLong(given.flag(at)); break;
        case 'i': one = PyLong_FromLongLong(given.integer(at)); break;
      }
    }
    if (!one) throw Raised();
    PyTuple_SetItem(arguments.get(), static_cast<Py_ssize_t>(at), one);
  }
  std::swap(missed, asked);  // a call inside this one has a key of its own
  Ref answer(PyObject_CallObject(operation ? gate.backward : gate.forward, arguments.get()));
  std::swap(missed, asked);
  if (!answer) throw Raised();
  if (!operation) {
    if (!handle_of(answer.get(), results[0])) throw Raised();
    return;
  }
  for (Py_ssize_t at = 0; at < 3; ++at) {
    Ref each(PySequence_GetItem(answer.get(), at));
    if (!each || !handle_of(each.get(), results[at])) throw Raised();
  }
}

inline void compute(int operation, StableIValue *stack, const char *kinds, std::initializer_list<int> tensors) {
  Owned results[3];
  {
    Arguments given(stack, kinds);
    Call call(operation, given, tensors);
    Decided decided;
    Missed asked;
    uint64_t packed = 0;
    Gil gil;
    if (call.ok) decided = found(call, packed, asked);
    bool done = false;
    if (decided) {
      count(operation, *decided, 1);
      gil.release();
      done = launched(*decided, call, packed, results);
      if (!done) gil.take(), count(operation, *decided, -1);
    }
    if (!done) by_python(operation, given, results, asked);
  }
  for (int at = 0; at < (operation ? 3 : 1); ++at) {
    if (!results[at].get()) aoti_torch_new_uninitialized_tensor(results[at].put());
    stack[at] = reinterpret_cast<StableIValue>(results[at].release());
  }
}

// input, weight, bias, stride, padding, dilation, transposed, output_padding, groups
inline void convolution(StableIValue *stack, uint64_t, uint64_t) {
  compute(0, stack, "ttTlllfli", {kX, kW, kBias});
}

// grad_output, input, weight, bias_sizes, stride, padding, dilation, transposed, output_padding, groups, output_mask
inline void convolution_backward(StableIValue *stack, uint64_t, uint64_t) {
  compute(1, stack, "tttLlllflil", {kGrad, kX, kW});
}

}  // namespace launcher
