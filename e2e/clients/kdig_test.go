package clients_test

import (
	"strings"
	"testing"
)

func TestKdig(t *testing.T) {
	need(t, "kdig")
	faults := []string{`(?i)warning`, `(?i)error: `, `malformed`, `NSID`, `COOKIE`, `PADDING`}
	converse(t, "kdig", "@"+server+" +retry=0 +timeout=5", faults, []conversation{
		{ask: "a.test", want: []string{`status: NOERROR`, `Flags: qr rd ra; QUERY: 1; ANSWER: 1; AUTHORITY: 0; ADDITIONAL: 0`, `^a\.test\. \d+ IN A 192\.0\.2\.1$`}, never: []string{`EDNS`}},
		{ask: "+edns a.test AAAA", want: []string{`UDP size: 1232 B; ext-rcode: NOERROR`, `IN AAAA 2001:db8::1$`}},
		{ask: "+tcp a.test", want: []string{`192\.0\.2\.1$`, `\(TCP\)`}},
		{ask: "+tcp +keepopen a.test v4.test alias.test nothing.test", want: []string{
			`## IN A 192\.0\.2\.1$`, `IN A 192\.0\.2\.4$`, `status: NXDOMAIN`, `#### \(TCP\)`,
		}},
		{ask: "+dnssec signed.test", want: []string{`Flags: qr rd ra ad;`, `flags: do;`, `IN RRSIG A 8 2 300`}},
		{ask: "+adflag signed.test", want: []string{`Flags: qr rd ra ad;`}, never: []string{`RRSIG`}},
		{ask: "+noadflag signed.test", want: []string{`Flags: qr rd ra;`}, never: []string{`RRSIG`}},
		{ask: "+cdflag bogus.test", want: []string{`status: NOERROR`, `Flags: qr rd ra cd;`, `192\.0\.2\.66$`}},
		{ask: "bogus.test", want: []string{`status: SERVFAIL`}},
		{ask: "+ignore +bufsize=512 big.test TXT", want: []string{`Flags: qr tc rd ra;`, `Received (4\d\d|50\d|51[0-2]) B`}},
		{ask: "+ignore +bufsize=4096 big.test TXT", want: []string{`Flags: qr tc rd ra;`, `Received (1[01]\d\d|12[0-3]\d) B`}},
		{ask: "+tcp big.test TXT", want: []string{`ANSWER: 40;`, strings.Repeat("#", 40) + ` ^big\.test\. \d+ IN TXT`}},
		{ask: "+noidn A.tEsT", want: []string{`A\.tEsT\. IN A$`, `^A\.tEsT\. \d+ IN A 192\.0\.2\.1$`}},
		{ask: "odd.test TYPE65280", want: []string{`IN TYPE65280 \\# 4 C0000207$`}},
		{ask: "a.test ANY", want: []string{`ANSWER: 3;`}},
		{ask: "+nsid a.test", want: []string{`status: NOERROR`, `Version: 0`}},
		{ask: "+cookie a.test", want: []string{`status: NOERROR`, `Version: 0`}},
		{ask: "+padding=400 a.test", want: []string{`status: NOERROR`, `Version: 0`}},
		{ask: "+subnet=2001:db8::/56 a.test", want: []string{`status: NOERROR`}, never: []string{`SUBNET`}},
		{ask: "+ednsopt=65001:c0ffee a.test", want: []string{`status: NOERROR`}, never: []string{`65001`}},
		{ask: "+edns=1 a.test", want: []string{`ext-rcode: BADVERS`, `a\.test\. IN A$`}},
	})
}

// TestKdigWarns of what is as it should be: that it turns to TCP, that it gets no zone.
func TestKdigWarns(t *testing.T) {
	need(t, "kdig")
	converse(t, "kdig", "@"+server+" +retry=0 +timeout=5", nil, []conversation{
		{ask: "many.test", want: []string{`retrying over TCP`, `ANSWER: 40;`, `\(TCP\)`}},
		{ask: "test AXFR", want: []string{`error 'REFUSED'`}, never: []string{`SOA`}},
	})
}

func TestDrill(t *testing.T) {
	need(t, "drill")
	faults := []string{`\b[Ee]rror\b`, `(?i)warning`}
	converse(t, "drill", "", faults, []conversation{
		{ask: "a.test @" + server, want: []string{`rcode: NOERROR`, `flags: qr rd ra ; QUERY: 1, ANSWER: 1, AUTHORITY: 0, ADDITIONAL: 0`, `^a\.test\. \d+ IN A 192\.0\.2\.1$`}},
		{ask: "-t a.test @" + server, want: []string{`192\.0\.2\.1$`}},
		{ask: "-b 1232 a.test @" + server + " AAAA", want: []string{`EDNS: version 0; flags: ; udp: 1232`, `2001:db8::1$`}},
		{ask: "-D signed.test @" + server, want: []string{`EDNS: version 0; flags: do ; udp: 1232`, ` RRSIG A 8 2 300`}},
		{ask: "signed.test @" + server, never: []string{`RRSIG`, `EDNS`}},
		{ask: "-o CD bogus.test @" + server, want: []string{`rcode: NOERROR`, `flags: qr rd cd ra`, `192\.0\.2\.66$`}},
		{ask: "bogus.test @" + server, want: []string{`rcode: SERVFAIL`}},
		{ask: "-o rd a.test @" + server, want: []string{`flags: qr ra ;`, `192\.0\.2\.1$`}},
		{ask: "-t big.test @" + server + " TXT", want: []string{`rcode: NOERROR`, `ANSWER: 40,`}},
		{ask: "-b 1232 many.test @" + server, want: []string{`ANSWER: 40,`}},
		{ask: "a.TEST @" + server, want: []string{`^;; a\.TEST\. IN A$`, `^a\.TEST\. \d+ IN A 192\.0\.2\.1$`}},
		{ask: "odd.test @" + server + " TYPE65280", want: []string{`TYPE65280 \\# 4 c0000207$`}},
		{ask: "a.test @" + server + " ANY", want: []string{`ANSWER: 3,`}},
		{ask: "-x 192.0.2.1 @" + server, want: []string{`IN PTR a\.test\.$`}},
	})
	converse(t, "drill", "", nil, []conversation{
		{ask: "many.test @" + server, want: []string{`flags: qr tc rd ra`, `ANSWER: 30,`, `The answer packet was truncated`}},
		{ask: "-b 512 big.test @" + server + " TXT", want: []string{`flags: qr tc rd ra`, `The answer packet was truncated`}},
	})
}
