package wire

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"

	"github.com/miekg/dns"
)

// FuzzQuery holds the reader against miekg/dns.
func FuzzQuery(f *testing.F) {
	files, _ := filepath.Glob("testdata/malformed/*/*.hex")
	for _, file := range files {
		f.Add(readHexF(f, file))
	}
	f.Add(packet(f, "wWw.eXample.test.", dns.TypeAAAA, func(m *dns.Msg) { m.SetEdns0(4096, true) }))
	f.Fuzz(func(t *testing.T, msg []byte) {
		if len(msg) > dns.MaxMsgSize {
			return
		}
		before := bytes.Clone(msg)
		var q Query
		verdict := q.Read(msg)
		if !bytes.Equal(msg, before) {
			t.Fatal("the packet was changed")
		}
		var m dns.Msg
		err := m.Unpack(msg)
		switch verdict {
		case OK:
			compareQuery(t, &q, msg, &m, err)
		case Reject:
			// What the library understands and means an ordinary question must not be
			// refused as malformed.
			if q.Rcode == FormErr && err == nil && ordinary(&m, msg) {
				t.Fatalf("refused %v", &m)
			}
		}
		checkError(t, msg, AppendError(nil, msg, ServFail), verdict, q.Rcode)
	})
}

func compareQuery(t *testing.T, q *Query, msg []byte, m *dns.Msg, err error) {
	// The question alone: records that nobody looks at may be whatever they are.
	n := headerLen + len(q.Question())
	head := bytes.Clone(msg[:n])
	clear(head[6:12])
	var question dns.Msg
	if qerr := question.Unpack(head); qerr != nil {
		t.Fatalf("the library refuses the question: %v", qerr)
	}
	if got := question.Question[0]; got.Qtype != q.Type || got.Qclass != q.Class {
		t.Fatalf("type %d class %d, the library reads %v", q.Type, q.Class, got)
	}
	if want := strings.Map(asciiLower, question.Question[0].Name); FormatName(q.Name()) != want {
		t.Fatalf("name %q, want %q", FormatName(q.Name()), want)
	}
	if err != nil {
		return
	}
	opt := m.IsEdns0()
	if (opt != nil) != q.EDNS {
		t.Fatalf("EDNS %v, the library reads %v", q.EDNS, opt)
	}
	if opt != nil && (opt.Do() != q.DO() || max(opt.UDPSize(), minUDPSize) != q.size) {
		t.Fatalf("DO %v size %d, the library reads %v", q.DO(), q.size, opt)
	}
	if m.CheckingDisabled != (q.Variant()&CD != 0) {
		t.Fatal("CD differs")
	}
}

func asciiLower(r rune) rune {
	if 'A' <= r && r <= 'Z' {
		return r + 'a' - 'A'
	}
	return r
}

// ordinary tells whether a message is a question that any server answers.
func ordinary(m *dns.Msg, msg []byte) bool {
	if m.Response || m.Opcode != dns.OpcodeQuery || len(m.Question) != 1 || len(m.Answer)+len(m.Ns)+len(m.Extra) > 0 {
		return false
	}
	q := m.Question[0]
	if q.Qclass == 0 || q.Qclass == dns.ClassNONE || q.Qtype == dns.TypeOPT || q.Qtype == typeNXNAME {
		return false
	}
	// The counts may promise more than there is, which the library forgives; and it
	// reads pointers in a question.
	b, err := (&dns.Msg{MsgHdr: m.MsgHdr, Question: m.Question}).Pack()
	return err == nil && len(b) >= headerLen && bytes.HasPrefix(msg[headerLen:], b[headerLen:]) &&
		bytes.Equal(msg[4:headerLen], b[4:headerLen])
}

func readHexF(f *testing.F, path string) (b []byte) {
	f.Helper()
	var t testing.T
	return readHex(&t, path)
}
