/*
 * load RATE DEADLINE_MS NAME...: asks the C library's resolver for IPv4 addresses, RATE names a second in turn, each from a
 * thread of its own and whether or not earlier ones were answered, until standard input ends. It says "asking" when it
 * begins, and at the end a line for each name, in their order: SENT_MS TOOK_MS ADDRESS, or "error REASON" in the address's
 * place. What takes longer than DEADLINE_MS is an error; a call that has not returned by then is not waited for.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netdb.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { LONGEST_RUN_S = 300 };

struct question {
	const char *name;
	double sent, took;
	char outcome[80];
	atomic_int done;
};

static atomic_int stop;
static double start;

static double now_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e3 + t.tv_nsec / 1e6;
}

static void sleep_until(double ms)
{
	struct timespec t = {.tv_sec = ms / 1e3};
	t.tv_nsec = (ms - t.tv_sec * 1e3) * 1e6;
	clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
}

static void *ask(void *arg)
{
	struct question *q = arg;
	struct addrinfo hints, *list = NULL;
	memset(&hints, 0, sizeof hints);
	hints.ai_family = AF_INET;
	hints.ai_socktype = SOCK_DGRAM;
	int rc = getaddrinfo(q->name, NULL, &hints, &list);
	q->took = now_ms() - start - q->sent;
	if (rc != 0) {
		snprintf(q->outcome, sizeof q->outcome, "error %s", gai_strerror(rc));
	} else {
		inet_ntop(AF_INET, &((struct sockaddr_in *)list->ai_addr)->sin_addr, q->outcome, sizeof q->outcome);
		freeaddrinfo(list);
	}
	atomic_store(&q->done, 1);
	return NULL;
}

static void *watch_input(void *arg)
{
	char buf[64];
	while (read(0, buf, sizeof buf) > 0)
		;
	atomic_store(&stop, 1);
	return arg;
}

int main(int argc, char **argv)
{
	if (argc < 4 || atof(argv[1]) <= 0 || atof(argv[2]) <= 0) {
		fprintf(stderr, "usage: load RATE DEADLINE_MS NAME...\n");
		return 2;
	}
	double step = 1e3 / atof(argv[1]), deadline = atof(argv[2]);
	long most = LONGEST_RUN_S * 1e3 / step, n = 0;
	struct question *all = calloc(most, sizeof *all);
	pthread_t thread;
	pthread_attr_t attr;
	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	pthread_attr_setstacksize(&attr, 256 << 10);
	if (!all || pthread_create(&thread, &attr, watch_input, NULL) != 0) {
		fprintf(stderr, "load: no memory or no thread\n");
		return 1;
	}
	printf("asking\n");
	fflush(stdout);
	start = now_ms();
	while (!atomic_load(&stop) && n < most) {
		struct question *q = &all[n];
		q->name = argv[3 + n % (argc - 3)];
		q->sent = now_ms() - start;
		n++;
		if (pthread_create(&thread, &attr, ask, q) != 0) {
			snprintf(q->outcome, sizeof q->outcome, "error no thread");
			atomic_store(&q->done, 1);
		}
		sleep_until(start + n * step);
	}
	for (long i = 0; i < n; i++)
		while (!atomic_load(&all[i].done) && now_ms() - start < all[i].sent + deadline)
			sleep_until(now_ms() + 5);
	for (long i = 0; i < n; i++) {
		struct question *q = &all[i];
		if (!atomic_load(&q->done) || q->took > deadline)
			printf("%.3f %.3f error timeout\n", q->sent, deadline);
		else
			printf("%.3f %.3f %s\n", q->sent, q->took, q->outcome);
	}
	fflush(stdout);
	_exit(0); /* calls that still wait for an answer are not waited for */
}
