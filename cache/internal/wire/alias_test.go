package wire

import (
	"strings"
	"testing"

	"github.com/miekg/dns"
)

// packedReply is a reply to a question for an address; after "auth" come the records of the authority section.
func packedReply(t *testing.T, name string, rcode int, texts ...string) (question, reply []byte) {
	t.Helper()
	m := new(dns.Msg).SetReply(new(dns.Msg).SetQuestion(name, dns.TypeA))
	m.Rcode, m.Compress = rcode, true
	section := &m.Answer
	for _, text := range texts {
		if text == "auth" {
			section = &m.Ns
			continue
		}
		rr, err := dns.NewRR(text)
		if err != nil {
			t.Fatal(err)
		}
		*section = append(*section, rr)
	}
	reply, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	n, err := ParseName(name)
	if err != nil {
		t.Fatal(err)
	}
	return append(n, 0, TypeA, 0, ClassIN), reply
}

func TestAliasEnd(t *testing.T) {
	for _, c := range []struct {
		rcode int
		texts []string
		want  string
	}{
		{0, []string{"a.test. 60 IN CNAME B.test."}, "b.test."},
		{0, []string{"a.test. 60 IN CNAME b.test.", "B.test. 60 IN CNAME c.test."}, "c.test."},
		{0, []string{"a.test. 60 IN CNAME b.test.", "b.test. 60 IN A 192.0.2.1"}, ""},
		{0, []string{"a.test. 60 IN CNAME b.test.", "b.test. 60 IN TXT x", "x.test. 60 IN A 192.0.2.1"}, "b.test."},
		{0, []string{"a.test. 60 IN A 192.0.2.1"}, ""},
		{0, []string{"x.test. 60 IN CNAME y.test."}, ""},
		{0, []string{"auth", "a.test. 60 IN CNAME b.test."}, ""},
		{dns.RcodeNameError, []string{"a.test. 60 IN CNAME b.test."}, ""},
		{0, nil, ""},
	} {
		question, reply := packedReply(t, "a.test.", c.rcode, c.texts...)
		end, ok := AliasEnd(question, reply)
		if ok != (c.want != "") || ok && FormatName(end) != c.want {
			t.Errorf("%v: %q, %v", c.texts, end, ok)
		}
		for i := range reply { // cut anywhere it says nothing, or the same
			if cut, ok := AliasEnd(question, reply[:i]); ok && FormatName(cut) != c.want {
				t.Errorf("%v, cut at %d: %q", c.texts, i, cut)
			}
		}
		question[len(question)-3] = TypeCNAME
		reply[len(question)+headerLen-3] = TypeCNAME
		if _, ok := AliasEnd(question, reply); ok {
			t.Errorf("%v: the alias itself was asked for", c.texts)
		}
	}
}

func TestAppendRest(t *testing.T) {
	question, reply := packedReply(t, "a.test.", 0, "A.test. 60 IN CNAME b.other.test.")
	target, rest := packedReply(t, "b.other.test.", dns.RcodeNameError, "auth", "other.test. 30 IN SOA ns.other.test. h.test. 1 2 3 4 5")
	out, err := AppendRest(nil, question, reply, target, rest)
	if err != nil {
		t.Fatal(err)
	}
	var m dns.Msg
	if err := m.Unpack(out); err != nil {
		t.Fatal(err)
	}
	if m.Rcode != dns.RcodeNameError || len(m.Answer) != 1 || len(m.Ns) != 1 || m.Answer[0].(*dns.CNAME).Target != "b.other.test." ||
		!strings.HasPrefix(m.Ns[0].String(), "other.test.\t30\tIN\tSOA\tns.other.test.") {
		t.Errorf("%v", &m)
	}
	if _, err := AppendRest(nil, target, reply, target, rest); err == nil {
		t.Error("took a reply to another question")
	}
	if _, err := AppendRest(nil, question, reply, target, rest[:len(rest)-1]); err == nil {
		t.Error("took a reply that is cut")
	}
}
