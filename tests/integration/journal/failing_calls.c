/* Preloaded. FAIL_AFTER=n: fdatasync fails once with EIO after n calls and works again, as kernels do.
 * KILL_AT=n: the process kills itself right before the n-th call that changes a file.
 * FULL_WHILE=path: while that file exists, writes to segments fail with ENOSPC, as on a full copy-on-write disk.
 * PLATTER=folder: what the disk itself holds of each segment. A range reaches it when it was written and then synced
 * by the same process; after a failed sync its pages count as clean, so a later sync alone does not bring it there. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#define REAL(name, type) ((type)dlsym(RTLD_NEXT, name))

static void step(void) {
  static atomic_int steps;
  const char *at = getenv("KILL_AT");
  if (at != NULL && atomic_fetch_add(&steps, 1) + 1 == atoi(at)) kill(getpid(), SIGKILL);
}

static struct { int descriptor; off64_t offset; size_t size; } dirty[1024];
static int dirty_count;

static const char *segment_name(int descriptor, char *path, size_t size) {
  char link[64];
  snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  ssize_t length = readlink(link, path, size - 1);
  if (length < 0) return NULL;
  path[length] = 0;
  const char *name = strrchr(path, '/') + 1;
  return strncmp(name, "segment-", 8) == 0 ? name : NULL;
}

static void forget_dirty(int descriptor) {
  int kept = 0;
  for (int i = 0; i < dirty_count; i++)
    if (dirty[i].descriptor != descriptor) dirty[kept++] = dirty[i];
  dirty_count = kept;
}

static void reach_platter(int descriptor) {
  char path[4096], target[8192];
  const char *folder = getenv("PLATTER"), *name = segment_name(descriptor, path, sizeof path);
  struct stat found;
  if (folder == NULL || name == NULL || fstat(descriptor, &found) != 0) return;
  snprintf(target, sizeof target, "%s/%s", folder, name);
  int platter = open(target, O_RDWR | O_CREAT, 0600);
  if (platter < 0) abort();
  REAL("ftruncate64", int (*)(int, off64_t))(platter, found.st_size);
  for (int i = 0; i < dirty_count; i++) {
    if (dirty[i].descriptor != descriptor) continue;
    char *content = malloc(dirty[i].size);
    ssize_t size = pread(descriptor, content, dirty[i].size, dirty[i].offset);
    if (REAL("pwrite64", ssize_t (*)(int, const void *, size_t, off64_t))(platter, content, size, dirty[i].offset) != size) abort();
    free(content);
  }
  close(platter);
  forget_dirty(descriptor);
}

int fdatasync(int descriptor) {
  static atomic_int calls;
  const char *after = getenv("FAIL_AFTER");
  step();
  if (after != NULL && atomic_fetch_add(&calls, 1) == atoi(after)) {
    forget_dirty(descriptor);
    errno = EIO;
    return -1;
  }
  int result = REAL("fdatasync", int (*)(int))(descriptor);
  if (result == 0) reach_platter(descriptor);
  return result;
}

int fsync(int descriptor) {
  step();
  return REAL("fsync", int (*)(int))(descriptor);
}

ssize_t pwrite64(int descriptor, const void *content, size_t size, off64_t offset) {
  char path[4096];
  const char *full = getenv("FULL_WHILE");
  step();
  if (segment_name(descriptor, path, sizeof path) != NULL) {
    if (full != NULL && access(full, F_OK) == 0) {
      errno = ENOSPC;
      return -1;
    }
    if (getenv("PLATTER") != NULL && dirty_count < 1024) {
      dirty[dirty_count].descriptor = descriptor;
      dirty[dirty_count].offset = offset;
      dirty[dirty_count++].size = size;
    }
  }
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
