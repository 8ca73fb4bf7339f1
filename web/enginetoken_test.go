package web

import (
	"encoding/base64"
	"strings"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/storage"
)

var fuzzKey = []byte("the key of this test")

func someTokens() []continuation {
	at := time.Date(2030, 1, 2, 3, 4, 5, 678901000, time.UTC)
	return []continuation{
		{kind: tokenDeadLetters, after: storage.TableCursor{At: at, Engine: "hmac", RowKey: "publisher-1"}},
		{kind: tokenHistory, filter: fingerprint(tokenHistory, map[string]string{"engine": "a"}), after: storage.TableCursor{At: earliest}},
		{kind: 0, after: storage.TableCursor{At: latest, Engine: strings.Repeat("\U0001F600", maxEngineName), RowKey: strings.Repeat("\U0001F600", maxRowKey)}},
	}
}

// What opens is exactly what was sealed: no token has two forms, and none comes from elsewhere.
func FuzzContinuationToken(f *testing.F) {
	for _, c := range someTokens() {
		f.Add(sealToken(fuzzKey, c))
		f.Add(sealToken(append(fuzzKey, 'x'), c))
	}
	f.Add(sealToken(fuzzKey, continuation{after: storage.TableCursor{At: latest.Add(time.Microsecond)}}))
	f.Add("")
	f.Add("AWwAAAAAAAAAAAAAAAAAAAAAAAA\n")
	f.Add(strings.Repeat("A", 54))
	f.Fuzz(func(t *testing.T, token string) {
		if c, ok := openToken(fuzzKey, token); ok && sealToken(fuzzKey, c) != token {
			t.Fatalf("%q opens as %+v, which is %q", token, c, sealToken(fuzzKey, c))
		}
		// The bytes behind the authentication are checked too: somebody may get hold of the key.
		if body, err := base64.RawURLEncoding.Strict().DecodeString(token); err == nil {
			forged := base64.RawURLEncoding.EncodeToString(append(body, tokenMAC(fuzzKey, body)...))
			c, ok := openToken(fuzzKey, forged)
			if ok && (sealToken(fuzzKey, c) != forged || c.after.At.Before(earliest) || c.after.At.After(latest)) {
				t.Fatalf("%q opens as %+v", forged, c)
			}
		}
	})
}

func TestTokensComeBackAndNothingElseDoes(t *testing.T) {
	t.Parallel()
	for _, c := range someTokens() {
		token := sealToken(fuzzKey, c)
		if got, ok := openToken(fuzzKey, token); !ok || got != c {
			t.Errorf("%+v comes back as %+v", c, got)
		}
		raw, err := base64.RawURLEncoding.DecodeString(token)
		if err != nil {
			t.Fatal(err)
		}
		for i := range raw {
			for bit := range 8 {
				raw[i] ^= 1 << bit
				if _, ok := openToken(fuzzKey, base64.RawURLEncoding.EncodeToString(raw)); ok {
					t.Fatalf("byte %d may be another one", i)
				}
				raw[i] ^= 1 << bit
			}
		}
		for name, bad := range map[string]string{
			"cut": token[:len(token)-2], "longer": token + "AA", "padded": token + "=", "with a line break": token[:8] + "\n" + token[8:],
			"too long": token + strings.Repeat("A", maxToken),
		} {
			if _, ok := openToken(fuzzKey, bad); ok {
				t.Errorf("a token that is %s opens", name)
			}
		}
		if _, ok := openToken([]byte("another key of a test"), token); ok {
			t.Error("a token opens with another key")
		}
	}
}

func TestFingerprintsTellFiltersApart(t *testing.T) {
	t.Parallel()
	type filter = map[string]string
	seen := map[[fingerprintSize]byte]int{}
	for i, f := range []filter{nil, {"a": ""}, {"a": "b"}, {"ab": ""}, {"a": "b", "c": "d"}, {"a": "bcd"}, {"a": "d", "c": "b"}} {
		for _, kind := range []byte{tokenDeadLetters, tokenHistory} {
			got := fingerprint(kind, f)
			if other, ok := seen[got]; ok {
				t.Errorf("filters %d and %d have one fingerprint", i, other)
			}
			seen[got] = i
		}
	}
	if fingerprint('l', filter{"a": "b", "c": "d"}) != fingerprint('l', filter{"c": "d", "a": "b"}) {
		t.Error("the same filters have two fingerprints")
	}
}
