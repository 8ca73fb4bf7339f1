package web

import (
	"encoding/json"
	"testing"
	"time"
	"unicode/utf8"
)

// A body that is taken is one JSON object with members that were asked for, each once and of its type.
func FuzzObject(f *testing.F) {
	for _, body := range []string{
		"", "{}", "null", "[]", `{"text":"a","number":1,"at":"2026-01-02T03:04:05Z","any":{"a":[1]}}`, `{"text":null,"any":null}`, `{"text":"a"}{}`,
		`{"text":"a","text":"b"}`, `{"Text":"a"}`, `{"number":1e2}`, `{"number":1.5}`, `{"number":9223372036854775808}`, `{"at":"2026-01-02"}`, `{"any":"\ud800"}`,
		`{"any":}`, `{"any":1,}`, `{`, `{"te\u0078t":"a"}`, "{\"text\":\"\xff\"}", " {\n} ",
	} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		var text string
		var number *int64
		var at time.Time
		var value json.RawMessage
		if parseObject(body, map[string]any{"text": &text, "number": &number, "at": &at, "any": &value}) != nil {
			return
		}
		var members map[string]json.RawMessage
		if err := json.Unmarshal(body, &members); err != nil || members == nil || !utf8.Valid(body) {
			t.Fatalf("%q was taken: %v", body, err)
		}
		for name, raw := range members {
			switch name {
			case "text":
				if string(raw) != "null" && raw[0] != '"' {
					t.Fatalf("%q was taken for a text", raw)
				}
			case "number":
				if (number == nil) != (string(raw) == "null") {
					t.Fatalf("%q was taken for a number", raw)
				}
			case "at":
			case "any":
				if !json.Valid(value) || (string(raw) == "null") != (string(value) == "null") {
					t.Fatalf("%q became %q", raw, value)
				}
			default:
				t.Fatalf("%q has %q", body, name)
			}
		}
	})
}
