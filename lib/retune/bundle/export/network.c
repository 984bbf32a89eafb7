/* Runs a network on an OpenCL device. What the network is says network.h; this file is the same
   for every network that `retune export --c` writes. The last part is a command line: with
   -DWITHOUT_MAIN the functions of network.h are what is left, for programs of your own.

   The parts: OpenCL - problems - devices - PoCL - sizes - states - memory - kernels - network -
   sessions - files - command line

   Numbers in files are little-endian, as on every device that it was made for. */

#define _GNU_SOURCE
#define NETWORK_TABLES
#include "network.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <sched.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* ------------------------------------------------------------------------------------- OpenCL
   What is used of it, for machines without its headers. With -DWITH_CL_H they are taken instead. */

#ifdef WITH_CL_H
#define CL_TARGET_OPENCL_VERSION 300
#define CL_USE_DEPRECATED_OPENCL_1_2_APIS
#include <CL/cl.h>
#else
typedef int32_t cl_int;
typedef uint32_t cl_uint;
typedef uint64_t cl_ulong;
typedef struct _cl_platform_id *cl_platform_id;
typedef struct _cl_device_id *cl_device_id;
typedef struct _cl_context *cl_context;
typedef struct _cl_command_queue *cl_command_queue;
typedef struct _cl_program *cl_program;
typedef struct _cl_kernel *cl_kernel;
typedef struct _cl_mem *cl_mem;
typedef struct _cl_event *cl_event;
typedef struct {
  size_t origin, size;
} cl_buffer_region;
typedef struct {
  cl_uint image_channel_order, image_channel_data_type;
} cl_image_format;
typedef struct {
  cl_uint image_type;
  size_t image_width, image_height, image_depth, image_array_size;
  size_t image_row_pitch, image_slice_pitch;
  cl_uint num_mip_levels, num_samples;
  cl_mem buffer;
} cl_image_desc;

#define CL_SUCCESS 0
#define CL_TRUE 1
#define CL_PLATFORM_NAME 0x0902
#define CL_DEVICE_TYPE_CPU 0x2
#define CL_DEVICE_TYPE_GPU 0x4
#define CL_DEVICE_TYPE_ALL 0xFFFFFFFF
#define CL_DEVICE_TYPE 0x1000
#define CL_DEVICE_MAX_COMPUTE_UNITS 0x1002
#define CL_DEVICE_MAX_WORK_GROUP_SIZE 0x1004
#define CL_DEVICE_NAME 0x102B
#define CL_DRIVER_VERSION 0x102D
#define CL_DEVICE_VERSION 0x102F
#define CL_DEVICE_SVM_CAPABILITIES 0x1053
#define CL_DEVICE_SVM_COARSE_GRAIN_BUFFER 0x1
#define CL_DEVICE_SVM_FINE_GRAIN_BUFFER 0x2
#define CL_DEVICE_ATOMIC_MEMORY_CAPABILITIES 0x1063
#define CL_DEVICE_ATOMIC_ORDER_ACQ_REL 0x2
#define CL_DEVICE_ATOMIC_SCOPE_DEVICE 0x20
#define CL_RGBA 0x10B5
#define CL_FLOAT 0x10DE
#define CL_MEM_OBJECT_IMAGE2D 0x10F1
#define CL_MEM_READ_WRITE 0x1
#define CL_MEM_READ_ONLY 0x4
#define CL_MEM_USE_HOST_PTR 0x8
#define CL_MEM_COPY_HOST_PTR 0x20
#define CL_MEM_SVM_FINE_GRAIN_BUFFER 0x400
#define CL_BUFFER_CREATE_TYPE_REGION 0x1220
#define CL_PROGRAM_BUILD_LOG 0x1183
#define CL_KERNEL_NUM_ARGS 0x1191
#define CL_KERNEL_EXEC_INFO_SVM_PTRS 0x11B6

cl_int clGetPlatformIDs(cl_uint, cl_platform_id *, cl_uint *);
cl_int clGetPlatformInfo(cl_platform_id, cl_uint, size_t, void *, size_t *);
cl_int clGetDeviceIDs(cl_platform_id, cl_ulong, cl_uint, cl_device_id *, cl_uint *);
cl_int clGetDeviceInfo(cl_device_id, cl_uint, size_t, void *, size_t *);
cl_context clCreateContext(const intptr_t *, cl_uint, const cl_device_id *,
                           void (*)(const char *, const void *, size_t, void *), void *, cl_int *);
cl_command_queue clCreateCommandQueue(cl_context, cl_device_id, cl_ulong, cl_int *);
cl_program clCreateProgramWithSource(cl_context, cl_uint, const char **, const size_t *, cl_int *);
cl_int clBuildProgram(cl_program, cl_uint, const cl_device_id *, const char *,
                      void (*)(cl_program, void *), void *);
cl_int clGetProgramBuildInfo(cl_program, cl_device_id, cl_uint, size_t, void *, size_t *);
cl_kernel clCreateKernel(cl_program, const char *, cl_int *);
cl_int clGetKernelInfo(cl_kernel, cl_uint, size_t, void *, size_t *);
cl_int clSetKernelArg(cl_kernel, cl_uint, size_t, const void *);
cl_mem clCreateBuffer(cl_context, cl_ulong, size_t, void *, cl_int *);
cl_mem clCreateSubBuffer(cl_mem, cl_ulong, cl_uint, const void *, cl_int *);
cl_int clEnqueueWriteBuffer(cl_command_queue, cl_mem, cl_uint, size_t, size_t, const void *,
                            cl_uint, const cl_event *, cl_event *);
cl_int clEnqueueReadBuffer(cl_command_queue, cl_mem, cl_uint, size_t, size_t, void *, cl_uint,
                           const cl_event *, cl_event *);
cl_int clEnqueueNDRangeKernel(cl_command_queue, cl_kernel, cl_uint, const size_t *, const size_t *,
                              const size_t *, cl_uint, const cl_event *, cl_event *);
cl_int clFinish(cl_command_queue);
cl_int clReleaseMemObject(cl_mem);
cl_int clReleaseKernel(cl_kernel);
cl_int clReleaseProgram(cl_program);
cl_int clReleaseCommandQueue(cl_command_queue);
cl_int clReleaseContext(cl_context);
#endif

/* Images of this kind came with OpenCL 1.2, shared virtual memory with 2.0: libraries of before
   lack these, and do without. */
#pragma weak clCreateImage
#pragma weak clSVMAlloc
#pragma weak clSVMFree
#pragma weak clEnqueueSVMMemcpy
#pragma weak clSetKernelArgSVMPointer
#pragma weak clSetKernelExecInfo
#ifndef WITH_CL_H
cl_mem clCreateImage(cl_context, cl_ulong, const cl_image_format *, const cl_image_desc *, void *,
                     cl_int *);
void *clSVMAlloc(cl_context, cl_ulong, size_t, cl_uint);
void clSVMFree(cl_context, void *);
cl_int clEnqueueSVMMemcpy(cl_command_queue, cl_uint, void *, const void *, size_t, cl_uint,
                          const cl_event *, cl_event *);
cl_int clSetKernelArgSVMPointer(cl_kernel, cl_uint, const void *);
cl_int clSetKernelExecInfo(cl_kernel, cl_uint, size_t, const void *);
#endif

/* ----------------------------------------------------------------------------------- problems */

static char problem[4096];

const char *network_problem(void) { return problem; }

/* Keeps one sentence that says what is wrong. Always -1. */
static int fail(const char *format, ...) {
  va_list values;
  va_start(values, format);
  vsnprintf(problem, sizeof problem, format, values);
  va_end(values);
  return -1;
}

static int check(cl_int code, const char *what) {
  static const struct {
    cl_int code;
    const char *meaning;
  } known[] = {
      {-1, "there is no such device"},      {-4, "the device has no memory left for it"},
      {-5, "the device is out of resources"}, {-6, "this machine has no memory left for it"},
      {-11, "the program does not build"},  {-30, "a value is not allowed"},
      {-46, "there is no such kernel"},     {-52, "the kernel takes other arguments"},
      {-54, "the work-group does not fit"}, {-1001, "no OpenCL driver is installed"},
  };
  if (code == CL_SUCCESS) return 0;
  for (size_t i = 0; i < sizeof known / sizeof *known; ++i)
    if (known[i].code == code) return fail("%s: OpenCL error %d: %s", what, code, known[i].meaning);
  return fail("%s: OpenCL error %d", what, code);
}

/* ------------------------------------------------------------------------------------ devices */

enum { MOST_DEVICES = 64 };

struct device {
  cl_platform_id platform;
  cl_device_id id;
  cl_ulong type;
  char platform_name[128], name[128], version[256], driver[128];
};

static void device_text(cl_device_id id, cl_uint what, char *text, size_t bytes) {
  if (clGetDeviceInfo(id, what, bytes, text, NULL) != CL_SUCCESS) snprintf(text, bytes, "unknown");
  for (size_t end = strlen(text); end && isspace((unsigned char)text[end - 1]); --end)
    text[end - 1] = 0;
}

/* PoCL's device without threads of its own: a kernel runs in the thread that enqueues it. */
static int runs_in_caller(const struct device *device) {
  return !strncmp(device->name, "basic", 5) || !strncmp(device->name, "cpu-minimal", 11);
}

#define POCL "Portable Computing Language"
enum { MOST_THREADS = 1024 };

/* The threads of this process; their number. */
static int list_threads(pid_t *found) {
  DIR *folder = opendir("/proc/self/task");
  int count = 0;
  for (struct dirent *entry; folder && count < MOST_THREADS && (entry = readdir(folder));)
    if (isdigit((unsigned char)entry->d_name[0])) found[count++] = (pid_t)atol(entry->d_name);
  if (folder) closedir(folder);
  return count;
}

#ifdef CPU_COUNT
#ifndef CONTROL_GROUPS
#define CONTROL_GROUPS "/sys/fs/cgroup"
#define OWN_GROUP "/proc/self/cgroup"
#endif
enum { GROUP_BYTES = 4096 };

/* The first number of a file in a folder of the control groups, and the one behind it, if it is
   asked for; whether they are there: `max` is none. */
static int read_limit(const char *group, const char *name, double *first, double *second) {
  char path[sizeof CONTROL_GROUPS + GROUP_BYTES + 32];
  snprintf(path, sizeof path, "%s%s/%s", CONTROL_GROUPS, group, name);
  FILE *file = fopen(path, "r");
  const int count = file ? fscanf(file, second ? "%lf %lf" : "%lf", first, second) : 0;
  if (file) fclose(file);
  return count == (second ? 2 : 1);
}

/* How many cores' time Linux gives the process's control groups, `docker run --cpus 2`, say; 0 where
   that is not limited. Both versions of cgroups(7). */
static double quota_cores(void) {
  char group[GROUP_BYTES] = "", line[GROUP_BYTES];
  double quota, period, least = 0;
  FILE *own = fopen(OWN_GROUP, "r");
  while (own && fgets(line, sizeof line, own))
    if (sscanf(line, "0::%4095[^\n]", group) == 1) break;
  if (own) fclose(own);
  for (char *end = group + strlen(group); end; end = strrchr(group, '/')) {
    *end = 0;
    if (read_limit(group, "cpu.max", &quota, &period) && (!least || quota / period < least))
      least = quota / period;
  }
  if (read_limit("/cpu", "cpu.cfs_quota_us", &quota, NULL) && quota > 0 &&
      read_limit("/cpu", "cpu.cfs_period_us", &period, NULL) && (!least || quota / period < least))
    least = quota / period;
  return least;
}

/* The cores that this process may use; 0: that is not known. */
static int usable_cores(void) {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed)) return 0;
  const double quota = quota_cores();
  const int whole = (int)quota + (quota > (int)quota);
  return quota && whole < CPU_COUNT(&allowed) ? whole : CPU_COUNT(&allowed);
}
#endif

/* Threads that are not among those of before stay on a core each, of those that may be used: two
   that wait for each other must not share one. Not where only a share of the cores' time may be
   used: others have the rest of it. PoCL's own pinning is to core 0, 1, ... */
static void pin_threads(const pid_t *before, int known) {
#ifdef CPU_COUNT
  static pid_t now[MOST_THREADS];
  const int count = list_threads(now);
  cpu_set_t allowed;
  size_t core = CPU_SETSIZE - 1;
  if (getenv("POCL_AFFINITY") || sched_getaffinity(0, sizeof allowed, &allowed)) return;
  if (usable_cores() < CPU_COUNT(&allowed)) return;
  for (int i = 0; i < count; ++i) {
    int is_known = 0;
    for (int k = 0; k < known; ++k) is_known |= before[k] == now[i];
    if (is_known) continue;
    do core = (core + 1) % CPU_SETSIZE;
    while (!CPU_ISSET(core, &allowed));
    cpu_set_t own;
    CPU_ZERO(&own);
    CPU_SET(core, &own);
    sched_setaffinity(now[i], sizeof own, &own);
  }
#else
  (void)before, (void)known;
#endif
}

/* All devices in the order of the drivers; their number, or -1. */
static int find_devices(struct device *found) {
  cl_platform_id platforms[16];
  cl_device_id ids[16];
  cl_uint platform_count = 0, count, total = 0;
  static pid_t threads[MOST_THREADS];
  if (check(clGetPlatformIDs(16, platforms, &platform_count), "search for devices")) return -1;
  for (cl_uint p = 0; p < platform_count && p < 16; ++p) {
    char name[sizeof found->platform_name] = "";
    clGetPlatformInfo(platforms[p], CL_PLATFORM_NAME, sizeof name, name, NULL);
    count = 0;
    const int is_pocl = !strcmp(name, POCL), known = is_pocl ? list_threads(threads) : 0;
    if (clGetDeviceIDs(platforms[p], CL_DEVICE_TYPE_ALL, 16, ids, &count) != CL_SUCCESS) continue;
    if (is_pocl) pin_threads(threads, known);
    for (cl_uint d = 0; d < count && d < 16 && total < MOST_DEVICES; ++d) {
      struct device *device = &found[total++];
      device->platform = platforms[p];
      device->id = ids[d];
      device->type = 0;
      memcpy(device->platform_name, name, sizeof name);
      clGetDeviceInfo(ids[d], CL_DEVICE_TYPE, sizeof device->type, &device->type, NULL);
      device_text(ids[d], CL_DEVICE_NAME, device->name, sizeof device->name);
      device_text(ids[d], CL_DEVICE_VERSION, device->version, sizeof device->version);
      device_text(ids[d], CL_DRIVER_VERSION, device->driver, sizeof device->driver);
    }
  }
  return total ? (int)total : fail("search for devices: no OpenCL driver has a device");
}

/* The device of that number or with that text in its name; of NULL the kind that the network was
   compiled for, or else the first of its class. NULL if there is none. */
static const struct device *choose(const struct device *found, int count, const char *wanted) {
  const cl_ulong type = NETWORK_IS_FOR_CPU ? CL_DEVICE_TYPE_CPU : CL_DEVICE_TYPE_GPU;
  if (wanted && *wanted && strspn(wanted, "0123456789") == strlen(wanted)) {
    const long number = strtol(wanted, NULL, 10);
    if (number < count) return &found[number];
  } else if (wanted) {
    for (int i = 0; i < count; ++i)
      if (strstr(found[i].name, wanted) || strstr(found[i].platform_name, wanted)) return &found[i];
  } else {
    for (int i = 0; i < count; ++i)
      if (!strcmp(found[i].name, NETWORK_DEVICE)) return &found[i];
    for (int i = 0; i < count; ++i)
      if (found[i].type & type && !runs_in_caller(&found[i])) return &found[i];
    return &found[0];
  }
  fail("device %s: there is no such device; --list shows those that there are", wanted);
  return NULL;
}

/* --------------------------------------------------------------------------------------- PoCL
   It comes with pyopencl, and wants to be asked nicely: threads that stay on their cores, and the
   device without threads beside the other one. pyopencl's OpenCL library copies PYOPENCL_HOME
   without a look whether it is set. ocl-icd sorts platforms by their devices, and asking for these
   starts PoCL's threads before they can be told from others. */

#ifndef PYOPENCL_HOME
#define PYOPENCL_HOME ""
#endif

static void prepare_environment(void) {
  setenv("PYOPENCL_HOME", PYOPENCL_HOME, 0);
#ifdef CPU_COUNT
  const int cores = usable_cores();
  if (cores && cores < sysconf(_SC_NPROCESSORS_ONLN)) {
    char count[12];
    snprintf(count, sizeof count, "%d", cores);
    setenv("POCL_CPU_MAX_CU_COUNT", count, 0);
    setenv("POCL_MAX_PTHREAD_COUNT", count, 0);
  }
#endif
  setenv("POCL_DEVICES", "pthread basic", 0);
  setenv("OCL_ICD_PLATFORM_SORT", "none", 0);
}

#if defined(__linux__) && defined(__x86_64__) && defined(__GNUC__)

/* Whether this process may read those bytes. */
static int is_readable(uintptr_t address, size_t bytes) {
  FILE *maps = fopen("/proc/self/maps", "r");
  char line[512], rights[8];
  unsigned long low, high;
  int found = 0;
  while (maps && !found && fgets(line, sizeof line, maps))
    found = sscanf(line, "%lx-%lx %7s", &low, &high, rights) == 3 && rights[0] == 'r' &&
            low <= address && address + bytes <= high;
  if (maps) fclose(maps);
  return found;
}

static const char *processor(void) {
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
    return __builtin_cpu_supports("avx512vnni") ? "cascadelake" : "skylake-avx512";
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return "haswell";
  return __builtin_cpu_supports("avx") ? "sandybridge" : "x86-64";
}

/* PoCL 3.0 compiles for an x86-64 of 2003 where it does not know the processor: kernels are then
   several times slower. It reads the processor's name from its device whenever it builds; where
   that name is a doubtful one, it is given the one that the processor has. */
static void repair_processor(const struct device *device) {
  const char *given = strstr(device->version, "-linux-gnu-"), *wanted = processor();
  const int own = strstr(device->version, " pthread-x86_64-") ||
                  strstr(device->version, " basic-x86_64-");
  if (!given || !own) return;
  given += strlen("-linux-gnu-");
  if (!strcmp(given, wanted)) return;
  const char **slots = (const char **)device->id;
  for (int i = 0; i < 400 && is_readable((uintptr_t)&slots[i], sizeof *slots); ++i)
    if ((uintptr_t)slots[i] > 4096 && is_readable((uintptr_t)slots[i], strlen(given) + 1) &&
        !strcmp(slots[i], given)) {
      slots[i] = wanted;
      return;
    }
}

#else
static void repair_processor(const struct device *device) { (void)device; }
#endif

/* Linux saves matrix registers for those processes alone that have asked (arch_prctl, x86-64). */
static int ask_for_matrix_registers(void) {
#if defined(SYS_arch_prctl)
  if (!syscall(SYS_arch_prctl, 0x1023, 18)) return 0;
#endif
  return fail("this machine gives no matrix registers (AMX), which the kernels use");
}

/* -------------------------------------------------------------------------------------- sizes
   A network for fixed shapes has none, and one variant. */

#ifndef SIZES
#define SIZES 0
#define SIZE_PARAMETERS
#define SIZE_ARGUMENTS 0
#define CORNERS 1
struct size {
  const char *name;
  int least, most, step;
  size_t offset;
};
struct variant {
  int first, last, resident, resident_last;
};
static const struct size sizes[] = {{"", 0, 0, 1, 0}};
static const struct variant variants[] = {{0, SEGMENTS, 0, RESIDENT_SEGMENTS}};
static const int corners[CORNERS][1] = {{0}};

static int choose_variant(const int *values) { return (void)values, 0; }

static void count_bytes(const int *values, size_t *bytes) {
  (void)values;
  for (int i = 0; i < INPUTS; ++i) bytes[i] = network_inputs[i].bytes;
  for (int i = 0; i < OUTPUTS; ++i) bytes[INPUTS + i] = network_outputs[i].bytes;
}

static void count_items(const int *values, size_t (*global)[3]) { (void)values, (void)global; }

static void count_times(const int *values, int *queued, int *resident) {
  (void)values, (void)queued, (void)resident;
}

#ifndef WITHOUT_MAIN
static void write_shape(int number, const int *values, char *text, size_t room) {
  (void)values;
  snprintf(text, room, "%s", number < INPUTS ? network_inputs[number].shape
                                             : network_outputs[number - INPUTS].shape);
}
#endif
#endif

/* Elements of inputs whose values are stated: by the sizes, or for good. */

#ifndef STATED
#define STATED 0
struct stated {
  int input;
  size_t offset, bytes;
};
static const struct stated stated[] = {{0, 0, 0}};

static void state_elements(const int *values, long long *elements) { (void)values, (void)elements; }
#endif

static int check_elements(const int *values, const void *const *inputs) {
  long long elements[STATED + 1];
  state_elements(values, elements);
  for (int i = 0; i < STATED; ++i) {
    const struct stated *own = &stated[i];
    if (memcmp((const char *)inputs[own->input] + own->offset, &elements[i], own->bytes))
      return fail("input %s: element %d: expected %lld, by the sizes that are given; got another; "
                  "give that number, or other sizes",
                  network_inputs[own->input].name, (int)(own->offset / own->bytes), elements[i]);
  }
  return 0;
}

#ifndef WITHOUT_MAIN
static void fill_elements(const int *values, int input, void *data) {
  long long elements[STATED + 1];
  state_elements(values, elements);
  for (int i = 0; i < STATED; ++i)
    if (stated[i].input == input)
      memcpy((char *)data + stated[i].offset, &elements[i], stated[i].bytes);
}
#endif

/* The number of the variant for these sizes, after a look at their ranges. */
static int check_sizes(const int *values) {
  for (int i = 0; i < SIZES; ++i) {
    const struct size *size = &sizes[i];
    const int value = values[i];
    if (value < size->least || value > size->most || (value - size->least) % size->step)
      return fail("size %s: expected %d to %d in steps of %d, got %d; compile the model for it",
                  size->name, size->least, size->most, size->step, value);
  }
  const int found = choose_variant(values);
  if (found < 0) return fail("sizes: expected some for which the network was compiled, got others");
  return found;
}

/* ------------------------------------------------------------------------------------- states
   Those that grow lie with the axis along which they do so outermost, whatever the model's order. */

#ifndef STATES
#define STATES 0
struct state {
  int input, output, grows;
};
static const struct state states[] = {{0, 0, 0}};

static void count_state(const int *values, int state, size_t (*extents)[3]) {
  (void)values, (void)state, (void)extents;
}
#endif

/* The state that the input of that number is, or else the output; -1: not a state. */
static int state_of(int input, int output) {
  for (int i = 0; i < STATES; ++i)
    if (states[i].input == input || states[i].output == output) return i;
  return -1;
}

/* [first, second, bytes] to [second, first, bytes]. */
static void exchange(const size_t *extents, const char *from, char *to) {
  const size_t first = extents[0], second = extents[1], bytes = extents[2];
  for (size_t i = 0; i < first; ++i)
    for (size_t j = 0; j < second; ++j)
      memcpy(to + (j * first + i) * bytes, from + (i * second + j) * bytes, bytes);
}

/* ------------------------------------------------------------------------------------- memory */

#ifndef BASES
#define BASES 3 /* a network without states */
#endif

enum { ARENA, WEIGHTS, INTERFACE, IN_PLACE, BEFORE, AFTER, IN_IMAGE };

struct memory {
  cl_mem object;
  unsigned char *pointer; /* shared virtual memory, instead of an object */
  int in_place;           /* the host reads and writes it where it is */
  void *pages;            /* the host's memory behind an object */
  size_t bytes;
};

struct launch {
  cl_kernel kernel;
  size_t global[3], local[3];
};

struct network {
  struct network *whole; /* of a session the network, which has what they share; of that itself */
  int there[SIZES + 1], has_there; /* of the network: the sizes that are on the device */
  struct device device;
  cl_context context;
  cl_command_queue queue;
  cl_program program;
  enum form form;
  cl_ulong shared; /* kinds of shared virtual memory that the device has */
  cl_uint threads;
  struct memory bases[BASES], state;
  cl_mem images[IMAGES + 1];
  struct {
    struct place place;
    cl_mem object;
  } windows[ARGUMENTS + 1];
  struct launch launches[STEPS + SEGMENTS + RESIDENT_SEGMENTS + 1];
  int sizes[SIZES + 1];  /* of the last run; before the first one there are none */
  int variant, has_sizes;
  int times[SEGMENTS + 1], resident_times[RESIDENT_SEGMENTS + 1]; /* of segments, for the sizes */
  size_t bytes[INPUTS + OUTPUTS + 1];
  int window_count, launch_count;
};

/* -DPASS_FOR_GPU shows on a machine without a GPU that the ways of one are right. */
static int is_cpu(const struct network *n) {
#ifdef PASS_FOR_GPU
  return (void)n, 0;
#else
  return (n->device.type & CL_DEVICE_TYPE_CPU) != 0;
#endif
}

static int write_to(struct network *n, struct memory *m, size_t at, const void *data, size_t bytes) {
  if (!bytes) return 0;
  if (m->in_place) {
    memcpy(m->pointer + at, data, bytes);
    return 0;
  }
  if (m->pointer)
    return check(clEnqueueSVMMemcpy(n->queue, CL_TRUE, m->pointer + at, data, bytes, 0, NULL, NULL),
                 "copy to the device");
  return check(clEnqueueWriteBuffer(n->queue, m->object, CL_TRUE, at, bytes, data, 0, NULL, NULL),
               "copy to the device");
}

/* Zeros everywhere: what was there may be no valid index, and the first run reads it. */
static int clear(struct network *n, struct memory *m) {
  void *zeros = calloc(1, m->bytes);
  if (!zeros) return fail("allocation of %zu bytes: this machine has too little", m->bytes);
  const int failed = write_to(n, m, 0, zeros, m->bytes);
  free(zeros);
  return failed;
}

static int allocate(struct network *n, struct memory *m, size_t bytes, int for_host) {
  const size_t huge = (size_t)2 << 20;
  const int fine = is_cpu(n) && for_host && n->shared & CL_DEVICE_SVM_FINE_GRAIN_BUFFER;
  const int coarse = !is_cpu(n) && n->shared & CL_DEVICE_SVM_COARSE_GRAIN_BUFFER;
  cl_int code;
  m->bytes = bytes ? bytes : 1;
  if (fine || coarse) {
    m->pointer = clSVMAlloc(n->context, fine ? CL_MEM_SVM_FINE_GRAIN_BUFFER | CL_MEM_READ_WRITE
                                             : CL_MEM_READ_WRITE, m->bytes, 128);
    if (!m->pointer) return fail("allocation of %zu shared bytes: the device refuses", m->bytes);
    m->in_place = fine;
    return clear(n, m);
  }
  if (is_cpu(n) && m->bytes >= huge) { /* fewer pages, fewer translations */
    if (posix_memalign(&m->pages, huge, m->bytes))
      return fail("allocation of %zu bytes: this machine has no memory left for it", m->bytes);
#ifdef MADV_HUGEPAGE
    madvise(m->pages, m->bytes, MADV_HUGEPAGE);
#endif
    memset(m->pages, 0, m->bytes);
    m->object = clCreateBuffer(n->context, CL_MEM_READ_WRITE | CL_MEM_USE_HOST_PTR, m->bytes,
                               m->pages, &code);
    return check(code, "allocation in large pages");
  }
  void *zeros = calloc(1, m->bytes);
  if (!zeros) return fail("allocation of %zu bytes: this machine has too little", m->bytes);
  m->object = clCreateBuffer(n->context, CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR, m->bytes, zeros,
                             &code);
  free(zeros);
  return check(code, "allocation of device memory");
}

static void release(struct network *n, struct memory *m) {
  if (m->object) clReleaseMemObject(m->object);
  if (m->pointer) clSVMFree(n->context, m->pointer);
  free(m->pages);
  memset(m, 0, sizeof *m);
}

static int read_from(struct network *n, struct memory *m, size_t at, void *data, size_t bytes) {
  if (!bytes) return 0;
  if (m->in_place) {
    memcpy(data, m->pointer + at, bytes);
    return 0;
  }
  if (m->pointer)
    return check(clEnqueueSVMMemcpy(n->queue, CL_TRUE, data, m->pointer + at, bytes, 0, NULL, NULL),
                 "copy from the device");
  return check(clEnqueueReadBuffer(n->queue, m->object, CL_TRUE, at, bytes, data, 0, NULL, NULL),
               "copy from the device");
}

/* ------------------------------------------------------------------------------------ kernels */

/* A whole file, with a zero behind it; the caller frees it. NULL if it cannot be read. */
static char *read_file(const char *folder, const char *name, size_t *bytes) {
  char path[4096], *text = NULL;
  snprintf(path, sizeof path, "%s%s%s", folder, *folder ? "/" : "", name);
  FILE *file = fopen(path, "rb");
  long size = -1;
  char first;
  const int readable = file && (fread(&first, 1, 1, file) || !ferror(file)); /* a folder opens */
  if (readable && !fseek(file, 0, SEEK_END)) size = ftell(file);
  if (size >= 0 && !fseek(file, 0, SEEK_SET)) text = malloc((size_t)size + 1);
  if (text && fread(text, 1, (size_t)size, file) == (size_t)size) {
    text[size] = 0;
    *bytes = (size_t)size;
  } else {
    fail("%s: expected a file that can be read: %s", path, strerror(errno));
    free(text);
    text = NULL;
  }
  if (file) fclose(file);
  return text;
}

static int build(struct network *n, const char *folder) {
  char options[512];
  size_t bytes;
  cl_int code;
  char *text = read_file(folder, "kernels.cl", &bytes);
  if (!text) return -1;
  if (bytes != KERNEL_BYTES) {
    free(text);
    return fail("%s/kernels.cl: expected %zu bytes, got %zu; export the bundle again", folder,
                (size_t)KERNEL_BYTES, bytes);
  }
  const char *const form = n->form == PERSISTENT   ? " -cl-std=CL3.0 -DRETUNE_PERSISTENT"
                           : n->form == ONE_THREAD ? " -DRETUNE_ONE_THREAD"
                                                   : "";
  const int own_vectors = !strcmp(n->device.driver, VECTORS_FOR_DRIVER);
  snprintf(options, sizeof options, "%s%s -DRETUNE_THREADS=%u%s", BUILD_OPTIONS, form, n->threads,
           own_vectors ? " -DRETUNE_VECTORS" : "");
  n->program = clCreateProgramWithSource(n->context, 1, (const char **)&text, &bytes, &code);
  free(text);
  if (check(code, "program")) return -1;
  code = clBuildProgram(n->program, 1, &n->device.id, options, NULL, NULL);
  if (code != CL_SUCCESS) {
    char log[3072] = "";
    size_t log_bytes = 0;
    clGetProgramBuildInfo(n->program, n->device.id, CL_PROGRAM_BUILD_LOG, 0, NULL, &log_bytes);
    char *whole = calloc(1, log_bytes + 1);
    if (whole && !clGetProgramBuildInfo(n->program, n->device.id, CL_PROGRAM_BUILD_LOG, log_bytes,
                                        whole, NULL))
      snprintf(log, sizeof log, "%s", whole);
    free(whole);
    return fail("kernels.cl: it does not build on %s (error %d): %s", n->device.name, code, log);
  }
  return 0;
}

/* A part of an object as an object of its own; equal parts are one. */
static int window(struct network *n, const struct place *place, cl_mem *object) {
  const cl_buffer_region region = {place->offset, place->bytes};
  struct memory *base = &n->bases[place->base];
  cl_int code;
  for (int i = 0; i < n->window_count; ++i)
    if (!memcmp(&n->windows[i].place, place, sizeof *place)) {
      *object = n->windows[i].object;
      return 0;
    }
  *object = clCreateSubBuffer(base->object, CL_MEM_READ_WRITE, CL_BUFFER_CREATE_TYPE_REGION, &region,
                              &code);
  if (check(code, "part of a buffer")) return -1;
  n->windows[n->window_count].place = *place;
  n->windows[n->window_count++].object = *object;
  return 0;
}

static int set_memory(cl_kernel kernel, cl_uint index, const struct memory *memory) {
  if (memory->pointer)
    return check(clSetKernelArgSVMPointer(kernel, index, memory->pointer), "argument");
  return check(clSetKernelArg(kernel, index, sizeof memory->object, &memory->object), "argument");
}

static int set_place(struct network *n, cl_kernel kernel, cl_uint index, const struct place *place) {
  if (place->base == IN_IMAGE)
    return check(clSetKernelArg(kernel, index, sizeof(cl_mem), &n->images[place->offset]), "image");
  struct memory part = n->bases[place->base];
  if (part.pointer)
    part.pointer += place->offset;
  else if (window(n, place, &part.object))
    return -1;
  return set_memory(kernel, index, &part);
}

/* Kernels that reach all memory from one address get it, and a structure of distances from it. */
static int set_from_one_base(struct network *n, cl_kernel kernel, const struct step *step) {
  const struct place *places = &places_of_arguments[step->first];
  const unsigned char *lowest = NULL;
  void *all[BASES];
  cl_ulong distances[MOST_ARGUMENTS];
  for (int i = 0; i < BASES; ++i) all[i] = n->bases[i].pointer;
  for (int i = 0; i < step->arguments; ++i) {
    const unsigned char *base = n->bases[places[i].base].pointer;
    if (!base)
      return fail("%s: it reaches its buffers from one address, and %s has no shared virtual "
                  "memory; tune the network for this device", step->kernel, n->device.name);
    if (!lowest || base + places[i].offset < lowest) lowest = base + places[i].offset;
  }
  for (int i = 0; i < step->arguments; ++i)
    distances[i] = (cl_ulong)(n->bases[places[i].base].pointer + places[i].offset - lowest);
  if (check(clSetKernelArgSVMPointer(kernel, 0, lowest), "argument")) return -1;
  if (check(clSetKernelExecInfo(kernel, CL_KERNEL_EXEC_INFO_SVM_PTRS, sizeof all, all), "memory"))
    return -1;
  return check(clSetKernelArg(kernel, 1, (size_t)step->arguments * sizeof *distances, distances),
               "argument");
}

static struct launch *add_launch(struct network *n, const char *kernel) {
  cl_int code;
  struct launch *launch = &n->launches[n->launch_count];
  launch->kernel = clCreateKernel(n->program, kernel, &code);
  if (check(code, kernel)) return NULL;
  ++n->launch_count;
  for (int i = 0; i < 3; ++i) launch->global[i] = launch->local[i] = 1;
  return launch;
}

static int prepare_step(struct network *n, const struct step *step) {
  cl_uint count = 0;
  struct launch *launch = add_launch(n, step->kernel);
  if (!launch) return -1;
  memcpy(launch->global, step->global, sizeof step->global);
  memcpy(launch->local, step->local, sizeof step->local);
  clGetKernelInfo(launch->kernel, CL_KERNEL_NUM_ARGS, sizeof count, &count, NULL);
  if (count == 2 && step->arguments > 2) return set_from_one_base(n, launch->kernel, step);
  for (int i = 0; i < step->arguments; ++i)
    if (set_place(n, launch->kernel, (cl_uint)i, &places_of_arguments[step->first + i])) return -1;
  return 0;
}

/* A segment as one launch: of a persistent kernel's workers, or of a single thread. */
static int prepare_segment(struct network *n, const struct segment *segment) {
  const int workers = n->form == PERSISTENT;
  const int numbers[3] = {segment->first, segment->last, segment->times};
  struct launch *launch = add_launch(n, workers ? "persistent" : "in_one_thread");
  cl_uint at = 0;
  if (!launch) return -1;
  for (; at < BASES; ++at)
    if (set_memory(launch->kernel, at, &n->bases[at])) return -1;
  if (workers) {
    if (set_memory(launch->kernel, at++, &n->state)) return -1;
    launch->global[0] = 2 * n->threads; /* PoCL gives a thread more than one at a time */
  }
  for (int i = 0; i < 3; ++i)
    if (check(clSetKernelArg(launch->kernel, at++, sizeof numbers[i], &numbers[i]), "argument"))
      return -1;
  return 0;
}

static int prepare_launches(struct network *n) {
  const int workers = n->form == PERSISTENT;
  const struct segment *first = workers ? resident_segments : segments;
  for (int i = 0; n->form == QUEUED && i < STEPS; ++i)
    if (prepare_step(n, &steps[i])) return -1;
  if (n->form == QUEUED) return 0;
  for (int i = 0; i < (workers ? RESIDENT_SEGMENTS : SEGMENTS); ++i)
    if (prepare_segment(n, &first[i])) return -1;
  return 0;
}

/* ------------------------------------------------------------------------------------ network */

/* The form of the network that the device allows; for one thread also the device that has none. */
static void settle(struct network *n, const struct device *found, int count) {
  cl_ulong atomics = 0;
  const cl_ulong needed = CL_DEVICE_ATOMIC_ORDER_ACQ_REL | CL_DEVICE_ATOMIC_SCOPE_DEVICE;
  n->form = QUEUED;
  if (!NETWORK_IS_SINGLE_ITEM) return;
  clGetDeviceInfo(n->device.id, CL_DEVICE_ATOMIC_MEMORY_CAPABILITIES, sizeof atomics, &atomics,
                  NULL);
  if (is_cpu(n) && (atomics & needed) == needed) n->form = PERSISTENT;
  if (NETWORK_FORM != ONE_THREAD) return;
  for (int i = 0; i < count; ++i)
    if (found[i].platform == n->device.platform && runs_in_caller(&found[i])) {
      n->device = found[i];
      n->form = ONE_THREAD;
      return;
    }
}

static int check_device(const struct network *n) {
  size_t largest = 0;
  clGetDeviceInfo(n->device.id, CL_DEVICE_MAX_WORK_GROUP_SIZE, sizeof largest, &largest, NULL);
  if (largest < LARGEST_WORK_GROUP)
    return fail("%s: expected work-groups of %d items, it allows %zu; tune the network for it",
                n->device.name, LARGEST_WORK_GROUP, largest);
#ifndef ANY_DEVICE
  if (*INSTRUCTIONS && strcmp(n->device.name, NETWORK_DEVICE) && !runs_in_caller(&n->device))
    return fail("%s: the kernels use %s, which %s has; tune the network for this device, or compile "
                "with -DANY_DEVICE if you know that it has them",
                n->device.name, INSTRUCTIONS, NETWORK_DEVICE);
#endif
  return NEEDS_MATRIX_REGISTERS ? ask_for_matrix_registers() : 0;
}

/* The next texels of the file as an image. 1 if the file ends before, -1 if the device refuses. */
static int read_image(struct network *n, int number, FILE *file) {
  const struct image *image = &images[number];
  const size_t bytes = image->row * image->rows * 4 * sizeof(float);
  const cl_image_format format = {CL_RGBA, CL_FLOAT};
  cl_image_desc shape;
  cl_int code;
  if (!clCreateImage)
    return fail("%s: the kernels read images of OpenCL 1.2; tune the network for this device",
                n->device.name);
  void *texels = malloc(bytes);
  if (!texels) return fail("image of %zu bytes: this machine has too little memory", bytes);
  if (fread(texels, 1, bytes, file) != bytes) {
    free(texels);
    return 1;
  }
  memset(&shape, 0, sizeof shape);
  shape.image_type = CL_MEM_OBJECT_IMAGE2D;
  shape.image_width = image->row;
  shape.image_height = image->rows;
  n->images[number] = clCreateImage(n->context, CL_MEM_READ_ONLY | CL_MEM_COPY_HOST_PTR, &format,
                                    &shape, texels, &code);
  free(texels);
  return check(code, "image of weights");
}

static int read_weights(struct network *n, const char *folder) {
  static unsigned char part[1 << 16];
  char path[4096];
  size_t at = 0, got = 1, left;
  int short_of = 0;
  snprintf(path, sizeof path, "%s/weights.bin", folder);
  FILE *file = fopen(path, "rb");
  if (!file) return fail("%s: expected a file that can be read: %s", path, strerror(errno));
  for (; got && (left = base_bytes[WEIGHTS] - at); at += got) {
    got = fread(part, 1, left < sizeof part ? left : sizeof part, file);
    if (write_to(n, &n->bases[WEIGHTS], at, part, got)) break;
  }
  short_of = at < base_bytes[WEIGHTS];
  for (int i = 0; !short_of && !*problem && i < IMAGES; ++i)
    short_of = read_image(n, i, file) == 1;
  const int more = !short_of && !*problem && fgetc(file) != EOF;
  fclose(file);
  if ((short_of || more) && !*problem)
    return fail("%s: expected %zu bytes%s, got %s; export the bundle again", path,
                base_bytes[WEIGHTS], IMAGES ? " and images" : "", more ? "more" : "less");
  return *problem ? -1 : 0;
}

static int open_on_device(struct network *n, const char *folder, const char *wanted) {
  struct device found[MOST_DEVICES];
  cl_int code;
  prepare_environment();
  const int count = find_devices(found);
  if (count < 0) return -1;
  const struct device *chosen = choose(found, count, wanted);
  if (!chosen) return -1;
  n->device = *chosen;
  settle(n, found, count);
  if (check_device(n)) return -1;
  if (!strcmp(n->device.platform_name, POCL)) repair_processor(&n->device);
  clGetDeviceInfo(n->device.id, CL_DEVICE_MAX_COMPUTE_UNITS, sizeof n->threads, &n->threads, NULL);
  if (clSVMAlloc)
    clGetDeviceInfo(n->device.id, CL_DEVICE_SVM_CAPABILITIES, sizeof n->shared, &n->shared, NULL);
  n->context = clCreateContext(NULL, 1, &n->device.id, NULL, NULL, &code);
  if (check(code, n->device.name)) return -1;
  n->queue = clCreateCommandQueue(n->context, n->device.id, 0, &code);
  if (check(code, n->device.name)) return -1;
  for (int i = 0; i < BASES; ++i)
    if (allocate(n, &n->bases[i], base_bytes[i], i >= INTERFACE)) return -1;
  if (read_weights(n, folder) || !STEPS) return STEPS ? -1 : 0;
  if (build(n, folder)) return -1;
  if (n->form == PERSISTENT) /* counters, a cache line each: see kernels.cl */
    if (allocate(n, &n->state, 64 * (2 + (size_t)ROWS * (n->threads + 1)), 0)) return -1;
  return prepare_launches(n);
}

static int enqueue(struct network *n, const struct launch *launch) {
  if (!launch->global[0] || !launch->global[1] || !launch->global[2]) return 0;
  return check(clEnqueueNDRangeKernel(n->queue, launch->kernel, 3, NULL, launch->global,
                                      launch->local, 0, NULL, NULL), "launch");
}

/* What the next run works on; -1 if there is no such run. */
static int set_sizes(struct network *n, const int *values) {
  size_t global[STEPS + 1][3];
  struct network *whole = n->whole;
  const int same = n->has_sizes && !memcmp(n->sizes, values, SIZES * sizeof *values);
  const int variant = same ? n->variant : check_sizes(values);
  if (variant < 0) return -1;
  if (!whole->has_there || memcmp(whole->there, values, SIZES * sizeof *values)) {
    whole->has_there = 0;
    for (int i = 0; i < SIZES; ++i)
      if (write_to(n, &n->bases[INTERFACE], sizes[i].offset, &values[i], sizeof values[i]))
        return -1;
    memcpy(whole->there, values, SIZES * sizeof *values);
    whole->has_there = 1;
  }
  if (same) return 0;
  memcpy(n->sizes, values, SIZES * sizeof *values);
  n->variant = variant;
  n->has_sizes = 1;
  count_bytes(values, n->bytes);
  for (int i = 0; i < SEGMENTS; ++i) n->times[i] = segments[i].times;
  for (int i = 0; i < RESIDENT_SEGMENTS; ++i) n->resident_times[i] = resident_segments[i].times;
  count_times(values, n->times, n->resident_times);
  if (n->form != QUEUED) return 0;
  for (int i = 0; i < STEPS; ++i) memcpy(global[i], steps[i].global, sizeof global[i]);
  count_items(values, global);
  for (int i = 0; i < STEPS; ++i) memcpy(n->launches[i].global, global[i], sizeof global[i]);
  return 0;
}

static int run_launches(struct network *n) {
  const struct variant *variant = &variants[n->variant];
  if (n->form != QUEUED) {
    const int workers = n->form == PERSISTENT;
    const int end = workers ? variant->resident_last : variant->last;
    const int *const times = workers ? n->resident_times : n->times;
    const cl_uint argument = BASES + 2 + (cl_uint)workers;
    for (int i = workers ? variant->resident : variant->first; i < end; ++i)
      if (times[i] && (check(clSetKernelArg(n->launches[i].kernel, argument, sizeof times[i],
                                            &times[i]), "argument") ||
                       enqueue(n, &n->launches[i])))
        return -1;
  } else {
    for (int i = variant->first; i < variant->last; ++i)
      for (int time = 0; time < n->times[i]; ++time)
        for (int step = segments[i].first; step < segments[i].last; ++step)
          if (enqueue(n, &n->launches[step])) return -1;
  }
  return check(clFinish(n->queue), "wait for the device");
}

struct network *network_open(const char *folder, const char *device) {
  struct network *n = calloc(1, sizeof *n);
  *problem = 0;
  if (!n) {
    fail("network: this machine has no memory left for it");
    return NULL;
  }
  n->whole = n;
  int failed = open_on_device(n, folder, device);
  for (int i = 0; !failed && i < CORNERS; ++i) /* drivers compile at first use */
    failed = set_sizes(n, corners[i]) || run_launches(n);
  if (failed) {
    network_close(n);
    return NULL;
  }
  return n;
}

/* An input or output between the device and the host, in the model's order there. */
static int move_value(struct network *n, const int *values, int number, const void *in, void *out) {
  const int is_input = number < INPUTS;
  const int state = state_of(is_input ? number : -1, is_input ? -1 : number - INPUTS);
  const struct place *place =
      is_input ? &network_inputs[number].place : &network_outputs[number - INPUTS].place;
  struct memory *base = &n->bases[place->base];
  const size_t bytes = n->bytes[number];
  if (state < 0 || !states[state].grows)
    return is_input ? write_to(n, base, place->offset, in, bytes)
                    : read_from(n, base, place->offset, out, bytes);
  size_t extents[2][3];
  char *turned = malloc(bytes + 1);
  if (!turned) return fail("state of %zu bytes: this machine has no memory left for it", bytes);
  count_state(values, state, extents);
  const size_t back[3] = {extents[1][1], extents[1][0], extents[1][2]};
  int failed = 0;
  if (is_input) {
    exchange(extents[0], in, turned);
    failed = write_to(n, base, place->offset, turned, bytes);
  } else {
    failed = read_from(n, base, place->offset, turned, bytes);
    if (!failed) exchange(back, turned, out);
  }
  free(turned);
  return failed;
}

/* Inputs of indices, which name elements that there are. */

#ifndef INDEXED
#define INDEXED 0
struct indexed {
  int input;
  size_t bytes;
};
static const struct indexed indexed[] = {{0, 0}};

static void index_extents(const int *values, long long *extents) { (void)values, (void)extents; }
#endif

static int check_indices(const struct network *n, const int *values, const void *const *inputs,
                         int kept) {
  long long extents[INDEXED + 1];
  index_extents(values, extents);
  for (int i = 0; i < INDEXED; ++i) {
    const struct indexed *own = &indexed[i];
    if (kept && state_of(own->input, -1) >= 0) continue;
    for (size_t at = 0; at < n->bytes[own->input]; at += own->bytes) {
      const char *element = (const char *)inputs[own->input] + at;
      int32_t narrow = 0;
      int64_t index = 0;
      memcpy(own->bytes == sizeof narrow ? (void *)&narrow : &index, element, own->bytes);
      index += narrow;
      if (index < -extents[i] || index >= extents[i])
        return fail("input %s: expected indices from %lld to %lld; got %lld; give an index that "
                    "the model has",
                    network_inputs[own->input].name, -extents[i], extents[i] - 1, (long long)index);
    }
  }
  return 0;
}

/* With `kept` states, these stay where they are: only the others are copied. */
static int run_at(struct network *n, const int *values, const void *const *inputs,
                  void *const *outputs, int kept) {
  if (set_sizes(n, values) || check_elements(values, inputs)) return -1;
  if (check_indices(n, values, inputs, kept)) return -1;
  for (int i = 0; i < INPUTS; ++i)
    if (!(kept && state_of(i, -1) >= 0) && move_value(n, values, i, inputs[i], NULL)) return -1;
  if (run_launches(n)) return -1;
  for (int i = 0; i < OUTPUTS; ++i)
    if (!(kept && state_of(-1, i) >= 0) && move_value(n, values, INPUTS + i, NULL, outputs[i]))
      return -1;
  return 0;
}

int network_run(struct network *n, SIZE_PARAMETERS const void *const *inputs,
                void *const *outputs) {
  const int values[SIZES + 1] = {SIZE_ARGUMENTS};
  return run_at(n, values, inputs, outputs, 0);
}

static void release_launches(struct network *n) {
  for (int i = 0; i < n->launch_count; ++i) clReleaseKernel(n->launches[i].kernel);
  for (int i = 0; i < n->window_count; ++i) clReleaseMemObject(n->windows[i].object);
}

void network_close(struct network *n) {
  if (!n) return;
  if (n->queue) clFinish(n->queue);
  release_launches(n);
  for (int i = 0; i < IMAGES; ++i)
    if (n->images[i]) clReleaseMemObject(n->images[i]);
  for (int i = 0; i < BASES; ++i) release(n, &n->bases[i]);
  release(n, &n->state);
  if (n->program) clReleaseProgram(n->program);
  if (n->queue) clReleaseCommandQueue(n->queue);
  if (n->context) clReleaseContext(n->context);
  free(n);
}

#ifdef SESSIONS
/* ----------------------------------------------------------------------------------- sessions
   A network whose states have memory of their own, twice: what a call makes of those that are not
   in place is what the next one reads. */

struct session {
  struct network turns[2];
  int turn, lengths[SIZES + 1];
};

struct session *session_open(struct network *network) {
  struct session *s = calloc(1, sizeof *s);
  int failed = 0;
  *problem = 0;
  if (!s) {
    fail("session: this machine has no memory left for it");
    return NULL;
  }
  for (int t = 0; t < 2; ++t) {
    struct network *n = &s->turns[t];
    *n = *network;
    n->launch_count = n->window_count = n->has_sizes = 0;
    memset(&n->bases[IN_PLACE], 0, (BASES - IN_PLACE) * sizeof *n->bases);
  }
  for (int i = IN_PLACE; !failed && i < BASES; ++i)
    failed = allocate(network, &s->turns[0].bases[i], base_bytes[i], 1);
  memcpy(&s->turns[1].bases[IN_PLACE], &s->turns[0].bases[IN_PLACE],
         (BASES - IN_PLACE) * sizeof *network->bases);
  s->turns[1].bases[BEFORE] = s->turns[0].bases[AFTER];
  s->turns[1].bases[AFTER] = s->turns[0].bases[BEFORE];
  for (int t = 0; !failed && t < 2; ++t) failed = prepare_launches(&s->turns[t]);
  if (!failed) return s;
  session_close(s);
  return NULL;
}

int session_length(const struct session *s) {
  int most = 0;
  for (int i = 0; i < SIZES; ++i)
    if (grows[i] && s->lengths[i] > most) most = s->lengths[i];
  return most;
}

int session_reset(struct session *s) {
  s->turn = 0;
  memset(s->lengths, 0, sizeof s->lengths);
  return clear(&s->turns[0], &s->turns[0].bases[BEFORE]);
}

int session_run(struct session *s, SESSION_PARAMETERS const void *const *inputs,
                void *const *outputs) {
  int values[SIZES + 1] = {SESSION_ARGUMENTS};
  struct network *n = &s->turns[s->turn];
  for (int i = 0; i < SIZES; ++i) {
    if (!grows[i]) continue;
    values[i] = s->lengths[i];
    if (values[i] > sizes[i].most)
      return fail("session: expected a length of at most %d before a call, as size %s allows; got "
                  "%d; reset the session, or compile the model for more",
                  sizes[i].most, sizes[i].name, values[i]);
  }
  if (run_at(n, values, inputs, outputs, 1)) return -1;
  next_lengths(values, s->lengths);
  s->turn = 1 - s->turn;
  return 0;
}

void session_close(struct session *s) {
  if (!s) return;
  for (int t = 0; t < 2; ++t) release_launches(&s->turns[t]);
  for (int i = IN_PLACE; i < BASES; ++i) release(&s->turns[0], &s->turns[0].bases[i]);
  free(s);
}
#endif

#ifndef WITHOUT_MAIN
/* -------------------------------------------------------------------------------------- files
   Raw numbers as they lie in memory, or numpy's .npy: a text that says what follows, then those. */

/* Whether `text` has `expected` at its start, spaces in either left out. */
static int begins_with(const char *text, const char *expected) {
  for (;; ++text, ++expected) {
    while (*text == ' ') ++text;
    while (*expected == ' ') ++expected;
    if (!*expected) return 1;
    if (*text != *expected) return 0;
  }
}

static int says(const char *header, const char *key, const char *expected) {
  const char *found = strstr(header, key);
  return found && begins_with(found + strlen(key), expected);
}

/* Where the numbers of an .npy file begin, after its header was compared with what is expected. */
static long npy_start(const char *data, size_t bytes, const struct value *value, const char *path) {
  char header[4096], type[16];
  size_t start = 10, length;
  if (bytes < 12) return fail("%s: expected a whole .npy file, got its first bytes", path);
  length = (unsigned char)data[8] | (size_t)(unsigned char)data[9] << 8;
  if (data[6] != 1) { /* later versions have longer lengths */
    length |= (size_t)(unsigned char)data[10] << 16 | (size_t)(unsigned char)data[11] << 24;
    start = 12;
  }
  if (length >= sizeof header || start + length > bytes)
    return fail("%s: expected a whole .npy file, got a header of %zu bytes", path, length);
  memcpy(header, data + start, length);
  header[length] = 0;
  for (size_t end = length; end && isspace((unsigned char)header[end - 1]); --end)
    header[end - 1] = 0;
  snprintf(type, sizeof type, "'%s'", value->type);
  if (!says(header, "'descr':", type) || !says(header, "'fortran_order':", "False") ||
      !says(header, "'shape':", value->shape))
    return fail("%s: expected %s of shape %s in C order for %s, got %s", path, value->type,
                value->shape, value->name, header);
  return (long)(start + length);
}

/* Fills the input from a file. */
static int read_value(const char *path, const struct value *value, void *memory) {
  size_t bytes;
  long start = 0;
  char *data = read_file(*path == '/' ? "" : ".", path, &bytes);
  if (!data) return -1;
  if (bytes >= 6 && !memcmp(data, "\x93NUMPY", 6)) start = npy_start(data, bytes, value, path);
  if (start >= 0 && bytes - (size_t)start != value->bytes)
    start = fail("%s: expected %zu bytes of numbers for %s (%s of shape %s), got %zu", path,
                 value->bytes, value->name, value->type, value->shape, bytes - (size_t)start);
  if (start >= 0) memcpy(memory, data + start, value->bytes);
  free(data);
  return start < 0 ? -1 : 0;
}

/* The file is there whole, or as it was. */
static int write_value(const char *path, const struct value *value, const void *memory) {
  char header[512] = "", fresh[4096];
  const size_t length = strlen(path);
  size_t start = 0;
  if (length > 4 && !strcmp(path + length - 4, ".npy")) {
    const int text = snprintf(header, sizeof header,
                              "\x93NUMPY\x01%c%c%c{'descr': '%s', 'fortran_order': False, 'shape': %s, }",
                              1, 1, 1, value->type, value->shape);
    start = ((size_t)text + 1 + 63) / 64 * 64;
    memset(header + text, ' ', start - (size_t)text);
    header[start - 1] = '\n';
    header[7] = 0;
    header[8] = (char)((start - 10) & 255);
    header[9] = (char)((start - 10) >> 8);
  }
  snprintf(fresh, sizeof fresh, "%s.part", path);
  FILE *file = fopen(fresh, "wb");
  int whole = file && fwrite(header, 1, start, file) == start &&
              fwrite(memory, 1, value->bytes, file) == value->bytes;
  if (file && fclose(file)) whole = 0;
  if (whole && !rename(fresh, path)) return 0;
  return fail("%s: expected a file that can be written: %s", path, strerror(errno));
}

/* ------------------------------------------------------------------------------- command line */

static const char usage[] =
    "usage: network [--input NAME=FILE]... [--output NAME=FILE]... [--device D] [--runs N]\n"
    "               [--folder DIR] [--list]\n"
    "Runs " NETWORK_NAME ", and prints its time and memory. FILE is numpy's .npy, or raw numbers.\n"
    "Inputs without a file are zeros, or what sizes state. D is a number of --list, or a part of\n"
    "a device's name. DIR holds kernels.cl and weights.bin; without it they lie in the present\n"
    "folder. --size NAME=VALUE gives a size of network.h, which is otherwise about the largest one.\n";

struct options {
  const char *device, *folder;
  const char *inputs[INPUTS + 1], *outputs[OUTPUTS + 1];
  int sizes[SIZES + 1];
  int runs;
};

static int assign_size(const char *text, int *values) {
  for (int i = 0; text && i < SIZES; ++i) {
    const size_t length = strlen(sizes[i].name);
    if (strncmp(sizes[i].name, text, length) || text[length] != '=') continue;
    values[i] = atoi(text + length + 1);
    return 0;
  }
  return fail("%s: expected NAME=VALUE, with the name of a size of network.h",
              text ? text : "the last option");
}

static int assign(const char *text, const struct value *values, int count, const char **files) {
  int found = -1; /* of names that begin alike the longest: an equals sign may be in either part */
  for (int i = 0; text && i < count; ++i) {
    const size_t length = strlen(values[i].name);
    if (!strncmp(values[i].name, text, length) && text[length] == '=' &&
        (found < 0 || length > strlen(values[found].name)))
      found = i;
  }
  if (found < 0)
    return fail("%s: expected NAME=FILE, with a name of network.h", text ? text : "the last option");
  files[found] = text + strlen(values[found].name) + 1;
  return 0;
}

static int parse(int count, char **words, struct options *options) {
  for (int i = 1; i < count; i += 2) {
    const char *word = words[i], *text = words[i + 1];
    if (!strcmp(word, "--input")) {
      if (assign(text, network_inputs, INPUTS, options->inputs)) return -1;
    } else if (!strcmp(word, "--output")) {
      if (assign(text, network_outputs, OUTPUTS, options->outputs)) return -1;
    } else if (!strcmp(word, "--size")) {
      if (assign_size(text, options->sizes)) return -1;
    } else if (!text || strncmp(word, "--", 2)) {
      return fail("%s: expected an option and its value; --help lists the options", word);
    } else if (!strcmp(word, "--device")) {
      options->device = text;
    } else if (!strcmp(word, "--folder")) {
      options->folder = text;
    } else if (!strcmp(word, "--runs")) {
      options->runs = atoi(text);
      if (options->runs < 1) return fail("--runs %s: expected a number from 1 on", text);
    } else {
      return fail("%s: there is no such option", word);
    }
  }
  return 0;
}

static int list(void) {
  struct device found[MOST_DEVICES];
  prepare_environment();
  const int count = find_devices(found);
  for (int i = 0; i < count; ++i)
    printf("%2d  %s: %s\n", i, found[i].platform_name, found[i].name);
  return count < 0 ? -1 : 0;
}

static double now_ms(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return 1e3 * (double)time.tv_sec + 1e-6 * (double)time.tv_nsec;
}

/* The most memory that this process had. Linux counts in ru_maxrss what its parent had, too. */
static double peak_bytes(void) {
  char line[256];
  struct rusage used;
  unsigned long kilobytes;
  FILE *status = fopen("/proc/self/status", "r");
  getrusage(RUSAGE_SELF, &used);
  kilobytes = (unsigned long)used.ru_maxrss;
  while (status && fgets(line, sizeof line, status))
    if (sscanf(line, "VmHWM: %lu", &kilobytes) == 1) break;
  if (status) fclose(status);
  return 1024.0 * (double)kilobytes;
}

static int later(const void *a, const void *b) {
  return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}

static int run_and_time(struct network *n, const int *values, void **inputs, void **outputs,
                        int runs) {
  static const char *const forms[] = {"a persistent kernel", "one thread", "launches in a queue"};
  const int warmup = 3;
  double *times_ms = malloc((size_t)runs * sizeof *times_ms);
  int failed = !times_ms;
  if (failed) fail("--runs %d: this machine has no memory for so many times", runs);
  for (int i = -warmup; !failed && i < runs; ++i) {
    const double start = now_ms();
    failed = run_at(n, values, (const void *const *)inputs, outputs, 0);
    if (i >= 0) times_ms[i] = now_ms() - start;
  }
  if (!failed) {
    qsort(times_ms, (size_t)runs, sizeof *times_ms, later);
    printf("%s on %s (%s)\n", NETWORK_NAME, n->device.name, forms[n->form]);
    for (int i = 0; i < SIZES; ++i) printf("size    %s=%d\n", sizes[i].name, values[i]);
    printf("time    %.4f ms median, %.4f ms least of %d runs, copies included\n",
           (times_ms[(runs - 1) / 2] + times_ms[runs / 2]) / 2, times_ms[0], runs);
    printf("memory  %.1f MB on the device, %.1f MB at the peak of this process\n",
           (double)PEAK_BYTES / 1e6, peak_bytes() / 1e6);
  }
  free(times_ms);
  return failed ? -1 : 0;
}

/* The inputs, then the outputs, as they are for these sizes. */
static void describe_values(const int *wanted, struct value *values, char (*shapes)[256]) {
  size_t bytes[INPUTS + OUTPUTS + 1];
  count_bytes(wanted, bytes);
  for (int i = 0; i < INPUTS + OUTPUTS; ++i) {
    values[i] = i < INPUTS ? network_inputs[i] : network_outputs[i - INPUTS];
    write_shape(i, wanted, shapes[i], sizeof shapes[i]);
    values[i].shape = shapes[i];
    values[i].bytes = bytes[i];
  }
}

static int run_with(const struct options *options) {
  void *inputs[INPUTS + 1] = {0}, *outputs[OUTPUTS + 1] = {0};
  struct value values[INPUTS + OUTPUTS + 1];
  char shapes[INPUTS + OUTPUTS + 1][256];
  int failed = check_sizes(options->sizes) < 0;
  if (!failed) describe_values(options->sizes, values, shapes);
  for (int i = 0; !failed && i < INPUTS; ++i) {
    inputs[i] = calloc(1, values[i].bytes + 1);
    if (!inputs[i]) failed = fail("%s: no memory for it", network_inputs[i].name);
    else if (options->inputs[i])
      failed = read_value(options->inputs[i], &values[i], inputs[i]);
    else
      fill_elements(options->sizes, i, inputs[i]);
  }
  for (int i = 0; !failed && i < OUTPUTS; ++i) {
    outputs[i] = calloc(1, values[INPUTS + i].bytes + 1);
    if (!outputs[i]) failed = fail("%s: no memory for it", network_outputs[i].name);
  }
  struct network *n = failed ? NULL : network_open(options->folder, options->device);
  failed = !n || run_and_time(n, options->sizes, inputs, outputs, options->runs);
  for (int i = 0; !failed && i < OUTPUTS; ++i)
    if (options->outputs[i])
      failed = write_value(options->outputs[i], &values[INPUTS + i], outputs[i]);
  network_close(n);
  for (int i = 0; i < INPUTS; ++i) free(inputs[i]);
  for (int i = 0; i < OUTPUTS; ++i) free(outputs[i]);
  return failed ? -1 : 0;
}

/* 0: done. 1: the run failed. 2: the command cannot be understood. */
int main(int count, char **words) {
  struct options options = {.folder = ".", .runs = 20};
  memcpy(options.sizes, corners[CORNERS - 1], SIZES * sizeof *options.sizes);
  if (count == 2 && (!strcmp(words[1], "--help") || !strcmp(words[1], "-h"))) {
    fputs(usage, stdout);
    return 0;
  }
  const int listed = count == 2 && !strcmp(words[1], "--list");
  const int wrong = !listed && parse(count, words, &options);
  if (!wrong && !(listed ? list() : run_with(&options))) return 0;
  fprintf(stderr, "network: %s\n", problem);
  return wrong ? 2 : 1;
}
#endif
