/* lookup NAME...: asks the C library's resolver for IPv4 addresses and prints "NAME ADDRESS..." a line, or
 * "NAME error: REASON". The exit code is 0 when every name had an address. */
#include <arpa/inet.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

int main(int argc, char **argv)
{
	int failed = 0;
	for (int i = 1; i < argc; i++) {
		struct addrinfo hints, *list = NULL;
		memset(&hints, 0, sizeof hints);
		hints.ai_family = AF_INET;
		hints.ai_socktype = SOCK_STREAM;
		int rc = getaddrinfo(argv[i], NULL, &hints, &list);
		printf("%s", argv[i]);
		if (rc != 0) {
			printf(" error: %s\n", gai_strerror(rc));
			failed = 1;
			continue;
		}
		for (struct addrinfo *a = list; a; a = a->ai_next) {
			char text[INET_ADDRSTRLEN];
			inet_ntop(AF_INET, &((struct sockaddr_in *)a->ai_addr)->sin_addr, text, sizeof text);
			printf(" %s", text);
		}
		printf("\n");
		freeaddrinfo(list);
	}
	return failed;
}
