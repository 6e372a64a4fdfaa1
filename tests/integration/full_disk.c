/* A library to preload. Writes into regular files fail when the disk is full. Messages are not on this disk.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

static atomic_long left = INT64_MAX;

/* Leaves room for `bytes` more bytes on the disk. */
void leave_room(long bytes) { left = bytes; }

/* Returns whether the file is that of stdout or stderr, of which a program may have a duplicate. */
static int holds_messages(int file, const struct stat* status) {
  struct stat messages;
  for (int output = 1; output <= 2; output++)
    if (fstat(output, &messages) == 0 && messages.st_ino == status->st_ino &&
        messages.st_dev == status->st_dev)
      return 1;
  return file <= 2;
}

/* Returns how many of `size` bytes can be written; -1 for none. */
static ssize_t room(int file, size_t size) {
  struct stat status;
  if (left == INT64_MAX || fstat(file, &status) != 0 || !S_ISREG(status.st_mode) ||
      holds_messages(file, &status))
    return (ssize_t)size;
  const long before = atomic_fetch_sub(&left, (long)size);
  if (before >= (long)size) return (ssize_t)size;
  if (before > 0) return before;
  errno = ENOSPC;
  return -1;
}

#define REAL(result, name, ...)       \
  static result (*real)(__VA_ARGS__); \
  if (real == NULL) *(void**)&real = dlsym(RTLD_NEXT, #name)

ssize_t write(int file, const void* bytes, size_t size) {
  REAL(ssize_t, write, int, const void*, size_t);
  const ssize_t fits = room(file, size);
  return fits < 0 ? -1 : real(file, bytes, (size_t)fits);
}

ssize_t pwrite(int file, const void* bytes, size_t size, off_t offset) {
  REAL(ssize_t, pwrite, int, const void*, size_t, off_t);
  const ssize_t fits = room(file, size);
  return fits < 0 ? -1 : real(file, bytes, (size_t)fits, offset);
}

ssize_t pwrite64(int file, const void* bytes, size_t size, off_t offset) {
  REAL(ssize_t, pwrite64, int, const void*, size_t, off_t);
  const ssize_t fits = room(file, size);
  return fits < 0 ? -1 : real(file, bytes, (size_t)fits, offset);
}
