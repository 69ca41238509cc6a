package rawjson

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// rebuild reads v with this package alone, into the types encoding/json would use.
func rebuild(t testing.TB, v Value) any {
	switch {
	case v.Null():
		return nil
	case v.Object():
		m := map[string]any{}
		for key, value := range Members(v) {
			m[Key(key)] = rebuild(t, value)
		}
		return m
	case v[0] == '[':
		a := []any{}
		for value := range Elements(v) {
			a = append(a, rebuild(t, value))
		}
		return a
	case v[0] == '"':
		s, ok := v.String()
		if !ok {
			t.Fatalf("no string in %q", v)
		}
		return s
	default:
		var x any
		if err := json.Unmarshal(v, &x); err != nil {
			t.Fatalf("scalar %q: %v", v, err)
		}
		return x
	}
}

func seeds() []string {
	return []string{
		`{}`, `[]`, ` { "a" : [ 1 , { } , "x" ] , "b" : null } `, `{"a\"b":"c\\","d":"\\\"}{]["}`,
		`{"é":"é","a":1,"a":2}`, `"\\"`, `[[],[[]],"",0,-1e9,true,false]`,
		"{\"a\":\r\n\t1}", `{"":{"":{}}}`,
	}
}

func TestAgreesWithEncodingJSON(t *testing.T) {
	for _, doc := range seeds() {
		t.Run(doc, func(t *testing.T) { agree(t, []byte(doc)) })
	}
}

func agree(t *testing.T, doc []byte) {
	var want any
	if err := json.Unmarshal(doc, &want); err != nil {
		return
	}
	if diff := cmp.Diff(want, rebuild(t, bytes.TrimSpace(doc))); diff != "" {
		t.Errorf("of %q (-encoding/json +rawjson):\n%s", doc, diff)
	}
}

func FuzzAgreesWithEncodingJSON(f *testing.F) {
	for _, doc := range seeds() {
		f.Add([]byte(doc))
	}
	f.Fuzz(func(t *testing.T, doc []byte) {
		if json.Valid(doc) {
			agree(t, doc)
			return
		}
		// Not JSON: the result does not matter, but it must end without a panic.
		walk(doc)
	})
}

func walk(v Value) {
	for _, value := range Members(v) {
		walk(value)
	}
	for value := range Elements(v) {
		walk(value)
	}
}

func TestLookups(t *testing.T) {
	doc := Value(`{"s":"x","e":"\u0078","t":true,"n":null,"o":{ },"l":[ 1 ],"k\u0065y":1}`)
	for _, tt := range []struct {
		name string
		got  bool
		want bool
	}{
		{"plain string", Get(doc, "s").Is("x"), true},
		{"escaped string", Get(doc, "e").Is("x"), true},
		{"escaped key", len(Get(doc, "key")) > 0, true},
		{"literal true", Get(doc, "t").True(), true},
		{"null", Get(doc, "n").Null(), true},
		{"absent", Get(doc, "missing").Null(), true},
		{"empty object", Get(doc, "o").Empty(), true},
		{"list with one element", Get(doc, "l").Empty(), false},
		{"string is no object", Get(doc, "s").Object(), false},
		{"number is no string", Get(doc, "l").Is("1"), false},
	} {
		if tt.got != tt.want {
			t.Errorf("%s: got %t, want %t", tt.name, tt.got, tt.want)
		}
	}
}

func TestWalkDoesNotAllocate(t *testing.T) {
	doc := Value(`{"a":{"b":["c",{"d":"e"}]},"f":"g"}`)
	if n := testing.AllocsPerRun(100, func() {
		if !Get(doc, "f").Is("g") || !Get(Get(doc, "a"), "b").Empty() && len(Get(doc, "a")) == 0 {
			t.Fatal("wrong value")
		}
	}); n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
}
