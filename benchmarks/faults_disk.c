// A disk that fails, for the processes that preload this library: what is written below the folder FAULTS_FOLDER
//
//   fails with ENOSPC while the file FAULTS_FULL is there,
//   fails with EIO at every FAULTS_EVERY-th call,
//   takes FAULTS_MICROSECONDS longer a call.
//
//     gcc -shared -fPIC -O2 -o faults_disk.so faults_disk.c -ldl
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

static atomic_long calls;

// Whether a descriptor is of a file below the folder.
static int is_below(int descriptor) {
  const char *folder = getenv("FAULTS_FOLDER");
  char link[64], path[PATH_MAX];
  if (!folder) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  ssize_t length = readlink(link, path, sizeof path - 1);
  if (length < 0) return 0;
  path[length] = 0;
  return !strncmp(path, folder, strlen(folder));
}

// 0, or the error that a call is to fail with.
static int fault(int descriptor) {
  if (!is_below(descriptor)) return 0;
  const char *full = getenv("FAULTS_FULL"), *every = getenv("FAULTS_EVERY"), *slow = getenv("FAULTS_MICROSECONDS");
  if (slow) usleep(atol(slow));
  if (full && !access(full, F_OK)) return ENOSPC;
  if (every && (atomic_fetch_add(&calls, 1) + 1) % atol(every) == 0) return EIO;
  return 0;
}

#define FAULTY(type, name, parameters, ...)                     \
  type name parameters {                                        \
    static type(*real) parameters;                              \
    if (!real) real = (type(*) parameters)dlsym(RTLD_NEXT, #name); \
    int error = fault(descriptor);                              \
    if (error) {                                                \
      errno = error;                                            \
      return -1;                                                \
    }                                                           \
    return real(__VA_ARGS__);                                   \
  }

FAULTY(ssize_t, write, (int descriptor, const void *data, size_t size), descriptor, data, size)
FAULTY(ssize_t, pwrite, (int descriptor, const void *data, size_t size, off_t at), descriptor, data, size, at)
FAULTY(ssize_t, pwrite64, (int descriptor, const void *data, size_t size, off64_t at), descriptor, data, size, at)
FAULTY(ssize_t, writev, (int descriptor, const struct iovec *parts, int number), descriptor, parts, number)
FAULTY(int, fsync, (int descriptor), descriptor)
FAULTY(int, fdatasync, (int descriptor), descriptor)
