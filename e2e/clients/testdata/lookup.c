/*
 * lookup resolves names as any program of its C library does, and prints the
 * addresses sorted:
 *
 *     lookup FAMILY NAME...    FAMILY is 0, 4 or 6
 *     lookup r ADDRESS...      the names of IPv4 addresses
 */
#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

static int by_text(const void *a, const void *b)
{
	return strcmp(a, b);
}

static void forward(const char *name, int family)
{
	static char found[256][INET6_ADDRSTRLEN];
	struct addrinfo hints, *list, *ai;
	int n = 0, i, err;

	memset(&hints, 0, sizeof hints);
	hints.ai_family = family;
	hints.ai_socktype = SOCK_STREAM;
	err = getaddrinfo(name, NULL, &hints, &list);
	printf("%s", name);
	if (err) {
		printf(" error %s\n", err == EAI_NONAME ? "NONAME" : err == EAI_AGAIN ? "AGAIN" : gai_strerror(err));
		return;
	}
	for (ai = list; ai && n < 256; ai = ai->ai_next, n++) {
		const void *at = ai->ai_family == AF_INET
			? (const void *)&((struct sockaddr_in *)ai->ai_addr)->sin_addr
			: (const void *)&((struct sockaddr_in6 *)ai->ai_addr)->sin6_addr;
		inet_ntop(ai->ai_family, at, found[n], sizeof found[n]);
	}
	freeaddrinfo(list);
	qsort(found, n, sizeof found[0], by_text);
	for (i = 0; i < n; i++)
		printf(" %s", found[i]);
	printf("\n");
}

static void reverse(const char *text)
{
	struct sockaddr_in sa;
	char host[256];

	memset(&sa, 0, sizeof sa);
	sa.sin_family = AF_INET;
	if (inet_pton(AF_INET, text, &sa.sin_addr) != 1)
		exit(2);
	if (getnameinfo((struct sockaddr *)&sa, sizeof sa, host, sizeof host, NULL, 0, NI_NAMEREQD))
		strcpy(host, "error");
	printf("%s %s\n", text, host);
}

int main(int argc, char **argv)
{
	int i;

	for (i = 2; i < argc; i++) {
		if (*argv[1] == 'r')
			reverse(argv[i]);
		else
			forward(argv[i], *argv[1] == '4' ? AF_INET : *argv[1] == '6' ? AF_INET6 : AF_UNSPEC);
	}
	return 0;
}
