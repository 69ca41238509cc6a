// Package rawjson walks JSON text in place, so that a review of a Pod costs a few slices of the request body instead
// of a typed Pod. It owns no memory and knows nothing of Kubernetes.
//
// Every function takes a Value that is part of a document for which json.Valid has said yes; on other input the result
// is undefined, but still no panic and no endless loop. A usage:
//
//	for key, value := range rawjson.Members(body) {
//		if rawjson.KeyIs(key, "request") { … }
//	}
package rawjson

import (
	"bytes"
	"encoding/json"
	"iter"
	"unicode/utf8"
)

// Value is the text of one JSON value without the space around it; it aliases the document. Empty means absent.
type Value []byte

// Members yields the members of an object in their order: the key as it stands between its quotes (escapes kept) and
// the value. Anything but an object has no members.
func Members(v Value) iter.Seq2[[]byte, Value] {
	return func(yield func([]byte, Value) bool) {
		i := skipSpace(v, 0)
		if i >= len(v) || v[i] != '{' {
			return
		}
		for i = skipSpace(v, i+1); i < len(v) && v[i] == '"'; {
			end := stringEnd(v, i)
			if end < 0 {
				return
			}
			key := v[i+1 : end-1]
			if i = skipSpace(v, end); i >= len(v) || v[i] != ':' {
				return
			}
			i = skipSpace(v, i+1)
			end = valueEnd(v, i)
			if end < 0 || !yield(key, v[i:end]) {
				return
			}
			if i = skipSpace(v, end); i >= len(v) || v[i] != ',' {
				return
			}
			i = skipSpace(v, i+1)
		}
	}
}

// Elements yields the elements of an array in their order. Anything but an array has no elements.
func Elements(v Value) iter.Seq[Value] {
	return func(yield func(Value) bool) {
		i := skipSpace(v, 0)
		if i >= len(v) || v[i] != '[' {
			return
		}
		for i = skipSpace(v, i+1); i < len(v) && v[i] != ']'; {
			end := valueEnd(v, i)
			if end < 0 || !yield(v[i:end]) {
				return
			}
			if i = skipSpace(v, end); i >= len(v) || v[i] != ',' {
				return
			}
			i = skipSpace(v, i+1)
		}
	}
}

// KeyIs tells whether a key as given by Members spells name.
func KeyIs(key []byte, name string) bool {
	if plain(key) {
		return string(key) == name
	}
	s, ok := unquote(key)
	return ok && s == name
}

// Key is the text of a key as given by Members.
func Key(key []byte) string {
	if plain(key) {
		return string(key)
	}
	s, _ := unquote(key)
	return s
}

// Get is the last member of that name (as encoding/json takes it), empty if there is none.
func Get(v Value, name string) Value {
	var found Value
	for key, value := range Members(v) {
		if KeyIs(key, name) {
			found = value
		}
	}
	return found
}

// String is the text of a JSON string; ok is false for any other value.
func (v Value) String() (s string, ok bool) {
	if len(v) < 2 || v[0] != '"' {
		return "", false
	}
	inner := v[1 : len(v)-1]
	if plain(inner) {
		return string(inner), true
	}
	return unquote(inner)
}

// Is tells whether v is a JSON string with the text s.
func (v Value) Is(s string) bool {
	return len(v) >= 2 && v[0] == '"' && KeyIs(v[1:len(v)-1], s)
}

// True tells whether v is the literal true.
func (v Value) True() bool { return string(v) == "true" }

// Null tells whether v is absent or the literal null, which the API treats alike.
func (v Value) Null() bool { return len(v) == 0 || string(v) == "null" }

// Object tells whether v is an object.
func (v Value) Object() bool { return len(v) > 0 && v[0] == '{' }

// Empty tells whether v is absent, null, or an object or array with nothing in it.
func (v Value) Empty() bool {
	if v.Null() {
		return true
	}
	if v[0] != '{' && v[0] != '[' {
		return false
	}
	i := skipSpace(v, 1)
	return i < len(v) && (v[i] == '}' || v[i] == ']')
}

// plain tells whether the text between quotes is the string itself. Bytes that are no UTF-8 need the decoder, which
// puts U+FFFD in their place.
func plain(inner []byte) bool { return bytes.IndexByte(inner, '\\') < 0 && utf8.Valid(inner) }

func unquote(inner []byte) (string, bool) {
	quoted := make([]byte, 0, len(inner)+2)
	quoted = append(quoted, '"')
	quoted = append(quoted, inner...)
	quoted = append(quoted, '"')
	var s string
	if err := json.Unmarshal(quoted, &s); err != nil {
		return "", false
	}
	return s, true
}

func skipSpace(v []byte, i int) int {
	for i < len(v) && (v[i] == ' ' || v[i] == '\n' || v[i] == '\t' || v[i] == '\r') {
		i++
	}
	return i
}

// stringEnd is the index after the closing quote of the string that starts at v[i], -1 if there is none.
func stringEnd(v []byte, i int) int {
	for i++; i < len(v); i++ {
		q := bytes.IndexByte(v[i:], '"')
		if q < 0 {
			return -1
		}
		i += q
		// A quote after an odd number of backslashes is part of the text.
		n := 0
		for v[i-1-n] == '\\' {
			n++
		}
		if n%2 == 0 {
			return i + 1
		}
	}
	return -1
}

// valueEnd is the index after the value that starts at v[i], -1 if it does not end.
func valueEnd(v []byte, i int) int {
	if i >= len(v) {
		return -1
	}
	switch v[i] {
	case '"':
		return stringEnd(v, i)
	case '{', '[':
		depth := 0
		for i < len(v) {
			switch v[i] {
			case '"':
				end := stringEnd(v, i)
				if end < 0 {
					return -1
				}
				i = end
				continue
			case '{', '[':
				depth++
			case '}', ']':
				depth--
				if depth == 0 {
					return i + 1
				}
			}
			i++
		}
		return -1
	default:
		start := i
		for i < len(v) {
			switch v[i] {
			case ',', '}', ']', ' ', '\n', '\t', '\r':
				if i == start {
					return -1
				}
				return i
			}
			i++
		}
		return i
	}
}

// AppendString appends s as a JSON string.
func AppendString(dst []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < 0x20 || c == '"' || c == '\\' || c >= 0x7f {
			quoted, err := json.Marshal(s)
			if err != nil { // cannot be: every string has a JSON form
				return append(dst, `""`...)
			}
			return append(dst, quoted...)
		}
	}
	dst = append(dst, '"')
	dst = append(dst, s...)
	return append(dst, '"')
}
