// The same in C++ on any OpenCL device: 1x1 layers in NCHW, float32, one kernel. It links with no OpenCL library: the
// host hands it the functions of its own.
#include <convdispatch_plugin.h>

#include <cstdio>
#include <memory>

namespace {

const char *const source = R"(
// y[n, o, p] = sum_i w[o, i] * x[n, i, p]; each operand begins some elements into its buffer.
kernel void product(global const float *x, ulong x0, global const float *w, ulong w0, global float *y, ulong y0) {
  const size_t p = get_global_id(0), o = get_global_id(1), n = get_global_id(2);
  float sum = 0;
  for (int i = 0; i < IC; ++i) sum = fma(w[w0 + o * IC + i], x[x0 + (n * IC + i) * PIXELS + p], sum);
  y[y0 + (n * OC + o) * PIXELS + p] = sum;
})";

struct Plan {  // the functions have the types of OpenCL's header; a handle is a pointer
  void *(*create_program)(void *, uint32_t, const char **, const size_t *, int32_t *);
  int32_t (*build)(void *, uint32_t, void *const *, const char *, void *, void *);
  void *(*create_kernel)(void *, const char *, int32_t *);
  int32_t (*set_argument)(void *, uint32_t, size_t, const void *);
  int32_t (*launch)(void *, void *, uint32_t, const size_t *, const size_t *, const size_t *, uint32_t, const void *, void *);
  int32_t (*release_program)(void *), (*release_kernel)(void *);
  void *program = nullptr;
  size_t work[3];

  template <typename Function>
  static bool find(const convdispatch_device &device, Function &function, const char *name) {
    return (function = reinterpret_cast<Function>(device.opencl_function(name))) != nullptr;
  }
  bool open(const convdispatch_device &device) {
    return find(device, create_program, "clCreateProgramWithSource") && find(device, build, "clBuildProgram") &&
           find(device, create_kernel, "clCreateKernel") && find(device, set_argument, "clSetKernelArg") &&
           find(device, launch, "clEnqueueNDRangeKernel") && find(device, release_program, "clReleaseProgram") &&
           find(device, release_kernel, "clReleaseKernel");
  }
  ~Plan() { if (program) release_program(program); }
};

int32_t say(int32_t status, char *text, size_t size, const char *words) {
  std::snprintf(text, size, "%s", words);
  return status;
}

int32_t rejects(const convdispatch_solver *, const convdispatch_problem *p, const convdispatch_device *, char *text,
                size_t size) {
  if (p->direction != CONVDISPATCH_FORWARD || p->layout != CONVDISPATCH_NCHW)
    return say(CONVDISPATCH_REJECTED, text, size, "forward in nchw only");
  if (p->kd * p->kh * p->kw != 1 || p->sd * p->sh * p->sw != 1 || p->od != p->id || p->oh != p->ih || p->ow != p->iw)
    return say(CONVDISPATCH_REJECTED, text, size, "1x1 with stride 1 and no padding only");
  return p->g == 1 && p->mb > 0 ? CONVDISPATCH_OK : say(CONVDISPATCH_REJECTED, text, size, "one group and 1 image or more only");
}

int32_t plan(const convdispatch_solver *, const convdispatch_problem *p, const convdispatch_device *device, const char *,
             void **made, char *text, size_t size) {
  std::unique_ptr<Plan> plan(new Plan);
  if (!plan->open(*device)) return say(CONVDISPATCH_INTERNAL, text, size, "an OpenCL function is missing");
  const size_t work[] = {size_t(p->od * p->oh * p->ow), size_t(p->oc), size_t(p->mb)};
  for (int axis = 0; axis < 3; ++axis) plan->work[axis] = work[axis];
  char options[96];
  std::snprintf(options, sizeof options, "-DIC=%lld -DOC=%lld -DPIXELS=%lldL", (long long)p->ic, (long long)p->oc,
                (long long)work[0]);
  const char *texts[] = {source};
  int32_t error = 0;
  plan->program = plan->create_program(device->cl_context, 1, texts, nullptr, &error);
  if (error || plan->build(plan->program, 1, &device->cl_device_id, options, nullptr, nullptr))
    return say(CONVDISPATCH_BUILD_FAILED, text, size, "the kernel does not compile");
  *made = plan.release();
  return CONVDISPATCH_OK;
}

int32_t enqueue(void *made, const convdispatch_call *call, char *text, size_t size) {
  const Plan &plan = *static_cast<Plan *>(made);
  int32_t error = 0;
  void *kernel = plan.create_kernel(plan.program, "product", &error);  // a run's own: threads share the plan
  if (error) return say(CONVDISPATCH_LAUNCH_FAILED, text, size, "no kernel");
  uint32_t argument = 0;
  const convdispatch_memory *const operands[] = {&call->x, &call->w, &call->y};
  for (const convdispatch_memory *each : operands) {
    const uint64_t first = each->offset / sizeof(float);
    error |= plan.set_argument(kernel, argument++, sizeof each->base, &each->base);
    error |= plan.set_argument(kernel, argument++, sizeof first, &first);
  }
  error |= plan.launch(call->queue, kernel, 3, nullptr, plan.work, nullptr, 0, nullptr, nullptr);
  plan.release_kernel(kernel);
  return error ? say(CONVDISPATCH_LAUNCH_FAILED, text, size, "the queue refuses the kernel") : CONVDISPATCH_OK;
}

void discard(void *made) { delete static_cast<Plan *>(made); }

const convdispatch_solver product = {
    sizeof(convdispatch_solver), CONVDISPATCH_OPENCL, CONVDISPATCH_DETERMINISTIC | CONVDISPATCH_EXACT, 0,
    1u << CONVDISPATCH_FLOAT32, 0, "portable.product", nullptr,
    rejects, nullptr, nullptr, nullptr, plan, enqueue, discard, nullptr, nullptr,
};
const convdispatch_solver *const solvers[] = {&product};
const convdispatch_plugin plugin = {
    sizeof(convdispatch_plugin), CONVDISPATCH_PLUGIN_VERSION, "portable", "convdispatch", "1.0", 1, 0, solvers, nullptr,
};

}  // namespace

const convdispatch_plugin *convdispatch_get_plugin(uint32_t version) {
  return version >= CONVDISPATCH_PLUGIN_VERSION ? &plugin : nullptr;
}
