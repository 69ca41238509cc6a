package store

import (
	"fmt"
	"testing"
	"time"
)

// BenchmarkInsert puts new answers into a full store, which evicts one for each.
func BenchmarkInsert(b *testing.B) {
	for _, n := range []int{1e4, 1e6} {
		b.Run(fmt.Sprintf("%.0e", float64(n)), func(b *testing.B) {
			s := New(Config{Success: n})
			answers := make([]*Entry, 2*n)
			for i := range answers {
				answers[i] = answerTo(b, question(fmt.Sprintf("name%d.example.test", i), 1), 0, uint32(i))
			}
			for i := range n {
				s.Put(answers[i], Success, 0, time.Minute, nil)
			}
			b.ReportAllocs()
			i := n
			for b.Loop() {
				s.Put(renew(answers[i]), Success, 0, time.Minute, nil)
				if i++; i == len(answers) {
					i = 0
				}
			}
		})
	}
}

// BenchmarkInsertParallel shows what the one lock of the writers costs.
func BenchmarkInsertParallel(b *testing.B) {
	s := New(Config{Success: 10000})
	answers := make([]*Entry, 20000)
	for i := range answers {
		answers[i] = answerTo(b, question(fmt.Sprintf("name%d.example.test", i), 1), 0, uint32(i))
	}
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for i := 0; pb.Next(); i++ {
			s.Put(renew(answers[i%len(answers)]), Success, 0, time.Minute, nil)
		}
	})
}

// renew returns a new entry with the answer of e.
func renew(e *Entry) *Entry {
	n, _ := NewEntry(e.Size())
	n.Answer = e.Answer
	return n
}

// BenchmarkGet is the look-up alone.
func BenchmarkGet(b *testing.B) {
	s := New(Config{})
	q := question("www.example.test", 1)
	s.Put(answerTo(b, q, 0, 1), Success, 0, time.Minute, nil)
	b.ReportAllocs()
	for b.Loop() {
		if s.Get(q, 0) == nil {
			b.Fatal("miss")
		}
	}
}
