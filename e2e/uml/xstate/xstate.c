/*
 * Lets a User-Mode Linux kernel run on processors with more vector state than it knows of (AMX: 11008 bytes instead of
 * 2696). The host refuses PTRACE_SETREGSET with a register area shorter than its own (EFAULT), so the kernel's first
 * return to user space would end in a panic. Loaded with LD_PRELOAD, this pads the area with zeros, the initial state
 * of registers that nothing in that kernel uses.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/types.h>
#include <sys/uio.h>

#ifndef NT_X86_XSTATE
#define NT_X86_XSTATE 0x202
#endif

typedef long (*ptrace_fn)(int, pid_t, void *, void *);

long ptrace(enum __ptrace_request request, ...)
{
	static ptrace_fn next;
	static char area[1 << 16];
	static size_t full; /* what this host wants */
	struct iovec *given, padded;
	void *addr, *data;
	va_list args;
	pid_t pid;

	va_start(args, request);
	pid = va_arg(args, pid_t);
	addr = va_arg(args, void *);
	data = va_arg(args, void *);
	va_end(args);
	if (!next)
		next = (ptrace_fn)dlsym(RTLD_NEXT, "ptrace");
	if (request != PTRACE_SETREGSET || (long)addr != NT_X86_XSTATE)
		return next(request, pid, addr, data);
	if (!full) {
		padded.iov_base = area;
		padded.iov_len = sizeof(area);
		if (next(PTRACE_GETREGSET, pid, addr, &padded) < 0)
			return -1;
		full = padded.iov_len;
		memset(area, 0, sizeof(area));
	}
	given = data;
	if (given->iov_len >= full)
		return next(request, pid, addr, data);
	memcpy(area, given->iov_base, given->iov_len);
	padded.iov_base = area;
	padded.iov_len = full;
	return next(request, pid, addr, &padded);
}
