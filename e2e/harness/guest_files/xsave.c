/* User-Mode Linux sets a process's floating point state with the size that it was built for. A host kernel whose
 * processor has more of it (AMX) takes the whole area or nothing: EFAULT. So the whole is read, the guest's part
 * laid over it, and the whole written back. Preloaded into linux.uml.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/uio.h>

static char whole[65536] __attribute__((aligned(64))); /* too much for the stacks of the guest's kernel */
static long (*next)(int, ...);

long ptrace(enum __ptrace_request request, ...)
{
	va_list rest;
	va_start(rest, request);
	int pid = va_arg(rest, int);
	void *address = va_arg(rest, void *);
	void *data = va_arg(rest, void *);
	va_end(rest);
	if (!next)
		next = dlsym(RTLD_NEXT, "ptrace");
	long result = next(request, pid, address, data);
	if (result == -1 && errno == EFAULT && request == PTRACE_SETREGSET && address == (void *)NT_X86_XSTATE) {
		struct iovec *part = data, all = { whole, sizeof whole };
		if (next(PTRACE_GETREGSET, pid, address, &all) == 0 && all.iov_len > part->iov_len) {
			memcpy(whole, part->iov_base, part->iov_len);
			result = next(request, pid, address, &all);
		}
	}
	return result;
}
