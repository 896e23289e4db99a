/* A CUDA driver library of our own. FAKE_CUDA says what it does: ok, broken (every allocation fails), forgetful (memory
 * does not hold what was written), hang. */

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static unsigned char *memory;

static int is(const char *mode) {
  const char *told = getenv("FAKE_CUDA");
  return told && !strcmp(told, mode);
}

int cuInit(unsigned flags) {
  (void)flags;
  if (is("hang")) sleep(3600);
  return 0;
}
int cuDeviceGet(int *device, int ordinal) { return *device = ordinal, 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { return (void)device, *context = &memory, 0; }
int cuCtxSetCurrent(void *context) { return context == &memory ? 0 : 201; }
int cuMemAlloc_v2(unsigned long long *pointer, size_t size) {
  if (is("broken")) return 46;
  memory = malloc(size);
  *pointer = (unsigned long long)(size_t)memory;
  return 0;
}
int cuMemsetD8_v2(unsigned long long pointer, unsigned char value, size_t size) {
  memset((void *)(size_t)pointer, value, size);
  if (is("forgetful")) memory[size / 2] ^= 4;
  return 0;
}
int cuMemcpyDtoH_v2(void *out, unsigned long long pointer, size_t size) {
  memcpy(out, (void *)(size_t)pointer, size);
  return 0;
}
int cuMemFree_v2(unsigned long long pointer) { return free((void *)(size_t)pointer), 0; }
int cuDevicePrimaryCtxRelease_v2(int device) { return (void)device, 0; }
int cuGetErrorName(int code, const char **name) { return (void)code, *name = "CUDA_ERROR_DEVICE_UNAVAILABLE", 0; }
