/* Preloaded. FAIL_AFTER=n: fdatasync fails once with EIO after n calls and works again, as kernels do.
 * KILL_AT=n: the process kills itself right before the n-th call that changes a file. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/types.h>
#include <unistd.h>

#define REAL(name, type) ((type)dlsym(RTLD_NEXT, name))

static void step(void) {
  static atomic_int steps;
  const char *at = getenv("KILL_AT");
  if (at != NULL && atomic_fetch_add(&steps, 1) + 1 == atoi(at)) kill(getpid(), SIGKILL);
}

int fdatasync(int descriptor) {
  static atomic_int calls;
  const char *after = getenv("FAIL_AFTER");
  step();
  if (after != NULL && atomic_fetch_add(&calls, 1) == atoi(after)) {
    errno = EIO;
    return -1;
  }
  return REAL("fdatasync", int (*)(int))(descriptor);
}

int fsync(int descriptor) {
  step();
  return REAL("fsync", int (*)(int))(descriptor);
}

ssize_t pwrite64(int descriptor, const void *content, size_t size, off64_t offset) {
  step();
  return REAL("pwrite64", ssize_t (*)(int, const void *, size_t, off64_t))(descriptor, content, size, offset);
}

int rename(const char *from, const char *to) {
  step();
  return REAL("rename", int (*)(const char *, const char *))(from, to);
}

int link(const char *from, const char *to) {
  step();
  return REAL("link", int (*)(const char *, const char *))(from, to);
}

int linkat(int from_folder, const char *from, int to_folder, const char *to, int flags) {
  step();
  return REAL("linkat", int (*)(int, const char *, int, const char *, int))(from_folder, from, to_folder, to, flags);
}

int unlink(const char *path) {
  step();
  return REAL("unlink", int (*)(const char *))(path);
}

int ftruncate64(int descriptor, off64_t size) {
  step();
  return REAL("ftruncate64", int (*)(int, off64_t))(descriptor, size);
}
