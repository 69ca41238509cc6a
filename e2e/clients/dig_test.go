package clients_test

import (
	"strings"
	"testing"
)

// faults are what dig says of replies that it does not trust.
var digFaults = []string{`(?i)warning`, `mismatch`, `malformed`, `[Gg]ot bad packet`, `extra bytes`, `COOKIE`, `NSID`, `PAD:`, `communications error`}

func TestDig(t *testing.T) {
	need(t, "dig")
	converse(t, "dig", "@"+server+" +tries=1 +timeout=5", digFaults, []conversation{
		{ask: "a.test", want: []string{
			`status: NOERROR`, `flags: qr rd ra; QUERY: 1, ANSWER: 1, AUTHORITY: 0, ADDITIONAL: 1`,
			`EDNS: version: 0, flags:; udp: 1232`, `^a\.test\. 300 IN A 192\.0\.2\.1$`, `\(UDP\)`,
		}},
		{ask: "+noedns a.test", want: []string{`ANSWER: 1, AUTHORITY: 0, ADDITIONAL: 0`}, never: []string{`EDNS`}},
		{ask: "+tcp a.test", want: []string{`^a\.test\. \d+ IN A 192\.0\.2\.1$`, `\(TCP\)`}},
		{ask: "+norec a.test", want: []string{`status: NOERROR`, `flags: qr ra;`}},
		{ask: "v4.test AAAA", want: []string{`status: NOERROR`, `ANSWER: 0, AUTHORITY: 1`, `^test\. \d+ IN SOA`}},
		{ask: "nothing.test", want: []string{`status: NXDOMAIN`, `AUTHORITY: 1`, `^test\. \d+ IN SOA`}},
		{ask: "alias.test", want: []string{`ANSWER: 2`, `^alias\.test\. \d+ IN CNAME a\.test\.$`, `^a\.test\. \d+ IN A 192\.0\.2\.1$`}},
		{ask: "-x 192.0.2.1", want: []string{`^1\.2\.0\.192\.in-addr\.arpa\. \d+ IN PTR a\.test\.$`}},
		{ask: "_sip._tcp.test SRV", want: []string{`SRV 0 5 5060 a\.test\.$`}},

		// Letter case comes back as it went (0x20), from memory too.
		{ask: "A.TeSt", want: []string{`^;A\.TeSt\. IN A$`, `^A\.TeSt\. \d+ IN A 192\.0\.2\.1$`}},
		{ask: "a.tEST +tcp", want: []string{`^;a\.tEST\. IN A$`, `^a\.tEST\. \d+ IN A 192\.0\.2\.1$`}},

		// Names that presentation format has to escape, and the longest.
		{ask: `a\.dot\032and\032blank.test`, want: []string{`^a\\\.dot\\032and\\032blank\.test\. \d+ IN A 192\.0\.2\.10$`}},
		{ask: `\000\255.test`, want: []string{`^\\000\\255\.test\. \d+ IN A 192\.0\.2\.11$`}},
		{ask: longest(), want: []string{` IN A 192\.0\.2\.12$`}},

		// Sizes: what does not fit is truncated, and TCP brings the rest.
		{ask: "big.test TXT", want: []string{`Truncated, retrying in TCP mode`, strings.Repeat("#", 40) + ` ^big\.test\. \d+ IN TXT`, `\(TCP\)`}},
		{ask: "+ignore +bufsize=4096 big.test TXT", want: []string{`flags: qr tc rd ra`, `MSG SIZE rcvd: (1[01]\d\d|12[0-3]\d)$`}},
		{ask: "+ignore +bufsize=1232 big.test TXT", want: []string{`flags: qr tc rd ra`, `MSG SIZE rcvd: (1[01]\d\d|12[0-3]\d)$`}},
		{ask: "+ignore +bufsize=512 big.test TXT", want: []string{`flags: qr tc rd ra`, `MSG SIZE rcvd: (4\d\d|50\d|51[0-2])$`}},
		{ask: "+ignore +bufsize=100 big.test TXT", want: []string{`flags: qr tc rd ra`, `MSG SIZE rcvd: (4\d\d|50\d|51[0-2])$`}},
		{ask: "+ignore +noedns big.test TXT", want: []string{`flags: qr tc rd ra`, `MSG SIZE rcvd: (4\d\d|50\d|51[0-2])$`}},
		{ask: "+noedns many.test", want: []string{`Truncated, retrying in TCP mode`, `ANSWER: 40,`}},
		{ask: "+bufsize=1232 many.test", want: []string{`ANSWER: 40,`, `\(UDP\)`}, never: []string{`Truncated`}},

		// DNSSEC bits: DO, AD and CD are the client's own.
		{ask: "+noad +noedns signed.test", want: []string{`flags: qr rd ra;`}, never: []string{`RRSIG`, `EDNS`}},
		{ask: "signed.test", want: []string{`flags: qr rd ra ad;`}, never: []string{`RRSIG`}}, // dig sets AD by itself
		{ask: "+dnssec signed.test", want: []string{`flags: qr rd ra ad;`, `version: 0, flags: do;`, `^signed\.test\. \d+ IN RRSIG A 8`}},
		{ask: "bogus.test", want: []string{`status: SERVFAIL`}, never: []string{`192\.0\.2\.66`}},
		{ask: "+tcp bogus.test", want: []string{`status: SERVFAIL`, `\(TCP\)`}},
		{ask: "+cd bogus.test", want: []string{`status: NOERROR`, `flags: qr rd ra cd;`, `192\.0\.2\.66`}},
		{ask: "+cd +dnssec a.test", want: []string{`flags: qr rd ra cd;`, `flags: do;`}},

		// Options are answered by silence about them, whatever the upstream says.
		{ask: "+nsid a.test", want: []string{`status: NOERROR`}},
		{ask: "+cookie=0102030405060708 a.test", want: []string{`status: NOERROR`}},
		{ask: "+subnet=198.51.100.0/24 a.test", want: []string{`status: NOERROR`}, never: []string{`CLIENT-SUBNET`}},
		{ask: "+padding=468 a.test", want: []string{`status: NOERROR`}},
		{ask: "+expire +ednsopt=65001:c0ffee a.test", want: []string{`status: NOERROR`}, never: []string{`OPT=65001`, `EXPIRE`}},
		{ask: "+tcp +keepalive a.test", want: []string{`status: NOERROR`}},
		{ask: "+ednsflags=0x4000 a.test", want: []string{`status: NOERROR`, `flags:; udp: 1232`}, never: []string{`MBZ`}},
		{ask: "+edns=1 +noednsnegotiation a.test", want: []string{`status: BADVERS`, `EDNS: version: 0`, `^;a\.test\. IN A$`, `ANSWER: 0`}},
		{ask: "+edns=1 a.test", want: []string{`BADVERS, retrying with EDNS version 0`, `192\.0\.2\.1$`}},

		// What is no plain question.
		{ask: "odd.test TYPE65280", want: []string{`^odd\.test\. \d+ IN TYPE65280 \\# 4 C0000207$`}},
		{ask: "a.test TYPE65281", want: []string{`status: NOERROR`, `ANSWER: 0, AUTHORITY: 1`}},
		{ask: "a.test ANY", want: []string{`ANSWER: 3,`, `\(TCP\)`}},
		{ask: "a.test ANY +notcp", want: []string{`ANSWER: 3,`, `\(UDP\)`}},
		{ask: "test AXFR", want: []string{`Transfer failed`}},
		{ask: "+opcode=notify a.test SOA", want: []string{`opcode: NOTIFY, status: NOTIMP`}},
		{ask: "+opcode=status a.test", want: []string{`opcode: STATUS, status: NOTIMP`}},
		{ask: "+header-only", want: []string{`status: FORMERR`}},
		{ask: "+zflag a.test", want: []string{`status: NOERROR`, `192\.0\.2\.1$`}},

		// One run, one connection, several questions.
		{ask: "+tcp +keepopen a.test +tcp +keepopen v4.test +tcp +keepopen nothing.test", want: []string{
			`192\.0\.2\.1$`, `192\.0\.2\.4$`, `status: NXDOMAIN`, `### \(TCP\)`,
		}},
	})
	if n := asked.of("a.test. A"); n > 4 {
		t.Errorf("a.test was asked %d times: DO and CD keep at most four answers apart", n)
	}
}
